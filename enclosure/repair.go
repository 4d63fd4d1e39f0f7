package enclosure

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"baton/ee"
	"baton/enclosure/plan"
	"baton/nvm"
)

// NVMReport is what a check of store and config blocks found.
type NVMReport struct {
	State    string // of the store: formatted, blank, foreign, half formatted, unreadable
	Findings []NVMFinding
	Token    string // stands for State and Findings
	Repaired bool
	Restart  bool // the agent must be opened anew
}

// NVMFinding is one thing that a check found.
type NVMFinding struct {
	Where, What, Grade, Repair, Lost string
}

// NVMDump is the content of a medium.
type NVMDump struct {
	Of, Part string
	Offset   int64 // of Image on the chip
	Image    []byte
}

// CheckNVM looks for what is wrong with the store and the config blocks, also
// where the store can not be used. It reads everything anew, writes nothing, and
// takes about as long as the store's chip takes to be read (0.75 s for 32 KiB at
// 400 kHz); slots that an operation has are noted, and not waited for.
func (e *Enclosure) CheckNVM(ctx context.Context) (NVMReport, error) {
	c := e.checkNVM(ctx)
	if err := ctx.Err(); err != nil {
		return NVMReport{}, &Error{Code: CodeHardware, What: "the check did not come to its end", Err: err, State: "nothing was changed", Next: "try again", Retry: true}
	}
	return reportOf(c), nil
}

func reportOf(c plan.Checked) NVMReport {
	r := NVMReport{State: c.State}
	h := sha256.New()
	fmt.Fprintf(h, "%q", c.State)
	for _, f := range c.Findings {
		r.Findings = append(r.Findings, NVMFinding{f.Where, f.What, string(f.Grade), f.Repair, f.Lost})
		fmt.Fprintf(h, "%q", f)
	}
	r.Token = hex.EncodeToString(h.Sum(nil)[:8])
	return r
}

// checkNVM reads and judges.
func (e *Enclosure) checkNVM(ctx context.Context) plan.Checked {
	in := plan.CheckInput{StoreWhere: "store", Live: true}
	for _, c := range e.cfg.Slots {
		in.Slots = append(in.Slots, c.Name)
	}
	for _, h := range e.roster.Load().hosts {
		in.Hosts = append(in.Hosts, h.Name)
	}
	e.mu.Lock()
	for _, h := range slices.Sorted(maps.Keys(e.distrusted)) {
		if !e.hosts[h].Fenced {
			in.Distrusted = append(in.Distrusted, h)
		}
	}
	for _, p := range e.report.Lost {
		if slices.Contains(e.report.Cleared, p) {
			in.Gone++
		}
	}
	e.mu.Unlock()
	gens := map[*slot]uint32{}
	for _, s := range e.slots {
		gens[s] = e.state(s).Now.Gen
		in.Blocks = append(in.Blocks, e.readForCheck(ctx, s))
	}
	in.Store, in.StoreErr = e.inspectStore(ctx)
	if e.store != nil {
		in.Free = e.store.Stats().Free
		in.Known = []nvm.Record{}
		for k, v := range e.store.All("") {
			in.Known = append(in.Known, nvm.Record{Key: k, Value: v})
		}
		for i, s := range e.slots {
			if e.state(s).Now.Gen != gens[s] { // assigned anew since its page was read
				in.Blocks[i].Page, in.Blocks[i].Busy = nil, true
			}
		}
	}
	if in.Store != nil && errors.Is(in.Store.Err, nvm.ErrUnformatted) && in.Store.State == nvm.Foreign {
		var known []uint32
		for _, b := range in.Blocks {
			if block, err := ee.DecodeBlock(b.Page); err == nil {
				known = append(known, block.Generation.Incarnation)
			}
		}
		in.Salvage, _ = nvm.FindLost(ctx, e.cfg.Store.Medium, known...) // what can not be read is not found
	}
	return plan.Check(in)
}

// inspectStore reads the store's medium.
func (e *Enclosure) inspectStore(ctx context.Context) (*nvm.Inspection, error) {
	sc := e.cfg.Store
	switch {
	case e.store != nil:
		return e.store.Inspect(ctx)
	case sc.Medium == nil:
		return nil, sc.Problem
	}
	in, err := nvm.Inspect(ctx, sc.Medium)
	if m, ok := sc.Medium.(identifier); ok && (err != nil || in.Err != nil) {
		// What another part holds is not to be judged, and not to be made anew.
		if found, not := m.Identify(ctx); nvm.OtherPart(not) {
			return nil, fmt.Errorf("the chip is not the configured one: found %s: %w", found, not)
		}
	}
	return in, err
}

