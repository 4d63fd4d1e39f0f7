package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"baton/ee/bus"
	"baton/mgmt"
	"baton/sim"

	"go.uber.org/goleak"
)

// asBatond makes the test binary be batond: the tests below run it as a
// process of its own, against hardware that is simulated in theirs.
const asBatond = "BATON_TEST_BATOND"

func TestMain(m *testing.M) {
	if calls := os.Getenv(inSandbox); calls != "" {
		fmt.Fprintln(os.Stderr, "sandbox:", enterSandbox(calls)) // returns only where it fails
		os.Exit(1)
	}
	if os.Getenv(asBatond) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// bench is a simulated enclosure of two slots, its servers, and a place for an
// agent.
type bench struct {
	t      *testing.T
	dir    string
	w      *sim.World
	agent  *mgmt.Client
	config map[string]any
	stop   func() // of the buses
}

// newBench makes one whose bus is not served yet.
func newBench(t *testing.T) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "baton") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	spec := sim.Spec{
		Buses: []sim.BusSpec{{Name: "bus0"}},
		Chips: []sim.ChipSpec{{Name: "store", Addr: 0x57}, {Name: "gpu0", Addr: 0x50}, {Name: "gpu1", Addr: 0x51}},
		Slots: []sim.SlotSpec{{Name: "gpu0"}, {Name: "gpu1"}},
		Servers: []sim.ServerSpec{
			{Name: "server1", Group: 101, MAC: sim.MAC{2, 5: 0x11}}, {Name: "server2", Group: 102, MAC: sim.MAC{2, 5: 0x12}},
		},
	}
	b := &bench{t: t, dir: dir, w: sim.New(spec), stop: func() {}}
	b.agent = mgmt.Dial(b.path("sock"))
	t.Cleanup(b.agent.Close)
	type object = map[string]any
	slot := func(name, addr, eeprom string) object {
		return object{"name": name, "bus": "bus0", "address": addr, "profile": "regs-v1", "eeprom": object{"address": eeprom, "part": "24c256"}}
	}
	b.config = object{
		"enclosure": "bench", "simulated": true, "run_dir": b.path("run"), "socket": b.path("sock"),
		"buses": object{"bus0": "unix:" + b.path("bus0")},
		"store": object{"bus": "bus0", "address": "0x57", "part": "24c256", "format_blank": true},
		"slots": []object{slot("gpu0", "0x40", "0x50"), slot("gpu1", "0x41", "0x51")},
		"hosts": []object{
			{"name": "server1", "group": 101, "mac": "02:00:00:00:00:11"}, {"name": "server2", "group": 102, "mac": "02:00:00:00:00:12"},
		},
		"vms": []object{{"name": "train1", "uuid": "6ba7b810-9dad-41d1-80b4-00c04fd430c8", "hosts": []string{"server1", "server2"}, "slots": []string{"gpu0", "gpu1"}}},
	}
	return b
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// serveBus serves the bus until the test ends or stop is called.
func (b *bench) serveBus() {
	b.t.Helper()
	l, err := net.Listen("unix", b.path("bus0"))
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = bus.Serve(ctx, l, b.w.Bus("bus0")) // says that ctx ended
	}()
	b.stop = sync.OnceFunc(func() {
		cancel()
		_ = l.Close()
		<-done
	})
	b.t.Cleanup(b.stop)
}

// process is a batond that runs.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	log *os.File
}

func (b *bench) writeConfig() {
	b.t.Helper()
	text, err := json.Marshal(b.config)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(b.path("batond.json"), text, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// launch starts batond with the bench's configuration.
func (b *bench) launch(env ...string) *process {
	b.t.Helper()
	return b.launchWith(func(*exec.Cmd) {}, env...)
}

func (b *bench) launchWith(change func(*exec.Cmd), env ...string) *process {
	b.t.Helper()
	b.writeConfig()
	log, err := os.OpenFile(b.path("log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		b.t.Fatal(err)
	}
	p := &process{t: b.t, log: log, cmd: exec.Command(os.Args[0], "-config", b.path("batond.json"))}
	p.cmd.Env = append(append(os.Environ(), asBatond+"=1", "GORACE=atexit_sleep_ms=0"), env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	change(p.cmd)
	if err := p.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill() // it may just have ended
			_ = p.cmd.Wait()
		}
		if b.t.Failed() {
			text, _ := os.ReadFile(b.path("log"))
			b.t.Logf("batond's log:\n%s", text)
		}
		log.Close()
	})
	return p
}

// start launches batond and waits until it answers.
func (b *bench) start(env ...string) *process {
	b.t.Helper()
	p := b.launch(env...)
	b.until("batond to answer", func() bool { _, err := b.agent.Enclosure(b.t.Context()); return err == nil })
	return p
}

// end is SIGTERM; batond must end well.
func (p *process) end() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("after SIGTERM: %v", err)
	}
}

func (b *bench) until(what string, cond func() bool) {
	b.t.Helper()
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(5 * time.Millisecond) {
		if cond() {
			return
		}
	}
	b.t.Fatalf("waited a minute for %s", what)
}

