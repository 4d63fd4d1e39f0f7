package nvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Repair is what is to be done to a medium so that it holds a store without
// damage. enclosure/plan decides it; nothing here knows what records mean.
type Repair struct {
	// Format makes the store anew, under Incarnation: all that it held is lost.
	Format bool
	// Salvage writes the format records anew, for a store of Incarnation that
	// lost them all.
	Salvage     bool
	Incarnation uint32
	// Batches are written, in order, each as one.
	Batches [][]Record
	// Clean makes good every page that is damaged, and clears those of batches
	// that were never acknowledged. That is done last: as long as damage is there,
	// a repair that was cut short can be decided anew.
	Clean bool
}

// None tells whether there is nothing to be done.
func (r Repair) None() bool {
	return !r.Format && !r.Salvage && !r.Clean && len(r.Batches) == 0
}

// Mend does r to the store on m and returns it, mounted. A power cut at any
// instant leaves a medium to which a repair, decided anew, can be done; pass
// Options.Suspect then, as after any power cut.
func Mend(ctx context.Context, m Medium, r Repair, opt Options) (*Store, Report, error) {
	var s *Store
	var rep Report
	var err error
	switch {
	case r.Format:
		s, err = Format(ctx, m, r.Incarnation, opt)
	case r.Salvage:
		s, rep, err = Salvage(ctx, m, r.Incarnation, opt)
		if errors.Is(err, ErrStore) && rep.Incarnation == r.Incarnation {
			s, rep, err = Mount(ctx, m, opt) // a record that was torn reads well this time
		}
	default:
		s, rep, err = Mount(ctx, m, opt)
	}
	if err != nil {
		return nil, rep, err
	}
	if err := s.Mend(ctx, r); err != nil {
		return nil, rep, err
	}
	return s, rep, nil
}

// Mend does what r says of a store that is mounted: Clean and Batches.
func (s *Store) Mend(ctx context.Context, r Repair) error {
	for _, b := range r.Batches {
		if err := s.Put(ctx, Urgent, b...); err != nil {
			return fmt.Errorf("nvm: repair: %w", err)
		}
	}
	if r.Clean {
		return s.Clean(ctx)
	}
	return nil
}

// Clean makes good what is damaged now: a format record is written anew, a page
// whose records are known is written elsewhere from RAM, anything else is
// cleared, also pages of batches that were never acknowledged. It reads the
// whole medium, a few milliseconds at a time, and queues as Normal for each
// step. A page that can not be made good is marked bad (Stats.BadPages).
//
// ErrFull is returned where there is no room to write a page elsewhere; what
// could be made good without has been.
func (s *Store) Clean(ctx context.Context) error {
	in, err := s.Inspect(ctx)
	if err != nil {
		return err
	}
	if in.Err != nil {
		return in.Err // all format records are lost: for Salvage, not mounted
	}
	var pages []int
	for p, d := range in.Detail {
		if d.State == PageDamaged || d.State == PageIncomplete {
			pages = append(pages, p)
		}
	}
	// What needs no other page first: a page that was to be written next may be
	// among it. Of batches that are not complete the last part first: then no
	// other can ever complete it.
	s.mu.RLock()
	moves := map[int]int{}
	for _, p := range pages {
		if b := s.x.at[p]; b != nil && b.live > 0 || in.Detail[p].Fixed {
			moves[p] = 1
		}
	}
	s.mu.RUnlock()
	slices.SortStableFunc(pages, func(p, q int) int {
		a, b := in.Detail[p], in.Detail[q]
		return cmp.Or(cmp.Compare(moves[p], moves[q]), cmp.Compare(b.Sequence, a.Sequence), cmp.Compare(b.Part, a.Part))
	})
	var full error
	for _, p := range pages {
		switch err := s.cleanPage(ctx, p, in.Detail[p]); {
		case errors.Is(err, ErrFull):
			full = fmt.Errorf("nvm: page %d: %w", p, err)
		case err != nil:
			return fmt.Errorf("nvm: page %d: %w", p, err)
		}
	}
	return full
}

func (s *Store) cleanPage(ctx context.Context, page int, was Page) error {
	if err := s.io.lock(ctx, Normal); err != nil {
		return err
	}
	defer s.io.unlock()
	if err := s.resolve(ctx); err != nil {
		return err
	}
	s.mu.RLock()
	b := s.x.at[page]
	needed := b != nil && b.live > 0
	s.mu.RUnlock()
	if err := s.m.ReadAt(ctx, s.back, int64(page)*int64(s.page)); err != nil {
		return err
	}
	switch h, ok := decodePage(s.back, s.seed); {
	case ok && b != nil && h.seq == b.seq, was.State == PageIncomplete && !(ok && b == nil && h.seq == was.Sequence):
		return nil // it has been written since, or reads well after all
	}
	if needed {
		if err := s.relocate(ctx, b); err != nil {
			return err
		}
	}
	return s.unlessBad(ctx, s.lay.clean(ctx, page))
}

