package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"baton/mgmt"
	"baton/mgmt/config"
)

// local is what can be seen of an agent without asking it.
type local struct {
	root   string // of the file system, "" = the machine's; tests have their own
	config string // file of the agent's configuration
}

// Files of a board (docs/console.md).
const (
	configFile = "/etc/baton/batond.json"
	initState  = "/run/init/state.json"
	agentLog   = "/var/log/batond.log"
	initLog    = "/var/log/init.log"
)

func newLocal(config string) local { return local{os.Getenv("BATON_ROOT"), config} }

func (l local) path(p string) string { return l.root + p }

// absent says why no agent may answer at socket.
func (l local) absent(socket string) []mgmt.CheckLine {
	dir, lines := l.configuration()
	if dir == "" { // where the socket is if nothing else is said
		dir = filepath.Dir(strings.TrimPrefix(socket, l.root))
	}
	return append(append([]mgmt.CheckLine{l.socket(socket), l.process(dir)}, lines...), l.logged()...)
}

func line(area, subject, level, text, next string) mgmt.CheckLine {
	return mgmt.CheckLine{Area: area, Subject: subject, Level: level, Text: text, Next: next}
}

func (l local) socket(path string) mgmt.CheckLine {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return line("agent", "socket", mgmt.CheckFail, path+" is not there: no agent listens", "start batond")
	case err != nil:
		return line("agent", "socket", mgmt.CheckFail, err.Error(), "who are you? root, or whoever the agent runs as, may open it")
	case st.Mode()&fs.ModeSocket == 0:
		return line("agent", "socket", mgmt.CheckFail, path+" is no socket", "remove it, and start batond")
	}
	return line("agent", "socket", mgmt.CheckFail, path+" is there, and nobody answers", "restart batond: no link changes")
}

// process looks whether somebody holds the run directory's lock.
func (l local) process(runDir string) mgmt.CheckLine {
	name := filepath.Join(runDir, "batond.lock")
	f, err := os.Open(l.path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return line("agent", "process", mgmt.CheckFail, "no batond has run since power-up: "+name+" is not there", "start it; its log says why it ends")
	case err != nil:
		return line("agent", "process", mgmt.CheckWarn, "can not be told: "+err.Error(), "ask as root")
	}
	defer f.Close()
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return line("agent", "process", mgmt.CheckWarn, "a batond runs, and does not answer", "wait a minute: it may be starting; then restart it, which changes no link")
	case err != nil:
		return line("agent", "process", mgmt.CheckWarn, "can not be told: "+err.Error(), "look at the list of processes")
	}
	return line("agent", "process", mgmt.CheckFail, "no batond runs; one has since power-up", "start it; its log says why it ended")
}

// configuration reads what the agent would start with, and looks whether its
// devices are there. runDir is "" where it does not say.
func (l local) configuration() (runDir string, lines []mgmt.CheckLine) {
	data, err := os.ReadFile(l.path(l.config))
	if err != nil {
		return "", []mgmt.CheckLine{line("config", "file", mgmt.CheckFail, err.Error(), "put it there, or name it by --config")}
	}
	c, err := config.Parse(data, findProfile)
	if err != nil {
		text := err.Error()
		if all, ok := errors.AsType[config.Errors](err); ok && len(all) > 2 {
			text = fmt.Sprintf("%v; %v; and %d more errors", all[0], all[1], len(all)-2)
		}
		return "", []mgmt.CheckLine{line("config", "file", mgmt.CheckFail, l.config+": "+strings.ReplaceAll(text, "\n", "; "), "baton config check "+l.config)}
	}
	lines = append(lines, line("config", "file", mgmt.CheckOK, fmt.Sprintf("%s is valid: enclosure %s, %s", l.config, c.Enclosure, count(len(c.Slots), "slot")), ""))
	for _, name := range sortedNames(c.Buses) {
		target := c.Buses[name]
		path, isSocket := strings.CutPrefix(target, "unix:")
		if strings.HasPrefix(target, "tcp:") {
			continue
		}
		if !isSocket {
			path = l.path(target)
		}
		if _, err := os.Stat(path); err != nil {
			lines = append(lines, line("bus", name, mgmt.CheckFail, target+" is not there", "is its driver loaded? The agent starts without it, and tries again"))
		} else {
			lines = append(lines, line("bus", name, mgmt.CheckOK, target+" is there", ""))
		}
	}
	return c.RunDir, lines
}

// logged are the last errors of the agent's log.
func (l local) logged() (lines []mgmt.CheckLine) {
	text, _, err := tailOf(l.path(agentLog), 64<<10)
	if err != nil {
		return nil // a host with systemd has its journal
	}
	const most = 3
	var bad []string
	for s := range strings.Lines(text) {
		if s = strings.TrimSpace(s); strings.Contains(s, "level=ERROR") || strings.HasPrefix(s, "batond:") || strings.HasPrefix(s, "panic:") || strings.HasPrefix(s, "fatal error:") {
			bad = append(bad, s)
		}
	}
	for _, s := range bad[max(0, len(bad)-most):] {
		lines = append(lines, line("agent", "log", mgmt.CheckWarn, scrub(s), "more in "+agentLog))
	}
	return lines
}

