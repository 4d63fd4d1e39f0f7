package nvm

import (
	"context"
	"encoding/binary"
	"fmt"
)

// Pages with a fixed place on a medium that is overwritten in place.
const (
	formatA   = 0 // two copies of the format record
	formatB   = 1
	spareA    = 2 // two copies of the newest batch's last page, for recovery
	spareB    = 3
	ringFirst = 4 // where the ring begins, and the first batch of a new store
)

// ring is the layout of a medium that is overwritten in place: the pages from
// ringFirst on are written in turn, leaving out those that hold something
// needed.
//
// Which page that will be next is decided one write ahead and written into the
// page before: so after a power cut the page that may be torn is known, even
// when it still reads as what it held before, and so is a page that is free,
// although what was forgotten in RAM is on the medium again.
type ring struct {
	s    *Store
	next int // the next page; -1: none that a reader of the medium could find
	base int // the next page as the newest complete batch has it
	link int // what goes into the page at next

	tail     []byte // image of the newest batch's last page; nil before the first
	tailPage int
	adrift   bool   // the newest batch's last page is on a spare page only
	kept     *batch // the newest batch, if it could be read
	buf      []byte // a page
}

func (r *ring) size() int { return r.s.pages - ringFirst }

// room leaves one page out: the page written last must name a free one. It
// also stays itself, needed or not, until another has taken its place.
func (r *ring) room() int {
	n := r.size() - r.s.x.livePages - r.s.nbad - 1
	if r.tailPage >= ringFirst && r.s.x.free(r.tailPage) {
		n--
	}
	return max(0, n)
}

func (r *ring) maxParts() int { return min(maxParts, r.size()/4) }

// pick returns the first page after p that is free, or -1.
func (r *ring) pick(p int) int {
	r.s.mu.RLock()
	defer r.s.mu.RUnlock()
	for range r.size() - 1 {
		if p++; p >= r.s.pages {
			p = ringFirst
		}
		if p != r.tailPage && !r.s.bad[p] && r.s.x.free(p) {
			return p
		}
	}
	return -1
}

// prepare gives the newest batch's last page a place in the ring if it has
// none, and finds a next page if there is none.
func (r *ring) prepare(ctx context.Context) error {
	if r.next >= 0 && !r.adrift {
		return nil
	}
	return r.relink(ctx)
}

func (r *ring) target() (int, uint16, error) {
	if r.link = r.pick(r.next); r.link < 0 {
		return 0, 0, ErrFull
	}
	return r.next, uint16(r.link), nil
}

func (r *ring) wrote(int) { r.next = r.link }

func (r *ring) commit(b *batch, img []byte) {
	r.tail = append(r.tail[:0], img...)
	r.s.mu.Lock()
	r.kept, r.tailPage = b, int(b.pages[len(b.pages)-1])
	r.s.mu.Unlock()
	r.base = r.next
}

// failed gives up a page. What it holds is made unreadable if it can be, and
// the page that is taken instead is put on record first.
func (r *ring) failed(ctx context.Context, page int) error {
	r.s.markBad(page)
	if err := r.clear(ctx, page); err != nil && fatal(ctx, err) {
		return err
	}
	return r.relink(ctx)
}

func (r *ring) abandon(context.Context, int) error {
	r.next = r.base
	if r.next >= 0 && r.s.bad[r.next] {
		r.next = -1
	}
	return nil
}

// relink is for when the page that the newest batch names cannot be used: the
// batch's last page is written anew, as in a recovery, to name another.
func (r *ring) relink(ctx context.Context) error {
	r.next, r.base = -1, -1
	for try := 0; ; try++ {
		page := r.pick(max(r.tailPage, ringFirst))
		if page < 0 {
			return ErrFull
		}
		if err := r.writeSpares(ctx, page); err != nil {
			return err
		}
		if len(r.tail) == 0 { // there is no batch, damaged as the medium is
			r.setNext(page)
			return nil
		}
		next := r.pick(page)
		err := r.s.set(ctx, page, r.copyOfTail(kindData, next))
		if err == nil {
			old := r.tailPage
			r.rehome(page)
			if err := r.clear(ctx, old); err != nil && fatal(ctx, err) {
				return err
			}
			r.setNext(next)
			if r.next < 0 {
				return ErrFull
			}
			return nil
		}
		r.s.markBad(page)
		if fatal(ctx, err) || try == maxTries {
			return err
		}
	}
}

// writeSpares writes a copy of the newest batch's last page to both spare
// pages, to name the page where the next copy goes. The order is always the
// same: the second is whole while the first is written, and the other way
// round.
func (r *ring) writeSpares(ctx context.Context, next int) error {
	var err error
	ok := false
	img := r.copyOfTail(kindSpare, next)
	order := []int{spareA, spareB}
	if r.adrift && r.tailPage == spareA && !r.s.opt.Suspect {
		order = []int{spareB, spareA} // the first may hold the only copy
	}
	for _, p := range order {
		if e := r.s.set(ctx, p, img); e == nil {
			ok = true
		} else if err = e; fatal(ctx, e) {
			return e
		} else {
			r.s.markBad(p)
		}
	}
	if !ok {
		return fmt.Errorf("%w: %w", errFixed, err)
	}
	return nil
}

