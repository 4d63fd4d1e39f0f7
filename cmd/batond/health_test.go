package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"baton/ee/bus"
	"baton/enclosure"
	"baton/mgmt/config"
	"baton/nvm"
	"baton/vlan/station"

	"golang.org/x/sys/unix"
	"periph.io/x/conn/v3/i2c"
	"periph.io/x/conn/v3/physic"
)

func TestJudge(t *testing.T) {
	const limit = 30 * time.Second
	well, ill := pulse{"poller", limit, limit}, pulse{"owner of bus a", limit + time.Second, limit}
	for _, tt := range []struct {
		name    string
		phase   phase
		pulses  []pulse
		problem string
		want    string
		alive   bool
	}{
		{"serves", phase{}, []pulse{well}, "", "ok", true},
		{"no store", phase{}, []pulse{well}, "no chip\nanswers", "ok store-unusable no chip answers", true},
		{"starts", phase{"reads the store", limit, limit}, nil, "", "starting reads the store, for 30s", true},
		{"starts too long", phase{"reads the store", limit + time.Second, limit}, nil, "", "stuck start: reads the store; it takes 31s, and may take 30s", false},
		{"one is stuck", phase{}, []pulse{well, ill}, "no chip answers", "stuck owner of bus a, for 31s", false},
		{"two are", phase{}, []pulse{ill, well, {"poller of bus b", time.Hour, limit}}, "", "stuck owner of bus a, for 31s; poller of bus b, for 1h0m0s", false},
		{"a long story", phase{}, nil, strings.Repeat("é", 1000), "ok store-unusable " + strings.Repeat(" ", 133), true},
	} {
		got := judge(tt.phase, tt.pulses, tt.problem)
		if got.alive() != tt.alive || got.String() != strings.TrimSpace(tt.want) {
			t.Errorf("%s: judge = %q, alive %v; want %q, %v", tt.name, got, got.alive(), tt.want, tt.alive)
		}
	}
	if startLimit(0) != 2*time.Minute || startLimit(64) != 2*time.Minute+640*time.Second {
		t.Errorf("startLimit = %v, %v", startLimit(0), startLimit(64))
	}
}

// lock is a mutex on which a bubble of synctest can wait.
type lock chan struct{}

func newLock() lock    { return make(lock, 1) }
func (l lock) Lock()   { l <- struct{}{} }
func (l lock) Unlock() { <-l }

// fakeWatched is an enclosure whose lock may be held for ever.
type fakeWatched struct {
	mu    lock
	loops atomic.Pointer[[]enclosure.Loop]
	why   string
}

func (f *fakeWatched) Loops() []enclosure.Loop {
	if l := f.loops.Load(); l != nil {
		return *l
	}
	return nil
}

func (f *fakeWatched) Problem() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.why
}

// wire is a bus of nothing, whose transfers may be held.
type wire struct{ held chan struct{} }

func (w *wire) String() string                  { return "wire" }
func (w *wire) SetSpeed(physic.Frequency) error { return nil }
func (w *wire) Tx(uint16, []byte, []byte) error {
	if w.held != nil {
		<-w.held
	}
	return nil
}

var _ i2c.Bus = (*wire)(nil)

// deadOwner never comes to anything.
type deadOwner struct{ end chan struct{} }

func (d deadOwner) Ask() error { <-d.end; return nil }

// patient is under judgement in a bubble of synctest.
type patient struct {
	t     *testing.T
	h     *health
	enc   *fakeWatched
	agent lock
	door  *door
	conns chan net.Conn
	end   func()
}

// chanListener accepts what is sent to it.
type chanListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l chanListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l chanListener) Close() error   { close(l.closed); return nil }
func (l chanListener) Addr() net.Addr { return &net.UnixAddr{} }

func newPatient[O owner](t *testing.T, buses map[string]O) *patient {
	p := &patient{t: t, h: newHealth(), enc: &fakeWatched{mu: newLock()}, agent: newLock(), conns: make(chan net.Conn)}
	l := chanListener{p.conns, make(chan struct{})}
	p.door = newDoor(l)
	v := newVitals(p.enc, func() { p.agent.Lock(); defer p.agent.Unlock() }, p.door, buses)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		v.watch(ctx)
	}()
	p.h.serving(v)
	p.end = func() {
		_ = l.Close()
		cancel()
		<-done
	}
	return p
}

// accept is what http.Server does: it waits at the door again and again, unless
// what it does with a connection hangs.
func (p *patient) accept(with func(net.Conn)) {
	l := p.door.open()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			with(c)
		}
	}()
}

