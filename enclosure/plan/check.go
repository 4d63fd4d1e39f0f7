package plan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"baton/ee"
	"baton/nvm"
)

// CheckInput is what was read of an enclosure's memories: live by the agent, or
// by a tool from images. What is not known is left out; then less is found.
type CheckInput struct {
	Store      *nvm.Inspection // nil: StoreErr says why
	StoreErr   error
	StoreWhere string // for findings; "" = "store"
	// Salvage is the store that nvm.FindLost has found where Store.Err says that
	// there is none.
	Salvage *nvm.Inspection
	// Known are the records as a running store has them in RAM: then what a page
	// loses costs nothing. nil = those on the medium count.
	Known []nvm.Record
	// Free is how many pages a running store can still write; it means nothing
	// without Known.
	Free int
	// Gone is how many damaged pages were cleared when the store was opened, of
	// which it is no more known what they held.
	Gone int
	// Distrusted are hosts that count as fenced only as long as the agent runs.
	Distrusted []string
	Blocks     []BlockRead
	// Live says that an agent runs, which brings config blocks to their records
	// when it is started anew.
	Live  bool
	Slots []string // as configured, in order; nil = not known
	Hosts []string // as configured; nil = not known
}

// BlockRead is the page of a config block as it was read.
type BlockRead struct {
	Slot  string // "" = not known
	Where string // "bus0/0x50"; "" = not known
	Page  []byte // ee.BlockSize bytes; nil: Err says why, or Busy
	Err   error
	Busy  bool // another operation has the slot
}

// Grade is how bad a finding is.
type Grade string

// Grades.
const (
	Note     Grade = "note"     // good to know
	Damage   Grade = "damage"   // something is wrong; the rest works
	Unusable Grade = "unusable" // nothing works until this is mended
)

// Finding is one thing that is wrong, or good to know.
type Finding struct {
	Where  string // "store page 17", "gpu0 config block at bus0/0x50"
	What   string
	Grade  Grade
	Repair string // what a repair does about it; "" = nothing
	Lost   string // what can not be saved; "" = nothing
}

// Checked is what Check found, and what a repair is to do.
type Checked struct {
	State    string // formatted, blank, foreign, half formatted, unreadable
	Findings []Finding
	// Repair is what the findings say that is done to the store.
	Repair nvm.Repair
	// Blocks tells that config blocks are to be brought to their records: by the
	// agent, when it is started anew.
	Blocks bool
	// Format tells that only making the store anew can help: Anew says how.
	Format bool

	anew [][]nvm.Record
}

// Anew is the repair that makes the store anew: with nothing in it but what
// slots need whose config block is damaged, so that they come back free.
func (c Checked) Anew(incarnation uint32) nvm.Repair {
	return nvm.Repair{Format: true, Incarnation: incarnation, Batches: c.anew}
}

// Todo tells whether a repair has anything to do.
func (c Checked) Todo() bool { return !c.Repair.None() || c.Blocks }

// LostGap is by how many numbers are left out where records were lost that may
// have used some: more than were ever used between two records.
const LostGap = 1 << 16

// check collects.
type check struct {
	in   CheckInput
	out  Checked
	book *book
	inc  uint32
	lost bool // records may be missing, nobody knows which

	fence  string // why every host is to be fenced; "" = not
	fences []nvm.Record
	puts   []nvm.Record
	drops  []nvm.Record
	maxGen uint32
	given  uint32 // generations given out by this check
}

// Check says what is wrong with an enclosure's memories, and what a repair does
// about it. It decides by what is there, and never guesses an owner: a slot whose
// owner neither its newest record nor its config block tells comes back free,
// with its memory void, under a generation above all that were ever given.
//
// Done to the store, Repair leaves one of which Check finds nothing more to do,
// unless config blocks are read that it did not get this time.
func Check(in CheckInput) Checked {
	c := &check{in: in}
	if c.in.StoreWhere == "" {
		c.in.StoreWhere = "store"
	}
	from := c.medium()
	if from == nil {
		c.unmade()
		return c.out
	}
	c.inc = from.Incarnation
	c.pages(from)
	recs := in.Known
	if recs == nil {
		for _, l := range from.Live {
			recs = append(recs, l.Record)
		}
	}
	c.book = readBook(recs)
	c.lost = c.lost || slices.ContainsFunc(c.book.bad, func(b badRecord) bool { return b.key[:1] == PrefixAssignment })
	c.records(from)
	c.highest()
	c.names()
	c.slots()
	c.hosts()
	slices.SortStableFunc(c.drops, func(a, b nvm.Record) int { return strings.Compare(a.Key, b.Key) })
	c.drops = slices.CompactFunc(c.drops, func(a, b nvm.Record) bool { return a.Key == b.Key })
	// Fences first: what tells of an older image is gone with the slots' records.
	c.out.Repair.Batches = batches(from.Room, slices.Concat(c.fences, c.puts, c.drops))
	return c.out
}

