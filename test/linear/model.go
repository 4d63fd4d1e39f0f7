package main

import (
	"hash/maphash"
	"slices"

	"github.com/anishathalye/porcupine"
)

// The sequential enclosure: what one thing after the other would do. It knows
// of each slot who has it and under which generation, and of each host whether
// it is fenced. Where an answer leaves open what happened, a step has several
// outcomes, and the answers that come later must agree with one of them.

const (
	slots = 4
	hosts = 3
)

// state is small and comparable.
type state struct {
	slots   [slots]slotState
	hosts   [hosts]hostState
	waiting uint64 // effects of operations without an answer that have not come yet
}

type slotState struct {
	host     int8   // from 1; 0 = nobody has it
	vm       int8   // from 1; that has it, or that it is held for
	released bool   // by that VM, while host is not 0
	gen      uint32 // counter of the generation,
	above    bool   // or what it is above, until somebody has read it
	acked    bool   // a start was acknowledged since an assignment did not preserve

	// Of an operation that brought it here and was not answered, and that may
	// still be undone.
	late     int
	fromHost int8
	fromVM   int8
}

type hostState struct {
	fenced bool
	epoch  uint32
}

type kind uint8

const (
	move kind = iota
	attach
	release
	ack
	fenceRecord // fences are two steps: who looks in between sees a fenced host with slots
	fenceCut
	unfence
	lateUndo // of an assignment that was not answered: by the agent's recovery
	begin    // of an operation without an answer
	died     // the agent that was asked: what it has not begun it never will
	readSlots
	readVerdict
	readHosts
)

var kindText = [...]string{"move", "attach", "release", "ack", "fence", "fence: cut", "unfence", "late undo", "begin", "death", "read slots", "read verdict", "read hosts"}

// input is what was asked.
type input struct {
	kind     kind
	id       int // of the operation
	set      set
	vm       int8
	host     int8
	preserve bool
	mode     string // of release
	epoch    uint32 // of unfence
	expect   map[int]uint32
	late     uint64 // of begin and died: which effects wait, or do no more
}

// set is a set of slots.
type set uint8

func (s set) has(i int) bool { return s&(1<<i) != 0 }

// output is what was answered.
type output struct {
	lost  bool   // no answer, or one that leaves open what happened
	code  string // of a refusal; nothing was changed
	slot  int    // that it is about
	state string // of a move
	moved bool   // by an attach
	gen   uint32
	epoch uint32
	cut   set // by a fence
	yes   bool
	slots map[int]slotState
	hosts map[int]hostState
}

// model is the sequential enclosure for porcupine, starting at from. late are
// the effects that operations without an answer may have, each at any time after
// its operation has begun, or never.
func model(from state, late []input) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{from} },
		Step: func(s, in, out any) []any {
			var next []any
			now := []state{s.(state)}
			if in.(input).kind == begin {
				now[0].waiting |= in.(input).late
				return []any{now[0]}
			}
			for _, n := range now[0].lateEffects(late) {
				for _, n := range step(n, in.(input), out.(output)) {
					next = append(next, n.withoutDead(late))
				}
			}
			return next
		},
		Hash: func(s any) uint64 { return maphash.Comparable(hashSeed, s.(state)) },
	}
	return m.ToModel()
}

var hashSeed = maphash.MakeSeed()

// lateEffects are s and all that it can have become without an answer.
func (s state) lateEffects(late []input) []state {
	all := []state{s}
	seen := map[state]bool{s: true}
	for i := 0; i < len(all); i++ {
		for k, in := range late {
			if all[i].waiting&(1<<k) == 0 {
				continue
			}
			from := all[i]
			from.waiting &^= 1 << k
			for _, n := range step(from, in, output{lost: true}) {
				if n == from {
					continue // it may come yet
				}
				n = n.withoutDead(late)
				if !seen[n] {
					seen[n] = true
					all = append(all, n)
				}
			}
		}
	}
	return all
}

// withoutDead drops what can not come any more, so that states are found equal
// that are.
func (s state) withoutDead(late []input) state {
	for k, in := range late {
		if s.waiting&(1<<k) == 0 {
			continue
		}
		dead := false
		switch in.kind {
		case unfence:
			h := s.hosts[in.host-1]
			dead = h.epoch > in.epoch || h.epoch == in.epoch && !h.fenced
		case lateUndo:
			began := slices.IndexFunc(late, func(o input) bool { return o.id == in.id && o.kind != lateUndo })
			dead = s.waiting&(1<<began) == 0 && s.slots[in.first()].late != in.id
		}
		for i, g := range in.expect {
			sl := s.slots[i]
			dead = dead || in.kind != lateUndo && (sl.gen > g || sl.above && sl.gen == g)
		}
		if dead {
			s.waiting &^= 1 << k
		}
	}
	return s
}