func (p *patient) want(what, begin string) {
	p.t.Helper()
	if got := p.h.now().String(); !strings.HasPrefix(got, begin) {
		p.t.Errorf("%s: %q; want %q", what, got, begin)
	}
}

// Each of the agent's loops, stopped for ever, is named, and none before its
// time.
func TestHealthNamesTheLoop(t *testing.T) {
	t.Run("nothing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPatient(t, map[string]deadOwner{})
			p.accept(func(net.Conn) {})
			time.Sleep(time.Hour)
			p.want("an idle hour", "ok")
			p.enc.mu.Lock()
			p.enc.why = "no chip answers"
			p.enc.mu.Unlock()
			time.Sleep(2 * askEvery)
			p.want("the store is gone", "ok store-unusable no chip answers")
			p.end()
		})
	})
	t.Run("enclosure", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPatient(t, map[string]deadOwner{})
			p.accept(func(net.Conn) {})
			p.enc.mu.Lock()
			time.Sleep(answerLimit)
			p.want("in time", "ok")
			time.Sleep(2 * askEvery)
			p.want("locked for ever", "stuck answers of enclosure and configuration, for 3")
			p.enc.mu.Unlock()
			time.Sleep(askEvery)
			p.want("unlocked", "ok")
			p.end()
		})
	})
	t.Run("keeper", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPatient(t, map[string]deadOwner{})
			p.accept(func(net.Conn) {})
			p.agent.Lock()
			time.Sleep(answerLimit + 2*askEvery)
			p.want("locked for ever", "stuck answers of enclosure and configuration, for 3")
			p.agent.Unlock()
			p.end()
		})
	})
	t.Run("accept", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPatient(t, map[string]deadOwner{})
			hang := make(chan struct{})
			p.accept(func(net.Conn) { <-hang })
			time.Sleep(time.Hour)
			p.conns <- nil
			time.Sleep(answerLimit)
			p.want("in time", "ok")
			time.Sleep(time.Second)
			p.want("nobody accepts", "stuck the socket's accepting, for 31s")
			close(hang)
			synctest.Wait()
			p.want("accepts again", "ok")
			p.end()
		})
	})
	t.Run("no accept", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPatient(t, map[string]deadOwner{})
			time.Sleep(answerLimit + time.Second)
			p.want("nobody ever came to the door", "stuck the socket's accepting, for 31s")
			p.end()
		})
	})
	t.Run("owner", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dead := deadOwner{make(chan struct{})}
			p := newPatient(t, map[string]deadOwner{"engines": dead})
			p.accept(func(net.Conn) {})
			time.Sleep(ownerLimit)
			p.want("in time", "ok")
			time.Sleep(2 * askEvery)
			p.want("an owner that takes nothing", "stuck owner of bus engines, for 1m")
			close(dead.end)
			p.end()
		})
	})
	t.Run("poller", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPatient(t, map[string]deadOwner{})
			p.accept(func(net.Conn) {})
			p.enc.loops.Store(&[]enclosure.Loop{{Name: "poller of bus a", Quiet: enclosure.LoopQuiet}, {Name: "poller of bus b", Quiet: enclosure.LoopQuiet + time.Second}})
			p.want("one of two", "stuck poller of bus b, for 1m1s")
			p.end()
		})
	})
}

// A bus that never comes back is wedged, which its owner says: no restart
// helps, and the other buses go on.
func TestHealthOverWedgedBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{held: make(chan struct{})}
		o := bus.Own(w, time.Second)
		p := newPatient(t, map[string]*bus.Owned{"engines": o})
		p.accept(func(net.Conn) {})
		if err := o.Tx(0x50, []byte{0}, nil); !errors.Is(err, bus.ErrWedged) {
			t.Errorf("Tx = %v", err)
		}
		time.Sleep(time.Hour)
		p.want("wedged for an hour", "ok")
		close(w.held)
		p.end()
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A start counts as alive up to its bound, each of several in place anew.
func TestHealthStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth()
		p := &patient{t: t, h: h}
		time.Sleep(startBase)
		p.want("at the bound", "starting reads its configuration, for 2m0s")
		h.begin("looks for its buses", 3)
		time.Sleep(startLimit(3) - time.Second)
		h.goOn("reads the store", 4)
		time.Sleep(startSlot + time.Second)
		p.want("four slots have their time", "starting reads the store")
		time.Sleep(time.Second)
		p.want("too long", "stuck start: reads the store; it takes 2m41s, and may take 2m40s")
		v := newVitals(&fakeWatched{mu: newLock()}, func() {}, newDoor(nil), map[string]deadOwner{})
		h.serving(v)
		p.want("serves", "ok")
		time.Sleep(answerLimit + time.Second) // nobody watches
		p.want("nothing asks", "stuck ")
		h.begin("ends a run", 1)
		p.want("another start", "starting ends a run")
	})
}

