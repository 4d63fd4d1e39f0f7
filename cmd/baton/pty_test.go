package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"baton/enclosure"
	"baton/mgmt/server/servertest"

	"golang.org/x/sys/unix"
)

// openPTY returns a terminal, and the end that a person sits at (pts(4)).
func openPTY(t *testing.T) (person, terminal *os.File) {
	t.Helper()
	// Not blocking, so that a read ends when it is closed.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("this test needs a terminal: mount -t devpts devpts /dev/pts: %v", err)
	}
	person = os.NewFile(uintptr(fd), "/dev/ptmx")
	t.Cleanup(func() { _ = person.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return person, terminal
}

// typed runs a command at a terminal where a person answers the question with
// answer, and returns what the terminal showed.
func typed(ctx context.Context, t *testing.T, args []string, question, answer string) (code int, shown string) {
	t.Helper()
	person, terminal := openPTY(t)
	var mu sync.Mutex
	var screen bytes.Buffer
	asked := make(chan struct{})
	go func() {
		buf := make([]byte, 4096)
		said := false
		for {
			n, err := person.Read(buf)
			if err != nil {
				return // the terminal was closed
			}
			mu.Lock()
			screen.Write(buf[:n])
			if !said && question != "" && strings.HasSuffix(flat(screen.String()), question) {
				said = true
				close(asked)
			}
			mu.Unlock()
		}
	}()
	ended := make(chan int, 1)
	go func() { ended <- exitCode(run(ctx, args, terminal, terminal, terminal)) }()
	if question != "" {
		select {
		case <-asked:
			if _, err := person.WriteString(answer); err != nil {
				t.Fatal(err)
			}
		case code := <-ended:
			mu.Lock()
			defer mu.Unlock()
			t.Fatalf("%q: nobody was asked %q, exit code %d\n%s", args, question, code, screen.String())
		case <-time.After(20 * time.Second):
			mu.Lock()
			defer mu.Unlock()
			t.Fatalf("%q: nobody was asked %q\n%s", args, question, screen.String())
		}
	}
	select {
	case code = <-ended:
	case <-time.After(20 * time.Second):
		t.Fatalf("%q does not end", args)
	}
	time.Sleep(20 * time.Millisecond) // what was written last has to come through
	mu.Lock()
	defer mu.Unlock()
	return code, strings.ReplaceAll(screen.String(), "\r\n", "\n")
}

// flat is text without its line breaks.
func flat(s string) string { return strings.Join(strings.Fields(s), " ") }

// TestAsks: at a terminal a person is asked, and only a yes, or the name, is
// taken for one.
func TestAsks(t *testing.T) {
	for _, tt := range []struct {
		args             string
		question, answer string
		code             int
		call             string // that got through; "" = none
	}{
		{"release train1 --mode free", "Go on? [y/N]", "y\n", exitDone, "release train1"},
		{"release train1 --mode free", "Go on? [y/N]", "n\n", exitFailed, ""},
		{"release train1 --mode free", "Go on? [y/N]", "\n", exitFailed, ""},
		{"release train1 --mode free", "Go on? [y/N]", "\x04", exitFailed, ""}, // end of input
		{"unfence server3", "Go on? [y/N]", "YES\n", exitDone, "unfence server3"},
		{"slot reset gpu0", "Go on? [y/N]", "yes\n", exitDone, "reset gpu0"},
		{"move resolve --force-free gpu0", "Type gpu0 to go on:", "gpu0\n", exitDone, "force-free gpu0"},
		{"move resolve --force-free gpu0", "Type gpu0 to go on:", "y\n", exitFailed, ""},
		{"move resolve --force-free gpu0 --yes", "Type gpu0 to go on:", "gpu1\n", exitFailed, ""},
		{"move resolve --force-free gpu0 --yes --typed gpu0", "", "", exitDone, "force-free gpu0"},
		{"nvm repair --format", "Type rack7-io2 to go on:", "rack7-io2\n", exitDone, "format true"},
		{"nvm repair --format", "Type rack7-io2 to go on:", "gpu0\n", exitFailed, "check NVM"},
		{"slot adopt gpu1", "Go on? [y/N]", "y\n", exitDone, "adopt gpu1"},
		{"host drain server1 --to server2 --json", "Go on? [y/N]", "n\n", exitFailed, ""},
	} {
		f := servertest.New()
		f.Replace("gpu1", enclosure.Parts{Serial: "0x48b02d0300ffffff"})
		f.Set(func(s *servertest.Settings) {
			s.NVM = enclosure.NVMReport{State: "foreign", Findings: []enclosure.NVMFinding{{Where: "store", What: "is foreign", Grade: "unusable", Repair: "made anew"}}}
		})
		socket, stop, err := serve(agent{f, servertest.NewKeeper()})
		if err != nil {
			t.Fatal(err)
		}
		code, shown := typed(t.Context(), t, append(strings.Fields(tt.args), "--socket", socket), tt.question, tt.answer)
		stop()
		calls := strings.Join(f.Calls(), "\n")
		if code != tt.code || tt.call == "" && calls != "" || !strings.Contains(calls, tt.call) {
			t.Errorf("baton %s, %q: exit code %d, want %d; calls %q, want %q\n%s", tt.args, tt.answer, code, tt.code, calls, tt.call, shown)
		}
		if code == exitFailed && !strings.Contains(shown, "nothing was changed") {
			t.Errorf("baton %s, %q: it does not say that nothing was changed:\n%s", tt.args, tt.answer, shown)
		}
	}
}

// TestInterrupted: Ctrl-C at a question is a no.
func TestInterrupted(t *testing.T) {
	f := servertest.New()
	socket, stop, err := serve(agent{f, servertest.NewKeeper()})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel) // as main's signal handler
	if code, shown := typed(ctx, t, []string{"slot", "reset", "gpu0", "--socket", socket}, "Go on? [y/N]", ""); code != exitFailed || len(f.Calls()) != 0 {
		t.Errorf("exit code %d, calls %q\n%s", code, f.Calls(), shown)
	}
}

// TestLive: what takes long is one line on a terminal that goes away, and
// plain lines on a serial console.
func TestLive(t *testing.T) {
	for _, tt := range []struct {
		term string
		line string
		gone bool
	}{
		{"xterm-256color", "\rdraining server1: 1.0s so far", true},
		{"vt220", "baton: draining server1: 1.0s so far\n", false},
	} {
		t.Setenv("TERM", tt.term)
		f := servertest.New()
		f.Set(func(s *servertest.Settings) {
			s.Gate = func(context.Context) error { time.Sleep(1300 * time.Millisecond); return nil }
		})
		socket, stop, err := serve(agent{f, servertest.NewKeeper()})
		if err != nil {
			t.Fatal(err)
		}
		code, shown := typed(t.Context(), t, []string{"host", "drain", "server1", "--release", "hold", "--yes", "--socket", socket}, "", "")
		stop()
		if code != exitDone || !strings.Contains(shown, tt.line) {
			t.Errorf("TERM=%s: exit code %d\n%q", tt.term, code, shown)
		}
		if cleared := strings.Contains(shown, "\r"+strings.Repeat(" ", width-1)+"\r"); cleared != tt.gone {
			t.Errorf("TERM=%s: the line was taken away: %v\n%q", tt.term, cleared, shown)
		}
	}
}
