package enclosure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"baton/ee"
	"baton/enclosure/bug"
	"baton/enclosure/plan"
	"baton/nvm"
)

// Move passes a set of slots to another host, as one. A refusal is an *Error
// and has changed nothing. Once the set has been cut, the move comes back with
// how it ended in State.
//
// It blocks for the hardware's time (about 20 ms a slot) and then for at most
// Wait until the target's engine is the peer.
func (e *Enclosure) Move(ctx context.Context, r MoveRequest) (Move, error) {
	if r.ID.IsZero() {
		return Move{}, e.refused(r.By, bad("the move has no ID", "give one, so that a repeat has the effect of one"))
	}
	if r.Wait < 0 || r.Wait > MaxWait {
		return Move{}, e.refused(r.By, badWait(r.Wait))
	}
	known := e.roster.Load()
	vm, slots, err := e.setOf(r.VM, r.Slots)
	if err != nil {
		return Move{}, e.refused(r.By, err)
	}
	target := e.host(r.To)
	if target == nil {
		return Move{}, e.refused(r.By, unknownHost(r.To))
	}
	a := plan.Assignment{Kind: plan.KindMove, Preserve: r.Preserve && vm.Policy != plan.Never, To: target.Group, VM: vm.UUID, ID: r.ID, Slots: bits(slots)}
	if m, done, err := e.repeated(a, slots, r); done {
		return m, err
	}
	if err := e.acquire(ctx, "move "+r.VM+" to "+r.To, false, slots...); err != nil {
		return Move{}, e.refused(r.By, err)
	}
	defer e.release(slots...)
	// Who waited for a lock may have waited for the same request, or for a
	// change of who has the target's group.
	if m, done, err := e.repeated(a, slots, r); done {
		return m, err
	}
	if err := e.bindAs(known, slots, target.Group); err != nil {
		return Move{}, e.refused(r.By, err)
	}
	defer e.bind(slots, 0)
	if err := e.mayAssign(ctx, vm, target, slots, r.Expect); err != nil {
		return Move{}, e.refused(r.By, err)
	}
	if a.Preserve && e.isWith(slots, vm.UUID, target.Group) {
		return e.alreadyThere(ctx, a, slots, r), nil
	}
	return e.assign(ctx, a, slots, *vm, *target, r.Wait, r.By)
}

// repeated answers a request whose ID is known, with its outcome. One that was
// refused had no effect: it may be tried again.
func (e *Enclosure) repeated(a plan.Assignment, slots []*slot, r MoveRequest) (m Move, done bool, err error) {
	m, known := e.MoveByID(r.ID)
	if !known || m.State == MoveRefused || bug.Is(bug.Once) {
		return Move{}, false, nil
	}
	if m.VM != r.VM || m.To != r.To || m.Preserve != a.Preserve || !sameNames(m.Slots, names(slots)) {
		return Move{}, true, e.refused(r.By, &Error{
			Code: CodeMoveIDReused, What: fmt.Sprintf("move %s is known with other content: %s, %v to %s", r.ID, m.VM, m.Slots, m.To),
			State: "nothing was changed", Next: "use a new ID for another move",
		})
	}
	return m, true, nil
}

// bindAs notes which group an operation brings slots to, unless hosts and VMs
// are no longer those that the request was understood by.
func (e *Enclosure) bindAs(known *roster, slots []*slot, group uint16) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refitting || e.roster.Load() != known {
		return &Error{Code: CodeBusy, What: "hosts or VMs were configured anew while the request waited", State: "nothing was changed", Next: "look with 'baton status' and try again", Retry: true}
	}
	bindLocked(slots, group)
	return nil
}

// isWith tells whether a VM has all of slots on the host with that group.
func (e *Enclosure) isWith(slots []*slot, vm ee.UUID, group uint16) bool {
	for _, s := range slots {
		if st := e.state(s); st.Now.To != group || st.Now.VM != vm {
			return false
		}
	}
	return true
}

