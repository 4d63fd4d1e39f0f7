package enclosure

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"

	"baton/ee"
	"baton/enclosure/plan"
	"baton/nvm"
)

// Parts are who is in a slot; "" = not known.
type Parts struct {
	Engine string // MAC
	Device string
	Serial string
	Chip   string
	Block  string
}

// Adoption compares the parts that the agent knew with those it finds.
type Adoption struct {
	Slot       string
	Needed     bool
	Old, New   Parts
	Generation ee.Generation
	Effect     []string
	Token      string // stands for New and Generation, and nothing else
	Adopted    bool
}

// look is one reading of who is in a slot.
type look struct {
	engine bool // identity was read: the profile lets it
	id     ee.Identity
	block  *ee.Block // nil = no good block
	page   []byte    // nil = it reads differently each time
	bad    error     // why block is nil
}

// AdoptionOf looks who is in a slot. It changes nothing, and takes the time of
// identifying a chip: up to 0.4 s.
func (e *Enclosure) AdoptionOf(ctx context.Context, name string) (Adoption, error) {
	s, err := e.slotNamed(name)
	if err != nil {
		return Adoption{}, err
	}
	if problem := e.storeProblem(); problem != nil {
		return Adoption{}, problem
	}
	short, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	// One after the other: a move waits for one look, not for all who look.
	select {
	case e.looking <- struct{}{}:
		defer func() { <-e.looking }()
	case <-short.Done():
		return Adoption{}, &Error{Code: CodeBusy, Slot: name, What: "others look who is in a slot", Err: short.Err(), State: "nothing was changed", Next: "try again", Retry: true}
	}
	if err := e.acquire(short, pollHolder, true, s); err != nil {
		return Adoption{}, err
	}
	defer e.release(s)
	a, _, err := e.adoption(ctx, s)
	return a, err
}

// Adopt takes the parts that token stands for as the slot's, read once more
// under its lock. The slot comes back cut, under a generation above all known
// ones and with its memory void: held for the VM that had it by the records,
// else free. Nobody gets a link by it.
func (e *Enclosure) Adopt(ctx context.Context, name, token, by string) (Adoption, error) {
	s, err := e.slotNamed(name)
	if err != nil {
		return Adoption{}, e.refused(by, err)
	}
	if problem := e.storeProblem(); problem != nil {
		return Adoption{}, e.refused(by, problem)
	}
	if err := e.acquire(ctx, "adopt", false, s); err != nil {
		return Adoption{}, e.refused(by, err)
	}
	defer e.release(s)
	a, found, err := e.adoption(ctx, s)
	if err == nil {
		err = e.mayAdopt(s, a, token)
	}
	if err != nil {
		return Adoption{}, e.refused(by, err)
	}

	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	if err := e.put(work, nvm.Urgent, e.adoptRecords(s, a, found)...); err != nil {
		return Adoption{}, e.refused(by, err)
	}
	e.mu.Lock()
	s.fault, s.trusted = nil, true
	s.identity = found.id
	s.unblock()
	e.concludeLocked()
	e.mu.Unlock()
	a.Generation, a.Adopted = e.generation(s), true
	st := e.state(s)
	e.emit(Event{Kind: "adopt", Slot: name, VM: e.vmName(st.Now.VM), Text: fmt.Sprintf("%s: adopted %s; generation %s, cut, memory void", name, a.New, a.Generation), By: by})
	if f := e.settled(work, []*slot{s}); f != nil {
		e.newPass(itemsOf([]*slot{s}), nil).block(work, f.err)
		failed := *f.err
		failed.State = "the parts are adopted; the slot is blocked, and tried again by itself"
		e.emit(Event{Kind: "adopt", Slot: name, Code: string(failed.Code), Text: failed.Error(), By: by})
		return a, &failed
	}
	return a, nil
}

// String names what is known of parts, for events.
func (p Parts) String() string {
	out := "the chip " + p.Chip
	if p.Engine != "" {
		out = fmt.Sprintf("engine %s, device %s serial %s, %s", p.Engine, p.Device, p.Serial, out)
	}
	return out
}