// tailOf reads the last bytes of a file, from the beginning of a line. cut
// tells that there were more.
func tailOf(name string, most int64) (text string, cut bool, err error) {
	f, err := os.Open(name)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", false, err
	}
	if cut = st.Size() > most; cut {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return "", false, err
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, most))
	if i := bytes.IndexByte(data, '\n'); cut && i >= 0 {
		data = data[i+1:]
	}
	return string(data), cut, err
}

// initSays is what the board's init leaves for others to read.
type initSays struct {
	Agent struct {
		PID      int     `json:"pid"`
		Restarts int     `json:"restarts"`
		Health   string  `json:"health"`
		Text     string  `json:"text"`
		SinceS   float64 `json:"since_s"`
	} `json:"agent"`
	Watchdog struct {
		Device     string  `json:"device"`
		Identity   string  `json:"identity"`
		TimeoutS   float64 `json:"timeout_s"`
		Fed        bool    `json:"fed"`
		BootStatus int     `json:"bootstatus"`
		Bitten     bool    `json:"bitten"`
	} `json:"watchdog"`
	Clock struct {
		SetFromFloor bool `json:"set_from_floor"`
	} `json:"clock"`
	Image struct {
		Bank    string `json:"bank"`
		Trial   bool   `json:"trial"`
		Outcome string `json:"outcome"`
	} `json:"image"`
	ModulesFailed []string `json:"modules_failed"`
}

// agentEnds tells that init has started the agent again and again, and that it
// does not run: there is something to mend before it will.
func (l local) agentEnds() bool {
	const again = 3
	var s initSays
	data, err := os.ReadFile(l.path(initState))
	return err == nil && json.Unmarshal(data, &s) == nil && s.Agent.Health == "ended" && s.Agent.Restarts >= again
}

// init says how init sees things; nothing where another init runs.
func (l local) init() (lines []mgmt.CheckLine) {
	data, err := os.ReadFile(l.path(initState))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var s initSays
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return []mgmt.CheckLine{line("init", "state", mgmt.CheckWarn, fmt.Sprintf("%s can not be read: %v", initState, err), "look at "+initLog)}
	}
	since := age(int64(s.Agent.SinceS * 1000))
	said := strings.TrimSpace(s.Agent.Health + " " + s.Agent.Text)
	switch health, _, _ := strings.Cut(s.Agent.Health, " "); {
	case health == "ok,": // it is well, but for what follows
		lines = append(lines, line("init", "agent", mgmt.CheckWarn, fmt.Sprintf("%s, for %s", said, since), "baton nvm check"))
	case health == "starting":
		lines = append(lines, line("init", "agent", mgmt.CheckWarn, fmt.Sprintf("starting for %s, %s", since, count(s.Agent.Restarts, "restart")), "wait a minute; then look at "+agentLog))
	case health != "ok":
		lines = append(lines, line("init", "agent", mgmt.CheckFail, fmt.Sprintf("its health is %q for %s, %s", orDash(said), since, count(s.Agent.Restarts, "restart")), "look at "+agentLog+"; the watchdog bites if it stays so"))
	case s.Agent.Restarts > 0:
		lines = append(lines, line("init", "agent", mgmt.CheckWarn, fmt.Sprintf("healthy for %s, after %s", since, count(s.Agent.Restarts, "restart")), "why it ended is in "+agentLog))
	default:
		lines = append(lines, line("init", "agent", mgmt.CheckOK, "healthy for "+since+", never restarted", ""))
	}
	w := s.Watchdog
	switch {
	case w.Device == "":
		lines = append(lines, line("watchdog", "hardware", mgmt.CheckWarn, "there is none: an agent that hangs is not noticed", "is its driver in the image?"))
	case w.Bitten:
		lines = append(lines, line("watchdog", "hardware", mgmt.CheckWarn, fmt.Sprintf("%s %s: it has restarted this controller", w.Device, w.Identity), "what hung is at the end of "+agentLog+".1"))
	case !w.Fed:
		lines = append(lines, line("watchdog", "hardware", mgmt.CheckFail, fmt.Sprintf("%s is not fed: this controller restarts within %gs", w.Device, w.TimeoutS), "the agent does not answer its health channel"))
	default:
		lines = append(lines, line("watchdog", "hardware", mgmt.CheckOK, fmt.Sprintf("%s %s, fed, bites after %gs", w.Device, w.Identity, w.TimeoutS), ""))
	}
	if s.Clock.SetFromFloor {
		lines = append(lines, line("clock", "at start", mgmt.CheckWarn, "there was no time: the clock began at the image's build", "nothing waits for it; set it if logs are to be compared with others'"))
	}
	switch i := s.Image; {
	case i.Bank == "":
	case i.Trial:
		lines = append(lines, line("image", "bank "+i.Bank, mgmt.CheckWarn, "on trial: the one before comes back unless the agent is healthy", "wait; then baton image status"))
	case i.Outcome != "" && !strings.HasSuffix(i.Outcome, "tried and confirmed"):
		lines = append(lines, line("image", "bank "+i.Bank, mgmt.CheckWarn, "the last update: "+i.Outcome, "baton image status"))
	default:
		lines = append(lines, line("image", "bank "+i.Bank, mgmt.CheckOK, "runs", ""))
	}
	if len(s.ModulesFailed) > 0 {
		lines = append(lines, line("kernel", "modules", mgmt.CheckFail, "not loaded: "+strings.Join(s.ModulesFailed, " "), "look at "+initLog+"; what needs them does not work"))
	}
	return lines
}
