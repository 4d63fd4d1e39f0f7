package enclosure_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"periph.io/x/conn/v3/i2c"
	"pgregory.net/rapid"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/nvm"
	"baton/sim"
	"baton/test/rig"
)

// A life is a random sequence of what hosts, VMs, hardware and agent do, each
// step with something else that may happen in the middle of it. After every
// step the model is asked whether the invariants held.

// life is what is drawn: rapid makes a failing one smaller.
type life struct {
	policies [2]plan.Policy
	vlan     bool // slots have ports of a switch
	shared   bool // the store is on gpu0's chip
	buses    int  // 1 or 2
	any      bool // the configuration lets any engine and device be there
	lacks    ee.Caps
	steps    []step
}

func (l life) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "policies %v, switch %v, shared chip %v, buses %d, any part %v, without %v", l.policies, l.vlan, l.shared, l.buses, l.any, l.lacks.Names())
	for i, s := range l.steps {
		fmt.Fprintf(&b, "\n  %2d: %s", i, s)
	}
	return b.String()
}

// step is one action and what happens under way.
type step struct {
	do   action
	mid  action // "" = nothing
	when time.Duration
}

func (s step) String() string {
	if s.mid.what == "" {
		return s.do.String()
	}
	return fmt.Sprintf("%s; after %v %s", s.do, s.when, s.mid)
}

// action is one thing that somebody does. What its numbers mean depends on
// what it is.
type action struct {
	what string
	vm   int
	host int
	mask int // set of slots, 1..7
	n    int
}

func (a action) String() string {
	return fmt.Sprintf("%s vm=%d host=%d slots=%03b n=%d", a.what, a.vm, a.host, a.mask, a.n)
}

var (
	requests = []string{"attach", "boot", "start", "start", "ack", "alive", "alive", "arm", "arm-blind", "disarm", "move", "move", "move-reset", "stuck-move", "stuck-move",
		"release-keep", "release-hold", "release-free", "fence", "unfence", "unfence",
		"adopt", "adopt", "resolve", "resolve", "force-free", "force-free", "reset-device", "power-off-device", "power-on-device", "power-cycle-device", "locate", "drain", "drain-release"}
	happenings = []string{"guest-reboot", "stop-vm", "kill-qemu", "hang", "resume", "power-loss", "power-on", "panic", "link-loss", "link-restore",
		"engine-restart", "engine-dies", "engine-replaced", "agent-restart", "power-cycle", "pull-device", "insert-device", "flip-block", "swap-engine", "swap-card", "swap-chip", "chip-dies", "chip-back", "stale-group", "right-group",
		"nack", "nack-data", "arbitration", "ignore", "wait"}
	midway = []string{"fence", "kill-agent", "power-cut", "engine-restart", "power-loss", "kill-qemu", "guest-reboot", "panic", "link-loss", "nack", "nack-data", "arbitration", "ignore", "move", "attach", "release-free", "release-hold", "engine-dies", "pull-device", "reset",
		"adopt", "resolve", "force-free", "reset-device", "power-off-device", "power-cycle-device", "locate", "swap-engine", "swap-card"}
)

func drawAction(t *rapid.T, label string, kinds []string) action {
	return action{
		what: rapid.SampledFrom(kinds).Draw(t, label),
		vm:   rapid.IntRange(0, 1).Draw(t, "vm"),
		host: rapid.IntRange(0, 2).Draw(t, "host"),
		mask: rapid.IntRange(1, 7).Draw(t, "slots"),
		n:    rapid.IntRange(0, 15).Draw(t, "n"),
	}
}

func drawStep(t *rapid.T) step {
	var s step
	if rapid.IntRange(0, 9).Draw(t, "by whom") < 6 {
		s.do = drawAction(t, "request", requests)
		if rapid.IntRange(0, 9).Draw(t, "undisturbed") >= 6 {
			s.mid = drawAction(t, "mid", midway)
			s.when = time.Duration(rapid.IntRange(0, 90).Draw(t, "when")) * 500 * time.Microsecond
		}
	} else {
		s.do = drawAction(t, "happens", happenings)
	}
	return s
}

func drawLife(t *rapid.T) life {
	policy := rapid.SampledFrom([]plan.Policy{plan.Always, plan.OnMove, plan.Never})
	l := life{
		policies: [2]plan.Policy{policy.Draw(t, "policy of train1"), policy.Draw(t, "policy of train2")},
		vlan:     rapid.IntRange(0, 3).Draw(t, "switch") == 0,
		shared:   rapid.IntRange(0, 3).Draw(t, "shared chip") == 0,
		buses:    rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "buses"),
		any:      rapid.IntRange(0, 3).Draw(t, "any part") == 0,
		lacks:    rapid.SampledFrom([]ee.Caps{0, 0, 0, ee.CapResetGuard, ee.CapDeviceReset, ee.CapExpectPeer, ee.CapFlagMirror, ee.CapQuiesce}).Draw(t, "without"),
		steps:    rapid.SliceOfN(rapid.Custom(drawStep), 1, 24).Draw(t, "steps"),
	}
	if rapid.IntRange(0, 2).Draw(t, "begins stuck") == 0 {
		// What chance seldom brings about: a set that runs, and is then blocked.
		mask, n := rapid.IntRange(3, 7).Draw(t, "set"), rapid.IntRange(0, 15).Draw(t, "how")
		stuck := []step{{do: action{"start", 0, 0, mask, 0}}, {do: action{"stuck-move", 0, 1, mask, n}}}
		for range rapid.IntRange(1, 3).Draw(t, "out of it") {
			s := step{do: drawAction(t, "by hand", []string{"resolve", "resolve", "force-free", "force-free", "adopt", "fence", "agent-restart", "swap-engine", "wait"})}
			if rapid.IntRange(0, 1).Draw(t, "disturbed") == 0 && s.do.what != "agent-restart" {
				s.mid = drawAction(t, "mid", midway)
				s.when = time.Duration(rapid.IntRange(0, 90).Draw(t, "when")) * 500 * time.Microsecond
			}
			stuck = append(stuck, s)
		}
		l.steps = append(stuck, l.steps...)
	}
	return l
}

