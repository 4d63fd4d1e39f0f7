package nvm

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// scrubEvery is how often Tend reads a page to see whether it still verifies:
// all pages of a 24C256 in under nine minutes.
const scrubEvery = time.Second

// Tend takes one step of housekeeping, if one is due: it clears a page that was
// found damaged, moves records that have stood still for long so that all
// pages wear alike, makes room, or checks a page. A step is a page write or
// two; on a medium with erase blocks it may be the erasing of one.
//
// Call it when there is nothing better to do. It queues as Normal. Without it
// everything goes on working, until the store is full of old records' pages
// (with erase blocks) or some pages are worn before others.
func (s *Store) Tend(ctx context.Context) error {
	if err := s.io.lock(ctx, Normal); err != nil {
		return fmt.Errorf("nvm: waiting for the store: %w", err)
	}
	defer s.io.unlock()
	if err := s.tend(ctx); err != nil {
		return fmt.Errorf("nvm: tend: %w", err)
	}
	return nil
}

func (s *Store) tend(ctx context.Context) error {
	if err := s.resolve(ctx); err != nil {
		return err
	}
	for len(s.damaged) > 0 {
		p := s.damaged[0]
		s.damaged = s.damaged[1:]
		if did, err := s.lay.repair(ctx, p); did || err != nil {
			return s.unlessBad(ctx, err)
		}
	}
	if did, err := s.lay.tend(ctx); did || err != nil {
		return err
	}
	return s.scrub(ctx)
}

// unlessBad is err, unless it is about a page or block that now is marked bad:
// Stats tells of those.
func (s *Store) unlessBad(ctx context.Context, err error) error {
	if err == nil || fatal(ctx, err) {
		return err
	}
	return nil
}

// stale says whether nothing has been written to a damaged page since it was
// found.
func (s *Store) stale(page int) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.wear[page] == 0 && !s.bad[page] && s.x.at[page] == nil
}

// scrub reads the next page that holds something needed. If it does not verify
// any more, its records are written anew from RAM.
func (s *Store) scrub(ctx context.Context) error {
	now := time.Now()
	if now.Sub(s.scrubOn) < scrubEvery {
		return nil
	}
	s.scrubOn = now
	s.mu.RLock()
	var b *batch
	for range s.pages {
		if s.scrubAt++; s.scrubAt >= s.pages {
			s.scrubAt = 0
		}
		if !s.x.free(s.scrubAt) {
			b = s.x.at[s.scrubAt]
			break
		}
	}
	s.mu.RUnlock()
	if b == nil {
		return nil
	}
	for range 2 {
		if err := s.m.ReadAt(ctx, s.back, int64(s.scrubAt)*int64(s.page)); err != nil {
			return fmt.Errorf("checking page %d: %w", s.scrubAt, err)
		}
		if h, ok := decodePage(s.back, s.seed); ok && h.seq == b.seq {
			return nil
		}
	}
	s.mu.Lock()
	s.stats.Repaired++
	s.mu.Unlock()
	return s.relocate(ctx, b)
}

// relocate writes what is needed of batches anew, as one batch. The pages they
// had are free then.
func (s *Store) relocate(ctx context.Context, batches ...*batch) error {
	s.mu.RLock()
	var recs []Record
	for _, b := range batches {
		recs = append(recs, b.needed()...)
	}
	s.mu.RUnlock()
	if len(recs) == 0 {
		return nil
	}
	if bugged("nvm-free-early") {
		for _, b := range batches {
			for _, p := range b.pages {
				if err := s.set(ctx, int(p), make([]byte, s.page)); err != nil {
					return err
				}
			}
		}
	}
	w, err := s.start(ctx, -s.pages, recs, true)
	if err != nil {
		return err
	}
	return s.finish(ctx, w)
}

// needed returns the records of b that must stay. A forgotten key that shields
// an older record of it is as good as deleted.
func (b *batch) needed() []Record {
	var recs []Record
	for _, e := range b.recs {
		if e.at != b || !e.needed() {
			continue
		}
		r := Record{Key: e.key}
		if e.state == entryLive {
			r.Value = e.val
			if r.Value == nil {
				r.Value = []byte{}
			}
		}
		recs = append(recs, r)
	}
	return recs
}

