package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"baton/enclosure"
)

// condition is how the agent is, for whoever may have to start it anew.
type condition struct {
	word string // ok, starting or stuck
	text string // of ok: why the store can not be used, "" = it can
}

const (
	condOK       = "ok"
	condStarting = "starting"
	condStuck    = "stuck"
)

// alive tells whether the agent is to be left alone: a store that can not be
// used, or a bus that is dead, does not come back by a restart.
func (c condition) alive() bool { return c.word != condStuck }

// String is one line: "ok", "ok store-unusable WHY", "starting WHAT" or
// "stuck WHERE".
func (c condition) String() string {
	text := c.text
	if c.word == condOK && text != "" {
		text = "store-unusable " + text
	}
	const most = 300
	if len(text) > most {
		text = text[:most]
	}
	return strings.TrimSpace(c.word + " " + strings.Map(oneLine, text))
}

func oneLine(r rune) rune {
	if r < ' ' || r > '~' {
		return ' '
	}
	return r
}

// phase is what the agent does that is not serving: it starts, or ends a run
// to start anew in place.
type phase struct {
	step   string // "" = it serves
	lasted time.Duration
	limit  time.Duration
}

// pulse is one loop that has to get on.
type pulse struct {
	name         string
	quiet, limit time.Duration
}

// judge is the whole judgement.
func judge(p phase, pulses []pulse, problem string) condition {
	switch {
	case p.step != "" && p.lasted > p.limit:
		return condition{condStuck, fmt.Sprintf("start: %s; it takes %v, and may take %v", p.step, p.lasted.Round(time.Second), p.limit)}
	case p.step != "":
		return condition{condStarting, fmt.Sprintf("%s, for %v", p.step, p.lasted.Round(time.Second))}
	}
	var stuck []string
	for _, l := range pulses {
		if l.quiet > l.limit {
			stuck = append(stuck, fmt.Sprintf("%s, for %v", l.name, l.quiet.Round(time.Second)))
		}
	}
	if len(stuck) > 0 {
		return condition{condStuck, strings.Join(stuck, "; ")}
	}
	return condition{condOK, problem}
}

// A start reads each engine, and on a bus where each transfer takes its full
// second that lasts: startBase for the store, startSlot for each slot.
const (
	startBase = 2 * time.Minute
	startSlot = 10 * time.Second
)

func startLimit(slots int) time.Duration { return startBase + time.Duration(slots)*startSlot }

// health collects what judge needs, without a lock that anybody holds while he
// waits: it is asked by PID 1, or for systemd, and never over the socket.
type health struct {
	mu    sync.Mutex // held for no longer than copying takes
	step  string
	since time.Time
	limit time.Duration
	run   *vitals // of the run that serves
}

// waitsFor begins the step of a start that waits for a driver: PID 1 then loads
// the modules that it holds back (images/init).
const waitsFor = "waits for "

func newHealth() *health {
	h := &health{}
	h.begin("reads its configuration", 0)
	return h
}

// begin says that a start begins, of so many slots.
func (h *health) begin(step string, slots int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.run = nil
	h.step, h.since, h.limit = step, time.Now(), startLimit(slots)
}

// goOn says what the start does now.
func (h *health) goOn(step string, slots int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.step, h.limit = step, startLimit(slots)
}

// serving says that the start is over.
func (h *health) serving(v *vitals) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.step, h.run = "", v
}

func (h *health) now() condition {
	h.mu.Lock()
	p, v := phase{h.step, time.Since(h.since), h.limit}, h.run
	h.mu.Unlock()
	if v == nil {
		return judge(p, nil, "")
	}
	return judge(p, v.pulses(), v.problem())
}

// Bounds of the agent's own loops. What asks them does so every second; the
// owner of a bus comes to it behind the transfers that others wait for, a
// second each at most.
const (
	askEvery    = time.Second
	answerLimit = 30 * time.Second
	ownerLimit  = time.Minute
)

// vitals are the signs of life of one run.
type vitals struct {
	enc    watched
	agent  func() // takes, and gives back, the locks of keeper and uplink
	door   *door
	store  atomic.Pointer[string] // why it can not be used
	asked  *beat                  // enclosure, keeper and uplink have answered
	owners map[string]*beat       // by bus
	buses  map[string]owner
}

// watched is what health needs of the enclosure.
type watched interface {
	Loops() []enclosure.Loop // takes no lock
	Problem() string         // takes the enclosure's lock
}

// owner is the goroutine that does a bus's transfers.
type owner interface{ Ask() error }

func newVitals[O owner](enc watched, agent func(), d *door, buses map[string]O) *vitals {
	v := &vitals{enc: enc, agent: agent, door: d, asked: newBeat(), owners: map[string]*beat{}, buses: map[string]owner{}}
	for name, b := range buses {
		v.owners[name], v.buses[name] = newBeat(), b
	}
	v.ask()
	return v
}

// ask comes back where no lock of the agent's is held for ever.
func (v *vitals) ask() {
	p := v.enc.Problem()
	v.store.Store(&p)
	v.agent()
	v.asked.now()
}

// watch asks the loops until ctx ends, and returns when they have answered: the
// owner of a wedged bus does so at once.
func (v *vitals) watch(ctx context.Context) {
	var asking sync.WaitGroup
	every := func(f func()) {
		asking.Go(func() {
			tick := time.NewTicker(askEvery)
			defer tick.Stop()
			for {
				f()
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	every(v.ask)
	for name, o := range v.buses {
		mark := v.owners[name]
		every(func() {
			_ = o.Ask() // that the bus is wedged is an answer too
			mark.now()
		})
	}
	asking.Wait()
}

// pulses takes no lock.
func (v *vitals) pulses() []pulse {
	out := []pulse{
		{"answers of enclosure and configuration", v.asked.quiet(), answerLimit},
		{"the socket's accepting", v.door.quiet(), answerLimit},
	}
	for _, name := range sorted(v.owners) {
		out = append(out, pulse{"owner of bus " + name, v.owners[name].quiet(), ownerLimit})
	}
	for _, l := range v.enc.Loops() {
		out = append(out, pulse{l.Name, l.Quiet, enclosure.LoopQuiet})
	}
	return out
}

func (v *vitals) problem() string { return *v.store.Load() }

// beat is when something last got on.
type beat struct {
	from time.Time
	at   atomic.Int64 // after from
}

func newBeat() *beat { return &beat{from: time.Now()} }

func (b *beat) now() { b.at.Store(int64(time.Since(b.from))) }

func (b *beat) quiet() time.Duration { return time.Since(b.from) - time.Duration(b.at.Load()) }

// healthFD is the environment's name of the descriptor on which PID 1 asks.
const healthFD = "BATON_HEALTH_FD"

// openHealth is the channel to whoever started the agent, nil where there is
// none. It is a stream socket: for each '?' that comes, a line goes back.
func openHealth() (net.Conn, error) {
	text := os.Getenv(healthFD)
	if text == "" {
		return nil, nil
	}
	if err := os.Unsetenv(healthFD); err != nil {
		return nil, err
	}
	fd, err := strconv.ParseUint(text, 10, 16)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%q is no descriptor", healthFD, text)
	}
	f := os.NewFile(uintptr(fd), healthFD)
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("%s=%s: %w", healthFD, text, err)
	}
	return c, nil
}

// answer answers until c is closed, from one side or the other.
func (h *health) answer(c net.Conn) {
	p := make([]byte, 64)
	for {
		n, err := c.Read(p)
		for range strings.Count(string(p[:n]), "?") {
			_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // who asks so much is not heard
			if _, err := fmt.Fprintln(c, h.now()); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
