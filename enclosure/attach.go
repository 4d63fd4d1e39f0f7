package enclosure

import (
	"context"
	"fmt"
	"slices"

	"baton/ee"
	"baton/enclosure/plan"
	"baton/nvm"
)

// Attach brings a VM's slots to the host that asks, before it starts the VM.
// Where they are there already for that VM, nothing is moved: the start gets
// its own nonce and the flag goes back to target. Another VM's slots are
// refused until that VM has released them, then reset.
func (e *Enclosure) Attach(ctx context.Context, r AttachRequest) (Attached, error) {
	if r.Wait < 0 || r.Wait > MaxWait {
		return Attached{}, e.refused(r.By, badWait(r.Wait))
	}
	known := e.roster.Load()
	vm, slots, err := e.setOf(r.VM, r.Slots)
	if err != nil {
		return Attached{}, e.refused(r.By, err)
	}
	host := e.host(r.Host)
	if host == nil {
		return Attached{}, e.refused(r.By, unknownHost(r.Host))
	}
	if err := e.acquire(ctx, "attach "+r.VM+" to "+r.Host, false, slots...); err != nil {
		return Attached{}, e.refused(r.By, err)
	}
	defer e.release(slots...)
	if err := e.bindAs(known, slots, host.Group); err != nil {
		return Attached{}, e.refused(r.By, err)
	}
	defer e.bind(slots, 0)
	if err := e.mayAssign(ctx, vm, host, slots, nil); err != nil {
		return Attached{}, e.refused(r.By, err)
	}
	if e.isWith(slots, vm.UUID, host.Group) {
		a, err := e.startInPlace(ctx, *vm, slots, r.By)
		if err != nil {
			return Attached{}, e.refused(r.By, err)
		}
		return a, nil
	}
	nonce := e.newUUID()
	m, err := e.assign(ctx, plan.Assignment{
		Kind: plan.KindAttach, Preserve: vm.Policy != plan.Never, To: host.Group, VM: vm.UUID, ID: nonce, Slots: bits(slots),
	}, slots, *vm, *host, r.Wait, r.By)
	if err != nil {
		return Attached{}, err
	}
	if m.State != MoveDone && m.State != MoveWaiting {
		return Attached{}, e.refused(r.By, &Error{
			Code: CodeHardware, What: fmt.Sprintf("%s could not be attached to %s: %s", vm.Name, host.Name, m.Reason),
			State: "the move is " + string(m.State), Next: "look with 'baton status'", Retry: true,
		})
	}
	a := e.attached(slots, nonce)
	a.Moved, a.State = true, m.State
	return a, nil
}

func (e *Enclosure) attached(slots []*slot, nonce ee.UUID) Attached {
	a := Attached{Nonce: nonce, State: MoveDone, Generation: map[string]ee.Generation{}, Memory: map[string]plan.Verdict{}}
	for _, s := range slots {
		a.Generation[s.cfg.Name] = e.generation(s)
		a.Memory[s.cfg.Name] = e.judge(s)
	}
	return a
}

// startInPlace is an attach of slots that are where they should be.
func (e *Enclosure) startInPlace(ctx context.Context, vm VMConfig, slots []*slot, by string) (Attached, error) {
	start := plan.Start{Nonce: e.newUUID(), Slots: bits(slots), Serial: e.nextSerial()}
	var recs []record
	for _, s := range slots {
		st := e.state(s)
		start.Gen = max(start.Gen, st.Now.Gen)
		if st.Released != 0 {
			recs = append(recs, e.releasedRecord(s, false))
		}
		if !s.can(ee.CapStatus) {
			continue
		}
		if _, err := e.observe(ctx, s); err != nil {
			return Attached{}, s.hardware("the engine can not be read", err)
		}
		why := plan.Doubt(st, s.live)
		to, err := plan.Next(st.Flag(), plan.Starting, why == plan.NoReason)
		if err != nil {
			return Attached{}, wrongState(s, err)
		}
		if to == st.Flag() {
			continue
		}
		base, _ := st.Baseline()
		ev := plan.Evidence{Flag: to, Gen: st.Now.Gen, Base: base, Acked: st.Acked()}
		if to == plan.Void {
			ev.Why = why
		}
		recs = append(recs, e.evidenceRecord(s, ev))
	}
	recs = append(recs, e.startRecord(start))
	recs = append(recs, e.keptStarts(slots)...)
	if err := e.put(ctx, nvm.Urgent, recs...); err != nil {
		return Attached{}, err
	}
	for _, s := range slots {
		if f := e.follow(ctx, s); f != nil {
			return Attached{}, f.err
		}
	}
	e.emit(Event{Kind: "attach", VM: vm.Name, Text: fmt.Sprintf("%s: %v are here already; a new start", vm.Name, names(slots)), By: by})
	a := e.attached(slots, start.Nonce)
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.ContainsFunc(slots, func(s *slot) bool { return s.can(ee.CapStatus) && s.live.Status&ee.StatLink == 0 }) {
		a.State = MoveWaiting // no other than after a move, however often it is asked for
	}
	return a, nil
}

