package nvm

import (
	"bytes"
	"cmp"
	"context"
	"slices"
)

// mount finds the store, the block being filled, and recovers if asked to.
func (e *erasable) mount(ctx context.Context, sc *scan, rep *Report) error {
	s := e.s
	if err := e.findFormat(sc, rep); err != nil {
		return err
	}
	for b := range e.blk {
		if err := sc.judge(ctx, s, b*e.per+1, (b+1)*e.per); err != nil {
			return err
		}
		for p := b*e.per + 1; p < (b+1)*e.per; p++ {
			if in := &sc.info[p]; in.state == pageValid && in.kind != kindData {
				in.state = pageBad
			}
		}
	}
	sc.gather(0, s.pages)
	newest, _ := sc.newest()
	e.judgeBlocks(sc)
	lastAt := -1 // the page written last
	for p := range sc.info {
		in := &sc.info[p]
		if in.state != pageValid {
			continue
		}
		if in.seq > newest.seq {
			rep.Incomplete++
		}
		if lastAt < 0 || in.seq > sc.info[lastAt].seq ||
			in.seq == sc.info[lastAt].seq && (in.part > sc.info[lastAt].part || in.part == sc.info[lastAt].part && e.later(lastAt, p)) {
			lastAt = p
		}
		s.seq = max(s.seq, in.seq)
	}
	kept := sc.load(s, newest, rep)
	s.stats.Sequence = newest.seq
	if newest.seq != 0 {
		e.tailPage = sc.last(newest)
		e.tail = bytes.Clone(sc.page(s, e.tailPage))
	}
	e.findFill(sc, lastAt)
	torn := e.passed(sc, newest)
	for _, p := range rep.Damaged {
		if p%e.per != 0 && !slices.Contains(torn, p) {
			rep.Lost = append(rep.Lost, p)
		}
	}
	if s.opt.Suspect {
		return e.recover(ctx, sc, newest, kept, rep)
	}
	s.damaged = slices.Clone(rep.Damaged)
	return nil
}

// later says whether page q comes after p in the order of filling, for two
// pages of which it is known that they were written shortly one after the
// other.
func (e *erasable) later(p, q int) bool {
	if p/e.per == q/e.per {
		return q > p
	}
	return e.after(p/e.per) == q/e.per
}

// findFormat takes the incarnation from the blocks' records.
func (e *erasable) findFormat(sc *scan, rep *Report) error {
	s := e.s
	var use formatRecord
	var forming []formatRecord
	recs := make([]formatRecord, len(e.blk))
	for b := range e.blk {
		f, ok := decodeFormat(sc.page(s, b*e.per))
		if !ok || f.kind != kindSector {
			continue
		}
		recs[b] = f
		if f.formed && use.kind == 0 {
			use = f
		}
		if !f.formed {
			forming = append(forming, f)
		}
	}
	if sc.as != nil {
		use = s.format(kindSector)
		use.incarnation = *sc.as
	}
	if use.kind == 0 {
		switch {
		case len(forming) > 0:
			return sc.halfFormatted(s, forming, rep)
		case s.blankImage(sc.img):
			return unformatted(rep, Blank)
		case s.blankBut(sc.img, formatFirst*s.geom.Erase, 2*s.geom.Erase):
			// As on the ring: the first steps of a first format were cut short.
			return unformatted(rep, HalfFormatted)
		}
		return unformatted(rep, Foreign)
	}
	if err := s.checkFormat(use); err != nil {
		rep.State, rep.Incarnation = Formatted, use.incarnation
		return err
	}
	s.adopt(use)
	for b := range e.blk {
		in := &sc.info[b*e.per]
		if f := recs[b]; f.kind != 0 && f.incarnation == s.inc && f.version == formatVersion {
			in.state = pageFormat
			e.blk[b].erases, e.blk[b].turn = f.erases, f.turn
			e.turn = max(e.turn, f.turn)
			continue
		}
		e.blk[b].state = blockDirty
		switch p := sc.page(s, b*e.per); {
		case bytes.Equal(p, s.blank):
			in.state = pageErased
		case s.isVoid(p):
			in.state = pageVoid
		default:
			in.state = pageBad
		}
	}
	return nil
}

