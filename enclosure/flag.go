package enclosure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"baton/ee"
	"baton/enclosure/bug"
	"baton/enclosure/plan"
	"baton/nvm"
)

// judge gives the verdict from the last reading of the hardware.
func (e *Enclosure) judge(s *slot) plan.Verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.judgeLocked(s)
}

func (e *Enclosure) judgeLocked(s *slot) plan.Verdict {
	if e.problem != nil && !s.st.Known() {
		v := plan.Judge(s.st, nil)
		v.Reason = "the store can not be used: nobody knows whose memory it is"
		return v
	}
	if bug.Is(bug.UnreadSame) && !s.readAt.IsZero() {
		return plan.Judge(s.st, &s.live)
	}
	if s.readErr != nil || s.fault != nil || (s.can(ee.CapStatus) && s.readAt.IsZero()) {
		return plan.Judge(s.st, nil)
	}
	return plan.Judge(s.st, &s.live)
}

// lockWait bounds how long a request for one slot waits for the slot's lock.
const lockWait = 2 * time.Second

// one takes the lock of a slot for a short operation.
func (e *Enclosure) one(ctx context.Context, name, who string) (*slot, func(), error) {
	s, err := e.slotNamed(name)
	if err != nil {
		return nil, nil, err
	}
	if err := e.usable(s); err != nil {
		return nil, nil, err
	}
	if err := e.acquire(ctx, who, false, s); err != nil {
		return nil, nil, err
	}
	return s, func() { e.release(s) }, nil
}

// Verdict reads the slot's engine and tells whether the device holds what it
// held. While the engine can not be read, the answer is unknown.
func (e *Enclosure) Verdict(ctx context.Context, name string) (plan.Verdict, error) {
	s, err := e.slotNamed(name)
	if err != nil {
		return plan.Verdict{}, err
	}
	short, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	if err := e.acquire(short, pollHolder, true, s); err != nil {
		v := plan.Judge(e.state(s), nil)
		v.Reason = "another operation is under way on this slot"
		return v, nil
	}
	defer e.release(s)
	if s.can(ee.CapStatus) && s.fault == nil {
		_, _ = e.observe(ctx, s) // a failure is kept and makes the verdict unknown
	}
	return e.judge(s), nil
}

// generationIs refuses a request made for another generation.
func (e *Enclosure) generationIs(s *slot, gen ee.Generation) error {
	if have := e.generation(s); have != gen {
		return &Error{
			Code: CodeGenerationChanged, Slot: s.cfg.Name, Current: have, State: "nothing was changed",
			What: fmt.Sprintf("generation is %s, not %s: the slot was assigned anew since you looked", have, gen),
			Next: "look again with 'baton status'",
		}
	}
	return nil
}

// notFenced refuses what only a host that may take part can ask: the host that
// has s is not fenced.
func (e *Enclosure) notFenced(s *slot) error {
	h := e.hostOf(e.state(s).Now.To)
	if h == nil {
		return nil
	}
	if _, fenced := e.fenced(h.Name); !fenced {
		return nil
	}
	err := e.fencedError(h.Group)
	err.Slot, err.State = s.cfg.Name, "nothing was changed"
	return err
}

func wrongState(s *slot, err error) *Error {
	return &Error{Code: CodeWrongState, Slot: s.cfg.Name, What: err.Error(), State: "nothing was changed", Next: "look with 'baton verdict " + s.cfg.Name + "'"}
}

// needs refuses what the slot's hardware can not do.
func (s *slot) needs(c ee.Caps, what string) error {
	if s.can(c) {
		return nil
	}
	return &Error{
		Code: CodeCapability, Slot: s.cfg.Name, What: fmt.Sprintf("%s needs %v, which an engine of profile %s does not have", what, c.Names(), s.cfg.Profile.Name),
		State: "nothing was changed", Next: "move without it: the memory will not be kept (docs/profiles.md)",
	}
}