// TestLives lives as many lives as -rapid.checks says. Where nothing is said it
// is 100, always the same: a few seconds, and red only when something changed.
// To hunt among others: make lives.
func TestLives(t *testing.T) {
	lived := 0
	asked := flag.Lookup("rapid.checks").Value.String() != flag.Lookup("rapid.checks").DefValue
	if seed := flag.Lookup("rapid.seed"); !asked && seed.Value.String() == seed.DefValue {
		if err := seed.Value.Set("1"); err != nil {
			t.Fatal(err)
		}
		defer seed.Value.Set(seed.DefValue)
	}
	rapid.Check(t, func(rt *rapid.T) {
		l := rapid.Custom(drawLife).Draw(rt, "life")
		// The race detector makes each ten times as slow.
		if lived++; !asked && lived > 100/(1+raceFactor) {
			return
		}
		if found := live(t, l); len(found) > 0 {
			rt.Fatalf("%s", strings.Join(found, "\n"))
		}
	})
}

// live lives one life in a bubble of its own and returns what was wrong.
func live(t *testing.T, l life) (found []string) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		defer func() {
			p := recover()
			found = w.found
			if p != nil && p != errGiveUp {
				found = append(found, fmt.Sprintf("panic: %v", p))
			}
			if len(found) > 0 {
				found = append(found, "what happened:")
				found = append(found, w.log...)
			}
		}()
		w.tb = tb{t, w}
		w.live(l)
	})
	return found
}

// tb lets a rig fail a life instead of the test.
type tb struct {
	testing.TB
	w *witness
}

var errGiveUp = errors.New("the life has failed")

func (tb) Helper()                        {}
func (t tb) Errorf(f string, args ...any) { t.w.wrong(f, args...) }
func (t tb) Error(args ...any)            { t.w.wrong("%s", fmt.Sprint(args...)) }
func (t tb) Fatal(args ...any)            { t.w.wrong("%s", fmt.Sprint(args...)); panic(errGiveUp) }
func (t tb) Fatalf(f string, args ...any) { t.w.wrong(f, args...); panic(errGiveUp) }

// leash ends what an agent can do to the hardware, as SIGKILL does.
type leash struct{ cut atomic.Bool }

var errKilled = errors.New("this agent was killed")

type leashedBus struct {
	i2c.Bus
	l *leash
}

func (b leashedBus) Tx(addr uint16, w, r []byte) error {
	if b.l.cut.Load() {
		return errKilled
	}
	err := b.Bus.Tx(addr, w, r)
	if b.l.cut.Load() {
		return errKilled
	}
	return err
}

type leashedSwitch struct {
	enclosure.Switch
	l *leash
}

func (s leashedSwitch) Set(ctx context.Context, port string, group uint16) error {
	if s.l.cut.Load() {
		return errKilled
	}
	err := s.Switch.Set(ctx, port, group)
	if s.l.cut.Load() {
		return errKilled
	}
	return err
}

// witness runs a life and looks at it with the model's eyes.
type witness struct {
	tb    tb
	r     *rig.Rig
	bare  enclosure.Config // without a leash
	leash *leash
	ended chan error // of the agent's Run
	stop  context.CancelFunc

	mu    sync.Mutex // of the rest: two requests may be under way
	found []string
	log   []string

	nonces map[string]ee.UUID // of each slot's latest attach to a host for a VM
	acked  map[string]ack     // of each slot
	proofs map[string][]proof
	sets   []set
	last   map[string]uint32 // generation counters seen
	said   map[string]string // of each slot, in the log
	moveNo int

	fencedAt  map[string]time.Duration // hosts, since when
	undone    map[string]string        // slots of a move that was undone in the present step, and where they were not to come
	dead      map[string]bool          // engines
	off       map[string]bool          // slots whose device somebody may have switched off
	flipped   bool                     // bits of config blocks changed by themselves
	disturbed bool                     // something happens under way of the present step
	surprised bool                     // an engine restarts by itself in it
	judged    int                      // violations that were looked at
}

// proof is an instant at which a VM was known to run with a slot.
type proof struct {
	vm   string
	at   time.Duration
	sure bool // the agent said that it has it
}

// ack is the last ack of a slot's start that may have been taken.
type ack struct {
	nonce ee.UUID
	sure  bool
}

// set is what was moved together and has not been taken apart by anybody.
type set struct {
	by     action
	slots  []string
	before map[string]string
	to     string
}

func (w *witness) wrong(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found = append(w.found, fmt.Sprintf(format, args...))
}

func (w *witness) note(format string, args ...any) {
	line := fmt.Sprintf("%10v  ", w.now()) + fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, line)
}

// events notes what the agent said.
func (w *witness) events() {
	all, _ := w.r.E.Events(0)
	for _, ev := range all {
		w.note("  event: %s %s: %s", ev.Kind, ev.Slot, ev.Text)
	}
}

func (w *witness) now() time.Duration {
	if w.r == nil {
		return 0
	}
	return w.r.W.Now()
}

var (
	lifeHosts = []string{rig.A, rig.B, rig.C}
	lifeVMs   = []string{rig.VM1, rig.VM2}
	lifeSlots = []string{"gpu0", "gpu1", "gpu2"}
	lifeBuses = []string{"bus0", "bus1"}
)