// alreadyThere answers a move to where the set is: nothing is cut for it, and
// nothing is recorded.
func (e *Enclosure) alreadyThere(ctx context.Context, a plan.Assignment, slots []*slot, r MoveRequest) Move {
	m := Move{
		ID: a.ID, VM: r.VM, Slots: names(slots), From: r.To, To: r.To, State: MoveDone, Preserve: a.Preserve,
		Generation: e.generation(slots[0]),
		Memory:     map[string]plan.Verdict{}, Reason: "the set is there already; nothing was changed",
	}
	for _, s := range slots {
		if s.can(ee.CapStatus) {
			_, _ = e.observe(ctx, s) // a failure makes the verdict unknown
		}
		m.Memory[s.cfg.Name] = e.judge(s)
	}
	kept := m
	e.remember(&kept)
	e.tell(Event{Kind: "move", VM: r.VM, Host: r.To, Move: a.ID.String(), Text: fmt.Sprintf("%s: %v are with %s already", r.VM, m.Slots, r.To), By: r.By})
	return m
}

// setOf resolves a VM and slots of it; no slots means all of the VM.
func (e *Enclosure) setOf(vmName string, slotNames []string) (*VMConfig, []*slot, error) {
	vm := e.vm(vmName)
	if vm == nil {
		return nil, nil, &Error{Code: CodeUnknownVM, What: fmt.Sprintf("there is no VM %q in the configuration", vmName), State: "nothing was changed", Next: "'baton config show' has the VMs"}
	}
	if len(slotNames) == 0 {
		slotNames = vm.Slots
	}
	var slots []*slot
	for _, n := range slotNames {
		s, err := e.slotNamed(n)
		if err != nil {
			return nil, nil, err
		}
		if !slices.Contains(vm.Slots, n) {
			return nil, nil, &Error{
				Code: CodeSlotNotVM, Slot: n, What: "the slot is not one of VM " + vmName,
				State: "nothing was changed", Next: "its slots are " + strings.Join(vm.Slots, ", "),
			}
		}
		if slices.Contains(slots, s) {
			return nil, nil, bad("slot "+n+" is named twice", "name each slot once, or none for all of the VM")
		}
		slots = append(slots, s)
	}
	slices.SortFunc(slots, func(a, b *slot) int { return a.index - b.index })
	return vm, slots, nil
}

// mayAssign is everything that can refuse a new assignment before the hardware
// is asked. The locks of slots are held.
func (e *Enclosure) mayAssign(ctx context.Context, vm *VMConfig, target *HostConfig, slots []*slot, expect map[string]ee.Generation) error {
	const unchanged = "nothing was changed"
	if problem := e.storeProblem(); problem != nil {
		return problem // without a store every host counts as fenced, too
	}
	if !slices.Contains(vm.Hosts, target.Name) && !bug.Is(bug.Closed) {
		return &Error{
			Code: CodeNotAllowed, What: fmt.Sprintf("VM %s may not run on %s", vm.Name, target.Name), State: unchanged,
			Next: "the configuration lets it run on " + strings.Join(vm.Hosts, ", "),
		}
	}
	if _, fenced := e.fenced(target.Name); fenced {
		err := e.fencedError(target.Group)
		err.State = unchanged
		return err
	}
	for name, gen := range expect {
		s, err := e.slotNamed(name)
		if err != nil {
			return err
		}
		if !slices.Contains(slots, s) {
			return bad("a generation is given for slot "+name+", which is not in the set", "give generations of the slots that are to be moved")
		}
		if have := e.generation(s); have != gen {
			return &Error{
				Code: CodeGenerationChanged, Slot: name, Current: have, State: unchanged,
				What: fmt.Sprintf("generation is %s, not %s: someone moved it since you looked", have, gen),
				Next: "look again with 'baton status', or leave --expect out to move what is there",
			}
		}
	}
	from := uint16(ee.GroupFree)
	for _, s := range slots {
		if err := e.usable(s); err != nil {
			return err
		}
		if err := e.cutAndPowered(ctx, s); err != nil {
			return err
		}
		st := e.state(s)
		switch {
		case st.Held() && st.Now.VM != vm.UUID:
			return &Error{
				Code: CodeHeldForOther, Slot: s.cfg.Name, What: "the slot is held for VM " + e.vmName(st.Now.VM), State: unchanged,
				Next: fmt.Sprintf("release it if that VM will not come back: baton release %s --mode free", e.vmName(st.Now.VM)),
			}
		case st.InUse() && st.Now.VM != vm.UUID:
			return &Error{
				Code: CodeInUse, Slot: s.cfg.Name, What: "VM " + e.vmName(st.Now.VM) + " has the slot and has not released it", State: unchanged,
				Next: "stop that VM and release the slot first",
			}
		}
		if st.Now.To == ee.GroupFree {
			continue
		}
		if from != ee.GroupFree && from != st.Now.To {
			return &Error{
				Code: CodeSplitSet, Slot: s.cfg.Name, What: fmt.Sprintf("the set is with two hosts: groups %d and %d", from, st.Now.To), State: unchanged,
				Next: "move its parts one by one",
			}
		}
		from = st.Now.To
	}
	return nil
}