// readForCheck reads a slot's page, under its lock.
func (e *Enclosure) readForCheck(ctx context.Context, s *slot) plan.BlockRead {
	b := plan.BlockRead{Slot: s.cfg.Name, Where: s.cfg.Page}
	if !e.lockWithin(s, lockPoll) {
		b.Busy = true
		return b
	}
	defer e.release(s)
	switch {
	case s.cfg.Problem != nil:
		b.Err = s.cfg.Problem
	case s.fault != nil && s.fault.Code == CodeIdentity:
		b.Err = s.fault
	default:
		b.Page = make([]byte, ee.BlockSize)
		if b.Err = s.cfg.Medium.ReadAt(ctx, b.Page, s.cfg.Profile.BlockOffset); b.Err != nil {
			b.Page = nil
		}
	}
	return b
}

// RepairNVM does what the report that token stands for says: where things have
// changed since, it is refused with CodeStaleToken, and nothing is done. With
// format the store is made anew if nothing less helps: all that it held is lost,
// hosts start fenced, and slots are cut, and held for the VMs that their config
// blocks name.
//
// Where the report says Restart, the agent refuses all changes until it has been
// opened anew; what is linked stays linked until then, and after that wherever
// records and hardware agree.
func (e *Enclosure) RepairNVM(ctx context.Context, token string, format bool, by string) (NVMReport, error) {
	done, err := e.onlyRepair(ctx)
	if err != nil {
		return NVMReport{}, e.refused(by, err)
	}
	defer done()
	c, release, err := e.agreed(ctx, token)
	if err != nil {
		return NVMReport{}, e.refused(by, err)
	}
	defer release()
	repair := c.Repair
	switch {
	case format && !c.Format:
		return NVMReport{}, e.refused(by, &Error{
			Code: CodeNotNeeded, Where: e.cfg.Store.Name, What: "the store is not made anew: it can be used, or repaired without that",
			State: "nothing was changed", Next: "repair without format",
		})
	case format:
		repair = c.Anew(newIncarnation(e.random))
	case !c.Todo() && c.Format:
		return NVMReport{}, e.refused(by, &Error{
			Code: CodeStore, Where: e.cfg.Store.Name, What: "the store can only be made anew: " + c.State,
			State: "nothing was changed", Next: "if what it held may be lost: baton nvm repair --format",
		})
	case !c.Todo():
		return NVMReport{}, e.refused(by, &Error{
			Code: CodeNotNeeded, Where: e.cfg.Store.Name, What: "there is nothing that a repair could do", State: "nothing was changed",
			Next: "what the check says that is not repaired has to be mended by hand",
		})
	}
	for _, f := range c.Findings {
		if f.Repair != "" {
			e.emit(Event{Kind: "repair", Text: fmt.Sprintf("%s: %s: %s", f.Where, f.What, f.Repair), By: by})
		}
	}
	report := reportOf(c)
	report.Restart, err = e.mendStore(context.WithoutCancel(ctx), repair, c.Blocks, release)
	if err != nil {
		known := &Error{
			Code: CodeStore, Where: e.cfg.Store.Name, What: "the repair did not come to its end", Err: err,
			State: "what was done so far is good; what is left is found by another check", Next: "check the chip and its bus, then check and repair again",
		}
		e.emit(Event{Kind: "repair", Code: string(CodeStore), Text: known.Error(), By: by})
		return NVMReport{}, known
	}
	text := "repaired"
	if format {
		text = "made anew; every host starts fenced: baton unfence HOST"
	}
	if report.Restart {
		text += "; the agent starts again"
	}
	e.emit(Event{Kind: "repair", Text: "store " + text, By: by})
	report.Repaired, report.Token = true, ""
	return report, nil
}

// onlyRepair lets one repair be under way at a time.
func (e *Enclosure) onlyRepair(ctx context.Context) (done func(), err error) {
	e.mu.Lock()
	if e.repairing == nil {
		e.repairing = make(chan struct{}, 1)
	}
	e.mu.Unlock()
	select {
	case e.repairing <- struct{}{}:
		return func() { <-e.repairing }, nil
	case <-ctx.Done():
		return nil, &Error{Code: CodeBusy, What: "another repair is under way", Err: ctx.Err(), State: "nothing was changed", Next: "wait for it, then check again", Retry: true}
	}
}

// agreed checks once more and compares with what the caller saw. It returns
// with the locks of all slots, and no slot was assigned and nothing written to
// the store since. The store's chip takes long to be read, and no fence is to
// wait for that: so the locks are taken afterwards.
func (e *Enclosure) agreed(ctx context.Context, token string) (c plan.Checked, release func(), err error) {
	stale := &Error{
		Code: CodeStaleToken, Where: e.cfg.Store.Name, What: "store or config blocks are not as they were when they were checked",
		State: "nothing was changed", Next: "check again (baton nvm check), and repair by what that says", Retry: true,
	}
	if c = e.checkNVM(ctx); ctx.Err() != nil {
		return c, nil, ctx.Err()
	}
	if reportOf(c).Token != token {
		return c, nil, stale
	}
	seq := e.storeSequence()
	before := e.generations()
	if err := e.acquire(ctx, "repair of the store", false, e.slots...); err != nil {
		return c, nil, err
	}
	if e.storeSequence() != seq || !slices.Equal(e.generations(), before) {
		e.release(e.slots...)
		return c, nil, stale
	}
	return c, sync.OnceFunc(func() { e.release(e.slots...) }), nil
}