func slotsOf(mask int) (names []string) {
	for i, n := range lifeSlots {
		if mask&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return names
}

func (w *witness) live(l life) {
	w.off = map[string]bool{}
	w.dead, w.fencedAt = map[string]bool{}, map[string]time.Duration{}
	w.said = map[string]string{}
	w.nonces, w.acked, w.proofs, w.last = map[string]ee.UUID{}, map[string]ack{}, map[string][]proof{}, map[string]uint32{}
	w.leash = &leash{}
	w.r = rig.New(w.tb, rig.Options{Slots: 3, Buses: l.buses, Switch: l.vlan, Shared: l.shared, ProfileMod: func(p *ee.Profile) { p.Caps &^= l.lacks }, Config: func(c *enclosure.Config) {
		c.VMs = slices.Clone(c.VMs)
		for i := range c.VMs {
			c.VMs[i].Policy = l.policies[i]
		}
		if l.any {
			c.Slots = slices.Clone(c.Slots)
			for i := range c.Slots {
				c.Slots[i].MAC, c.Slots[i].Serial = ee.MAC{}, 0
			}
		}
		w.bare = *c
		*c = w.leashed(l.shared)
	}})
	w.run()
	defer func() { w.kill() }()
	for i, s := range l.steps {
		w.note("step %d: %s", i, s)
		w.step(l, s)
		w.check(l)
		if len(w.found) > 0 {
			return
		}
	}
	w.end(l)
}

// leashed is the configuration for an agent that can be killed.
func (w *witness) leashed(shared bool) enclosure.Config {
	c := w.bare
	c.Slots = slices.Clone(c.Slots)
	chip := func(bus i2c.Bus, addr uint16) nvm.Medium { return nvm.NewEEPROM(bus, addr, nvm.Parts["24c256"]) }
	for i := range c.Slots {
		bus := leashedBus{w.bare.Slots[i].Bus, w.leash}
		c.Slots[i].Bus = bus
		c.Slots[i].Medium = chip(bus, uint16(0x20+i))
	}
	bus := c.Slots[0].Bus // the store's too
	if shared {
		section, err := nvm.Section(chip(bus, 0x20), 4096, 28*1024)
		if err != nil {
			panic(err)
		}
		c.Store.Medium = section
	} else {
		c.Store.Medium = chip(bus, 0x57)
	}
	if c.Switch != nil {
		c.Switch = leashedSwitch{c.Switch, w.leash}
	}
	return c
}

// run lets the agent's poller run.
func (w *witness) run() {
	ctx, cancel := context.WithCancel(w.r.Ctx())
	w.stop = cancel
	w.ended = make(chan error, 1)
	go func(e *enclosure.Enclosure, ended chan error) {
		defer func() {
			if p := recover(); p != nil {
				w.wrong("panic in the poller: %v", p)
				ended <- errGiveUp
			}
		}()
		ended <- e.Run(ctx)
	}(w.r.E, w.ended)
}

// kill is SIGKILL.
func (w *witness) kill() {
	w.leash.cut.Store(true)
	w.stop()
	w.r.Stop()
	<-w.ended
}

// restart starts another agent after kill.
func (w *witness) restart(l life, sameBoot bool) {
	w.leash = &leash{}
	w.r.Config = w.leashed(l.shared)
	w.r.Start(enclosure.Options{SameBoot: sameBoot})
	w.run()
}

func (w *witness) step(l life, s step) {
	start := w.r.W.Now()
	before := w.statuses()
	allowed := map[string]map[string]bool{}
	for _, n := range lifeSlots {
		allowed[n] = map[string]bool{before[n].Host: true}
	}
	taken := 0
	for _, a := range []action{s.do, s.mid} {
		switch a.what {
		case "attach", "start", "move", "move-reset", "stuck-move":
			for _, n := range slotsOf(a.mask) {
				allowed[n][lifeHosts[a.host]] = true
			}
			if w.there(a, before) {
				continue
			}
			w.apart(slotsOf(a.mask))
			if taken&a.mask == 0 {
				w.opened(a, before)
			}
			taken |= a.mask
		case "release-hold", "release-free", "fence", "adopt", "resolve", "force-free", "drain-release":
			w.sets = nil
		case "drain":
			w.sets = nil
			for _, n := range lifeSlots {
				allowed[n][lifeHosts[a.mask%3]] = true
			}
		}
	}
	w.undone = map[string]string{}

	w.surprised = slices.ContainsFunc([]string{s.do.what, s.mid.what}, func(what string) bool { return what == "engine-restart" || what == "swap-engine" })
	w.disturbed = s.mid.what != ""
	if s.mid.what == "" {
		w.act(l, s.do)
	} else {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				if p := recover(); p != nil && p != errGiveUp {
					w.wrong("panic: %v", p)
				}
			}()
			w.act(l, s.do)
		}()
		time.Sleep(s.when)
		w.note("  under way: %s", s.mid)
		switch s.mid.what {
		case "power-cut":
			w.r.W.SetTear(sim.Tear{Kind: sim.TearKind(s.mid.n % sim.TearKinds), Seed: uint64(s.when), Unstable: s.mid.mask - 1})
			w.r.W.PowerCut()
			w.kill()
			<-done
			w.powerUp(l)
		case "kill-agent":
			w.kill()
			<-done
			w.restart(l, true)
		default:
			w.act(l, s.mid)
			<-done
		}
	}
	w.revive(l)
	time.Sleep(5 * time.Millisecond) // longer than links take to come up

	after := w.statuses()
	for _, iv := range w.r.W.Reach() {
		if !iv.Open && iv.To <= start {
			continue
		}
		if !allowed[iv.Slot][iv.Server] && iv.Server != after[iv.Slot].Host && before[iv.Slot].Cut != "unconfirmed" {
			w.wrong("one owner: %s reached %s %v..%v; the records gave it to %q before and %q after", iv.Server, iv.Slot, iv.From, iv.To, before[iv.Slot].Host, after[iv.Slot].Host)
		}
		if at, fenced := w.fencedAt[iv.Server]; fenced && iv.To > at {
			w.wrong("fencing: %s, fenced at %v, reached %s %v..%v", iv.Server, at, iv.Slot, iv.From, iv.To)
		}
		if w.undone[iv.Slot] == iv.Server && iv.From > start {
			w.wrong("together: %s reached %s at %v by a move that was undone", iv.Server, iv.Slot, iv.From)
		}
	}
	for _, n := range lifeSlots {
		w.checkSet(n, after)
	}
}