// assign is the transaction of docs/design.md, "A move", for moves and attaches
// alike. The locks are held and the request has been found good.
func (e *Enclosure) assign(ctx context.Context, a plan.Assignment, slots []*slot, vm VMConfig, target HostConfig, wait time.Duration, by string) (Move, error) {
	began := time.Now()
	a.Gen = e.reserveGen()
	m := &Move{ID: a.ID, VM: vm.Name, Slots: names(slots), To: target.Name, State: MoveRunning, Preserve: a.Preserve, Generation: ee.Generation{Incarnation: e.inc, Counter: a.Gen}, by: by}
	for _, s := range slots {
		if h := e.hostOf(e.state(s).Now.To); h != nil {
			m.From = h.Name
		}
	}
	step := func(name, text string) {
		e.mu.Lock()
		m.Steps = append(m.Steps, Step{name, time.Since(began), text})
		e.mu.Unlock()
		e.emit(Event{Kind: "step", VM: vm.Name, Host: target.Name, Move: a.ID.String(), Text: name + ": " + text, By: by})
	}
	e.remember(m)

	work, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	if e.wary(slots) {
		if _, seen := e.look(work, slots); seen != nil {
			e.end(m, MoveRefused, seen)
			return Move{}, e.refused(by, seen)
		}
	}
	// The intent's write cycle is the time in which the slots are read.
	var intent *writing
	var err error
	if bug.Is(bug.RecordLate) {
		intent = &writing{e: e, recs: []record{e.assignmentRecord(a)}}
	} else {
		intent, err = e.begin(work, nvm.Urgent, e.assignmentRecord(a))
	}
	if err != nil {
		e.forget(m)
		return Move{}, e.refused(by, err)
	}
	looked := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- intent.durable(work, looked) }()
	items, seen := e.look(work, slots)
	close(looked)
	err = <-ended
	if seen != nil && err == nil {
		// Nothing was cut: the intent is replaced by its cancellation, and the
		// slots keep the generation that they have.
		a.Kind = plan.KindCancel
		if err := e.put(context.WithoutCancel(ctx), nvm.Urgent, e.assignmentRecord(a)); err != nil {
			seen.Err = also(seen.Err, fmt.Errorf("and its intent could not be cancelled: %w", err))
			seen.State = "nothing was cut; the move may be carried out when the agent starts again"
		}
		e.end(m, MoveRefused, seen)
		return Move{}, e.refused(by, seen)
	}
	if err != nil {
		e.forget(m)
		return Move{}, e.refused(by, err)
	}
	text := fmt.Sprintf("identity, config block and group of %d slots read and agree", len(slots))
	if !a.Preserve && vm.Policy == plan.Never {
		text += "; policy never: the memory is not kept"
	}
	step("checked", text)
	intent.apply()
	step("intent", "written and read back")

	p := e.prepare(items, a, vm, step)
	if f := p.run(work); f != nil {
		return e.fail(ctx, p, f, m, slots, wait, by)
	}
	if bug.Is(bug.RecordLate) {
		_ = e.put(work, nvm.Urgent, intent.recs...)
	}
	e.concludeDoubt(ctx, p)
	return e.awaitPeers(ctx, p, m, wait, by), nil
}