// step returns what can be after an operation with that answer; none if it can
// not have been answered so.
func step(s state, in input, out output) []state {
	if out.code != "" {
		return refusal(s, in, out)
	}
	switch in.kind {
	case move, attach:
		return assignment(s, in, out)
	case release:
		return either(s, out.lost, s.release(in)...)
	case ack:
		before, i := s, in.first()
		ok := s.slots[i].bind(in.expect[i])
		s.slots[i].acked = true
		return either(before, out.lost, when(ok, s)...)
	case fenceRecord:
		h := &s.hosts[in.host-1]
		before := s
		h.fenced = true
		h.epoch++
		return either(before, out.lost, when(out.lost || h.epoch == out.epoch, s)...)
	case fenceCut:
		return either(s, out.lost, s.cut(in, out)...)
	case unfence:
		before := s
		h := &s.hosts[in.host-1]
		ok := h.epoch == in.epoch
		h.fenced = false
		return either(before, out.lost, when(ok, s)...)
	case lateUndo:
		return either(s, true, s.lateUndo(in)...)
	case died:
		s.waiting &^= in.late
		return []state{s}
	}
	return look(s, out)
}

// either adds what was before to what can be, where an answer was lost.
func either(before state, lost bool, can ...state) []state {
	if lost {
		can = append(can, before)
	}
	return can
}

func when(ok bool, s state) []state {
	if ok {
		return []state{s}
	}
	return nil
}

func (in input) first() int {
	for i := range slots {
		if in.set.has(i) {
			return i
		}
	}
	return 0
}

// refusal is an answer that tells a fact and changes nothing.
func refusal(s state, in input, out output) []state {
	sl := &s.slots[out.slot]
	switch out.code {
	case "fenced":
		return when(s.hosts[in.host-1].fenced, s)
	case "generation-changed":
		return when(out.gen != in.expect[out.slot] && sl.bind(out.gen), s)
	case "held-for-other":
		return when(sl.host == 0 && sl.vm != 0 && sl.vm != in.vm, s)
	case "in-use":
		return when(sl.inUse() && sl.vm != in.vm, s)
	case "wrong-state":
		return when(sl.vm != in.vm, s)
	case "split-set":
		seen := int8(0)
		for i, sl := range s.slots {
			if in.set.has(i) && sl.host != 0 {
				if seen != 0 && seen != sl.host {
					return when(true, s)
				}
				seen = sl.host
			}
		}
		return nil
	case "stale-unfence":
		return when(s.hosts[in.host-1].epoch != in.epoch, s)
	}
	return nil
}

func (s *slotState) inUse() bool { return s.host != 0 && s.vm != 0 && !s.released }

// bind tells whether the slot can have that generation, and fixes it.
func (s *slotState) bind(gen uint32) bool {
	if !s.above {
		return s.gen == gen
	}
	if gen <= s.gen {
		return false
	}
	s.gen, s.above = gen, false
	return true
}

// fresh gives a new generation: gen, or with 0 one that nobody has seen.
func (s *slotState) fresh(gen uint32) bool {
	s.late, s.fromHost, s.fromVM = 0, 0, 0
	if gen == 0 {
		s.above = true
		return true
	}
	ok := gen > s.gen
	s.gen, s.above = gen, false
	return ok
}

// may tells whether an assignment is not refused; it fixes what is expected.
func (s *state) may(in input) bool {
	if s.hosts[in.host-1].fenced {
		return false
	}
	from := int8(0)
	for i := range s.slots {
		if !in.set.has(i) {
			continue
		}
		sl := &s.slots[i]
		if g, ok := in.expect[i]; ok && !sl.bind(g) {
			return false
		}
		if sl.vm != in.vm && (sl.inUse() || sl.host == 0 && sl.vm != 0) {
			return false
		}
		if sl.host != 0 {
			if from != 0 && from != sl.host {
				return false
			}
			from = sl.host
		}
	}
	return true
}

// there tells whether the VM has all slots of the set on the host.
func (s *state) there(in input) bool {
	for i, sl := range s.slots {
		if in.set.has(i) && (sl.host != in.host || sl.vm != in.vm) {
			return false
		}
	}
	return true
}