func (c *check) found(g Grade, where, what, repair, lost string) {
	c.out.Findings = append(c.out.Findings, Finding{where, what, g, repair, lost})
}

// put adds records; one of the same key that was added before is replaced.
func (c *check) put(recs ...nvm.Record) {
	for _, r := range recs {
		c.puts = slices.DeleteFunc(c.puts, func(o nvm.Record) bool { return o.Key == r.Key })
		c.puts = append(c.puts, r)
	}
}

// medium judges the medium as a whole, and returns what there is of a store.
func (c *check) medium() *nvm.Inspection {
	s, where := c.in.Store, c.in.StoreWhere
	if s == nil {
		c.out.State = "unreadable"
		c.found(Unusable, where, fmt.Sprintf("can not be read: %v", c.in.StoreErr), "", "")
		return nil
	}
	c.out.State = s.State.String()
	const all = "all assignments and fences: hosts start fenced, slots are held for the VMs that their config blocks name"
	anew := "with 'format' the store is made anew"
	switch {
	case s.Err == nil:
		return s
	case errors.Is(s.Err, nvm.ErrVersion):
		c.found(Unusable, where, fmt.Sprintf("is of another version: %v", s.Err), anew+"; better use the version that made it", all)
	case errors.Is(s.Err, nvm.ErrSize):
		c.found(Unusable, where, fmt.Sprintf("was made for another medium: %v", s.Err), anew+"; better correct the configuration, or put the right chip in", all)
	case s.State == nvm.Blank:
		c.found(Unusable, where, "is blank", anew, "")
	case s.State == nvm.HalfFormatted:
		c.found(Unusable, where, "is half formatted: power was lost while it was being made", anew, "nothing: what was there before was given up then")
	case c.in.Salvage != nil:
		v := c.in.Salvage
		c.out.Repair.Salvage, c.out.Repair.Incarnation = true, v.Incarnation
		c.found(Unusable, where, fmt.Sprintf("has lost all its format records; %d of its pages are those of store %08x", v.Verified(), v.Incarnation),
			"the format records are written anew", "")
		return v
	default:
		c.found(Unusable, where, "is foreign: it holds something, and no page of a store", anew, "whatever is on it")
	}
	c.out.Format = true
	return nil
}

// unmade looks at slots where there is no store to compare them with.
func (c *check) unmade() {
	gen := uint32(0)
	var recs []nvm.Record
	for _, b := range c.in.Blocks {
		block, err := decodeRead(b)
		where := blockWhere(b)
		switch {
		case b.Page == nil:
			c.unread(b)
		case err == nil:
			if c.out.Format {
				held := "nobody"
				if !block.VM.IsZero() {
					held = "VM " + block.VM.String()
				}
				c.found(Note, where, fmt.Sprintf("is of store %08x: in a new store the slot is cut, and held for %s", block.Generation.Incarnation, held), "", "its device's memory is void")
			}
		case ours(err):
			i := slices.Index(c.in.Slots, b.Slot)
			repair := ""
			if c.out.Format && i >= 0 {
				gen++
				recs = append(recs, nvm.Record{Key: SlotKey(PrefixName, i), Value: []byte(b.Slot)})
				recs = append(recs, free(i, gen)...)
				repair = "in a new store the slot is free, its memory void"
			}
			c.found(Damage, where, err.Error(), repair, "who has the slot")
		default:
			c.badBlock(b, err)
		}
	}
	c.out.anew = batches(0, recs)
}

// ours tells a damaged config block from a page that holds none.
func ours(err error) bool { return errors.Is(err, ee.ErrBlockCRC) || errors.Is(err, ee.ErrBlockField) }