// judgeBlocks decides which blocks are ready, and how far each is written.
func (e *erasable) judgeBlocks(sc *scan) {
	for b := range e.blk {
		k := &e.blk[b]
		data := false
		k.used = 1
		for i := 1; i < e.per; i++ {
			switch sc.info[b*e.per+i].state {
			case pageErased:
				continue
			case pageValid:
				data = true
			}
			k.used = i + 1
		}
		switch {
		case data && k.state != blockDirty:
			k.state = blockUsed
		case !data && k.state != blockDirty && k.used < e.per:
			k.state = blockReady
		case k.state != blockDirty:
			k.state = blockUsed // full of pages that were cleared
		}
	}
}

// findFill finds the page after the last one that is not erased. That is not
// always the one after the page written last: recoveries that were cut short
// have written behind it, into blocks that were erased after its own.
func (e *erasable) findFill(sc *scan, lastAt int) {
	turn := uint32(0)
	if lastAt < 0 {
		e.at, e.fill = -1, e.per
	} else {
		e.at = lastAt / e.per
		e.fill = e.blk[e.at].used
		turn = e.blk[e.at].turn
	}
	b := e.at
	for range e.blk {
		b = e.after(b)
		k := &e.blk[b]
		later := k.state == blockReady || k.state == blockUsed && (k.used < e.per || turn != 0 && k.turn > turn)
		if lastAt >= 0 && turn == 0 && k.state == blockUsed && !e.hasOlder(sc, b, sc.info[lastAt].seq) {
			later = true // the record with the turn is lost, but nothing here is of an earlier one
		}
		if b == e.at || !later || k.used == 1 {
			break
		}
		k.state = blockUsed
		e.at, e.fill = b, k.used
	}
}

// hasOlder says whether a block has a page of a batch before seq.
func (e *erasable) hasOlder(sc *scan, b int, seq uint32) bool {
	for p := b*e.per + 1; p < (b+1)*e.per; p++ {
		if in := &sc.info[p]; in.state == pageValid && in.seq < seq {
			return true
		}
	}
	return false
}

// recover makes what Mount has read last. A page in which a write was cut
// short reads as something, or as erased; then it is the one to be written
// next, or one that a recovery before has passed. So:
//
//  1. From the newest batch on, what is not a batch's page is voided, in order:
//     also what reads as void, and may have been half voided.
//  2. The next two pages are voided. From here on nothing before them is ever
//     taken for the next page, whatever it reads as later. Two, because the
//     second may have been half voided when the first still read as a batch's
//     page; to write it would not make it read the same each time.
//  3. The newest batch's last page is written anew behind them.
//  4. The pages of batches that are not complete are voided, the last first: one
//     that could have completed them is gone since step 1. So are pages that
//     are damaged, and the one that was written anew.
//  5. Blocks whose erasing may have been cut short are erased again, and if
//     recoveries have used up their pages, a block is made free.
func (e *erasable) recover(ctx context.Context, sc *scan, newest found, kept *batch, rep *Report) error {
	s := e.s
	if err := s.clearAll(ctx, rep, e.passed(sc, newest)); err != nil {
		return err
	}
	if err := e.passDirty(ctx, sc, rep); err != nil {
		return err
	}
	for pins := 0; pins < 2 && e.open(); {
		p := e.at*e.per + e.fill
		err := e.clear(ctx, p)
		e.advance()
		if err == nil {
			rep.Cleared = append(rep.Cleared, p)
			pins++
		} else if fatal(ctx, err) {
			return err
		}
	}
	old := e.tailPage
	if newest.seq != 0 {
		if err := e.rewrite(ctx, kept, rep); err != nil {
			return err
		}
	}
	var clear []int
	for p := range sc.info {
		in := &sc.info[p]
		switch {
		case p%e.per == 0 || slices.Contains(rep.Cleared, p):
		case in.state == pageBad,
			in.state == pageValid && in.seq > newest.seq,
			in.state == pageValid && rep.Rewritten && in.seq == newest.seq && in.part == sc.info[old].part && in.parts == sc.info[old].parts:
			clear = append(clear, p)
		}
	}
	slices.SortFunc(clear, func(p, q int) int { return -e.compare(p, q) })
	if err := s.clearAll(ctx, rep, clear); err != nil {
		return err
	}
	if err := e.eraseDirty(ctx); err != nil {
		return err
	}
	for range len(sc.info) { // make room for the next recovery
		if e.erased() >= e.reserve() {
			break
		}
		if did, err := e.tend(ctx); err != nil && fatal(ctx, err) {
			return err
		} else if !did || err != nil {
			break
		}
	}
	return nil
}