func (e *Enclosure) storeSequence() uint32 {
	if e.store == nil {
		return 0
	}
	return e.store.Stats().Sequence
}

// generations are all slots' counters.
func (e *Enclosure) generations() []uint32 {
	out := make([]uint32, len(e.slots))
	for i, s := range e.slots {
		out[i] = e.state(s).Now.Gen
	}
	return out
}

// mendStore does r to the store. restart tells that what the agent knows of the
// store is no longer true: from here on it refuses changes. Either way no slot
// needs to stay as it is any more, and no cut waits for the pages: release lets
// go of them.
func (e *Enclosure) mendStore(ctx context.Context, r nvm.Repair, blocks bool, release func()) (restart bool, err error) {
	restart = blocks || e.store == nil || len(r.Batches) > 0
	if restart {
		e.mu.Lock()
		was := e.problem
		e.problem = &Error{
			Code: CodeStore, Where: e.cfg.Store.Name, What: "the store was repaired", Retry: true,
			State: "changes are refused until the agent has read it anew", Next: "wait until it has started again",
		}
		e.mu.Unlock()
		defer func() {
			if err != nil && e.store == nil {
				e.mu.Lock()
				e.problem = was
				e.mu.Unlock()
			}
		}()
	}
	release()
	if e.store != nil {
		return restart, e.store.Mend(ctx, r)
	}
	// Power may have been lost since the last write: nobody has mounted it yet.
	opt := nvm.Options{Suspect: true, ReservePages: -1}
	if e.cfg.Store.Shared != "" {
		opt.Gate = e.memory.gate
	}
	_, _, err = nvm.Mend(ctx, e.cfg.Store.Medium, r, opt)
	return restart, err
}

// DumpNVM reads the store's medium ("store"), or all of the chip of a slot's
// engine. It writes nothing.
func (e *Enclosure) DumpNVM(ctx context.Context, of string) (NVMDump, error) {
	fail := func(slot, where string, err error) (NVMDump, error) {
		return NVMDump{}, &Error{Code: CodeHardware, Slot: slot, Where: where, What: "the chip can not be read", Err: err, State: "nothing was changed", Next: "check the chip and its bus", Retry: true}
	}
	if sc := e.cfg.Store; of == "store" {
		if sc.Medium == nil {
			return fail("", sc.Name, sc.Problem)
		}
		img, err := e.storeImage(ctx)
		if err != nil {
			return fail("", sc.Name, err)
		}
		return redact(NVMDump{Of: of, Part: partAt(sc.Part, sc.Name), Offset: sc.Offset, Image: img}), nil
	}
	s, err := e.slotNamed(of)
	if err != nil {
		return NVMDump{}, err
	}
	if s.cfg.Problem != nil {
		return fail(of, s.cfg.Page, s.cfg.Problem)
	}
	img, err := readAll(ctx, s.cfg.Medium)
	if err == nil && e.cfg.Store.Shared == of && e.store != nil {
		var p []byte
		if p, err = e.storeImage(ctx); err == nil {
			copy(img[e.cfg.Store.Offset:], p)
		}
	}
	if err != nil {
		return fail(of, s.cfg.Page, err)
	}
	// The page may have been written meanwhile.
	if b := e.readForCheck(ctx, s); b.Page != nil {
		copy(img[s.cfg.Profile.BlockOffset:], b.Page)
	}
	return redact(NVMDump{Of: of, Part: partAt(s.cfg.Part, s.cfg.Page), Image: img}), nil
}

// redact takes out of a dump what nobody may see. Nothing that is kept today is
// secret; records with private keys are to be blanked here.
func redact(d NVMDump) NVMDump { return d }

func partAt(part, where string) string {
	if part == "" {
		return where
	}
	return part + " at " + where
}

func (e *Enclosure) storeImage(ctx context.Context) ([]byte, error) {
	if e.store != nil {
		return e.store.Image(ctx)
	}
	return readAll(ctx, e.cfg.Store.Medium)
}

// readAll reads a chip in small pieces, and with pauses: others use its bus.
func readAll(ctx context.Context, m nvm.Medium) ([]byte, error) {
	img := make([]byte, m.Geometry().Size)
	step := max(128, len(img)/256)
	for off := 0; off < len(img); off += step {
		if err := m.ReadAt(ctx, img[off:min(off+step, len(img))], int64(off)); err != nil {
			return nil, err
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return img, nil
}