func decodeRead(b BlockRead) (ee.Block, error) {
	if b.Page == nil {
		return ee.Block{}, b.Err
	}
	return ee.DecodeBlock(b.Page)
}

func blockWhere(b BlockRead) string {
	w := strings.TrimSpace(b.Slot + " config block")
	if b.Where != "" {
		w += " at " + b.Where
	}
	return w
}

func (c *check) unread(b BlockRead) {
	if b.Busy {
		c.found(Note, blockWhere(b), "was not looked at: an operation has the slot", "", "")
		return
	}
	c.found(Damage, blockWhere(b), fmt.Sprintf("can not be read: %v", b.Err), "", "")
}

// badBlock is a page without a block, of a slot of which nothing is known.
func (c *check) badBlock(b BlockRead, err error) {
	switch {
	case errors.Is(err, ee.ErrBlockBlank):
		c.found(Note, blockWhere(b), "is blank: the slot is free from its first start on", "", "")
	default:
		c.found(Damage, blockWhere(b), fmt.Sprintf("%v; it is never overwritten by itself: slot adopt takes the chip as the slot's", err), "", "")
	}
}

// pages judges what nvm says of the pages.
func (c *check) pages(s *nvm.Inspection) {
	for p, d := range s.Detail {
		where := fmt.Sprintf("%s page %d", c.in.StoreWhere, p)
		switch {
		case d.State == nvm.PageIncomplete:
			c.out.Repair.Clean = true
			c.found(Note, where, fmt.Sprintf("is of batch %d, which was never completed", d.Sequence), "cleared", "")
		case d.State != nvm.PageDamaged:
		case c.out.Repair.Salvage && d.Fixed && p < 2:
			// the finding of the medium says it
		case d.Fixed:
			c.out.Repair.Clean = true
			c.found(Damage, where, "is damaged: a format record or a copy", "written anew, or cleared", "")
		case c.in.Known != nil:
			c.out.Repair.Clean = true
			c.found(Damage, where, "is damaged; what it held is known", "cleared, what it held written anew elsewhere", "")
		default:
			c.out.Repair.Clean, c.lost = true, true
			c.found(Damage, where, "is damaged", "cleared; what it held is written anew as far as it is known",
				"the records in it, if they were not old ones")
		}
	}
	if c.in.Gone > 0 {
		c.found(Note, c.in.StoreWhere, fmt.Sprintf("%d damaged pages were found when it was opened", c.in.Gone), "", "what was in them, if it was not old")
	}
	if why := c.full(s); why != "" {
		c.found(Damage, c.in.StoreWhere, why, "", "nothing yet: changes are refused; make a backup, make the store anew and restore")
	}
}

// full says in what way a store has no room, or "". An inspection counts
// assignments that the agent would let go of: those are left out.
func (c *check) full(s *nvm.Inspection) string {
	switch {
	case c.in.Known != nil && c.in.Free == 0:
		return "is full: no page is free"
	case c.in.Known != nil:
		return ""
	}
	size, held := 0, 0
	for _, d := range s.Detail {
		if !d.Fixed {
			size++
		}
	}
	newest := map[string]uint32{}
	for _, l := range s.Live {
		newest[l.Key] = l.Sequence
	}
	for _, b := range s.Batches {
		if slices.ContainsFunc(b.Records, func(r nvm.Record) bool {
			return r.Value != nil && r.Key[:1] != PrefixAssignment && newest[r.Key] == b.Sequence
		}) {
			held += len(b.Pages)
		}
	}
	if held < size-size/8 {
		return ""
	}
	return fmt.Sprintf("is full: %d of %d pages are needed, assignments not counted", held, size)
}