// copyOfTail is the newest batch's last page with another kind and link, in
// r.buf.
func (r *ring) copyOfTail(kind byte, next int) []byte {
	link := uint16(noPage)
	if next >= 0 {
		link = uint16(next)
	}
	if r.buf == nil {
		r.buf = make([]byte, r.s.page)
	}
	if len(r.tail) == 0 {
		encodePage(r.buf, pageHead{kind: kind, parts: 1, next: link}, nil, r.s.seed)
		return r.buf
	}
	copy(r.buf, r.tail)
	r.buf[0] = kind
	binary.LittleEndian.PutUint16(r.buf[7:], link)
	sealPage(r.buf, r.s.seed)
	return r.buf
}

// clear overwrites a page with what erased bytes read as.
func (r *ring) clear(ctx context.Context, page int) error {
	if err := r.s.set(ctx, page, r.s.blank); err != nil {
		if !fatal(ctx, err) {
			r.s.markBad(page)
		}
		return err
	}
	r.s.mu.Lock()
	r.s.x.overwritten(page)
	r.s.mu.Unlock()
	return nil
}

func (r *ring) hottest() uint64 {
	var m uint32
	var sum uint64
	for _, w := range r.s.wear[ringFirst:] {
		m = max(m, w)
		sum += uint64(w)
	}
	n := uint64(r.size())
	before := max(uint64(r.s.stats.Sequence), sum) - sum
	return (before+n-1)/n + uint64(m)
}

// format writes the two format records as "forming" first, so that nothing of
// an older store is mounted any more, and as "formed" last.
//
// While it is under way the spare pages, too, hold a record that says "forming":
// the marks. On a blank medium, and where a format is begun anew, they are
// written before anything else, always both and in the same order; elsewhere
// once the older store is gone. So beside the page being written one is whole
// that says what is going on, also when power is lost again at the next start.
// Before the first of them stands, a blank medium has nothing written outside the
// spare pages, and that findFormat knows too.
func (r *ring) format(ctx context.Context) error {
	s := r.s
	img := make([]byte, s.pages*s.page)
	if err := s.m.ReadAt(ctx, img, 0); err != nil {
		return err
	}
	rec := make([]byte, s.page)
	write := func(kind byte, pages ...int) error {
		encodeFormat(rec, s.format(kind))
		for _, p := range pages {
			if err := s.set(ctx, p, rec); err != nil {
				return fmt.Errorf("format record: %w", err)
			}
		}
		return nil
	}
	order := []int{spareA, spareB, formatA, formatB}
	if begun, err := s.begun(img); err != nil {
		return err
	} else if !begun {
		order = []int{formatA, formatB, spareA, spareB}
	}
	if err := write(kindForming, order...); err != nil {
		return err
	}
	// A new chip is taken as it is. Where more than the spare pages has been
	// written, a page that reads as erased may be one whose clearing was cut short.
	if !s.blankBut(img, spareA*s.page, 2*s.page) {
		for p := ringFirst; p < s.pages; p++ {
			if err := r.clear(ctx, p); err != nil && fatal(ctx, err) {
				return err
			}
		}
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	if err := write(kindFormed, formatA, formatB); err != nil {
		return err
	}
	for _, p := range []int{spareA, spareB} {
		if err := r.clear(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// begin writes the first batch, without a record: from then on there always is
// a page that names the next.
func (r *ring) begin(ctx context.Context) error {
	s := r.s
	for page := ringFirst; ; page++ {
		next := page + 1
		for next < s.pages && s.bad[next] {
			next++
		}
		if next >= s.pages {
			return fmt.Errorf("no page for the first batch: %w", ErrReadBack)
		}
		if s.bad[page] {
			continue
		}
		encodePage(s.img, pageHead{kind: kindData, seq: 1, parts: 1, next: uint16(next)}, nil, s.seed)
		err := s.set(ctx, page, s.img)
		if err == nil {
			b := &batch{seq: 1, pages: []int32{int32(page)}}
			s.x.at[page] = b
			s.seq, s.stats.Sequence = 1, 1
			r.next = next
			r.commit(b, s.img)
			return nil
		}
		if fatal(ctx, err) {
			return err
		}
		s.markBad(page)
	}
}

// rehome notes that the newest batch's last page now is at page, as the copy in
// r.buf.
func (r *ring) rehome(page int) {
	copy(r.tail, r.buf)
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.x.at[page] != r.kept {
		r.s.x.overwritten(page)
	}
	if b := r.kept; b != nil {
		last := &b.pages[len(b.pages)-1]
		r.s.x.at[*last] = nil
		*last = int32(page)
		r.s.x.at[page] = b
	}
	r.tailPage, r.adrift = page, false
}