// waryFor is how long after a look that refused a request the slots are looked
// at before the intent is written: a request that is refused again and again
// must not cost two page writes each time.
const waryFor = time.Minute

func (e *Enclosure) wary(slots []*slot) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(slots, func(s *slot) bool { return !s.refusedAt.IsZero() && time.Since(s.refusedAt) < waryFor })
}

// look reads each slot and compares with what is known of it.
func (e *Enclosure) look(ctx context.Context, slots []*slot) ([]*item, *Error) {
	items := make([]*item, len(slots))
	for i, s := range slots {
		items[i] = &item{s: s}
	}
	perBus(items, func(its []*item) {
		for _, it := range its {
			it.err = e.lookAt(ctx, it)
		}
	})
	if !slices.ContainsFunc(items, func(it *item) bool { return it.err != nil }) && len(items) > 0 {
		items[0].err = e.lookAtPorts(ctx, slots)
	}
	e.mu.Lock()
	for _, it := range items {
		it.s.refusedAt = time.Time{}
		if it.err != nil {
			it.s.refusedAt = time.Now()
		}
	}
	e.mu.Unlock()
	for _, it := range items {
		if it.err != nil {
			known := e.asError(it.err)
			if known.State == "" {
				known.State = "nothing was changed"
			}
			return items, known
		}
	}
	return items, nil
}

func (e *Enclosure) lookAt(ctx context.Context, it *item) error {
	s := it.s
	disagrees := func(code Code, what string) *Error {
		return &Error{
			Code: code, Slot: s.cfg.Name, Where: s.where(), What: what, Retry: code == CodeHardware,
			State: "nothing was changed", Next: "look with 'baton status'; what can be mended is mended within seconds",
		}
	}
	if s.can(ee.CapStatus) {
		o, err := e.observe(ctx, s)
		if err != nil {
			return s.hardware("the engine can not be read", err)
		}
		it.live = o
		switch {
		case o.Ident != s.identity.Word:
			return disagrees(CodeIdentity, fmt.Sprintf("engine or device was replaced: identity 0x%08x, was 0x%08x", o.Ident, s.identity.Word))
		case s.powerOff(o):
			return s.noPower()
		case o.Status&ee.StatConfigBad != 0 || o.Status&ee.StatLoaded == 0:
			return disagrees(CodeHardware, fmt.Sprintf("the engine has not loaded its config block (status 0x%02x)", o.Status))
		case s.block != nil && o.Group != s.block.Group:
			return disagrees(CodeHardware, fmt.Sprintf("the engine runs with group %d, its config block has %d", o.Group, s.block.Group))
		}
	}
	if err := s.sameBlock(ctx); err != nil {
		if errors.Is(err, errBlockChanged) || isBlockError(err) {
			known := disagrees(CodeHardware, err.Error())
			known.Where = "EEPROM at " + s.cfg.Page
			return known
		}
		return s.eeprom("the engine's EEPROM can not be read", err)
	}
	return nil
}

