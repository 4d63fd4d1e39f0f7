package sim

import "time"

// record is what the model remembers. It only grows, so copies of a World
// share what their original had.
type record struct {
	reach      []Interval // closed ones; an open one is in its Slot
	resets     []Reset
	losses     []PowerLoss
	violations []Violation
}

// Interval is a time during which a server could reach a slot's device: the
// link was up and the device had power.
type Interval struct {
	Slot, Server string
	From, To     time.Duration // instants; while Open, To is the present
	Open         bool
}

// Reset is a reset that was sent to a device.
type Reset struct {
	At        time.Duration
	Slot      string
	Cause     string // "engine start", "device reset", "power-up", "link down", "host: open", ...
	Server    string // whose it was; "" = not a server's
	Swallowed bool   // by the guard: it did not reach the device
}

// PowerLoss is a loss of a device's power.
type PowerLoss struct {
	At   time.Duration
	Slot string
}

// Violation is something no agent should do, though hardware puts up with it.
type Violation struct {
	At   time.Duration
	Name string // of the chip or slot
	What string
}

func (w *World) violate(t time.Duration, name, what string) {
	w.record.violations = append(w.record.violations, Violation{t, name, what})
}

// Reach is the history of what every server could reach, in the order in which
// the intervals ended, those that are still open last.
func (w *World) Reach() []Interval {
	t := w.enter()
	defer w.mu.Unlock()
	all := append([]Interval(nil), w.record.reach...)
	for i := range w.slots {
		if s := &w.slots[i]; s.reacher >= 0 {
			all = append(all, Interval{s.spec.Name, w.servers[s.reacher].spec.Name, s.reachFrom, t, true})
		}
	}
	return all
}

// MaxOwners is the largest number of servers that could reach the slot's device
// at the same instant.
func (w *World) MaxOwners(slot string) int {
	all := w.Reach()
	most := 0
	for _, a := range all {
		if a.Slot != slot {
			continue
		}
		n := 0 // servers that reach at a.From
		seen := make(map[string]bool)
		for _, b := range all {
			if b.Slot == slot && b.From <= a.From && (a.From < b.To || b.Open) && !seen[b.Server] {
				seen[b.Server] = true
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// Resets is the truth about resets of the slot's device, in order.
func (w *World) Resets(slot string) []Reset {
	w.enter()
	defer w.mu.Unlock()
	var rs []Reset
	for _, r := range w.record.resets {
		if r.Slot == slot {
			rs = append(rs, r)
		}
	}
	return rs
}

// PowerLosses are the instants at which the slot's device lost power.
func (w *World) PowerLosses(slot string) []time.Duration {
	w.enter()
	defer w.mu.Unlock()
	var ts []time.Duration
	for _, l := range w.record.losses {
		if l.Slot == slot {
			ts = append(ts, l.At)
		}
	}
	return ts
}

// MemoryIntactSince tells whether neither a reset nor a loss of power reached
// the slot's device at or after instant t.
func (w *World) MemoryIntactSince(slot string, t time.Duration) bool {
	for _, r := range w.Resets(slot) {
		if r.At >= t && !r.Swallowed {
			return false
		}
	}
	for _, at := range w.PowerLosses(slot) {
		if at >= t {
			return false
		}
	}
	return true
}

// Violations are what the agent did that it should not have done.
func (w *World) Violations() []Violation {
	w.enter()
	defer w.mu.Unlock()
	return append([]Violation(nil), w.record.violations...)
}

// ClearRecord forgets what was recorded until now; open intervals begin now.
// It keeps long runs small.
func (w *World) ClearRecord() {
	t := w.enter()
	defer w.mu.Unlock()
	w.record = record{}
	for i := range w.slots {
		w.slots[i].reachFrom = t
	}
}

// seal makes appends by one copy invisible to the others.
func (r record) seal() record {
	r.reach = r.reach[:len(r.reach):len(r.reach)]
	r.resets = r.resets[:len(r.resets):len(r.resets)]
	r.losses = r.losses[:len(r.losses):len(r.losses)]
	r.violations = r.violations[:len(r.violations):len(r.violations)]
	return r
}