// adoption reads who is in s and compares. The slot's lock is held.
func (e *Enclosure) adoption(ctx context.Context, s *slot) (Adoption, look, error) {
	if s.index >= maxSlots {
		return Adoption{}, look{}, s.fault
	}
	found, err := e.lookWho(ctx, s)
	if err != nil {
		return Adoption{}, look{}, err
	}
	st := e.state(s)
	old, conf := s.expected(), s.configured()
	a := Adoption{Slot: s.cfg.Name, Generation: e.generation(s), Token: e.token(s, found)}
	chip := partAt(s.cfg.Part, s.cfg.Page) // another part is not adopted
	a.Old.Chip, a.New.Chip = chip, chip
	if !old.MAC.IsZero() {
		a.Old.Engine = old.MAC.String()
	}
	if old.Serial != 0 {
		a.Old.Serial = serialText(old.Serial)
	}
	if st.Known() {
		a.Old.Block = e.blockText(st.Block(e.inc))
	}
	a.New.Block = e.foundText(found)
	if found.engine {
		a.New.Engine = found.id.MAC.String()
		a.New.Device = "none"
		if found.id.Vendor != ee.NoDevice {
			a.New.Device = fmt.Sprintf("%04x:%04x %s", found.id.Vendor, found.id.Device, className(found.id.Class))
			a.New.Serial = serialText(found.id.Serial)
		}
	}
	say := func(format string, args ...any) { a.Effect = append(a.Effect, fmt.Sprintf(format, args...)) }
	now := s.found(found)
	if now.MAC != old.MAC {
		say("engine %s is taken in place of %s", now.MAC, old.MAC)
	}
	if now.Serial != old.Serial {
		say("device %s is taken in place of %s", serialText(now.Serial), serialText(old.Serial))
	}
	switch {
	case e.otherChip(s, found):
		say("the chip's page is written anew; what is in it is lost: %s", a.New.Block)
	case !st.Known():
		say("the slot becomes known")
	}
	a.Needed = len(a.Effect) > 0
	if !a.Needed {
		a.Effect = []string{"nothing: the parts are those that the agent knows"}
		return a, found, nil
	}
	if e.hostOf(st.Now.To) != nil {
		say("the link to %s is cut", e.groupName(st.Now.To))
	}
	if vm := keptFor(st); !vm.IsZero() {
		say("the slot is held for VM %s, which gets it after a device reset", e.vmName(vm))
	} else {
		say("the slot is free")
	}
	say("its memory counts as not preserved, and it gets a generation above all known ones: requests that quote %s are refused", a.Generation)
	if now != conf {
		say("the configuration still names the old parts: correct it")
	}
	return a, found, nil
}

// keptFor is the VM that a slot is held for when its parts are adopted: who has
// it by the records, unless it has released it.
func keptFor(st plan.Slot) ee.UUID {
	if st.InUse() || st.Held() {
		return st.Now.VM
	}
	return ee.UUID{}
}

// lookWho reads identity, chip and page of a slot, whatever is known of it. It
// refuses parts that no adopting could make the slot's.
func (e *Enclosure) lookWho(ctx context.Context, s *slot) (look, error) {
	var l look
	cannot := func(what, next string, err error) error {
		refusal := s.notIts(what, err)
		refusal.Next = next
		return refusal
	}
	if s.cfg.Problem != nil {
		return l, s.untouched("the slot's bus could not be opened", s.cfg.Problem)
	}
	if s.can(ee.CapStatus) {
		id, err := s.engine.Identity(ctx)
		switch {
		case errors.Is(err, ee.ErrWrongID):
			return l, cannot("what answers is not an engine of profile "+s.cfg.Profile.Name, "correct the slot's profile or address in the configuration, or put an engine there", err)
		case err != nil:
			return l, s.untouched("the engine does not answer", err)
		}
		l.id, l.engine = id, true
	}
	if m, ok := s.cfg.Medium.(identifier); ok {
		found, err := m.Identify(ctx)
		switch {
		case nvm.OtherPart(err):
			return l, cannot("the chip at "+s.cfg.Page+" is of another part than configured: found "+found.String(), "correct the part in the configuration, or put the right chip there: another part can not be adopted", err)
		case err != nil:
			return l, s.untouched("the engine's EEPROM at "+s.cfg.Page+" does not answer", err)
		}
	}
	if g := s.cfg.Medium.Geometry(); g.Page < ee.BlockSize {
		return l, cannot(fmt.Sprintf("the chip at %s has pages of %d bytes; a config block takes one page of %d", s.cfg.Page, g.Page, ee.BlockSize), "put a chip with larger pages there, and correct the configuration", nil)
	}
	if err := l.read(ctx, s); err != nil {
		return l, s.untouched("the engine's EEPROM at "+s.cfg.Page+" does not answer", err)
	}
	return l, nil
}

// pageReads is how often a page is read to see that it reads the same: one that
// a power cut has torn may not, until it is written again.
const pageReads = 4

// read reads the page.
func (l *look) read(ctx context.Context, s *slot) error {
	for i := range pageReads {
		p := make([]byte, ee.BlockSize)
		if err := s.cfg.Medium.ReadAt(ctx, p, s.cfg.Profile.BlockOffset); err != nil {
			return err
		}
		if i > 0 && string(p) != string(l.page) {
			l.page, l.bad = nil, errors.New("it reads differently each time, as after a power cut in a write")
			return nil
		}
		l.page = p
	}
	b, err := ee.DecodeBlock(l.page)
	if err != nil {
		l.bad = err
		return nil
	}
	l.block = &b
	return nil
}

