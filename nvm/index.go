package nvm

// index is what the store knows in RAM: the newest record of every key, and
// what each page of the medium is needed for.
type index struct {
	keys      map[string]*entry
	at        []*batch // per page; nil: nothing on it counts
	livePages int      // pages of batches that are needed
}

// entry is a key.
type entry struct {
	key    string
	val    []byte
	at     *batch // holds the newest record of the key
	copies int    // batches on the medium that hold a record of the key
	state  entryState
}

type entryState uint8

const (
	entryLive entryState = iota
	entryDeleted
	entryForgotten
)

// needed says whether the newest record must stay on the medium. A deletion,
// and the last word on a forgotten key, must outlive every older record of the
// key: otherwise the older one would be the newest after a remount.
func (e *entry) needed() bool { return e.state == entryLive || e.copies > 1 }

// batch is what one Put wrote: all of its pages are valid, or none counts.
type batch struct {
	seq   uint32
	live  int // entries that need it, and 1 while it is being written
	recs  []*entry
	pages []int32
	one   [1]int32 // backs pages of the usual batch
}

func (x *index) hold(b *batch) {
	if b == nil {
		return
	}
	if b.live == 0 {
		x.livePages += len(b.pages)
	}
	b.live++
}

func (x *index) release(b *batch) {
	if b == nil {
		return
	}
	if b.live--; b.live == 0 {
		x.livePages -= len(b.pages)
	}
}

// free says whether a page holds nothing that is needed.
func (x *index) free(page int) bool { return x.at[page] == nil || x.at[page].live == 0 }

// claim gives a page that has just been written to a batch under way.
func (x *index) claim(b *batch, page int) {
	x.overwritten(page)
	b.pages = append(b.pages, int32(page))
	x.at[page] = b
	x.livePages++
}

// abandon ends a batch that will not be completed: what it has written counts
// for nothing.
func (x *index) abandon(b *batch) {
	x.release(b)
	for _, p := range b.pages {
		if x.at[p] == b {
			x.at[p] = nil
		}
	}
}

// add enters a record of b. Records may be added in any order: the highest
// sequence number wins, and among equals the one that came first.
func (x *index) add(b *batch, e *entry, val []byte, deleted bool) {
	if e.at != nil && e.needed() {
		x.release(e.at)
	}
	if e.at != b { // a key twice in a batch (no Put writes that) counts once
		e.copies++
		b.recs = append(b.recs, e)
	}
	if e.at == nil || e.at == b || e.at.seq < b.seq {
		e.at, e.val, e.state = b, val, entryLive
		if deleted {
			e.val, e.state = nil, entryDeleted
		}
	}
	if e.needed() {
		x.hold(e.at)
	}
}

// forget drops a key from view.
func (x *index) forget(e *entry) {
	if e.state != entryLive {
		return
	}
	if e.state, e.val = entryForgotten, nil; !e.needed() {
		x.release(e.at)
	}
}

// overwritten is told when a page's old content is proven gone. The batch it
// belonged to, of which nothing was needed, is then void as a whole.
func (x *index) overwritten(page int) {
	b := x.at[page]
	if b == nil {
		return
	}
	for _, p := range b.pages {
		if x.at[p] == b {
			x.at[p] = nil
		}
	}
	for _, e := range b.recs {
		was := e.needed()
		e.copies--
		if e.at == b {
			e.at = nil
			delete(x.keys, e.key)
			continue
		}
		if was && !e.needed() {
			x.release(e.at)
		}
	}
	b.recs = nil
}
