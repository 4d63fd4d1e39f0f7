package nvm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
)

// Inspection is what a medium holds, page by page. It is found by reads alone.
type Inspection struct {
	// Report is what Mount would say of the medium, without a recovery. Where
	// Err is set only State, PageSize and Pages mean anything, and Incarnation
	// where a format record was found.
	Report
	// Err is why Mount would refuse the medium: ErrUnformatted, ErrVersion or
	// ErrSize. nil = it would mount.
	Err error
	// Detail has an element for each of the medium's logical pages.
	Detail []Page
	// Batches are those that are complete, by sequence number. A batch of which
	// another copy is on a spare page is in it once.
	Batches []Batch
	// Live is the newest record of every key, by key; no deletions.
	Live []Live
	// Room is how many bytes of records a batch may have; see Size.
	Room int
}

// Size is how many of Inspection.Room's bytes a record takes.
func (r Record) Size() int { return encodedLen([]Record{r}) }

// Page is a logical page of a medium.
type Page struct {
	State PageState
	Fixed bool // at a place where no records are: of format records and copies
	// Of data, stale, incomplete and spare pages:
	Sequence    uint32
	Part, Parts int // from 0
	Next        int // page that the next write goes to; -1 = none
}

// PageState is what a page is to the store.
type PageState uint8

// What a page can be.
const (
	PageBlank      PageState = iota // erased
	PageVoid                        // cleared, where a page can not be overwritten
	PageFormat                      // a format record
	PageData                        // of a batch of which something is needed
	PageStale                       // of a batch of which nothing is needed any more
	PageIncomplete                  // of a batch that was never acknowledged
	PageSpare                       // a copy, for recovery
	PageDamaged                     // neither the store's nor erased
)

// String is the state in a word.
func (s PageState) String() string {
	return [...]string{"blank", "void", "format", "data", "stale", "incomplete", "spare", "damaged"}[s]
}

// Batch is a complete batch as it is on the medium.
type Batch struct {
	Sequence uint32
	Pages    []int
	Records  []Record // a nil Value is a deletion
}

// Live is the newest record of a key.
type Live struct {
	Record
	Sequence uint32
}

// Get returns the newest value of key.
func (in *Inspection) Get(key string) ([]byte, bool) {
	i := sort.Search(len(in.Live), func(i int) bool { return in.Live[i].Key >= key })
	if i == len(in.Live) || in.Live[i].Key != key {
		return nil, false
	}
	return in.Live[i].Value, true
}

// Verified is how many pages carry the store's checksum: none, where the
// incarnation is not that of the medium's pages.
func (in *Inspection) Verified() int {
	n := 0
	for _, p := range in.Detail {
		switch p.State {
		case PageData, PageStale, PageIncomplete, PageSpare:
			n++
		}
	}
	return n
}

// Inspect reads what m holds. It never writes, whatever it finds, and it ends
// after one pass; a page that does not verify is read twice. The error is that
// of a medium that can not be read, or is too small to ever hold a store
// (ErrSize, and then Inspection is nil); what is wrong with its content is in
// Inspection.Err.
//
// The medium must not be written meanwhile: for one that a Store has open see
// Store.Inspect.
func Inspect(ctx context.Context, m Medium) (*Inspection, error) {
	return inspect(ctx, m, nil)
}

// InspectAs is Inspect as if a format record of this incarnation were there:
// it tells what Salvage would find. Err is nil if at least one batch is
// complete, else ErrUnformatted.
func InspectAs(ctx context.Context, m Medium, incarnation uint32) (*Inspection, error) {
	return inspect(ctx, m, &incarnation)
}

func inspect(ctx context.Context, m Medium, as *uint32) (*Inspection, error) {
	s, rep, sc, err := mountScan(ctx, readOnly{m}, Options{}, as)
	if sc == nil {
		return nil, fmt.Errorf("nvm: inspect: %w", err)
	}
	in := &Inspection{Report: rep, Err: err, Detail: make([]Page, len(sc.info)), Room: s.lay.maxParts() * (s.page - overhead)}
	for i := range in.Detail {
		in.Detail[i].Fixed = i < s.first || s.geom.Erase > 0 && i*s.page%s.geom.Erase == 0
	}
	if err != nil {
		if !errors.Is(err, ErrUnformatted) && !errors.Is(err, ErrVersion) && !errors.Is(err, ErrSize) {
			return nil, fmt.Errorf("nvm: inspect: %w", err)
		}
		for i := range in.Detail {
			in.Detail[i].State = PageDamaged
			if bytes.Equal(sc.page(s, i), s.blank) {
				in.Detail[i].State = PageBlank
			} else if _, ok := decodeFormat(sc.page(s, i)); ok {
				in.Detail[i].State = PageFormat
			}
		}
		return in, nil
	}
	sc.describe(s, in)
	if as != nil && len(in.Batches) == 0 {
		in.Err = unformatted(&in.Report, Foreign)
	}
	return in, nil
}

// readOnly makes sure of what Inspect promises.
type readOnly struct{ m Medium }

var errReadOnly = errors.New("inspection does not write")

