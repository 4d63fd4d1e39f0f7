package enclosure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"baton/ee"
	"baton/enclosure/plan"
	"baton/nvm"
)

// Locate switches the slot's locate LED. Nothing is recorded, and a slot that
// can not be used is lit like any other, as long as its engine is the slot's:
// that is the one that somebody looks for.
func (e *Enclosure) Locate(ctx context.Context, name string, on bool, by string) error {
	s, err := e.slotNamed(name)
	if err != nil {
		return e.refused(by, err)
	}
	if problem := e.storeProblem(); problem != nil {
		return e.refused(by, problem) // how the link should be is not known
	}
	if err := s.lacks(ee.CapStatus|ee.CapLinkControl, "the locate LED", "look for its serial number ('baton status')"); err != nil {
		return e.refused(by, err)
	}
	if err := e.acquire(ctx, "locate", false, s); err != nil {
		return e.refused(by, err)
	}
	defer e.release(s)
	changed, err := e.locate(ctx, s, on)
	if err != nil {
		return e.refused(by, err)
	}
	if changed {
		word := map[bool]string{true: "on", false: "off"}[on]
		e.emit(Event{Kind: "locate", Slot: name, Text: name + ": locate LED " + word, By: by})
	}
	return nil
}

func (e *Enclosure) locate(ctx context.Context, s *slot, on bool) (changed bool, err error) {
	if s.fault != nil && !s.trusted {
		return false, s.fault
	}
	o, err := e.observe(ctx, s)
	if err != nil {
		return false, s.untouched("the engine can not be read", err)
	}
	control := o.Control &^ ee.CtlLocate
	if on {
		control |= ee.CtlLocate
	}
	if control == o.Control {
		return false, nil
	}
	if st := e.state(s); control&ee.CtlLink != 0 && !e.desire(s).Link {
		// Writing CONTROL would cut it, which is another request.
		return false, wrongState(s, fmt.Errorf("the link is on, and should not be (group %d)", st.Now.To))
	}
	if err := e.setGuard(ctx, s, control); err != nil {
		return false, s.hardware("the locate LED could not be switched", err)
	}
	if o, err = e.observe(ctx, s); err != nil {
		return false, s.hardware("the engine can not be read", err)
	}
	if (o.Control&ee.CtlLocate != 0) != on {
		return false, s.hardware("the locate LED was not switched", ee.ErrIgnored)
	}
	return true, nil
}

// PowerState is what becomes of a device's power.
type PowerState string

// States of device power.
const (
	PowerOn    PowerState = "on"
	PowerOff   PowerState = "off"
	PowerCycle PowerState = "cycle"
)

// PowerRequest asks for a device's power to be switched. The slot must be cut.
type PowerRequest struct {
	Slot  string
	Gen   ee.Generation
	State PowerState
	By    string
}

// powerGap is how long a cycle leaves the device without power, so that what
// it holds is gone: boards' capacitors are empty well before.
const powerGap = time.Second

// Power switches a device's power, read back. Its memory counts as lost before
// the power goes. Off lasts until somebody switches it on, also over restarts
// of the agent; an engine that restarts gives its device power again. It
// blocks for at most twice the profile's ResetTime and powerGap.
func (e *Enclosure) Power(ctx context.Context, r PowerRequest) error {
	switch r.State {
	case PowerOn, PowerOff, PowerCycle:
	default:
		return e.refused(r.By, bad(fmt.Sprintf("there is no power state %q", r.State), "say on, off or cycle"))
	}
	s, done, err := e.one(ctx, r.Slot, "power "+string(r.State))
	if err != nil {
		return e.refused(r.By, err)
	}
	defer done()
	before, err := e.mayPower(ctx, s, r)
	if err != nil {
		return e.refused(r.By, err)
	}
	told, has := before.Control&ee.CtlPower != 0, before.Status&ee.StatPower != 0
	if r.State == PowerOn && told && has || r.State == PowerOff && !told && !has {
		return nil
	}
	// Once begun it is carried through: a device is not left without power
	// because somebody no longer waits.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	// A fence need not wait for it: the slot is cut.
	e.bind([]*slot{s}, e.state(s).Now.To)
	defer e.bind([]*slot{s}, 0)
	e.noteCut(s, "confirmed")
	if err := e.voidByHand(work, s, plan.Powering); err != nil {
		return e.refused(r.By, err)
	}
	if failed := e.switchPower(work, s, before, r.State); failed != nil {
		e.emit(Event{Kind: "power", Slot: r.Slot, Code: string(failed.Code), Text: failed.Error(), By: r.By})
		return failed
	}
	e.emit(Event{Kind: "power", Slot: r.Slot, Text: fmt.Sprintf("%s: device power %s, read back", r.Slot, r.State), By: r.By})
	return nil
}