// there tells whether all of a set is where it is to go.
func (w *witness) there(a action, before map[string]enclosure.SlotStatus) bool {
	for _, n := range slotsOf(a.mask) {
		if before[n].Host != lifeHosts[a.host] {
			return false
		}
	}
	return true
}

// apart ends the watch on sets that any of slots is in.
func (w *witness) apart(slots []string) {
	w.sets = slices.DeleteFunc(w.sets, func(s set) bool {
		return slices.ContainsFunc(s.slots, func(n string) bool { return slices.Contains(slots, n) })
	})
}

// opened begins to watch a set that is to be moved as one.
func (w *witness) opened(a action, before map[string]enclosure.SlotStatus) {
	s := set{by: a, slots: slotsOf(a.mask), before: map[string]string{}, to: lifeHosts[a.host]}
	for _, n := range s.slots {
		s.before[n] = before[n].Host
	}
	w.sets = append(w.sets, s)
}

// refused ends the watch on a set that was refused: it was never one.
func (w *witness) refused(a action, err error) {
	var known *enclosure.Error
	if errors.As(err, &known) && known.Code != enclosure.CodeStore && known.Code != enclosure.CodeInternal && !strings.HasPrefix(known.State, "the move is ") {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.sets = slices.DeleteFunc(w.sets, func(s set) bool { return s.by == a })
	}
}

// checkSet: a set is where it was, where it was to go, or held; all of it.
func (w *witness) checkSet(slot string, now map[string]enclosure.SlotStatus) {
	for _, s := range w.sets {
		if s.slots[0] != slot {
			continue
		}
		same, there, held := true, true, true
		at := map[string]string{}
		for _, n := range s.slots {
			at[n] = now[n].Host
			same = same && now[n].Host == s.before[n]
			there = there && now[n].Host == s.to
			held = held && now[n].Host == ""
			if now[n].Host != s.before[n] && now[n].Host != s.to && now[n].Host != "" {
				// This set never came to be, and the move that brought the slot
				// where it was before, of which nobody was seen to make use, was
				// undone.
				w.apart([]string{n})
				return
			}
		}
		if !same && !there && !held {
			w.wrong("together: a set was with %v, was to go to %s, and is split: %v", s.before, s.to, at)
		}
	}
}

func (w *witness) powerUp(l life) {
	time.Sleep(time.Second)
	w.r.W.PowerOn()
	time.Sleep(50 * time.Millisecond)
	w.restart(l, false)
}

// revive starts the agent again where it has ended by itself, as its service
// manager does.
func (w *witness) revive(l life) {
	for range 5 {
		st := w.r.E.Status(w.r.Ctx()).Store
		if st.OK {
			return
		}
		w.note("  the agent's store: %s", st.Problem)
		time.Sleep(time.Second)
		w.kill()
		w.restart(l, true)
	}
	w.wrong("the store does not come back")
}

func (w *witness) statuses() map[string]enclosure.SlotStatus {
	m := map[string]enclosure.SlotStatus{}
	for _, s := range w.r.E.Status(w.r.Ctx()).Slots {
		m[s.Name] = s
	}
	return m
}

func (w *witness) fenced() map[string]bool {
	m := map[string]bool{}
	for _, h := range w.r.E.Status(w.r.Ctx()).Hosts {
		m[h.Name] = h.Fenced
	}
	return m
}

