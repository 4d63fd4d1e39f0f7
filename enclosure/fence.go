package enclosure

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"baton/ee"
	"baton/enclosure/plan"
	"baton/nvm"
)

// Fence cuts a host from every slot and keeps it out until it is unfenced. The
// fence is in the store before anything is looked at, so that whatever is under
// way meets it at its commit point. It succeeds only when every cut is
// confirmed; what is not goes on being tried.
func (e *Enclosure) Fence(ctx context.Context, host, by string) (Fenced, error) {
	return e.fence(ctx, host, 0, by)
}

// fence is Fence with an epoch above that of a fence which is known of from
// elsewhere; 0 = of none.
func (e *Enclosure) fence(ctx context.Context, host string, above uint32, by string) (Fenced, error) {
	h := e.host(host)
	if h == nil {
		return Fenced{}, e.refused(by, unknownHost(host))
	}
	// Of one host one after the other, to the end of the cut: an unfence that
	// was asked for an older fence must not be written over a newer one.
	done, err := e.lockHost(ctx, host)
	if err != nil {
		return Fenced{}, e.refused(by, err)
	}
	defer done()
	rec, _ := e.fenced(host)
	rec.Fenced = true
	rec.Epoch = max(rec.Epoch, above) + 1
	if err := e.putHost(context.WithoutCancel(ctx), host, rec); err != nil {
		return Fenced{}, e.refused(by, err)
	}
	rec, _ = e.fenced(host)
	e.emit(Event{Kind: "fence", Host: host, Text: fmt.Sprintf("%s: fence %d recorded, cutting", host, rec.Epoch), By: by})
	e.mu.Lock()
	e.counts.Fences++
	if met := e.fencing[host]; met != nil {
		close(met)
		delete(e.fencing, host)
	}
	e.mu.Unlock()

	slots := e.concerned(h.Group)
	e.cutEarly(ctx, *h, slots)
	if err := e.acquire(ctx, "fence "+host, true, slots...); err != nil {
		e.setPending(host, slots)
		known := e.asError(errors.Join(err, e.callRoll(context.WithoutCancel(ctx))))
		known.State = host + " is fenced and gets no new link; the cut goes on being tried"
		return Fenced{}, e.refused(by, known)
	}
	// Once begun it is carried through, whoever waits for it.
	cut, err := e.completeFence(context.WithoutCancel(ctx), *h)
	e.release(slots...)
	if rollErr := e.callRoll(context.WithoutCancel(ctx)); err == nil {
		err = rollErr
	}
	if err != nil {
		return Fenced{}, e.refused(by, err)
	}
	text := host + ": fenced, it had no slots"
	if len(cut) > 0 {
		text = fmt.Sprintf("%s: fenced, %v cut and held", host, cut)
	}
	e.emit(Event{Kind: "fence", Host: host, Text: text, By: by}, e.slotsNamed(cut)...)
	return Fenced{Host: host, Epoch: rec.Epoch, Slots: cut}, nil
}

// Unfence lets a host take part again; it attaches nothing. epoch is that of
// the fence that is to end: one that has been fenced again meanwhile stays so.
func (e *Enclosure) Unfence(ctx context.Context, host string, epoch uint32, by string) error {
	h := e.host(host)
	if h == nil {
		return e.refused(by, unknownHost(host))
	}
	done, err := e.lockHost(ctx, host)
	if err != nil {
		return e.refused(by, err)
	}
	defer done()
	rec, _ := e.fenced(host)
	if rec.Epoch != epoch {
		return e.refused(by, &Error{
			Code: CodeStaleUnfence, What: fmt.Sprintf("%s was fenced again: its fence is %d, not %d", host, rec.Epoch, epoch),
			State: "it stays fenced", Next: "find out who fenced it ('baton log'), then unfence that fence",
		})
	}
	e.mu.Lock()
	// Hardware that can never confirm a cut does not keep a host out for ever.
	var pending []*slot
	for _, s := range e.pending[host] {
		if e.confirmable(s) {
			pending = append(pending, s)
		}
	}
	e.mu.Unlock()
	if len(pending) > 0 {
		return e.refused(by, &Error{
			Code: CodeUnconfirmed, Slot: pending[0].cfg.Name, Where: pending[0].where(), What: "the cut of " + host + " is not confirmed yet",
			State: "it stays fenced", Next: "'baton status' has what is wrong with the slot", Retry: true,
		})
	}
	rec.Fenced = false
	if err := e.putHost(ctx, host, rec); err != nil {
		return e.refused(by, err)
	}
	if err := e.callRoll(ctx); err != nil {
		return e.refused(by, err)
	}
	e.mu.Lock()
	delete(e.distrusted, host)
	e.mu.Unlock()
	e.emit(Event{Kind: "unfence", Host: host, Text: host + ": unfenced", By: by})
	return nil
}

