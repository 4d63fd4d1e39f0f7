package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/mgmt"
	"baton/mgmt/server"
	"baton/mgmt/server/servertest"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write what commands print into the scripts")

func TestMain(m *testing.M) {
	testscript.Main(leakless{m}, map[string]func(){"baton": main})
}

// leakless fails where a goroutine is left after all tests.
type leakless struct{ m *testing.M }

// Run is that of testscript.TestingM.
func (l leakless) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// agent is what scripts are run against.
type agent struct {
	fake   *servertest.Fake
	keeper *servertest.Keeper
}

type agentKey struct{}

// TestScripts runs testdata/script/*.txtar against an agent with a fake
// enclosure, at $BATON_SOCKET.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			a := agent{servertest.New(), servertest.NewKeeper()}
			socket, stop, err := serve(a)
			if err != nil {
				return err
			}
			env.Defer(stop)
			env.Values[agentKey{}] = a
			env.Setenv("BATON_SOCKET", socket)
			env.Setenv("TZ", "UTC")
			env.Setenv("GORACE", "atexit_sleep_ms=0") // else each command takes a second more
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "fake": fake, "calls": calls, "mkimage": mkimage,
		},
	})
}

// serve serves a at a socket whose path is short.
func serve(a agent) (socket string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "baton")
	if err != nil {
		return "", nil, err
	}
	socket = filepath.Join(dir, "s")
	end, err := serveAt(a, socket)
	return socket, func() {
		end()
		_ = os.RemoveAll(dir)
	}, err
}

func serveAt(a agent, socket string) (stop func(), err error) {
	l, err := server.Listen(socket)
	if err != nil {
		return nil, err
	}
	s := server.New(a.fake, server.Options{Agent: mgmt.Version, AdminUID: uint32(os.Geteuid()), Keeper: a.keeper})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(ctx, l); err != nil {
			panic(err) // no test makes it fail
		}
	}()
	return func() {
		cancel()
		<-done
	}, nil
}

// exits CODE COMMAND...: runs it and compares its exit code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var e *exec.ExitError
		if !errors.As(err, &e) {
			ts.Fatalf("%v", err)
		}
		got = e.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d; want %d", got, want)
	}
}

// fake WHAT [ARGS]: changes what the enclosure is or does.
func fake(ts *testscript.TestScript, _ bool, args []string) {
	defer time.Sleep(60 * time.Millisecond) // the server may show a look for 50 ms
	f := ts.Value(agentKey{}).(agent).fake
	slot := func(fn func(*enclosure.SlotStatus)) {
		f.Edit(func(s *enclosure.Status) {
			for i := range s.Slots {
				if s.Slots[i].Name == args[1] {
					fn(&s.Slots[i])
				}
			}
		})
	}
	switch args[0] {
	case "end":
		f.Set(func(s *servertest.Settings) { s.End, s.Reason = enclosure.MoveState(args[1]), args[2] })
	case "memory":
		f.Set(func(s *servertest.Settings) {
			s.Memory.Preserved, s.Memory.Reason, s.Memory.Flag, s.Memory.Now.Resets = plan.Answer(args[1]), args[2], plan.Target, 5
		})
	case "slow":
		d, err := time.ParseDuration(args[1])
		ts.Check(err)
		f.Set(func(s *servertest.Settings) { s.Gate = func(context.Context) error { time.Sleep(d); return nil } })
	case "busy":
		slot(func(s *enclosure.SlotStatus) { s.Busy = true })
	case "blocked":
		slot(func(s *enclosure.SlotStatus) {
			s.Blocked, s.Cut, s.Link, s.Problem = "engine 0x41 does not acknowledge; "+strings.Repeat("tried again later, ", 5)+"next in 4 s", "unconfirmed", "unknown", "engine i2c-5/0x41: transfer: no acknowledge\x1b[2J"
			s.CannotHold = []string{"invariant 10: the agent can not reset the device"}
		})
	case "store":
		f.Edit(func(s *enclosure.Status) {
			s.Store = enclosure.StoreStatus{OK: args[1] == "", Problem: args[1]}
			s.Simulated = true
		})
	case "uncut":
		f.Edit(func(s *enclosure.Status) {
			for i := range s.Hosts {
				if s.Hosts[i].Name == args[1] {
					s.Hosts[i].Why = "the cut of [" + args[2] + "] is not confirmed yet"
				}
			}
		})
	case "forgotten":
		slot(func(s *enclosure.SlotStatus) {
			s.Generation, s.Host, s.VM, s.Group, s.Power = ee.Generation{}, "", "", 0, "off"
		})
	case "problem":
		slot(func(s *enclosure.SlotStatus) { s.Problem = args[2] })
	case "parts":
		f.Replace(args[1], enclosure.Parts{Engine: args[2], Serial: args[3]})
	case "finding":
		f.Set(func(s *servertest.Settings) {
			s.NVM.Findings = append(s.NVM.Findings, enclosure.NVMFinding{Where: args[1], What: args[2], Grade: args[3], Repair: args[4], Lost: args[5]})
		})
	case "nvm":
		f.Set(func(s *servertest.Settings) { s.NVM.State = args[1] })
	case "drain":
		f.Set(func(s *servertest.Settings) { s.FailVM, s.Reason = args[1], args[2] })
	case "lost":
		f.Set(func(s *servertest.Settings) { s.Lost = 12 })
	case "refuse":
		f.Refuse(args[1], enclosure.Code(args[2]), args[3])
	case "expire":
		ts.Value(agentKey{}).(agent).keeper.Expire()
	case "restarts":
		if got := me(strings.Join(ts.Value(agentKey{}).(agent).keeper.Restarts(), "; ")); got != args[1] {
			ts.Fatalf("the agent was to start again for %q; want %q", got, args[1])
		}
	case "event":
		f.Note(enclosure.Event{Kind: args[1], Text: args[2], Wall: time.Date(2026, 11, 30, 12, 0, 1, 0, time.UTC)})
	default:
		ts.Fatalf("fake: what is %q?", args[0])
	}
}