// act does one action.
func (w *witness) act(l life, a action) {
	vm, host, slots := lifeVMs[a.vm], lifeHosts[a.host], slotsOf(a.mask)
	srv := w.r.W.Server(host)
	ctx := w.r.Ctx()
	e := w.r.E
	bus := w.r.W.Bus(lifeBuses[a.n%max(1, l.buses)])
	one := lifeSlots[a.n%3]
	switch a.what {
	case "attach", "start":
		at, err := e.Attach(ctx, enclosure.AttachRequest{VM: vm, Host: host, Slots: slots, Wait: 500 * time.Millisecond, By: host})
		w.note("  %s: %s moved %v, %v", a.what, at.State, at.Moved, err)
		w.refused(a, err)
		if err != nil {
			return
		}
		for _, n := range slots {
			w.mu.Lock()
			w.nonces[n+host+vm] = at.Nonce
			w.mu.Unlock()
			if !w.disturbed {
				w.believe(n, vm, at.Memory[n], w.r.W.Now()-burst)
			}
		}
		if a.what == "start" {
			w.act(l, action{"boot", a.vm, a.host, a.mask, a.n})
			w.act(l, action{"ack", a.vm, a.host, a.mask, a.n})
			w.act(l, action{"alive", a.vm, a.host, a.mask, a.n})
		}
	case "boot":
		w.boot(l, vm, host)
	case "ack":
		for _, n := range slots {
			v, read, err := w.verdict(n)
			if err != nil || !srv.HoldsDevice(vm, n) {
				continue
			}
			at := w.r.W.Now() // it runs: what comes from here on counts
			w.believe(n, w.vmOf(n), v, read)
			w.mu.Lock()
			nonce := w.nonces[n+host+vm]
			w.mu.Unlock()
			err = e.Ack(ctx, enclosure.AckRequest{Slot: n, Nonce: nonce, Gen: w.genOf(n), Seen: v.Now, By: host})
			w.note("  ack %s: %v", n, err)
			w.mu.Lock()
			known := w.acked[n]
			if taken(err) && !(known.nonce == nonce && known.sure) {
				w.acked[n] = ack{nonce, err == nil && known.nonce != nonce}
			}
			w.mu.Unlock()
			switch {
			case known.nonce != nonce:
				w.proved(n, vm, at, err)
			case !known.sure: // it may be a repeat, which proves nothing new
				w.proved(n, vm, at, errKilled)
			}
		}
	case "alive":
		for _, n := range slots {
			v, _, err := w.verdict(n)
			at := w.r.W.Now()
			if err != nil || !srv.HoldsDevice(vm, n) || w.hostOf(n) != host || w.vmOf(n) != vm {
				continue
			}
			err = e.Alive(ctx, enclosure.AliveRequest{Slot: n, Gen: w.genOf(n), Seen: v.Now, By: host})
			w.note("  alive %s: %v", n, err)
			w.proved(n, vm, at, err)
		}
	case "arm", "arm-blind":
		q := enclosure.ArmRequest{Slot: one, ID: rig.UUID(byte(100 + a.n)), Gen: w.genOf(one), By: "test"}
		var at time.Duration
		if a.what == "arm" {
			v, _, err := w.verdict(one)
			at = w.r.W.Now()
			if err != nil || !srv.HoldsDevice(vm, one) || w.hostOf(one) != host || w.vmOf(one) != vm {
				return
			}
			q.Seen = &v.Now
		}
		got, err := e.Arm(ctx, q)
		w.note("  %s %s: %+v, %v", a.what, one, got, err)
		if a.what == "arm" && (err != nil || got.Flag == plan.Armed && got.ID == q.ID) {
			w.proved(one, vm, at, err)
		}
	case "disarm":
		err := e.Disarm(ctx, one, rig.UUID(byte(100+a.n)), "test")
		w.note("  disarm %s: %v", one, err)
	case "move", "move-reset", "stuck-move":
		if a.what == "stuck-move" { // one engine takes a few writes, and then none for a while
			i := a.n % 3
			w.r.W.Bus(lifeBuses[i%max(1, l.buses)]).Inject(sim.Fault{Kind: sim.NACKAddr, Addr: uint16(0x60 + i), Only: sim.WriteOp, Skip: 1 + a.n%3, For: time.Duration(1+a.n*a.n) * time.Second})
		}
		w.moveNo++
		q := enclosure.MoveRequest{ID: rig.UUID(byte(w.moveNo)), VM: vm, To: host, Slots: slots, Preserve: a.what != "move-reset", Wait: 500 * time.Millisecond, By: "test"}
		m, err := e.Move(ctx, q)
		w.note("  %s: %s %s, %v", a.what, m.State, m.Reason, err)
		w.refused(a, err)
		for _, n := range m.Slots {
			if m.State == enclosure.MoveUndone && m.From != host {
				w.mu.Lock()
				w.undone[n] = host
				w.mu.Unlock()
			}
		}
		for n, v := range m.Memory {
			if !w.disturbed {
				w.believe(n, vm, v, w.r.W.Now()-burst)
			}
		}
	case "release-keep", "release-hold", "release-free":
		mode := enclosure.ReleaseMode(strings.TrimPrefix(a.what, "release-"))
		err := e.Release(ctx, enclosure.ReleaseRequest{VM: vm, Slots: slots, Mode: mode, By: host})
		w.note("  %s: %v", a.what, err)
	case "fence":
		f, err := e.Fence(ctx, host, "test")
		w.note("  fence: %+v, %v", f, err)
		if err == nil {
			w.mu.Lock()
			w.fencedAt[host] = w.r.W.Now()
			w.mu.Unlock()
		}
	case "unfence":
		w.mu.Lock()
		delete(w.fencedAt, host)
		w.mu.Unlock()
		err := e.Unfence(ctx, host, w.r.Host(host).Epoch, "test")
		w.note("  unfence: %v", err)
	case "adopt":
		w.adopt(one)
	case "resolve":
		id := rig.UUID(byte(a.n))
		for _, m := range e.Status(ctx).Moves {
			if m.State == enclosure.MoveBlocked {
				id, slots = m.ID, m.Slots[:1+a.n%max(1, len(m.Slots)-1)]
			}
		}
		m, err := e.Resolve(ctx, id, slots, "test")
		w.note("  resolve without %v: %s %s, %v", slots, m.State, m.Reason, err)
	case "force-free":
		w.forceFree(one)
	case "reset-device":
		err := e.Reset(ctx, enclosure.ResetRequest{Slot: one, Gen: w.genOf(one), By: "test"})
		w.note("  reset %s: %v", one, err)
	case "power-off-device", "power-on-device", "power-cycle-device":
		w.power(one, enclosure.PowerState(strings.TrimSuffix(strings.TrimPrefix(a.what, "power-"), "-device")))
	case "locate":
		err := e.Locate(ctx, one, a.mask&1 != 0, "test")
		w.note("  locate %s: %v", one, err)
	case "drain", "drain-release":
		w.moveNo++
		q := enclosure.DrainRequest{ID: ee.UUID{0: 0xD, 15: byte(w.moveNo)}, Host: host, Wait: 500 * time.Millisecond, By: "test"}
		if a.what == "drain" {
			q.To = lifeHosts[a.mask%3]
		} else {
			q.Release = []enclosure.ReleaseMode{enclosure.ReleaseHold, enclosure.ReleaseFree}[a.n%2]
		}
		d, err := e.Drain(ctx, q)
		w.note("  drain %s to %q: %+v, %v", host, q.To, d, err)
		if err == nil && d.Done != (len(d.Left) == 0) {
			w.wrong("drain: %+v", d)
		}
	case "swap-engine":
		w.r.W.Slot(one).Kill()
		m := w.r.W.Spec().Slots[a.n%3].MAC
		m[4] = byte(a.mask % 4) // 0 = its own, as it was made
		w.r.W.Slot(one).SetEngine(ee.EngineID, m)
		w.setDead(one, true)
		w.revived(one)
	case "swap-card":
		d := w.card(one)
		d.Serial += uint64(a.mask % 4)
		w.r.W.Slot(one).InsertDevice(d)
	case "swap-chip":
		w.flipped = true
		pages := [][]byte{image(64, all(0xFF)), image(64, text), w.r.W.Chip(lifeSlots[a.mask%3]).Peek(0, 64),
			ee.Block{Group: rig.GroupB, From: ee.GroupFree, Generation: ee.Generation{Incarnation: 99, Counter: 99}, VM: rig.UUID(77)}.Encode()}
		w.r.W.Chip(one).Poke(0, pages[a.host+a.vm])
	case "guest-reboot":
		srv.GuestReboot(vm)
	case "stop-vm":
		srv.StopVM(vm)
	case "kill-qemu":
		srv.KillQEMU(vm)
	case "hang":
		srv.Hang()
	case "resume":
		srv.Resume()
	case "power-loss":
		srv.PowerLoss()
	case "power-on":
		srv.PowerOn()
	case "panic":
		srv.PanicReboot()
	case "link-loss":
		srv.LinkLoss()
	case "link-restore":
		srv.LinkRestore()
	case "reset":
		srv.Reset(one)
	case "engine-restart":
		w.r.W.Slot(one).Restart()
	case "engine-dies":
		w.r.W.Slot(one).Kill()
		w.setDead(one, true)
	case "engine-replaced":
		w.revived(one)
	case "pull-device":
		w.r.W.Slot(one).RemoveDevice()
	case "insert-device":
		w.insert(one)
	case "flip-block":
		w.flipped = true
		w.r.W.Chip(one).FlipBit(int64(a.mask*8+a.n%8), uint(a.vm*3+a.host))
	case "chip-dies":
		if !l.shared || one != "gpu0" {
			w.r.W.Chip(one).SetDead(true)
		}
	case "chip-back":
		w.r.W.Chip(one).SetDead(false)
	case "stale-group":
		if l.lacks&ee.CapExpectPeer == 0 {
			srv.SetGroup(uint16(rig.GroupA + a.n%3))
		}
	case "right-group":
		srv.SetGroup(uint16(rig.GroupA + a.host))
	case "agent-restart":
		w.kill()
		w.restart(l, true)
	case "power-cycle":
		w.r.W.PowerCut()
		w.kill()
		w.powerUp(l)
	case "nack", "nack-data", "arbitration":
		f := sim.Fault{Kind: sim.NACKAddr, Addr: []uint16{0x20, 0x21, 0x22, 0x57, 0x60, 0x61, 0x62, 0}[a.mask], For: time.Duration(1+a.n*a.n) * time.Millisecond}
		switch a.what {
		case "nack-data":
			f.Kind, f.Only, f.Byte = sim.NACKData, sim.WriteOp, 4
		case "arbitration":
			f.Kind, f.For, f.Count = sim.ArbitrationLost, 0, 1+a.n
		}
		bus.Inject(f)
	case "ignore":
		w.r.W.Slot(one).IgnoreControl(1 + a.n)
	case "wait":
		time.Sleep([]time.Duration{time.Second, 3 * time.Second, 20 * time.Second, 90 * time.Second}[a.n%4])
	default:
		panic("no action " + a.what)
	}
}

