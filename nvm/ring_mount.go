package nvm

import (
	"bytes"
	"cmp"
	"context"
	"slices"
)

// mount finds the store and the ring's state, and recovers it if asked to.
func (r *ring) mount(ctx context.Context, sc *scan, rep *Report) error {
	s := r.s
	if err := r.findFormat(sc, rep); err != nil {
		return err
	}
	if err := sc.judge(ctx, s, spareA, s.pages); err != nil {
		return err
	}
	for p := spareA; p < s.pages; p++ {
		if in := &sc.info[p]; in.state == pageValid && (in.kind == kindSpare) != (p < ringFirst) {
			in.state = pageBad // verifies, at a place where nothing writes it
		}
	}
	f := r.find(sc)
	for p := spareA; p < s.pages; p++ {
		if in := &sc.info[p]; in.state == pageValid {
			s.seq = max(s.seq, in.seq)
			if in.kind == kindData && in.seq > f.newest.seq {
				rep.Incomplete++
			}
		}
	}
	kept := sc.load(s, f.newest, rep)
	for _, p := range rep.Damaged {
		if p >= ringFirst && !slices.Contains(f.suspects, p) && !slices.Contains(f.links, p) {
			rep.Lost = append(rep.Lost, p)
		}
	}
	s.stats.Sequence = f.newest.seq
	if f.newest.seq != 0 {
		r.tailPage = sc.last(f.newest)
		r.tail = bytes.Clone(sc.page(s, r.tailPage))
		r.tail[0] = kindData
		r.adrift = r.tailPage < ringFirst
	}
	r.kept = kept
	if s.opt.Suspect {
		return r.recover(ctx, sc, f, rep)
	}
	if len(f.links) > 0 {
		r.next, r.base = f.links[0], f.links[0]
	}
	s.damaged = slices.Clone(rep.Damaged)
	return nil
}

// findFormat reads the two format records. One that is formed is enough: while
// the first of an older store's two is being replaced, that store still is
// whole; once the first new one is formed, the new store is.
func (r *ring) findFormat(sc *scan, rep *Report) error {
	s := r.s
	var recs [2]formatRecord
	var ok [2]bool
	for i, p := range []int{formatA, formatB} {
		recs[i], ok[i] = decodeFormat(sc.page(s, p))
	}
	if sc.as != nil {
		f := s.format(kindFormed)
		f.incarnation = *sc.as
		for i, p := range []int{formatA, formatB} {
			sc.info[p].state = pageBad
			if ok[i] && recs[i] == f {
				sc.info[p].state = pageFormat
			}
		}
		s.adopt(f)
		return nil
	}
	use := -1
	for i := range recs {
		if ok[i] && recs[i].kind == kindFormed && use < 0 {
			use = i
		}
	}
	if use < 0 {
		var forming []formatRecord
		for _, p := range []int{formatA, formatB, spareA, spareB} {
			if f, ok := decodeFormat(sc.page(s, p)); ok && f.kind == kindForming {
				forming = append(forming, f)
			}
		}
		switch {
		case len(forming) > 0:
			return sc.halfFormatted(s, forming, rep)
		case s.blankImage(sc.img):
			return unformatted(rep, Blank)
		case s.blankBut(sc.img, spareA*s.page, 2*s.page):
			// The first writes of a first format were cut short: nothing else leaves
			// a medium that is erased but for these two pages. The marks are there,
			// and not at the start or the end, because that is where others begin.
			return unformatted(rep, HalfFormatted)
		}
		return unformatted(rep, Foreign)
	}
	if err := s.checkFormat(recs[use]); err != nil {
		rep.State, rep.Incarnation = Formatted, recs[use].incarnation
		return err
	}
	s.adopt(recs[use])
	for i, p := range []int{formatA, formatB} {
		sc.info[p].state = pageFormat
		if !ok[i] || recs[i] != recs[use] {
			sc.info[p].state = pageBad
		}
	}
	return nil
}

