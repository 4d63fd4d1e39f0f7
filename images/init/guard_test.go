package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		running bool
		before  bool // it has answered before
		ran     time.Duration
		answer  string
		want    wellness
		feed    bool
	}{
		{false, true, time.Hour, "", ended, true},
		{false, true, 0, "ok", ended, true},
		{true, false, 0, "", young, true},
		{true, false, youngTime - 1, "", young, true},
		{true, false, youngTime, "", silent, false},
		{true, false, 0, "ok", well, true},
		{true, false, time.Hour, "ok", well, true},
		{true, false, time.Hour, "ok store-unusable no chip answers", storeless, true},
		{true, false, time.Hour, "starting reads the store, for 3s", starting, true},
		{true, false, time.Hour, "stuck poller of bus engines, for 1m1s", stuck, false},
		{true, false, time.Second, "stuck start: reads the store", stuck, false},
		{true, false, time.Hour, "", silent, false},
		{true, false, time.Second, "okay", silent, false},
		{true, false, time.Hour, "what?", silent, false},
		{true, true, time.Second, "", silent, false},
		{true, true, time.Second, "ok", well, true},
	} {
		got := judge(tt.running, tt.before, tt.ran, tt.answer)
		if got != tt.want || answers[got].feed != tt.feed {
			t.Errorf("judge(%v, %v, %v, %q) = %v, feed %v; want %v, %v", tt.running, tt.before, tt.ran, tt.answer, got, answers[got].feed, tt.want, tt.feed)
		}
	}
}

// answerer is the agent's end of the channel.
type answerer struct {
	mu  sync.Mutex
	say string // "" = nothing
	n   int    // questions
}

func (a *answerer) set(s string) { a.mu.Lock(); a.say = s; a.mu.Unlock() }

func (a *answerer) serve(f *os.File) {
	r := bufio.NewReader(f)
	for {
		if _, err := r.ReadByte(); err != nil {
			return
		}
		a.mu.Lock()
		a.n++
		s := a.say
		a.mu.Unlock()
		if s != "" {
			fmt.Fprintln(f, s)
		}
	}
}

func newAnswerer(t *testing.T, say string) (*answerer, *line) {
	t.Helper()
	l, theirs, err := newLine()
	if err != nil {
		t.Fatal(err)
	}
	a := &answerer{say: say}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.serve(theirs)
	}()
	t.Cleanup(func() {
		l.close()
		<-done
		theirs.Close()
	})
	return a, l
}

func TestAsk(t *testing.T) {
	const patience = 50 * time.Millisecond
	a, l := newAnswerer(t, "ok")
	ask := func(what, want string) {
		t.Helper()
		if got, err := l.ask(patience); got != want || err != nil {
			t.Errorf("%s: ask = %q, %v; want %q", what, got, err, want)
		}
	}
	ask("well", "ok")
	a.set("starting reads\nstuck poller") // of two lines the later one counts
	ask("two lines", "stuck poller")
	a.set("")
	for range 5 {
		ask("silent", "")
	}
	a.mu.Lock()
	n := a.n
	a.mu.Unlock()
	if n != 3 {
		t.Errorf("it was asked %d times; want 3: one that does not answer is asked once", n)
	}

	l2, theirs, err := newLine()
	if err != nil {
		t.Fatal(err)
	}
	defer l2.close()
	if got, err := l2.ask(patience); got != "" || err != nil {
		t.Errorf("nobody answers: %q, %v", got, err)
	}
	fmt.Fprint(theirs, "o")
	if got, err := l2.ask(patience); got != "" || err != nil {
		t.Errorf("half an answer: %q, %v", got, err)
	}
	fmt.Fprint(theirs, "k\n")
	if got, err := l2.ask(patience); got != "ok" || err != nil {
		t.Errorf("the late answer: %q, %v", got, err)
	}
	_ = theirs.Close()
	if got, err := l2.ask(patience); got != "" || err == nil {
		t.Errorf("it has ended: %q, %v", got, err)
	}
}