// Arm puts the guard on before the source lets go. With proof (what the host
// read while QEMU held the device) the slot is armed if the engine's words are
// still those; without it only the guard is on. A repeat returns the first
// arming.
func (e *Enclosure) Arm(ctx context.Context, r ArmRequest) (plan.Arming, error) {
	s, done, err := e.one(ctx, r.Slot, "arm")
	if err != nil {
		return plan.Arming{}, e.refused(r.By, err)
	}
	defer done()
	a, err := e.arm(ctx, s, r)
	if err != nil {
		return a, e.refused(r.By, err)
	}
	return a, nil
}

func (e *Enclosure) arm(ctx context.Context, s *slot, r ArmRequest) (plan.Arming, error) {
	if err := s.needs(ee.CapResetGuard|ee.CapStatus|ee.CapLatches, "arming"); err != nil {
		return plan.Arming{}, err
	}
	if err := e.generationIs(s, r.Gen); err != nil {
		return plan.Arming{}, err
	}
	if err := e.notFenced(s); err != nil {
		return plan.Arming{}, err
	}
	st := e.state(s)
	on := plan.ArmUnproven
	if r.Seen != nil {
		on = plan.ArmProven
	}
	if _, err := plan.Next(st.Flag(), on, true); err != nil {
		return plan.Arming{}, wrongState(s, err)
	}
	if st.Now.To == ee.GroupFree {
		return plan.Arming{}, wrongState(s, errors.New("the slot is with no host: there is nothing to arm"))
	}
	if st.Flag() == plan.Armed {
		base, _ := st.Baseline()
		return plan.Arming{Proof: true, Flag: plan.Armed, Base: base, ID: st.Evidence.ID}, nil
	}

	before, err := e.observe(ctx, s)
	if err != nil {
		return plan.Arming{}, s.hardware("the engine can not be read", err)
	}
	if r.Seen != nil {
		if err := inUse(s, st, before); err != nil {
			return plan.Arming{}, err
		}
	}
	if err := e.setGuard(ctx, s, before.Control|ee.CtlGuard|ee.CtlHold); err != nil {
		return plan.Arming{}, s.hardware("the guard could not be put on", err)
	}
	now, err := e.observe(ctx, s)
	if err != nil {
		return plan.Arming{}, s.hardware("the engine can not be read", err)
	}
	if now.Control&ee.CtlGuard == 0 {
		return plan.Arming{}, s.hardware("the guard did not come on", ee.ErrIgnored)
	}
	if r.Seen == nil {
		e.emit(Event{Kind: "arm", Slot: s.cfg.Name, Text: s.cfg.Name + ": guard on; no proof that the VM held the device, so nothing is armed", By: r.By})
		return plan.Arming{Flag: st.Flag()}, nil
	}

	// The counters are read with the guard on: what came before differs from
	// what the host saw, what comes after is swallowed.
	why := plan.NoReason
	if plan.ValuesOf(now) != *r.Seen {
		why = plan.WhyReset
	} else if now.Latch&ee.LatchRestarted != 0 && now.Proven == 0 && st.Flag() == plan.Spent {
		why = plan.WhyRestarted
	}
	to, _ := plan.Next(st.Flag(), on, why == plan.NoReason)
	lease := r.Lease
	if lease <= 0 {
		lease = DefaultLease
	}
	ev := plan.Evidence{
		Flag: to, Gen: st.Now.Gen, Base: *r.Seen, ID: r.ID, Why: why, Acked: st.Acked() || to == plan.Armed,
		GuardBefore: before.Control&ee.CtlGuard != 0,
		Lease:       uint16(min(lease/time.Second, 1<<16-1)),
	}
	if to == plan.Armed {
		// PROVEN before the record: a cut between the two leaves the slot
		// unarmed, and the arm can be repeated.
		if err := e.prove(ctx, s, now.Resets); err != nil {
			return plan.Arming{}, err
		}
	}
	if err := e.put(ctx, nvm.Urgent, e.evidenceRecord(s, ev)); err != nil {
		return plan.Arming{}, err
	}
	e.mu.Lock()
	s.leaseEnd = time.Now().Add(lease)
	e.mu.Unlock()
	e.emit(Event{Kind: "arm", Slot: s.cfg.Name, VM: e.vmName(st.Now.VM), Text: fmt.Sprintf("%s: %s at reset count %d", s.cfg.Name, to, now.Resets), By: r.By})
	return plan.Arming{Proof: true, Flag: to, Base: ev.Base, ID: r.ID, Reason: why.String()}, nil
}

