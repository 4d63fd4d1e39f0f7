package nvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
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
