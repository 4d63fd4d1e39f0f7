package sim

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Chip is a 24Cxx EEPROM. What it holds is kept in pages that copies of a
// World share until one of them writes.
type Chip struct {
	w    *World
	spec *ChipSpec
	bus  *Bus
	part Part

	pages    []*page
	token    uint64 // of what this chip alone holds
	ownTable bool   // pages (the slice) is this chip's alone

	pointer   int           // internal address counter
	writeTime time.Duration // of this specimen
	cycle     cycle
	useFrom   time.Duration // of the transfer under way or last
	useUntil  time.Duration
	writes    uint64
	dead      bool
	protected bool
}

// page is what one page holds and went through.
type page struct {
	token uint64 // of the one chip that may change it; 0 = none
	data  [maxPage]byte
	loose *loose // bytes that read differently each time; nil = none
	wear  uint32 // write cycles
	worn  bool   // takes no more
}

// loose says what a page's unstable bytes may read as: old or new or anything.
type loose struct {
	at       [maxPage]bool
	old, new [maxPage]byte
}

// cycle is the last write cycle.
type cycle struct {
	from, until time.Duration
	page        int
	old         [maxPage]byte
	loose       *loose // the page's, before
}

var tokens atomic.Uint64 // handed out so far; tells copies apart, no result depends on it

var erased = func() *page {
	p := new(page)
	for i := range p.data {
		p.data[i] = 0xFF
	}
	return p
}()

func newChip(w *World, s *ChipSpec) Chip {
	c := Chip{w: w, spec: s, bus: w.Bus(s.Bus), writeTime: s.WriteCycle}
	c.fit(s.Part, s.Image)
	return c
}

// fit makes the chip a new part with that content.
func (c *Chip) fit(part string, image []byte) {
	c.part = Parts[part]
	c.token, c.ownTable = tokens.Add(1), true
	c.pages = slices.Repeat([]*page{erased}, int(c.part.Size)/c.part.Page)
	c.load(image)
}

func (c *Chip) load(image []byte) {
	for i := 0; i < len(image); i += c.part.Page {
		p := c.own(i / c.part.Page)
		copy(p.data[:c.part.Page], image[i:])
		p.loose = nil
	}
}

// own returns page n for writing.
func (c *Chip) own(n int) *page {
	if !c.ownTable {
		c.pages, c.ownTable = slices.Clone(c.pages), true
	}
	if c.pages[n].token != c.token {
		p := *c.pages[n]
		p.token = c.token
		if p.loose != nil {
			l := *p.loose
			p.loose = &l
		}
		c.pages[n] = &p
	}
	return c.pages[n]
}

// has tells whether addr is one of the chip's.
func (c *Chip) has(addr uint16) bool {
	return addr&^uint16(c.part.addresses()-1) == c.spec.Addr
}

// answers tells whether the chip acknowledges its address at t.
func (c *Chip) answers(t time.Duration) bool { return !c.dead && c.cycle.until <= t }

// inUse tells whether a transfer addresses the chip at t.
func (c *Chip) inUse(t time.Duration) bool { return c.useFrom <= t && t < c.useUntil }

// latch takes the word address from the first bytes of a write.
func (c *Chip) latch(addr uint16, w []byte) {
	switch {
	case c.part.AddrBytes == 1:
		c.pointer = int(c.block(addr))<<8 | int(w[0])
	case len(w) == 1: // the data sheets say nothing: take the half that came
		c.pointer = int(w[0])<<8 | c.pointer&0xFF
	default:
		c.pointer = int(w[0])<<8 | int(w[1])
	}
	c.pointer %= int(c.part.Size)
}

// block is the block bits of a device address.
func (c *Chip) block(addr uint16) uint16 { return addr & uint16(c.part.addresses()-1) }

// write is the data of a page write at its STOP. The address counter wraps
// inside the page. A repeated START instead of STOP begins no write cycle.
func (c *Chip) write(t time.Duration, data []byte, restart bool) {
	size := c.part.Page
	n, in := c.pointer/size, c.pointer%size
	c.pointer = n*size + (in+len(data))%size
	if in+len(data) > size {
		c.w.violate(t, c.spec.Name, fmt.Sprintf("page write of %d bytes at 0x%04x wraps inside its page of %d", len(data), n*size+in, size))
	}
	if restart {
		c.w.violate(t, c.spec.Name, fmt.Sprintf("repeated START in a page write at 0x%04x: nothing is written", n*size+in))
		return
	}
	if c.protected {
		return // acknowledged, but no write cycle ("Write Protection")
	}
	for i := range c.w.slots {
		if s := &c.w.slots[i]; s.chip == c && s.loadAt != never {
			c.w.violate(t, c.spec.Name, fmt.Sprintf("page write at 0x%04x while the engine of %s loads", n*size+in, s.spec.Name))
		}
	}
	p := c.own(n)
	c.cycle = cycle{from: t, until: t + c.writeTime, page: n, old: p.data, loose: p.loose}
	c.writes++
	p.wear++
	if c.spec.Endurance > 0 && p.wear > c.spec.Endurance {
		p.worn = true
	}
	if !p.worn {
		for i, v := range data {
			p.data[(in+i)%size] = v
		}
		// A page is erased and programmed as a whole, so all its bytes are
		// good again.
		p.loose = nil
	}
	c.w.enterCycle(c)
}

// read fills r from the address counter on, which wraps at the end of the part.
func (c *Chip) read(addr uint16, r []byte) {
	if c.part.AddrBytes == 1 && c.part.addresses() > 1 {
		c.pointer = int(c.block(addr))<<8 | c.pointer&0xFF
	}
	for len(r) > 0 {
		n := c.copyOut(r, c.pointer)
		r = r[n:]
		c.pointer = (c.pointer + n) % int(c.part.Size)
	}
}