// setGuard writes CONTROL where the link stays as it is. If the engine restarted
// since CONTROL was read, the same write puts its link on again: the peer that
// it may connect to goes first.
func (e *Enclosure) setGuard(ctx context.Context, s *slot, control uint8) error {
	want := e.desire(s)
	if control&ee.CtlLink != 0 && want.Link {
		return s.engine.Connect(ctx, want.Peer, want.Show, control)
	}
	_, _, err := s.engine.Set(ctx, control&^ee.CtlLink)
	return err
}

// prove writes PROVEN and reads it back.
func (e *Enclosure) prove(ctx context.Context, s *slot, resets uint32) error {
	if err := s.engine.Prove(ctx, resets); err != nil {
		return s.hardware("the proof could not be written", err)
	}
	o, err := e.observe(ctx, s)
	if err != nil {
		return s.hardware("the engine can not be read", err)
	}
	if o.Proven != resets {
		return s.hardware(fmt.Sprintf("the proof was not taken: PROVEN reads %d, written %d", o.Proven, resets), ee.ErrIgnored)
	}
	return nil
}

// Disarm ends an arming: the guard is as it was before. id is that of the
// arming.
func (e *Enclosure) Disarm(ctx context.Context, slotName string, id ee.UUID, by string) error {
	s, done, err := e.one(ctx, slotName, "disarm")
	if err != nil {
		return e.refused(by, err)
	}
	defer done()
	st := e.state(s)
	if _, err := plan.Next(st.Flag(), plan.Disarming, true); err != nil {
		return e.refused(by, wrongState(s, err))
	}
	if st.Evidence == nil || st.Now.To == ee.GroupFree {
		return e.refused(by, wrongState(s, errors.New("the slot is held, nobody armed it")))
	}
	if !st.Evidence.ID.IsZero() && st.Evidence.ID != id {
		return e.refused(by, &Error{Code: CodeStaleNonce, Slot: slotName, What: "the slot was armed by " + st.Evidence.ID.String(), State: "nothing was changed", Next: "quote that arming's ID"})
	}
	if err := e.disarm(ctx, s); err != nil {
		return e.refused(by, err)
	}
	return nil
}

func (e *Enclosure) disarm(ctx context.Context, s *slot) error {
	st := e.state(s)
	ev := plan.Evidence{Flag: plan.None, Gen: st.Now.Gen, Acked: st.Acked()}
	if err := e.put(ctx, nvm.Urgent, e.evidenceRecord(s, ev)); err != nil {
		return err
	}
	o, err := e.observe(ctx, s)
	if err == nil && st.Evidence != nil && !st.Evidence.GuardBefore {
		err = e.setGuard(ctx, s, o.Control&^ee.CtlGuard)
	}
	if err != nil {
		return s.hardware("disarmed, but the guard could not be put back", err)
	}
	e.emit(Event{Kind: "arm", Slot: s.cfg.Name, Text: s.cfg.Name + ": disarmed, guard as it was before"})
	return nil
}