// token stands for what was read, and for the generation it was read under.
func (e *Enclosure) token(s *slot, l look) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %v %+v %x", s.cfg.Name, e.generation(s), l.engine, l.id, l.page)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// found is who is in s, as far as the configuration says who should be; of a
// device that is not there nothing changes.
func (s *slot) found(l look) plan.Identity {
	id := s.expected()
	if !id.MAC.IsZero() && l.engine {
		id.MAC = l.id.MAC
	}
	if id.Serial != 0 && l.engine && l.id.Vendor != ee.NoDevice {
		id.Serial = l.id.Serial
	}
	return id
}

// otherChip tells whether the page shows that the chip is not the slot's: it is
// blank, or somebody else's. One that is damaged, or that the store has newer, is
// mended by recovery; a slot that the store does not know has no chip yet.
func (e *Enclosure) otherChip(s *slot, l look) bool {
	st := e.state(s)
	switch {
	case !st.Known():
		return true
	case l.block == nil:
		return errors.Is(l.bad, ee.ErrBlockBlank) || errors.Is(l.bad, ee.ErrBlockForeign) || errors.Is(l.bad, ee.ErrBlockVersion)
	case l.block.Generation.Incarnation != e.inc:
		return true
	case l.block.Generation.Counter == st.Now.Gen:
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	a, ok := e.all[l.block.Generation.Counter]
	return !ok || !a.Slots.Has(s.index)
}

// mayAdopt is what can refuse an adoption whose parts have been read.
func (e *Enclosure) mayAdopt(s *slot, a Adoption, token string) error {
	const unchanged = "nothing was changed"
	if !a.Needed {
		return &Error{
			Code: CodeNotNeeded, Slot: s.cfg.Name, What: "the parts are those that the agent knows", State: unchanged,
			Next: "there is nothing to adopt; 'baton status' says what is wrong, if anything is",
		}
	}
	if token != a.Token {
		return &Error{
			Code: CodeStaleToken, Slot: s.cfg.Name, What: "parts or generation are not those that were shown", State: unchanged,
			Next: "look again: baton slot adopt " + s.cfg.Name,
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, o := range e.slots {
		if o == s || !o.st.Known() {
			continue
		}
		together := s.blocked != nil && o.blocked == s.blocked
		if together || s.st.Known() && e.joint(s) && o.st.Now.Gen == s.st.Now.Gen {
			return &Error{
				Code: CodeWrongState, Slot: s.cfg.Name, What: fmt.Sprintf("the slot is in a set with %s that nobody was seen to use yet: none of it is taken alone", o.cfg.Name), State: unchanged,
				Next: fmt.Sprintf("take it out first: baton move resolve --drop %s where the set is blocked, else baton move resolve --force-free %s", s.cfg.Name, s.cfg.Name),
			}
		}
	}
	return nil
}

// adoptRecords are what an adoption puts into the store, as one batch.
func (e *Enclosure) adoptRecords(s *slot, a Adoption, l look) []record {
	var recs []record
	if e.lastOfMove(s) {
		recs = e.holdRecords([]*slot{s}) // the move ends with it
	}
	if b := l.block; b != nil && b.Generation.Incarnation == e.inc && b.Generation.Counter < math.MaxUint32 {
		e.mu.Lock()
		e.nextGen = max(e.nextGen, b.Generation.Counter+1)
		e.mu.Unlock()
	}
	why := plan.WhyOperator
	if s.found(l) != s.expected() || l.engine && l.id.Word != s.identity.Word {
		why = plan.WhyReplaced
	}
	n := plan.Assignment{Kind: plan.KindAdopt, To: ee.GroupFree, VM: keptFor(e.state(s)), Slots: plan.SlotSet(0).With(s.index), Gen: e.reserveGen()}
	recs = append(recs, e.assignmentRecord(n), e.evidenceRecord(s, plan.Evidence{Flag: plan.Void, Gen: n.Gen, Why: why}))
	if groups := e.mayReach(s); len(groups) > 0 {
		recs = append(recs, e.uncutRecord(s, plan.UncutOf(n.Gen, groups)))
	}
	if id := s.found(l); id != s.expected() {
		recs = append(recs, e.adoptedRecord(s, plan.Adopted{Configured: s.configured(), Found: id}))
	}
	return recs
}

// foundText says what is in a page.
func (e *Enclosure) foundText(l look) string {
	switch {
	case l.block == nil:
		return l.bad.Error()
	case l.block.Generation.Incarnation != e.inc:
		return "of another store: " + e.blockText(*l.block)
	}
	return e.blockText(*l.block)
}

// blockText is a config block in words.
func (e *Enclosure) blockText(b ee.Block) string {
	where := "free"
	switch {
	case b.Group != ee.GroupFree:
		where = fmt.Sprintf("group %d", b.Group)
	case !b.VM.IsZero():
		where = "held"
	}
	text := fmt.Sprintf("%s, generation %s", where, b.Generation)
	if !b.VM.IsZero() {
		text += ", VM " + e.vmName(b.VM)
	}
	return text
}

// serialText is a PCIe Device Serial Number for people.
func serialText(serial uint64) string { return fmt.Sprintf("0x%016x", serial) }
