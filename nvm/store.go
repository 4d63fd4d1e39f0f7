package nvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"sort"
	"strings"
	"sync"
	"time"
)

// Store is a log of records on a Medium that survives a power cut at any
// instant: what Put has acknowledged is there afterwards, and what it had not
// is there as a whole or not at all.
//
// All methods may be called concurrently. Get, All, Forget and Stats never
// touch the medium. docs/nvm-format.md describes what is on it.
type Store struct {
	m     Medium
	opt   Options
	geom  Geometry
	page  int // bytes of a logical page
	pages int
	first int // pages below have a fixed place
	inc   uint32
	seed  uint32
	lay   layout
	io    classLock // whoever holds it may use the fields below and m

	seq     uint32   // of the newest batch begun
	open    *writing // handed over, but nobody has seen whether it is there
	img     []byte   // the page being written
	back    []byte   // what was read back
	blank   []byte   // an erased page
	stream  []byte   // a batch's records
	damaged []int    // pages found damaged and not yet cleared
	scrubAt int
	scrubOn time.Time

	mu    sync.RWMutex // guards what follows; never held across I/O or sleep
	x     index
	bad   []bool // pages that failed since the store was mounted
	nbad  int
	wear  []uint32 // writes per page since the store was mounted
	stats Stats
}

// Options are how a store is mounted.
type Options struct {
	// Suspect says that power may have been lost since the last write. Then the
	// page that was being written may read differently each time, so Mount
	// rewrites the newest record elsewhere before it trusts it, and clears
	// every page that could be the torn one. When false (the agent restarted
	// under power) Mount writes nothing.
	Suspect bool
	// Gate, if set, is called before every page write and erase, and may wait:
	// on a chip that is shared with an engine, until the engine has loaded.
	Gate func(context.Context) error
	// ReservePages is how many free pages only Urgent may use. 0 means 4,
	// below 0 none.
	ReservePages int
}

func (o Options) reserve(c Class) int {
	switch {
	case c == Urgent || o.ReservePages < 0:
		return 0
	case o.ReservePages == 0:
		return 4
	}
	return o.ReservePages
}

// Errors that errors.Is finds in what a Store returns.
var (
	// ErrUnformatted is returned when a medium holds no store: Report.State
	// says what it holds.
	ErrUnformatted = errors.New("medium holds no store")
	// ErrVersion is returned when the store was made by a newer version.
	ErrVersion = errors.New("store has an unknown format version")
	// ErrFull is returned when no page is free that the class may use. Nothing
	// was written.
	ErrFull = errors.New("store is full")
	// ErrTooLarge is returned when a batch needs more pages than a batch may
	// have. Nothing was written.
	ErrTooLarge = errors.New("batch is too large")
	// ErrRecord is returned when a record cannot be stored as it is: no key, a
	// key that is too long, or the same key twice. Nothing was written.
	ErrRecord = errors.New("not a valid record")
	// ErrUnknown is returned when a batch was handed to the medium but nobody
	// has seen what became of it: it is there or it is not, as a whole. The
	// next write finds out, as does the next mount.
	ErrUnknown = errors.New("it is unknown whether the records were written")
	// ErrWorn is returned when all sequence numbers are used: 2^32 batches.
	ErrWorn = errors.New("sequence numbers are used up")
)

// Incarnation is the number the store was formatted with.
func (s *Store) Incarnation() uint32 { return s.inc }

// Get returns a copy of the newest value of key that has been read back.
func (s *Store) Get(key string) ([]byte, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e := s.x.keys[key]
	if e == nil || e.state != entryLive {
		return nil, false
	}
	return bytes.Clone(e.val), true
}

// All yields, sorted by key, every record whose key starts with prefix, as
// they are when the iteration begins. The values are copies.
func (s *Store) All(prefix string) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		s.mu.RLock()
		var recs []Record
		for k, e := range s.x.keys {
			if e.state == entryLive && strings.HasPrefix(k, prefix) {
				recs = append(recs, Record{k, bytes.Clone(e.val)})
			}
		}
		s.mu.RUnlock()
		sort.Slice(recs, func(i, j int) bool { return recs[i].Key < recs[j].Key })
		for _, r := range recs {
			if !yield(r.Key, r.Value) {
				return
			}
		}
	}
}

// Put writes a batch and returns when it has been read back: from then on it
// survives anything. It blocks for the queue, and one write cycle a page.
//
// An error that is ErrFull, ErrTooLarge or ErrRecord means that nothing was
// written; ErrUnknown that the batch's fate is not known.
func (s *Store) Put(ctx context.Context, class Class, recs ...Record) error {
	p, err := s.Begin(ctx, class, recs...)
	if err != nil {
		return err
	}
	return p.Finish(ctx)
}