// lockHost waits until no other fence or unfence of host is under way.
func (e *Enclosure) lockHost(ctx context.Context, host string) (done func(), err error) {
	e.mu.Lock()
	l := e.hostLocks[host]
	if l == nil {
		l = make(chan struct{}, 1)
		e.hostLocks[host] = l
	}
	e.mu.Unlock()
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-ctx.Done():
		return nil, &Error{
			Code: CodeBusy, What: "another fence or unfence of " + host + " is under way", Err: ctx.Err(),
			State: "nothing was changed", Next: "try again", Retry: true,
		}
	}
}

// concerned are the slots that a fence of a group waits for: those of the
// group, those whose cut from it was never confirmed, those that a move has not
// yet cut from it, and those that an operation may be bringing to it.
func (e *Enclosure) concerned(group uint16) []*slot {
	return e.slotsWhere(func(s *slot) bool {
		leaving := s.bound != 0 && !s.left && s.st.Prior != nil && s.st.Prior.To == group
		unknown := s.bound == 0 && s.holder != "" && s.holder != pollHolder
		return s.st.Now.To == group || s.bound == group || leaving || unknown || s.uncutFrom(group)
	})
}

// cutEarly cuts slots of a fenced host each as soon as nobody has it, where
// another operation has some of them: what that takes must not keep the host
// linked with the rest. On return no lock is held, since locks of several slots
// are taken in order; what was cut stays so, as its host is fenced.
func (e *Enclosure) cutEarly(ctx context.Context, h HostConfig, slots []*slot) {
	free := map[*slot]bool{}
	for _, s := range slots {
		free[s] = e.tryLock(s)
	}
	if !slices.ContainsFunc(slots, func(s *slot) bool { return !free[s] }) {
		e.release(slots...)
		return // all of them are cut in a moment
	}
	perBus(itemsOf(slots), func(its []*item) {
		var now, later []*slot
		for _, it := range its {
			if free[it.s] {
				now = append(now, it.s)
			} else {
				later = append(later, it.s)
			}
		}
		e.cutTheirs(ctx, h, now)
		e.release(now...)
		for _, s := range later {
			if e.acquire(ctx, "fence "+h.Name, true, s) != nil {
				return // told of by who waits for all
			}
			e.cutTheirs(ctx, h, []*slot{s})
			e.release(s)
		}
	})
}

// cutTheirs cuts those of slots, whose locks are held, that a host has or may
// have.
func (e *Enclosure) cutTheirs(ctx context.Context, h HostConfig, slots []*slot) {
	e.mu.Lock()
	theirs := slices.DeleteFunc(slices.Clone(slots), func(s *slot) bool { return s.st.Now.To != h.Group && !s.uncutFrom(h.Group) })
	e.mu.Unlock()
	if len(theirs) == 0 {
		return
	}
	cutting, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	_, _, _ = e.cutLinks(cutting, h, theirs) // what is not confirmed is tried again with the rest
}

