package nvm

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
)

// scan is a medium's content, judged page by page.
type scan struct {
	img  []byte
	info []pageInfo
	data int     // data pages that verify
	as   *uint32 // the incarnation to go by; nil = the format records'

	batches []found
	pages   []int32          // of all batches
	long    map[int32][]byte // bodies of batches of several pages, by found.from
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
	skip     bool  // its records do not count
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
		sc.batches = append(sc.batches, found{seq: in.seq, from: int32(len(sc.pages) - 1), to: int32(len(sc.pages))})
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
			sc.batches = append(sc.batches, found{seq: h.seq, from: int32(start), to: int32(len(sc.pages))})
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
	total := 0
	// The keys of all records, so that one string backs them all.
	keys := make([]byte, 0, 16*len(sc.batches))
	for n := range sc.batches {
		f := &sc.batches[n]
		if *f != keep && slices.ContainsFunc(sc.pagesOf(*f), func(p int32) bool { return sc.info[p].unused }) {
			f.skip = true
			continue
		}
		b := sc.body(s, *f)
		had := len(keys)
		for off := 0; ; total++ {
			r, more, err := nextRecord(b, off)
			if err != nil {
				// The CRC is right and the content is not: nothing wrote that.
				for _, p := range sc.pagesOf(*f) {
					sc.info[p].state = pageBad
				}
				f.skip = true
				keys = keys[:had]
			}
			if err != nil || !more {
				break
			}
			keys = append(keys, b[r.key:r.value]...)
			off = r.end
		}
	}
	text := string(keys)
	retain := len(sc.img) <= retainImage
	s.x.keys = make(map[string]*entry, total)
	batches := make([]batch, len(sc.batches))
	entries := make([]entry, 0, total)
	recs := make([]*entry, 0, total)
	for n, f := range sc.batches {
		if f.skip {
			continue
		}
		pages := sc.pagesOf(f)
		bt := &batches[n]
		bt.seq, bt.pages = f.seq, pages[:len(pages):len(pages)]
		for _, p := range pages {
			s.x.at[p] = bt
		}
		if f == keep {
			kept = bt
		}
		b := sc.body(s, f)
		bt.recs = recs[len(recs):]
		for off := 0; ; {
			r, more, _ := nextRecord(b, off)
			if !more {
				break
			}
			off = r.end
			key := text[:r.value-r.key]
			text = text[len(key):]
			e := s.x.keys[key]
			if e == nil {
				entries = append(entries, entry{key: key})
				e = &entries[len(entries)-1]
				s.x.keys[key] = e
			}
			val := b[r.value:r.end:r.end]
			if !retain {
				val = bytes.Clone(val)
			}
			s.x.add(bt, e, val, r.deleted)
		}
		recs = recs[:len(recs)+len(bt.recs)]
		bt.recs = bt.recs[:len(bt.recs):len(bt.recs)]
	}
	for i := range sc.info {
		if sc.info[i].state == pageBad {
			rep.Damaged = append(rep.Damaged, i)
		}
	}
	return kept
}

// body is a batch's records: in place if it has one page.
func (sc *scan) body(s *Store, f found) []byte {
	pages := sc.pagesOf(f)
	if len(pages) == 1 {
		return pagePayload(sc.page(s, int(pages[0])))
	}
	if sc.long == nil {
		sc.long = map[int32][]byte{}
	}
	b := sc.long[f.from]
	if b == nil {
		for _, p := range pages {
			b = append(b, pagePayload(sc.page(s, int(p)))...)
		}
		sc.long[f.from] = b
	}
	return b
}