// lookAtPorts finds out what would keep the ports of a set from their new VLAN,
// before anything is cut.
func (e *Enclosure) lookAtPorts(ctx context.Context, slots []*slot) error {
	var ports []string
	var first *slot
	group := uint16(0)
	for _, s := range slots {
		if e.cfg.Switch == nil || s.cfg.Port == "" {
			continue
		}
		if first == nil {
			first = s
			e.mu.Lock()
			group = s.bound // all of a set have one
			e.mu.Unlock()
		}
		ports = append(ports, s.cfg.Port)
	}
	if first == nil {
		return nil
	}
	if group == ee.GroupFree {
		group = 0
	}
	if err := e.cfg.Switch.May(ctx, ports, group); err != nil {
		known := first.noVLAN("the VLAN could not be set", err)
		known.Where, known.State = "port "+strings.Join(ports, " "), "nothing was changed"
		return known
	}
	return nil
}

// prepare says what each slot of a new assignment should look like and what
// becomes of its memory: only a yes goes along, anything else is reset.
func (e *Enclosure) prepare(items []*item, a plan.Assignment, vm VMConfig, step func(string, string)) *pass {
	for _, it := range items {
		st := e.state(it.s) // a is its newest by now
		before := st
		if st.Prior != nil {
			before.Now, before.Prior = *st.Prior, nil
		}
		it.do = plan.DoCut | plan.DoWrite | plan.DoReload | plan.DoConnect
		it.keep = a.Preserve && before.Now.VM == a.VM
		it.reset = !it.keep
		it.want = plan.Desire(st, e.inc, vm.Policy, e.peerOf(a.To))
		if !it.keep {
			continue
		}
		live := &it.live
		if !it.s.can(ee.CapStatus) {
			live = nil
		}
		if v := plan.Judge(before, live); v.Preserved != plan.Yes {
			it.want.Block.Flags &^= ee.FlagTarget
			it.want.Show &^= ee.ShowTarget | ee.ShowPowerKept
			it.reset = true
			it.doubt = plan.WhyNoProof
			if live != nil {
				it.doubt = plan.Doubt(before, *live)
			}
		}
	}
	return e.newPass(items, step)
}

// concludeDoubt records, after the links are up, why memories of a preserved
// move were not kept: until then the engines' words say so.
func (e *Enclosure) concludeDoubt(ctx context.Context, p *pass) {
	for _, it := range p.items {
		if it.doubt == plan.NoReason {
			continue
		}
		e.void(ctx, it.s, it.doubt)
		it.doubt = plan.NoReason
		// A page that was written before the doubt came up still says target.
		if it.s.block == nil || it.s.block.Flags&ee.FlagTarget != 0 {
			_ = e.settled(ctx, []*slot{it.s}) // the poller goes on with it
		}
	}
}

// fail ends a move that went wrong: before the commit point it is undone (or
// held, where a fence came between), after it the rest is retried within wait.
func (e *Enclosure) fail(ctx context.Context, p *pass, f *failure, m *Move, slots []*slot, wait time.Duration, by string) (Move, error) {
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	if f.committed {
		return e.pushOn(ctx, p, f, m, wait, by), nil
	}
	p.step("undo", f.err.Error())
	var err error
	state := MoveUndone
	if f.err.Code == CodeFenced {
		state, err = MoveHeld, e.hold(clean, slots, f.err)
	} else {
		err = e.undo(clean, slots, f.err)
	}
	if err == nil && e.state(slots[0]).Held() {
		state = MoveHeld
	}
	if err != nil {
		both := *f.err
		both.Err = also(f.err.Err, fmt.Errorf("and going back failed: %w", err))
		p.block(clean, &both)
		state = MoveBlocked
	}
	return e.end(m, state, f.err), nil
}