func (w *witness) setDead(slot string, dead bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead[slot] = dead
}

// revived puts an engine back that died.
func (w *witness) revived(slot string) {
	w.mu.Lock()
	dead := w.dead[slot]
	w.mu.Unlock()
	if dead {
		w.r.W.Slot(slot).Revive()
		w.setDead(slot, false)
	}
}

// insert puts a slot's own device back, where it was pulled.
func (w *witness) insert(slot string) {
	if regs := w.r.W.Slot(slot).Registers(); regs[ee.RegVendor] == 0xFF {
		w.r.W.Slot(slot).InsertDevice(w.card(slot))
	}
}

// card is a slot's own device.
func (w *witness) card(slot string) sim.Device {
	s := w.r.W.Spec().Slots[slices.Index(lifeSlots, slot)]
	return sim.Device{Vendor: s.Vendor, Device: s.Device, Class: s.Class, Serial: s.Serial}
}

// adopt looks at a slot's parts and adopts them: it comes back with nobody.
func (w *witness) adopt(slot string) enclosure.Code {
	a, err := w.r.E.AdoptionOf(w.r.Ctx(), slot)
	if err == nil {
		a, err = w.r.E.Adopt(w.r.Ctx(), slot, a.Token, "test")
	}
	w.note("  adopt %s: %v, %v", slot, a.Adopted, err)
	if err == nil && !w.disturbed {
		if s := w.r.SlotStatus(slot); s.Host != "" || s.Flag != plan.Void || s.Memory.Preserved == plan.Yes || s.Problem != "" && w.r.W.Slot(slot).State().Status != 0 {
			w.wrong("adopted: %+v", s)
		}
	}
	return rig.Code(err)
}

func (w *witness) forceFree(slot string) {
	err := w.r.E.ForceFree(w.r.Ctx(), slot, slot, "test")
	w.note("  force-free %s: %v", slot, err)
	if w.disturbed || err != nil && rig.Code(err) != enclosure.CodeUnconfirmed {
		return
	}
	s := w.r.SlotStatus(slot)
	if s.Host != "" || s.VM != "" || s.Memory.Preserved == plan.Yes || (s.Cut == "confirmed") != (err == nil) {
		w.wrong("forced free (%v): %+v", err, s)
	}
	if srv := w.r.W.Slot(slot).State().Reacher; err == nil && srv != "" {
		w.wrong("forced free, its cut confirmed, and %s reaches %s", srv, slot)
	}
}

// power switches a device's power and keeps in mind that somebody did.
func (w *witness) power(slot string, state enclosure.PowerState) {
	w.mu.Lock()
	was := w.off[slot]
	w.off[slot] = was || state != enclosure.PowerOn
	w.mu.Unlock()
	err := w.r.E.Power(w.r.Ctx(), enclosure.PowerRequest{Slot: slot, Gen: w.genOf(slot), State: state, By: "test"})
	w.note("  power %s %s: %v", state, slot, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.off[slot] = state == enclosure.PowerOff
	case !taken(err):
		w.off[slot] = was
	}
}