// mayPower is what can refuse a change of power; it returns what was read.
func (e *Enclosure) mayPower(ctx context.Context, s *slot, r PowerRequest) (ee.Observation, error) {
	none := ee.Observation{}
	if err := s.lacks(ee.CapDevicePower|ee.CapStatus|ee.CapLinkControl, "switching power", "switch it at the card or the chassis"); err != nil {
		return none, err
	}
	if err := e.generationIs(s, r.Gen); err != nil {
		return none, err
	}
	o, err := e.observe(ctx, s)
	if err != nil {
		return none, s.untouched("the engine can not be read", err)
	}
	st := e.state(s)
	if st.Now.To != ee.GroupFree && (r.State != PowerOn || o.Control&ee.CtlPower == 0 || o.Status&ee.StatPower == 0) {
		return none, &Error{
			Code: CodeInUse, Slot: s.cfg.Name, State: "nothing was changed",
			What: fmt.Sprintf("the slot is with %s: power is not switched under a host", e.groupName(st.Now.To)),
			Next: fmt.Sprintf("release it first: baton release %s --slots %s --mode hold", e.vmName(st.Now.VM), s.cfg.Name),
		}
	}
	if st.Now.To == ee.GroupFree && o.Status&(ee.StatLink|ee.StatEnabled) != 0 {
		return none, &Error{
			Code: CodeUnconfirmed, Slot: s.cfg.Name, Where: s.where(), What: "the slot is with nobody, but its link is on", State: "nothing was changed",
			Next: "wait until the agent has cut it ('baton status')", Retry: true,
		}
	}
	return o, nil
}

// switchPower does what state says to a device whose slot is cut.
func (e *Enclosure) switchPower(ctx context.Context, s *slot, before ee.Observation, state PowerState) *Error {
	control := before.Control &^ uint8(ee.CtlLink|ee.CtlReload|ee.CtlDeviceReset|ee.CtlPower)
	set := func(control uint8, is func(ee.Observation) bool) error {
		if _, _, err := s.engine.Set(ctx, control); err != nil {
			return err
		}
		deadline := time.Now().Add(s.cfg.Profile.ResetTime)
		for {
			o, err := e.observe(ctx, s)
			if err != nil || is(o) {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%w: CONTROL 0x%02x, STATUS 0x%02x after %v", ee.ErrIgnored, o.Control, o.Status, s.cfg.Profile.ResetTime)
			}
			if err := pause(ctx, powerPoll); err != nil {
				return err
			}
		}
	}
	told := before.Control&ee.CtlPower != 0
	if state != PowerOn && (told || before.Status&ee.StatPower != 0) {
		err := set(control, func(o ee.Observation) bool { return o.Status&ee.StatPower == 0 })
		if err != nil {
			failed := s.hardware("the device's power could not be switched off", err)
			failed.State = "its memory counts as not preserved; 'baton status' shows its power"
			return failed
		}
	}
	if state == PowerOff {
		return nil
	}
	if state == PowerCycle {
		if err := pause(ctx, powerGap); err != nil {
			return s.hardware("the device has no power", err)
		}
	}
	// A power-up that is one has a new epoch; one that was asked for before may
	// have it already.
	late := state == PowerOn && told
	err := set(control|ee.CtlPower, func(o ee.Observation) bool {
		return o.Status&ee.StatPower != 0 && o.Status&ee.StatResetting == 0 && (late || o.Epoch != before.Epoch)
	})
	if err != nil {
		failed := s.hardware("the device's power did not come on", err)
		failed.State = "its memory counts as not preserved; it may have no power"
		failed.Next = "try again: baton slot power " + s.cfg.Name + " on; then look at the card"
		return failed
	}
	return nil
}