// fakeDog bites when it was not fed for its time.
type fakeDog struct {
	time time.Duration
	err  error

	mu  sync.Mutex
	fed time.Time
	n   int
}

func (d *fakeDog) timeout() time.Duration { return d.time }

func (d *fakeDog) bites() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.fed) >= d.time
}

func (d *fakeDog) feed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fed = time.Now()
	d.n++
	return d.err
}

// times is how often it was fed.
func (d *fakeDog) times() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n
}

// kennel is a guard with what it guards.
type kennel struct {
	*guard
	dog  *fakeDog
	said []string

	lock sync.Mutex
	now  process
}

// runs has the guard look after another process from now on.
func (k *kennel) runs(p process) {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.now = p
}

func newKennel(t *testing.T) *kennel {
	k := &kennel{dog: &fakeDog{time: 15 * time.Second, fed: time.Now()}}
	k.guard = &guard{
		look: func() process {
			k.lock.Lock()
			defer k.lock.Unlock()
			return k.now
		},
		report: newReport(filepath.Join(t.TempDir(), "init", "state.json"), func() time.Duration { return time.Minute }),
		say:    func(f string, a ...any) { k.said = append(k.said, fmt.Sprintf(f, a...)) },
	}
	k.report.update(func(s *state) { s.Watchdog = &watchdogState{} })
	k.arm(k.dog)
	return k
}

