package enclosure

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"baton/ee"
	"baton/enclosure/bug"
	"baton/enclosure/plan"
	"baton/nvm"
)

// item is one slot of a set on its way to what it should look like.
type item struct {
	s    *slot
	want plan.Want
	do   plan.Diff
	live ee.Observation // as last read

	keep  bool        // guard and hold in the break, whatever comes after
	reset bool        // the agent resets the device between break and make
	doubt plan.Reason // why its memory does not count as kept, of those that should keep it
	cut   bool        // confirmed
	err   error
}

// pass carries a set of slots through break, assign and make. Moves, undos,
// fences, releases and recovery are all this; they differ in what they write
// into the store before.
//
// The locks of all slots are held. Every phase does all slots before the next
// begins; inside a phase, buses run in parallel and the slots of one bus one
// after the other, all transfers before all waits, so that write cycles, loads
// and resets of different chips overlap.
type pass struct {
	e     *Enclosure
	items []*item
	vlan  bool // some slot has a port of ours
	step  func(name, text string)
}

// failure tells how far a pass came.
type failure struct {
	committed bool // links may be on
	err       *Error
	unread    bool // nothing was done: a slot could not be read, all others are as they should be
}

func (f *failure) Error() string { return f.err.Error() }

// itemsOf are slots as they were last read, with nothing asked of them yet.
func itemsOf(slots []*slot) []*item {
	items := make([]*item, len(slots))
	for i, s := range slots {
		items[i] = &item{s: s, live: s.live}
	}
	return items
}

func (e *Enclosure) newPass(items []*item, step func(name, text string)) *pass {
	p := &pass{e: e, items: items, step: step}
	for _, it := range items {
		p.vlan = p.vlan || (e.cfg.Switch != nil && it.s.cfg.Port != "")
	}
	if step == nil {
		p.step = func(string, string) {}
	}
	return p
}

// run does what each item's do says. On a failure before the commit point no
// link of the set is on.
func (p *pass) run(ctx context.Context) *failure {
	if bug.Is(bug.Together) && len(p.items) > 1 {
		for _, it := range p.items {
			if f := p.e.newPass([]*item{it}, p.step).run(ctx); f != nil {
				return f
			}
		}
		return nil
	}
	for _, phase := range []func(context.Context) *Error{p.breakLinks, p.leaveVLANs, p.resetDevices, p.writeBlocks, p.reload, p.resetDoubtful, p.joinVLANs} {
		if err := phase(ctx); err != nil {
			return &failure{err: err}
		}
	}
	return p.makeLinks(ctx)
}

// stages runs the functions one after the other over all items of a bus: what
// the first started is under way while it starts the next.
func (p *pass) stages(ctx context.Context, need plan.Diff, fs ...func(context.Context, *item) error) *Error {
	var mine []*item
	for _, it := range p.items {
		if it.do.Has(need) {
			mine = append(mine, it)
		}
	}
	perBus(mine, func(its []*item) {
		for _, f := range fs {
			for _, it := range its {
				if it.err == nil {
					it.err = f(ctx, it)
				}
			}
		}
	})
	for _, it := range mine {
		if it.err != nil {
			var known *Error
			if errors.As(it.err, &known) {
				return known
			}
			return it.s.hardware("the slot did not do as told", it.err)
		}
	}
	return nil
}

// perBus calls f once for each bus that items are on, in parallel, and waits.
func perBus(items []*item, f func([]*item)) {
	var names []string
	buses := map[string][]*item{}
	for _, it := range items {
		n := it.s.cfg.BusName
		if buses[n] == nil {
			names = append(names, n)
		}
		buses[n] = append(buses[n], it)
	}
	if len(names) == 1 {
		f(buses[names[0]])
		return
	}
	var wg sync.WaitGroup
	for _, n := range names {
		wg.Go(func() { f(buses[n]) })
	}
	wg.Wait()
}

