package enclosure

import (
	"maps"
	"sync/atomic"

	"periph.io/x/conn/v3/i2c"
)

// Counters count since the agent started.
type Counters struct {
	Moves      map[MoveState]uint64 // that ended so, attaches that moved included
	Fences     uint64               // recorded
	Refusals   map[Code]uint64
	Voids      uint64 // flags
	Events     uint64
	PageWrites uint64            // of the store
	BusErrors  map[string]uint64 // by bus: transfers with engines, and accesses to config blocks, that failed
}

// Counters returns them.
func (e *Enclosure) Counters() Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.counts
	c.Moves, c.Refusals = maps.Clone(c.Moves), maps.Clone(c.Refusals)
	c.Events = e.lastEvent
	if e.store != nil {
		c.PageWrites = e.store.Stats().PageWrites
	}
	c.BusErrors = map[string]uint64{}
	for _, s := range e.slots {
		c.BusErrors[s.cfg.BusName] += s.busErrors.Load()
	}
	return c
}

func newCounters() Counters {
	return Counters{Moves: map[MoveState]uint64{}, Refusals: map[Code]uint64{}}
}

// countMove notes how a move ended.
func (e *Enclosure) countMove(state MoveState) {
	e.mu.Lock()
	e.counts.Moves[state]++
	e.mu.Unlock()
}

// countedBus notes when a transfer of a slot's engine ended, and counts the transfers of a slot's engine that failed, also those
// that were tried again and then went well.
type countedBus struct {
	i2c.Bus
	failed *atomic.Uint64
	ended  *mark
}

func (b countedBus) Tx(addr uint16, w, r []byte) error {
	err := b.Bus.Tx(addr, w, r)
	b.ended.set()
	if err != nil {
		b.failed.Add(1)
	}
	return err
}
