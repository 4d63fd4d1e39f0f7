package enclosure

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"baton/ee"
	"baton/enclosure/bug"
	"baton/enclosure/plan"
	"baton/nvm"
	"baton/vlan"
)

// blockage is a set that could go neither forward nor back: it is cut and
// held, and tried again with growing pauses.
type blockage struct {
	slots  []*slot
	reason *Error
	tries  int
	next   time.Time
}

// retryAfter is the pause before try n of a blocked set.
func retryAfter(n int) time.Duration { return min(time.Second<<min(n, 6), time.Minute) }

// recoverAll brings every slot to what the store says, after a start.
func (e *Enclosure) recoverAll(ctx context.Context, suspect bool) {
	e.read(ctx, e.slots)
	for _, s := range e.slots {
		s.suspect = suspect
		if s.fault == nil {
			e.settle(ctx, s)
		}
	}
	for _, h := range e.roster.Load().hosts {
		if _, fenced := e.fenced(h.Name); fenced && len(e.slotsOf(h.Group)) > 0 {
			// A fence that was recorded, and cut short, is completed first.
			_, _ = e.completeFence(ctx, h) // what is not confirmed goes on being tried
		}
	}
	for _, set := range e.sets(e.slots) {
		e.recoverSet(ctx, set, suspect)
	}
	e.cutFaulty(ctx)
	for _, h := range e.roster.Load().hosts {
		if _, fenced := e.fenced(h.Name); fenced {
			e.setPending(h.Name, e.uncut(h.Group))
		}
	}
}

// cutFaulty cuts slots that can not be brought to their records, and should be
// with nobody or are with another host, as far as their engines let it, and says
// which are not.
func (e *Enclosure) cutFaulty(ctx context.Context) {
	for _, s := range e.slots {
		st := e.state(s)
		if s.fault == nil || s.blocked != nil || !st.Known() {
			continue
		}
		it := &item{s: s, keep: true}
		readable := false
		if s.trusted && s.can(ee.CapLinkControl) {
			o, err := e.observe(ctx, s)
			readable = err == nil
			if readable && o.Status&(ee.StatLink|ee.StatEnabled) == 0 {
				e.noteCut(s, "confirmed")
				continue
			}
		}
		if st.Now.To != ee.GroupFree && (!readable || s.live.Group == st.Now.To) {
			continue // it may be with its host: no VM loses its device for a chip
		}
		if cut := e.newPass([]*item{it}, nil).cutAll(ctx); cut != nil {
			e.emit(Event{Kind: "fault", Slot: cut.Slot, Code: string(cut.Code), Text: cut.Error()})
		}
	}
}

// sets groups slots that recovery treats as one: those of a move that was
// never seen to end. Any other slot is on its own.
func (e *Enclosure) sets(slots []*slot) [][]*slot {
	e.mu.Lock()
	defer e.mu.Unlock()
	var sets [][]*slot
	at := map[uint32]int{}
	for _, s := range slots {
		if !s.st.Known() || (s.fault != nil && !e.joint(s)) {
			continue
		}
		if !e.joint(s) {
			sets = append(sets, []*slot{s})
			continue
		}
		i, ok := at[s.st.Now.Gen]
		if !ok {
			i = len(sets)
			at[s.st.Now.Gen] = i
			sets = append(sets, nil)
		}
		sets[i] = append(sets[i], s)
	}
	return sets
}

// unfinished tells whether the newest assignment of s may be a move that was
// never seen to end: recovery may undo it if it is underway. Where one slot of its set has been
// seen in use, the set stays. Enclosure.mu is held.
func (e *Enclosure) unfinished(s *slot) bool { return s.st.Unfinished() && !e.seenInUse(s) }

// underway tells whether the newest assignment of set is known not to have been
// carried out: a page was read that is of before, or says free where the set has
// a host. Where every page has it, the move may have been answered as done. A
// page that could not be read, is torn, or is in a part that is not the slot's
// says nothing: then the set waits for that part, and does not go back to a host
// that may have forgotten it. Enclosure.mu is held.
func (e *Enclosure) underway(set []*slot) bool {
	return slices.ContainsFunc(set, func(s *slot) bool {
		b, now := s.block, s.st.Now
		return s.fault == nil && b != nil && b.Generation.Incarnation == e.inc &&
			(b.Generation.Counter < now.Gen || b.Generation.Counter == now.Gen && b.Group != now.To)
	})
}

