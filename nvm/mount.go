package nvm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// Report is what Mount found and did.
type Report struct {
	State       State
	Incarnation uint32
	Sequence    uint32 // of the newest complete batch; 0 = none
	PageSize    int    // bytes of a page as numbered here
	Pages       int
	// Damaged are pages whose content is neither the store's nor erased: torn
	// by a power cut, hit by a bit flip, or foreign. What they held is lost;
	// where it was the newest record of a key, an older one may show.
	Damaged []int
	// Incomplete is how many pages belong to batches newer than the newest
	// complete one: they were never acknowledged.
	Incomplete int
	// Cleared are pages that Mount has made unreadable (Options.Suspect).
	Cleared []int
	// Rewritten says that the newest batch's last page was written anew.
	Rewritten bool
	// Unsettled says that there was no room to write it anew: it was trusted
	// as it reads.
	Unsettled bool
}

// State says what a medium holds.
type State int

const (
	Blank         State = iota // erased, all of it
	Foreign                    // something that is no store, or a store whose format records are all lost
	HalfFormatted              // a Format that did not come to its end
	Formatted                  // a store
)

// String is the state as a person would say it.
func (s State) String() string {
	return [...]string{"blank", "foreign", "half formatted", "formatted"}[s]
}

// Mount opens the store on m. Whatever is on the medium, it ends: after one
// pass over it, and with Options.Suspect a bounded number of page writes.
//
// It returns ErrUnformatted, ErrVersion or ErrSize, with the report, when the
// content is not a store for this medium, and then has written nothing.
//
// Every key that was forgotten since its last Put may be there again: a caller
// which uses Forget must forget again what it does not want, or the store
// stays as full as its medium.
func Mount(ctx context.Context, m Medium, opt Options) (*Store, Report, error) {
	s, rep, err := mount(ctx, m, opt)
	if err != nil {
		return nil, rep, fmt.Errorf("nvm: mount: %w", err)
	}
	return s, rep, nil
}

func mount(ctx context.Context, m Medium, opt Options) (*Store, Report, error) {
	s, err := newStore(m, opt)
	if err != nil {
		return nil, Report{}, err
	}
	rep := Report{PageSize: s.page, Pages: s.pages}
	sc := &scan{img: make([]byte, s.pages*s.page), info: make([]pageInfo, s.pages)}
	if err := s.m.ReadAt(ctx, sc.img, 0); err != nil {
		return nil, rep, fmt.Errorf("reading: %w", err)
	}
	if r, ok := s.lay.(*ring); ok {
		err = r.mount(ctx, sc, &rep)
	} else {
		err = s.lay.(*erasable).mount(ctx, sc, &rep)
	}
	if err != nil {
		return nil, rep, err
	}
	rep.State, rep.Incarnation, rep.Sequence = Formatted, s.inc, s.stats.Sequence
	return s, rep, nil
}

// newStore checks the geometry and makes an empty store.
func newStore(m Medium, opt Options) (*Store, error) {
	g := m.Geometry()
	s := &Store{m: m, opt: opt, geom: g}
	s.page = max(minPage, g.Page)
	switch {
	case g.Size <= 0 || g.Page <= 0 || g.Erase < 0:
		return nil, fmt.Errorf("%w: %d bytes in pages of %d", ErrSize, g.Size, g.Page)
	case s.page%g.Page != 0 || s.page > maxPage:
		return nil, fmt.Errorf("%w: pages of %d bytes", ErrSize, g.Page)
	case g.Erased != 0x00 && g.Erased != 0xff:
		return nil, fmt.Errorf("%w: erased bytes read %#02x", ErrSize, g.Erased)
	}
	s.pages = int(min(g.Size/int64(s.page), maxPages))
	if g.Erase == 0 {
		if s.pages < ringFirst+4 {
			return nil, fmt.Errorf("%w: %d pages of %d bytes, at least %d wanted", ErrSize, s.pages, s.page, ringFirst+4)
		}
		s.first = ringFirst
		s.lay = &ring{s: s, next: -1, base: -1}
	} else {
		e, err := newErasable(s)
		if err != nil {
			return nil, err
		}
		s.lay = e
	}
	buf := make([]byte, 3*s.page)
	s.img, s.back, s.blank = buf[:s.page], buf[s.page:2*s.page], buf[2*s.page:]
	for i := range s.blank {
		s.blank[i] = g.Erased
	}
	s.bad = make([]bool, s.pages)
	s.wear = make([]uint32, s.pages)
	s.x.at = make([]*batch, s.pages)
	return s, nil
}

// scan is a medium's content, judged page by page.
type scan struct {
	img  []byte
	info []pageInfo
	data int // data pages that verify

	batches []found
	pages   []int32 // of all batches
}

type pageInfo struct {
	pageHead
	state  pageState
	unused bool // what is on it does not count: a write may have begun there
}

type pageState uint8

