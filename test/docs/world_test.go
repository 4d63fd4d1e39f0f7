package docs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"baton/mgmt"
	"baton/sim"
	"baton/sim/control"
)

// programs builds ours once and returns their directory.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "baton-docs-bin")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "./cmd/baton", "./cmd/batond", "./cmd/batonsim")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, nil
})

// root of the tree.
const root = "../.."

// world is the enclosure of a page.
type world struct {
	t     testing.TB
	dir   string
	bin   string
	paths *strings.Replacer // as written -> of this world
	back  *strings.Replacer

	sim, agent *exec.Cmd
	hw         *control.Client
	client     *mgmt.Client
	sh         *shell
}

// Slots and servers of the enclosure, in the order of the configuration.
var (
	worldSlots   = []string{"gpu0", "gpu1", "nic0", "gpu2"}
	worldServers = []string{"server1", "server2", "server3"}
	train1       = mgmt.VM{Name: "train1", UUID: "6ba7b810-9dad-41d1-80b4-00c04fd430c8", Slots: worldSlots[:3]}
	train2       = mgmt.VM{Name: "train2", UUID: "6ba7b811-9dad-41d1-80b4-00c04fd430c8", Slots: worldSlots[3:]}
)

// kind is what is there when a page begins.
type kind string

const (
	inUse kind = "fresh" // simulator and agent; hosts are let in, train1 runs on server1
	blank kind = "new"   // simulator and agent; the store was blank
	empty kind = "empty" // neither
)