// joint tells whether no slot of s's set may be linked without the others:
// until its VM has been seen to use it, be it where it was to go or, undone,
// where it was. Enclosure.mu is held.
func (e *Enclosure) joint(s *slot) bool {
	return (s.st.Unfinished() || s.st.Now.Kind == plan.KindUndo) && !e.seenInUse(s)
}

func (e *Enclosure) seenInUse(s *slot) bool {
	return slices.ContainsFunc(e.slots, func(o *slot) bool { return o.st.Now.Gen == s.st.Now.Gen && o.st.Acked() })
}

// read looks at pages and engines, buses in parallel.
func (e *Enclosure) read(ctx context.Context, slots []*slot) {
	var items []*item
	for _, s := range slots {
		if s.fault == nil {
			items = append(items, &item{s: s})
		}
	}
	perBus(items, func(its []*item) {
		for _, it := range its {
			if it.s.can(ee.CapStatus) {
				// An engine that is still loading has its chip busy.
				if _, err := it.s.engine.Loaded(ctx); err != nil && !errors.Is(err, ee.ErrConfigBad) {
					e.mu.Lock()
					it.s.readErr = err
					e.mu.Unlock()
				} else {
					_, _ = e.observe(ctx, it.s) // it keeps what it read, or why it could not
				}
			}
			b, err := it.s.readBlock(ctx)
			e.mu.Lock()
			it.s.block = b
			e.mu.Unlock()
			if err != nil {
				it.err = err
				e.emit(Event{Kind: "fault", Slot: it.s.cfg.Name, Text: fmt.Sprintf("%s: config block at %s: %v", it.s.cfg.Name, it.s.cfg.Page, err)})
			}
		}
	})
	for _, it := range items {
		it.s.pageErr = it.err
	}
}

// settle makes the store know the slot: a first start, or a store that lost
// what the page still has. It also records doubt that the engine's words
// prove, before anything else is done with the slot.
func (e *Enclosure) settle(ctx context.Context, s *slot) {
	st := e.state(s)
	page := s.block
	adopt := func(a plan.Assignment, why plan.Reason, text string) {
		a.Kind, a.Slots = plan.KindAdopt, a.Slots.With(s.index)
		recs := []record{e.assignmentRecord(a)}
		if why != plan.NoReason {
			recs = append(recs, e.evidenceRecord(s, plan.Evidence{Flag: plan.Void, Gen: a.Gen, Why: why}))
		}
		if err := e.put(ctx, nvm.Urgent, recs...); err != nil {
			e.setFault(s, e.asError(err))
			return
		}
		e.emit(Event{Kind: "recovery", Slot: s.cfg.Name, VM: e.vmName(a.VM), Text: s.cfg.Name + ": " + text})
	}
	var taken plan.Assignment
	if page != nil {
		taken = plan.TakenFrom(*page)
	}
	switch {
	case bug.Is(bug.GoneFree) && page == nil && isBlockError(s.pageErr):
		adopt(plan.Assignment{To: ee.GroupFree, Gen: e.reserveGen()}, plan.NoReason, "no config block; the slot is free")
	case page != nil && page.Generation.Incarnation == e.inc && page.Generation.Counter > st.Now.Gen && !e.knows(&taken, s.index):
		// The store lost the record of what the page has. The page is a good
		// copy, and it is what hosts see. Where no page of the store is damaged,
		// it is an older image, put back by somebody: fences may be missing too.
		e.mu.Lock()
		e.nextGen = max(e.nextGen, page.Generation.Counter+1)
		if len(e.report.Damaged) == 0 {
			e.distrustAll()
		}
		e.mu.Unlock()
		// Once it is adopted nothing tells of it any more.
		if err := e.fenceDistrusted(ctx); err != nil {
			e.setFault(s, e.asError(err))
			return
		}
		adopt(taken, plan.WhyStoreLost,
			fmt.Sprintf("the store had lost the assignment to group %d; taken from the config block, memory void", page.Group))
	case st.Known() && page == nil && isBlockError(s.pageErr) && len(e.report.Lost) > 0:
		// The newest record of the slot may be among those that were lost, and the
		// page, which would tell, can not: the record that is left may be of the host
		// that had the slot before.
		adopt(plan.Assignment{To: ee.GroupFree, Gen: e.reserveGen() + plan.LostGap}, plan.WhyStoreLost,
			"the store lost records, and the config block is no good: nobody knows who has the slot; it is free, memory void")
	case st.Known():
	case page != nil:
		// Another store's block, or another slot's: nobody's owner is guessed.
		// Whoever used it may have it back, without its memory.
		adopt(plan.Assignment{To: ee.GroupFree, VM: page.VM, Gen: e.reserveGen()}, plan.WhyStoreLost,
			fmt.Sprintf("the config block is of another store or slot (%s); cut and held, memory void", page.Generation))
	case errors.Is(s.pageErr, ee.ErrBlockBlank) && e.cfg.Store.FormatBlank && e.erased(ctx, s):
		adopt(plan.Assignment{To: ee.GroupFree, Gen: e.reserveGen()}, plan.NoReason, "blank config block; the slot is free")
	default:
		fault := &Error{
			Code: CodeUnassignable, Slot: s.cfg.Name, Where: s.cfg.Page, What: "the engine's NVM holds no config block and the store knows nothing of the slot", Err: s.pageErr,
			State: "nothing was written to this slot", Next: fmt.Sprintf("take it as the slot's with 'baton slot adopt %s', or put the right part back", s.cfg.Name),
		}
		e.setFault(s, fault)
		e.emit(Event{Kind: "fault", Slot: s.cfg.Name, Code: string(fault.Code), Text: fault.Error()})
		return
	}
	e.recordDoubt(ctx, s)
}

