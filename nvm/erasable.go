package nvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
)

// erasable is the layout of a medium with erase blocks (NOR flash). The blocks
// are filled in turn, page by page, and erased in the same order once what is
// needed of them has been written anew: so all wear alike.
//
// The first page of a block is a format record, written when the block has
// been proven erased and voided before it is erased again: a block whose
// erasing was cut short is never taken for an erased one.
//
// The next page is the one after the last that is not erased. That is also
// where a write may have been cut short; see recover.
type erasable struct {
	s   *Store
	er  Eraser
	per int // pages of a block, its format record included
	blk []block

	at   int // the block being filled; -1: none yet
	fill int // its next page; per = it is full
	turn uint32

	tail     []byte
	tailPage int // -1: no batch yet
	buf      []byte
	void     []byte // a page with every bit programmed
}

type block struct {
	state  blockState
	used   int // pages that cannot be written any more, from its start
	erases uint32
	turn   uint32 // order in which the blocks were erased; 0: not known
}

type blockState uint8

const (
	blockUsed  blockState = iota // holds or held batches
	blockReady                   // erased, and says so
	blockDirty                   // its format record is void: to be erased
	blockBad
)

// reserve is how many pages only housekeeping may use: what a block holds at
// most, so that it can be erased, and some for recoveries. Of those, each uses
// up to three, and one that is cut short cannot make room again.
func (e *erasable) reserve() int {
	return e.per - 1 + e.maxParts() + max(e.per, min(64, len(e.blk)*e.per/8))
}

func newErasable(s *Store) (*erasable, error) {
	er, ok := s.m.(Eraser)
	if !ok {
		return nil, fmt.Errorf("%w: erase blocks of %d bytes, but it cannot erase", ErrSize, s.geom.Erase)
	}
	if s.geom.Erase%s.page != 0 || s.geom.Erase/s.page < 4 {
		return nil, fmt.Errorf("%w: erase blocks of %d bytes with pages of %d", ErrSize, s.geom.Erase, s.page)
	}
	per := s.geom.Erase / s.page
	n := s.pages / per
	if n < 6 {
		return nil, fmt.Errorf("%w: %d erase blocks, at least 6 wanted", ErrSize, n)
	}
	s.pages = n * per
	e := &erasable{s: s, er: er, per: per, blk: make([]block, n), at: -1, fill: per, tailPage: -1}
	e.buf = make([]byte, s.page)
	e.void = bytes.Repeat([]byte{^s.geom.Erased}, s.page)
	return e, nil
}

func (e *erasable) maxParts() int { return max(1, min(maxParts, (e.per-1)/2)) }

// after is the block that follows b in turn, bad ones left out, or -1.
func (e *erasable) after(b int) int {
	for range len(e.blk) {
		if b++; b >= len(e.blk) {
			b = 0
		}
		if e.blk[b].state != blockBad {
			return b
		}
	}
	return -1
}

// erased is how many pages can be written before a block must be erased.
func (e *erasable) erased() int {
	n := e.per - e.fill
	for b := e.after(e.at); b >= 0 && b != e.at && e.blk[b].state == blockReady; b = e.after(b) {
		n += e.per - e.blk[b].used
		if e.at < 0 && b == e.last(e.at) {
			break
		}
	}
	return n
}

// last is the block before b in turn.
func (e *erasable) last(b int) int {
	if b < 0 {
		b = 0
	}
	for range len(e.blk) {
		if b--; b < 0 {
			b = len(e.blk) - 1
		}
		if e.blk[b].state != blockBad {
			return b
		}
	}
	return -1
}

func (e *erasable) room() int { return max(0, e.erased()-e.reserve()) }

func (e *erasable) prepare(context.Context) error { return nil }

// open makes sure that fill is a page to write, if there is one.
func (e *erasable) open() bool {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	for e.fill >= e.per {
		b := e.after(e.at)
		if b < 0 || e.blk[b].state != blockReady {
			return false
		}
		e.blk[b].state = blockUsed
		e.at, e.fill = b, e.blk[b].used
	}
	return true
}

func (e *erasable) target() (int, uint16, error) {
	if !e.open() {
		return 0, 0, ErrFull
	}
	return e.at*e.per + e.fill, noPage, nil
}

func (e *erasable) advance() {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	e.fill++
	e.blk[e.at].used = e.fill
}

func (e *erasable) wrote(int) { e.advance() }

func (e *erasable) commit(b *batch, img []byte) {
	e.tail = append(e.tail[:0], img...)
	e.tailPage = int(b.pages[len(b.pages)-1])
}

func (e *erasable) failed(ctx context.Context, page int) error {
	e.s.markBad(page)
	err := e.clear(ctx, page)
	e.advance()
	if err != nil && fatal(ctx, err) {
		return err
	}
	return nil
}

