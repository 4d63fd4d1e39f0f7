package enclosure

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"baton/ee"
	"baton/enclosure/plan"
	"baton/nvm"
)

// AuditRecord is what the store keeps of something that changed assignments,
// fences, parts or configuration, or was refused.
type AuditRecord struct {
	Seq    uint32 // of all that were ever made in this store
	Run    uint32 // which start of the agent, of those that left a record
	Uptime time.Duration
	Wall   time.Time // zero where the clock was not set
	Kind   string    // as of Event
	Slots  []string
	Host   string
	VM     string
	Move   string
	Code   string
	Count  uint32 // of equal ones that this stands for; 0 = one
	By     string
	Text   string
}

// keeping says what of a kind of event is kept in the audit.
type keeping uint8

const (
	keepNone keeping = iota
	keepEach
	// keepRepeats: equal ones, by kind, caller, code and slot, are kept once a
	// minute, with their number. What breaks may break again every second.
	keepRepeats
	// keepRefusals is keepRepeats whatever the slot, and of few callers: who can
	// name many slots or be many must not wear the store out.
	keepRefusals
)

// audited is what is kept in the audit. What is not listed changes nothing that
// anybody looks for later, or is in another record: steps, links that come and
// go, arming, acks and proofs of life, starts in place.
var audited = map[string]keeping{
	"move": keepEach, "release": keepEach, "fence": keepEach, "unfence": keepEach, "void": keepEach,
	"adopt": keepEach, "power": keepEach, "reset": keepEach, "resolve": keepEach, "drain": keepEach,
	"config": keepEach, "repair": keepEach, "restore": keepEach,
	"recovery": keepRepeats, "blocked": keepRepeats, "fault": keepRepeats, "store": keepRepeats, "vlan": keepRepeats,
	"refused": keepRefusals,
}

// Bounds of the audit.
const (
	auditMost   = 48 // records in the store
	auditFewest = 4  // where there is hardly room for any
	auditQueue  = 64 // records in RAM that are not in the store yet
	// auditBatch is how many bytes of records are written at a time, three small
	// pages of them, or one record: what is urgent waits for one batch at most.
	auditBatch = 3 * 51
	auditOver  = 4 // a record's key, and the lengths of key and value
	// auditApart is how many callers' and codes' refusals are kept apart within a
	// minute; repeatsApart how many other things that happen again and again.
	auditApart   = 16
	repeatsApart = 256
	// auditTick is how many batches are written before the poller goes on.
	auditTick = 4
	// auditAfter is how long nobody must have waited for a record.
	auditAfter = time.Second
	// auditSpare is how many free pages the store must have: more than any other
	// that may wait leaves, by a batch.
	auditSpare = storeReserve + 4
	// auditEnd bounds the writing of what is left when Run ends.
	auditEnd = 2 * time.Second
)

// trail is the audit in RAM. Enclosure.mu guards it; only Run writes to the
// store.
type trail struct {
	run      uint32          // this start
	seq      uint32          // of the newest record
	most     int             // records in the store
	at       map[byte]uint32 // key in the ring -> number of the record there
	queue    []plan.Audit    // not in the store yet, oldest first
	repeats  tallies[auditKey, plan.Audit]
	refusals tallies[auditKey, plan.Audit]
	failing  bool // it was told that records could not be written, and none was since
}

// auditKey is what makes events equal for the audit.
type auditKey struct{ kind, by, code, slot string }

func newTrail() trail {
	t := trail{run: 1}
	t.repeats.most, t.refusals.most = repeatsApart, auditApart
	return t
}

// add queues a record under the next number. Where the queue is full the oldest
// refusal goes, or else the oldest of all; the numbers that are missing tell how
// many went.
func (t *trail) add(a plan.Audit) {
	refusal := func(a plan.Audit) bool { return audited[a.Kind] == keepRefusals }
	t.seq++
	a.Seq, a.Run = t.seq, t.run
	if a.Count == 1 {
		a.Count = 0
	}
	if len(t.queue) >= auditQueue {
		i := slices.IndexFunc(t.queue, refusal)
		if i < 0 && refusal(a) {
			return
		}
		t.queue = slices.Delete(t.queue, max(0, i), max(0, i)+1)
	}
	t.queue = append(t.queue, a.Fit())
}