// knows tells whether the store has the assignment with a's generation: a block
// with it, in a slot that it did not name, came from another slot. One that was
// itself taken from the block of another slot of the same set is joined: a gets
// its slots.
func (e *Enclosure) knows(a *plan.Assignment, index int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	other, ok := e.all[a.Gen]
	taken := other.FromBlock() || slices.ContainsFunc(e.slots, func(s *slot) bool {
		ev := s.st.Evidence
		return ev != nil && ev.Gen == a.Gen && ev.Why == plan.WhyStoreLost
	})
	if ok && taken && a.Joins(other, index) {
		a.Slots = other.Slots
		return false
	}
	return ok
}

// erased tells whether the slot's chip is as the part leaves the factory: all of
// it, but for a store of ours that is on it too. A page of zeros is somebody's,
// and so is a chip that has something behind a first page that is erased. A chip
// is read as a whole only here, once in a slot's life: 0.75 s for 32 KiB at
// 400 kHz.
func (e *Enclosure) erased(ctx context.Context, s *slot) bool {
	g := s.cfg.Medium.Geometry()
	from, to := g.Size, g.Size // what is the store's
	if sc := e.cfg.Store; sc.Shared == s.cfg.Name && sc.Medium != nil {
		from, to = sc.Offset, sc.Offset+sc.Medium.Geometry().Size
	}
	p := make([]byte, 512)
	for off := int64(0); off < g.Size; off += int64(len(p)) {
		p = p[:min(int64(cap(p)), g.Size-off)]
		if s.page(s.cfg.Medium.ReadAt(ctx, p, off)) != nil {
			return false
		}
		for i, b := range p {
			if at := off + int64(i); b != g.Erased && (at < from || at >= to) {
				return false
			}
		}
	}
	return true
}

func (e *Enclosure) setFault(s *slot, fault *Error) {
	e.mu.Lock()
	s.fault = fault
	e.mu.Unlock()
}

// recordDoubt voids a flag that the engine's words speak against. What is not
// flagged needs no record: the words themselves say no.
func (e *Enclosure) recordDoubt(ctx context.Context, s *slot) {
	st := e.state(s)
	if s.readErr != nil || !s.can(ee.CapStatus|ee.CapLatches) {
		return
	}
	flag := st.Flag()
	why := plan.Doubt(st, s.live)
	if flag != plan.Armed && flag != plan.Target && !(flag == plan.Spent && why == plan.WhyRestarted) {
		return
	}
	if why == plan.NoReason {
		return
	}
	e.void(ctx, s, why)
}