// compare orders pages as they are written, up to the one to be written next.
func (e *erasable) compare(p, q int) int {
	back := func(p int) int { return (e.at - p/e.per + len(e.blk)) % len(e.blk) }
	return cmp.Or(cmp.Compare(back(q), back(p)), cmp.Compare(p, q))
}

// passed are the written pages behind the first of the newest batch that are
// not a batch's, in order.
func (e *erasable) passed(sc *scan, newest found) []int {
	first := -1
	for p := range sc.info {
		if in := &sc.info[p]; in.state == pageValid && in.seq >= newest.seq && (first < 0 || e.compare(p, first) < 0) {
			first = p
		}
	}
	written := make([]bool, len(e.blk)) // also those that have lost their record
	for b, k := range e.blk {
		written[b] = k.state == blockUsed || b == e.at || k.state == blockDirty && !e.isEmpty(sc, b)
	}
	var out []int
	for p := range sc.info {
		b := p / e.per
		if p%e.per == 0 || !written[b] || b == e.at && p%e.per >= e.fill {
			continue
		}
		if sc.info[p].state != pageValid && (first < 0 || newest.seq == 0 || e.compare(p, first) > 0) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, e.compare)
	return out
}

// rewrite writes the newest batch's last page to the next page.
func (e *erasable) rewrite(ctx context.Context, kept *batch, rep *Report) error {
	s := e.s
	for e.open() {
		p := e.at*e.per + e.fill
		copy(e.buf, e.tail)
		err := s.set(ctx, p, e.buf)
		if err == nil {
			s.mu.Lock()
			if kept != nil {
				s.x.at[e.tailPage] = nil
				kept.pages[len(kept.pages)-1] = int32(p)
				s.x.at[p] = kept
			}
			s.mu.Unlock()
			e.tailPage = p
			e.advance()
			rep.Rewritten = true
			return nil
		}
		if fatal(ctx, err) {
			return err
		}
		if err := e.failed(ctx, p); err != nil {
			return err
		}
	}
	rep.Unsettled = true
	return nil
}

// eraseDirty erases the blocks without a format record of which nothing is
// needed.
func (e *erasable) eraseDirty(ctx context.Context) error {
	for b := range e.blk {
		if e.blk[b].state != blockDirty || b == e.at || e.holdsNeeded(b) {
			continue
		}
		if err := e.erase(ctx, b, true); err != nil && fatal(ctx, err) {
			return err
		}
	}
	return nil
}

// passDirty makes the next page known where the block that is next in turn has
// no format record and holds nothing: it could not be erased before power was
// lost, and was left out, or its record is damaged.
func (e *erasable) passDirty(ctx context.Context, sc *scan, rep *Report) error {
	if e.open() {
		return nil
	}
	for b := e.after(e.at); b >= 0 && b != e.at && e.isEmpty(sc, b); b = e.after(b) {
		if k := &e.blk[b]; k.state == blockReady {
			err := e.clear(ctx, b*e.per+k.used)
			if err != nil && fatal(ctx, err) {
				return err
			}
			if err == nil {
				rep.Cleared = append(rep.Cleared, b*e.per+k.used)
			}
			e.setBlock(b, blockReady, k.used+1)
			break
		}
	}
	for !e.open() {
		b := e.after(e.at)
		if b < 0 || e.blk[b].state != blockDirty || !e.isEmpty(sc, b) {
			return nil
		}
		if err := e.erase(ctx, b, true); err != nil && fatal(ctx, err) {
			return err
		}
		for p := b * e.per; p < (b+1)*e.per; p++ {
			sc.info[p].state = pageErased
		}
	}
	return nil
}

// isEmpty says whether no page of a block verified when it was read.
func (e *erasable) isEmpty(sc *scan, b int) bool {
	for p := b*e.per + 1; p < (b+1)*e.per; p++ {
		if sc.info[p].state == pageValid {
			return false
		}
	}
	return true
}