// boot starts a VM with what it has on a host, and looks whose memory it finds.
func (w *witness) boot(l life, vm, host string) {
	srv := w.r.W.Server(host)
	var have []string
	for _, n := range w.r.Slots(vm, host) {
		if srv.Reach(n) {
			have = append(have, n)
		}
	}
	if len(have) == 0 || slices.Contains(srv.VMs(), vm) {
		return
	}
	for _, n := range have {
		var p [1]byte
		if srv.ReadMem(n, 0, p[:]) == nil && p[0] != 0 && p[0] != marker(vm) && l.lacks&ee.CapDeviceReset == 0 {
			w.wrong("old tenant: %s on %s finds what VM %d left in %s", vm, host, p[0], n)
		}
	}
	err := srv.StartVM(vm, have, sim.VMOptions{})
	w.note("  boot %s on %s with %v: %v", vm, host, have, err)
	if err != nil {
		return
	}
	for _, n := range have {
		srv.WriteMem(n, 0, []byte{marker(vm)})
	}
}

// marker is what a VM has in its devices' memory.
func marker(vm string) byte { return byte(1 + slices.Index(lifeVMs, vm)) }

func (w *witness) vmOf(slot string) string         { return w.r.SlotStatus(slot).VM }
func (w *witness) hostOf(slot string) string       { return w.r.SlotStatus(slot).Host }
func (w *witness) genOf(slot string) ee.Generation { return w.r.Gen(slot) }

// verdict takes a slot's verdict, and the instant of what it says: the engine
// latches its words when the burst is addressed, just before the answer.
func (w *witness) verdict(slot string) (v plan.Verdict, at time.Duration, err error) {
	time.Sleep(time.Microsecond) // an instant of its own
	v, err = w.r.E.Verdict(w.r.Ctx(), slot)
	return v, w.r.W.Now() - burst, err
}

// burst is what a reading of the live registers takes: 228 bits at 400 kHz.
const burst = 570 * time.Microsecond

// taken tells whether a request may have had an effect, whatever it says.
func taken(err error) bool {
	switch rig.Code(err) {
	case "", enclosure.CodeHardware, enclosure.CodeStore, enclosure.CodeInternal:
		return true
	}
	return false
}

// proved notes that a VM was known to run, if the agent may have taken it so.
func (w *witness) proved(slot, vm string, at time.Duration, err error) {
	if taken(err) {
		w.mu.Lock()
		w.proofs[slot] = append(w.proofs[slot], proof{vm, at, err == nil})
		w.mu.Unlock()
	}
}

// believe: a yes is never said of a memory that something reached between the
// instant at which its VM was last known to run and that at which the agent was
// asked.
func (w *witness) believe(slot, vm string, v plan.Verdict, asked time.Duration) {
	if v.Preserved != plan.Yes {
		return
	}
	if _, kept := w.kept(slot, vm, asked, false); !kept {
		w.wrong("flag: yes for %s of %s (%+v), but it was not kept since it was last known to run (%+v): %+v", slot, vm, v, w.proofs[slot], w.r.W.Resets(slot))
	}
}

// kept tells whether nothing reached the device from an instant at which the VM
// was known to run with it until another.
func (w *witness) kept(slot, vm string, until time.Duration, sure bool) (since time.Duration, kept bool) {
	resets, losses := w.r.W.Resets(slot), w.r.W.PowerLosses(slot)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.proofs[slot] {
		within := func(at time.Duration) bool { return p.at <= at && at < until }
		if p.vm == vm && (p.sure || !sure) && !slices.ContainsFunc(losses, within) &&
			!slices.ContainsFunc(resets, func(r sim.Reset) bool { return !r.Swallowed && within(r.At) }) {
			return p.at, true
		}
	}
	return 0, false
}

// shy: where the engine saw nothing since the VM was last known to run, the
// answer is not no.
func (w *witness) shy(slot, vm string, s enclosure.SlotStatus, v plan.Verdict) {
	if v.Preserved != plan.No || w.r.W.Slot(slot).State().Status&ee.StatDevice == 0 {
		return
	}
	for _, other := range []plan.Reason{plan.WhyForeignPeer, plan.WhyOperator, plan.WhyStoreLost, plan.WhyReplaced} {
		if s.FlagReason == other.String() {
			return
		}
	}
	if at, kept := w.kept(slot, vm, w.r.W.Now(), true); kept {
		w.wrong("shy: %s for %s of %s (%s), but nothing reached it since %v", v.Preserved, slot, vm, v.Reason, at)
	}
}

// checkMemory: whoever reaches a device finds the memory of the VM that it
// belongs to, or none.
func (w *witness) checkMemory(now map[string]enclosure.SlotStatus) {
	for _, n := range lifeSlots {
		for _, h := range lifeHosts {
			var p [1]byte
			if w.r.W.Server(h).ReadMem(n, 0, p[:]) != nil || p[0] == 0 {
				continue
			}
			if now[n].Cut == "unconfirmed" {
				continue // who had it may still have it, and that is said
			}
			if vm := now[n].VM; vm == "" || p[0] != marker(vm) {
				w.wrong("old tenant: %s reads what VM %d left in %s, which is %q's", h, p[0], n, vm)
			}
		}
	}
}