// slotsWhere are the slots of which is is true; it is called with Enclosure.mu
// held.
func (e *Enclosure) slotsWhere(is func(*slot) bool) []*slot {
	e.mu.Lock()
	defer e.mu.Unlock()
	var slots []*slot
	for _, s := range e.slots {
		if is(s) {
			slots = append(slots, s)
		}
	}
	return slots
}

// uncutFrom tells whether s may still be linked with a group that the records
// no longer give it to: they took it from there to nobody and no cut was seen,
// or the engine runs with a block of that group. What the page says counts, not
// the last record but one: an undo that met a fence has the failed move between.
// That record counts where neither page nor engine can be read.
// Enclosure.mu is held.
func (s *slot) uncutFrom(group uint16) bool {
	if s.cut == "confirmed" || s.st.Now.To == group || !s.st.Known() {
		return false
	}
	if s.st.Now.To == ee.GroupFree && s.st.Prior != nil && s.st.Prior.To == group {
		return true
	}
	if s.took != nil && s.took.Gen == s.st.Now.Gen && s.took.Has(group) {
		return true
	}
	if s.block != nil {
		return s.block.Group == group
	}
	read := s.readErr == nil && !s.readAt.IsZero()
	return s.st.Prior != nil && s.st.Prior.To == group && !(read && s.live.Group == s.st.Now.To)
}

// confirmable tells whether a cut of s can be read back.
func (e *Enclosure) confirmable(s *slot) bool {
	return s.can(ee.CapLinkControl) || (e.cfg.Switch != nil && s.cfg.Port != "")
}

// uncut are the slots of which uncutFrom is true.
func (e *Enclosure) uncut(group uint16) []*slot {
	return e.slotsWhere(func(s *slot) bool { return s.uncutFrom(group) })
}

// bind notes which group an operation brings slots to; 0 ends it.
func (e *Enclosure) bind(slots []*slot, group uint16) {
	e.mu.Lock()
	defer e.mu.Unlock()
	bindLocked(slots, group)
}

func bindLocked(slots []*slot, group uint16) {
	for _, s := range slots {
		s.bound, s.left = group, false
	}
}

// slotsOf are the slots that the records give to a group.
func (e *Enclosure) slotsOf(group uint16) []*slot {
	return e.slotsWhere(func(s *slot) bool { return s.st.Known() && s.st.Now.To == group })
}

// completeFence cuts what a fenced host still has, then records and writes
// that it is held. Locks of the slots are held. It is what recovery does too.
func (e *Enclosure) completeFence(ctx context.Context, h HostConfig) ([]string, error) {
	slots, left := e.slotsOf(h.Group), e.uncut(h.Group)
	all := append(slices.Clone(slots), left...)
	if len(all) == 0 {
		return nil, nil
	}
	// Whether a move had arrived is seen before the cut.
	held := e.holdRecords(slots)
	// The cut comes first: it is what is waited for, and it needs no record.
	// Each step has a time of its own: a bus on which all transfers time out
	// must not use up that of the record.
	cutting, cancel := context.WithTimeout(ctx, opTimeout)
	open, p := e.cutFrom(cutting, h, all)
	cancel()
	if len(slots) > 0 {
		if err := e.put(ctx, nvm.Urgent, held...); err != nil {
			e.setPending(h.Name, all)
			return nil, err
		}
	}
	settling, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	e.settleEach(settling, p, all)
	if open != nil {
		return nil, open
	}
	return names(all), nil
}

// settleEach brings slots that were cut to their records, each on its own.
func (e *Enclosure) settleEach(ctx context.Context, p *pass, slots []*slot) {
	for _, s := range slots {
		if f := e.settled(ctx, []*slot{s}); f != nil {
			p.only(s).block(ctx, f.err)
		} else {
			e.leaveBlockage(s)
		}
	}
}

// cutFrom cuts slots from host and notes those of which that is not confirmed.
func (e *Enclosure) cutFrom(ctx context.Context, h HostConfig, slots []*slot) (*Error, *pass) {
	open, first, p := e.cutLinks(ctx, h, slots)
	e.setPending(h.Name, open)
	return first, p
}