// records says which records can not be used.
func (c *check) records(from *nvm.Inspection) {
	for _, b := range c.book.bad {
		where := fmt.Sprintf("%s record %q", c.in.StoreWhere, b.key)
		lost := "what it said"
		switch b.key[:1] {
		case PrefixAssignment:
			lost = "an assignment: a slot that had it is as its config block says, with its memory void, or free"
		case PrefixEvidence:
			lost = "what was known of the device's memory: it is void"
			if i, ok := slotOf(b.key); ok {
				if a, known := c.book.newest[i]; known {
					ev := Evidence{Flag: Void, Gen: a.Gen, Why: WhyStoreLost}
					c.put(nvm.Record{Key: b.key, Value: ev.Encode()})
					c.found(Damage, where, b.err.Error(), "replaced by one that says void", lost)
					continue
				}
			}
		case PrefixStart:
			lost = "a start of a VM: it must attach again before it can acknowledge"
		case PrefixReleased:
			lost = "that a slot was released: it counts as in use"
		case PrefixHost:
			lost = "whether a host was fenced: every host is"
			c.fence = "the record of a host was lost"
		case KeyRoll:
			lost = "by what it is known that no host's record is missing: every host is fenced"
			c.fence = "the roll of hosts was lost"
		case KeyConfiguration, KeyConfigMark:
			// Without it the agent would begin with its seed, and cut what that
			// does not name: it stays, and keeps the agent from changing anything.
			c.found(Damage, where, b.err.Error(), "", "the configuration: the agent changes nothing until one is applied (baton config apply FILE)")
			continue
		case PrefixUncut:
			lost = "which hosts may still reach a slot that was taken by hand: see to it that none does"
		case PrefixAdopted:
			lost = "that other parts than the configured ones were adopted: the configured ones count, or adopt again"
		case KeyFloor:
			lost = "up to which generation a backup was restored"
			c.lost = true
		}
		c.drops = append(c.drops, nvm.Record{Key: b.key})
		c.found(Damage, where, b.err.Error(), "dropped", lost)
	}
	for _, k := range c.book.unknown {
		c.found(Note, fmt.Sprintf("%s record %q", c.in.StoreWhere, k), "is of a kind that this version does not know", "", "")
	}
}

// highest finds the highest generation that is known.
func (c *check) highest() {
	c.maxGen = c.book.maxGen
	for _, b := range c.in.Blocks {
		if block, err := decodeRead(b); err == nil && block.Generation.Incarnation == c.inc {
			c.maxGen = max(c.maxGen, block.Generation.Counter)
		}
	}
	if f := c.book.floor; f != nil && f.Incarnation == c.inc {
		c.maxGen = max(c.maxGen, f.Counter)
	}
	if c.maxGen > 1<<32-1-2*LostGap {
		c.found(Unusable, c.in.StoreWhere, fmt.Sprintf("generations are used up: %d", c.maxGen), "", "make a backup, make the store anew and restore")
	}
}

// nextGen gives out a generation above all that can have been.
func (c *check) nextGen() uint32 {
	gap := uint32(0)
	if c.lost {
		gap = LostGap
	}
	c.given++
	if gen := uint64(c.maxGen) + uint64(gap) + uint64(c.given); gen < 1<<32 {
		return uint32(gen)
	}
	return 1<<32 - 1
}

// free are the records of a slot that nobody has.
func free(i int, gen uint32) []nvm.Record {
	return give(i, Assignment{To: ee.GroupFree, Gen: gen})
}

// give are the records of a slot that is taken from what a block says.
func give(i int, a Assignment) []nvm.Record {
	a.Kind, a.Slots = KindAdopt, a.Slots.With(i)
	ev := Evidence{Flag: Void, Gen: a.Gen, Why: WhyStoreLost}
	return []nvm.Record{{Key: a.Key(), Value: a.Encode()}, {Key: SlotKey(PrefixEvidence, i), Value: ev.Encode()}}
}

// TakenFrom is the assignment that a slot is given whose record was lost, by
// what its config block says. It still lacks the slot.
func TakenFrom(b ee.Block) Assignment {
	return Assignment{Kind: KindAdopt, To: b.Group, VM: b.VM, ID: b.Move, Gen: b.Generation.Counter}
}

// Joins tells whether slot i, taken from its block as a, had the assignment that
// o was taken from, with other slots: they keep one generation and one record.
// That o was taken from a block, and not given to a new slot, its evidence says,
// or FromBlock.
func (a Assignment) Joins(o Assignment, i int) bool {
	return o.Kind == KindAdopt && o.To == a.To && o.VM == a.VM && o.ID == a.ID && o.Gen == a.Gen && !o.Slots.Has(i)
}