func (b *bench) enclosure() mgmt.Enclosure {
	b.t.Helper()
	e, err := b.agent.Enclosure(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return e
}

// unfence lets both servers in.
func (b *bench) unfence() {
	b.t.Helper()
	for _, h := range b.enclosure().Hosts {
		if err := b.agent.Unfence(b.t.Context(), h.Name, h.Epoch); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bench) move(id int, to string) (mgmt.Move, error) {
	return b.agent.Move(b.t.Context(), mgmt.MoveRequest{ID: fmt.Sprintf("0b5f6a52-3a55-4b0e-9d8a-%012d", id), VM: "train1", To: to, Preserve: true})
}

// reached lists, for each slot, the servers that reach it, by the model.
func (b *bench) reached() string {
	var out []string
	for _, slot := range []string{"gpu0", "gpu1"} {
		for _, server := range []string{"server1", "server2"} {
			if b.w.Server(server).Reach(slot) {
				out = append(out, slot+":"+server)
			}
		}
	}
	return strings.Join(out, " ")
}

func (b *bench) pageWrites() (n uint64) {
	for _, chip := range []string{"store", "gpu0", "gpu1"} {
		n += b.w.PageWrites(chip)
	}
	return n
}

// TestProcess: the agent as a process, over its sockets: first start, moves,
// fence, restart.
func TestProcess(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t)
	b.serveBus()
	p := b.start()
	ctx := t.Context()

	e := b.enclosure()
	if e.Name != "bench" || !e.Simulated || !e.Store.OK || len(e.Slots) != 2 || len(e.VMs) != 1 || e.VMs[0].Policy != "always" {
		t.Fatalf("first start: %+v", e)
	}
	var problem *mgmt.Problem
	if _, err := b.move(1, "server1"); !errors.As(err, &problem) || problem.Code != "host-fenced" {
		t.Fatalf("a move to a host that was never unfenced: %v", err)
	}
	b.unfence()
	for i, to := range []string{"server1", "server2"} {
		before := b.pageWrites()
		m, err := b.move(2+i, to)
		if err != nil || m.State != "done" {
			t.Fatalf("move to %s: %+v, %v", to, m, err)
		}
		if got, want := b.reached(), fmt.Sprintf("gpu0:%s gpu1:%s", to, to); got != want {
			t.Errorf("reached: %s; want %s", got, want)
		}
		// Beside the first one it is recorded that there is no memory to keep.
		if n := b.pageWrites() - before; i > 0 && n != 3 {
			t.Errorf("move to %s: %d page writes; want 3, an intent and two blocks", to, n)
		}
	}
	// Nobody else can be served here meanwhile.
	second := exec.Command(os.Args[0], "-config", b.path("batond.json"))
	second.Env = append(os.Environ(), asBatond+"=1")
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "another batond runs in") {
		t.Errorf("a second batond: %v\n%s", err, out)
	}

	// A restart touches nothing, and remembers the moves. What happened since the
	// audit was last written is written at the end.
	gpu0 := b.w.Slot("gpu0")
	registers := gpu0.RegisterWrites()
	p.end()
	writes := b.pageWrites()
	if _, err := os.Stat(b.path("sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	p = b.start()
	if n := b.pageWrites() - writes; n != 0 {
		t.Errorf("restart: %d page writes", n)
	}
	// A register access writes at least the two bytes of its pointer, which are
	// none of the register file.
	if n := gpu0.RegisterWrites() - registers; n != 0 {
		t.Errorf("restart: %d bytes written to registers", n)
	}
	if m, err := b.agent.MoveByID(ctx, "0b5f6a52-3a55-4b0e-9d8a-000000000003"); err != nil || m.State != "done" || m.To != "server2" {
		t.Errorf("the move of before: %+v, %v", m, err)
	}

	f, err := b.agent.Fence(ctx, "server2")
	if err != nil || !slices.Equal(f.Slots, []string{"gpu0", "gpu1"}) || b.reached() != "" {
		t.Errorf("fence: %+v, %v; reached: %q", f, err, b.reached())
	}
	p.end()
}

// TestKilled: SIGKILL in the middle of moves. Afterwards the set is whole, with
// the host of before or of after.
func TestKilled(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t)
	b.serveBus()
	p := b.start()
	b.unfence()
	if m, err := b.move(1, "server1"); err != nil || m.State != "done" {
		t.Fatalf("%+v, %v", m, err)
	}
	at := "server1"
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 5 {
		to := map[string]string{"server1": "server2", "server2": "server1"}[at]
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = b.move(10+i, to) // there is an answer, or none
		}()
		time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond)
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = p.cmd.Wait() // killed
		<-done
		p = b.start()
		b.until("all links", func() bool { return b.reached() != "" && len(strings.Fields(b.reached())) == 2 })
		switch got := b.reached(); got {
		case "gpu0:" + to + " gpu1:" + to:
			at = to
		case "gpu0:" + at + " gpu1:" + at:
		default:
			t.Fatalf("after kill %d: reached %s", i, got)
		}
		for _, s := range b.enclosure().Slots {
			if s.Host != at {
				t.Errorf("after kill %d: %s is with %q, by the model with %s", i, s.Name, s.Host, at)
			}
		}
	}
	if v := b.w.Violations(); len(v) > 0 {
		t.Errorf("violations: %q", v)
	}
	p.end()
}

