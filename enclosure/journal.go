package enclosure

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"baton/ee"
	"baton/enclosure/bug"
	"baton/enclosure/plan"
	"baton/nvm"
)

// keptMoves is how many moves' outcomes are kept (docs/design.md, "A move").
const keptMoves = 64

// keptSlack is how many assignments more than needed are kept before they are
// looked through.
const keptSlack = 16

// journal is the agent's memory: the store, and what its records say of all
// slots. Everything but the store itself is guarded by Enclosure.mu.
type journal struct {
	store   *nvm.Store
	problem *Error // why there is no store to write to
	report  nvm.Report
	inc     uint32

	all     map[uint32]plan.Assignment // every assignment that is kept, cancelled ones too
	nextGen uint32
	hosts   map[string]plan.Host
	rolled  plan.Roll  // as the store has it
	serial  uint32     // of the latest start
	floor   plan.Floor // no generation at or below it is given out
}

// record pairs what goes into the store with what it means in memory.
type record struct {
	nvm  nvm.Record
	then func(e *Enclosure)
}

func (e *Enclosure) assignmentRecord(a plan.Assignment) record {
	return record{nvm.Record{Key: a.Key(), Value: a.Encode()}, func(e *Enclosure) {
		e.assignedAt = time.Now()
		e.learn(a)
	}}
}

func (e *Enclosure) evidenceRecord(s *slot, ev plan.Evidence) record {
	if prev := e.state(s).Evidence; ev.Start == 0 && prev != nil {
		ev.Start = prev.Start
	}
	return record{
		nvm.Record{Key: plan.SlotKey(plan.PrefixEvidence, s.index), Value: ev.Encode()},
		func(*Enclosure) { s.st.Evidence = &ev },
	}
}

func (e *Enclosure) startRecord(st plan.Start) record {
	return record{nvm.Record{Key: st.Key(), Value: st.Encode()}, func(e *Enclosure) { e.learnStart(st) }}
}

func (e *Enclosure) nextSerial() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.serial + 1
}

// learnStart takes a start into memory. Enclosure.mu is held.
func (e *Enclosure) learnStart(st plan.Start) {
	e.serial = max(e.serial, st.Serial)
	for _, s := range e.slots {
		if st.Slots.Has(s.index) && (s.st.Start == nil || s.st.Start.Serial <= st.Serial) {
			s.st.Start = &st
		}
	}
}

// hostRecord is a change of a host; callRoll must follow it.
func (e *Enclosure) hostRecord(name string, h plan.Host) record {
	e.mu.Lock()
	h.Serial = plan.RollOf(e.hosts).Serial + 1
	e.mu.Unlock()
	return record{
		nvm.Record{Key: plan.PrefixHost + name, Value: h.Encode()},
		func(e *Enclosure) { e.hosts[name] = h },
	}
}

// putHost writes a change of a host. Changes have the store one after the
// other, so that each has a serial number of its own; and no two of them without
// the roll between, which would read as if records had been lost.
func (e *Enclosure) putHost(ctx context.Context, name string, h plan.Host) error {
	done, err := e.lockHosts(ctx)
	if err != nil {
		return err
	}
	defer done()
	e.mu.Lock()
	behind, now := e.rolled != plan.RollOf(e.hosts), e.hosts[name]
	e.mu.Unlock()
	// The caller has looked before it got here, and that nobody is believed may
	// have been recorded since.
	switch {
	case !h.Fenced && h.Epoch != now.Epoch:
		return &Error{
			Code: CodeStaleUnfence, What: fmt.Sprintf("%s was fenced again: its fence is %d, not %d", name, now.Epoch, h.Epoch),
			State: "it stays fenced", Next: "find out why ('baton log'), then unfence that fence",
		}
	case h.Fenced && h.Epoch <= now.Epoch:
		h.Epoch = now.Epoch + 1
	}
	if behind {
		if err := e.putRoll(ctx); err != nil {
			return err
		}
	}
	if bug.Is(bug.FenceInRAM) && h.Fenced {
		(&writing{e: e, recs: []record{e.hostRecord(name, h)}}).apply()
		return nil
	}
	return e.put(ctx, nvm.Urgent, e.hostRecord(name, h))
}