// FromBlock tells of an adopted assignment, whatever became of its evidence since,
// that it was taken from a block: a new slot is nobody's, and no move brought it.
func (a Assignment) FromBlock() bool {
	return a.Kind == KindAdopt && (a.To != ee.GroupFree || !a.VM.IsZero() || !a.ID.IsZero())
}

// names mends the numbers of slots.
func (c *check) names() {
	byName := map[string][]int{}
	for _, i := range slices.Sorted(maps.Keys(c.book.names)) {
		n := c.book.names[i]
		byName[n] = append(byName[n], i)
	}
	for _, n := range slices.Sorted(maps.Keys(byName)) {
		at := byName[n]
		if len(at) < 2 {
			continue
		}
		keep := at[len(at)-1]
		for _, i := range at {
			if c.confirmed(n, i) {
				keep = i
			}
		}
		if !c.confirmed(n, keep) {
			// Before the others are taken out of use: cut short, there still are two.
			c.put(free(keep, c.nextGen())...)
			c.book.settled[keep] = true
			c.found(Damage, n, "its config block does not tell which of its numbers is right", "free, its memory void", "who has the slot")
		}
		for _, i := range at {
			if i != keep {
				c.reserve(i, fmt.Sprintf("slot %s has two numbers, %d and %d", n, keep, i), "number "+fmt.Sprint(i)+" is taken out of use")
			}
		}
	}
	// Numbers without a name belong to slots whose blocks have exactly the
	// generation of their newest record. Of several it is not known which is which;
	// that only matters to what is kept of each slot's memory, and that is void then.
	lost := map[uint32][]int{}
	for _, i := range slices.Sorted(maps.Keys(c.book.newest)) {
		if _, ok := c.book.names[i]; !ok {
			gen := c.book.newest[i].Gen
			lost[gen] = append(lost[gen], i)
		}
	}
	for _, gen := range slices.Sorted(maps.Keys(lost)) {
		numbers := lost[gen]
		var fit []string
		for _, b := range c.in.Blocks {
			if _, named := c.book.index(b.Slot); !named && b.Slot != "" && c.confirmed(b.Slot, numbers[0]) {
				fit = append(fit, b.Slot)
			}
		}
		several := len(numbers) > 1 && len(fit) <= len(numbers)
		for n, i := range numbers {
			// Of all before any is named: cut short, one may be left.
			if several && n < len(fit) {
				ev := Evidence{Flag: Void, Gen: gen, Why: WhyStoreLost}
				c.put(nvm.Record{Key: SlotKey(PrefixEvidence, i), Value: ev.Encode()}, nvm.Record{Key: SlotKey(PrefixReleased, i)})
			}
		}
		for n, i := range numbers {
			what := fmt.Sprintf("number %d has records, but no slot's name", i)
			if len(fit) > len(numbers) || n >= len(fit) {
				c.reserve(i, what, "the number is taken out of use")
				continue
			}
			c.book.names[i] = fit[n]
			c.put(nvm.Record{Key: SlotKey(PrefixName, i), Value: []byte(fit[n])})
			lost := ""
			if several {
				lost = "what was known of its device's memory: it is void"
			}
			c.found(Damage, c.in.StoreWhere, what, "it is "+fit[n]+", by its config block", lost)
		}
	}
}

// reserve makes sure that a number is never given to another slot.
func (c *check) reserve(i int, what, repair string) {
	c.book.names[i] = fmt.Sprintf("(lost %d)", i)
	c.put(nvm.Record{Key: SlotKey(PrefixName, i), Value: []byte(c.book.names[i])})
	c.found(Damage, c.in.StoreWhere, what, repair, "which slot it was: that one is cut, and held for the VM that its config block names")
}

// confirmed tells whether a slot's block has the generation of a number's
// newest record.
func (c *check) confirmed(slot string, i int) bool {
	b := c.read(slot)
	if b == nil {
		return false
	}
	block, err := decodeRead(*b)
	return err == nil && block.Generation == ee.Generation{Incarnation: c.inc, Counter: c.book.newest[i].Gen}
}

func (c *check) read(slot string) *BlockRead {
	for i := range c.in.Blocks {
		if b := &c.in.Blocks[i]; slot != "" && b.Slot == slot {
			return b
		}
	}
	return nil
}