// keptStarts puts what a start of slots displaces in the store under other
// keys: a start is kept under the lowest of its slots, and another slot's latest
// one may be under the same.
func (e *Enclosure) keptStarts(slots []*slot) []record {
	e.mu.Lock()
	defer e.mu.Unlock()
	var left []plan.Start
	for _, s := range e.slots {
		if s.st.Start == nil || slices.Contains(slots, s) {
			continue
		}
		i := slices.IndexFunc(left, func(o plan.Start) bool { return o.Serial == s.st.Start.Serial })
		if i < 0 {
			i = len(left)
			left = append(left, *s.st.Start)
			left[i].Slots = 0
		}
		left[i].Slots = left[i].Slots.With(s.index)
	}
	var recs []record
	for _, o := range left {
		for _, s := range e.slots {
			if o.Slots.Has(s.index) && s.st.Start.Slots != o.Slots {
				recs = append(recs, e.startRecord(o))
				break
			}
		}
	}
	return recs
}

// Release ends a VM's use of its slots.
func (e *Enclosure) Release(ctx context.Context, r ReleaseRequest) error {
	vm, slots, err := e.setOf(r.VM, r.Slots)
	if err != nil {
		return e.refused(r.By, err)
	}
	switch r.Mode {
	case ReleaseKeep, ReleaseHold, ReleaseFree:
	default:
		return e.refused(r.By, bad(fmt.Sprintf("there is no release mode %q", r.Mode), "say keep, hold or free"))
	}
	if err := e.acquire(ctx, "release "+r.VM, false, slots...); err != nil {
		return e.refused(r.By, err)
	}
	defer e.release(slots...)
	var mine []*slot
	for _, s := range slots {
		if err := e.usable(s); err != nil {
			return e.refused(r.By, err)
		}
		if gen, ok := r.Expect[s.cfg.Name]; ok {
			if err := e.generationIs(s, gen); err != nil {
				return e.refused(r.By, err)
			}
		}
		if e.state(s).Now.VM == vm.UUID {
			mine = append(mine, s)
		} else if len(r.Slots) > 0 {
			return e.refused(r.By, &Error{Code: CodeWrongState, Slot: s.cfg.Name, What: "the slot is not VM " + vm.Name + "'s", State: "nothing was changed", Next: "look with 'baton status'"})
		}
	}
	if len(mine) == 0 {
		return nil // a repeat
	}
	repeat := r.Mode == ReleaseKeep && !slices.ContainsFunc(mine, func(s *slot) bool { return e.state(s).InUse() })
	if err := e.releaseSlots(ctx, *vm, mine, r.Mode); err != nil {
		return e.refused(r.By, err)
	}
	ev := Event{Kind: "release", VM: vm.Name, Text: fmt.Sprintf("%s: %v released (%s)", vm.Name, names(mine), r.Mode), By: r.By}
	if repeat {
		e.tell(ev) // nothing has changed
	} else {
		e.emit(ev, mine...)
	}
	return nil
}

func (e *Enclosure) releaseSlots(ctx context.Context, vm VMConfig, slots []*slot, mode ReleaseMode) error {
	if mode == ReleaseKeep {
		var recs []record
		for _, s := range slots {
			if e.state(s).InUse() {
				recs = append(recs, e.releasedRecord(s, true))
			}
		}
		if len(recs) == 0 {
			return nil
		}
		return e.put(ctx, nvm.Urgent, recs...)
	}
	a := plan.Assignment{Kind: plan.KindRelease, To: ee.GroupFree, Slots: bits(slots), ID: e.newUUID(), Gen: e.reserveGen()}
	if mode == ReleaseHold {
		a.VM, a.Preserve = vm.UUID, true
	}
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	if err := e.put(work, nvm.Urgent, e.assignmentRecord(a)); err != nil {
		return err
	}
	if f := e.settled(work, slots); f != nil {
		e.newPass(itemsOf(slots), nil).block(work, f.err)
		failed := *f.err
		failed.State = "released by the records; the set is blocked, and tried again by itself"
		return &failed
	}
	for _, s := range slots {
		e.recordDoubt(work, s) // a cut without guard and hold has reset the device
	}
	return nil
}
