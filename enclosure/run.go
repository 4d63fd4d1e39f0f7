package enclosure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"baton/ee"
	"baton/enclosure/bug"
	"baton/enclosure/plan"
	"baton/vlan"
)

// pollEvery is how often every engine's STATUS and LATCH are read
// (docs/design.md: at least every second).
const pollEvery = time.Second

// Run watches the hardware until ctx ends: engines that restarted or lost their
// block are brought back, blocked sets and fences that are not confirmed are
// tried again, and the store is tended. It returns early where the fate of a
// record is not known: the next Open reads it.
func (e *Enclosure) Run(ctx context.Context) error {
	defer e.endAudit(ctx) // when the pollers have ended
	// Each bus has a poller of its own: one on which every transfer times out
	// does not keep the others from being looked at.
	var pollers sync.WaitGroup
	defer pollers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	own := newLoop("watch over store, fences and blocked sets")
	loops := []*loop{own}
	for bus, slots := range e.byBus() {
		l := newLoop("poller of bus " + bus)
		loops = append(loops, l)
		pollers.Go(func() { e.pollAll(ctx, l, slots) })
	}
	e.loops.Store(&loops)
	defer e.loops.Store(&[]*loop{})
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		own.turn()
		e.tellRepeats(false)
		problem := e.storeProblem()
		if problem != nil && e.store != nil && !e.memory.frozen {
			return fmt.Errorf("starting again settles what the store holds: %w", problem)
		}
		if problem != nil {
			continue
		}
		e.retryFences(ctx, own)
		e.retryBlockages(ctx, own)
		own.turn()
		e.tendAudit(ctx)
		own.turn()
		if e.idle() {
			if err := e.store.Tend(ctx); err != nil && ctx.Err() == nil {
				e.emit(Event{Kind: "store", Text: fmt.Sprintf("tending the store: %v", err)})
			}
		}
	}
}

// byBus groups the slots by their buses.
func (e *Enclosure) byBus() map[string][]*slot {
	buses := map[string][]*slot{}
	for _, s := range e.slots {
		buses[s.cfg.BusName] = append(buses[s.cfg.BusName], s)
	}
	return buses
}

// pollAll polls the slots of one bus until ctx ends.
func (e *Enclosure) pollAll(ctx context.Context, l *loop, slots []*slot) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, s := range slots {
			l.on(s)
			// Without a store nobody knows how a slot should be.
			if ctx.Err() == nil && e.storeProblem() == nil {
				e.poll(ctx, s)
			}
		}
		l.turn()
	}
}

func (e *Enclosure) storeProblem() *Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.problem
}

// idleAfter is how long nothing must have been assigned before the store is
// tended: its page writes are nobody's who waits.
const idleAfter = 5 * time.Second

// idle tells whether the store may be tended. One that runs out of room is
// tended at any time.
func (e *Enclosure) idle() bool {
	if e.store.Stats().Free < 2*storeReserve {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Since(e.assignedAt) >= idleAfter
}

// tryLock takes a slot's lock as the poller, or leaves it.
func (e *Enclosure) tryLock(s *slot) bool {
	select {
	case s.lock <- struct{}{}:
		e.nowHeld(s, pollHolder)
		return true
	default:
		return false
	}
}

// lockWithin takes a slot's lock as the poller if it is free within d.
func (e *Enclosure) lockWithin(s *slot, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case s.lock <- struct{}{}:
		e.nowHeld(s, pollHolder)
		return true
	case <-t.C:
		return false
	}
}

func (e *Enclosure) poll(ctx context.Context, s *slot) {
	if !e.tryLock(s) {
		return
	}
	defer e.release(s)
	if s.fault != nil {
		e.retryFault(ctx, s)
		return
	}
	if s.blocked == nil && s.portLate {
		e.retryPort(ctx, s)
	}
	if s.blocked != nil || !s.can(ee.CapStatus) {
		return
	}
	before := s.readErr
	o, err := e.observe(ctx, s)
	switch {
	case err != nil && before == nil:
		e.emit(Event{Kind: "fault", Slot: s.cfg.Name, Code: string(CodeHardware), Text: s.hardware("the engine can not be read; its memory verdict is unknown", err).Error()})
	case err == nil && before != nil:
		e.tell(Event{Kind: "recovery", Slot: s.cfg.Name, Text: s.cfg.Name + ": the engine can be read again"})
	}
	if err != nil {
		return
	}
	if !e.stillIts(ctx, s) {
		return
	}
	if e.astray(s, o) || before != nil || e.strayPeer(ctx, s, o) {
		e.bringBack(ctx, s, false)
	}
	if e.takeLate(s) {
		e.followPolicy(ctx, s)
	}
	if s.stale {
		_ = e.follow(ctx, s) // the poller comes by again
	}
	if st := e.state(s); (st.Flag() == plan.Armed || st.Flag() == plan.Target) && plan.Doubt(st, s.live) != plan.NoReason {
		// Hosts read the flag in band: it must not stand longer than this.
		e.recordDoubt(ctx, s)
		if f := e.follow(ctx, s); f != nil {
			e.emit(Event{Kind: "fault", Slot: s.cfg.Name, Code: string(f.err.Code), Text: f.err.Error()})
		}
	}
	e.watchPeer(ctx, s)
}

