package enclosure

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"baton/ee"
)

// DrainRequest asks to move or release all slots of a host.
type DrainRequest struct {
	ID      ee.UUID // a repeat goes on with what is left; what it has moved once it does not move again
	Host    string
	To      string      // "" = they are released
	Release ReleaseMode // hold or free, where To is ""
	Wait    time.Duration
	By      string
}

// Drained is what became of a host's slots.
type Drained struct {
	Host string
	Done bool         // no slot is with the host, by the records and by what was read of its cut
	Sets []DrainedSet // in the order in which they were done; the first that failed is the last
	Left []string     // slots that are still with the host, or not seen to be cut from it
}

// DrainedSet is what became of a VM's slots.
type DrainedSet struct {
	VM     string
	Slots  []string
	Move   ee.UUID // zero = none
	State  string  // of the move, or released, failed
	Reason string
}

// States of a DrainedSet that are none of a move.
const (
	drainReleased = "released"
	drainFailed   = "failed"
)

// drainSet is the slots that one VM has on a host, as they are to leave it.
type drainSet struct {
	vm    *VMConfig // nil = nobody's
	slots []*slot
}

// Drain moves or releases all slots of a host, the slots of each VM as one set,
// one set after the other, and stops at the first that fails. What is known
// beforehand to fail is refused before anything is changed. When ctx ends, no
// further set is begun. Slots that no VM has are released free.
func (e *Enclosure) Drain(ctx context.Context, r DrainRequest) (Drained, error) {
	if err := e.checkDrain(r); err != nil {
		return Drained{}, e.refused(r.By, err)
	}
	h := e.host(r.Host)
	if h == nil { // configured anew since
		return Drained{}, e.refused(r.By, unknownHost(r.Host))
	}
	sets, err := e.drainSets(h.Group)
	if err == nil {
		err = e.mayDrain(r, sets)
	}
	if err != nil {
		return Drained{}, e.refused(r.By, err)
	}
	d := Drained{Host: r.Host, Sets: e.drainedBefore(r, sets)}
	before := len(d.Sets)
	going := !slices.ContainsFunc(d.Sets, func(s DrainedSet) bool { return !s.gone() })
	for _, set := range sets {
		if !going || ctx.Err() != nil {
			break
		}
		done := e.drainOne(ctx, r, set, h.Group)
		d.Sets = append(d.Sets, done)
		going = done.gone()
		text := fmt.Sprintf("%s: %d of %d sets: %v of %q %s", r.Host, len(d.Sets)-before, len(sets), done.Slots, done.VM, done.State)
		if done.Reason != "" {
			text += ": " + done.Reason
		}
		ev := Event{Kind: "drain", Host: r.Host, VM: done.VM, Text: text, By: r.By}
		if !done.Move.IsZero() {
			ev.Move = done.Move.String()
		}
		e.emit(ev)
	}
	d.Left = names(e.slotsWhere(func(s *slot) bool {
		return s.st.Known() && s.st.Now.To == h.Group || s.uncutFrom(h.Group) && e.confirmable(s)
	}))
	d.Done = len(d.Left) == 0
	text := fmt.Sprintf("%s: drained", r.Host)
	switch {
	case ctx.Err() != nil && !d.Done:
		text = fmt.Sprintf("%s: draining was given up (%v); left with it: %v", r.Host, ctx.Err(), d.Left)
	case !d.Done:
		text = fmt.Sprintf("%s: draining stopped; left with it: %v", r.Host, d.Left)
	}
	e.emit(Event{Kind: "drain", Host: r.Host, Text: text, By: r.By})
	return d, nil
}

// gone tells whether a set has left as it was asked to, so that the next may be
// begun.
func (s DrainedSet) gone() bool { return s.State == drainReleased || s.State == string(MoveDone) }

// checkDrain refuses what can be refused of a request without looking at slots.
func (e *Enclosure) checkDrain(r DrainRequest) error {
	const unchanged = "nothing was changed"
	switch {
	case r.ID.IsZero():
		return bad("the drain has no ID", "give one, so that a repeat has the effect of one")
	case r.Wait < 0 || r.Wait > MaxWait:
		return badWait(r.Wait)
	case e.host(r.Host) == nil:
		return unknownHost(r.Host)
	case (r.To == "") == (r.Release == ""):
		return bad("say where the slots are to go: to a host, or released", "--to HOST, or --release hold or free")
	case r.To == "" && r.Release != ReleaseHold && r.Release != ReleaseFree:
		return bad(fmt.Sprintf("there is no release mode %q for a drain", r.Release), "say hold or free")
	case r.To == r.Host:
		return bad("the slots are to leave "+r.Host+", not to go there", "name another host")
	}
	if problem := e.storeProblem(); problem != nil {
		return problem
	}
	if r.To == "" {
		return nil
	}
	to := e.host(r.To)
	if to == nil {
		return unknownHost(r.To)
	}
	if _, fenced := e.fenced(r.To); fenced {
		err := e.fencedError(to.Group)
		err.State = unchanged
		return err
	}
	return nil
}

// drainSets are the slots with a group, by VM, in the order of their first
// slots.
func (e *Enclosure) drainSets(group uint16) ([]drainSet, error) {
	var sets []drainSet
	var of []ee.UUID
	for _, s := range e.slotsOf(group) {
		id := e.state(s).Now.VM
		i := slices.Index(of, id)
		if i < 0 {
			i = len(of)
			of = append(of, id)
			set := drainSet{}
			if !id.IsZero() {
				set.vm = find(e.roster.Load().vms, func(v VMConfig) bool { return v.UUID == id })
				if set.vm == nil {
					return nil, &Error{
						Code: CodeUnknownVM, Slot: s.cfg.Name, What: fmt.Sprintf("the slot is VM %s's, which is not in the configuration", id), State: "nothing was changed",
						Next: "put the VM into the configuration, or release the slot under its name",
					}
				}
			}
			sets = append(sets, set)
		}
		sets[i].slots = append(sets[i].slots, s)
	}
	return sets, nil
}

