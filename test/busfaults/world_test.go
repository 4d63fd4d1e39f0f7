package busfaults

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"periph.io/x/conn/v3/i2c"

	"baton/ee/bus"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/nvm"
	"baton/sim"
	"baton/test/rig"
)

// cell is a world in which one operation meets one fault.
type cell struct {
	*rig.Rig
	t      *testing.T
	target target
	fault  fault
	since  time.Duration // VM1 was proven alive
	errs   []error       // of what was asked, to be looked at by checkNamed
}

// inCell runs f in a world as fault_test.go draws it: VM1 runs on A and was
// proven alive, VM2 has its slots on B. Buses have owners, as batond gives them.
func inCell(t *testing.T, ft fault, tg target, f func(c *cell)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var owned []*bus.Owned
		r := rig.New(t, rig.Options{Slots: 4, Buses: 2, Config: func(cfg *enclosure.Config) {
			buses := map[string]i2c.Bus{}
			own := func(b i2c.Bus) i2c.Bus {
				if buses[b.String()] == nil {
					o := bus.Own(b, 0)
					owned = append(owned, o)
					buses[b.String()] = o
				}
				return buses[b.String()]
			}
			for i := range cfg.Slots {
				s := &cfg.Slots[i]
				s.Bus = own(s.Bus)
				s.Medium = nvm.NewEEPROM(s.Bus, uint16(0x20+i), nvm.Parts[s.Part])
			}
			cfg.Store.Medium = nvm.NewEEPROM(buses["bus0"], 0x57, nvm.Parts[cfg.Store.Part])
		}})
		defer func() {
			r.Stop()
			for _, o := range owned {
				for o.Close() != nil { // it waits for a transfer that does not come back
					time.Sleep(time.Second)
				}
			}
		}()
		c := &cell{Rig: r, t: t, target: tg, fault: ft}
		r.StartVM(rig.VM1, rig.A, ours, faulty)
		for _, n := range []string{ours, faulty} {
			if err := r.Alive(rig.VM1, rig.A, n); err != nil {
				t.Fatal(err)
			}
		}
		c.since = r.W.Now()
		r.StartVM(rig.VM2, rig.B, elseSlot, sameBus)
		r.Run()
		f(c)
		c.checkModel()
		c.checkTogether()
	})
}

// checkTogether fails the test where one slot of VM1's set reached one host
// while the other reached another, at any instant.
func (c *cell) checkTogether() {
	c.t.Helper()
	var a, b []sim.Interval
	for _, iv := range c.W.Reach() {
		if iv.Open {
			iv.To = 1 << 62
		}
		switch iv.Slot {
		case ours:
			a = append(a, iv)
		case faulty:
			b = append(b, iv)
		}
	}
	for _, x := range a {
		for _, y := range b {
			if x.Server != y.Server && x.From < y.To && y.From < x.To {
				c.t.Errorf("half moved: %s with %s from %v to %v, %s with %s from %v to %v", ours, x.Server, x.From, x.To, faulty, y.Server, y.From, y.To)
			}
		}
	}
}

// checkUntouched fails the test where anybody but the slot with the fault has
// lost, or got, a link since before.
func (c *cell) checkUntouched(before []sim.Interval) {
	c.t.Helper()
	links := func(ivs []sim.Interval) (n int) {
		for _, iv := range ivs {
			if iv.Slot != faulty {
				n++
				if iv.Open {
					n += 1000
				}
			}
		}
		return n
	}
	if now := c.W.Reach(); links(now) != links(before) {
		c.t.Errorf("a start of the agent changed links of slots without a fault: %+v, before %+v", now, before)
	}
}

// said keeps an error for named, and returns how a table writes it.
func (c *cell) said(err error, well string) string {
	if err == nil {
		return well
	}
	c.errs = append(c.errs, err)
	return string(rig.Code(err))
}

// checkModel is rig's Check, but for what this fault may do to the model.
func (c *cell) checkModel() {
	c.t.Helper()
	for _, s := range c.W.Spec().Slots {
		if n := c.W.MaxOwners(s.Name); n > 1 {
			c.t.Errorf("%s: %d servers could reach the device at the same instant", s.Name, n)
		}
	}
	for _, v := range c.W.Violations() {
		if c.fault.tolerated == "" || !strings.Contains(v.What, c.fault.tolerated) {
			c.t.Errorf("%v: %s: %s", v.At, v.Name, v.What)
		}
	}
}

// checkNamed fails the test where an error does not say which slot, where on
// which bus, and what to do next; and where a slot that can not be used says
// anything but unknown of its link and its memory.
func (c *cell) checkNamed() {
	c.t.Helper()
	for _, err := range c.errs {
		var known *enclosure.Error
		if !errors.As(err, &known) {
			c.t.Errorf("%v: not an *enclosure.Error", err)
			continue
		}
		if known.Next == "" {
			c.t.Errorf("%v: does not say what to do next", err)
		}
		if c.fault.holds && known.Code == enclosure.CodeHardware && !strings.Contains(known.Next, "kernel driver") {
			c.t.Errorf("%v: does not say who clocks the bus free, but %q", err, known.Next)
		}
		c.named(faulty, err.Error())
	}
	st := c.E.Status(c.Ctx())
	for _, s := range st.Slots {
		if s.Problem != "" {
			c.named(s.Name, s.Problem)
		}
		if s.Blocked != "" {
			c.named(faulty, s.Blocked) // also where it is another slot of the set
		}
		if s.Problem != "" && (s.Link != "unknown" || s.Memory.Preserved != plan.Unknown) {
			c.t.Errorf("%s can not be used (%s), but its link is %s and its memory %s", s.Name, s.Problem, s.Link, s.Memory.Preserved)
		}
		if vm1s(s.Name) && s.Memory.Preserved == plan.Yes && !c.W.MemoryIntactSince(s.Name, c.since) {
			c.t.Errorf("%s: verdict yes, and the model saw its memory go", s.Name)
		}
	}
	if !st.Store.OK && !strings.Contains(st.Store.Problem, "bus0/0x57") {
		c.t.Errorf("%q does not name the store's chip", st.Store.Problem)
	}
}