// copyOut reads into r from off up to the end of a page.
func (c *Chip) copyOut(r []byte, off int) int {
	size := c.part.Page
	p := c.pages[off/size]
	in := off % size
	n := copy(r, p.data[in:size])
	if p.loose != nil {
		for i := range n {
			if p.loose.at[in+i] {
				r[i] = c.w.rng.unstable(p.loose.old[in+i], p.loose.new[in+i])
			}
		}
	}
	return n
}

// unstable is a reading of a cell between two values.
func (r *rng) unstable(old, new byte) byte {
	v := r.next()
	switch v % 3 {
	case 0:
		return old
	case 1:
		return new
	}
	return byte(v >> 8)
}

// engineReads is a read by the second master, word address first. It leaves
// the chip's one address counter behind what it read.
func (c *Chip) engineReads(r []byte, off int64) {
	at := int(off)
	for len(r) > 0 {
		n := c.copyOut(r, at%int(c.part.Size))
		r = r[n:]
		at += n
	}
	c.pointer = at % int(c.part.Size)
}

// Image returns what the cells hold; of an unstable byte one of its readings.
func (c *Chip) Image() []byte {
	c.w.enter()
	defer c.w.mu.Unlock()
	img := make([]byte, 0, c.part.Size)
	for _, p := range c.pages {
		img = append(img, p.data[:c.part.Page]...)
	}
	return img
}

// SetImage replaces the content from offset 0 on, without a write cycle, as a
// programmer does. Engines see it at their next load.
func (c *Chip) SetImage(image []byte) {
	c.w.enter()
	defer c.w.mu.Unlock()
	if int64(len(image)) > c.part.Size {
		panic(fmt.Sprintf("sim: %s: image has %d bytes, the chip %d", c.spec.Name, len(image), c.part.Size))
	}
	c.load(image)
}

// Poke changes the bytes at off, without a write cycle.
func (c *Chip) Poke(off int64, data []byte) {
	c.w.enter()
	defer c.w.mu.Unlock()
	c.poke(off, data)
}

func (c *Chip) poke(off int64, data []byte) {
	for i, v := range data {
		at := int(off) + i
		p := c.own(at / c.part.Page)
		p.data[at%c.part.Page] = v
		if p.loose != nil {
			p.loose.at[at%c.part.Page] = false
		}
	}
}

// Peek returns n bytes at off as a read would give them.
func (c *Chip) Peek(off int64, n int) []byte {
	c.w.enter()
	defer c.w.mu.Unlock()
	r := make([]byte, n)
	for rest := r; len(rest) > 0; {
		k := c.copyOut(rest, int(off)%int(c.part.Size))
		rest, off = rest[k:], off+int64(k)
	}
	return r
}

// FlipBit inverts one bit, 0..7, of the byte at off.
func (c *Chip) FlipBit(off int64, bit uint) {
	c.w.enter()
	defer c.w.mu.Unlock()
	c.own(int(off) / c.part.Page).data[int(off)%c.part.Page] ^= 1 << (bit & 7)
}

// SetUnstable makes the n bytes at off read differently each time until their
// page is written.
func (c *Chip) SetUnstable(off int64, n int) {
	c.w.enter()
	defer c.w.mu.Unlock()
	for i := range n {
		at := int(off) + i
		p := c.own(at / c.part.Page)
		p.loosen(at%c.part.Page, p.data[at%c.part.Page], ^p.data[at%c.part.Page])
	}
}

func (p *page) loosen(i int, old, new byte) {
	if p.loose == nil {
		p.loose = &loose{}
	}
	p.loose.at[i], p.loose.old[i], p.loose.new[i] = true, old, new
}

// PageWrites is the number of write cycles so far.
func (c *Chip) PageWrites() uint64 {
	c.w.enter()
	defer c.w.mu.Unlock()
	return c.writes
}

// Wear is the number of write cycles of each page.
func (c *Chip) Wear() []uint32 {
	c.w.enter()
	defer c.w.mu.Unlock()
	wear := make([]uint32, len(c.pages))
	for i, p := range c.pages {
		wear[i] = p.wear
	}
	return wear
}

// SetWorn makes page n take no more writes, though it acknowledges them, or
// makes it good again.
func (c *Chip) SetWorn(n int, worn bool) {
	c.w.enter()
	defer c.w.mu.Unlock()
	c.own(n).worn = worn
}

// SetDead takes the chip off its bus, also for the engine, or puts it back.
func (c *Chip) SetDead(dead bool) {
	c.w.enter()
	defer c.w.mu.Unlock()
	c.dead = dead
}

// SetWriteProtect sets the WP pin.
func (c *Chip) SetWriteProtect(on bool) {
	c.w.enter()
	defer c.w.mu.Unlock()
	c.protected = on
}

// SetWriteCycle sets how long this specimen's write cycles take from now on,
// within the data sheet or not.
func (c *Chip) SetWriteCycle(d time.Duration) {
	c.w.enter()
	defer c.w.mu.Unlock()
	c.writeTime = d
}

// Replace puts another part, one of Parts, with that content in the chip's
// place, fresh and with its data sheet's write cycle.
func (c *Chip) Replace(part string, image []byte) {
	c.w.enter()
	defer c.w.mu.Unlock()
	p, ok := Parts[part]
	if !ok || int64(len(image)) > p.Size || c.spec.Addr%uint16(p.addresses()) != 0 {
		panic(fmt.Sprintf("sim: %s: can not be replaced by a %q with %d bytes of content", c.spec.Name, part, len(image)))
	}
	c.fit(part, image)
	c.cycle, c.pointer, c.writeTime, c.writes, c.dead = cycle{}, 0, p.WriteMax, 0, false
}