func (k *kennel) state(t *testing.T) state {
	t.Helper()
	var s state
	text, err := os.ReadFile(k.report.file)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The guard asks, feeds by the table, and says once when that changes.
func TestGuard(t *testing.T) {
	k := newKennel(t)
	a, l := newAnswerer(t, "ok")
	const patience = 20 * time.Millisecond
	k.once(patience)
	if k.health().is != ended || k.dog.times() != 1 {
		t.Errorf("before the start: %v, fed %d times; want ended, 1", k.health().is, k.dog.times())
	}
	k.runs(process{pid: 7, line: l, started: time.Now()})
	for range 3 {
		k.once(patience)
	}
	if s := k.state(t); k.dog.times() != 4 || s.Agent.Health != "ok" || s.Agent.PID != 7 || !s.Watchdog.Fed {
		t.Errorf("well: fed %d times, %+v", k.dog.times(), s)
	}
	a.set("stuck poller of bus engines, for 1m1s")
	for range 3 {
		k.once(patience)
	}
	if s := k.state(t); k.dog.times() != 4 || s.Agent.Health != "stuck" || s.Agent.Text != "stuck poller of bus engines, for 1m1s" || s.Watchdog.Fed {
		t.Errorf("stuck: fed %d times, %+v", k.dog.times(), s)
	}
	a.set("ok")
	k.once(patience)
	if got := k.said[len(k.said)-1]; got != "the agent is ok: the watchdog is fed again" {
		t.Errorf("well again: %q", got)
	}
	a.set("")
	k.now.started = time.Now().Add(-time.Hour)
	k.once(patience)
	if n := len(k.said); n != 3 {
		t.Errorf("one answer that did not come: said %q", k.said[3:])
	}
	k.once(patience)
	if s := k.state(t); k.dog.times() != 5 || s.Agent.Health != "does not answer" || s.Watchdog.Fed {
		t.Errorf("silent: fed %d times, %+v", k.dog.times(), s)
	}
	k.runs(process{restarts: 1})
	k.once(patience)
	if s := k.state(t); k.dog.times() != 6 || s.Agent.Health != "not running" || s.Agent.PID != 0 || s.Agent.Restarts != 1 || !s.Watchdog.Fed {
		t.Errorf("ended: fed %d times, %+v", k.dog.times(), s)
	}
	k.dog.err = errors.New("no such device")
	k.once(patience)
	k.once(patience)
	want := []string{
		"the agent is ready, and ok",
		"the agent is stuck poller of bus engines, for 1m1s: the watchdog is not fed, and restarts the board in 15s unless it comes back",
		"the agent is ok: the watchdog is fed again",
		"the agent does not answer: the watchdog is not fed, and restarts the board in 15s unless it comes back",
		"the agent is not running: the watchdog is fed again",
		"watchdog: it does not take its food, and restarts the board in 15s at most: no such device",
	}
	if got := strings.Join(k.said, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("said\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// How long an agent has been well is counted anew for another process.
func TestGuardCountsAnew(t *testing.T) {
	k := newKennel(t)
	_, l := newAnswerer(t, "ok")
	_, l2 := newAnswerer(t, "ok")
	k.runs(process{pid: 7, line: l, started: time.Now()})
	k.once(time.Second)
	since := k.health().since
	k.once(time.Second)
	if got := k.health().since; !got.Equal(since) {
		t.Errorf("the same process: since %v; want %v", got, since)
	}
	k.runs(process{pid: 8, line: l2, started: time.Now(), restarts: 1})
	k.once(time.Second)
	if got := k.health(); got.is != well || !got.since.After(since) {
		t.Errorf("another process: %v since %v; want after %v", got.is, got.since, since)
	}
	if s := k.state(t); s.Agent.PID != 8 {
		t.Errorf("state: %+v", s)
	}
}

// An agent that ends again and again never has the watchdog bite; nor does one
// that hangs but is found to have ended in time.
func TestGuardOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKennel(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			k.run(ctx)
		}()
		for range 600 {
			time.Sleep(time.Second)
			if k.dog.bites() {
				t.Fatal("the watchdog bites while the agent is started again")
			}
		}
		if gap := 600 * time.Second / time.Duration(k.dog.times()); gap > k.dog.time/3 {
			t.Errorf("fed every %v; want every %v", gap, k.dog.time/3)
		}
		// A process that runs and can not be asked is one that does not answer.
		k.runs(process{pid: 9, started: time.Now()})
		time.Sleep(youngTime - time.Second)
		if k.dog.bites() {
			t.Error("the watchdog bites a young agent")
		}
		time.Sleep(time.Second + k.dog.time)
		if !k.dog.bites() {
			t.Errorf("the watchdog does not bite after %v without an answer", youngTime+k.dog.time)
		}
		cancel()
		<-done
		if len(k.said) != 1 || !strings.HasPrefix(k.said[0], "the agent does not answer: the watchdog is not fed, and restarts the board in 1") {
			t.Errorf("said: %q", k.said)
		}
	})
}

func TestAskedTime(t *testing.T) {
	for _, tt := range []struct {
		cmdline string
		want    time.Duration
		off     bool
		bad     bool
	}{
		{"console=ttyS4 loglevel=4", watchdogTime, false, false},
		{"baton.watchdog=15s quiet", 15 * time.Second, false, false},
		{"quiet baton.watchdog=2m\n", 2 * time.Minute, false, false},
		{"baton.watchdog=off", 0, true, false},
		{"baton.watchdog=4s", watchdogTime, false, true},
		{"baton.watchdog=1h", watchdogTime, false, true},
		{"baton.watchdog=", watchdogTime, false, true},
		{"baton.watchdog=15", watchdogTime, false, true},
		{"xbaton.watchdog=15s", watchdogTime, false, false},
	} {
		got, off, err := askedTime(tt.cmdline)
		if got != tt.want || off != tt.off || (err != nil) != tt.bad {
			t.Errorf("askedTime(%q) = %v, %v, %v; want %v, %v, bad %v", tt.cmdline, got, off, err, tt.want, tt.off, tt.bad)
		}
	}
}

// A device that is no watchdog is refused, and one that is absent told apart.
func TestOpenWatchdog(t *testing.T) {
	if w, err := openWatchdog(filepath.Join(t.TempDir(), "watchdog0"), time.Minute); !errors.Is(err, os.ErrNotExist) || w != nil {
		t.Errorf("absent: %v, %v", w, err)
	}
	if w, err := openWatchdog(os.DevNull, time.Minute); err == nil || errors.Is(err, os.ErrNotExist) || w != nil {
		t.Errorf("no watchdog: %v, %v", w, err)
	}
}

func TestReport(t *testing.T) {
	r := newReport(filepath.Join(t.TempDir(), "init", "state.json"), func() time.Duration { return 90 * time.Second })
	r.hold()
	r.update(func(s *state) { s.ModulesFailed = append(s.ModulesFailed, "8021q: no such file") })
	if _, err := os.Stat(r.file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("written while it is held: %v", err)
	}
	r.release()
	text, err := os.ReadFile(r.file)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"uptime_s":90,"agent":{"pid":0,"restarts":0,"health":"","since_s":0},"clock":{"set_from_floor":false},"modules_failed":["8021q: no such file"],"modules_loaded":false}` + "\n"
	if string(text) != want {
		t.Errorf("state\n%swant\n%s", text, want)
	}
}

func TestLoadModules(t *testing.T) {
	list := filepath.Join(t.TempDir(), "modules")
	if err := os.WriteFile(list, []byte("i2c-dev\n\nmdio bus=1 irq=0\n8021q\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var loaded, failed []string
	loadModules(list, "/m", func(file, params string) error {
		loaded = append(loaded, strings.TrimSpace(file+" "+params))
		if strings.Contains(file, "mdio") {
			return errors.New("no such device")
		}
		return nil
	}, func(what string) { failed = append(failed, what) })
	if got, want := strings.Join(loaded, ", "), "/m/i2c-dev.ko, /m/mdio.ko bus=1 irq=0, /m/8021q.ko"; got != want {
		t.Errorf("loaded %s; want %s", got, want)
	}
	if got, want := strings.Join(failed, ", "), "mdio: no such device"; got != want {
		t.Errorf("failed %s; want %s", got, want)
	}
	loadModules(list+"x", "/m", nil, func(what string) { failed = append(failed, what) })
	if len(failed) != 2 || !strings.HasPrefix(failed[1], "none of ") {
		t.Errorf("no list: %q", failed)
	}
}

func TestFallback(t *testing.T) {
	var f fallback
	now := time.Now()
	run := func(pause time.Duration, failed bool) bool {
		now = now.Add(pause)
		f.ended(now, failed)
		return f.next()
	}
	for i, tt := range []struct {
		pause  time.Duration
		failed bool
		want   bool
	}{
		{0, true, false}, {time.Second, true, false}, {time.Second, true, true}, // three at once: the shell
		{time.Second, true, false}, {failTime, true, false}, {failTime, true, false}, {failTime, true, false}, // now and then
		{time.Second, true, false}, {time.Second, false, false}, {time.Second, true, false}, {time.Second, true, false}, // one went well
		{time.Second, true, true},
	} {
		if got := run(tt.pause, tt.failed); got != tt.want {
			t.Errorf("step %d: shell %v; want %v", i, got, tt.want)
		}
	}
}

// What comes late waits for an agent that starts, unless that waits for it.
func TestAwait(t *testing.T) {
	const most = 4 * time.Second
	for _, tt := range []struct {
		name string
		h    health
		want time.Duration
	}{
		{"not started yet", health{}, most},
		{"has not answered yet", health{is: young}, most},
		{"starts", health{is: starting, text: "starting reads the store, for 1s"}, most},
		{"waits for a device", health{is: starting, text: "starting waits for /dev/mtd2, for 1s"}, 0},
		{"serves", health{is: well, text: "ok"}, 0},
		{"hangs", health{is: silent}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &guard{latest: tt.h}
				start := time.Now()
				ctx, end := context.WithTimeout(t.Context(), most)
				defer end()
				g.await(ctx)
				if d := time.Since(start); d != tt.want {
					t.Errorf("waited %v; want %v", d, tt.want)
				}
			})
		})
	}
}