// Begin hands a batch to the medium and returns while the write cycle of its
// last page is under way, so that the caller can use other devices meanwhile.
// The store is locked until Finish, which must be called; until then the
// records' values must not be changed.
func (s *Store) Begin(ctx context.Context, class Class, recs ...Record) (*Pending, error) {
	if err := checkRecords(recs); err != nil {
		return nil, fmt.Errorf("nvm: %w", err)
	}
	if err := s.io.lock(ctx, class); err != nil {
		return nil, fmt.Errorf("nvm: waiting for the store: %w", err)
	}
	w, err := s.start(ctx, s.opt.reserve(class), recs, false)
	if err != nil {
		s.io.unlock()
		return nil, fmt.Errorf("nvm: %w", err)
	}
	return &Pending{s: s, w: w}, nil
}

// Pending is a batch whose last page has been handed to the medium.
type Pending struct {
	s *Store
	w *writing
}

// Finish waits for the end of the write cycle, reads the page back and
// publishes the batch: Get sees it from then on. A page that reads back wrong
// is written to another page, three times at most. The store is unlocked in
// any case, also when ctx ends (ErrUnknown).
//
// Only the first call does anything.
func (p *Pending) Finish(ctx context.Context) error {
	w := p.w
	if w == nil {
		return nil
	}
	p.w = nil
	defer p.s.io.unlock()
	if err := p.s.finish(ctx, w); err != nil {
		return fmt.Errorf("nvm: %w", err)
	}
	return nil
}

// Forget drops a key from view and lets its page be used again, without any
// write. The key may be there again after a remount, with the value it had;
// delete it, by a Put with a nil Value, where that must not be.
func (s *Store) Forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.x.keys[key]; e != nil {
		s.x.forget(e)
	}
}

// Stats are the store's figures. Those that are not numbers of pages count
// from the mount.
type Stats struct {
	PageWrites uint64 // write cycles of the medium, housekeeping included
	Erases     uint64 // of blocks
	Retries    uint64 // pages that had to be written again elsewhere
	Repaired   uint64 // pages that Tend found damaged, and wrote anew from RAM

	Pages int // logical pages of the medium, all told
	Live  int // hold something that is needed
	Free  int // may be written now (Urgent), not counting what housekeeping needs
	Bad   int // failed since the mount, and avoided

	BadPages []int  // their numbers
	Sequence uint32 // of the newest batch: batches written since Format
	// Hottest is an estimate of the writes (erases, of a medium with erase
	// blocks) that the most used page has seen since Format.
	Hottest uint64
}

// Stats returns the figures as they are now.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := s.stats
	st.Pages = s.pages
	st.Live = s.x.livePages
	st.Free = s.lay.room()
	st.Bad = s.nbad
	for p, bad := range s.bad {
		if bad {
			st.BadPages = append(st.BadPages, p)
		}
	}
	st.Hottest = s.lay.hottest()
	return st
}

// layout decides where pages go: ring on media that are overwritten in place,
// erasable on media with erase blocks. Its methods are called with the I/O
// lock held; room and hottest with s.mu.
type layout interface {
	// room is how many pages can be written before housekeeping must run.
	room() int
	// maxParts is how many pages a batch may have.
	maxParts() int
	// prepare makes sure that a batch can start.
	prepare(ctx context.Context) error
	// target is where the next page goes, and the link to put into it.
	target() (page int, next uint16, err error)
	// wrote is told that the page at target has been read back.
	wrote(page int)
	// failed is told that the page at target cannot be used.
	failed(ctx context.Context, page int) error
	// commit is told of a batch that is complete, with its last page.
	commit(b *batch, img []byte)
	// abandon is told that a batch will not be completed; page is one that may
	// have been handed over, or -1.
	abandon(ctx context.Context, page int) error
	// clear makes a page that holds nothing needed unreadable for ever.
	clear(ctx context.Context, page int) error
	// repair makes good a page that Mount found damaged, if that still is due.
	repair(ctx context.Context, page int) (did bool, err error)
	// tend takes one step of housekeeping, if any is due.
	tend(ctx context.Context) (did bool, err error)
	hottest() uint64
}

// writing is a batch on its way to the medium.
type writing struct {
	recs  []Record
	b     *batch
	parts int
	part  int // the one being written
	page  int // where it was handed over, or -1
	tries int
	doubt bool // a page was given up that could not be read
	moved bool // a relocation: a key forgotten meanwhile stays forgotten
}