// ringFind is where the ring's newest batch stands, and what is around it.
type ringFind struct {
	newest found // seq 0: none yet
	homes  []int // pages of the ring that hold its last part
	links  []int // pages that are free because a page of it says so, best first
	land   int   // the page that the spare pages name, or -1
	// suspects are all pages in which a write may have been under way when
	// power was lost: the last part itself, what it and the pages after it
	// name, and the pages of a batch that is not complete. Those that are found
	// only through others come first, so that clearing them in this order can
	// be cut short anywhere and be taken up again.
	suspects []int
}

func (r *ring) find(sc *scan) (f ringFind) {
	s := r.s
	sc.gather(ringFirst, s.pages)
	newest, second := sc.newest()
	// A spare page counts as a page of the newest batch only when that batch
	// has lost its own copy of it.
	spare := -1
	for _, p := range []int{spareA, spareB} {
		in := &sc.info[p]
		if in.state == pageValid && in.seq > newest.seq && (spare < 0 || in.seq > sc.info[spare].seq) {
			spare = p
		}
	}
	if spare >= 0 {
		sc.gather(ringFirst, s.pages, spare)
		newest, second = sc.newest()
	}
	f.newest = newest
	var lastPart uint8
	if newest.seq != 0 {
		lastPart = sc.info[sc.last(newest)].parts - 1
	}
	own := func(p int) bool { // holds an earlier part of the newest batch
		return newest.to > 0 && slices.Contains(sc.pages[newest.from:newest.to-1], int32(p))
	}
	inRing := func(n uint16) bool { return int(n) >= ringFirst && int(n) < s.pages && !own(int(n)) }
	add := func(list *[]int, p int) {
		if !slices.Contains(*list, p) {
			*list = append(*list, p)
		}
	}

	// The pages from the newest batch's last part on, the furthest first.
	var after []int
	for p := ringFirst; p < s.pages; p++ {
		in := &sc.info[p]
		if in.state != pageValid || in.seq < newest.seq {
			continue
		}
		if in.seq == newest.seq {
			if newest.seq == 0 || in.part != lastPart || in.parts != lastPart+1 {
				continue
			}
			f.homes = append(f.homes, p)
		}
		after = append(after, p)
	}
	slices.SortStableFunc(after, func(a, b int) int {
		x, y := &sc.info[a], &sc.info[b]
		return cmp.Or(cmp.Compare(y.seq, x.seq), cmp.Compare(y.part, x.part))
	})
	for _, p := range after {
		if n := sc.info[p].next; inRing(n) {
			add(&f.suspects, int(n))
		}
		add(&f.suspects, p)
	}
	// What the spare pages say of the newest batch's last part overrides what
	// the page itself says.
	home := -1
	if newest.seq != 0 {
		home = sc.last(newest)
	}
	f.land = -1
	for _, p := range []int{spareA, spareB} {
		in := &sc.info[p]
		if in.state != pageValid || in.seq != newest.seq || in.part != lastPart || !inRing(in.next) {
			continue
		}
		add(&f.suspects, int(in.next))
		if f.land < 0 {
			f.land = int(in.next)
		}
		if int(in.next) != home {
			add(&f.links, int(in.next))
		}
	}
	for _, p := range f.homes {
		if n := sc.info[p].next; inRing(n) && int(n) != home {
			add(&f.links, int(n))
		}
		if p != home {
			add(&f.links, p)
		}
	}
	// The page that was to hold the newest batch, by the pages before it: if it
	// reads as something else now, it may read as the batch again later.
	if newest.seq == 0 {
		add(&f.links, ringFirst)
	} else {
		for _, p := range sc.pages[newest.from : newest.to-1] {
			if n := sc.info[p].next; inRing(n) {
				add(&f.suspects, int(n))
			}
		}
	}
	came := uint16(ringFirst) // where the first batch goes
	if second.to > 0 {
		came = sc.info[sc.last(second)].next
	}
	if inRing(came) {
		add(&f.suspects, int(came))
	}
	for _, p := range f.links {
		sc.info[p].unused = true
	}
	if s.opt.Suspect {
		for _, p := range f.suspects {
			sc.info[p].unused = true
		}
	}
	return f
}