// breakLinks takes the links off and confirms each cut. Without LinkControl
// the engine is cut from its host by a block that says free.
func (p *pass) breakLinks(ctx context.Context) *Error {
	err := p.stages(ctx, plan.DoCut, func(ctx context.Context, it *item) error {
		it.cut = false
		if !it.s.can(ee.CapLinkControl) {
			return nil
		}
		return p.cutLink(ctx, it)
	})
	if err != nil {
		return err
	}
	if err := p.breakByBlock(ctx); err != nil {
		return err
	}
	if n := p.count(plan.DoCut); n > 0 {
		p.step("cut", cutText(p.items, n))
	}
	return nil
}

// cutText says what the break was, and no more than was read back.
func cutText(items []*item, n int) string {
	blind := 0
	for _, it := range items {
		if it.do.Has(plan.DoCut) && !it.s.can(ee.CapLinkControl) {
			blind++
		}
	}
	if blind > 0 {
		return fmt.Sprintf("cut: unconfirmed of %d slots, their engines were made to load %q", blind, "free")
	}
	return fmt.Sprintf("links of %d slots down, read back; bus mastering off", n)
}

// cutTries is how often a link that stays up is switched off again.
const cutTries = 3

func (p *pass) cutLink(ctx context.Context, it *item) error {
	if it.live == (ee.Observation{}) {
		// What is not read can not be kept: device power is in CONTROL too.
		var err error
		if it.live, err = p.e.observe(ctx, it.s); err != nil {
			return p.uncut(ctx, it, err)
		}
	}
	control := it.want.Control(it.live.Control)&^uint8(ee.CtlLink) | ee.CtlQuiesce
	if it.keep {
		control |= ee.CtlHold
		if it.s.can(ee.CapResetGuard) {
			control |= ee.CtlGuard
		}
	}
	control |= it.live.Control & (ee.CtlGuard | ee.CtlHold) // whoever armed it wants it on until the make
	var err error
	for range cutTries {
		var status uint8
		status, _, err = it.s.engine.Set(ctx, control)
		if err == nil && status&(ee.StatLink|ee.StatEnabled) == 0 {
			it.live.Control = control
			it.cut = true
			p.e.noteCut(it.s, "confirmed")
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%w: link still up or enabled after link off (status 0x%02x)", ee.ErrIgnored, status)
		}
	}
	if o, readErr := p.e.observe(ctx, it.s); readErr == nil && o.Status&ee.StatLink == 0 && o.Control&ee.CtlLink == 0 {
		// It takes no command, but it was off already.
		it.live = o
		it.cut = true
		p.e.noteCut(it.s, "confirmed")
		return it.s.hardware("the engine takes no command; its link is off, read back", err)
	}
	return p.uncut(ctx, it, err)
}

// uncut is what is left where an engine does not take its link off.
func (p *pass) uncut(ctx context.Context, it *item, err error) error {
	if p.e.cutByVLAN(ctx, it.s) {
		it.cut = true
		p.e.noteCut(it.s, "confirmed")
		return it.s.hardware("the engine did not take link off; its port was taken out of every VLAN instead, read back", err)
	}
	if bug.Is(bug.UnreadCut) {
		it.cut = true
		p.e.noteCut(it.s, "confirmed")
		return nil
	}
	p.e.noteCut(it.s, "unconfirmed")
	return &Error{
		Code: CodeUnconfirmed, Slot: it.s.cfg.Name, Where: it.s.where(), Err: err, Retry: true,
		What: "the cut is not confirmed: the engine did not take link off, and no port or power switch is there to do it",
		Next: "cut the slot by hand (pull its cable, power it off) and try again",
	}
}

// cutByVLAN takes the slot's port out of every VLAN and reads that back.
func (e *Enclosure) cutByVLAN(ctx context.Context, s *slot) bool {
	if e.cfg.Switch == nil || s.cfg.Port == "" {
		return false
	}
	return e.setVLAN(ctx, s, 0) == nil
}

func (e *Enclosure) noteCut(s *slot, how string) {
	e.mu.Lock()
	s.cut = how
	s.left = s.left || how == "confirmed"
	e.mu.Unlock()
}