// encodedLen is how many bytes of a page's payload records take.
func encodedLen(recs []Record) int {
	n := 0
	for _, r := range recs {
		n += 2 + len(r.Key) + len(r.Value)
		if len(r.Value) >= valueDeleted {
			n += 2
		}
	}
	return n
}

// pack picks, of candidates in order, what fits into one page together.
func (s *Store) pack(candidates []*batch) []*batch {
	left := s.page - overhead
	var out []*batch
	for _, b := range candidates {
		n := encodedLen(b.needed())
		if n > left {
			if len(out) == 0 {
				return candidates[:1] // takes several pages, as it does now
			}
			break
		}
		left -= n
		out = append(out, b)
	}
	return out
}

// tend moves what stands in the ring's way, or packs small batches together
// when the ring fills up.
func (r *ring) tend(ctx context.Context) (bool, error) {
	s := r.s
	s.mu.RLock()
	var move []*batch
	switch room := r.room(); {
	case room == 0 || r.next < 0:
	case room < r.size()/4:
		if move = r.sparse(); move != nil {
			break
		}
		fallthrough
	default:
		move = r.ahead()
	}
	s.mu.RUnlock()
	if move == nil {
		return false, nil
	}
	return true, s.relocate(ctx, move...)
}

// ahead finds an old batch in the next eighth of the ring. A page that is left
// out each time the ring comes by is a page that the others wear for.
func (r *ring) ahead() []*batch {
	p := r.next
	for range r.size() / 8 {
		if p++; p >= r.s.pages {
			p = ringFirst
		}
		b := r.s.x.at[p]
		if b == nil || b.live == 0 || int64(r.s.seq)-int64(b.seq) < int64(r.size()/2) {
			continue
		}
		if len(b.pages) <= r.room() {
			return []*batch{b}
		}
	}
	return nil
}

// sparse finds batches that take fewer pages when they are written as one.
func (r *ring) sparse() []*batch {
	type cand struct {
		b *batch
		n int
	}
	var all []cand
	for p := ringFirst; p < r.s.pages; p++ {
		b := r.s.x.at[p]
		if b != nil && b.live > 0 && int(b.pages[0]) == p {
			all = append(all, cand{b, encodedLen(b.needed())})
		}
	}
	slices.SortFunc(all, func(x, y cand) int { return x.n - y.n })
	left, pages := r.s.page-overhead, 0
	var out []*batch
	for _, c := range all {
		if left -= c.n; left < 0 {
			break
		}
		pages += len(c.b.pages)
		out = append(out, c.b)
	}
	if pages < 2 {
		return nil
	}
	return out
}

// repair makes a page good that was found damaged: a format record is written
// anew, anything else is cleared.
func (r *ring) repair(ctx context.Context, page int) (bool, error) {
	if page < spareA {
		return true, r.writeFormat(ctx, page)
	}
	if !r.s.stale(page) {
		return false, nil
	}
	return true, r.clear(ctx, page)
}

// tend erases the oldest block if nothing of it is needed, and otherwise, when
// erased pages run low and there is something to gain, moves what is needed.
func (e *erasable) tend(ctx context.Context) (bool, error) {
	s := e.s
	b := e.oldest()
	if b < 0 {
		return false, nil
	}
	if !e.holdsNeeded(b) {
		return true, s.unlessBad(ctx, e.erase(ctx, b, true))
	}
	s.mu.RLock()
	var live []*batch
	if e.erased() < e.reserve()+s.opt.reserve(Normal)+e.per && e.dead() >= e.per {
		for p := b * e.per; p < (b+1)*e.per; p++ {
			if !s.x.free(p) && !slices.Contains(live, s.x.at[p]) {
				live = append(live, s.x.at[p])
			}
		}
	}
	live = s.pack(live)
	s.mu.RUnlock()
	if len(live) == 0 {
		return false, nil
	}
	return true, s.relocate(ctx, live...)
}

// dead is how many written pages hold nothing that is needed.
func (e *erasable) dead() int {
	n := -e.s.x.livePages
	for b := range e.blk {
		switch {
		case b == e.at:
			n += e.fill - 1
		case e.blk[b].state == blockUsed, e.blk[b].state == blockDirty:
			n += e.per - 1
		}
	}
	return n
}

func (e *erasable) repair(ctx context.Context, page int) (bool, error) {
	if page%e.per == 0 || !e.s.stale(page) {
		return false, nil // a block without a format record is erased in its turn
	}
	return true, e.clear(ctx, page)
}