// recover makes what Mount has read last: it writes the newest batch's last
// page anew and clears every page that may be torn. Cut short at any point and
// begun again, it comes to a state that the next reading agrees with:
//
//  1. The spare pages get a copy. Nothing that could be the only good copy has
//     been touched before both are whole; from here on the batch stays found,
//     and with it the page where step 3 puts it.
//  2. Suspect and damaged pages are cleared, except where the batch is. The page
//     for step 3 is cleared too, as the last: if it has half of a newer batch,
//     and the copy is cut short, it must not read as that batch any more.
//  3. The copy goes to a page of the ring.
//  4. The pages where the batch was are cleared.
func (r *ring) recover(ctx context.Context, sc *scan, f ringFind, rep *Report) error {
	s := r.s
	if err := r.repairFormat(ctx, sc); err != nil {
		return err
	}
	var clear []int
	for p := ringFirst; p < s.pages; p++ {
		if sc.info[p].state == pageBad && !slices.Contains(f.suspects, p) {
			clear = append(clear, p)
		}
	}
	if f.newest.seq == 0 { // nothing to keep, but the spares may be torn too
		if err := r.writeSpares(ctx, f.links[0]); err != nil {
			return err
		}
		if err := s.clearAll(ctx, rep, append(clear, f.suspects...)); err != nil {
			return err
		}
		r.setNext(f.links...)
		return nil
	}

	land := f.land
	if land < 0 && len(f.links) > 0 {
		land = f.links[0]
	}
	if land < 0 {
		land = r.pick(ringFirst)
	}
	if land < 0 && len(f.homes) > 0 {
		land = f.homes[0]
	}
	if land < 0 {
		return ErrFull
	}
	if err := r.writeSpares(ctx, land); err != nil {
		return err
	}
	for _, p := range f.suspects {
		if p != land && !slices.Contains(f.homes, p) {
			clear = append(clear, p)
		}
	}
	if !slices.Contains(f.homes, land) {
		clear = append(clear, land)
	}
	if err := s.clearAll(ctx, rep, clear); err != nil {
		return err
	}

	var next int
	for try := 0; ; try++ {
		next = r.firstGood(land, append(slices.Clone(f.homes), f.suspects...))
		err := s.set(ctx, land, r.copyOfTail(kindData, next))
		if err == nil {
			break
		}
		s.markBad(land)
		if fatal(ctx, err) || try == maxTries {
			return err
		}
		if land = r.pick(land); land < 0 {
			return err
		}
		if err := r.writeSpares(ctx, land); err != nil {
			return err
		}
	}
	r.rehome(land)
	rep.Rewritten = true
	var old []int
	for _, p := range f.homes {
		if p != land {
			old = append(old, p)
		}
	}
	if err := s.clearAll(ctx, rep, old); err != nil {
		return err
	}
	r.setNext(next)
	return nil
}

// firstGood is the first of pages that is neither bad nor land, or any free
// page, or -1.
func (r *ring) firstGood(land int, pages []int) int {
	for _, p := range pages {
		if p != land && !r.s.bad[p] {
			return p
		}
	}
	if p := r.pick(land); p != land {
		return p
	}
	return -1
}

func (r *ring) setNext(pages ...int) {
	r.next = -1
	for _, p := range pages {
		if p >= 0 && !r.s.bad[p] {
			r.next = p
			break
		}
	}
	r.base = r.next
}

// repairFormat rewrites both format records if one is not as it should be, the
// bad one first: the other may be what a torn write left.
func (r *ring) repairFormat(ctx context.Context, sc *scan) error {
	order := []int{formatB, formatA}
	switch {
	case sc.info[formatA].state == pageBad:
		order = []int{formatA, formatB}
	case sc.info[formatB].state != pageBad:
		return nil
	}
	for _, p := range order {
		if err := r.writeFormat(ctx, p); err != nil && fatal(ctx, err) {
			return err
		}
	}
	return nil
}

func (r *ring) writeFormat(ctx context.Context, page int) error {
	rec := make([]byte, r.s.page)
	encodeFormat(rec, r.s.format(kindFormed))
	err := r.s.set(ctx, page, rec)
	if err != nil && !fatal(ctx, err) {
		r.s.markBad(page)
	}
	return err
}
