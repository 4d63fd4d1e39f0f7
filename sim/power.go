package sim

import (
	"math"
	"time"
)

// never64 is a cut position that does not come.
const never64 = math.MaxUint64

// cutPlan is when power goes, and what it does to a page being written.
type cutPlan struct {
	done     uint64        // positions passed
	position uint64        // power goes after this one
	at       time.Duration // or at this instant
	tear     Tear
	hook     func(Position)
	off      []func()
}

// Position is an instant at which a power cut makes a difference.
type Position struct {
	N    uint64 // counted from 1 since the world was made
	Kind PositionKind
	Name string // of the chip or slot
}

// PositionKind is what a Position is in the middle of.
type PositionKind int

const (
	PositionData     PositionKind = iota // a data byte of a page write was latched
	PositionCycle                        // inside a write cycle
	PositionRegister                     // a byte was written to a register file
)

// String names the kind.
func (k PositionKind) String() string { return [...]string{"data", "cycle", "register"}[k] }

// Tear is what a power cut leaves of a page in its write cycle.
type Tear struct {
	Kind TearKind
	Seed uint64 // another seed, other random bytes
	// Unstable is how many bytes of the page read differently each time until
	// the page is written again: as before, as they should have become, or
	// anything. They are chosen among those that the write changes, as long as
	// there are any.
	Unstable int
}

// TearKind is what the bytes of a torn page are, before Unstable.
type TearKind int

const (
	TearOld     TearKind = iota // as before the write
	TearNew                     // as after it
	TearHalf                    // the first half of the page new, the second old
	TearRandom                  // anything
	TearOnes                    // erased
	TearZeros                   // all zero
	TearPerByte                 // each byte old, new or anything
	TearKinds   = iota          // how many there are
)

// String names the kind.
func (k TearKind) String() string {
	return [...]string{"old", "new", "half", "random", "ones", "zeros", "per-byte"}[k]
}

// PowerCut takes the enclosure's power now. Pages in their write cycle are
// torn; engines and devices lose their state; servers and fabric go on.
func (w *World) PowerCut() {
	w.powerCut(w.enter())
	w.mu.Unlock()
}

// PowerOn gives power back: engines start, and load.
func (w *World) PowerOn() {
	w.enter()
	defer w.mu.Unlock()
	if !w.on {
		w.powerOn()
	}
}

// Powered tells whether the enclosure has power.
func (w *World) Powered() bool {
	w.enter()
	defer w.mu.Unlock()
	return w.on
}

// CutAt makes power go at the n-th position from now, n > 0; 0 calls it off.
// Positions are: each data byte of a page write, when it is latched; one in the
// middle of each write cycle; each byte written to a register file, when it
// took effect. A clean run tells how many there are (Positions).
//
// From then until PowerOn every transfer fails with ErrPowerOff.
func (w *World) CutAt(n uint64) {
	w.enter()
	defer w.mu.Unlock()
	w.cut.position = never64
	if n > 0 {
		w.cut.position = w.cut.done + n
	}
}

// CutAfter makes power go when d has passed; a negative d calls it off.
func (w *World) CutAfter(d time.Duration) {
	t := w.enter()
	defer w.mu.Unlock()
	w.cut.at = never
	if d >= 0 {
		w.cutAtInstant(t + d)
	}
}

// Positions is how many positions were passed since the world was made. While
// nothing else differs, the same run passes the same ones; goroutines that use
// several buses at the same instant may swap places (use OnPosition then).
func (w *World) Positions() uint64 {
	w.enter()
	defer w.mu.Unlock()
	return w.cut.done
}

// OnPosition has f called at each position from now on (nil: no more). The
// transfer that is under way waits for f, which may take a Snapshot: copies of
// it are worlds whose power can be cut just there, so that one clean run serves
// all positions. f must not begin a transfer on the same bus.
func (w *World) OnPosition(f func(Position)) {
	w.enter()
	defer w.mu.Unlock()
	w.cut.hook = f
}

// OnCut adds f to what is called at the instant at which power goes. The world
// is locked meanwhile: f may cancel a context or close a channel, no more.
func (w *World) OnCut(f func()) {
	w.enter()
	defer w.mu.Unlock()
	w.cut.off = append(w.cut.off, f)
	if w.cut.at != never {
		w.cutAtInstant(w.cut.at)
	}
}