const powerPoll = 5 * time.Millisecond

// ResetRequest asks for a reset of a device.
type ResetRequest struct {
	Slot string
	Gen  ee.Generation
	By   string
}

// Reset has the engine reset the device, seen by its counter, whoever has the
// slot: it is how a reset is asked for where the guard swallows the host's.
// Where the flag would say yes, its doubt is in the store before the reset.
func (e *Enclosure) Reset(ctx context.Context, r ResetRequest) error {
	s, done, err := e.one(ctx, r.Slot, "reset")
	if err != nil {
		return e.refused(r.By, err)
	}
	defer done()
	if err := e.mayReset(ctx, s, r); err != nil {
		return e.refused(r.By, err)
	}
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	e.bind([]*slot{s}, e.state(s).Now.To)
	defer e.bind([]*slot{s}, 0)
	if err := e.voidByHand(work, s, plan.Resetting); err != nil {
		return e.refused(r.By, err)
	}
	before, after, failed := e.resetNow(work, s)
	if failed != nil {
		e.emit(Event{Kind: "reset", Slot: r.Slot, Code: string(failed.Code), Text: failed.Error(), By: r.By})
		return failed
	}
	e.emit(Event{
		Kind: "reset", Slot: r.Slot, VM: e.vmName(e.state(s).Now.VM), By: r.By,
		Text: fmt.Sprintf("%s: device reset, reset count %d, was %d", r.Slot, after, before),
	})
	return nil
}

// mayReset is what can refuse a reset.
func (e *Enclosure) mayReset(ctx context.Context, s *slot, r ResetRequest) error {
	if err := s.lacks(ee.CapDeviceReset|ee.CapStatus|ee.CapLinkControl, "a device reset", "reset it from its host, or take its power"); err != nil {
		return err
	}
	if err := e.generationIs(s, r.Gen); err != nil {
		return err
	}
	o, err := e.observe(ctx, s)
	switch {
	case err != nil:
		return s.untouched("the engine can not be read", err)
	case o.Status&ee.StatDevice == 0:
		return wrongState(s, fmt.Errorf("there is no device in the slot"))
	case s.powerOff(o):
		return s.noPower()
	}
	return nil
}

// resetNow resets a device under its link, as it is.
func (e *Enclosure) resetNow(ctx context.Context, s *slot) (before, after uint32, failed *Error) {
	fail := func(what string, err error) *Error {
		failed := s.hardware(what, err)
		failed.State = "link and assignment are as before; whether the device was reset, its reset count tells ('baton verdict " + s.cfg.Name + "')"
		return failed
	}
	o, err := e.observe(ctx, s)
	if err != nil {
		return 0, 0, fail("the engine can not be read", err)
	}
	// As for the guard: if the engine restarted since CONTROL was read, the same
	// write puts its link on.
	if err := e.setGuard(ctx, s, o.Control|ee.CtlDeviceReset); err != nil {
		return 0, 0, fail("the engine did not take the reset", err)
	}
	if _, err := s.engine.WasReset(ctx, o.Resets); err != nil {
		return 0, 0, fail("the device was not reset", err)
	}
	now, err := e.observe(ctx, s)
	if err != nil {
		return 0, 0, fail("the engine can not be read", err)
	}
	return o.Resets, now.Resets, nil
}

// voidByHand records, and shows hosts, that a memory is going to be lost by
// hand, where anything would say yes else. A failure has changed nothing else.
func (e *Enclosure) voidByHand(ctx context.Context, s *slot, on plan.Trigger) error {
	st := e.state(s)
	to, err := plan.Next(st.Flag(), on, false)
	if err != nil {
		return wrongState(s, err)
	}
	if to == st.Flag() || !st.HasEvidence() {
		return nil // nothing says yes of a device that no VM was seen to use
	}
	ev := plan.Evidence{Flag: to, Gen: st.Now.Gen, Why: plan.WhyOperator, Acked: st.Acked()}
	if err := e.put(ctx, nvm.Urgent, e.evidenceRecord(s, ev)); err != nil {
		return err
	}
	e.emit(Event{Kind: "void", Slot: s.cfg.Name, VM: e.vmName(st.Now.VM), Text: fmt.Sprintf("%s: memory void: %s", s.cfg.Name, plan.WhyOperator)})
	// Hosts read the flag in band: it must not stand when the memory goes.
	if f := e.follow(ctx, s); f != nil {
		failed := *f.err
		failed.State = "its memory counts as not preserved; nothing else was done"
		return &failed
	}
	return nil
}