// breakByBlock is the break of engines that can only reload: free is written
// to all slots of the set and loaded before any gets its new group.
func (p *pass) breakByBlock(ctx context.Context) *Error {
	blind := func(f func(context.Context, *item) error) func(context.Context, *item) error {
		return func(ctx context.Context, it *item) error {
			if it.s.can(ee.CapLinkControl) || it.want.Block.Group == ee.GroupFree {
				return nil
			}
			return f(ctx, it)
		}
	}
	free := func(it *item) ee.Block {
		b := it.want.Block
		b.Group, b.Flags = ee.GroupFree, 0
		return b
	}
	return p.stages(ctx, plan.DoCut,
		blind(func(ctx context.Context, it *item) error { return it.s.writeBlock(ctx, free(it)) }),
		blind(func(ctx context.Context, it *item) error { return it.s.readBack(ctx, free(it)) }),
		blind(p.startLoad), blind(p.endLoad))
}

func (p *pass) leaveVLANs(ctx context.Context) *Error {
	if !p.vlan {
		return nil
	}
	return p.stages(ctx, plan.DoCut, func(ctx context.Context, it *item) error {
		return p.e.setVLAN(ctx, it.s, 0)
	})
}

// setVLAN makes the slot's port a member of the group's VLAN alone, 0 = of none,
// and reads it back. It changes nothing where that is so already.
func (e *Enclosure) setVLAN(ctx context.Context, s *slot, group uint16) error {
	if e.cfg.Switch == nil || s.cfg.Port == "" {
		return nil
	}
	if err := e.cfg.Switch.Set(ctx, s.cfg.Port, group); err != nil {
		return s.noVLAN("the port's VLAN could not be set", err)
	}
	return nil
}

// noVLAN is what the switch said about a slot's port.
func (s *slot) noVLAN(what string, err error) *Error {
	return &Error{
		Code: CodeHardware, Slot: s.cfg.Name, Where: "port " + s.cfg.Port, What: what, Err: err, Retry: true,
		Next: "mend the switch ('baton status' has more in its warnings), then try again",
	}
}

// resetDevices resets what must not keep its memory. The proof is the engine's
// counter, nothing else.
func (p *pass) resetDevices(ctx context.Context) *Error {
	n := 0
	resets := func(f func(context.Context, *item) error) func(context.Context, *item) error {
		return func(ctx context.Context, it *item) error {
			if !it.reset || !it.s.can(ee.CapDeviceReset|ee.CapStatus) || bug.Is(bug.OldTenant) {
				return nil
			}
			return f(ctx, it)
		}
	}
	err := p.stages(ctx, ^plan.Diff(0),
		resets(func(ctx context.Context, it *item) error {
			// Once more, after the cut: a reset that the host sent before it
			// must not pass for the agent's.
			o, err := p.e.observe(ctx, it.s)
			if err != nil {
				return err
			}
			it.live = o
			return it.s.engine.ResetDevice(ctx, it.live.Control)
		}),
		resets(func(ctx context.Context, it *item) error {
			o, err := it.s.engine.WasReset(ctx, it.live.Resets)
			if err == nil {
				it.live = o
				it.reset = false
			}
			return err
		}))
	if err == nil {
		// Where the counter will show nothing, the proof of the VM before must
		// not speak for the next.
		err = p.stages(ctx, ^plan.Diff(0), func(ctx context.Context, it *item) error {
			if !it.reset || !it.s.can(ee.CapStatus|ee.CapLatches) || bug.Is(bug.OldTenant) {
				return nil
			}
			return p.e.prove(ctx, it.s, 0)
		})
	}
	if err != nil {
		return err
	}
	for _, it := range p.items {
		if it.reset {
			it.reset = false
			n++
		}
	}
	if n > 0 {
		p.e.emit(Event{Kind: "fault", Text: fmt.Sprintf("%d slots have no device reset: memory of the VM before may be seen by the next", n)})
	}
	return nil
}

// resetDoubtful resets devices whose memory was found not kept only after the
// reload.
func (p *pass) resetDoubtful(ctx context.Context) *Error {
	for _, it := range p.items {
		if it.reset {
			return p.resetDevices(ctx)
		}
	}
	return nil
}

