package enclosure

import (
	"sync/atomic"
	"time"
)

// Loop is one of the loops that watch the hardware, as whoever judges whether
// the agent is alive sees it.
type Loop struct {
	Name  string        // "poller of bus engines"
	Quiet time.Duration // since it last got anywhere
}

// LoopQuiet is the longest that a loop which is well may be Quiet. A turn may
// take far longer, since a bus on which every transfer takes its full second
// is still a bus; but within a turn something comes to its end all the time: a
// transfer (1 s at most, and the time of its bytes), the wait for a lock (50 ms
// for each slot of a set), a step of the store (some page writes).
const LoopQuiet = time.Minute

// Loops tells how the loops of Run are; there are none before Run has begun
// and after it has ended. It takes no lock: it answers also where one is held
// for ever.
func (e *Enclosure) Loops() []Loop {
	var out []Loop
	for _, l := range *e.loops.Load() {
		out = append(out, Loop{l.name, l.quiet(e.slots)})
	}
	return out
}

// Problem is why the store can not be used, "" if it can.
func (e *Enclosure) Problem() string {
	if p := e.storeProblem(); p != nil {
		return p.Error()
	}
	return ""
}

// loop is a loop's own mark of how far it is.
type loop struct {
	name  string
	at    mark
	works atomic.Pointer[slot] // whose lock it has; nil = no slot's
}

// turn notes that the loop got on, and has no slot.
func (l *loop) turn() {
	l.works.Store(nil)
	l.at.set()
}

// on notes that the loop goes on with a slot, and with those that follow it.
func (l *loop) on(s *slot) {
	l.at.set()
	l.works.Store(s)
}

// quiet is how long ago the loop, or a slot that it has, got on. Only who has a
// slot's lock touches its engine and its chip, so what came to an end there is
// the loop's.
func (l *loop) quiet(slots []*slot) time.Duration {
	q := l.at.since()
	s := l.works.Load()
	if s == nil {
		return q
	}
	for _, o := range slots {
		if o == s || o.leader.Load() == s {
			q = min(q, o.touched.since())
		}
	}
	return q
}

// mark is an instant, kept for those who look without a lock.
type mark struct {
	from time.Time
	at   atomic.Int64 // after from
}

// begin must come before all else.
func (m *mark) begin() { m.from = time.Now() }

func (m *mark) set() { m.at.Store(int64(time.Since(m.from))) }

func (m *mark) since() time.Duration { return time.Since(m.from) - time.Duration(m.at.Load()) }

// newLoop belongs to one run of Run.
func newLoop(name string) *loop {
	l := &loop{name: name}
	l.at.begin()
	return l
}