// powerOff tells whether somebody has switched the device's power off.
func (s *slot) powerOff(o ee.Observation) bool {
	return s.can(ee.CapDevicePower|ee.CapStatus) && o.Control&ee.CtlPower == 0
}

func (s *slot) noPower() *Error {
	return &Error{
		Code: CodeWrongState, Slot: s.cfg.Name, Where: s.where(), What: "the device has no power", State: "nothing was changed",
		Next: "switch it on: baton slot power " + s.cfg.Name + " on",
	}
}

// cutAndPowered refuses to give anybody a slot that was taken by hand and is
// not seen to be cut, or whose device was switched off. It reads nothing where
// there is no sign of that.
func (e *Enclosure) cutAndPowered(ctx context.Context, s *slot) error {
	st := e.state(s)
	if st.Now.Kind.ByHand() && e.confirmable(s) && !e.confirmCut(ctx, s) {
		return &Error{
			Code: CodeUnassignable, Slot: s.cfg.Name, Where: s.where(), Retry: true,
			What:  "the slot was taken out by hand, and its cut is not confirmed: its old host may still reach it",
			State: "nothing was changed", Next: "cut it by hand (pull its cable, power it off); it is looked at again and again",
		}
	}
	e.mu.Lock()
	off := !s.readAt.IsZero() && s.powerOff(s.live)
	e.mu.Unlock()
	if !off {
		return nil
	}
	o, err := e.observe(ctx, s)
	if err == nil && s.powerOff(o) {
		return s.noPower()
	}
	return nil // an engine that can not be read is found out next
}

// confirmCut tells whether a slot that nobody should have is seen to be cut. What
// an engine says that is not the slot's proves nothing.
func (e *Enclosure) confirmCut(ctx context.Context, s *slot) bool {
	if s.cut == "confirmed" {
		return true
	}
	if s.can(ee.CapLinkControl|ee.CapStatus) && (s.fault == nil || s.trusted) {
		if o, err := e.observe(ctx, s); err == nil && o.Status&(ee.StatLink|ee.StatEnabled) == 0 {
			e.noteCut(s, "confirmed")
			return true
		}
	}
	if e.cutByVLAN(ctx, s) {
		e.noteCut(s, "confirmed")
		return true
	}
	return false
}

// lacks refuses what the slot's hardware can not do, and says what else can be
// done.
func (s *slot) lacks(c ee.Caps, what, next string) error {
	var known *Error
	if err := s.needs(c, what); errors.As(err, &known) {
		known.Next = next + " (docs/profiles.md)"
		return known
	}
	return nil
}

// groupName is for people: the host that has a group, or the group.
func (e *Enclosure) groupName(group uint16) string {
	if h := e.hostOf(group); h != nil {
		return h.Name
	}
	return fmt.Sprintf("group %d", group)
}