func (p *pass) writeBlocks(ctx context.Context) *Error {
	err := p.stages(ctx, plan.DoWrite,
		func(ctx context.Context, it *item) error {
			if err := it.s.writeBlock(ctx, it.want.Block); err != nil {
				return it.s.eeprom("the config block could not be written", err)
			}
			return nil
		},
		func(ctx context.Context, it *item) error {
			err := it.s.readBack(ctx, it.want.Block)
			if errors.Is(err, nvm.ErrReadBack) {
				// Once more: a page that does not hold is told apart from a
				// disturbed transfer.
				if err = it.s.writeBlock(ctx, it.want.Block); err == nil {
					err = it.s.readBack(ctx, it.want.Block)
				}
			}
			p.e.mu.Lock()
			it.s.block = nil
			if err == nil {
				b := it.want.Block
				it.s.block, it.s.suspect = &b, false
			}
			p.e.mu.Unlock()
			if err != nil {
				return it.s.eeprom("the config block does not hold what was written", err)
			}
			return nil
		})
	if err == nil && p.count(plan.DoWrite) > 0 {
		b := p.items[0].want.Block
		p.step("assigned", fmt.Sprintf("group %d, generation %d, read back", b.Group, b.Generation.Counter))
	}
	return err
}

func (p *pass) startLoad(ctx context.Context, it *item) error {
	p.e.setLoading(it.s, true)
	return it.s.engine.Reload(ctx, it.live.Control&^uint8(ee.CtlLink|ee.CtlReload|ee.CtlDeviceReset))
}

func (p *pass) endLoad(ctx context.Context, it *item) error {
	o, err := it.s.engine.Loaded(ctx)
	if err == nil || errors.Is(err, ee.ErrConfigBad) {
		p.e.setLoading(it.s, false)
	}
	if err != nil || !it.s.can(ee.CapStatus) {
		return err
	}
	before := it.live
	it.live.Control, it.live.Status, it.live.Latch, it.live.Group, it.live.Resets = o.Control, o.Status, o.Latch, o.Group, o.Resets
	// Latches and counters once more: what came between the first look and the
	// cut is found here, while nobody is connected.
	// A link that the server lost meanwhile is none of it: the device was held.
	seen := o.Latch &^ before.Latch & (ee.LatchPowerLost | ee.LatchRestarted | ee.LatchReset)
	if it.want.Show&ee.ShowTarget != 0 && (o.Resets != before.Resets || seen != 0) {
		it.want.Show &^= ee.ShowTarget | ee.ShowPowerKept
		it.doubt = plan.WhyReset
		if seen&ee.LatchRestarted != 0 {
			it.doubt = plan.WhyRestarted
		}
		it.reset = true
	}
	return nil
}

func (p *pass) reload(ctx context.Context) *Error {
	return p.stages(ctx, plan.DoReload, p.startLoad, func(ctx context.Context, it *item) error {
		err := p.endLoad(ctx, it)
		if errors.Is(err, ee.ErrConfigBad) {
			// The page was read back well: the engine met a busy chip.
			if err = p.startLoad(ctx, it); err == nil {
				err = p.endLoad(ctx, it)
			}
		}
		if err == nil && it.s.can(ee.CapStatus) && it.live.Group != it.want.Block.Group {
			err = fmt.Errorf("%w: it runs with group %d, the page has %d", ee.ErrIgnored, it.live.Group, it.want.Block.Group)
		}
		return err
	})
}

func (p *pass) joinVLANs(ctx context.Context) *Error {
	if !p.vlan {
		return nil
	}
	err := p.stages(ctx, plan.DoCut|plan.DoConnect, func(ctx context.Context, it *item) error {
		return p.e.setVLAN(ctx, it.s, it.want.Group())
	})
	if err == nil && p.count(plan.DoConnect) > 0 {
		p.step("vlan", fmt.Sprintf("%d joined, read back", p.items[0].want.Group()))
	}
	return err
}