// Audit returns the records that are kept, oldest first, and how many older
// ones no longer are.
func (e *Enclosure) Audit() (kept []AuditRecord, lost uint32) {
	e.mu.Lock()
	all, newest := slices.Clone(e.trail.queue), e.trail.seq
	e.mu.Unlock()
	if e.store != nil {
		for _, value := range e.store.All(plan.PrefixAudit) {
			if a, err := plan.DecodeAudit(value); err == nil && a.Seq <= newest {
				all = append(all, a)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b plan.Audit) int { return cmp.Compare(a.Seq, b.Seq) })
	// One that was written since the queue was looked at is there twice.
	all = slices.CompactFunc(all, func(a, b plan.Audit) bool { return a.Seq == b.Seq })
	for _, a := range all {
		r := AuditRecord{
			Seq: a.Seq, Run: a.Run, Uptime: a.Uptime, Wall: a.Wall, Kind: a.Kind, Slots: e.slotNames(a.Slots), Host: a.Host,
			VM: a.VM, Code: a.Code, Count: a.Count, By: a.By, Text: a.Text,
		}
		if !a.Move.IsZero() {
			r.Move = a.Move.String()
		}
		kept = append(kept, r)
	}
	return kept, newest - uint32(len(kept))
}

// slotNames are the names of slots that records know by number, also of those
// that the configuration no longer has.
func (e *Enclosure) slotNames(set plan.SlotSet) (names []string) {
	for i := range maxSlots {
		if !set.Has(i) {
			continue
		}
		if s := find(e.slots, func(s *slot) bool { return s.index == i }); s != nil {
			names = append(names, (*s).cfg.Name)
			continue
		}
		name := fmt.Sprintf("slot number %d", i)
		if e.store != nil {
			if known, ok := e.store.Get(plan.SlotKey(plan.PrefixName, i)); ok {
				name = string(known)
			}
		}
		names = append(names, name)
	}
	return names
}

// Note records an event of the agent itself, of configuration for example; it
// goes into the audit.
func (e *Enclosure) Note(ev Event) {
	how := audited[ev.Kind]
	if how == keepNone {
		how = keepEach
	}
	e.keep(e.tell(ev), how, 0, nil)
}

// keep puts an event into the audit, as how says. set are slots that it is about
// beside its own.
func (e *Enclosure) keep(ev Event, how keeping, count uint32, set []*slot) {
	if how == keepNone {
		return
	}
	a := plan.Audit{
		Uptime: ev.Uptime, Wall: ev.Wall, Kind: ev.Kind, Code: ev.Code, Slots: bits(set), Host: ev.Host, VM: ev.VM,
		By: ev.By, Count: count, Text: ev.Text,
	}
	if id, err := ee.ParseUUID(ev.Move); err == nil {
		a.Move = id
	}
	if s := find(e.slots, func(s *slot) bool { return s.cfg.Name == ev.Slot }); s != nil {
		a.Slots = a.Slots.With((*s).index)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if how != keepEach {
		key, counted := auditKey{ev.Kind, ev.By, ev.Code, ev.Slot}, &e.trail.repeats
		if how == keepRefusals {
			key.slot, counted = "", &e.trail.refusals
		}
		if again := counted.repeated(key, time.Now()); again != nil {
			again.n += max(1, count)
			a.Slots |= again.last.Slots
			again.last = a
			return
		}
	}
	e.trail.add(a)
}

// loadAudit reads what the store has of the audit. A record that can not be read
// is nothing that anything depends on: its place is written anew.
func (e *Enclosure) loadAudit() (unread int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := &e.trail
	var seq, run uint32
	t.at = map[byte]uint32{}
	for key, value := range e.store.All(plan.PrefixAudit) {
		if len(key) != 2 {
			continue
		}
		a, err := plan.DecodeAudit(value)
		if err != nil {
			unread++
		}
		t.at[key[1]] = a.Seq
		seq, run = max(seq, a.Seq), max(run, a.Run)
	}
	// What was told of before the store was there comes after what it has.
	t.run = run + 1
	t.seq += seq
	for i := range t.queue {
		t.queue[i].Seq += seq
		t.queue[i].Run = t.run
	}
	t.most = e.auditRoom()
	for len(t.at) > t.most {
		k := oldest(t.at)
		e.store.Forget(plan.SlotKey(plan.PrefixAudit, int(k)))
		delete(t.at, k)
	}
	return unread
}

// auditRoom is how many records of the audit the store has room for, so that all
// else that may have to be kept has its place: assignments and what goes with
// them, the outcomes of moves, hosts, a configuration of a quarter of the store,
// and as many free pages as it takes to leave tending to quiet times.
func (e *Enclosure) auditRoom() int {
	const (
		perSlot  = 9  // of each assignments 4, evidence, start, release, name, parts
		overhead = 13 // of a page (docs/nvm-format.md)
		smallest = 64
	)
	pages := e.store.Stats().Pages
	others := pages/4 + 2*storeReserve + keptMoves + keptSlack + perSlot*len(e.slots) + len(e.roster.Load().hosts)
	payload := max(smallest, e.cfg.Store.Medium.Geometry().Page) - overhead
	each := (plan.AuditSize + auditOver + payload - 1) / payload
	return min(max((pages-others)/each, auditFewest), auditMost)
}

// oldest is the key of the ring's oldest record.
func oldest(at map[byte]uint32) (key byte) {
	first := true
	for k, seq := range at {
		if first || seq < at[key] || seq == at[key] && k < key {
			key, first = k, false
		}
	}
	return key
}

// tendAudit writes what is queued, where that holds up nobody.
func (e *Enclosure) tendAudit(ctx context.Context) {
	left := auditTick
	e.writeAudit(ctx, func() bool {
		left--
		return left >= 0 && e.calm()
	})
}

// endAudit writes what is queued when Run ends.
func (e *Enclosure) endAudit(ctx context.Context) {
	e.tellRepeats(true)
	if e.store == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditEnd)
	defer cancel()
	e.writeAudit(ctx, func() bool { return true })
}

// auditFailed tells once that the audit can not be written.
func (e *Enclosure) auditFailed(err error) {
	e.mu.Lock()
	told := e.trail.failing
	e.trail.failing = true
	e.mu.Unlock()
	if !told {
		e.emit(Event{Kind: "store", Text: fmt.Sprintf("the audit can not be written: %v; its records wait in RAM, where there is room for %d", err, auditQueue)})
	}
}

// calm tells whether nobody waits for the store, nor is likely to in a moment:
// no operation is under way, and none has just ended.
func (e *Enclosure) calm() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	busy := slices.ContainsFunc(e.slots, func(s *slot) bool { return s.holder != "" && s.holder != pollHolder })
	return !busy && time.Since(e.wroteAt) >= auditAfter
}

