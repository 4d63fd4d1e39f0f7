package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"baton/mgmt/config"
	"baton/mgmt/password"
	"baton/mgmt/server/servertest"
)

// sitting is a console in this process, and who sits at it.
type sitting struct {
	t      *testing.T
	fake   *servertest.Fake
	person *os.File
	dir    string // run directory
	ended  chan int
	stop   context.CancelFunc

	mu     sync.Mutex
	screen bytes.Buffer
	from   int
}

// sit begins a console at a terminal of that TERM. lock is what the agent says
// of its password; nil = it has said nothing yet.
func sit(t *testing.T, term string, lock *config.ConsoleFile) *sitting {
	t.Helper()
	t.Setenv("TERM", term)
	t.Setenv("BATON_ROOT", t.TempDir())
	s := &sitting{t: t, fake: servertest.New(), dir: t.TempDir(), ended: make(chan int, 1)}
	socket, stop, err := serve(agent{s.fake, servertest.NewKeeper()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if lock != nil {
		s.lock(*lock)
	}
	person, terminal := openPTY(t)
	s.person = person
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := person.Read(buf)
			if err != nil {
				return // the terminal was closed
			}
			s.mu.Lock()
			s.screen.Write(buf[:n])
			s.mu.Unlock()
		}
	}()
	var ctx context.Context
	ctx, s.stop = context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.ended <- exitCode(run(ctx, []string{"console", "--run-dir", s.dir, "--socket", socket}, terminal, terminal, terminal))
	}()
	t.Cleanup(func() {
		_ = person.Close() // hangs up, and with that ends the console
		<-done
		_ = terminal.Close()
		<-read
		s.stop()
	})
	return s
}

func (s *sitting) lock(f config.ConsoleFile) {
	s.t.Helper()
	text, err := json.Marshal(f)
	if err != nil {
		s.t.Fatal(err)
	}
	// As the agent does: there is a whole file, or none.
	tmp := filepath.Join(s.dir, "new")
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(s.dir, config.ConsoleFileName)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *sitting) shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.ReplaceAll(s.screen.String(), "\r", "")
}

// sees waits until text has appeared behind what was seen before.
func (s *sitting) sees(text string) {
	s.t.Helper()
	for begin := time.Now(); time.Since(begin) < agentWait+20*time.Second; time.Sleep(2 * time.Millisecond) {
		all := s.shown()
		if i := strings.Index(all[s.from:], text); i >= 0 {
			s.from += i + len(text)
			return
		}
	}
	s.t.Fatalf("waited for %q; the terminal shows\n%s", text, s.shown())
}