// pushOn repeats the make of a committed set until wait is over; then every
// link of it is cut and the set is blocked.
func (e *Enclosure) pushOn(ctx context.Context, p *pass, f *failure, m *Move, wait time.Duration, by string) Move {
	deadline := time.Now().Add(orDefault(wait))
	stop := e.fenceSignal(m.To)
	for time.Now().Before(deadline) && !waitFor(ctx, stop, makeRetry) {
		for _, it := range p.items {
			it.err = nil
		}
		if f = p.makeLinks(ctx); f == nil {
			e.concludeDoubt(ctx, p)
			return e.awaitPeers(ctx, p, m, time.Until(deadline), by)
		}
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	p.block(clean, f.err)
	return e.end(m, MoveBlocked, f.err)
}

const (
	makeRetry    = 100 * time.Millisecond
	makeRetryMax = 5 * time.Second
	peerPoll     = 2 * time.Millisecond
)

// awaitPeers waits until every slot's engine is connected to the target's. A
// foreign peer cuts the whole set and voids it; an absent one leaves it
// waiting.
func (e *Enclosure) awaitPeers(ctx context.Context, p *pass, m *Move, wait time.Duration, by string) Move {
	deadline := time.Now().Add(orDefault(wait))
	stop := e.fenceSignal(m.To)
	pausing, again := peerPoll, makeRetry
	for {
		absent, err := e.peers(ctx, p)
		switch {
		case err != nil && err.Code == CodeForeignPeer:
			e.foreign(ctx, p, err)
			if time.Now().Before(deadline) && !waitFor(ctx, stop, again) {
				again = min(2*again, makeRetryMax)
				for _, it := range p.items {
					it.err = nil
					it.do = plan.DoCut | plan.DoConnect
					it.want = e.desire(it.s)
					if it.s.block == nil || *it.s.block != it.want.Block {
						it.do |= plan.DoWrite // once: the flag has changed
					}
					it.reset = true // whoever was connected may have left something
				}
				if f := p.run(ctx); f == nil {
					continue
				}
			}
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
			defer cancel()
			p.block(clean, err)
			return e.end(m, MoveBlocked, err)
		case err != nil && errors.Is(err, ee.ErrIgnored):
			return e.pushOn(ctx, p, &failure{committed: true, err: err}, m, time.Until(deadline), by)
		case err == nil && len(absent) == 0:
			e.emit(Event{Kind: "linked", VM: m.VM, Host: m.To, Move: m.ID.String(), Text: fmt.Sprintf("%v linked with %s, generation %s", m.Slots, m.To, m.Generation), By: by})
			return e.end(m, MoveDone, nil)
		}
		if time.Now().After(deadline) || waitFor(ctx, stop, pausing) {
			why := err
			if why == nil {
				why = &Error{Code: CodeHardware, What: fmt.Sprintf("links are on, but the engine of %s has not appeared at %v", m.To, absent), Retry: true}
			}
			return e.end(m, MoveWaiting, why)
		}
		pausing = min(2*pausing, time.Second)
	}
}

// peers reads who the slots' engines are connected to.
func (e *Enclosure) peers(ctx context.Context, p *pass) (absent []string, first *Error) {
	perBus(p.items, func(its []*item) {
		for _, it := range its {
			it.err = nil
			if !it.s.can(ee.CapStatus) {
				continue
			}
			var peer ee.Peer
			if peer, it.err = it.s.engine.Peer(ctx); it.err != nil {
				it.err = it.s.hardware("the engine can not be read", it.err)
				continue
			}
			if _, it.err = e.observe(ctx, it.s); it.err != nil {
				it.err = it.s.hardware("the engine can not be read", it.err)
				continue
			}
			e.mu.Lock()
			it.s.peer = peer
			e.mu.Unlock()
			switch {
			case it.unheard():
				it.err = it.s.hardware("the engine did not take link on", ee.ErrIgnored)
			case peer.MAC.IsZero() || it.s.live.Status&ee.StatLink == 0:
				it.err = errAbsent
			case peer.MAC != it.want.Peer && !bug.Is(bug.OneOwner):
				it.err = it.s.foreignError(peer.MAC, it.want.Peer)
			}
		}
	})
	for _, it := range p.items {
		switch {
		case it.err == nil:
		case errors.Is(it.err, errAbsent):
			absent = append(absent, it.s.cfg.Name)
		case first == nil || e.asError(it.err).Code == CodeForeignPeer:
			first = e.asError(it.err)
		}
		it.err = nil
	}
	return absent, first
}

// unheard tells whether the slot's engine acknowledged link on and did not take
// it. One that restarted since is for recovery: its memory is gone.
func (it *item) unheard() bool {
	o := it.s.live
	return it.want.Link && it.s.can(ee.CapLinkControl) && o.Control&ee.CtlLink == 0 &&
		o.Resets == it.live.Resets && o.Latch&^it.live.Latch&ee.LatchRestarted == 0
}

var errAbsent = errors.New("no peer")

// foreign cuts the whole set and voids its memory.
func (e *Enclosure) foreign(ctx context.Context, p *pass, why *Error) {
	_ = p.cutAll(ctx) // what is not cut is noted in the slot
	var set []*slot
	for _, it := range p.items {
		set = append(set, it.s)
	}
	e.emit(Event{Kind: "fault", Slot: why.Slot, Code: string(why.Code), Text: why.Error() + "; the whole set was cut"}, set...)
	for _, it := range p.items {
		e.void(ctx, it.s, plan.WhyForeignPeer)
	}
}

// remember, forget and end keep the moves of this run.
func (e *Enclosure) remember(m *Move) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.moves[m.ID] == nil {
		e.order = append(e.order, m.ID)
	}
	e.moves[m.ID] = m
	for len(e.order) > keptMoves {
		delete(e.moves, e.order[0])
		e.order = e.order[1:]
	}
}