// Resolve lets the blocked set of a move go on without some of its slots. Those
// are held for their VM, their memory void, and nobody gets them before a
// confirmed cut is read. The rest is tried at once; if it still can not, it stays
// blocked. The move that is returned says how it stands.
func (e *Enclosure) Resolve(ctx context.Context, id ee.UUID, drop []string, by string) (Move, error) {
	if problem := e.storeProblem(); problem != nil {
		return Move{}, e.refused(by, problem)
	}
	set, err := e.blockedSet(id)
	if err != nil {
		return Move{}, e.refused(by, err)
	}
	dropped, err := e.toDrop(id, set, drop)
	if err != nil {
		return Move{}, e.refused(by, err)
	}
	if err := e.acquire(ctx, "resolve "+id.String(), false, set...); err != nil {
		return Move{}, e.refused(by, err)
	}
	defer e.release(set...)
	again, err := e.blockedSet(id)
	if err == nil && !slices.Equal(again, set) {
		err = &Error{Code: CodeBusy, What: "the set changed while the request waited", State: "nothing was changed", Next: "look with 'baton status' and try again", Retry: true}
	}
	if err != nil {
		return Move{}, e.refused(by, err)
	}

	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	if err := e.put(work, nvm.Urgent, e.byHandRecords(plan.KindDrop, dropped)...); err != nil {
		return Move{}, e.refused(by, err)
	}
	e.mu.Lock()
	b := set[0].blocked
	for _, s := range dropped {
		s.unblock()
	}
	e.mu.Unlock()
	e.emit(Event{
		Kind: "resolve", Slot: dropped[0].cfg.Name, VM: e.vmName(e.state(dropped[0]).Now.VM), Move: id.String(), By: by,
		Text: fmt.Sprintf("%v: dropped from move %s by hand, held for their VM, memory void", names(dropped), id),
	})
	e.retryBlocked(work, b)
	e.takeOut(work, dropped)
	e.mu.Lock()
	m, _ := e.recordedLocked(id, true)
	if now := e.moves[id]; now != nil {
		m = copyMove(now)
	}
	e.mu.Unlock()
	if absent := e.awaitRest(work, m, set, dropped); len(absent) > 0 {
		m.State, m.Reason = MoveWaiting, fmt.Sprintf("links are on, but the engine of %s has not appeared at %v", m.To, absent)
		e.mu.Lock()
		if now := e.moves[id]; now != nil {
			now.State, now.Reason = m.State, m.Reason
		}
		e.mu.Unlock()
	}
	text := fmt.Sprintf("move %s without %v: %s", id, names(dropped), m.State)
	if m.Reason != "" && m.State != MoveDone {
		text += ": " + m.Reason
	}
	e.emit(Event{Kind: "resolve", VM: m.VM, Host: m.To, Move: id.String(), Text: text, By: by})
	return m, nil
}

// awaitRest waits, as a move does, until the engine of the host is there at what
// is left of a set that went on, and returns where it is not.
func (e *Enclosure) awaitRest(ctx context.Context, m Move, set, dropped []*slot) (absent []string) {
	if m.State != MoveDone || m.To == "" {
		return nil
	}
	p := e.newPass(itemsOf(slices.DeleteFunc(slices.Clone(set), func(s *slot) bool { return slices.Contains(dropped, s) })), nil)
	for _, it := range p.items {
		it.want = e.desire(it.s)
		if !it.want.Link {
			return nil
		}
	}
	stop := e.fenceSignal(m.To)
	deadline := time.Now().Add(DefaultWait)
	for pausing := peerPoll; ; pausing = min(2*pausing, time.Second) {
		absent, _ = e.peers(ctx, p) // of a foreign one the poller takes care
		if len(absent) == 0 || time.Now().After(deadline) || waitFor(ctx, stop, pausing) {
			return absent
		}
	}
}

// blockedSet returns the set that is blocked in a move, by index.
func (e *Enclosure) blockedSet(id ee.UUID) ([]*slot, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if id.IsZero() {
		return nil, bad("no move is named", "'baton moves' lists them")
	}
	for _, s := range e.slots {
		if s.blockedBy(id) {
			set := slices.Clone(s.blocked.slots)
			slices.SortFunc(set, func(a, b *slot) int { return a.index - b.index })
			return set, nil
		}
	}
	m, known := e.recordedLocked(id, false)
	if now, ok := e.moves[id]; ok {
		m, known = *now, true
	}
	if !known {
		return nil, &Error{Code: CodeUnknownMove, What: "there is no move " + id.String(), State: "nothing was changed", Next: "'baton moves' lists them"}
	}
	return nil, &Error{
		Code: CodeWrongState, What: fmt.Sprintf("move %s is %s, not blocked", id, m.State), State: "nothing was changed",
		Next: "there is nothing to resolve; 'baton status' shows what is blocked",
	}
}

