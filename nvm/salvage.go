package nvm

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// ErrStore is returned by Salvage where the medium holds a store as it is.
var ErrStore = errors.New("medium holds a store already")

// Salvage writes the format records anew on a medium that lost them all, and
// mounts it. It is for what Inspect calls Foreign and FindLost has found a store
// in; incarnation is that store's.
//
// It returns ErrStore where Mount finds a store, ErrUnformatted where no batch
// of that incarnation is complete, the reason of Mount where the medium is blank,
// half formatted or of another version, and ErrFull where no erase block is free
// to hold a record; then nothing has been written. Cut short it can be begun
// anew.
func Salvage(ctx context.Context, m Medium, incarnation uint32, opt Options) (*Store, Report, error) {
	fail := func(rep Report, err error) (*Store, Report, error) {
		return nil, rep, fmt.Errorf("nvm: salvage: %w", err)
	}
	in, err := Inspect(ctx, m)
	switch {
	case err != nil:
		return fail(Report{}, err)
	case in.Err == nil:
		return fail(in.Report, ErrStore)
	case in.State != Foreign:
		return fail(in.Report, in.Err)
	}
	as, err := InspectAs(ctx, m, incarnation)
	if err == nil {
		err = as.Err
	}
	if err != nil {
		return fail(in.Report, err)
	}
	quiet := opt
	quiet.Suspect = false
	s, _, _, err := mountScan(ctx, m, quiet, &incarnation)
	if err == nil {
		err = s.lay.salvage(ctx)
	}
	if err != nil {
		return fail(in.Report, err)
	}
	return Mount(ctx, m, opt)
}

// salvage writes both format records: nothing else is lost.
func (r *ring) salvage(ctx context.Context) error {
	return errors.Join(r.writeFormat(ctx, formatA), r.writeFormat(ctx, formatB))
}

// salvage makes a record at the head of a block of which nothing is needed: one
// that says formed is enough. The other blocks have none, until they are erased
// in their turns.
func (e *erasable) salvage(ctx context.Context) error {
	err := error(ErrFull)
	for b := range e.blk {
		if b == e.at || e.holdsNeeded(b) {
			continue
		}
		if err = e.erase(ctx, b, true); err == nil || fatal(ctx, err) {
			return err
		}
	}
	return err
}

// FindLost looks for a store on a medium whose format records are all lost. It
// returns what InspectAs tells of the incarnation under which most pages verify,
// nil where there is none. known are incarnations to try: config blocks have
// them, and backups. Others are told from the pages themselves, by their
// checksums: two pages that agree on one do not do so by chance.
//
// The medium is read as often as there are incarnations to try, 16 at most.
func FindLost(ctx context.Context, m Medium, known ...uint32) (*Inspection, error) {
	const most = 16
	s, err := newStore(m, Options{})
	if err != nil {
		return nil, fmt.Errorf("nvm: %w", err)
	}
	img := make([]byte, s.pages*s.page)
	if err := m.ReadAt(ctx, img, 0); err != nil {
		return nil, fmt.Errorf("nvm: reading: %w", err)
	}
	tries := append(slices.Clone(known), incarnations(img, s.page)...)
	var tried []uint32
	var best *Inspection
	for _, inc := range tries {
		if slices.Contains(tried, inc) || len(tried) == most {
			continue
		}
		tried = append(tried, inc)
		in, err := InspectAs(ctx, m, inc)
		if err != nil {
			return nil, err
		}
		if in.Err == nil && (best == nil || in.Verified() > best.Verified()) {
			best = in
		}
	}
	return best, nil
}

// incarnations are those that two pages or more of an image would verify under,
// those of most pages first.
func incarnations(img []byte, page int) []uint32 {
	count := map[uint32]int{}
	var last []byte
	for ; len(img) >= page; img = img[page:] {
		p := img[:page]
		if kind := p[0]; kind != kindData && kind != kindSpare || p[5] >= p[6] {
			continue
		}
		if last != nil && string(p) == string(last) {
			continue // the same bytes say the same
		}
		last = p
		count[incarnationOf(p)]++
	}
	var out []uint32
	for inc, n := range count {
		if n > 1 {
			out = append(out, inc)
		}
	}
	slices.SortFunc(out, func(a, b uint32) int { return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b)) })
	return out
}

// incarnationOf is the incarnation under which a page verifies: there is exactly
// one. A CRC can be run backwards, from what it came to and the bytes that it
// was taken over to what it began with.
func incarnationOf(page []byte) uint32 {
	at := len(page) - crcLen
	crc := ^binary.LittleEndian.Uint32(page[at:])
	for _, b := range slices.Backward(page[:at]) {
		crc = crcBack(crc, b)
	}
	// crc is the state that dataSeed ends in. Going on with four bytes from a
	// state is going on with four zeros from the state xor the bytes.
	for range 4 {
		crc = crcBack(crc, 0)
	}
	return crc ^ ^uint32(crcSeed)
}

// crcBack is the state before b was taken into a CRC-32C that stands at crc.
func crcBack(crc uint32, b byte) uint32 {
	i := crcIndex[crc>>24]
	return (crc^castagnoli[i])<<8 | uint32(i^b)
}

// crcIndex tells which entry of the table has a top byte: no two have the same.
var crcIndex = func() (index [256]byte) {
	for i, v := range castagnoli {
		index[v>>24] = byte(i)
	}
	return index
}()