const (
	pageErased pageState = iota
	pageVoid             // cleared, on a medium that cannot overwrite
	pageValid            // a data or spare page
	pageFormat           // a format record
	pageBad
)

// found is a batch all of whose parts verify.
type found struct {
	seq      uint32
	from, to int32 // its pages in scan.pages
}

func (sc *scan) page(s *Store, i int) []byte { return sc.img[i*s.page : (i+1)*s.page] }

// judge decides what pages [from, to) hold. A page that does not verify is
// read once more: noise on the bus must not cost a record.
func (sc *scan) judge(ctx context.Context, s *Store, from, to int) error {
	for i := from; i < to; i++ {
		p := sc.page(s, i)
		in := &sc.info[i]
		for try := 0; ; try++ {
			if h, ok := decodePage(p, s.seed); ok {
				in.pageHead, in.state = h, pageValid
				break
			}
			if p[0] == s.geom.Erased && bytes.Equal(p, s.blank) {
				in.state = pageErased
				break
			}
			if s.isVoid(p) {
				in.state = pageVoid
				break
			}
			in.state = pageBad
			if try == 1 {
				break
			}
			if err := s.m.ReadAt(ctx, p, int64(i*s.page)); err != nil {
				return fmt.Errorf("reading page %d again: %w", i, err)
			}
		}
		if in.state == pageValid && in.kind == kindData {
			sc.data++
		}
	}
	return nil
}

// isVoid says whether a page has every bit programmed: how a page is cleared
// where it cannot be overwritten.
func (s *Store) isVoid(p []byte) bool {
	if s.geom.Erase == 0 || p[0] != ^s.geom.Erased {
		return false
	}
	for _, b := range p {
		if b != ^s.geom.Erased {
			return false
		}
	}
	return true
}

// gather finds the complete batches among the data pages [from, to) and the
// spare pages in extra.
func (sc *scan) gather(from, to int, extra ...int) {
	sc.batches = make([]found, 0, sc.data+len(extra))
	sc.pages = make([]int32, 0, sc.data+len(extra))
	var several []int32
	one := func(i int) {
		in := &sc.info[i]
		if in.state != pageValid {
			return
		}
		if in.parts > 1 {
			several = append(several, int32(i))
			return
		}
		sc.pages = append(sc.pages, int32(i))
		sc.batches = append(sc.batches, found{in.seq, int32(len(sc.pages) - 1), int32(len(sc.pages))})
	}
	for i := from; i < to; i++ {
		one(i)
	}
	for _, i := range extra {
		one(i)
	}
	// Batches of several pages: side by side, part by part, data before spare.
	slices.SortFunc(several, func(a, b int32) int {
		x, y := &sc.info[a], &sc.info[b]
		return cmp.Or(cmp.Compare(x.seq, y.seq), cmp.Compare(x.parts, y.parts),
			cmp.Compare(x.part, y.part), cmp.Compare(x.kind, y.kind), cmp.Compare(a, b))
	})
	for len(several) > 0 {
		h := sc.info[several[0]].pageHead
		n := 0
		start := len(sc.pages)
		for n < len(several) {
			in := &sc.info[several[n]]
			if in.seq != h.seq || in.parts != h.parts {
				break
			}
			if int(in.part) == len(sc.pages)-start { // else a second copy
				sc.pages = append(sc.pages, several[n])
			}
			n++
		}
		if len(sc.pages)-start == int(h.parts) {
			sc.batches = append(sc.batches, found{h.seq, int32(start), int32(len(sc.pages))})
		} else {
			sc.pages = sc.pages[:start]
		}
		several = several[n:]
	}
}

func (sc *scan) pagesOf(f found) []int32 { return sc.pages[f.from:f.to] }

func (sc *scan) last(f found) int { return int(sc.pages[f.to-1]) }

// newest returns the batch with the highest sequence number, and the one
// before it; seq 0 where there is none.
func (sc *scan) newest() (first, second found) {
	for _, f := range sc.batches {
		switch {
		case f.seq > first.seq:
			first, second = f, first
		case f.seq < first.seq && f.seq > second.seq:
			second = f
		}
	}
	return first, second
}

// retainImage is the size up to which a store keeps the image it was mounted
// from, as the backing of its values, rather than a copy of each.
const retainImage = 64 << 10