// writeAudit writes queued records into the ring, batch by batch, as long as
// more allows it and the store has room to spare. Nothing waits for it and
// nothing is built on it: a write that failed is tried again, and the store
// itself finds out what became of it.
func (e *Enclosure) writeAudit(ctx context.Context, more func() bool) {
	for more() {
		keys, batch := e.nextAudit()
		if len(batch) == 0 {
			return
		}
		if free := e.store.Stats().Free; free < auditSpare {
			e.auditFailed(fmt.Errorf("%w: %d pages free, wanted %d", nvm.ErrFull, free, auditSpare))
			return
		}
		recs := make([]nvm.Record, len(batch))
		for i, a := range batch {
			recs[i] = nvm.Record{Key: plan.SlotKey(plan.PrefixAudit, int(keys[i])), Value: a.Encode()}
		}
		if err := e.store.Put(ctx, nvm.Normal, recs...); err != nil {
			if ctx.Err() == nil {
				e.auditFailed(err)
			}
			return
		}
		e.mu.Lock()
		e.trail.failing = false
		for i, a := range batch {
			e.trail.at[keys[i]] = a.Seq
			e.trail.queue = slices.DeleteFunc(e.trail.queue, func(q plan.Audit) bool { return q.Seq == a.Seq })
		}
		e.mu.Unlock()
	}
}

// nextAudit is the next batch, and where in the ring its records go: places that
// are free first, then those of the oldest. The same records get the same places
// until they are there.
func (e *Enclosure) nextAudit() (keys []byte, batch []plan.Audit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := maps.Clone(e.trail.at)
	left := auditBatch
	for _, a := range e.trail.queue {
		left -= len(a.Encode()) + auditOver
		if len(batch) == e.trail.most || len(batch) > 0 && left < 0 {
			break
		}
		k := oldest(at)
		if len(at) < e.trail.most {
			for k = 0; ; k++ {
				if _, used := at[k]; !used {
					break
				}
			}
		}
		at[k] = a.Seq
		keys, batch = append(keys, k), append(batch, a)
	}
	return keys, batch
}