// me has "uid ME" for whoever runs the tests.
func me(s string) string {
	return strings.ReplaceAll(s, fmt.Sprintf("uid %d", os.Geteuid()), "uid ME")
}

// token of what was seen, in a call.
var token = regexp.MustCompile(`(?m)^(adopt \S+) [0-9a-f]{8}$`)

// calls: the operations that got through are those of the file.
func calls(ts *testscript.TestScript, _ bool, args []string) {
	f := ts.Value(agentKey{}).(agent).fake
	got := token.ReplaceAllString(me(strings.Join(f.Calls(), "\n")+"\n"), "$1 TOKEN")
	if want := ts.ReadFile(args[0]); got != want {
		ts.Fatalf("calls:\n%swant:\n%s", got, want)
	}
}

// TestWidth: nothing that is said to a person is wider than 80 columns, or
// anything but printable ASCII.
func TestWidth(t *testing.T) {
	f := servertest.New()
	f.Edit(func(s *enclosure.Status) {
		for i := range s.Slots {
			s.Slots[i].Device = "10de:2330 accelerator with a name that goes on"
			s.Slots[i].Problem = strings.Repeat("w\u00f6rd ", 40)
		}
		s.Warnings = []string{strings.Repeat("warn of it ", 20)}
	})
	f.Memory.Reason = strings.Repeat("because of this and ", 12)
	socket, stop, err := serve(agent{f, servertest.NewKeeper()})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	f.Replace("gpu1", enclosure.Parts{Device: strings.Repeat("a very long card ", 8), Block: strings.Repeat("w\u00f6rd ", 40)})
	f.Set(func(s *servertest.Settings) {
		s.NVM.Findings = []enclosure.NVMFinding{{Where: "store page 17", What: strings.Repeat("torn and ", 30), Grade: "damage", Repair: strings.Repeat("mended ", 30), Lost: strings.Repeat("lost ", 30)}}
	})
	f.Record(enclosure.AuditRecord{Run: 7, Kind: "fault", Slots: []string{"gpu0"}, Code: "hardware", By: "uid 12345", Text: strings.Repeat("it broke ", 14)})
	all := [][]string{
		{"status", "gpu0"}, {"help"}, {"version"}, {"slot", "adopt", "gpu1", "--dry-run"}, {"move", "resolve", "--force-free", "gpu0"}, {"nvm", "repair"},
		{"move", "train1", "--to", "server2", "--expect", "gpu0=16"}, {"nonsense"}, {"status", "gpu9"}, {"config", "set", "hosts[server2].group", "101"},
		{"config", "set", "network", `{"interface": "eth0", "address": "10.0.0.5/24"}`, "--yes"}, {"restore", "testdata/backup.json"},
	}
	for _, c := range commands {
		// A configuration is shown as it was written, and is in a report.
		if !alone[c.name] && c.name != "report" && c.name != "config show" && c.name != "backup" {
			all = append(all, append(strings.Fields(c.name), sensible[c.name]...))
		}
	}
	for _, args := range all {
		var out bytes.Buffer
		_ = run(t.Context(), append([]string{"--socket", socket}, args...), strings.NewReader(""), &out, &out) // some are refused
		if out.Len() == 0 {
			t.Errorf("%q says nothing", args)
		}
		for line := range strings.Lines(out.String()) {
			line = strings.TrimSuffix(line, "\n")
			if len(line) > 80 {
				t.Errorf("%q: %d columns: %s", args, len(line), line)
			}
			if i := strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 {
				t.Errorf("%q: %q at column %d", args, line[i], i)
			}
		}
	}
	for _, c := range commands {
		var out bytes.Buffer
		if err := run(t.Context(), []string{"help", c.name}, nil, &out, &out); err != nil || !strings.HasPrefix(out.String(), "usage: baton "+c.name) {
			t.Errorf("help %s: %v\n%s", c.name, err, out.String())
		}
		for line := range strings.Lines(out.String()) {
			if len(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("help %s: %d columns: %s", c.name, len(line)-1, line)
			}
		}
	}
}