func (r readOnly) Geometry() Geometry { return r.m.Geometry() }
func (r readOnly) ReadAt(ctx context.Context, p []byte, off int64) error {
	return r.m.ReadAt(ctx, p, off)
}
func (r readOnly) Program(context.Context, []byte, int64) error { return errReadOnly }
func (r readOnly) Settle(ctx context.Context) error             { return r.m.Settle(ctx) }
func (r readOnly) Erase(context.Context, int64) error           { return errReadOnly }

// describe tells what a scan has found, from the index that was made of it.
func (sc *scan) describe(s *Store, in *Inspection) {
	for i := range sc.info {
		p := &in.Detail[i]
		f := &sc.info[i]
		switch f.state {
		case pageErased:
			p.State = PageBlank
		case pageVoid:
			p.State = PageVoid
		case pageFormat:
			p.State = PageFormat
		case pageBad:
			p.State = PageDamaged
		case pageValid:
			p.Sequence, p.Part, p.Parts, p.Next = f.seq, int(f.part), int(f.parts), int(f.next)
			if f.next == noPage {
				p.Next = -1
			}
			switch b := s.x.at[i]; {
			case f.kind == kindSpare:
				p.State = PageSpare
			case b != nil && b.live > 0:
				p.State = PageData
			case f.seq > in.Sequence:
				p.State = PageIncomplete
			default:
				p.State = PageStale
			}
		}
	}
	for _, f := range sc.batches {
		if f.skip {
			continue
		}
		b := Batch{Sequence: f.seq}
		for _, p := range sc.pagesOf(f) {
			b.Pages = append(b.Pages, int(p))
		}
		body := sc.body(s, f)
		for off := 0; ; {
			r, more, err := nextRecord(body, off)
			if err != nil || !more {
				break
			}
			rec := Record{Key: string(body[r.key:r.value])}
			if !r.deleted {
				rec.Value = append([]byte{}, body[r.value:r.end]...)
			}
			b.Records = append(b.Records, rec)
			off = r.end
		}
		in.Batches = append(in.Batches, b)
	}
	slices.SortStableFunc(in.Batches, func(a, b Batch) int { return cmp.Compare(a.Sequence, b.Sequence) })
	for k, e := range s.x.keys {
		if e.state == entryLive {
			in.Live = append(in.Live, Live{Record{k, append([]byte{}, e.val...)}, e.at.seq})
		}
	}
	sort.Slice(in.Live, func(i, j int) bool { return in.Live[i].Key < in.Live[j].Key })
}

// Place is where on a medium a format record says that a store is.
type Place struct {
	Offset, Size int64
	Version      int
	Incarnation  uint32
	Formed       bool // false: its format did not come to an end
}

// Locate looks for format records in the content of a medium that is
// overwritten in place, page by page: for a store that begins somewhere behind
// the start of a chip. One of a store's two records is enough.
func Locate(img []byte, g Geometry) []Place {
	if g.Page <= 0 {
		return nil
	}
	page := max(minPage, g.Page)
	var out []Place
	for at := 0; at+page <= len(img); at += g.Page {
		f, ok := decodeFormat(img[at : at+page])
		if !ok || f.kind == kindSector || f.page != page {
			continue
		}
		p := Place{int64(at), int64(f.pages) * int64(page), int(f.version), f.incarnation, f.kind == kindFormed}
		switch n := len(out); {
		case n > 0 && p.Offset < out[n-1].Offset+out[n-1].Size:
			continue // the second of a pair, or within the store
		case isSecond(img, at, page, dataSeed(f.incarnation)):
			p.Offset -= int64(page)
		}
		if p.Offset >= 0 && p.Offset+p.Size <= int64(len(img)) {
			out = append(out, p)
		}
	}
	return out
}

// LocateErasable looks for the format record of an erase block in the content of
// a flash, and tells the geometry that it says; Size is the store's. Blocks begin
// at multiples of 4 KiB. One record is enough.
func LocateErasable(img []byte) (g Geometry, ok bool) {
	const least = 4 << 10
	for at := 0; at < len(img); at += least {
		for page := minPage; page <= maxPage && at+page <= len(img); page *= 2 {
			f, ok := decodeFormat(img[at : at+page])
			if !ok || f.kind != kindSector || f.page != page || f.erase < least || at%f.erase != 0 || f.erase%page != 0 {
				continue
			}
			return Geometry{
				Size: int64(f.pages) * int64(page), Page: page, Erase: f.erase, Erased: 0xff,
				WriteMax: norWriteMax, EraseMax: norEraseMax(f.erase),
			}, true
		}
	}
	return Geometry{}, false
}

// isSecond tells whether the format record at an offset is the second of a pair
// of which the first is lost. Behind the second there are two spare pages and
// then the ring; behind the first there is a record, good or bad, before those.
func isSecond(img []byte, at, page int, seed uint32) bool {
	behind := func(n int) []byte {
		if from := at + n*page; from+page <= len(img) {
			return img[from : from+page]
		}
		return nil
	}
	if p := behind(1); p == nil {
		return false
	} else if _, ok := decodeFormat(p); ok {
		return false
	} else if h, ok := decodePage(p, seed); ok && h.kind == kindSpare || allErased(p) {
		return true
	}
	p := behind(3)
	h, ok := pageHead{}, false
	if p != nil {
		h, ok = decodePage(p, seed)
	}
	return ok && h.kind == kindData
}

func allErased(p []byte) bool {
	return !slices.ContainsFunc(p, func(b byte) bool { return b != 0xff })
}