func assignment(s state, in input, out output) []state {
	before := s
	if !s.may(in) {
		return either(before, out.lost)
	}
	inPlace := s.there(in) && (in.preserve || in.kind == attach)
	if out.lost {
		can := []state{before}
		if inPlace {
			return append(can, s.started(in))
		}
		if n, ok := s.assigned(in, 0); ok {
			for i := range n.slots {
				if in.set.has(i) {
					n.slots[i].late, n.slots[i].fromHost, n.slots[i].fromVM = in.id, s.slots[i].host, s.slots[i].vm
				}
			}
			can = append(can, n) // and lateUndo may follow
		}
		return can
	}
	switch out.state {
	case "done", "waiting":
		if inPlace {
			if in.kind == attach && out.moved {
				return nil
			}
			ok := s.slots[in.first()].bind(out.gen)
			if in.kind == attach {
				s = s.started(in)
			}
			return when(ok, s)
		}
		if in.kind == attach && !out.moved {
			return nil
		}
		n, ok := s.assigned(in, out.gen)
		return when(ok, n)
	case "undone":
		return s.undone(in)
	case "held":
		return s.held(in)
	}
	return nil
}

// started is after an attach in place.
func (s state) started(in input) state {
	if in.kind != attach {
		return s
	}
	for i := range s.slots {
		if in.set.has(i) {
			s.slots[i].released = false
		}
	}
	return s
}

func (s state) assigned(in input, gen uint32) (state, bool) {
	ok := true
	for i := range s.slots {
		if !in.set.has(i) {
			continue
		}
		sl := &s.slots[i]
		sl.acked = sl.acked && in.preserve && sl.vm == in.vm
		ok = sl.fresh(gen) && ok
		sl.host, sl.vm, sl.released = in.host, in.vm, false
	}
	return s, ok
}

// undone is after an assignment that failed: all as before, under a new
// generation, which a release need not have been carried over to.
func (s state) undone(in input) []state {
	again := s
	released := false
	for i := range s.slots {
		if in.set.has(i) {
			s.slots[i].fresh(0)
			released = released || s.slots[i].released
			again.slots[i] = s.slots[i]
			again.slots[i].released = false
		}
	}
	if released {
		return []state{s, again}
	}
	return []state{s}
}

// held is after an assignment that met a fence: nobody has the set. It is held
// for the VM that was to have it, or for whom it was held before.
func (s state) held(in input) []state {
	as := s
	for i := range s.slots {
		if !in.set.has(i) {
			continue
		}
		for _, n := range []*state{&s, &as} {
			n.slots[i].fresh(0)
			n.slots[i].host, n.slots[i].released = 0, false
		}
		s.slots[i].vm = in.vm
	}
	if as == s {
		return []state{s}
	}
	return []state{s, as}
}

func (s state) release(in input) []state {
	for i := range s.slots {
		if !in.set.has(i) {
			continue
		}
		sl := &s.slots[i]
		if g, ok := in.expect[i]; ok && !sl.bind(g) {
			return nil
		}
		if sl.vm != in.vm {
			return nil
		}
		switch in.mode {
		case "keep":
			sl.released = sl.host != 0
			continue
		case "free":
			sl.vm, sl.acked = 0, false
		}
		sl.fresh(0)
		sl.host, sl.released = 0, false
	}
	return []state{s}
}

// cut is the second step of a fence: what the host has is held.
func (s state) cut(in input, out output) []state {
	h := s.hosts[in.host-1]
	if !h.fenced || !out.lost && h.epoch != out.epoch {
		return nil
	}
	for i := range s.slots {
		sl := &s.slots[i]
		if sl.host != in.host {
			continue
		}
		if !out.lost && !out.cut.has(i) {
			return nil
		}
		sl.fresh(0)
		sl.host, sl.released = 0, false
	}
	return []state{s}
}

func (s state) lateUndo(in input) []state {
	held := s
	for i := range s.slots {
		if !in.set.has(i) {
			continue
		}
		sl := s.slots[i]
		if sl.late != in.id {
			return nil
		}
		n, h := &s.slots[i], &held.slots[i]
		n.fresh(0)
		h.fresh(0)
		n.host, n.vm, n.released = sl.fromHost, sl.fromVM, false
		h.host, h.released = 0, false
	}
	return []state{s, held}
}

// look is a read: it changes nothing, but fixes generations.
func look(s state, out output) []state {
	for i, saw := range out.slots {
		sl := &s.slots[i]
		if sl.host != saw.host || sl.vm != saw.vm || sl.host != 0 && sl.released != saw.released || !sl.bind(saw.gen) {
			return nil
		}
	}
	for i, saw := range out.hosts {
		if s.hosts[i] != saw {
			return nil
		}
	}
	if out.slots == nil && out.hosts == nil {
		sl := &s.slots[out.slot]
		return when(sl.bind(out.gen) && (sl.acked || !out.yes), s)
	}
	return []state{s}
}