// The watchdog of systemd is fed at a third of its time while the agent is
// alive, of which a start is part, and not while it is stuck.
func TestFeed(t *testing.T) {
	for _, tt := range []struct {
		how   condition
		fed   int
		stuck int
	}{{condition{condOK, ""}, 30, 0}, {condition{condStarting, "reads"}, 30, 0}, {condition{condStuck, "poller"}, 0, 1}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second+time.Second)
			defer cancel()
			fed, stuck := 0, 0
			feed(ctx, func() condition { return tt.how }, 10*time.Second/3, func() { fed++ }, func(string) { stuck++ })
			if fed != tt.fed || stuck != tt.stuck {
				t.Errorf("%v: fed %d times in 101 s, called stuck %d times; want %d, %d", tt.how, fed, stuck, tt.fed, tt.stuck)
			}
		})
	}
}

// asks is PID 1's end of the channel to a process.
type asks struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

// launchAsked starts batond with a channel to ask it on.
func (b *bench) launchAsked() (*process, asks) {
	b.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	conn, err := net.FileConn(ours)
	if err != nil {
		b.t.Fatal(err)
	}
	_ = ours.Close()
	b.t.Cleanup(func() { _ = conn.Close() })
	p := b.launchWith(func(c *exec.Cmd) { c.ExtraFiles = []*os.File{theirs} }, healthFD+"=3")
	_ = theirs.Close()
	return p, asks{b.t, conn, bufio.NewReader(conn)}
}