// toDrop resolves the slots that are to leave a set.
func (e *Enclosure) toDrop(id ee.UUID, set []*slot, drop []string) ([]*slot, error) {
	if len(drop) == 0 {
		return nil, bad("no slot is named to be dropped", "the set is "+fmt.Sprint(names(set)))
	}
	var dropped []*slot
	for _, n := range drop {
		s, err := e.slotNamed(n)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(set, s) {
			return nil, bad(fmt.Sprintf("slot %s is not in the blocked set of move %s", n, id), "the set is "+fmt.Sprint(names(set)))
		}
		if slices.Contains(dropped, s) {
			return nil, bad("slot "+n+" is named twice", "name each slot once")
		}
		dropped = append(dropped, s)
	}
	if len(dropped) == len(set) {
		return nil, bad("that would drop the whole set", "leave one, or free each of them by hand: baton move resolve --force-free SLOT")
	}
	slices.SortFunc(dropped, func(a, b *slot) int { return a.index - b.index })
	return dropped, nil
}

// byHandRecords take slots out of what they are in, memory void: KindDrop holds
// them for their VMs, KindForced makes them nobody's. Who may still reach them
// is written down with it.
func (e *Enclosure) byHandRecords(kind plan.Kind, slots []*slot) []record {
	var taken []plan.Assignment
	var rest []record
	for _, s := range slots {
		a := plan.Assignment{Kind: kind, To: ee.GroupFree}
		if kind == plan.KindDrop {
			a.VM = e.state(s).Now.VM
		}
		i := slices.IndexFunc(taken, func(o plan.Assignment) bool { return o.VM == a.VM })
		if i < 0 {
			i = len(taken)
			a.Gen = e.reserveGen()
			taken = append(taken, a)
		}
		taken[i].Slots = taken[i].Slots.With(s.index)
		gen := taken[i].Gen
		rest = append(rest, e.evidenceRecord(s, plan.Evidence{Flag: plan.Void, Gen: gen, Why: plan.WhyOperator}))
		if groups := e.mayReach(s); len(groups) > 0 {
			rest = append(rest, e.uncutRecord(s, plan.UncutOf(gen, groups)))
		}
	}
	recs := make([]record, len(taken), len(taken)+len(rest))
	for i, a := range taken {
		recs[i] = e.assignmentRecord(a)
	}
	return append(recs, rest...)
}

// mayReach are the groups that a slot whose cut is not confirmed may be linked
// with: where records, page and engine have it, who waits for its cut, and who
// was not cut when it was last taken by hand.
func (e *Enclosure) mayReach(s *slot) (groups []uint16) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.cut == "confirmed" {
		return nil
	}
	add := func(g uint16) {
		if ee.ValidGroup(g) && !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	if s.block != nil {
		add(s.block.Group)
	}
	if s.readErr == nil && !s.readAt.IsZero() {
		add(s.live.Group)
	}
	for host, open := range e.pending {
		if h := e.host(host); h != nil && slices.Contains(open, s) {
			add(h.Group)
		}
	}
	for _, a := range slices.Backward(s.hist) {
		add(a.To)
	}
	if s.took != nil && s.took.Gen == s.st.Now.Gen {
		for _, g := range s.took.All() {
			add(g)
		}
	}
	return groups
}

// takeOut cuts slots that were taken by hand, as far as the hardware lets it,
// and brings each to its records; one that can not be is blocked on its own.
func (e *Enclosure) takeOut(ctx context.Context, slots []*slot) {
	for _, s := range slots {
		if s.fault != nil {
			e.comeBack(ctx, s)
		}
		it := &item{s: s}
		if s.fault == nil || s.trusted {
			it.live, _ = e.observeIf(ctx, s)
			if s.fault == nil && it.live != (ee.Observation{}) {
				e.stillIts(ctx, s) // else nothing is written to it
			}
		}
		p := e.newPass([]*item{it}, nil)
		if cut := p.cutAll(ctx); cut != nil {
			e.emit(Event{Kind: "fault", Slot: s.cfg.Name, Code: string(cut.Code), Text: cut.Error()})
		}
		if !it.cut && !e.confirmCut(ctx, s) {
			e.noteCut(s, "unconfirmed")
		}
		if s.fault != nil {
			continue // it is looked at again and again
		}
		if f := e.settled(ctx, []*slot{s}); f != nil {
			e.newPass(itemsOf([]*slot{s}), nil).block(ctx, f.err)
		} else if s.cut != "confirmed" && !e.confirmCut(ctx, s) {
			e.noteCut(s, "unconfirmed")
		}
	}
}

// observeIf reads an engine that can be read.
func (e *Enclosure) observeIf(ctx context.Context, s *slot) (ee.Observation, error) {
	if !s.can(ee.CapStatus) {
		return ee.Observation{}, nil
	}
	return e.observe(ctx, s)
}