func (e *Enclosure) forget(m *Move) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.moves, m.ID)
	e.order = slices.DeleteFunc(e.order, func(id ee.UUID) bool { return id == m.ID })
}

func (e *Enclosure) end(m *Move, state MoveState, why *Error) Move {
	memory := map[string]plan.Verdict{}
	set := e.slotsNamed(m.Slots)
	for _, s := range set {
		if state != MoveRefused {
			memory[s.cfg.Name] = e.judge(s)
		}
	}
	e.countMove(state)
	e.mu.Lock()
	m.State, m.Memory = state, memory
	if s, err := e.slotNamed(m.Slots[0]); err == nil {
		m.Generation.Counter = s.st.Now.Gen
	}
	if why != nil {
		m.Reason = why.Error()
	}
	out := copyMove(m)
	e.mu.Unlock()
	ev := Event{Kind: "move", VM: m.VM, Host: m.To, Move: m.ID.String(), Text: fmt.Sprintf("%s: %v to %s: %s", m.VM, m.Slots, m.To, state), By: m.by}
	if why != nil {
		ev.Code = string(why.Code)
		ev.Text += ": " + why.Error()
	}
	if state == MoveRefused {
		e.tell(ev) // the refusal is what is kept
	} else {
		e.emit(ev, set...)
	}
	return out
}

func copyMove(m *Move) Move {
	c := *m
	c.Steps = slices.Clone(m.Steps)
	return c
}

// MoveByID tells what is known of a move: of this run, or from the records.
func (e *Enclosure) MoveByID(id ee.UUID) (Move, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if m, ok := e.moves[id]; ok {
		return copyMove(m), true
	}
	// Others than moves are nobody's to ask for, unless they are to be resolved.
	stuck := slices.ContainsFunc(e.slots, func(s *slot) bool { return s.blockedBy(id) })
	return e.recordedLocked(id, stuck)
}

// concludeLocked notes how moves ended whose sets are no longer blocked.
// Enclosure.mu is held.
func (e *Enclosure) concludeLocked() {
	for id, m := range e.moves {
		if m.State != MoveBlocked || slices.ContainsFunc(e.slots, func(s *slot) bool { return s.blockedBy(id) }) {
			continue
		}
		if r, ok := e.recordedLocked(id, true); ok {
			m.State = r.State
		}
		if m.State == MoveDone {
			m.Reason = ""
		}
		if s := find(e.slots, func(s *slot) bool { return (*s).st.Now.ID == id }); s != nil {
			m.Generation.Counter = (*s).st.Now.Gen
		}
	}
}