// ask is one question. "" = no answer in two seconds.
func (a asks) ask() string {
	a.t.Helper()
	_ = a.conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := a.conn.Write([]byte("?")); err != nil {
		a.t.Fatal(err)
	}
	line, err := a.r.ReadString('\n')
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ""
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

// TestHealthChannel: the process answers from its start on, over a socket that
// hundreds of slow clients flood, without a store, and not while it is stopped.
func TestHealthChannel(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t)
	b.serveBus()
	p, a := b.launchAsked()
	b.until("ok", func() bool {
		got := a.ask()
		if !strings.HasPrefix(got, "starting ") && got != "ok" {
			t.Fatalf("while it starts: %q", got)
		}
		return got == "ok"
	})

	var slow []net.Conn
	for range 400 {
		c, err := net.Dial("unix", b.path("sock"))
		if err != nil {
			t.Fatal(err)
		}
		slow = append(slow, c)
		_, _ = io.WriteString(c, "POST /v1/moves HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{") // the door may be shut
	}
	for range 20 {
		start := time.Now()
		if got := a.ask(); got != "ok" {
			t.Errorf("over a flooded socket: %q", got)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("over a flooded socket it took %v", d)
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, c := range slow {
		_ = c.Close()
	}

	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if got := a.ask(); got != "" {
		t.Errorf("stopped: %q", got)
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if line, err := a.r.ReadString('\n'); err == nil && line != "ok\n" {
		t.Errorf("the answer of before: %q", line)
	}
	p.end()
}

// TestHealthWithoutStore: an agent without a store is alive, and says what it
// lacks; when the chip answers it takes it in, without a new process.
func TestHealthWithoutStore(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t)
	b.serveBus()
	b.w.Chip("store").SetDead(true)
	p, a := b.launchAsked()
	b.until("an answer that names the store", func() bool {
		return strings.HasPrefix(a.ask(), "ok store-unusable ")
	})
	b.w.Chip("store").SetDead(false)
	b.until("a store", func() bool { return a.ask() == "ok" })
	if e := b.enclosure(); !e.Store.OK {
		t.Errorf("store: %+v", e.Store)
	}
	b.unfence()
	p.end()
}

// What is no channel is said, and the agent starts.
func TestHealthChannelRefused(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t)
	b.serveBus()
	p := b.start(healthFD + "=1x")
	p.end()
	if text, err := os.ReadFile(b.path("log")); err != nil || !strings.Contains(string(text), "is no descriptor") {
		t.Errorf("log: %v\n%s", err, text)
	}
}

// lateNetwork is one whose driver is loaded late.
type lateNetwork struct {
	comes time.Time
	err   error // until then
	tries int
}

func (n *lateNetwork) Apply(context.Context, *station.Network) error {
	n.tries++
	if time.Now().Before(n.comes) {
		return n.err
	}
	return nil
}

// The socket waits for a network whose driver is still to come, up to a bound,
// and for nothing else.
func TestSocketWaitsForNetwork(t *testing.T) {
	absent, noVLANs := fmt.Errorf("%w eth0", station.ErrAbsent), fmt.Errorf("make eth0.42: %w", syscall.EOPNOTSUPP)
	n := &config.Network{Interface: "eth0"}
	for _, tt := range []struct {
		name  string
		net   *config.Network
		comes time.Duration
		err   error
		want  time.Duration
		ok    bool
	}{
		{"there", n, 0, nil, 0, true},
		{"none is configured", nil, time.Hour, absent, 0, false},
		{"comes late", n, 3 * time.Second, absent, 3 * time.Second, true},
		{"VLANs come late", n, 2 * time.Second, noVLANs, 2 * time.Second, true},
		{"never comes", n, time.Hour, absent, networkWait, false},
		{"wrong in another way", n, time.Hour, errors.New("no route"), 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := &lateNetwork{comes: time.Now().Add(tt.comes), err: tt.err}
				u := newUplink(net, slog.New(slog.DiscardHandler))
				start := time.Now()
				if tt.net != nil {
					u.start(t.Context(), tt.net, false)
				}
				u.await(t.Context())
				if d := time.Since(start); d < tt.want || d > tt.want+networkLook {
					t.Errorf("waited %v; want %v", d, tt.want)
				}
				if tt.net != nil && (u.problem() == nil) != tt.ok {
					t.Errorf("problem: %v", u.problem())
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		u := newUplink(&lateNetwork{comes: time.Now().Add(time.Hour), err: absent}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		u.start(ctx, n, false)
		start := time.Now()
		u.await(ctx)
		if d := time.Since(start); d != time.Second {
			t.Errorf("stopped after a second, it waited %v", d)
		}
	})
}

// What is wrong with a store's content is not mended by reading it again and
// again; nor is what answers, and can not be read.
func TestUnread(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false, fmt.Errorf("mount: %w", nvm.ErrUnformatted): false, nvm.ErrVersion: false, nvm.ErrSize: false, nvm.ErrAddressing: false,
		nvm.ErrAbsent: true, fmt.Errorf("reading: %w", bus.ErrWedged): true, os.ErrNotExist: true,
	} {
		if got := unread(err); got != want {
			t.Errorf("unread(%v) = %v", err, got)
		}
	}
	if mediumPause(0) != mediumLook || mediumPause(1) != 2*mediumLook || mediumPause(100) != 5*time.Minute {
		t.Errorf("mediumPause = %v, %v, %v", mediumPause(0), mediumPause(1), mediumPause(100))
	}
}

// Devices that have not come are waited for, up to a bound.
func TestAwaitDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		for _, tt := range []struct {
			store, slot string
			want        time.Duration
		}{{"/dev/null", "/dev/null", 0}, {"/dev/i2c-300", "/dev/null", storeWait}, {"unix:/nowhere", "unix:/nowhere", 0}, {"/dev/null", "/dev/i2c-301", deviceWait}} {
			c := &config.Config{Buses: map[string]string{"a": tt.store, "b": tt.slot}, Store: config.Store{Bus: "a"}, Slots: []config.Slot{{Name: "gpu0", Bus: "b"}}}
			start := time.Now()
			told := 0
			awaitDevices(t.Context(), c, log, func(string) { told++ })
			if d := time.Since(start); d != tt.want || told != min(int(d), 1) {
				t.Errorf("%s, %s: waited %v, told %d times; want %v", tt.store, tt.slot, d, told, tt.want)
			}
		}
		for name, s := range map[string]config.Store{"SPI": {SPI: "/dev/spidev9.9"}, "partition": {MTD: "no such partition"}, "MTD device": {MTD: "/dev/mtd99"}} {
			if storeAbsent(&config.Config{Store: s}) == nil {
				t.Errorf("%s: it is not looked for", name)
			}
		}
		shared := &config.Config{Buses: map[string]string{"a": "/dev/i2c-300"}, Store: config.Store{Slot: "gpu0"}, Slots: []config.Slot{{Name: "gpu0", Bus: "a"}}}
		if storeAbsent(shared) == nil {
			t.Error("the bus of a shared chip is not looked for")
		}
		for name, sl := range map[string]config.Slot{
			"SPI":  {EEPROM: config.EEPROM{SPI: "/dev/spidev9.9"}},
			"GPIO": {Reload: &config.Reload{GPIO: config.Line{Chip: "/dev/gpiochip99"}}},
		} {
			if deviceAbsent(&config.Config{Slots: []config.Slot{sl}}) == nil {
				t.Errorf("%s: it is not looked for", name)
			}
		}
	})
}
