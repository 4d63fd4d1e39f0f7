package nvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	// Lost are those of Damaged that were not torn in a write of which nobody
	// had been told yet that it is done: records may be missing that were
	// acknowledged.
	Lost []int
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
	Foreign                    // something that is no store, or a store whose format records are all lost (FindLost)
	HalfFormatted              // a Format that did not come to its end; no store in use ever reads so
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
	s, rep, _, err := mountScan(ctx, m, opt, nil)
	if err != nil {
		return nil, rep, err
	}
	return s, rep, nil
}

// mountScan is mount that also tells what was read. as, if not nil, is the
// incarnation to go by, whatever the format records say.
func mountScan(ctx context.Context, m Medium, opt Options, as *uint32) (*Store, Report, *scan, error) {
	s, err := newStore(m, opt)
	if err != nil {
		return nil, Report{}, nil, err
	}
	rep := Report{PageSize: s.page, Pages: s.pages}
	sc := &scan{img: make([]byte, s.pages*s.page), info: make([]pageInfo, s.pages), as: as}
	if err := s.m.ReadAt(ctx, sc.img, 0); err != nil {
		return nil, rep, nil, fmt.Errorf("reading: %w", err)
	}
	if err := s.lay.mount(ctx, sc, &rep); err != nil {
		return s, rep, sc, err
	}
	rep.State, rep.Incarnation, rep.Sequence = Formatted, s.inc, s.stats.Sequence
	return s, rep, sc, nil
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

// blankBut is blankImage, leaving out n bytes at off.
func (s *Store) blankBut(img []byte, off, n int) bool {
	return s.blankImage(img[:off]) && s.blankImage(img[off+n:])
}

// halfFormatted says what a medium is that has no "formed" record, going by its
// "forming" ones. It is half formatted, and what was there given up for good by
// whoever began to format it, if all of these hold:
//
//   - such a record verifies, and is of this version and for this medium. A store
//     in use has none: Format replaces each by a "formed" one before it ends, and
//     a flipped bit does not turn one into the other (see the kinds).
//   - No page of a batch after the first carries its incarnation. Format writes
//     the first, without a record in it, before the store is formed, and nobody
//     else writes before. So where a "forming" record was left over in a real
//     store (a page that can not be written any more, a head of a block that was
//     not erased yet), and later all "formed" ones are lost, what was written
//     since speaks for the store: it is Foreign, and can be salvaged, but is not
//     formatted over.
func (sc *scan) halfFormatted(s *Store, forming []formatRecord, rep *Report) error {
	const most = 8 // a format that was cut short and begun anew has another incarnation each time
	seen := map[uint32]bool{}
	for _, f := range forming {
		if err := s.checkFormat(f); err != nil {
			rep.State = HalfFormatted
			return err
		}
		rep.Incarnation = f.incarnation
		if seen[f.incarnation] {
			continue
		}
		if seen[f.incarnation] = true; len(seen) > most {
			return unformatted(rep, Foreign)
		}
		if sc.wasUsed(s, f.incarnation) {
			return unformatted(rep, Foreign)
		}
	}
	return unformatted(rep, HalfFormatted)
}

// wasUsed tells whether a store of that incarnation has had a batch after its
// first, which Format writes and which has no record.
func (sc *scan) wasUsed(s *Store, incarnation uint32) bool {
	seed := dataSeed(incarnation)
	for i := range sc.info {
		if h, ok := decodePage(sc.page(s, i), seed); ok && h.seq > 1 {
			return true
		}
	}
	return false
}

// begun tells whether Format has nothing to give up on a medium: it is blank, or
// a format was begun already, or ended and nothing was written since.
func (s *Store) begun(img []byte) (bool, error) {
	probe, err := newStore(s.m, s.opt)
	if err != nil {
		return false, err
	}
	var rep Report
	sc := &scan{img: img, info: make([]pageInfo, s.pages)}
	if err := probe.lay.findFormat(sc, &rep); err == nil {
		return !sc.wasUsed(s, probe.inc), nil
	} else if !errors.Is(err, ErrUnformatted) {
		return false, nil
	}
	return rep.State == Blank || rep.State == HalfFormatted, nil
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
	if err := s.lay.format(ctx); err != nil {
		return nil, fmt.Errorf("nvm: format: %w", err)
	}
	return s, nil
}

var errFixed = errors.New("a page at a fixed place cannot be written")