// void records why a flag is void.
func (e *Enclosure) void(ctx context.Context, s *slot, why plan.Reason) {
	st := e.state(s)
	if _, err := plan.Next(st.Flag(), plan.Doubting, false); err != nil || st.Flag() == plan.Void {
		return
	}
	ev := plan.Evidence{Flag: plan.Void, Gen: st.Now.Gen, Why: why, Acked: st.Acked()}
	if err := e.put(ctx, nvm.Urgent, e.evidenceRecord(s, ev)); err != nil {
		e.emit(Event{Kind: "store", Slot: s.cfg.Name, Text: fmt.Sprintf("%s: doubt could not be recorded: %v", s.cfg.Name, err)})
		return
	}
	e.mu.Lock()
	e.counts.Voids++
	e.mu.Unlock()
	e.emit(Event{Kind: "void", Slot: s.cfg.Name, VM: e.vmName(st.Now.VM), Text: fmt.Sprintf("%s: memory void: %s", s.cfg.Name, why)})
}

// itemFor says what s should look like now and what has to be done for that.
func (e *Enclosure) itemFor(ctx context.Context, s *slot, suspect bool) *item {
	st := e.state(s)
	it := &item{s: s, live: s.live, want: e.desire(s)}
	if s.fault != nil {
		it.err = s.fault
		return it
	}
	// What was not rewritten at the start, as something failed, is rewritten when
	// it can be.
	f := plan.Found{Block: s.block, Suspect: suspect || s.suspect && !bug.Is(bug.SuspectTrusted)}
	if s.can(ee.CapStatus) {
		if s.readErr != nil {
			it.err = s.hardware("the engine does not answer", s.readErr)
			return it
		}
		f.Live = &s.live
		peer, show, err := s.engine.Expected(ctx)
		if err != nil {
			it.err = s.hardware("the engine does not answer", err)
			return it
		}
		f.Peer, f.Show = peer, show
	}
	if s.block == nil && s.pageErr != nil && !isBlockError(s.pageErr) && !bug.Is(bug.UnreadDamaged) {
		it.err = s.eeprom("the engine's EEPROM does not answer", s.pageErr)
		return it
	}
	it.do = plan.Compare(it.want, f, s.cfg.Profile.Caps)
	// What is not known to be the VM's own memory is reset before anybody is
	// linked to it. Once the VM has been seen, a link that comes back brings the
	// same VM.
	it.reset = it.do.Has(plan.DoConnect) && it.want.Link && !st.Acked() && plan.Judge(st, f.Live).Preserved != plan.Yes
	return it
}

// recoverSet brings one set to what the store says. A set of a move that was
// cut short goes forward, else back, else it is blocked. It goes back only where
// nobody can have been told that it had arrived.
func (e *Enclosure) recoverSet(ctx context.Context, set []*slot, suspect bool) {
	e.mu.Lock()
	back := e.unfinished(set[0]) && e.underway(set)
	e.mu.Unlock()
	p, f := e.converge(ctx, set, suspect)
	if f == nil {
		return
	}
	if f.unread {
		// A transfer that failed says nothing of the slot: no VM loses its
		// device for it. The poller goes on with it.
		e.emit(Event{Kind: "fault", Slot: f.err.Slot, Code: string(f.err.Code), Text: f.err.Error() + "; left as it is, and tried again"})
		return
	}
	fenced := f.err.Code == CodeFenced && !f.committed
	if fenced && e.hold(ctx, set, f.err) == nil {
		return
	}
	// A set that is held by its records goes back to nobody.
	if back && !fenced && !f.committed && e.undo(ctx, set, f.err) == nil {
		e.countMove(MoveUndone)
		return
	}
	p.block(ctx, f.err)
}