// ForceFree makes the records of a slot that does not do as told say that it is
// free, nobody's and void, whatever its hardware does; typed is the slot's name,
// typed by a person. Nobody gets it before a confirmed cut is read. Where that
// could not be done at once the error is CodeUnconfirmed and the records say
// free all the same.
func (e *Enclosure) ForceFree(ctx context.Context, name, typed, by string) error {
	s, err := e.slotNamed(name)
	if err != nil {
		return e.refused(by, err)
	}
	if typed != name {
		return e.refused(by, bad(fmt.Sprintf("%q was typed, the slot is %q", typed, name), "type the slot's name to force it free"))
	}
	if problem := e.storeProblem(); problem != nil {
		return e.refused(by, problem)
	}
	if err := e.acquire(ctx, "force-free", false, s); err != nil {
		return e.refused(by, err)
	}
	defer e.release(s)
	if err := e.mayForce(ctx, s); err != nil {
		return e.refused(by, err)
	}

	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	if e.state(s).Now.Kind != plan.KindForced {
		var recs []record
		if e.lastOfMove(s) {
			recs = e.holdRecords([]*slot{s}) // the move ends with it
		}
		was := e.vmName(e.state(s).Now.VM)
		if err := e.put(work, nvm.Urgent, append(recs, e.byHandRecords(plan.KindForced, []*slot{s})...)...); err != nil {
			return e.refused(by, err)
		}
		e.emit(Event{Kind: "resolve", Slot: name, VM: was, Text: name + ": forced free by hand: the records say free, nobody's, memory void; cutting", By: by})
	}
	e.mu.Lock()
	if b := s.blocked; b != nil {
		s.unblock()
		b.next = time.Now() // what is left of its set need not wait
	}
	e.concludeLocked()
	e.mu.Unlock()
	e.takeOut(work, []*slot{s})
	if s.cut == "confirmed" {
		e.emit(Event{Kind: "resolve", Slot: name, Text: name + ": forced free, its cut is confirmed", By: by})
		return nil
	}
	open := &Error{
		Code: CodeUnconfirmed, Slot: name, Where: s.where(), What: "the records say free, but the cut is not confirmed: its old host may still reach it", Retry: true,
		State: "nobody gets the slot before its cut is confirmed, which is tried again and again", Next: "cut it by hand (pull its cable, power it off)",
	}
	e.emit(Event{Kind: "resolve", Slot: name, Code: string(open.Code), Text: open.Error(), By: by})
	return open
}

// mayForce refuses to force what does as told.
func (e *Enclosure) mayForce(ctx context.Context, s *slot) error {
	if !e.state(s).Known() {
		if s.fault != nil && s.index >= maxSlots {
			return s.fault
		}
		return &Error{
			Code: CodeWrongState, Slot: s.cfg.Name, What: "nothing is known of the slot: there is nobody to take it from", State: "nothing was changed",
			Next: "take what is there as the slot's: baton slot adopt " + s.cfg.Name,
		}
	}
	if s.fault == nil && s.blocked == nil && s.readErr == nil {
		_, _ = e.observeIf(ctx, s) // a failure is kept
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	pending := false
	for _, open := range e.pending {
		pending = pending || slices.Contains(open, s)
	}
	if s.fault != nil || s.blocked != nil || s.readErr != nil || pending || s.cut == "unconfirmed" {
		return nil
	}
	next := "there is nothing to do: it is free"
	if vm := e.vmName(s.st.Now.VM); vm != "" {
		next = fmt.Sprintf("release it: baton release %s --slots %s --mode free", vm, s.cfg.Name)
	}
	return &Error{Code: CodeWrongState, Slot: s.cfg.Name, What: "the slot does as told: it is not forced", State: "nothing was changed", Next: next}
}

// lastOfMove tells whether a move that is not over has no other slot than s any
// more.
func (e *Enclosure) lastOfMove(s *slot) bool {
	if !e.mayEnd(s) {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	id := s.st.Now.ID
	return !id.IsZero() && !slices.ContainsFunc(e.slots, func(o *slot) bool { return o != s && o.st.Now.ID == id })
}
