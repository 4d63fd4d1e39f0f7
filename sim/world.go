package sim

import (
	"fmt"
	"math"
	"sync"
	"time"

	"baton/ee"
)

// World is an enclosure, the servers around it and the fabric between them.
// Its methods, and those of its parts, may be called from several goroutines.
type World struct {
	spec  *Spec // with defaults; never changed, shared by copies
	epoch time.Time
	base  time.Duration // instant of epoch

	// mu is never held while somebody sleeps: in a bubble, time would stand
	// still.
	mu      sync.Mutex
	at      time.Duration // the model has been carried to here
	next    time.Duration // no event is due before this
	on      bool          // enclosure power
	boots   uint64        // power-ons: a transfer begun under another count has failed
	appears uint64        // servers that came onto the fabric so far
	rng     rng
	cut     cutPlan
	record  record
	scratch [ee.RegEnd]byte // for a read of registers

	buses   []Bus
	chips   []Chip
	slots   []Slot
	servers []Server
	sw      Switch
}

// never is the instant of what is not going to happen.
const never = time.Duration(math.MaxInt64)

// New makes a world at instant 0 and powers it up. It panics on a Spec that
// Check refuses.
func New(s Spec) *World {
	if err := s.Check(); err != nil {
		panic(err)
	}
	f := s.filled()
	w := &World{spec: &f, epoch: time.Now(), next: never, rng: newRNG(s.Seed)}
	w.buses = make([]Bus, len(f.Buses))
	for i := range w.buses {
		w.buses[i] = Bus{w: w, spec: &f.Buses[i], lock: make(chan struct{}, 1)}
	}
	w.chips = make([]Chip, len(f.Chips))
	for i := range w.chips {
		w.chips[i] = newChip(w, &f.Chips[i])
	}
	w.slots = make([]Slot, len(f.Slots))
	for i := range w.slots {
		w.slots[i] = newSlot(w, i, &f.Slots[i])
	}
	w.servers = make([]Server, len(f.Servers))
	for i := range w.servers {
		v := &f.Servers[i]
		w.servers[i] = Server{w: w, index: i, spec: v, group: v.Group, mac: v.MAC, fabric: true}
		if !v.Off {
			w.servers[i].on = true
			w.appears++
			w.servers[i].appeared = w.appears
		}
	}
	w.sw = newSwitch(w)
	w.cut = cutPlan{at: never, position: never64, tear: Tear{Kind: TearHalf}}
	if !f.Off {
		w.powerOn()
	}
	return w
}

// Spec returns the world's Spec, its defaults in place. It is not to be changed.
func (w *World) Spec() *Spec { return w.spec }

// Now is the present instant: the time since the world was made, or since its
// original was.
func (w *World) Now() time.Duration { return w.base + time.Since(w.epoch) }

// Time tells which instant t of the clock is.
func (w *World) Time(t time.Time) time.Duration { return w.base + t.Sub(w.epoch) }

// Bus returns the bus with that name and panics where there is none, as do the
// other look-ups: a test that misspells a name has found no bug.
func (w *World) Bus(name string) *Bus {
	for i := range w.buses {
		if w.buses[i].spec.Name == name {
			return &w.buses[i]
		}
	}
	panic(fmt.Sprintf("sim: there is no bus %q", name))
}

// Chip returns the EEPROM with that name.
func (w *World) Chip(name string) *Chip {
	if c := w.chip(name); c != nil {
		return c
	}
	panic(fmt.Sprintf("sim: there is no chip %q", name))
}

func (w *World) chip(name string) *Chip {
	for i := range w.chips {
		if w.chips[i].spec.Name == name {
			return &w.chips[i]
		}
	}
	return nil
}

// Slot returns the slot with that name.
func (w *World) Slot(name string) *Slot {
	for i := range w.slots {
		if w.slots[i].spec.Name == name {
			return &w.slots[i]
		}
	}
	panic(fmt.Sprintf("sim: there is no slot %q", name))
}

// Server returns the server with that name.
func (w *World) Server(name string) *Server {
	for i := range w.servers {
		if w.servers[i].spec.Name == name {
			return &w.servers[i]
		}
	}
	panic(fmt.Sprintf("sim: there is no server %q", name))
}

// Switch returns the enclosure's switch.
func (w *World) Switch() *Switch { return &w.sw }

// PageWrites is the number of write cycles the chip has begun.
func (w *World) PageWrites(chip string) uint64 { return w.Chip(chip).PageWrites() }

// enter takes the lock and carries the model to the present. Every method of
// the package that looks or changes begins with it.
func (w *World) enter() time.Duration {
	w.mu.Lock()
	return w.advance(w.Now())
}

// advance carries out, in their order, the events due until t and returns the
// instant that the model then has. Called with the lock held.
func (w *World) advance(t time.Duration) time.Duration {
	for w.next <= t {
		w.step()
	}
	w.at = max(w.at, t)
	return w.at
}

// step carries out the earliest event, or finds that there is none before a
// later instant. An event that was called off leaves next too early, never too
// late.
func (w *World) step() {
	due := never
	if w.on {
		due = w.cut.at
	}
	var slot *Slot
	for i := range w.slots {
		if t := w.slots[i].due(); t < due {
			due, slot = t, &w.slots[i]
		}
	}
	if due > w.next {
		w.next = due
		return
	}
	w.at = max(w.at, due)
	if slot == nil {
		w.powerCut(w.at)
		return
	}
	slot.event(w.at)
}

// schedule makes sure that step runs at t.
func (w *World) schedule(t time.Duration) { w.next = min(w.next, t) }

// refresh looks at every link again after something in the fabric changed.
func (w *World) refresh(t time.Duration) {
	for i := range w.slots {
		w.slots[i].relink(t, false)
	}
}