// slots compares each slot's newest record with its block.
func (c *check) slots() {
	for _, b := range c.in.Blocks {
		if b.Page == nil {
			c.unread(b)
			continue
		}
		block, err := ee.DecodeBlock(b.Page)
		i, named := c.book.index(b.Slot)
		a, known := c.book.newest[i]
		if known = known && named; !known {
			a = Assignment{}
		}
		switch {
		case b.Slot == "":
			c.nameless(b, block, err)
		case named && c.book.settled[i]:
		case err == nil:
			c.goodBlock(b, block, i, a, known)
		case known && c.lost:
			// The newest record may be among what was lost, and the block, which would
			// tell, can not.
			c.put(free(i, c.nextGen())...)
			c.found(Damage, blockWhere(b), err.Error()+"; and the store lost records, perhaps this slot's newest", "free, its memory void", "who has the slot")
		case known:
			c.follows(b, Damage, err.Error()+"; the record of the slot is good")
		case ours(err) && c.index(b.Slot, &i):
			if !named {
				c.put(nvm.Record{Key: SlotKey(PrefixName, i), Value: []byte(b.Slot)})
				c.book.names[i] = b.Slot
			}
			c.put(free(i, c.nextGen())...)
			c.found(Damage, blockWhere(b), err.Error()+"; and the store has no record of the slot", "free, its memory void", "who has the slot")
		default:
			c.badBlock(b, err)
		}
	}
	if !c.lost {
		return
	}
	for _, i := range slices.Sorted(maps.Keys(c.book.newest)) {
		if n := c.book.names[i]; c.read(n) == nil && !strings.HasPrefix(n, "(lost ") {
			c.found(Note, n, "its config block was not looked at: it would tell whether the slot's newest record is among what was lost", "", "")
		}
	}
}

// index finds the number of a slot, or one that is free for it.
func (c *check) index(slot string, i *int) bool {
	if at, ok := c.book.index(slot); ok {
		*i = at
		return true
	}
	for n := range 64 {
		if _, taken := c.book.names[n]; !taken {
			*i = n
			return true
		}
	}
	return false
}

// follows is a block that the agent brings to the slot's record.
func (c *check) follows(b BlockRead, g Grade, what string) {
	if c.in.Live {
		c.out.Blocks = true
		c.found(g, blockWhere(b), what, "written anew from the record", "")
		return
	}
	c.found(g, blockWhere(b), what+": the agent writes the block anew when it starts", "", "")
}

func (c *check) goodBlock(b BlockRead, block ee.Block, i int, a Assignment, known bool) {
	g := block.Generation
	taken := TakenFrom(block)
	numbered := c.index(b.Slot, &i)
	other, given := c.book.all[g.Counter]
	if given && (c.book.taken[g.Counter] || other.FromBlock()) && taken.Joins(other, i) {
		taken.Slots, given = other.Slots, false
	}
	switch {
	case g.Incarnation != c.inc && known:
		c.follows(b, Damage, fmt.Sprintf("is of another store, %08x", g.Incarnation))
	case g.Incarnation != c.inc:
		c.found(Note, blockWhere(b), fmt.Sprintf("is of another store, %08x: from its first start on the slot is cut, and held for the VM that the block names", g.Incarnation), "", "its device's memory is void")
	case g.Counter > a.Gen && !given && !numbered:
		c.found(Damage, blockWhere(b), "the store has no number left for the slot", "", "")
	case g.Counter > a.Gen && !given:
		if _, named := c.book.index(b.Slot); !named {
			c.put(nvm.Record{Key: SlotKey(PrefixName, i), Value: []byte(b.Slot)})
			c.book.names[i] = b.Slot
		}
		recs := give(i, taken)
		taken.Kind, taken.Slots = KindAdopt, taken.Slots.With(i)
		c.book.all[g.Counter], c.book.taken[g.Counter] = taken, true // for the others of its set
		c.put(recs...)
		lost := "the memory of its device is void"
		what := fmt.Sprintf("has generation %d; the store knows of %d", g.Counter, a.Gen)
		if !c.lost && c.in.Gone == 0 {
			what += ", and is not damaged: it is an older image"
			lost += "; fences may be missing: every host is fenced"
			c.fence = "the store is older than a config block"
		}
		c.found(Damage, blockWhere(b), what, "the record is taken from the block", lost)
	case g.Counter > a.Gen:
		c.follows(b, Damage, fmt.Sprintf("has generation %d, which was given to another slot", g.Counter))
	case g.Counter < a.Gen:
		c.follows(b, Damage, fmt.Sprintf("has generation %d, older than its record's %d", g.Counter, a.Gen))
	case block.Group != a.To || block.VM != a.VM:
		c.follows(b, Damage, fmt.Sprintf("says group %d, its record %d, under one generation", block.Group, a.To))
	}
}