// converge does for a set what its records ask for and nothing where all
// agrees.
func (e *Enclosure) converge(ctx context.Context, set []*slot, suspect bool) (*pass, *failure) {
	items := make([]*item, len(set))
	var do plan.Diff
	var first, unread *Error
	for i, s := range set {
		items[i] = e.itemFor(ctx, s, suspect)
		if group := e.state(s).Now.To; group != ee.GroupFree && first == nil {
			if peer := e.peerOf(group); peer != nil && peer.Fenced {
				first = e.fencedError(group)
			}
		}
		do |= items[i].do
		if items[i].err != nil && unread == nil {
			unread = e.asError(items[i].err)
		}
	}
	p := e.newPass(items, nil)
	for _, it := range items {
		if it.err == nil && !it.want.Link && it.s.can(ee.CapStatus|ee.CapLinkControl) && it.live.Status&(ee.StatLink|ee.StatEnabled) == 0 {
			e.noteCut(it.s, "confirmed")
		}
	}
	if first != nil {
		return p, &failure{err: first}
	}
	if unread != nil {
		return p, &failure{err: unread, unread: do == 0}
	}
	if do == 0 && !p.vlan {
		p.linked()
		return p, nil
	}
	if do == 0 {
		for _, it := range items {
			err := e.setVLAN(ctx, it.s, it.want.Group())
			it.s.portLate = errors.Is(err, vlan.ErrUnseen)
			if err != nil {
				return p, &failure{err: e.asError(err), unread: it.s.portLate}
			}
		}
		p.linked()
		return p, nil
	}
	if do.Has(plan.DoConnect) {
		// No link of a set before all of it is verified: those that are up
		// already stay up only if nothing of the set has to be written.
		for _, it := range items {
			if do.Has(plan.DoReload) && len(items) > 1 {
				it.do |= plan.DoCut | plan.DoConnect
				if !it.s.can(ee.CapLinkControl) {
					it.do |= plan.DoWrite | plan.DoReload // it is cut by a block that says free
				}
			}
		}
	}
	f := p.run(ctx)
	p.look(ctx)
	if f == nil {
		f = p.deaf()
	}
	if f == nil {
		p.linked()
		e.concludeDoubt(ctx, p)
		names := names(set)
		e.emit(Event{Kind: "recovery", Slot: names[0], Text: fmt.Sprintf("%v: brought to what the store says (group %d, generation %d)", names, items[0].want.Block.Group, items[0].want.Block.Generation.Counter)}, set...)
	}
	return p, f
}

// linked forgets a cut that was tried, and is not so any more, of slots that are
// as they should be and have a link. The slots' locks are held.
func (p *pass) linked() {
	for _, it := range p.items {
		if it.want.Link && it.s.cut != "" {
			p.e.noteCut(it.s, "")
		}
	}
}

// deaf finds an engine that has acknowledged link on and has not taken it, as
// it was read last: such a slot is not as its records say, and nobody would say
// so. A move finds it by the peer that does not appear.
func (p *pass) deaf() *failure {
	for _, it := range p.items {
		if bug.Is(bug.DeafUnseen) || !it.want.Link || !it.do.Has(plan.DoConnect) || !it.s.can(ee.CapStatus|ee.CapLinkControl) || it.s.readErr != nil {
			continue
		}
		if it.s.live.Control&ee.CtlLink == 0 {
			return &failure{committed: true, err: it.s.hardware("the engine did not take link on", ee.ErrIgnored)}
		}
	}
	return nil
}

// look reads the engines of a set once more after something was done to them:
// what is reported is what they say now.
func (p *pass) look(ctx context.Context) {
	perBus(p.items, func(its []*item) {
		for _, it := range its {
			if it.s.can(ee.CapStatus) && it.s.fault == nil {
				_, _ = p.e.observe(ctx, it.s) // a failure is kept, and makes the verdict unknown
			}
		}
	})
}

// block cuts a set and remembers to try again.
func (p *pass) block(ctx context.Context, why *Error) {
	if cut := p.cutAll(ctx); cut != nil {
		p.e.emit(Event{Kind: "blocked", Slot: cut.Slot, Code: string(cut.Code), Text: cut.Error()})
	}
	if bug.Is(bug.NeighboursCut) {
		for _, o := range p.e.slots {
			if o.cfg.BusName == p.items[0].s.cfg.BusName && !slices.ContainsFunc(p.items, func(it *item) bool { return it.s == o }) {
				_ = p.e.newPass(itemsOf([]*slot{o}), nil).cutAll(ctx)
			}
		}
	}
	p.look(ctx)
	b := &blockage{reason: why, next: time.Now().Add(retryAfter(0))}
	p.e.mu.Lock()
	for _, it := range p.items {
		it.s.unblock()
		b.slots = append(b.slots, it.s)
		it.s.blocked = b
	}
	how := "cut and held"
	if open := b.open(); len(open) > 0 {
		how = fmt.Sprintf("the cut of %v is not confirmed", open)
	}
	p.e.mu.Unlock()
	p.e.emit(Event{Kind: "blocked", Slot: why.Slot, Code: string(CodeBlocked), Text: fmt.Sprintf("%v: blocked, %s: %v", names(b.slots), how, why)}, b.slots...)
}

