package plan

import "baton/ee"

// Slot is what the store knows of one slot, folded from its records.
type Slot struct {
	Index    int
	Caps     ee.Caps
	Now      Assignment  // the newest; zero Kind = none
	Prior    *Assignment // the one before it; nil = none is known
	Root     uint32      // generation of the newest assignment that did not preserve, or brought another VM
	Evidence *Evidence   // the last one written
	Start    *Start      // the latest one of a set that has the slot
	Released uint32      // generation under which its VM released it; 0 = not
}

// Known tells whether the store has an assignment of the slot.
func (s Slot) Known() bool { return s.Now.Kind != 0 }

// Held tells whether the slot is cut and waits for a VM.
func (s Slot) Held() bool { return s.Now.To == ee.GroupFree && !s.Now.VM.IsZero() }

// InUse tells whether a VM has the slot and has not released it.
func (s Slot) InUse() bool {
	return s.Now.To != ee.GroupFree && !s.Now.VM.IsZero() && s.Released != s.Now.Gen
}

// evidence is the last evidence, unless an assignment that did not preserve
// came after it: it then speaks of another VM's memory.
func (s Slot) evidence() *Evidence {
	if s.Evidence == nil || s.Evidence.Gen < s.Root {
		return nil
	}
	return s.Evidence
}

// current tells whether the last evidence was written under the present
// assignment.
func (s Slot) current() bool { return s.Evidence != nil && s.Evidence.Gen == s.Now.Gen }

// HasEvidence tells whether a VM was ever seen to use the device under the
// present assignment or those before it that preserved: without that, PROVEN
// speaks of another VM's memory.
func (s Slot) HasEvidence() bool { return s.evidence() != nil }

// VoidReason is why the flag is void.
func (s Slot) VoidReason() Reason {
	if ev := s.evidence(); ev != nil && ev.Flag == Void {
		return ev.Why
	}
	return WhyNoProof
}

// Flag folds the records into the flag's state. Evidence of the present
// generation says it outright; a newer assignment that preserves carries it on
// (armed where the slot is held, target where it has a host), void where there
// is none to carry; one that does not preserve, or brings another VM, ends it.
func (s Slot) Flag() Flag {
	switch {
	case !s.Known():
		return None
	case s.current():
		return s.Evidence.Flag
	case !s.Now.Preserve || s.Root == s.Now.Gen:
		return None
	case s.evidence() == nil || s.Evidence.Flag == Void:
		return Void
	case s.Now.To == ee.GroupFree:
		return Armed
	}
	return Target
}

// Baseline is what the store says the engine's values were at the last arming
// or ack; ok is false where only PROVEN can tell.
func (s Slot) Baseline() (Values, bool) {
	ev := s.evidence()
	if ev == nil || ev.Flag == None || ev.Flag == Void {
		return Values{}, false
	}
	return ev.Base, true
}

// fixed tells whether the baseline's reset count still binds: since an arming
// no proof of life can have replaced it, since an ack one can.
func (s Slot) fixed() bool {
	ev := s.evidence()
	return ev != nil && (ev.Flag == Armed || ev.Flag == Target)
}

// Nonce is what an ack must quote: that of the latest start. ok is false where
// no start is known.
func (s Slot) Nonce() (ee.UUID, bool) {
	if s.started() {
		return s.Start.Nonce, true
	}
	if s.Now.Kind == KindAttach {
		return s.Now.ID, true
	}
	return ee.UUID{}, false
}

// Acked tells whether a VM has been seen to use the slot under its present
// assignment, so that the move that brought it there is over.
func (s Slot) Acked() bool {
	return (s.current() && s.Evidence.Acked) || s.started()
}

// Awaited tells whether a start has not been acknowledged yet: until then no
// proof counts, it would paper over a reset at the VM's start.
func (s Slot) Awaited() bool {
	if s.started() {
		return s.Evidence == nil || s.Evidence.Start < s.Start.Serial
	}
	return s.Now.Kind == KindAttach && !(s.current() && s.Evidence.Acked)
}

// started tells whether a VM was started in place under the present
// assignment.
func (s Slot) started() bool { return s.Start != nil && s.Start.Gen >= s.Now.Gen }

// Unfinished tells whether the newest assignment may be a move that was never
// seen to end: recovery treats its set as one, and may undo it.
func (s Slot) Unfinished() bool {
	return (s.Now.Kind == KindMove || s.Now.Kind == KindAttach) && !s.Acked()
}

// Block is the config block that the slot's engine should have.
func (s Slot) Block(incarnation uint32) ee.Block {
	b := ee.Block{
		Group:      s.Now.To,
		From:       ee.GroupFree,
		Generation: ee.Generation{Incarnation: incarnation, Counter: s.Now.Gen},
		VM:         s.Now.VM,
		Move:       s.Now.ID,
	}
	if s.Prior != nil {
		b.From = s.Prior.To
	}
	if s.Flag() == Target {
		b.Flags |= ee.FlagTarget
	}
	if s.Held() {
		b.Flags |= ee.FlagHeld
	}
	return b
}