const maxTries = 3 // pages tried for one batch beyond the first of each part

// start writes all parts of a batch but hands over the last one only.
func (s *Store) start(ctx context.Context, reserve int, recs []Record, moved bool) (*writing, error) {
	if err := s.resolve(ctx); err != nil {
		return nil, err
	}
	s.stream = s.stream[:0]
	for _, r := range recs {
		s.stream = appendRecord(s.stream, r)
	}
	room := s.page - overhead
	w := &writing{recs: recs, parts: max(1, (len(s.stream)+room-1)/room), page: -1, moved: moved}
	if w.parts > s.lay.maxParts() {
		return nil, fmt.Errorf("%w: %d pages, at most %d", ErrTooLarge, w.parts, s.lay.maxParts())
	}
	s.mu.RLock()
	free := s.lay.room()
	s.mu.RUnlock()
	if free < w.parts+reserve {
		return nil, fmt.Errorf("%w: %d pages free, %d reserved, %d wanted", ErrFull, free, reserve, w.parts)
	}
	if s.seq == math.MaxUint32 {
		return nil, ErrWorn
	}
	if err := s.lay.prepare(ctx); err != nil {
		return nil, err
	}
	s.seq++
	w.b = &batch{seq: s.seq}
	w.b.pages = w.b.one[:0]
	s.mu.Lock()
	s.x.hold(w.b)
	s.mu.Unlock()
	for {
		if err := s.handOver(ctx, w); err != nil {
			return nil, s.giveUp(ctx, w, err)
		}
		if w.part == w.parts-1 {
			return w, nil
		}
		if err := s.check(ctx, w); err != nil {
			return nil, s.giveUp(ctx, w, err)
		}
		w.part, w.page = w.part+1, -1
	}
}

// finish reads the last part back and publishes the batch.
func (s *Store) finish(ctx context.Context, w *writing) error {
	if err := s.check(ctx, w); err != nil {
		return s.giveUp(ctx, w, err)
	}
	s.publish(w)
	return nil
}

// handOver gives the current part to the medium, at another page if one fails.
func (s *Store) handOver(ctx context.Context, w *writing) error {
	for {
		page, next, err := s.lay.target()
		if err != nil {
			return err
		}
		room := s.page - overhead
		from := w.part * room
		to := min(from+room, len(s.stream))
		encodePage(s.img, pageHead{
			kind: kindData, seq: w.b.seq, part: uint8(w.part), parts: uint8(w.parts), next: next,
		}, s.stream[from:to], s.seed)
		begun, err := s.program(ctx, page, s.img)
		if begun {
			w.page = page
		}
		if err == nil || !fatal(ctx, err) && begun && s.verify(ctx, page, s.img) == nil {
			return nil // in the second case, written in spite of the error
		}
		if err = s.elsewhere(ctx, w, err); err != nil {
			return err
		}
	}
}

// check reads the current part back, and writes it elsewhere if it is wrong.
func (s *Store) check(ctx context.Context, w *writing) error {
	for {
		err := s.verify(ctx, w.page, s.img)
		if err == nil {
			s.mu.Lock()
			s.x.claim(w.b, w.page)
			s.mu.Unlock()
			s.lay.wrote(w.page)
			return nil
		}
		if err = s.elsewhere(ctx, w, err); err != nil {
			return err
		}
		if err = s.handOver(ctx, w); err != nil {
			return err
		}
	}
}

// elsewhere gives up the page that the current part was handed to, unless cause
// says that another page cannot help or the batch has used up its tries.
func (s *Store) elsewhere(ctx context.Context, w *writing, cause error) error {
	page := w.page
	if page < 0 || fatal(ctx, cause) {
		return cause
	}
	if err := s.lay.failed(ctx, page); err != nil {
		if !fatal(ctx, err) {
			w.page = -1
		}
		return errors.Join(cause, err)
	}
	w.page = -1
	w.doubt = w.doubt || !errors.Is(cause, ErrReadBack)
	s.mu.Lock()
	s.stats.Retries++
	s.mu.Unlock()
	if w.tries++; w.tries > maxTries {
		return cause
	}
	return nil
}