// nameless is a block of which it is not known whose it is.
func (c *check) nameless(b BlockRead, block ee.Block, err error) {
	switch {
	case err != nil:
		c.badBlock(b, err)
	case block.Generation.Incarnation != c.inc:
		c.found(Note, blockWhere(b), fmt.Sprintf("is of another store, %08x", block.Generation.Incarnation), "", "")
	default:
		var of []string
		for _, i := range slices.Sorted(maps.Keys(c.book.newest)) {
			if c.book.newest[i].Gen == block.Generation.Counter {
				of = append(of, c.book.names[i])
			}
		}
		what := fmt.Sprintf("has generation %d, which is the newest of no slot that the store knows", block.Generation.Counter)
		if len(of) > 0 {
			what = fmt.Sprintf("has generation %d: the newest of %s", block.Generation.Counter, strings.Join(of, ", "))
		}
		c.found(Note, blockWhere(b), what, "", "")
	}
}

// hosts fences every host where records of hosts were lost.
func (c *check) hosts() {
	switch {
	case !c.book.roll.Complete(c.book.hosts):
		c.fence = "records of hosts are missing"
	case len(c.in.Distrusted) > 0 && c.fence == "":
		c.fence = fmt.Sprintf("%s counted as fenced since the store lost records, but only until the agent is started again", strings.Join(c.in.Distrusted, ", "))
	}
	if c.fence == "" {
		return
	}
	hosts := maps.Clone(c.book.hosts)
	epoch, serial := uint32(0), uint32(0)
	for _, h := range hosts {
		epoch = max(epoch, h.Epoch)
	}
	if c.book.roll != nil {
		serial = c.book.roll.Serial
	}
	// Two ahead: with one, a roll that is not written any more is no loss.
	serial = max(serial, RollOf(hosts).Serial) + 1
	names := slices.Concat(slices.Collect(maps.Keys(hosts)), c.in.Hosts, c.book.lostHosts)
	slices.Sort(names)
	names = slices.Compact(names)
	// Fences that were lost had numbers too, and nobody's unfence of one of those
	// may end this one.
	for _, n := range names {
		serial++
		hosts[n] = Host{Fenced: true, Epoch: uint32(min(uint64(epoch)+LostGap, 1<<32-1)), Serial: serial}
		c.fences = append(c.fences, nvm.Record{Key: PrefixHost + n, Value: hosts[n].Encode()})
	}
	c.drops = slices.DeleteFunc(c.drops, func(r nvm.Record) bool {
		_, again := hosts[strings.TrimPrefix(r.Key, PrefixHost)]
		return r.Key == KeyRoll || again && r.Key[:1] == PrefixHost
	})
	c.fences = append(c.fences, nvm.Record{Key: KeyRoll, Value: RollOf(hosts).Encode()})
	c.found(Damage, c.in.StoreWhere, c.fence, fmt.Sprintf("every host is recorded as fenced: %s", strings.Join(names, ", ")),
		"who was fenced: unfence those that may take part")
}

// batches splits records into batches of up to room bytes; 0 = one batch. Those
// that belong to one slot stay together, where they stand together.
func batches(room int, recs []nvm.Record) [][]nvm.Record {
	var out [][]nvm.Record
	at := map[string]bool{}
	size := 0
	for _, r := range recs {
		if n := r.Size(); len(out) == 0 || at[r.Key] || room > 0 && size+n > room {
			out, size = append(out, nil), 0
			clear(at)
		}
		at[r.Key] = true
		size += r.Size()
		out[len(out)-1] = append(out[len(out)-1], r)
	}
	return out
}