// TestLateHardware: an agent that starts before its bus serves, says what is
// wrong, and takes the slots in when they come.
func TestLateHardware(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t)
	b.config["store"] = map[string]any{"file": b.path("store"), "format_blank": true}
	p := b.start()
	e := b.enclosure()
	if !e.Store.OK || e.Slots[0].Problem == "" {
		t.Errorf("without a bus: store %+v, gpu0 %q", e.Store, e.Slots[0].Problem)
	}
	b.serveBus()
	b.until("the slots", func() bool {
		e := b.enclosure()
		return e.Slots[0].Problem == "" && e.Slots[1].Problem == ""
	})
	b.unfence()
	if m, err := b.move(1, "server1"); err != nil || m.State != "done" {
		t.Errorf("move: %+v, %v", m, err)
	}
	p.end()
}

// TestUnusableStore: the agent serves, refuses what would have to be
// remembered, and says what it found.
func TestUnusableStore(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(b *bench)
		want  []string // in status or warnings
	}{
		{"no chip", func(b *bench) { b.w.Chip("store").SetDead(true) }, []string{"no chip answers"}},
		{"one-byte chip", func(b *bench) {
			image := make([]byte, 256)
			for i := range image {
				image[i] = byte(i)
			}
			b.w.Chip("store").Replace("24c02", image)
		}, []string{"address"}},
		{"another project's", func(b *bench) {
			b.w.Chip("store").SetImage(bytes.Repeat([]byte("U-Boot environment; "), 200))
		}, []string{"holds no store"}},
		{"file of the wrong size", func(b *bench) {
			if err := os.WriteFile(b.path("store"), make([]byte, 100), 0o600); err != nil {
				b.t.Fatal(err)
			}
			b.config["store"] = map[string]any{"file": b.path("store")}
		}, []string{"100", "32768"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.serveBus()
			tt.spoil(b)
			writes := b.pageWrites()
			p := b.start()
			e := b.enclosure()
			said := e.Store.Problem + "\n" + strings.Join(e.Warnings, "\n")
			for _, want := range tt.want {
				if e.Store.OK || !strings.Contains(said, want) {
					t.Errorf("status says %q; want %q in it", said, want)
				}
			}
			var problem *mgmt.Problem
			if err := b.agent.Unfence(t.Context(), "server1", 0); !errors.As(err, &problem) || problem.Code != "store-unusable" || problem.Status != 503 {
				t.Errorf("unfence: %v", err)
			}
			// No host is known not to be fenced, so either code is right.
			if _, err := b.move(1, "server1"); !errors.As(err, &problem) || !slices.Contains([]string{"store-unusable", "host-fenced"}, problem.Code) {
				t.Errorf("move: %v", err)
			}
			if n := b.pageWrites() - writes; n != 0 {
				t.Errorf("%d page writes", n)
			}
			p.end()
			if _, err := os.Stat(filepath.Join(b.path("run"), "batond.started")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the store was not mounted, and yet it is marked: %v", err)
			}
		})
	}
}

// systemd listens where NOTIFY_SOCKET is b.path("notify").
func (b *bench) systemd() *net.UnixConn {
	b.t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: b.path("notify"), Net: "unixgram"})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestNotify: systemd hears that the agent is ready, alive, and stopping.
func TestNotify(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t)
	b.serveBus()
	conn := b.systemd()
	said := make(chan string, 64)
	go func() {
		defer close(said)
		buf := make([]byte, 1024)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			said <- string(buf[:n])
		}
	}()
	p := b.start("NOTIFY_SOCKET="+b.path("notify"), "WATCHDOG_USEC=300000")
	if got, want := <-said, "READY=1\nSTATUS=bench: 0 of 2 slots with a host, 2 hosts fenced, SIMULATED"; got != want {
		t.Errorf("first: %q; want %q", got, want)
	}
	for range 3 {
		if got := <-said; got != "WATCHDOG=1" {
			t.Errorf("then: %q; want WATCHDOG=1", got)
		}
	}
	b.unfence()
	for want := "STATUS=bench: 0 of 2 slots with a host, SIMULATED"; ; {
		if got := <-said; got == want {
			break // at the latest after one that names but one of the hosts
		} else if strings.Contains(got, "STATUS=") && !strings.Contains(got, "1 hosts fenced") {
			t.Errorf("after both hosts were unfenced: %q; want %q", got, want)
		}
	}
	p.end()
	// What the agent has said is read before this.
	over, err := net.Dial("unixgram", b.path("notify"))
	if err != nil {
		t.Fatal(err)
	}
	defer over.Close()
	if _, err := over.Write([]byte("END")); err != nil {
		t.Fatal(err)
	}
	last := ""
	for s := range said {
		if s == "END" {
			break
		}
		last = s
	}
	if last != "STOPPING=1" {
		t.Errorf("last: %q; want STOPPING=1", last)
	}
}
