package sim

import (
	"slices"
	"time"
)

// Snapshot is a frozen world, from which any number of worlds can be made, in
// any bubble and by several goroutines at once.
type Snapshot struct{ w *World }

// Snapshot freezes a copy of the world as it is now. Transfers that are under
// way are not in it, nor are OnPosition, OnCut and OnTransfer.
func (w *World) Snapshot() *Snapshot {
	w.enter()
	defer w.mu.Unlock()
	for i := range w.chips { // from here on w copies what it changes
		w.chips[i].token, w.chips[i].ownTable = tokens.Add(1), false
	}
	for i := range w.slots {
		w.slots[i].memShared = true
	}
	return &Snapshot{w.copied()}
}

// World makes a world that goes on from the snapshot. It belongs to the bubble
// of the caller.
func (s *Snapshot) World() *World {
	n := s.w.copied()
	for i := range n.chips {
		n.chips[i].token = tokens.Add(1)
	}
	n.epoch, n.base = time.Now(), s.w.at
	for i := range n.buses {
		n.buses[i].lock = make(chan struct{}, 1)
	}
	return n
}

// Clone makes a world that goes on by itself from where w is.
func (w *World) Clone() *World { return w.Snapshot().World() }

// copied is a copy that shares all that is copied on change. The original is
// not changed.
func (w *World) copied() *World {
	n := &World{
		spec: w.spec, base: w.at, at: w.at, next: w.next, on: w.on, boots: w.boots, appears: w.appears,
		rng: w.rng, cut: w.cut, record: w.record.seal(),
		buses: slices.Clone(w.buses), chips: slices.Clone(w.chips),
		slots: slices.Clone(w.slots), servers: slices.Clone(w.servers),
	}
	n.cut.hook, n.cut.off = nil, nil
	n.sw = w.sw.clone(n)
	for i := range n.buses {
		b := &n.buses[i]
		b.w, b.lock, b.hook = n, nil, nil
		b.faults = make([]*fault, len(w.buses[i].faults))
		for k, f := range w.buses[i].faults {
			g := *f
			b.faults[k] = &g
		}
	}
	for i := range n.chips {
		c := &n.chips[i]
		c.w, c.bus = n, &n.buses[w.busIndex(c.bus)]
	}
	for i := range n.slots {
		s := &n.slots[i]
		s.w, s.bus, s.chip = n, &n.buses[w.busIndex(s.bus)], &n.chips[w.chipIndex(s.chip)]
	}
	for i := range n.servers {
		n.servers[i].w = n
	}
	return n
}

func (w *World) busIndex(b *Bus) int {
	for i := range w.buses {
		if &w.buses[i] == b {
			return i
		}
	}
	panic("sim: a bus of another world")
}

func (w *World) chipIndex(c *Chip) int {
	for i := range w.chips {
		if &w.chips[i] == c {
			return i
		}
	}
	panic("sim: a chip of another world")
}