// retryPort looks again at the port of a slot that was left as it was since the
// switch could not be read.
func (e *Enclosure) retryPort(ctx context.Context, s *slot) {
	err := e.setVLAN(ctx, s, e.desire(s).Group())
	if errors.Is(err, vlan.ErrUnseen) {
		return // at the next look; a warning says it
	}
	s.portLate = false
	if err != nil {
		known := e.asError(err)
		e.emit(Event{Kind: "fault", Slot: s.cfg.Name, Code: string(known.Code), Text: known.Error()})
		return
	}
	e.tell(Event{Kind: "recovery", Slot: s.cfg.Name, Text: fmt.Sprintf("%s: port %s can be read again: %s", s.cfg.Name, s.cfg.Port, e.cfg.Switch.Last(s.cfg.Port))})
}

// stillIts looks who is in a slot whose engine has just been read, if that is
// somebody else than before. It returns false where nothing may be written there.
func (e *Enclosure) stillIts(ctx context.Context, s *slot) bool {
	if s.readErr != nil || !s.can(ee.CapStatus) || s.live.Ident == s.identity.Word {
		return true
	}
	if fault := e.identifySlot(ctx, s); fault != nil {
		e.setFault(s, fault)
		e.emit(Event{Kind: "fault", Slot: s.cfg.Name, Code: string(fault.Code), Text: fault.Error()})
		return false
	}
	// The configuration lets any part be there. Its values say no already; what
	// is in it now is not what the VM had, whatever they say later.
	if e.state(s).HasEvidence() {
		e.void(ctx, s, plan.WhyReplaced)
	}
	e.emit(Event{Kind: "fault", Slot: s.cfg.Name, Text: s.cfg.Name + ": engine or device was replaced; its memory counts as not preserved"})
	return true
}

// strayPeer tells whether an engine whose link is on may connect to another
// peer, or shows another flag, than its agent wrote.
func (e *Enclosure) strayPeer(ctx context.Context, s *slot, o ee.Observation) bool {
	if o.Control&ee.CtlLink == 0 || !s.can(ee.CapLinkControl) {
		return false
	}
	peer, show, err := s.engine.Expected(ctx)
	want := e.desire(s)
	return err == nil && (s.can(ee.CapExpectPeer) && peer != want.Peer || s.can(ee.CapFlagMirror) && show != want.Show)
}

// astray tells whether an engine is not as its agent left it.
func (e *Enclosure) astray(s *slot, o ee.Observation) bool {
	st, want := e.state(s), e.desire(s)
	// What the engine's words speak against is to be recorded (recordDoubt).
	doubted := false
	if s.can(ee.CapLatches) {
		switch st.Flag() {
		case plan.Armed, plan.Target:
			doubted = plan.Doubt(st, o) != plan.NoReason
		case plan.Spent:
			doubted = o.Proven == 0
		}
	}
	return o.Status&ee.StatLoaded == 0 || o.Status&ee.StatConfigBad != 0 || o.Group != want.Block.Group ||
		want.Link != (o.Control&ee.CtlLink != 0) || want.Missing(o.Control) || doubted
}

// withOthers takes the locks of the others of s's set, whose own is held, if the
// set must stay together. It returns nil where one of them is not free, nor soon:
// the pollers of other buses look at the same instants. Of two that wait for
// each other the one with the higher number gives up first.
func (e *Enclosure) withOthers(s *slot) (set []*slot, done func()) {
	e.mu.Lock()
	joint, gen := e.joint(s), s.st.Now.Gen
	e.mu.Unlock()
	set = []*slot{s}
	done = func() { e.release(set[1:]...) }
	if !joint {
		return set, done
	}
	for _, o := range e.slots {
		if o == s || e.state(o).Now.Gen != gen {
			continue
		}
		wait := 50 * time.Millisecond
		if o.index < s.index {
			wait = 5 * time.Millisecond
		}
		if !e.lockWithin(o, wait) {
			done()
			return nil, nil
		}
		o.leader.Store(s)
		set = append(set, o)
	}
	return set, done
}