func (s *sitting) types(keys string) {
	s.t.Helper()
	if _, err := s.person.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// ends waits for the end of the console.
func (s *sitting) ends(code int) {
	s.t.Helper()
	select {
	case got := <-s.ended:
		if got != code {
			s.t.Errorf("exit code %d; want %d\n%s", got, code, s.shown())
		}
	case <-time.After(20 * time.Second):
		s.t.Fatalf("it does not end\n%s", s.shown())
	}
}

func hashOf(t *testing.T, text string) string {
	t.Helper()
	h, err := password.New(text)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestConsoleTerms: where the terminal moves its cursor lines are edited; where
// it does not, nothing but plain text is sent.
func TestConsoleTerms(t *testing.T) {
	for _, term := range []string{"dumb", "", "vt100"} {
		t.Run("TERM="+term, func(t *testing.T) {
			s := sit(t, term, &config.ConsoleFile{})
			s.sees("baton> ")
			s.types("\n")
			s.sees("enclosure rack7-io2")
			s.sees("baton> ")
			s.types("baton verdict gpu0  # as it is suggested\n")
			s.sees("gpu0: memory preserved: YES")
			s.sees("baton> ")
			s.types("slot reset gpu0\n")
			s.sees("Go on? [y/N] ")
			s.types("n\n")
			s.sees("nothing was changed")
			s.sees("baton> ")
			s.types("help\n")
			s.sees("Look: status, check, watch")
			s.sees("baton> ")
			s.types("mvoe\n")
			s.sees("did you mean 'baton move'?")
			s.sees("baton> ")
			s.types("status | more\n")
			s.sees("no pipes")
			s.sees("baton> ")
			s.types("console\n")
			s.sees("this is the console already")
			s.sees("baton> ")
			if term == "vt100" {
				s.types("fence server9\x7f1\r") // corrected
				s.sees("server1 is fenced")
				s.sees("baton> ")
				s.types("log\x03") // given up
				s.sees("baton> ")
				s.types("\x1b[A\r") // the line before
				s.sees("server1 is fenced")
				s.sees("baton> ")
			} else if strings.ContainsAny(s.shown(), "\x1b\b\t") {
				t.Errorf("TERM=%q is sent more than text: %q", term, s.shown())
			}
			s.types("exit\n")
			s.ends(exitDone)
			if calls := strings.Join(s.fake.Calls(), " "); strings.Contains(calls, "reset") {
				t.Errorf("calls %s", calls)
			}
		})
	}
}

// TestConsoleHelpFits: 24 lines.
func TestConsoleHelpFits(t *testing.T) {
	var out bytes.Buffer
	c := &session{t: newTool(strings.NewReader(""), &out, &out)}
	c.help()
	if n := strings.Count(out.String(), "\n"); n > 22 {
		t.Errorf("help takes %d lines:\n%s", n, out.String())
	}
	for line := range strings.Lines(out.String()) {
		if len(strings.TrimSuffix(line, "\n")) > width {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	for _, c := range commands {
		if c.name != "console" && !strings.Contains(flat(out.String()), c.name) {
			t.Errorf("help has no %s", c.name)
		}
	}
}

// TestConsoleLock: nobody does anything without the password, whatever is
// pressed; and after a while without a key it is asked for again.
func TestConsoleLock(t *testing.T) {
	for _, term := range []string{"vt100", "dumb"} {
		t.Run(term, func(t *testing.T) {
			s := sit(t, term, &config.ConsoleFile{Password: hashOf(t, "over the hills"), LockAfterMS: 1500})
			s.sees("Password: ")
			s.types("status\n")
			s.sees("That is not the password.")
			s.sees("Password: ")
			s.types("\x04") // the end of the session is no way around it
			s.sees("Password: ")
			s.types("over the hills\n")
			s.sees("baton> ")
			s.types("version\n")
			s.sees("agent")
			s.sees("baton> ")
			s.sees("Locked: no key for 1.5s.")
			s.sees("Password: ")
			s.types("over the hills\n")
			s.sees("baton> ")
			// A command that goes on does not keep it open, nor does a question.
			s.types("watch --for 2s\n")
			s.sees("Locked")
			s.sees("Password: ")
			s.types("over the hills\n")
			s.sees("baton> ")
			s.types("slot reset gpu0\n")
			s.sees("Go on? [y/N] ")
			s.sees("nothing was changed")
			s.sees("Locked")
			s.sees("Password: ")
			s.types("over the hills\n")
			s.sees("baton> ")
			s.types("lock\n")
			s.sees("Password: ")
			s.types("over the hills\n")
			s.sees("baton> ")
			s.types("exit\n")
			s.ends(exitDone)
			shown := s.shown()
			if strings.Contains(shown, "over the hills") || strings.Contains(shown, "enclosure rack7-io2") {
				t.Errorf("it shows what it should not:\n%s", shown)
			}
			records, _ := s.fake.Audit()
			refused := 0
			for _, r := range records {
				if r.Kind == "refused" && r.By == "console" {
					refused++
				}
			}
			if refused != 1 {
				t.Errorf("%d records of the wrong password; want 1: %+v", refused, records)
			}
			if calls := strings.Join(s.fake.Calls(), " "); strings.Contains(calls, "reset") {
				t.Errorf("calls %s", calls)
			}
		})
	}
}

// TestConsoleTypedAhead: what is typed while the console waits before it asks
// for the password again is not shown, and Ctrl-\ is no way around that wait.
func TestConsoleTypedAhead(t *testing.T) {
	for _, term := range []string{"vt100", "dumb"} {
		s := sit(t, term, &config.ConsoleFile{Password: hashOf(t, "over the hills"), LockAfterMS: 60_000})
		s.sees("Password: ")
		s.types("over the hillz\n")
		for begin := time.Now(); ; time.Sleep(time.Millisecond) {
			if records, _ := s.fake.Audit(); len(records) > 0 {
				break // the pause begins
			}
			if time.Since(begin) > 20*time.Second {
				t.Fatal("the agent is not told")
			}
		}
		s.types("over the hills\n")
		if err := syscall.Kill(os.Getpid(), syscall.SIGQUIT); err != nil {
			t.Fatal(err)
		}
		s.sees("That is not the password.")
		s.sees("baton> ")
		s.types("version\n")
		s.sees("version\n")
		s.sees("baton> ")
		s.types("exit\n")
		s.ends(exitDone)
		if strings.Contains(s.shown(), "over the") {
			t.Errorf("TERM=%s: the password is shown:\n%s", term, s.shown())
		}
	}
}

// TestConsolePassword: set at the console, it is asked for twice, and not shown.
func TestConsolePassword(t *testing.T) {
	s := sit(t, "vt100", &config.ConsoleFile{})
	s.sees("baton> ")
	for _, tt := range []struct{ first, again, says string }{
		{"abc\n", "", "at least 4 characters"},
		{"over the hills\n", "over the hill\n", "the two are not the same"},
		{"over the hills\n", "over the hills\n", "Configuration 4 is in force"},
	} {
		s.types("console password\n")
		s.sees("New password: ")
		s.types(tt.first)
		if tt.again != "" {
			s.sees("Once more: ")
			s.types(tt.again)
		}
		s.sees(tt.says)
		s.sees("baton> ")
	}
	s.types("console password --clear\n")
	s.sees("Go on? [y/N] ")
	s.types("y\n")
	s.sees("console")
	s.sees("baton> ")
	s.types("lock\n")
	s.sees("there is no password, so nothing can be locked")
	s.sees("baton> ")
	s.types("exit\n")
	s.ends(exitDone)
	if strings.Contains(s.shown(), "over the") || strings.Contains(s.shown(), "pbkdf2") {
		t.Errorf("it shows what it should not:\n%s", s.shown())
	}
}

// TestConsoleLateAgent: a console that is open because no agent had started is
// locked as soon as one has, before anything is done.
func TestConsoleLateAgent(t *testing.T) {
	s := sit(t, "vt100", nil)
	s.sees("this console is")
	s.sees("baton> ")
	s.lock(config.ConsoleFile{Password: hashOf(t, "over the hills"), LockAfterMS: 60_000})
	s.types("fence server1\n")
	s.sees("This console has a password")
	s.sees("Password: ")
	s.types("over the hills\n")
	s.sees("baton> ")
	if calls := s.fake.Calls(); len(calls) != 0 {
		t.Errorf("calls %q", calls)
	}
	s.types("exit\n")
	s.ends(exitDone)
}

// TestLockFile: one that can not be read lets nobody in, and one that is missing
// is waited for where an agent may still be starting.
func TestLockFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, config.ConsoleFileName)
	write := func(text string) {
		err := os.WriteFile(name+".new", []byte(text), 0o600)
		if err == nil {
			err = os.Rename(name+".new", name) // as the agent does
		}
		if err != nil {
			t.Error(err)
		}
	}
	l := lock{dir: dir}
	silent := func() { t.Error("it waits for an agent") }
	never := func() bool { return false }
	if found, err := l.first(t.Context(), time.Hour, never, silent); found || err != nil || l.idle() != 0 {
		t.Errorf("without a file: %v, %v, %+v", found, err, l)
	}
	write("{")
	if _, err := l.first(t.Context(), time.Hour, never, silent); err == nil {
		t.Error("half a file is believed")
	}
	write(`{"password":"x"}`)
	if found, err := l.first(t.Context(), 0, never, silent); !found || err != nil || l.idle() != config.DefaultLockAfter {
		t.Errorf("%v, %v, %+v", found, err, l)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	l = lock{dir: dir}
	found, err := l.first(t.Context(), time.Second, never, func() {
		time.AfterFunc(2*agentPoll, func() { write(`{"password":"y","lock_after_ms":5}`) })
	})
	if !found || err != nil || l.encoded != "y" {
		t.Errorf("an agent that starts later: %v, %v, %+v", found, err, l)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	ends := board(t, map[string]string{initState: `{"agent":{"health":"ended","restarts":3}}`})
	l, began := lock{dir: dir}, time.Now()
	if found, err := l.first(t.Context(), time.Second, ends.agentEnds, func() {}); found || err != nil || time.Since(began) > agentWait/2 {
		t.Errorf("an agent that ends again and again: %v, %v after %v", found, err, time.Since(began))
	}
	for _, other := range []string{`{"agent":{"health":"starting","restarts":3}}`, `{"agent":{"health":"ended","restarts":1}}`, "{"} {
		if board(t, map[string]string{initState: other}).agentEnds() {
			t.Errorf("it is given up for %s", other)
		}
	}
}

// TestConsoleScript: from a pipe lines are read as they come; there is nobody to
// ask, and nothing to lock.
func TestConsoleScript(t *testing.T) {
	f := servertest.New()
	socket, stop, err := serve(agent{f, servertest.NewKeeper()})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, config.ConsoleFileName), []byte(`{"password":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	in := strings.NewReader("verdict gpu0\r\nslot reset gpu0\nlock\n\nfence server2")
	err = run(t.Context(), []string{"console", "--run-dir", dir, "--socket", socket}, in, &out, &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"gpu0: memory preserved: YES", "there is nobody to ask; say", "--yes", "enclosure rack7-io2", "server2 is fenced"} {
		if !strings.Contains(flat(out.String()), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("%q", out.String())
	}
}

// TestConsoleHangup: a terminal that goes away ends it.
func TestConsoleHangup(t *testing.T) {
	for _, term := range []string{"vt100", "dumb"} {
		for _, encoded := range []string{"", "pbkdf2-sha256$x"} {
			s := sit(t, term, &config.ConsoleFile{Password: encoded})
			if encoded == "" {
				s.sees("baton> ")
			} else {
				s.sees("Password: ")
			}
			_ = s.person.Close()
			s.ends(exitDone)
		}
	}
}