// TestFollow: a stream that breaks is resumed where it was.
func TestFollow(t *testing.T) {
	servertest.NoLeaks(t)
	f := servertest.New()
	socket, stop, err := serve(agent{f, servertest.NewKeeper()})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"watch", "--socket", socket}, nil, pw, io.Discard)
		_ = pw.Close()
		done <- err
	}()
	lines := make(chan string, 16)
	go func() {
		buf := make([]byte, 1024)
		for {
			n, err := pr.Read(buf)
			if err != nil {
				close(lines)
				return
			}
			lines <- string(buf[:n])
		}
	}()
	wait := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if !strings.Contains(got, want) {
				t.Fatalf("line %q; want %q in it", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no line with %q", want)
		}
	}
	wait("4 slots read back")
	f.Note(enclosure.Event{Kind: "fence", Text: "one"})
	wait("one")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("interrupted: %v", err)
	}
	for range lines {
		t.Error("a line too many")
	}
}

func TestExitCode(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{flag.ErrHelp, 0},
		{errors.New("x"), 1},
		{&mgmt.Problem{Code: "busy"}, 1},
		{&mgmt.Problem{Code: "busy", Retry: true}, 3},
		{&usageError{"x"}, 2},
		{&mgmt.UnreachableError{Err: errors.New("x")}, 4},
		{&lost{"move", "id", &mgmt.UnreachableError{Err: errors.New("x")}}, 4},
		{&outcome{3}, 3},
	} {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("exitCode(%v) = %d; want %d", tt.err, got, tt.want)
		}
	}
}

func TestWrap(t *testing.T) {
	long := strings.Repeat("x", 90)
	for _, tt := range []struct{ in, want string }{
		{"short", "short"},
		{strings.Repeat("word ", 17) + "end", strings.TrimSuffix(strings.Repeat("word ", 16), " ") + "\n  word end"},
		{long, long},
		{"  " + long + " and", "  " + long + " and"},
		{"a\nb", "a\n  b"},
	} {
		if got := wrap(tt.in, 2); got != tt.want {
			t.Errorf("wrap(%q) = %q; want %q", tt.in, got, tt.want)
		}
	}
}

// TestLongNames: names of VMs and hosts may be long, and tables are not.
func TestLongNames(t *testing.T) {
	vm, host := strings.Repeat("train", 10), strings.Repeat("server", 5)
	for _, text := range []string{
		table([]column{{head: "ID"}, {head: "VM"}, {head: "FROM"}, {head: "TO"}, {head: "STATE"}}, [][]string{{newUUID(), vm, host, host, "waiting"}}),
		table([]column{{head: "SLOT"}, {head: "DEVICE", least: 9}, {head: "GROUP", right: true}, {head: "HOST"}, {head: "LINK"}, {head: "VM"}, {head: "MEMORY"}},
			[][]string{{"gpu0", "10de:2330 accelerator", "4093", host, "no peer", vm, "not kept, guarded"}}),
	} {
		for line := range strings.Lines(text) {
			if len(line) > width+1 {
				t.Errorf("%d columns: %s", len(line)-1, line)
			}
		}
		if !strings.Contains(text, "traint") || !strings.Contains(text, "server") {
			t.Errorf("%s", text)
		}
	}
}

func TestAge(t *testing.T) {
	for ms, want := range map[int64]string{0: "0.0s", 2500: "2.5s", 307_000: "5m07s", 7_500_000: "2h05m", 266_700_000: "3d02h"} {
		if got := age(ms); got != want {
			t.Errorf("age(%d) = %s; want %s", ms, got, want)
		}
	}
}