// check looks at the world between two steps.
func (w *witness) check(l life) {
	now := w.statuses()
	fenced := w.fenced()
	for _, n := range lifeSlots {
		s := now[n]
		line := fmt.Sprintf("with %q (%s) for %q, generation %d, flag %s, cut %q, link %s, problem %q, blocked %q", s.Host, w.r.W.Slot(n).State().Reacher, s.VM, s.Generation.Counter, s.Flag, s.Cut, s.Link, s.Problem, s.Blocked)
		if w.said[n] != line {
			w.note("  %s: %s", n, line)
			w.said[n] = line
		}
		model := w.r.W.Slot(n).State()
		reacher := model.Reacher
		if model.Control&ee.CtlPower == 0 && !w.dead[n] && !w.off[n] {
			w.wrong("power: the agent took the power of %s's device", n)
		}
		if reacher != "" && reacher != s.Host && s.Cut != "unconfirmed" {
			w.wrong("one owner: %s reaches %s, which is with %q", reacher, n, s.Host)
		}
		if reacher != "" && fenced[reacher] && s.Cut != "unconfirmed" {
			w.wrong("fencing: %s is fenced and reaches %s", reacher, n)
		}
		if s.Generation.Counter < w.last[n] {
			w.wrong("generation of %s went back from %d to %d", n, w.last[n], s.Generation.Counter)
		}
		w.last[n] = s.Generation.Counter
		v, at, err := w.verdict(n)
		if err != nil {
			w.wrong("verdict of %s: %v", n, err)
		}
		w.believe(n, s.VM, v, at)
		if l.lacks&ee.CapDeviceReset == 0 { // else a memory outlives the VM's right to it
			w.shy(n, s.VM, s, v)
		}
	}
	if l.lacks&ee.CapDeviceReset == 0 {
		w.checkMemory(now)
	}
	for _, h := range lifeHosts {
		if l.lacks&ee.CapQuiesce != 0 {
			break
		}
		if k := w.r.W.Server(h).StrayDMA(); k > 0 {
			w.wrong("stray DMA: %d writes into %s", k, h)
		}
	}
	for _, n := range lifeSlots {
		if k := w.r.W.MaxOwners(n); k > 1 {
			w.wrong("one owner: %d servers reached %s at the same instant", k, n)
		}
	}
	all := w.r.W.Violations()
	for _, v := range all[w.judged:] {
		if w.surprised && strings.Contains(v.What, "while the engine of") {
			continue // it restarted by itself, and nobody could know yet
		}
		w.wrong("%v: %s: %s", v.At, v.Name, v.What)
	}
	w.judged = len(all)
}

// mend does by hand what does not come right by itself: parts that are not those
// the agent knows are adopted, devices get power.
func (w *witness) mend() bool {
	did := false
	for _, n := range lifeSlots {
		s := w.r.SlotStatus(n)
		if s.Problem != "" {
			did = true
			code := w.adopt(n)
			if code == enclosure.CodeWrongState { // one of a set
				w.forceFree(n)
				code = w.adopt(n)
			}
			if code != "" {
				w.wrong("the end: %s: %s can not be adopted: %s", n, s.Problem, code)
			}
		}
		if s = w.r.SlotStatus(n); s.Power == "off" {
			did = true
			w.power(n, enclosure.PowerOn)
		}
	}
	if did {
		time.Sleep(2 * time.Minute) // fences that waited for them, and blocked sets
	}
	return did
}

// end: when all faults are over, everything comes right and can be used.
func (w *witness) end(l life) {
	w.note("the end: faults over, everybody comes back")
	for _, b := range lifeBuses[:max(1, l.buses)] {
		w.r.W.Bus(b).ClearFaults()
	}
	for i, n := range lifeSlots {
		w.r.W.Slot(n).IgnoreControl(0)
		w.revived(n)
		w.insert(n)
		w.r.W.Chip(n).SetDead(false)
		w.r.W.Server(lifeHosts[i]).SetGroup(uint16(rig.GroupA + i))
	}
	for _, h := range lifeHosts {
		w.r.W.Server(h).PowerOn()
		w.r.W.Server(h).LinkRestore()
		w.r.W.Server(h).Resume()
	}
	time.Sleep(3 * time.Minute)
	w.revive(l)
	w.disturbed = false
	for range 3 { // a blocked set names what is in its way one after the other
		if !w.mend() {
			break
		}
	}
	w.check(l)
	for n, s := range w.statuses() {
		if s.Problem != "" || s.Blocked != "" || s.Cut == "unconfirmed" {
			w.wrong("the end: %s: problem %q, blocked %q, cut %q", n, s.Problem, s.Blocked, s.Cut)
		}
	}
	type counts struct{ pages, regs uint64 }
	count := func() map[string]counts {
		m := map[string]counts{}
		for _, c := range w.r.W.Spec().Chips {
			m[c.Name] = counts{pages: w.r.W.PageWrites(c.Name)}
		}
		for _, n := range lifeSlots {
			m[n] = counts{m[n].pages, w.r.W.Slot(n).RegisterWrites()}
		}
		return m
	}
	if w.flipped { // only a start reads the pages
		w.kill()
		w.restart(l, true)
		time.Sleep(20 * time.Millisecond)
	}
	before := count()
	w.kill()
	w.restart(l, true)
	time.Sleep(20 * time.Millisecond)
	if now := count(); !maps.Equal(now, before) {
		w.wrong("the end: a restart wrote something: %v before, %v after", before, now)
		w.events()
	}
	ctx := w.r.Ctx()
	w.fencedAt = map[string]time.Duration{}
	for _, h := range lifeHosts {
		if err := w.r.E.Unfence(ctx, h, w.r.Host(h).Epoch, "test"); err != nil {
			w.wrong("the end: unfence %s: %v", h, err)
		}
	}
	for _, vm := range lifeVMs {
		for _, n := range lifeSlots {
			if w.vmOf(n) != vm {
				continue
			}
			if err := w.r.E.Release(ctx, enclosure.ReleaseRequest{VM: vm, Slots: []string{n}, Mode: enclosure.ReleaseFree}); err != nil {
				w.wrong("the end: release %s: %v", n, err)
			}
		}
	}
	at, err := w.r.E.Attach(ctx, enclosure.AttachRequest{VM: rig.VM2, Host: rig.C, Wait: time.Second})
	if err != nil || at.State != enclosure.MoveDone {
		w.wrong("the end: attach: %s, %v", at.State, err)
	}
	time.Sleep(5 * time.Millisecond)
	w.check(l)
}