// clean writes a format record anew and clears anything else.
func (r *ring) clean(ctx context.Context, page int) error {
	if page < spareA { // both: the other may be one that only looks good
		if err := r.writeFormat(ctx, page); err != nil {
			return err
		}
		return r.writeFormat(ctx, formatA+formatB-page)
	}
	if page == r.tailPage { // it has the newest batch, of which nothing is needed
		return r.relink(ctx)
	}
	return r.clear(ctx, page)
}

// clean voids a page. A block whose record is damaged is erased, once what is
// needed of it has been written elsewhere.
func (e *erasable) clean(ctx context.Context, page int) error {
	b := page / e.per
	if page%e.per != 0 {
		// What is to be written yet is written behind it.
		switch used := page%e.per + 1; {
		case b == e.at && used > e.fill:
			e.setBlock(b, e.blk[b].state, used)
			e.fill = used
		case e.blk[b].state == blockReady && used == e.per:
			e.setBlock(b, blockUsed, used)
		case e.blk[b].state == blockReady && used > e.blk[b].used:
			e.setBlock(b, blockReady, used)
		}
		return e.clear(ctx, page)
	}
	if b == e.at {
		e.setBlock(b, e.blk[b].state, e.per)
		e.fill = e.per
	}
	for range e.per {
		e.s.mu.RLock()
		var live []*batch
		for p := b * e.per; p < (b+1)*e.per; p++ {
			if !e.s.x.free(p) && !slices.Contains(live, e.s.x.at[p]) {
				live = append(live, e.s.x.at[p])
			}
		}
		live = e.s.pack(live)
		e.s.mu.RUnlock()
		if len(live) == 0 {
			break
		}
		if err := e.s.relocate(ctx, live...); err != nil {
			return err
		}
	}
	if e.holdsNeeded(b) { // the newest batch, without a record in it: another takes its place
		w, err := e.s.start(ctx, -e.s.pages, nil, true)
		if err != nil {
			return err
		}
		if err := e.s.finish(ctx, w); err != nil {
			return err
		}
	}
	return e.erase(ctx, b, true)
}

// Inspect reads the medium anew and tells what is on it, as the function of
// that name does, while the store is in use: a little at a time and with pauses,
// so that neither an intent nor others on the bus wait for more than one such
// read. It writes nothing.
func (s *Store) Inspect(ctx context.Context) (in *Inspection, err error) {
	err = s.read(ctx, func(img []byte) error {
		in, err = Inspect(ctx, &snapshot{Medium: s.m, img: img})
		return err
	})
	return in, err
}

// Image returns what the store's medium holds, in the same way: as it was at
// one instant.
func (s *Store) Image(ctx context.Context) (img []byte, err error) {
	err = s.read(ctx, func(p []byte) error {
		img = p
		return nil
	})
	return img, err
}

// How a medium is read that others want to use: 128 bytes take 3 ms at 400 kHz.
const (
	readStep  = 128
	readPause = 2 * time.Millisecond
)

// read reads the medium and calls f with its content while nothing is written.
func (s *Store) read(ctx context.Context, f func(img []byte) error) error {
	img := make([]byte, s.pages*s.page)
	step := max(readStep, len(img)/256)
	written := func() ([]uint32, uint64) {
		s.mu.RLock()
		defer s.mu.RUnlock()
		return slices.Clone(s.wear), s.stats.Erases
	}
	wear, erases := written()
	for off := 0; off < len(img); off += step {
		if err := s.io.lock(ctx, Normal); err != nil {
			return fmt.Errorf("nvm: waiting for the store: %w", err)
		}
		err := s.m.ReadAt(ctx, img[off:min(off+step, len(img))], int64(off))
		s.io.unlock()
		if err != nil {
			return fmt.Errorf("nvm: reading at %#x: %w", off, err)
		}
		if err := sleep(ctx, readPause); err != nil {
			return err
		}
	}
	if err := s.io.lock(ctx, Normal); err != nil {
		return fmt.Errorf("nvm: waiting for the store: %w", err)
	}
	defer s.io.unlock()
	// What has been written meanwhile is read once more, now that nothing is.
	now, nowErases := written()
	for p := range now {
		if now[p] == wear[p] && nowErases == erases {
			continue
		}
		if err := s.m.ReadAt(ctx, img[p*s.page:(p+1)*s.page], int64(p)*int64(s.page)); err != nil {
			return fmt.Errorf("nvm: reading page %d: %w", p, err)
		}
	}
	return f(img)
}

// snapshot is a medium whose whole content has been read already.
type snapshot struct {
	Medium
	img []byte
}

func (m *snapshot) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off == 0 && len(p) == len(m.img) {
		copy(p, m.img)
		return ctx.Err()
	}
	return m.Medium.ReadAt(ctx, p, off)
}