// newWorld makes the enclosure of a page.
func newWorld(t testing.TB, k kind) *world {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "bd") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, bin: bin}
	t.Cleanup(w.end)
	names := map[string]string{"/etc/baton": "etc", "/run/baton": "run", "/var/lib/baton": "var", "/tmp/sim": "sim"}
	var there, back []string
	for page, own := range names {
		there = append(there, page, w.path(own))
		back = append(back, w.path(own), page)
		if err := os.Mkdir(w.path(own), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.paths, w.back = strings.NewReplacer(there...), strings.NewReplacer(back...)
	for _, d := range []string{"home", "sim/chips"} {
		if err := os.Mkdir(w.path(d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	spec := worldSpec()
	w.write("etc/batond.json", worldConfig(spec, w.dir))
	w.write("home/batond.json", worldConfig(spec, w.dir))
	w.write("home/world.json", json.RawMessage(control.FormatWorld(spec)))
	w.write("home/job.json", map[string]any{
		"vm": train2.Name, "slot": "gpu2", "checkpoint": w.path("sim/train2.ckpt"), "checkpoint_every": 100, "step_time": "10ms", "proof_every": "10s",
	})

	w.hw, w.client = control.Dial(w.path("sim/control.sock")), mgmt.Dial(w.path("run/baton.sock"))
	w.sh = newShell(w)
	if k == empty {
		return w
	}
	w.sim = w.start("batonsim", "-world", w.path("home/world.json"), "-dir", w.path("sim"), "-state", w.path("sim/chips"))
	w.await("batonsim", func(ctx context.Context) error { _, err := w.hw.State(ctx); return err })
	w.startAgent()
	if k == inUse {
		w.inhabit()
	}
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name string, v any) {
	w.t.Helper()
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(w.path(name), append(text, '\n'), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func worldSpec() sim.Spec {
	s := control.ExampleWorld()
	s.Buses = []sim.BusSpec{{Name: "i2c-5", Hz: 4_000_000}, {Name: "i2c-6", Hz: 4_000_000}}
	// The store is formatted for every page of the docs: a fast part on a fast bus.
	s.Chips = []sim.ChipSpec{{Name: "store", Bus: "i2c-5", Addr: 0x57, WriteCycle: 200 * time.Microsecond}}
	s.Slots = nil
	for i, name := range worldSlots {
		bus := s.Buses[i/2].Name
		s.Chips = append(s.Chips, sim.ChipSpec{Name: name, Bus: bus, Addr: uint16(0x50 + i)})
		slot := sim.SlotSpec{Name: name, Bus: bus, Chip: name, EngineAddr: uint16(0x40 + i), MAC: sim.MAC{0x8c, 0xdf, 0x9d, 0, 1, byte(i + 1)}, Vendor: 0x10DE, Device: 0x2330, Class: 0x120000}
		if name == "nic0" {
			slot.Vendor, slot.Device, slot.Class = 0x15B3, 0x1021, 0x020000
		}
		s.Slots = append(s.Slots, slot)
	}
	s.Servers = nil
	for i, name := range worldServers {
		s.Servers = append(s.Servers, sim.ServerSpec{Name: name, Group: uint16(101 + i), MAC: sim.MAC{0x8c, 0xdf, 0x9d, 0, 2, byte(i + 1)}})
	}
	return s
}

// worldConfig is batond's.
func worldConfig(s sim.Spec, dir string) map[string]any {
	type object = map[string]any
	buses := object{}
	for _, b := range s.Buses {
		buses[b.Name] = "unix:" + filepath.Join(dir, "sim", b.Name+".sock")
	}
	var slots, hosts, vms []object
	for _, l := range s.Slots {
		c := s.Chips[1+len(slots)]
		slots = append(slots, object{
			"name": l.Name, "bus": l.Bus, "address": fmt.Sprintf("0x%02x", l.EngineAddr), "profile": "regs-v1", "mac": control.MAC(l.MAC),
			"eeprom": object{"address": fmt.Sprintf("0x%02x", c.Addr), "part": "24c256"},
		})
	}
	for _, v := range s.Servers {
		hosts = append(hosts, object{"name": v.Name, "group": v.Group, "mac": control.MAC(v.MAC)})
	}
	for _, v := range []mgmt.VM{train1, train2} {
		vms = append(vms, object{"name": v.Name, "uuid": v.UUID, "hosts": worldServers, "slots": v.Slots, "policy": "always"})
	}
	return object{
		"enclosure": "rack7-io2", "simulated": true, "run_dir": filepath.Join(dir, "run"), "socket": filepath.Join(dir, "run", "baton.sock"),
		"buses": buses, "store": object{"bus": "i2c-5", "address": "0x57", "part": "24c256", "format_blank": true},
		"slots": slots, "hosts": hosts, "vms": vms,
	}
}

// inhabit lets all hosts in and has server1 do what starts train1.
func (w *world) inhabit() {
	w.t.Helper()
	ctx := w.t.Context()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatalf("the page's enclosure: %v", err)
		}
	}
	for _, name := range worldServers {
		h, err := w.client.Host(ctx, name)
		must(err)
		must(w.client.Unfence(ctx, name, h.Epoch))
	}
	a, err := w.client.Attach(ctx, train1.Slots[0], mgmt.AttachRequest{VM: train1.Name, Host: "server1", Slots: train1.Slots})
	must(err)
	must(w.hw.StartVM(ctx, "server1", train1.Name, control.StartVM{Slots: train1.Slots}))
	for _, slot := range train1.Slots {
		v, err := w.client.Verdict(ctx, slot)
		must(err)
		must(w.client.Ack(ctx, slot, mgmt.AckRequest{Nonce: a.Nonce, Generation: v.Generation, Seen: v.Now}))
	}
}

func (w *world) start(program string, args ...string) *exec.Cmd {
	w.t.Helper()
	log, err := os.OpenFile(w.path(program+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	defer log.Close() // the process has its own
	cmd := exec.Command(filepath.Join(w.bin, program), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	return cmd
}

func (w *world) startAgent() {
	w.t.Helper()
	w.agent = w.start("batond", "-config", w.path("etc/batond.json"))
	w.await("batond", func(ctx context.Context) error { _, err := w.client.Enclosure(ctx); return err })
}

// await waits until f succeeds.
func (w *world) await(what string, f func(ctx context.Context) error) {
	w.t.Helper()
	var err error
	for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(5 * time.Millisecond) {
		if err = f(w.t.Context()); err == nil {
			return
		}
	}
	w.t.Fatalf("waited 20 s for %s: %v", what, err)
}

// stop ends a process with a signal and waits for it.
func stop(cmd *exec.Cmd, sig os.Signal) {
	if cmd != nil && cmd.ProcessState == nil {
		_ = cmd.Process.Signal(sig) // it may have ended by itself
		_ = cmd.Wait()
	}
}

// end stops everything and takes the directory away.
func (w *world) end() {
	if w.sh != nil {
		w.sh.end()
	}
	if w.client != nil {
		w.client.Close()
		w.hw.Close()
	}
	stop(w.agent, syscall.SIGKILL)
	stop(w.sim, syscall.SIGKILL)
	if w.t.Failed() {
		log, _ := os.ReadFile(w.path("batond.log"))
		w.t.Logf("batond's log:\n%s", tail(log, 3000))
	}
	_ = os.RemoveAll(w.dir)
}

func tail(text []byte, n int) []byte { return text[max(0, len(text)-n):] }

// direct carries out a directive other than fresh and new.
func (w *world) direct(text string) error {
	verb, rest, _ := strings.Cut(text, " ")
	switch verb {
	case "sim":
		path, body, _ := strings.Cut(rest, " ")
		return w.post(path, body)
	case "agent":
		switch rest {
		case "start":
			w.startAgent()
		case "stop":
			stop(w.agent, syscall.SIGTERM)
		case "kill":
			stop(w.agent, syscall.SIGKILL)
		default:
			return fmt.Errorf("agent %q", rest)
		}
		return nil
	case "run":
		out, code, err := w.sh.run(w.paths.Replace(rest), false)
		if err == nil && code != 0 {
			err = fmt.Errorf("%s: exit code %d\n%s", rest, code, out)
		}
		return err
	case "until":
		var out string
		for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(20 * time.Millisecond) {
			var err error
			if out, _, err = w.sh.run("baton status", false); err != nil {
				return err
			}
			if strings.Contains(strings.Join(strings.Fields(out), " "), rest) {
				return nil
			}
		}
		return fmt.Errorf("waited 20 s for %q; baton status shows\n%s", rest, out)
	}
	return fmt.Errorf("there is no directive %q", verb)
}

// post asks the simulator's control socket.
func (w *world) post(path, body string) error {
	if body == "" {
		body = "{}"
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", w.path("sim/control.sock"))
	}}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Post("http://sim/v1/"+path, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body) // of an error
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("simulator: %s: %s", resp.Status, bytes.TrimSpace(answer))
	}
	return nil
}

// shell is the sh that a page's commands are typed into, one after the other.
type shell struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func newShell(w *world) *shell {
	w.t.Helper()
	s := &shell{cmd: exec.Command("sh")}
	s.cmd.Dir = w.path("home")
	s.cmd.Env = []string{
		"PATH=" + w.bin + ":" + os.Getenv("PATH"), "HOME=" + w.path("home"), "BATON_SOCKET=" + w.path("run/baton.sock"), "TZ=UTC", "LC_ALL=C", "TERM=dumb",
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it ends with what it started
	in, err := s.cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	r, out, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	s.in, s.out = in, bufio.NewReader(r)
	s.cmd.Stdout, s.cmd.Stderr = out, out
	if err := s.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	_ = out.Close() // the shell has it
	w.t.Cleanup(func() { _ = r.Close() })
	return s
}

func (s *shell) end() {
	_ = s.in.Close()
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	_ = s.cmd.Wait()
}

// patience is how long a command of a page may take.
const patience = 30 * time.Second

// run types a command and returns what it prints, on both outputs.
func (s *shell) run(text string, interrupt bool) (out string, code int, err error) {
	if interrupt {
		// One signal, to the command alone: a second one to its group would meet
		// it when it has ended handling them.
		text = "timeout --foreground --preserve-status -s INT 1 " + text
	}
	const mark = "\x01end "
	if _, err := fmt.Fprintf(s.in, "{ %s\n} </dev/null; printf '\\n\\001end %%d\\n' $?\n", text); err != nil {
		return "", 0, err
	}
	late := time.AfterFunc(patience, func() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	var b strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if rest, ok := strings.CutPrefix(line, mark); ok {
			_, err := fmt.Sscan(rest, &code)
			return strings.TrimSuffix(b.String(), "\n"), code, err
		}
		b.WriteString(line)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("the shell ended, or the command took longer than %v", patience)
			}
			return b.String(), 0, err
		}
	}
}