// blockedBy tells whether s is blocked in the set of a move. Enclosure.mu is
// held.
func (s *slot) blockedBy(id ee.UUID) bool { return s.blocked != nil && s.st.Now.ID == id }

// recordedLocked tells what the records say of a move, or with others of an
// attach or a release too. Enclosure.mu is held.
func (e *Enclosure) recordedLocked(id ee.UUID, others bool) (Move, bool) {
	var intent, end *plan.Assignment // the newest of each
	for _, a := range e.all {
		if a.ID != id || id.IsZero() {
			continue
		}
		if (a.Kind == plan.KindAttach || a.Kind == plan.KindRelease) && !others {
			continue
		}
		switch a.Kind {
		case plan.KindMove, plan.KindAttach, plan.KindRelease:
			if intent == nil || a.Gen > intent.Gen {
				intent = &a
			}
		case plan.KindCancel, plan.KindUndo, plan.KindFence:
			if end == nil || a.Gen > end.Gen {
				end = &a
			}
		}
	}
	if intent != nil && end != nil && end.Gen < intent.Gen {
		end = nil // refused first, then asked for again
	}
	if intent == nil && end == nil {
		return Move{}, false
	}
	a := intent
	if a == nil {
		a = end
	}
	m := Move{ID: id, VM: e.vmName(a.VM), Preserve: a.Preserve, State: MoveDone, Generation: ee.Generation{Incarnation: e.inc, Counter: a.Gen}}
	if h := e.hostOf(a.To); h != nil {
		m.To = h.Name
	}
	for _, s := range e.slots {
		if !a.Slots.Has(s.index) {
			continue
		}
		m.Slots = append(m.Slots, s.cfg.Name)
		// Where it came from, as long as the slot's last two assignments tell.
		var from *HostConfig
		switch now, prior := s.st.Now, s.st.Prior; {
		case now.Gen == a.Gen && a == intent && prior != nil:
			from = e.hostOf(prior.To)
		case now.Kind == plan.KindUndo && now.ID == id:
			from = e.hostOf(now.To)
		}
		if from != nil {
			m.From = from.Name
		}
		if s.blockedBy(id) {
			m.State, m.Reason = MoveBlocked, s.blocked.reason.Error()
		}
	}
	if end != nil && m.State != MoveBlocked {
		switch {
		case end.Kind == plan.KindCancel:
			m.State = MoveRefused
		case end.To == ee.GroupFree:
			m.State = MoveHeld
		default:
			m.State = MoveUndone
		}
	}
	return m, true
}

// also is both errors on one line; first may be nil.
func also(first, second error) error {
	if first == nil {
		return second
	}
	return fmt.Errorf("%w; %w", first, second)
}

func badWait(d time.Duration) *Error {
	return bad(fmt.Sprintf("wait is %v", d), fmt.Sprintf("give 0..%v; 0 is for %v", MaxWait, DefaultWait))
}

func bad(what, next string) *Error {
	return &Error{Code: CodeBadRequest, What: what, State: "nothing was changed", Next: next}
}

func unknownHost(name string) *Error {
	return &Error{Code: CodeUnknownHost, What: fmt.Sprintf("there is no host %q in the configuration", name), State: "nothing was changed", Next: "'baton status' lists the hosts"}
}

func bits(slots []*slot) plan.SlotSet {
	var b plan.SlotSet
	for _, s := range slots {
		b = b.With(s.index)
	}
	return b
}

func sameNames(a, b []string) bool {
	x, y := slices.Clone(a), slices.Clone(b)
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

func orDefault(wait time.Duration) time.Duration {
	if wait == 0 {
		return DefaultWait
	}
	return wait
}

// waitFor waits d and tells whether ctx or stop ended it.
func waitFor(ctx context.Context, stop <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return false
	case <-ctx.Done():
	case <-stop:
	}
	return true
}