// lockHosts waits until no record of hosts is being written.
func (e *Enclosure) lockHosts(ctx context.Context) (done func(), err error) {
	select {
	case e.hostWrite <- struct{}{}:
		return func() { <-e.hostWrite }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// callRoll writes the roll of the hosts as they are known now, after a change
// of one.
func (e *Enclosure) callRoll(ctx context.Context) error {
	done, err := e.lockHosts(ctx)
	if err != nil {
		return err
	}
	defer done()
	return e.putRoll(ctx)
}

func (e *Enclosure) putRoll(ctx context.Context) error {
	e.mu.Lock()
	roll := plan.RollOf(e.hosts)
	e.mu.Unlock()
	return e.put(ctx, nvm.Urgent, record{nvm.Record{Key: plan.KeyRoll, Value: roll.Encode()}, func(e *Enclosure) { e.rolled = roll }})
}

// fenceDistrusted makes it last that nobody is believed: the next start may no
// longer see that the store lost records. Fences that were lost had numbers too,
// and nobody's unfence of one of those may end this one.
func (e *Enclosure) fenceDistrusted(ctx context.Context) error {
	done, err := e.lockHosts(ctx)
	if err != nil {
		return err
	}
	defer done()
	e.mu.Lock()
	believed := false
	for name := range e.distrusted {
		h, ok := e.hosts[name]
		believed = believed || ok && !h.Fenced
	}
	epoch, names := uint32(0), slices.Collect(maps.Keys(e.distrusted))
	for name, h := range e.hosts {
		epoch, names = max(epoch, h.Epoch), append(names, name)
	}
	// Two ahead: cut short before the roll, this reads as lost records again.
	serial := max(e.rolled.Serial, plan.RollOf(e.hosts).Serial) + 1
	e.mu.Unlock()
	if !believed {
		return nil
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		serial++
		h := plan.Host{Fenced: true, Epoch: uint32(min(uint64(epoch)+plan.LostGap, math.MaxUint32)), Serial: serial}
		r := record{nvm.Record{Key: plan.PrefixHost + name, Value: h.Encode()}, func(e *Enclosure) { e.hosts[name] = h }}
		if err := e.put(ctx, nvm.Urgent, r); err != nil {
			return err
		}
		e.emit(Event{Kind: "fence", Host: name, Text: fmt.Sprintf("%s: fence %d recorded, since the store lost records: baton unfence %s when it may take part", name, h.Epoch, name)})
	}
	return e.putRoll(ctx)
}

// releasedRecord marks that the VM of s no longer uses it, or with false that
// it does again.
func (e *Enclosure) releasedRecord(s *slot, released bool) record {
	r := nvm.Record{Key: plan.SlotKey(plan.PrefixReleased, s.index)}
	gen := uint32(0)
	if released {
		gen = s.st.Now.Gen
		r.Value = binary.LittleEndian.AppendUint32(nil, gen)
	}
	return record{r, func(*Enclosure) { s.st.Released = gen }}
}

func (e *Enclosure) adoptedRecord(s *slot, a plan.Adopted) record {
	return record{
		nvm.Record{Key: plan.SlotKey(plan.PrefixAdopted, s.index), Value: a.Encode()},
		func(*Enclosure) { s.adopted = &a },
	}
}

func (e *Enclosure) uncutRecord(s *slot, u plan.Uncut) record {
	return record{
		nvm.Record{Key: plan.SlotKey(plan.PrefixUncut, s.index), Value: u.Encode()},
		func(*Enclosure) { s.took = &u },
	}
}

func (e *Enclosure) floorRecord(f plan.Floor) record {
	return record{nvm.Record{Key: plan.KeyFloor, Value: f.Encode()}, func(e *Enclosure) { e.raise(f) }}
}

// raise takes a floor into memory; one of another store's generations says
// nothing of ours. Enclosure.mu is held.
func (e *Enclosure) raise(f plan.Floor) {
	if f.Incarnation == e.inc && f.Counter >= e.floor.Counter {
		e.floor = f
		e.nextGen = max(e.nextGen, f.Counter+1)
	}
}

// put writes recs as one batch; they mean something only once it is durable.
func (e *Enclosure) put(ctx context.Context, class nvm.Class, recs ...record) error {
	w, err := e.begin(ctx, class, recs...)
	if err != nil {
		return err
	}
	return w.finish(ctx)
}

// writing is a batch whose last page is in its write cycle.
type writing struct {
	e    *Enclosure
	p    *nvm.Pending
	recs []record
}

// begin hands recs to the store's medium; until finish they mean nothing.
func (e *Enclosure) begin(ctx context.Context, class nvm.Class, recs ...record) (*writing, error) {
	if problem := e.storeProblem(); problem != nil {
		return nil, problem
	}
	if class == nvm.Urgent {
		e.mu.Lock()
		e.wroteAt = time.Now()
		e.mu.Unlock()
	}
	batch := make([]nvm.Record, len(recs))
	for i, r := range recs {
		batch[i] = r.nvm
	}
	p, err := e.store.Begin(ctx, class, batch...)
	if err != nil {
		known := e.storeError(err)
		if errors.Is(err, nvm.ErrUnknown) {
			e.mu.Lock()
			e.problem = known // as in finish
			e.mu.Unlock()
		} else {
			known.State, known.Next = "nothing was changed", "see baton status, then try again"
		}
		return nil, known
	}
	return &writing{e, p, recs}, nil
}

// finish waits for the write cycle, reads back and applies.
func (w *writing) finish(ctx context.Context) error {
	err := w.settle(ctx)
	if err == nil {
		w.apply()
	}
	return err
}

// settle waits for the write cycle and reads back. It lets go of the store.
func (w *writing) settle(ctx context.Context) error {
	if bug.Is(bug.RecordLate) && w.p == nil {
		return nil
	}
	err := w.p.Finish(ctx)
	if err == nil {
		return nil
	}
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	// Nothing may build on a record of which nobody knows whether it is there.
	w.e.problem = w.e.storeError(err)
	return w.e.problem
}

// storeHold is how long a batch that has been handed over may keep the store
// from others while its caller reads the hardware.
const storeHold = 20 * time.Millisecond

// durable settles the batch once ready is closed, or after storeHold: a bus on
// which nothing answers must not hold up another host's fence.
func (w *writing) durable(ctx context.Context, ready <-chan struct{}) error {
	t := time.NewTimer(storeHold)
	defer t.Stop()
	select {
	case <-ready:
	case <-t.C:
	}
	return w.settle(context.WithoutCancel(ctx))
}

// apply takes the batch into memory.
func (w *writing) apply() {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	for _, r := range w.recs {
		r.then(w.e)
	}
	w.e.prune()
}

func (e *Enclosure) storeError(err error) *Error {
	return &Error{
		Code: CodeStore, Where: e.cfg.Store.Name, What: "the agent's store did not take a record", Err: err,
		State: "whether the record is there is not known until the agent starts again",
		Next:  "check the chip and its bus (baton status), then restart the agent", Retry: true,
	}
}

// reserveGen hands out a generation counter above all known ones.
func (e *Enclosure) reserveGen() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nextGen++
	return e.nextGen - 1
}

// learn takes an assignment into memory. Enclosure.mu is held.
func (e *Enclosure) learn(a plan.Assignment) {
	e.all[a.Gen] = a
	e.nextGen = max(e.nextGen, a.Gen+1)
	for _, s := range e.slots {
		if !a.Slots.Has(s.index) {
			continue
		}
		s.hist = slices.DeleteFunc(s.hist, func(h plan.Assignment) bool { return h.Gen == a.Gen })
		if a.Kind != plan.KindCancel {
			s.newRoot(a)
			s.hist = append(s.hist, a)
			slices.SortFunc(s.hist, func(x, y plan.Assignment) int { return cmp.Compare(x.Gen, y.Gen) })
			s.hist = s.hist[max(0, len(s.hist)-2):]
		}
		e.fold(s)
	}
}

// newRoot notes where the memory that an assignment leaves in s begins: with an
// assignment that does not preserve, or that brings another VM. One that was
// undone was none.
func (s *slot) newRoot(a plan.Assignment) {
	var prior plan.Assignment
	if n := len(s.hist); n > 0 {
		prior = s.hist[n-1]
	}
	switch {
	case a.Kind == plan.KindUndo:
		if prior.ID == a.ID && prior.Gen == s.st.Root {
			s.st.Root = s.rootBefore
		}
	case a.Gen < s.st.Root: // another slot was found to have had it too
	case !a.Preserve || prior.VM != a.VM:
		s.rootBefore, s.st.Root = s.st.Root, a.Gen
	}
}

// fold makes s.st from its records. Enclosure.mu is held.
func (e *Enclosure) fold(s *slot) {
	s.st.Now, s.st.Prior = plan.Assignment{}, nil
	if n := len(s.hist); n > 0 {
		s.st.Now = s.hist[n-1]
		if n > 1 {
			prior := s.hist[n-2]
			s.st.Prior = &prior
		}
	}
}

// prune lets go of assignments that no slot and no kept outcome needs. It
// costs no write: what comes back at the next mount is let go again.
// Enclosure.mu is held.
func (e *Enclosure) prune() {
	if len(e.all) <= keptMoves+2*len(e.slots)+keptSlack {
		return
	}
	if e.memory.frozen {
		return // what slots there are is not known
	}
	needed := map[uint32]bool{}
	for _, s := range e.slots {
		needed[s.st.Root], needed[s.rootBefore] = true, true
		for _, a := range s.hist {
			needed[a.Gen] = true
		}
	}
	gens := slices.Sorted(maps.Keys(e.all))
	moves := map[ee.UUID]bool{}
	starts := map[ee.UUID]bool{} // nonces are nobody's to ask for
	for _, a := range e.all {
		starts[a.ID] = starts[a.ID] || a.Kind == plan.KindAttach
	}
	// A slot that the configuration does not name today keeps its last
	// generation all the same.
	absent := ^plan.SlotSet(0)
	for _, s := range e.slots {
		absent &^= plan.SlotSet(0).With(s.index)
	}
	for _, g := range slices.Backward(gens) {
		a := e.all[g]
		if a.Kind != plan.KindCancel && a.Slots&absent != 0 {
			needed[g] = true
			absent &^= a.Slots
		}
		switch a.Kind {
		case plan.KindMove, plan.KindUndo, plan.KindCancel, plan.KindFence:
			if a.ID.IsZero() || starts[a.ID] {
				break
			}
			if !moves[a.ID] && len(moves) < keptMoves {
				moves[a.ID] = true
			}
			if moves[a.ID] {
				needed[g] = true
			}
		}
		if !needed[g] {
			e.store.Forget(a.Key())
			delete(e.all, g)
		}
	}
}

// load reads all records. What it can not understand is reported and left
// where it is.
func (e *Enclosure) load() (problems []string) {
	e.inc = e.store.Incarnation()
	e.place()
	at := make(map[int]*slot)
	for _, s := range e.slots {
		at[s.index] = s
	}
	var roll *plan.Roll
	read := func(key string, value []byte) error {
		var s *slot
		if len(key) == 2 {
			s = at[int(key[1])]
		}
		switch key[:1] {
		case plan.PrefixAssignment:
			a, err := plan.DecodeAssignment(key, value)
			if err == nil && !(bug.Is(bug.UndoForward) && a.Kind == plan.KindUndo) {
				e.all[a.Gen] = a
			}
			return err
		case plan.PrefixEvidence:
			ev, err := plan.DecodeEvidence(value)
			if err == nil && s != nil {
				s.st.Evidence = &ev
				s.leaseEnd = time.Now().Add(time.Duration(ev.Lease) * time.Second)
			}
			return err
		case plan.PrefixStart:
			st, err := plan.DecodeStart(value)
			if err == nil {
				e.learnStart(st)
			}
			return err
		case plan.PrefixReleased:
			if len(value) != 4 {
				return plan.ErrRecord
			}
			if s != nil {
				s.st.Released = binary.LittleEndian.Uint32(value)
			}
		case plan.PrefixHost:
			h, err := plan.DecodeHost(value)
			if err == nil {
				e.hosts[key[1:]] = h
			}
			return err
		case plan.KeyRoll:
			r, err := plan.DecodeRoll(value)
			if err == nil {
				roll, e.rolled = &r, r
			}
			return err
		case plan.PrefixAdopted:
			a, err := plan.DecodeAdopted(value)
			if err == nil && s != nil {
				s.adopted = &a
			}
			return err
		case plan.PrefixUncut:
			u, err := plan.DecodeUncut(value)
			if err == nil && s != nil {
				s.took = &u
			}
			return err
		case plan.KeyFloor:
			f, err := plan.DecodeFloor(value)
			if err == nil {
				e.raise(f)
			}
			return err
		}
		return nil
	}
	for key, value := range e.store.All("") {
		if err := read(key, value); err != nil {
			problems = append(problems, fmt.Sprintf("record %q: %v", key, err))
		}
	}
	for _, g := range slices.Sorted(maps.Keys(e.all)) {
		e.learn(e.all[g])
	}
	if !roll.Complete(e.hosts) {
		problems = append(problems, "records of hosts were lost: every host counts as fenced until it is unfenced")
	}
	e.nextGen = max(e.nextGen, 1)
	e.prune()
	return problems
}

// maxSlots is how many slots the records' bitmaps have room for.
const maxSlots = 64

// place gives each slot its number in the records. It goes by name, so that a
// configuration may list the slots in any order, and add and remove some; a
// number that was given to a name is never given to another.
func (e *Enclosure) place() {
	known := map[string]int{}
	taken := map[int]bool{}
	for key, name := range e.store.All(plan.PrefixName) {
		if len(key) == 2 {
			known[string(name)] = int(key[1])
			taken[int(key[1])] = true
		}
	}
	next := 0
	for _, s := range e.slots {
		i, ok := known[s.cfg.Name]
		if !ok {
			for taken[next] {
				next++
			}
			i = next
			taken[i] = true
			s.unnamed = true
			if i >= maxSlots {
				s.unnamed = false
				s.fault = &Error{
					Code: CodeUnassignable, Slot: s.cfg.Name, What: "the store has no number left for another slot",
					State: "nothing was written to this slot", Next: "back up, format the store and restore (docs/nvm-format.md)",
				}
			}
		}
		s.index = i
		s.st.Index = i
	}
	slices.SortFunc(e.slots, func(a, b *slot) int { return a.index - b.index })
}

// nameSlots writes the numbers that place has given out.
func (e *Enclosure) nameSlots(ctx context.Context) error {
	var recs []record
	for _, s := range e.slots {
		if s.unnamed {
			recs = append(recs, record{nvm.Record{Key: plan.SlotKey(plan.PrefixName, s.index), Value: []byte(s.cfg.Name)}, func(*Enclosure) { s.unnamed = false }})
		}
	}
	if len(recs) == 0 {
		return nil
	}
	return e.put(ctx, nvm.Urgent, recs...) // nothing works without
}

// fenced tells whether a host is fenced now, and its record.
func (e *Enclosure) fenced(name string) (plan.Host, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fencedLocked(name)
}

func (e *Enclosure) fencedLocked(name string) (plan.Host, bool) {
	h, ok := e.hosts[name]
	return h, !ok || h.Fenced || e.distrusted[name]
}

// peerOf says whom a group belongs to now; nil = nobody.
func (e *Enclosure) peerOf(group uint16) *plan.Peer {
	h := e.hostOf(group)
	if h == nil {
		return nil
	}
	_, fenced := e.fenced(h.Name)
	return &plan.Peer{MAC: h.MAC, Fenced: fenced}
}

// vmName is for people: the configured name, or the UUID.
func (e *Enclosure) vmName(id ee.UUID) string {
	if id.IsZero() {
		return ""
	}
	if v := find(e.roster.Load().vms, func(v VMConfig) bool { return v.UUID == id }); v != nil {
		return v.Name
	}
	return id.String()
}