// book is what a store's records say.
type book struct {
	all       map[uint32]Assignment
	newest    map[int]Assignment // per slot; cancelled ones do not count
	names     map[int]string
	hosts     map[string]Host
	roll      *Roll
	lostHosts []string // of whom a record is there, and can not be read
	bad       []badRecord
	unknown   []string
	floor     *Floor
	maxGen    uint32
	settled   map[int]bool    // a finding has decided on the slot
	taken     map[uint32]bool // generations of assignments that were taken from blocks
}

type badRecord struct {
	key string
	err error
}

func (b *book) index(name string) (int, bool) {
	for i, n := range b.names {
		if n == name && name != "" {
			return i, true
		}
	}
	return 0, false
}

func slotOf(key string) (int, bool) {
	if len(key) != 2 || key[1] > 63 {
		return 0, false
	}
	return int(key[1]), true
}

// readBook decodes every record.
func readBook(recs []nvm.Record) *book {
	b := &book{
		all: map[uint32]Assignment{}, newest: map[int]Assignment{}, names: map[int]string{},
		hosts: map[string]Host{}, settled: map[int]bool{}, taken: map[uint32]bool{},
	}
	for _, r := range recs {
		if err := b.take(r.Key, r.Value); err != nil {
			b.bad = append(b.bad, badRecord{r.Key, err})
		}
	}
	return b
}

func (b *book) take(key string, value []byte) error {
	saw := func(gen uint32) { b.maxGen = max(b.maxGen, gen) }
	i, isSlot := slotOf(key)
	notSlot := fmt.Errorf("%w: key %q names no slot", ErrRecord, key)
	switch prefix := key[:1]; prefix {
	case PrefixAssignment:
		if len(key) == 5 {
			saw(binary.BigEndian.Uint32([]byte(key[1:])))
		}
		a, err := DecodeAssignment(key, value)
		if err != nil {
			return err
		}
		b.all[a.Gen] = a
		for s := range 64 {
			if a.Kind != KindCancel && a.Slots.Has(s) && a.Gen >= b.newest[s].Gen {
				b.newest[s] = a
			}
		}
	case PrefixEvidence:
		ev, err := DecodeEvidence(value)
		if err == nil && !isSlot {
			err = notSlot
		}
		if err == nil {
			saw(ev.Gen)
			if ev.Why == WhyStoreLost {
				b.taken[ev.Gen] = true
			}
		}
		return err
	case PrefixStart:
		st, err := DecodeStart(value)
		if err == nil && !isSlot {
			err = notSlot
		}
		if err == nil {
			saw(st.Gen)
		}
		return err
	case PrefixReleased:
		if !isSlot || len(value) != 4 {
			return fmt.Errorf("%w: released, %d bytes", ErrRecord, len(value))
		}
		saw(binary.LittleEndian.Uint32(value))
	case PrefixName:
		if !isSlot || len(value) == 0 {
			return notSlot
		}
		b.names[i] = string(value)
	case PrefixHost:
		h, err := DecodeHost(value)
		if len(key) < 2 {
			return fmt.Errorf("%w: host without a name", ErrRecord)
		}
		if err != nil {
			b.lostHosts = append(b.lostHosts, key[1:])
			return err
		}
		b.hosts[key[1:]] = h
	case KeyRoll:
		r, err := DecodeRoll(value)
		if err == nil && len(key) != 1 {
			err = fmt.Errorf("%w: roll under %q", ErrRecord, key)
		}
		if err != nil {
			return err
		}
		b.roll = &r
	case KeyFloor:
		f, err := DecodeFloor(value)
		if err == nil {
			b.floor = &f
		}
		return err
	case PrefixAdopted:
		_, err := DecodeAdopted(value)
		if err == nil && !isSlot {
			err = notSlot
		}
		return err
	case PrefixUncut:
		u, err := DecodeUncut(value)
		if err == nil && !isSlot {
			err = notSlot
		}
		if err == nil {
			saw(u.Gen)
		}
		return err
	case PrefixAudit:
		_, err := DecodeAudit(value)
		return err
	case KeyConfiguration:
		_, err := DecodeConfiguration(value)
		return err
	case KeyConfigMark:
		if len(value) != 4 {
			return fmt.Errorf("%w: mark of a configuration of %d bytes", ErrRecord, len(value))
		}
	default:
		b.unknown = append(b.unknown, key)
	}
	return nil
}