// load enters the records of all complete batches into the index, except of
// those with an unused page. It returns the batch that stands for keep.
func (sc *scan) load(s *Store, keep found, rep *Report) (kept *batch) {
	retain := len(sc.img) <= retainImage
	var text string
	if retain && len(sc.batches) > 0 {
		text = string(sc.img)
	}
	s.x.keys = make(map[string]*entry, len(sc.batches))
	batches := make([]batch, len(sc.batches))
	entries := make([]entry, 0, len(sc.batches))
	recs := make([]*entry, 0, len(sc.batches)+len(sc.batches)/4)
	for n, f := range sc.batches {
		pages := sc.pagesOf(f)
		if f != keep && slices.ContainsFunc(pages, func(p int32) bool { return sc.info[p].unused }) {
			continue
		}
		var b []byte
		var keys string
		first := int(pages[0])
		if len(pages) == 1 {
			b = pagePayload(sc.page(s, first))
			if retain {
				at := first*s.page + headLen
				keys = text[at : at+len(b)]
			}
		} else {
			for _, p := range pages {
				b = append(b, pagePayload(sc.page(s, int(p)))...)
			}
		}
		count, err := countRecords(b)
		if err != nil {
			// The CRC is right and the content is not: nothing wrote that.
			for _, p := range pages {
				sc.info[p].state = pageBad
			}
			continue
		}
		if keys == "" && count > 0 {
			keys = string(b)
		}
		if cap(recs)-len(recs) < count {
			recs = make([]*entry, 0, max(count, 256))
		}
		bt := &batches[n]
		bt.seq, bt.pages = f.seq, pages[:len(pages):len(pages)]
		bt.recs = recs[len(recs) : len(recs) : len(recs)+count]
		recs = recs[:len(recs)+count]
		for _, p := range pages {
			s.x.at[p] = bt
		}
		if f == keep {
			kept = bt
		}
		for off := 0; ; {
			r, more, _ := nextRecord(b, off)
			if !more {
				break
			}
			off = r.end
			e := s.x.keys[keys[r.key:r.value]]
			if e == nil {
				if len(entries) == cap(entries) {
					entries = make([]entry, 0, 128)
				}
				entries = append(entries, entry{key: keys[r.key:r.value]})
				e = &entries[len(entries)-1]
				s.x.keys[e.key] = e
			}
			val := b[r.value:r.end:r.end]
			if !retain {
				val = bytes.Clone(val)
			}
			s.x.add(bt, e, val, r.deleted)
		}
	}
	for i := range sc.info {
		if sc.info[i].state == pageBad {
			rep.Damaged = append(rep.Damaged, i)
		}
	}
	return kept
}

func countRecords(b []byte) (n int, err error) {
	for off := 0; ; n++ {
		r, more, err := nextRecord(b, off)
		if err != nil || !more {
			return n, err
		}
		off = r.end
	}
}

// adopt sets up what depends on the format record.
func (s *Store) adopt(f formatRecord) {
	s.inc, s.seed = f.incarnation, dataSeed(f.incarnation)
}

// checkFormat says whether a store described by f fits this medium.
func (s *Store) checkFormat(f formatRecord) error {
	if f.version != formatVersion {
		return fmt.Errorf("%w: %d, this is %d", ErrVersion, f.version, formatVersion)
	}
	if f.page != s.page || f.pages != s.pages || f.erase != s.geom.Erase {
		return fmt.Errorf("%w: formatted as %d pages of %d bytes (erase block %d), found %d of %d (%d)",
			ErrSize, f.pages, f.page, f.erase, s.pages, s.page, s.geom.Erase)
	}
	return nil
}

func (s *Store) format(kind byte) formatRecord {
	return formatRecord{
		kind: kind, version: formatVersion, page: s.page, pages: s.pages,
		erase: s.geom.Erase, incarnation: s.inc,
	}
}

// unformatted is the error for a medium without a store.
func unformatted(rep *Report, st State) error {
	rep.State = st
	return fmt.Errorf("%w: %s", ErrUnformatted, st)
}

// blankImage says whether every byte reads as erased.
func (s *Store) blankImage(img []byte) bool {
	for ; len(img) >= len(s.blank); img = img[len(s.blank):] {
		if !bytes.Equal(img[:len(s.blank)], s.blank) {
			return false
		}
	}
	return true
}

// clearAll clears pages one by one; a page that cannot be cleared is marked
// bad and left. Only an error that concerns the whole medium ends it.
func (s *Store) clearAll(ctx context.Context, rep *Report, pages []int) error {
	for _, p := range pages {
		err := s.lay.clear(ctx, p)
		if err != nil && fatal(ctx, err) {
			return err
		}
		if err == nil {
			rep.Cleared = append(rep.Cleared, p)
		}
	}
	return nil
}

// Format makes an empty store on m, and loses what is there. Until it has
// ended, Mount says HalfFormatted. It writes every page, unless all of the
// medium is erased, and erases every block: seconds on an EEPROM.
//
// incarnation must differ from that of every store that the medium has held,
// so take a random number.
func Format(ctx context.Context, m Medium, incarnation uint32, opt Options) (*Store, error) {
	s, err := newStore(m, opt)
	if err != nil {
		return nil, fmt.Errorf("nvm: format: %w", err)
	}
	s.inc, s.seed = incarnation, dataSeed(incarnation)
	s.x.keys = make(map[string]*entry)
	if r, ok := s.lay.(*ring); ok {
		err = r.format(ctx)
	} else {
		err = s.lay.(*erasable).format(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("nvm: format: %w", err)
	}
	return s, nil
}

var errFixed = errors.New("a page at a fixed place cannot be written")