// Alive takes a proof of life. It is accepted only while no start is waiting
// for its ack, and only if the engine still says what the host saw.
func (e *Enclosure) Alive(ctx context.Context, r AliveRequest) error {
	s, done, err := e.one(ctx, r.Slot, "alive")
	if err != nil {
		return e.refused(r.By, err)
	}
	defer done()
	if err := e.alive(ctx, s, r); err != nil {
		return e.refused(r.By, err)
	}
	return nil
}

func (e *Enclosure) alive(ctx context.Context, s *slot, r AliveRequest) error {
	if err := s.needs(ee.CapStatus|ee.CapLatches, "a proof of life"); err != nil {
		return err
	}
	if err := e.generationIs(s, r.Gen); err != nil {
		return err
	}
	if err := e.notFenced(s); err != nil {
		return err
	}
	st := e.state(s)
	e.mu.Lock()
	expired := st.Flag() == plan.Armed && time.Now().After(s.leaseEnd)
	e.mu.Unlock()
	if _, err := plan.Next(st.Flag(), plan.Proving, true); err != nil && !expired {
		return wrongState(s, err)
	}
	switch {
	case st.Now.To == ee.GroupFree:
		return wrongState(s, errors.New("the slot is with no host"))
	case st.Unfinished() || !st.HasEvidence():
		return wrongState(s, errors.New("the start of the VM has not been acknowledged yet"))
	}
	o, err := e.observe(ctx, s)
	if err != nil {
		return s.hardware("the engine can not be read", err)
	}
	if err := inUse(s, st, o); err != nil {
		return err
	}
	if err := e.valuesAre(s, o, r.Seen); err != nil {
		return err
	}
	if expired {
		if err := e.disarm(ctx, s); err != nil {
			return err
		}
	}
	if o.Proven == o.Resets {
		return nil
	}
	return e.prove(ctx, s, r.Seen.Resets)
}

// inUse refuses to take a proof that a VM uses a device where it can not, or
// where what it had there may be gone: a start waits for its ack, the link is
// down (QEMU holds on to what it can no longer reach), or the engine restarted
// or the device lost power since the last ack, which clears those latches.
func inUse(s *slot, st plan.Slot, o ee.Observation) *Error {
	switch {
	case st.Awaited():
		return wrongState(s, errors.New("no proof is accepted between a start and its ack"))
	case o.Status&ee.StatLink == 0:
		return wrongState(s, errors.New("the link is down: nobody can be using the device"))
	case st.Acked() && o.Latch&(ee.LatchRestarted|ee.LatchPowerLost) != 0:
		return wrongState(s, errors.New("engine or device went down since the last ack"))
	}
	return nil
}

// valuesAre refuses what was said of other values than the engine's present
// ones.
func (e *Enclosure) valuesAre(s *slot, o ee.Observation, seen plan.Values) error {
	now := plan.ValuesOf(o)
	if now == seen {
		return nil
	}
	return &Error{
		Code: CodeValuesDiffer, Slot: s.cfg.Name, Where: s.where(), State: "nothing was changed", Retry: true,
		What: fmt.Sprintf("the engine now says resets %d, power epoch 0x%08x, identity 0x%08x; the request was for %d, 0x%08x, 0x%08x",
			now.Resets, now.Epoch, now.Ident, seen.Resets, seen.Epoch, seen.Ident),
		Next: "take the verdict again and act on that",
	}
}

// Ack ends a start: the host has acted on the verdict and the VM runs. The
// acknowledged values become the baseline and the latches are cleared.
func (e *Enclosure) Ack(ctx context.Context, r AckRequest) error {
	s, done, err := e.one(ctx, r.Slot, "ack")
	if err != nil {
		return e.refused(r.By, err)
	}
	defer done()
	if err := e.ack(ctx, s, r); err != nil {
		return e.refused(r.By, err)
	}
	return nil
}