// abandon voids the page that was handed over, if it is not as it was: only an
// erased page can be written.
func (e *erasable) abandon(ctx context.Context, page int) error {
	if page < 0 {
		return nil
	}
	err := e.s.verify(ctx, page, e.s.blank)
	if err == nil {
		return nil
	}
	e.advance()
	if errors.Is(err, ErrReadBack) {
		err = e.clear(ctx, page)
	}
	if err != nil && fatal(ctx, err) {
		return err
	}
	return nil
}

// clear programs every bit of a page.
func (e *erasable) clear(ctx context.Context, page int) error {
	if err := e.s.set(ctx, page, e.void); err != nil {
		if !fatal(ctx, err) {
			e.s.markBad(page)
		}
		return err
	}
	e.s.mu.Lock()
	e.s.x.overwritten(page)
	e.s.mu.Unlock()
	return nil
}

func (e *erasable) hottest() uint64 {
	var m uint32
	for _, b := range e.blk {
		m = max(m, b.erases)
	}
	return uint64(m)
}

// erase erases a block of which nothing is needed and writes its format
// record. A block that cannot be erased is bad from then on.
func (e *erasable) erase(ctx context.Context, b int, formed bool) error {
	bad := func(err error) error {
		if !fatal(ctx, err) {
			e.setBlock(b, blockBad, e.per)
		}
		return fmt.Errorf("erasing the block at %#x: %w", b*e.s.geom.Erase, err)
	}
	if err := e.voidRecord(ctx, b); err != nil {
		return bad(err)
	}
	e.setBlock(b, blockDirty, e.per)
	if err := e.eraseOnly(ctx, b); err != nil {
		return bad(err)
	}
	if err := e.writeRecord(ctx, b, formed); err != nil {
		return bad(err)
	}
	return nil
}

func (e *erasable) setBlock(b int, st blockState, used int) {
	if st == blockBad {
		for p := b * e.per; p < (b+1)*e.per; p++ {
			e.s.markBad(p)
		}
	}
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	e.blk[b].state, e.blk[b].used = st, used
}

// voidRecord makes sure that a block's format record does not verify.
func (e *erasable) voidRecord(ctx context.Context, b int) error {
	first := b * e.per
	if err := e.s.verify(ctx, first, e.s.blank); err == nil || !errors.Is(err, ErrReadBack) {
		return err
	}
	if e.s.isVoid(e.s.back) {
		return nil
	}
	return e.s.set(ctx, first, e.void)
}