// open are the slots of which a cut was tried and not seen. Enclosure.mu is held.
func (b *blockage) open() []string {
	var open []string
	for _, s := range b.slots {
		if s.cut == "unconfirmed" {
			open = append(open, s.cfg.Name)
		}
	}
	return open
}

// retryBlocked tries a blocked set again. The locks are held.
func (e *Enclosure) retryBlocked(ctx context.Context, b *blockage) {
	e.lookAgain(ctx, b.slots) // nobody did while it was blocked
	p, f := e.converge(ctx, b.slots, false)
	if f == nil {
		e.unblock(b)
		return
	}
	if f.err.Code == CodeFenced && !f.committed && e.hold(ctx, b.slots, f.err) == nil {
		e.unblock(b)
		return
	}
	if f.committed {
		_ = p.cutAll(ctx) // what is not cut is noted in the slot
	}
	e.mu.Lock()
	b.tries++
	b.reason = f.err
	b.next = time.Now().Add(retryAfter(b.tries))
	e.mu.Unlock()
}

func (e *Enclosure) unblock(b *blockage) {
	for _, s := range slices.Clone(b.slots) {
		e.leaveBlockage(s)
	}
}

// leaveBlockage takes s alone out of its blocked set.
func (e *Enclosure) leaveBlockage(s *slot) {
	e.mu.Lock()
	was := s.blocked != nil
	s.unblock()
	e.concludeLocked()
	e.mu.Unlock()
	if was {
		e.emit(Event{Kind: "recovery", Slot: s.cfg.Name, Text: s.cfg.Name + ": no longer blocked"})
	}
}

// unblock leaves the others of a blocked set as they are. Enclosure.mu is held.
func (s *slot) unblock() {
	if b := s.blocked; b != nil {
		b.slots = slices.DeleteFunc(slices.Clone(b.slots), func(o *slot) bool { return o == s })
		s.blocked = nil
	}
}

// undo gives a set back what it had before its newest assignment, under a
// generation that the record fixes: from then on it only goes back. Who has
// been fenced meanwhile gets nothing: then the set is held for its VM.
func (e *Enclosure) undo(ctx context.Context, set []*slot, why *Error) error {
	// Where the set goes is open from here: a fence of either host waits.
	e.bind(set, 0)
	recs := e.undoRecords(set)
	if err := e.put(ctx, nvm.Urgent, recs...); err != nil {
		return err
	}
	e.emit(Event{Kind: "move", Slot: set[0].cfg.Name, Code: string(why.Code), Text: fmt.Sprintf("%v: undone: %v", names(set), why)}, set...)
	f := e.settled(ctx, set)
	if f != nil && f.err.Code == CodeFenced && !f.committed {
		return e.hold(ctx, set, f.err)
	}
	if f != nil {
		return f.err
	}
	return nil
}

// hold cuts a set and keeps it for the VMs it has now.
func (e *Enclosure) hold(ctx context.Context, set []*slot, why *Error) error {
	if err := e.put(ctx, nvm.Urgent, e.holdRecords(set)...); err != nil {
		return err
	}
	e.emit(Event{Kind: "move", Slot: set[0].cfg.Name, Code: string(why.Code), Text: fmt.Sprintf("%v: held: %v", names(set), why)}, set...)
	if f := e.settled(ctx, set); f != nil {
		return f.err
	}
	return nil
}

// settled brings a set to its newest records after something went wrong:
// nothing is taken as known of the hardware.
func (e *Enclosure) settled(ctx context.Context, set []*slot) *failure {
	e.lookAgain(ctx, set)
	_, f := e.converge(ctx, set, false)
	return f
}