// bringBack runs recovery for the set of a slot whose lock is held.
func (e *Enclosure) bringBack(ctx context.Context, s *slot, suspect bool) {
	set, done := e.withOthers(s)
	if set == nil {
		return
	}
	defer done()
	e.tell(Event{Kind: "recovery", Slot: s.cfg.Name, Text: fmt.Sprintf("%s: the engine is not as it was left (restart, or its block went bad); bringing it back", s.cfg.Name)})
	e.lookAgain(ctx, set)
	e.recoverSet(ctx, set, suspect)
}

// retryFault looks whether a slot that could not be used can be used now.
func (e *Enclosure) retryFault(ctx context.Context, s *slot) {
	if e.comeBack(ctx, s) && s.blocked == nil {
		e.bringBack(ctx, s, true)
	}
}

// comeBack looks again who is in a slot that had a fault. If it is the
// configured part it is read, as at a start, and true returned.
func (e *Enclosure) comeBack(ctx context.Context, s *slot) bool {
	if s.fault.Code == CodeUnassignable {
		return false
	}
	fault := e.identifySlot(ctx, s)
	e.setFault(s, fault)
	if fault != nil {
		return false
	}
	e.emit(Event{Kind: "recovery", Slot: s.cfg.Name, Text: s.cfg.Name + ": answers, and is the configured part"})
	e.read(ctx, []*slot{s})
	e.settle(ctx, s)
	return s.fault == nil
}

// watchPeer notices who appears at, or leaves, the other end.
func (e *Enclosure) watchPeer(ctx context.Context, s *slot) {
	up := s.live.Status&ee.StatLink != 0
	known := !s.peer.MAC.IsZero()
	// An engine that connects to whoever has the group may have changed its
	// peer between two looks.
	if s.blocked != nil || up == known && (!up || s.can(ee.CapExpectPeer)) {
		return
	}
	var peer ee.Peer // a link that is down has none, whoever the engine would take
	if up {
		var err error
		if peer, err = s.engine.Peer(ctx); err != nil {
			return
		}
	}
	e.mu.Lock()
	was, problem := s.peer, e.problem
	s.peer = peer
	e.mu.Unlock()
	if problem != nil {
		return // nobody knows whose the slot should be; status shows who is there
	}
	st := e.state(s)
	host := e.hostOf(st.Now.To)
	if host == nil {
		return
	}
	if peer.MAC.IsZero() {
		e.emit(Event{Kind: "link", Slot: s.cfg.Name, Host: host.Name, Text: s.cfg.Name + ": link down, the engine of " + host.Name + " is gone"})
		return
	}
	if peer.MAC != host.MAC {
		set, done := e.withOthers(s)
		if set == nil {
			return // at the next look
		}
		defer done()
		p := e.newPass(itemsOf(set), nil)
		why := s.foreignError(peer.MAC, host.MAC)
		e.foreign(ctx, p, why)
		p.block(ctx, why)
		return
	}
	if peer == was {
		return
	}
	e.emit(Event{Kind: "linked", Slot: s.cfg.Name, Host: host.Name, VM: e.vmName(st.Now.VM), Move: st.Now.ID.String(),
		Text: fmt.Sprintf("%s linked with %s, generation %d", s.cfg.Name, host.Name, st.Now.Gen)})
	e.mu.Lock()
	if m := e.moves[st.Now.ID]; m != nil && m.State == MoveWaiting && e.allLinked(m) {
		m.State, m.Reason = MoveDone, ""
	}
	e.mu.Unlock()
}

// allLinked tells whether every slot of m has a peer, but for those that were
// taken out of it. Enclosure.mu is held.
func (e *Enclosure) allLinked(m *Move) bool {
	for _, s := range e.slots {
		if slices.Contains(m.Slots, s.cfg.Name) && s.st.Now.ID == m.ID && s.peer.MAC.IsZero() {
			return false
		}
	}
	return true
}

func (e *Enclosure) retryBlockages(ctx context.Context, l *loop) {
	for _, s := range e.slots {
		l.on(s)
		e.mu.Lock()
		b := s.blocked
		due := b != nil && !bug.Is(bug.BlockedForever) && b.slots[0] == s && !time.Now().Before(b.next)
		var set []*slot
		if due {
			set = slices.Clone(b.slots)
		}
		e.mu.Unlock()
		if !due {
			continue
		}
		var held []*slot
		for _, o := range set {
			if !e.lockWithin(o, 50*time.Millisecond) { // a poller has it for a moment
				break
			}
			o.leader.Store(s)
			held = append(held, o)
		}
		e.mu.Lock()
		same := len(held) == len(set) && slices.Equal(set, b.slots)
		e.mu.Unlock()
		if same {
			e.retryBlocked(ctx, b)
		}
		e.release(held...)
	}
}