func (e *Enclosure) ack(ctx context.Context, s *slot, r AckRequest) error {
	if err := e.generationIs(s, r.Gen); err != nil {
		return err
	}
	if err := e.notFenced(s); err != nil {
		return err
	}
	st := e.state(s)
	nonce, ok := st.Nonce()
	if !ok || nonce != r.Nonce {
		return &Error{
			Code: CodeStaleNonce, Slot: s.cfg.Name, What: "the ack is not of the latest start of the VM",
			State: "nothing was changed: the slot still waits for the ack of its latest start", Next: "attach again and quote what it returns",
		}
	}
	if !st.Awaited() {
		// A repeat: whatever became of the flag since, that start was
		// acknowledged once. Page and shown flag may not have followed the first.
		return e.followAck(ctx, s)
	}
	to, err := plan.Next(st.Flag(), plan.Acking, true)
	if err != nil {
		return wrongState(s, err)
	}
	if s.can(ee.CapStatus | ee.CapLatches) {
		o, err := e.observe(ctx, s)
		if err != nil {
			return s.hardware("the engine can not be read", err)
		}
		if o.Status&ee.StatLink == 0 {
			return wrongState(s, errors.New("the link is down: the VM can not be using the device"))
		}
		if err := e.valuesAre(s, o, r.Seen); err != nil {
			return err
		}
		if err := e.prove(ctx, s, o.Resets); err != nil {
			return err
		}
		if err := s.engine.ClearLatches(ctx, o.Latch); err != nil {
			return s.hardware("the latches could not be cleared", err)
		}
		// What came in between shows in the words themselves: a restart has
		// cleared PROVEN, a reset or power loss has moved the counter.
		after, err := e.observe(ctx, s)
		if err != nil {
			return s.hardware("the engine can not be read", err)
		}
		if err := e.valuesAre(s, after, r.Seen); err != nil {
			return err
		}
		if after.Proven != o.Resets {
			return e.valuesAre(s, ee.Observation{}, r.Seen)
		}
	}
	ev := plan.Evidence{Flag: to, Gen: st.Now.Gen, Base: r.Seen, ID: r.Nonce, Acked: true}
	if st.Start != nil {
		ev.Start = st.Start.Serial
	}
	if err := e.put(ctx, nvm.Urgent, e.evidenceRecord(s, ev)); err != nil {
		return err
	}
	e.emit(Event{Kind: "ack", Slot: s.cfg.Name, VM: e.vmName(st.Now.VM), Text: fmt.Sprintf("%s: acknowledged at reset count %d", s.cfg.Name, r.Seen.Resets), By: r.By})
	return e.followAck(ctx, s)
}

// followAck is follow for an ack that is in the store. A fence that came since
// waits for the slot and cuts it.
func (e *Enclosure) followAck(ctx context.Context, s *slot) error {
	if f := e.follow(ctx, s); f != nil && f.err.Code != CodeFenced {
		return f.err
	}
	return nil
}

// follow makes page, shown flag and guard follow a flag that has just changed;
// the link stays as it is.
func (e *Enclosure) follow(ctx context.Context, s *slot) *failure {
	f := e.followOnce(ctx, s)
	s.stale = f != nil // the poller tries again
	return f
}

func (e *Enclosure) followOnce(ctx context.Context, s *slot) *failure {
	if s.can(ee.CapStatus) {
		if _, err := e.observe(ctx, s); err != nil {
			return &failure{err: s.hardware("the engine can not be read", err)}
		}
	}
	st := e.state(s)
	guard := e.policyOf(st).Guard(st.Flag(), st.Held())
	if s.can(ee.CapResetGuard) && !guard.Guard && s.live.Control&ee.CtlGuard != 0 {
		if err := e.setGuard(ctx, s, s.live.Control&^ee.CtlGuard); err != nil {
			return &failure{err: s.hardware("the guard could not be put off", err)}
		}
		if _, err := e.observe(ctx, s); err != nil {
			return &failure{err: s.hardware("the engine can not be read", err)}
		}
	}
	_, f := e.converge(ctx, []*slot{s}, false)
	return f
}