// giveUp ends a batch that err has stopped, and returns err, with ErrUnknown
// if the batch may be there all the same.
func (s *Store) giveUp(ctx context.Context, w *writing, err error) error {
	if w.page >= 0 && w.part == w.parts-1 {
		w.recs = cloneRecords(w.recs) // the caller's from now on
		s.open = w
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if w.doubt {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return errors.Join(err, s.drop(ctx, w))
}

func (s *Store) drop(ctx context.Context, w *writing) error {
	s.mu.Lock()
	s.x.abandon(w.b)
	s.mu.Unlock()
	return s.lay.abandon(ctx, w.page)
}

// resolve finds out what became of a batch whose Finish was cut short.
func (s *Store) resolve(ctx context.Context) error {
	w := s.open
	if w == nil {
		return nil
	}
	// s.img still is its last page: whatever else writes pages resolves first.
	err := s.verify(ctx, w.page, s.img)
	switch {
	case err == nil:
		s.mu.Lock()
		s.x.claim(w.b, w.page)
		s.mu.Unlock()
		s.lay.wrote(w.page)
		s.publish(w)
	case errors.Is(err, ErrReadBack):
		if err := s.drop(ctx, w); err != nil {
			return err
		}
	default:
		return fmt.Errorf("resolving the batch before: %w", err)
	}
	s.open = nil
	return nil
}

// publish makes a complete batch the truth in RAM.
func (s *Store) publish(w *writing) {
	s.mu.Lock()
	w.b.recs = make([]*entry, 0, len(w.recs))
	for _, r := range w.recs {
		e := s.x.keys[r.Key]
		if e == nil {
			e = &entry{key: r.Key}
			s.x.keys[r.Key] = e
		}
		var val []byte
		if r.Value != nil {
			val = append(make([]byte, 0, len(r.Value)), r.Value...)
		}
		forgotten := w.moved && e.state == entryForgotten
		s.x.add(w.b, e, val, r.Value == nil)
		if forgotten {
			s.x.forget(e)
		}
	}
	s.x.release(w.b)
	s.stats.Sequence = w.b.seq
	s.mu.Unlock()
	s.lay.commit(w.b, s.img)
}

// program writes one logical page. On a chip with smaller pages that is
// several write cycles; all but the last have ended on return. begun says that
// the medium may have got something of it.
func (s *Store) program(ctx context.Context, page int, img []byte) (begun bool, err error) {
	off := int64(page) * int64(s.page)
	step := min(s.geom.Page, s.page)
	for i := 0; i < len(img); i += step {
		if s.opt.Gate != nil {
			if err := s.opt.Gate(ctx); err != nil {
				return begun, fmt.Errorf("%w: %w", errGate, err)
			}
		}
		if err := ctx.Err(); err != nil {
			return begun, err
		}
		begun = true
		s.mu.Lock()
		s.stats.PageWrites++
		if i == 0 {
			s.wear[page]++
		}
		s.mu.Unlock()
		if err := s.m.Program(ctx, img[i:i+step], off+int64(i)); err != nil {
			return begun, fmt.Errorf("writing page %d at %#x: %w", page, off, err)
		}
	}
	return begun, nil
}

// verify waits for the write cycle and compares what is in the cells.
func (s *Store) verify(ctx context.Context, page int, img []byte) error {
	off := int64(page) * int64(s.page)
	if err := s.m.ReadAt(ctx, s.back, off); err != nil {
		return fmt.Errorf("reading page %d back at %#x: %w", page, off, err)
	}
	if bytes.Equal(s.back, img) {
		return nil
	}
	i := 0
	for s.back[i] == img[i] {
		i++
	}
	return fmt.Errorf("page %d: %w: %#02x at %#x, wrote %#02x", page, ErrReadBack, s.back[i], off+int64(i), img[i])
}

// set writes a page that is at a fixed place, or cleared, and reads it back.
func (s *Store) set(ctx context.Context, page int, img []byte) error {
	if _, err := s.program(ctx, page, img); err != nil {
		return err
	}
	return s.verify(ctx, page, img)
}

var errGate = errors.New("not let through to write")

// fatal says that an error is about the medium or ctx, not about one page.
func fatal(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, errGate) || errors.Is(err, ErrAbsent) || errors.Is(err, ErrRange) || errors.Is(err, ErrPage)
}

func (s *Store) markBad(page int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.bad[page] {
		s.bad[page] = true
		if page >= s.first {
			s.nbad++
		}
	}
}

func cloneRecords(recs []Record) []Record {
	out := make([]Record, len(recs))
	for i, r := range recs {
		out[i] = Record{r.Key, bytes.Clone(r.Value)}
		if r.Value != nil && out[i].Value == nil {
			out[i].Value = []byte{}
		}
	}
	return out
}