// cutLinks cuts slots from host and returns those of which that is not
// confirmed, with the first one's reason.
func (e *Enclosure) cutLinks(ctx context.Context, h HostConfig, slots []*slot) (open []*slot, first *Error, p *pass) {
	items := itemsOf(slots)
	for _, it := range items {
		it.keep = e.policyOf(e.state(it.s)) != plan.Never
	}
	p = e.newPass(items, nil)
	// Bus by bus, and no bus waits for another to be read.
	perBus(items, func(its []*item) {
		for _, it := range its {
			if it.s.fault != nil {
				e.comeBack(ctx, it.s)
			}
			if (it.s.fault == nil || it.s.trusted) && it.s.can(ee.CapStatus) {
				if o, err := e.observe(ctx, it.s); err == nil {
					it.live = o
				}
			}
		}
		_ = e.newPass(its, nil).cutAll(ctx) // what is not cut is found below
	})
	for _, it := range items {
		if it.cut || e.cutByVLAN(ctx, it.s) {
			e.noteCut(it.s, "confirmed")
			continue
		}
		e.noteCut(it.s, "unconfirmed")
		open = append(open, it.s)
		if first == nil {
			first = &Error{
				Code: CodeUnconfirmed, Slot: it.s.cfg.Name, Where: it.s.where(), Err: it.err, Retry: true,
				What:  "the cut of " + h.Name + " is not confirmed",
				State: h.Name + " is fenced, gets no new link, and the cut is tried again and again",
				Next:  "cut the slot by hand (pull its cable, power it off)",
			}
		}
	}
	return open, first, p
}

// only is the part of p that is s.
func (p *pass) only(s *slot) *pass {
	for _, it := range p.items {
		if it.s == s {
			return p.e.newPass([]*item{it}, nil)
		}
	}
	return p.e.newPass(itemsOf([]*slot{s}), nil)
}

func (e *Enclosure) setPending(host string, slots []*slot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(slots) > 0 {
		// In the order in which locks are taken.
		e.pending[host] = slices.SortedFunc(slices.Values(slots), func(a, b *slot) int { return a.index - b.index })
	} else {
		delete(e.pending, host)
	}
}

// fenceSignal is closed when host is fenced (again).
func (e *Enclosure) fenceSignal(host string) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, fenced := e.fencedLocked(host); fenced {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	if e.fencing[host] == nil {
		e.fencing[host] = make(chan struct{})
	}
	return e.fencing[host]
}

// retryFences goes on with cuts that are not confirmed.
func (e *Enclosure) retryFences(ctx context.Context, l *loop) {
	for _, h := range e.roster.Load().hosts {
		e.mu.Lock()
		slots := e.pending[h.Name]
		e.mu.Unlock()
		if len(slots) == 0 {
			continue
		}
		short, cancel := context.WithTimeout(ctx, lockWait)
		l.turn()
		if err := e.acquire(short, "fence "+h.Name, true, slots...); err == nil {
			for _, s := range slots {
				s.leader.Store(slots[0])
			}
			l.on(slots[0])
			theirs := e.notWithOthers(h, slots)
			if open, p := e.cutFrom(ctx, h, theirs); open == nil && len(theirs) > 0 {
				e.settleEach(ctx, p, theirs)
				e.emit(Event{Kind: "fence", Host: h.Name, Text: fmt.Sprintf("%s: the cut of %v is confirmed now", h.Name, names(theirs))}, theirs...)
			}
			e.release(slots...)
		}
		cancel()
	}
}

// notWithOthers leaves out of slots, whose locks are held, those that another
// host has: a fence that was given up while it waited did not know yet where an
// operation would leave them.
func (e *Enclosure) notWithOthers(h HostConfig, slots []*slot) []*slot {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(slots), func(s *slot) bool {
		return s.st.Now.To != ee.GroupFree && s.st.Now.To != h.Group && !s.uncutFrom(h.Group)
	})
}