// makeLinks is the commit point: all slots of the set are verified, and the
// target is looked up again immediately before.
func (p *pass) makeLinks(ctx context.Context) *failure {
	for _, it := range p.items {
		if !it.do.Has(plan.DoConnect) || !it.want.Link || bug.Is(bug.Fencing) {
			continue
		}
		peer := p.e.peerOf(it.want.Block.Group)
		if peer == nil || peer.Fenced || (peer.MAC != it.want.Peer && !bug.Is(bug.OneOwner)) {
			return &failure{err: p.e.fencedError(it.want.Block.Group)}
		}
	}
	if err := p.strangers(ctx); err != nil {
		return &failure{committed: true, err: err}
	}
	err := p.stages(ctx, plan.DoConnect|plan.DoShow, func(ctx context.Context, it *item) error {
		if !it.s.can(ee.CapLinkControl) {
			return nil
		}
		it.live.Control = it.want.Control(it.live.Control)
		if it.want.Link {
			return it.s.engine.Connect(ctx, it.want.Peer, it.want.Show, it.live.Control)
		}
		_, _, err := it.s.engine.Set(ctx, it.live.Control)
		return err
	})
	if err != nil {
		return &failure{committed: true, err: err}
	}
	if p.count(plan.DoConnect) > 0 {
		for _, it := range p.items {
			if it.want.Link {
				p.e.noteCut(it.s, "")
			}
		}
		p.step("linked", fmt.Sprintf("links of %d slots on", p.count(plan.DoConnect)))
	}
	return nil
}

// strangers keeps links off where an engine that takes any peer sees one that
// is not the target's. It is retried like an engine that does not obey.
func (p *pass) strangers(ctx context.Context) *Error {
	return p.stages(ctx, plan.DoConnect, func(ctx context.Context, it *item) error {
		if !it.want.Link || it.s.can(ee.CapExpectPeer) || !it.s.can(ee.CapStatus|ee.CapLinkControl) {
			return nil
		}
		peer, err := it.s.engine.Peer(ctx)
		if err != nil {
			return it.s.hardware("the engine can not be read", err)
		}
		if !peer.MAC.IsZero() && peer.MAC != it.want.Peer {
			return it.s.foreignError(peer.MAC, it.want.Peer)
		}
		return nil
	})
}

// foreignError is for an engine that sees a peer which is not its host's.
func (s *slot) foreignError(found, want ee.MAC) *Error {
	return &Error{
		Code: CodeForeignPeer, Slot: s.cfg.Name, Where: s.where(), Retry: true,
		What: fmt.Sprintf("engine %s is at the other end, which is not the target's %s", found, want),
		Next: "take the group away from the server that should not have it",
	}
}

func (e *Enclosure) fencedError(group uint16) *Error {
	h := e.hostOf(group)
	if h == nil {
		return &Error{Code: CodeUnknownHost, What: fmt.Sprintf("no host has group %d", group)}
	}
	return &Error{
		Code: CodeFenced, What: h.Name + " is fenced",
		Next: fmt.Sprintf("make sure that %s is well, then baton unfence %s", h.Name, h.Name),
	}
}

func (p *pass) count(d plan.Diff) int {
	n := 0
	for _, it := range p.items {
		if it.do.Has(d) {
			n++
		}
	}
	return n
}

// cutAll takes all links of the set off, as far as the hardware lets it, and
// says what could not be confirmed.
func (p *pass) cutAll(ctx context.Context) *Error {
	for _, it := range p.items {
		it.err = nil
		it.do = plan.DoCut
		it.want.Link = false
		it.want.Show = 0
	}
	var first *Error
	perBus(p.items, func(its []*item) {
		for _, it := range its {
			if it.s.fault != nil && !it.s.trusted {
				// Somebody else may be at that address: nothing is written.
				it.err = it.s.fault
				p.e.noteCut(it.s, "unconfirmed")
			} else if it.s.can(ee.CapLinkControl) {
				it.err = p.cutLink(ctx, it)
			}
		}
	})
	for _, it := range p.items {
		if err := p.e.setVLAN(ctx, it.s, 0); err != nil && it.err == nil {
			it.err = err
		}
		var known *Error
		if it.err != nil && first == nil && errors.As(it.err, &known) {
			first = known
		}
	}
	return first
}

// setLoading marks that the slot's engine may be reading its chip, which a
// store on the same chip waits for.
func (e *Enclosure) setLoading(s *slot, on bool) {
	e.mu.Lock()
	s.loading = on
	e.mu.Unlock()
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
