package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"baton/mgmt"
)

// TestListenRefuses: sockets that can not be the agent's are named.
func TestListenRefuses(t *testing.T) {
	dir, err := os.MkdirTemp("", "baton")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := func(c io.Closer, err error) *os.File {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f, err := c.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	tcp := file(net.Listen("tcp", "127.0.0.1:0"))
	datagram := file(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "datagram"), Net: "unixgram"}))
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	connection := os.NewFile(uintptr(pair[0]), "connection")
	defer connection.Close()
	defer syscall.Close(pair[1])
	plain, err := os.Create(filepath.Join(dir, "plain"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	for _, tt := range []struct {
		name    string
		sockets []*os.File
		want    string
	}{
		{"tcp", []*os.File{tcp}, "address family is 2; want a Unix socket"},
		{"datagram", []*os.File{datagram}, "no stream socket"},
		{"connection", []*os.File{connection}, "Accept=no"},
		{"file", []*os.File{plain}, "not a socket"},
		{"two", []*os.File{tcp, plain}, "2 sockets were passed"},
	} {
		l, err := listenOn(tt.sockets, filepath.Join(dir, "own"), slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "non-socket", "not a socket"), tt.want) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
		if l != nil {
			t.Errorf("%s: there is a listener", tt.name)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "own")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a socket of its own instead: %v", err)
	}
}

// TestListenAgain: an agent that starts anew in its process answers on the
// same socket; what connected meanwhile is served.
func TestListenAgain(t *testing.T) {
	dir, err := os.MkdirTemp("", "baton")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "sock")
	own, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := own.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	own.SetUnlinkOnClose(false)
	_ = own.Close()
	var log bytes.Buffer
	for i, configured := range []string{path, filepath.Join(dir, "other")} {
		log.Reset()
		c, err := net.Dial("unix", path) // before anybody accepts
		if err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
		l, err := listenOn([]*os.File{f}, configured, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
		s, err := l.Accept()
		if err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
		if warned := strings.Contains(log.String(), "not the configured one"); warned != (configured != path) {
			t.Errorf("run %d: log %q", i, log.String())
		}
		_, _, _ = s.Close(), c.Close(), l.Close()
		if _, err := os.Stat(path); err != nil {
			t.Errorf("run %d: the socket's file: %v", i, err)
		}
	}
}

const installSystemd = "apt-get install --no-install-recommends systemd"

// systemd is the path of one of systemd's programs; that it is missing fails
// the test.
func systemd(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%s is missing: %s", program, installSystemd)
	}
	return path
}

// TestSocketActivation: batond under systemd-socket-activate. The first client
// starts it; the socket survives the agent, and clients of the time between two
// agents are answered by the second.
func TestSocketActivation(t *testing.T) {
	t.Parallel() // it mostly waits
	activate := systemd(t, "systemd-socket-activate")
	b := newBench(t)
	b.serveBus()
	b.writeConfig()
	// What systemd does for a service: the same socket for one agent after the
	// other, each under its own PID.
	again := fmt.Sprintf(`for i in 1 2; do sh -c 'LISTEN_PID=$$ exec "%s" -config "%s"' || exit 1; done`, os.Args[0], b.path("batond.json"))
	cmd := exec.Command(activate, "-l", b.path("sock"), "-E", asBatond+"=1", "-E", "GORACE=atexit_sleep_ms=0", "sh", "-c", again)
	log, err := os.Create(b.path("log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
		}
		if t.Failed() {
			text, _ := os.ReadFile(b.path("log"))
			t.Logf("log:\n%s", text)
		}
	})
	b.until("the socket", func() bool { // there is a file before anybody listens
		c, err := net.Dial("unix", b.path("sock"))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	pids := map[uint32]bool{}
	for run := range 2 {
		// The agent may not run yet: the request waits in the socket.
		e, err := b.agent.Enclosure(t.Context())
		if err != nil || !e.Store.OK || len(e.Slots) != 2 {
			t.Fatalf("run %d: %+v, %v", run, e, err)
		}
		if run == 0 {
			b.unfence() // the peer is known: uid of the test, admin
			if m, err := b.move(1, "server1"); err != nil || m.State != "done" {
				t.Errorf("move: %+v, %v", m, err)
			}
		} else if b.reached() != "gpu0:server1 gpu1:server1" {
			t.Errorf("after the restart: reached %q", b.reached())
		}
		// A start in place has the same socket too.
		b.config["enclosure"] = fmt.Sprintf("renamed%d", run)
		b.applyConfig()
		pid := lockHolder(t, b.path("run/batond.lock"))
		if pids[pid] {
			t.Errorf("run %d is the process of before", run)
		}
		pids[pid] = true
		before, err := os.Stat(b.path("sock"))
		if err != nil {
			t.Fatal(err)
		}
		b.agent.Close() // an idle connection would be closed under the next request
		b.agent = mgmt.Dial(b.path("sock"))
		t.Cleanup(b.agent.Close)
		if err := syscall.Kill(int(pid), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		b.until("the agent to end", func() bool { return lockHolder(t, b.path("run/batond.lock")) != pid })
		after, err := os.Stat(b.path("sock"))
		if err != nil || !os.SameFile(before, after) {
			t.Errorf("run %d: the socket is gone or another one: %v", run, err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the agents ended with %v", err)
	}
}

// applyConfig puts the bench's configuration in force, with a start in place,
// and waits until the new name is shown.
func (b *bench) applyConfig() {
	b.t.Helper()
	text, err := json.Marshal(b.config)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.agent.ApplyConfig(b.t.Context(), mgmt.ConfigRequest{Text: string(text), Restart: true}); err != nil {
		b.t.Fatalf("apply: %v", err)
	}
	b.until("the configuration to be in force", func() bool {
		e, err := b.agent.Enclosure(b.t.Context())
		return err == nil && e.Name == b.config["enclosure"]
	})
}

// lockHolder is the PID of who has locked a file, as the kernel lists it; 0 =
// nobody.
func lockHolder(t *testing.T, path string) (pid uint32) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return 0
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	suffix := fmt.Sprintf(":%d", st.Ino)
	for line := range strings.SplitSeq(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "FLOCK" && strings.HasSuffix(f[5], suffix) {
			_, _ = fmt.Sscan(f[4], &pid)
		}
	}
	return pid
}

// TestTwoPassedSockets: batond ends with an error that says what to change.
func TestTwoPassedSockets(t *testing.T) {
	t.Parallel()
	activate := systemd(t, "systemd-socket-activate")
	b := newBench(t)
	b.serveBus()
	b.writeConfig()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, activate, "-l", b.path("sock"), "-l", b.path("sock2"), "-E", asBatond+"=1", "-E", "GORACE=atexit_sleep_ms=0",
		os.Args[0], "-config", b.path("batond.json"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var c net.Conn
	b.until("the socket", func() (ok bool) {
		var err error
		c, err = net.Dial("unix", b.path("sock"))
		return err == nil
	})
	defer c.Close()
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "2 sockets were passed to the agent") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