// SetTear says what the next power cut leaves of pages in their write cycle;
// the first half new and the second old where nothing was said.
func (w *World) SetTear(t Tear) {
	w.enter()
	defer w.mu.Unlock()
	w.cut.tear = t
}

// take passes k positions at once. If power is to go among them it returns
// after which, 1..k, else 0.
func (c *cutPlan) take(k int) int {
	first := c.done
	c.done += uint64(k)
	if c.position > first && c.position <= c.done {
		c.done = c.position
		return int(c.position - first)
	}
	return 0
}

// enterCycle passes the position inside the write cycle that c has begun.
func (w *World) enterCycle(c *Chip) {
	if w.cut.take(1) > 0 {
		w.cutAtInstant(c.cycle.from + (c.cycle.until-c.cycle.from)/2)
	}
	w.tellPosition(Position{w.cut.done, PositionCycle, c.spec.Name})
}

// cutAtInstant plans a cut. Where somebody waits for it he is told in time,
// though nobody looks.
func (w *World) cutAtInstant(t time.Duration) {
	w.cut.at = t
	w.schedule(t)
	if len(w.cut.off) > 0 {
		time.AfterFunc(t-w.Now(), func() {
			w.enter()
			w.mu.Unlock()
		})
	}
}

// tellPosition calls the hook with the lock released.
func (w *World) tellPosition(p Position) {
	if hook := w.cut.hook; hook != nil {
		w.mu.Unlock()
		hook(p)
		w.enter()
	}
}

func (w *World) powerCut(t time.Duration) {
	if !w.on {
		return
	}
	w.on = false
	w.cut.at, w.cut.position = never, never64
	for i := range w.chips {
		w.chips[i].powerLost(t, w.cut.tear)
	}
	for i := range w.slots {
		w.slots[i].enginePowerLost(t)
	}
	if !w.spec.SwitchKeeps {
		w.sw.clear()
	}
	for _, f := range w.cut.off {
		f()
	}
	w.cut.off = nil
}

func (w *World) powerOn() {
	w.on = true
	w.boots++
	if w.cut.at <= w.at { // its time went by without power
		w.cut.at = never
	}
	w.schedule(w.cut.at)
	for i := range w.chips {
		c := &w.chips[i]
		c.pointer = w.rng.below(int(c.part.Size)) // undefined after power-up
	}
	for i := range w.slots {
		w.slots[i].engineStart(w.at, true)
	}
}

// powerLost tears the page in its write cycle.
func (c *Chip) powerLost(t time.Duration, tear Tear) {
	cy := c.cycle
	c.useFrom, c.useUntil = 0, 0
	c.cycle = cycle{}
	if t >= cy.until {
		return
	}
	p := c.own(cy.page)
	if p.worn {
		return // nothing was on its way into the cells
	}
	size := c.part.Page
	want, old := p.data, cy.old
	r := newRNG(c.w.spec.Seed ^ tear.Seed*0x9E3779B97F4A7C15 ^ uint64(c.spec.Addr)<<32)
	for i := range size {
		switch tear.Kind {
		case TearOld:
			p.data[i] = old[i]
		case TearHalf:
			if i >= size/2 {
				p.data[i] = old[i]
			}
		case TearRandom:
			p.data[i] = byte(r.next() >> 8)
		case TearOnes:
			p.data[i] = 0xFF
		case TearZeros:
			p.data[i] = 0
		case TearPerByte:
			p.data[i] = r.unstable(old[i], want[i])
		}
	}
	if cy.loose != nil { // what an earlier cut left unstable, and this one as it was
		for i := range size {
			if cy.loose.at[i] && p.data[i] == old[i] {
				p.loosen(i, cy.loose.old[i], cy.loose.new[i])
			}
		}
	}
	if tear.Unstable <= 0 {
		return
	}
	var changed, same []int
	for i := range size {
		if old[i] != want[i] {
			changed = append(changed, i)
		} else {
			same = append(same, i)
		}
	}
	for range min(tear.Unstable, size) {
		from := &changed
		if len(changed) == 0 {
			from = &same
		}
		k := r.below(len(*from))
		i := (*from)[k]
		*from = append((*from)[:k], (*from)[k+1:]...)
		p.loosen(i, old[i], want[i])
	}
}