func vm1s(slot string) bool { return slot == ours || slot == faulty }

// checkSaid fails the test where a slot is not as its records have it, by the
// model, and the agent does not say so.
func (c *cell) checkSaid() {
	c.t.Helper()
	st := c.E.Status(c.Ctx())
	for _, s := range st.Slots {
		host := s.Host
		if host == "" {
			host = "-"
		}
		if got := c.reach(s.Name); st.Store.OK && got != host && s.Problem+s.Blocked == "" && s.Cut != "unconfirmed" {
			c.t.Errorf("%s is with %q by its records, reached by %s, and nothing says so", s.Name, s.Host, got)
		}
	}
}

// named fails the test where text names neither slot nor part. Where a bus is
// held, all its parts are.
func (c *cell) named(slot, text string) {
	c.t.Helper()
	where := c.target.where()
	if c.fault.holds {
		where = c.target.bus
	}
	if !strings.Contains(text, where) {
		c.t.Errorf("%q does not name %s", text, where)
	}
	if c.target != store && !strings.Contains(text, slot) {
		c.t.Errorf("%q does not name %s", text, slot)
	}
}

// reach tells whom the model lets reach a slot, "-" for nobody.
func (c *cell) reach(slot string) string {
	for _, h := range []string{rig.A, rig.B, rig.C} {
		if c.W.Server(h).Reach(slot) {
			return h
		}
	}
	return "-"
}

// state is how the faulty slot is now, for a table: its named state by the
// agent, and whom it and its set reach by the model.
func (c *cell) state() string {
	s := c.SlotStatus(faulty)
	var words []string
	switch {
	case s.Blocked != "":
		words = append(words, "blocked")
	case s.Problem != "":
		words = append(words, "problem")
	}
	if s.Cut == "unconfirmed" {
		words = append(words, "uncut")
	}
	if !c.E.Status(c.Ctx()).Store.OK {
		words = append(words, "no store")
	}
	if x, y := c.reach(ours), c.reach(faulty); x == y {
		words = append(words, short(x))
	} else {
		words = append(words, short(x)+short(y))
	}
	return strings.Join(words, " ")
}

func short(host string) string {
	switch host {
	case rig.A:
		return "A"
	case rig.B:
		return "B"
	case rig.C:
		return "C"
	}
	return "-"
}

// checkOthers moves VM2's slots, one on another bus and one on the fault's, and
// fails the test unless all come through that the fault leaves a way. Without a
// store nobody is moved, and nobody loses what he has.
func (c *cell) checkOthers() {
	c.t.Helper()
	st := c.E.Status(c.Ctx())
	for _, n := range []string{elseSlot, sameBus} {
		was := c.reach(n)
		q := c.Request(rig.VM2, rig.C)
		q.Slots = []string{n}
		m, err := c.E.Move(c.Ctx(), q)
		moved := err == nil && m.State == enclosure.MoveDone && c.reach(n) == rig.C
		bus := map[string]string{elseSlot: "bus0", sameBus: "bus1"}[n]
		switch {
		case !st.Store.OK || c.target == store && rig.Code(err) == enclosure.CodeStore:
			if rig.Code(err) != enclosure.CodeStore || c.reach(n) != was {
				c.t.Errorf("%s without a store: %s, %v; with %s, was with %s", n, m.State, err, c.reach(n), was)
			}
		case c.Host(rig.C).Fenced:
			if rig.Code(err) != enclosure.CodeFenced {
				c.t.Errorf("%s: %s, %v", n, m.State, err)
			}
		case c.fault.holds && c.target.bus == bus:
			if moved {
				c.t.Errorf("%s was moved over a bus that is held", n)
			} else if err == nil {
				c.named(n, m.Reason)
			} else {
				c.named(n, err.Error())
			}
		case !moved:
			c.t.Errorf("%s, which has no fault, was not moved: %s %s, %v", n, m.State, m.Reason, err)
		}
	}
}

// whole tells whether VM1's set is as its records say, with nothing wrong.
func (c *cell) whole() error {
	st := c.E.Status(c.Ctx())
	if !st.Store.OK {
		return fmt.Errorf("store: %s", st.Store.Problem)
	}
	var hosts []string
	for _, n := range []string{ours, faulty} {
		s := c.SlotStatus(n)
		if s.Problem != "" || s.Blocked != "" || s.Link == "unknown" || s.Cut == "unconfirmed" {
			return fmt.Errorf("%s: problem %q, blocked %q, link %s, cut %q", n, s.Problem, s.Blocked, s.Link, s.Cut)
		}
		want := s.Host
		if want == "" {
			want = "-"
		}
		if got := c.reach(n); got != want {
			return fmt.Errorf("%s is with %q by the records, reached by %s", n, s.Host, got)
		}
		hosts = append(hosts, s.Host)
	}
	if len(slices.Compact(hosts)) > 1 {
		return fmt.Errorf("split: %v", hosts)
	}
	return nil
}