func (e *erasable) eraseOnly(ctx context.Context, b int) error {
	s := e.s
	if s.opt.Gate != nil {
		if err := s.opt.Gate(ctx); err != nil {
			return fmt.Errorf("%w: %w", errGate, err)
		}
	}
	off := int64(b) * int64(s.geom.Erase)
	s.mu.Lock()
	s.stats.Erases++
	s.mu.Unlock()
	if err := e.er.Erase(ctx, off); err != nil {
		return err
	}
	if err := e.er.Settle(ctx); err != nil {
		return err
	}
	img := make([]byte, s.geom.Erase)
	if err := s.m.ReadAt(ctx, img, off); err != nil {
		return err
	}
	if !s.blankImage(img) {
		return fmt.Errorf("block is not erased: %w", ErrReadBack)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.blk[b].erases < math.MaxUint32 {
		e.blk[b].erases++
	}
	for p := b * e.per; p < (b+1)*e.per; p++ {
		s.x.overwritten(p)
		if s.bad[p] {
			s.bad[p] = false
			s.nbad--
		}
	}
	return nil
}

func (e *erasable) writeRecord(ctx context.Context, b int, formed bool) error {
	f := e.s.format(kindSector)
	f.formed = formed
	f.erases = e.blk[b].erases
	e.turn++
	f.turn = e.turn
	encodeFormat(e.buf, f)
	if err := e.s.set(ctx, b*e.per, e.buf); err != nil {
		return err
	}
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	e.blk[b] = block{state: blockReady, used: 1, erases: f.erases, turn: f.turn}
	return nil
}

// formatFirst is the block that Format begins with on a new medium; the next one
// is its second try.
const formatFirst = 1

// format voids every format record, so that nothing of an older store is
// mounted any more, then erases all blocks. The last two get a record that
// says that Format has ended: two, so that a bit flip cannot undo it.
//
// It begins with one block, whose record is the witness that formatting is under
// way while all others are erased. Cut short and begun anew, again and again, it
// makes another witness before it touches those that are there: in a block that
// has none, because a record that reads well may be torn. Before the first
// witness a new medium has nothing written outside formatFirst and the next; one
// that held an older store is that store until its last "formed" record is
// voided, and then, for the time of one erasing, Foreign.
func (e *erasable) format(ctx context.Context) error {
	s := e.s
	img := make([]byte, s.pages*s.page)
	if err := s.m.ReadAt(ctx, img, 0); err != nil {
		return err
	}
	var heads []int // blocks with a record, those first that do not say formed
	has, formed := make([]bool, len(e.blk)), make([]bool, len(e.blk))
	for b := range e.blk {
		f, ok := decodeFormat(img[b*s.geom.Erase : b*s.geom.Erase+s.page])
		if has[b] = ok && f.kind == kindSector; !has[b] {
			continue
		}
		if f.version == formatVersion {
			e.blk[b].erases = f.erases
		}
		if formed[b] = f.formed; f.formed {
			heads = append(heads, b)
		} else {
			heads = append([]int{b}, heads...)
		}
	}
	begun, err := s.begun(img)
	if err != nil {
		return err
	}
	for _, b := range heads {
		// Of a store that was never used those that do not say formed stay: they
		// tell what is under way.
		if begun && !formed[b] {
			continue
		}
		if err := e.voidRecord(ctx, b); err != nil {
			return fmt.Errorf("format record of block %d: %w", b, err)
		}
		has[b] = false
	}
	var tries []int // where the witness may go, best first
	for i := range e.blk {
		if b := (formatFirst + i) % len(e.blk); !has[b] {
			tries = append(tries, b)
		}
	}
	if len(tries) == 0 {
		tries = heads // all say what is under way: while one is made anew the others do
	}
	witness, err := e.beginFormat(ctx, tries)
	if err != nil {
		return err
	}
	// Blocks of a new chip are taken as they are. Where a witness stood before,
	// one that reads as erased may have been begun.
	blank := len(heads) == 0 && s.blankBut(img, formatFirst*s.geom.Erase, 2*s.geom.Erase)
	return e.formatRest(ctx, witness, blank)
}

// beginFormat makes the witness in the first block that takes it. The block is
// erased in any case: what reads as erased may be what a format before has torn.
func (e *erasable) beginFormat(ctx context.Context, tries []int) (int, error) {
	for _, b := range tries {
		err := e.eraseOnly(ctx, b)
		if err == nil {
			err = e.head(ctx, b, false)
		}
		if err == nil {
			return b, nil
		}
		if fatal(ctx, err) {
			return -1, err
		}
		e.setBlock(b, blockBad, e.per)
	}
	return -1, fmt.Errorf("no good erase block: %w", ErrSize)
}

// head writes the record of a block that Format has erased. Blocks have their
// turns in the order in which they will be filled, whatever the order here.
func (e *erasable) head(ctx context.Context, b int, formed bool) error {
	e.turn = uint32(b)
	err := e.writeRecord(ctx, b, formed)
	e.turn = uint32(len(e.blk))
	return err
}

// formatRest makes all blocks but the witness, those that say formed last.
func (e *erasable) formatRest(ctx context.Context, witness int, blank bool) error {
	var good []int
	for b := range e.blk {
		if b == witness || e.blk[b].state == blockBad {
			continue
		}
		// Where the witness may go, what reads as erased may be torn.
		if !blank || b == formatFirst || b == formatFirst+1 {
			if err := e.eraseOnly(ctx, b); err != nil {
				if fatal(ctx, err) {
					return err
				}
				e.setBlock(b, blockBad, e.per)
				continue
			}
		}
		good = append(good, b)
	}
	left := 1 + len(good)
	for i, b := range good {
		formed := i >= len(good)-2
		if err := e.head(ctx, b, formed); err != nil {
			if fatal(ctx, err) || formed {
				return err
			}
			e.setBlock(b, blockBad, e.per)
			left--
		}
	}
	if left < 6 {
		return fmt.Errorf("%d good erase blocks, at least 6 wanted: %w", left, ErrSize)
	}
	// A first batch, without a record, so that there always is a page written
	// last.
	w, err := e.s.start(ctx, 0, nil, false)
	if err != nil {
		return err
	}
	return e.s.finish(ctx, w)
}

// oldest is the block to be erased next, or -1.
func (e *erasable) oldest() int {
	for b := e.after(e.at); b >= 0 && b != e.at; b = e.after(b) {
		if e.blk[b].state != blockReady {
			return b
		}
		if e.at < 0 && b == e.last(e.at) {
			break
		}
	}
	return -1
}

// holdsNeeded says whether a block must not be erased: something on it is
// needed, or it has the page written last, from which Mount finds the next.
func (e *erasable) holdsNeeded(b int) bool {
	if e.tailPage >= 0 && e.tailPage/e.per == b {
		return true
	}
	e.s.mu.RLock()
	defer e.s.mu.RUnlock()
	for p := b * e.per; p < (b+1)*e.per; p++ {
		if !e.s.x.free(p) {
			return true
		}
	}
	return false
}