// mayDrain refuses a drain that would stop half way for a reason that is known.
func (e *Enclosure) mayDrain(r DrainRequest, sets []drainSet) error {
	for _, set := range sets {
		for _, s := range set.slots {
			if err := e.usable(s); err != nil {
				return err
			}
			e.mu.Lock()
			unread := s.readErr
			e.mu.Unlock()
			if unread != nil {
				return s.untouched("the engine can not be read", unread)
			}
		}
		if set.vm == nil {
			continue
		}
		if _, _, err := e.setOf(set.vm.Name, names(set.slots)); err != nil {
			return err
		}
		if r.To != "" && !slices.Contains(set.vm.Hosts, r.To) {
			return &Error{
				Code: CodeNotAllowed, What: fmt.Sprintf("VM %s may not run on %s", set.vm.Name, r.To), State: "nothing was changed",
				Next: "the configuration lets it run on " + strings.Join(set.vm.Hosts, ", "),
			}
		}
	}
	return nil
}

// drainedBefore are the sets that an earlier request with the same ID moved,
// and that are no longer here.
func (e *Enclosure) drainedBefore(r DrainRequest, sets []drainSet) (before []DrainedSet) {
	if r.To == "" {
		return nil
	}
	for _, v := range e.roster.Load().vms {
		if slices.ContainsFunc(sets, func(s drainSet) bool { return s.vm != nil && s.vm.Name == v.Name }) {
			continue
		}
		id := drainID(r.ID, v.Name)
		if m, ok := e.MoveByID(id); ok && m.State != MoveRefused {
			before = append(before, drainedBy(m))
		}
	}
	return before
}

func drainedBy(m Move) DrainedSet {
	return DrainedSet{VM: m.VM, Slots: m.Slots, Move: m.ID, State: string(m.State), Reason: m.Reason}
}

// drainID is the ID of the move of a VM's set in a drain: the same for a
// repeat. Version 8 of RFC 9562, the first 16 bytes of a SHA-256.
func drainID(drain ee.UUID, vm string) ee.UUID {
	sum := sha256.Sum256(append(drain[:], vm...))
	u := ee.UUID(sum[:16])
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return u
}

// carryOn is how long a set that was begun is carried on when nobody waits for
// it any more: the hardware needs no longer, and a host that has not appeared by
// then is not waited for. It is less than an agent that is stopped is given.
const carryOn = 5 * time.Second

// drainOne moves or releases one set.
func (e *Enclosure) drainOne(ctx context.Context, r DrainRequest, set drainSet, from uint16) DrainedSet {
	ctx, cancel := lasting(ctx, carryOn)
	defer cancel()
	if set.vm == nil || r.To == "" {
		return e.drainRelease(ctx, r, set, from)
	}
	m, err := e.Move(ctx, MoveRequest{
		ID: drainID(r.ID, set.vm.Name), VM: set.vm.Name, Slots: names(set.slots), To: r.To, Preserve: true, Wait: r.Wait, By: r.By,
	})
	if err != nil {
		return DrainedSet{VM: set.vm.Name, Slots: names(set.slots), State: drainFailed, Reason: err.Error()}
	}
	d := drainedBy(m)
	if d.gone() && e.state(set.slots[0]).Now.To == from {
		d.State, d.Reason = drainFailed, "this drain has moved the set before, and it has come back: use a new ID"
	}
	return d
}

// lasting ends d after ctx.
func lasting(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = waitFor(longer, nil, d)
		cancel()
	})
	return longer, func() { stop(); cancel() }
}

func (e *Enclosure) drainRelease(ctx context.Context, r DrainRequest, set drainSet, from uint16) DrainedSet {
	d := DrainedSet{Slots: names(set.slots), State: drainReleased}
	mode, vm := r.Release, VMConfig{}
	if set.vm == nil {
		mode = ReleaseFree
	} else {
		d.VM, vm = set.vm.Name, *set.vm
	}
	if err := e.drainSlots(ctx, r, vm, set.slots, mode, from); err != nil {
		known := e.asError(e.refused(r.By, err))
		d.State, d.Reason = drainFailed, known.Error()
	}
	return d
}

func (e *Enclosure) drainSlots(ctx context.Context, r DrainRequest, vm VMConfig, slots []*slot, mode ReleaseMode, from uint16) error {
	if err := e.acquire(ctx, "drain "+r.Host, false, slots...); err != nil {
		return err
	}
	defer e.release(slots...)
	for _, s := range slots {
		if err := e.usable(s); err != nil {
			return err
		}
		if st := e.state(s); st.Now.To != from || st.Now.VM != vm.UUID {
			return &Error{Code: CodeGenerationChanged, Slot: s.cfg.Name, Current: e.generation(s), What: "the slot was assigned anew meanwhile", State: "nothing was changed", Next: "look again with 'baton status'", Retry: true}
		}
	}
	if err := e.releaseSlots(ctx, vm, slots, mode); err != nil {
		return err
	}
	e.emit(Event{Kind: "release", Host: r.Host, VM: vm.Name, Text: fmt.Sprintf("%s: %v released (%s)", r.Host, names(slots), mode), By: r.By})
	return nil
}