// lookAgain reads a set anew and records what the engines' words speak against.
func (e *Enclosure) lookAgain(ctx context.Context, set []*slot) {
	e.read(ctx, set)
	for _, s := range set {
		if s.fault == nil && e.stillIts(ctx, s) {
			e.recordDoubt(ctx, s)
		}
	}
}

// undoRecords are the assignments that undo a set's newest one; slots that had
// different ones before get one each.
func (e *Enclosure) undoRecords(set []*slot) []record {
	var back []plan.Assignment
	for _, s := range set {
		st := e.state(s)
		a := plan.Assignment{Kind: plan.KindUndo, Preserve: true, To: ee.GroupFree, VM: st.Now.VM, ID: st.Now.ID}
		if st.Prior != nil {
			a.To, a.VM = st.Prior.To, st.Prior.VM
		}
		if peer := e.peerOf(a.To); a.To != ee.GroupFree && (peer == nil || peer.Fenced) {
			a.To = ee.GroupFree
		}
		i := slices.IndexFunc(back, func(b plan.Assignment) bool { return b.To == a.To && b.VM == a.VM })
		if i < 0 {
			i = len(back)
			a.Gen = e.reserveGen()
			back = append(back, a)
		}
		back[i].Slots = back[i].Slots.With(s.index)
	}
	recs := make([]record, len(back))
	for i, a := range back {
		recs[i] = e.assignmentRecord(a)
	}
	return recs
}

// holdRecords are the assignments that cut a set and keep it for its VMs.
func (e *Enclosure) holdRecords(set []*slot) []record {
	held := map[ee.UUID]*plan.Assignment{}
	var order []ee.UUID
	for _, s := range set {
		st := e.state(s)
		a := held[st.Now.VM]
		if a == nil {
			a = &plan.Assignment{Kind: plan.KindFence, Preserve: true, To: ee.GroupFree, VM: st.Now.VM, Gen: e.reserveGen()}
			if e.mayEnd(s) {
				a.ID = st.Now.ID
			}
			held[st.Now.VM] = a
			order = append(order, st.Now.VM)
		}
		a.Slots = a.Slots.With(s.index)
	}
	var recs []record
	for _, vm := range order {
		recs = append(recs, e.assignmentRecord(*held[vm]))
	}
	return recs
}

// mayEnd tells whether a hold ends the move that brought s where it is; one
// that is over keeps its outcome. Of one that a former agent carried out only
// its traces tell: where it had arrived it may have been answered as done.
func (e *Enclosure) mayEnd(s *slot) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch m := e.moves[s.st.Now.ID]; {
	case !e.joint(s):
		return false
	case m != nil:
		return m.State == MoveRunning || m.State == MoveBlocked
	}
	return slices.ContainsFunc(e.slots, func(o *slot) bool {
		return o.st.Now.Gen == s.st.Now.Gen && !o.arrived()
	})
}

// arrived tells whether the slot was last seen as its newest assignment wants
// it: its page, and its engine where that can be read. Enclosure.mu is held.
func (s *slot) arrived() bool {
	b, now := s.block, s.st.Now
	if s.fault != nil || s.blocked != nil || b == nil || b.Generation.Counter != now.Gen || b.Group != now.To {
		return false
	}
	return !s.can(ee.CapStatus|ee.CapLinkControl) || s.readErr == nil && s.live.Group == now.To && s.live.Control&ee.CtlLink != 0
}

func names(slots []*slot) []string {
	n := make([]string, len(slots))
	for i, s := range slots {
		n[i] = s.cfg.Name
	}
	return n
}

// asError makes an *Error of whatever went wrong.
func (e *Enclosure) asError(err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	return &Error{Code: CodeInternal, What: "unexpected", Err: err}
}

// newIncarnation is random and not zero; the kernel's generator may make the
// first call after power-up wait for a second.
func newIncarnation(random func([]byte)) uint32 {
	var p [4]byte
	random(p[:])
	return binary.LittleEndian.Uint32(p[:]) | 1
}

// newUUID is random: version 4 of RFC 9562.
func (e *Enclosure) newUUID() ee.UUID {
	var u ee.UUID
	e.random(u[:])
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u
}
