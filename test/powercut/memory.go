package powercut

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"baton/nvm"
	"baton/sim"
)

// memory is a medium of the store that sim has no model of: its cells, and what
// a power cut makes of those that are being written. Like sim's chips it is
// frozen and copied with the world, and tells of the positions on the way.
//
// How it is written is its kind's:
//
//	fram  a byte is in its cell as soon as it has come: each is a position, and
//	      the byte that is under way is what can tear
//	25xx  the page is erased and programmed as a whole, after the transfer
//	nor   bits go one way, only those that change; a block is erased as a whole
//	file  a page is on its way until fsync has returned
type memory struct {
	kind  kind
	g     nvm.Geometry
	clock func() time.Duration // the world's
	on    func() bool          // and whether there is power
	hook  func()               // called at each position; nil = nobody wants to know

	mu    sync.Mutex // never held while anybody sleeps or is called
	cells [][]byte   // by page; one that is there is never changed, only replaced
	loose [][]bool   // bytes of a page that read differently each time; nil = none
	olds  [][]byte   // what those were before
	cycle span
	rng   uint64
	count uint64 // writes and erases
}

type kind int

const (
	fram kind = iota
	spi25
	nor
	file
)

// span is what is being written: of pages first to first+len(old), each from
// byte from to byte to.
type span struct {
	until    time.Duration
	first    int
	from, to int
	old      [][]byte
	erase    bool
}

func newMemory(k kind, g nvm.Geometry) *memory {
	n := int(g.Size) / g.Page
	blank := bytes.Repeat([]byte{g.Erased}, g.Page)
	return &memory{kind: k, g: g, cells: slices.Repeat([][]byte{blank}, n), loose: make([][]bool, n), olds: make([][]byte, n), rng: 1}
}

// copied goes on from where m is, with nobody to tell. A cycle that is under
// way goes on with it.
func (m *memory) copied() *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &memory{
		kind: m.kind, g: m.g, clock: m.clock, on: m.on, rng: m.rng, cycle: m.cycle,
		cells: slices.Clone(m.cells), loose: slices.Clone(m.loose), olds: slices.Clone(m.olds),
	}
}

// Geometry is the medium's.
func (m *memory) Geometry() nvm.Geometry { return m.g }

// ReadAt reads, after what is under way.
func (m *memory) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := m.Settle(ctx); err != nil {
		return err
	}
	m.read(p, off)
	return nil
}

func (m *memory) read(p []byte, off int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(p) > 0 {
		off %= m.g.Size // as a chip's address counter does
		page, in := int(off)/m.g.Page, int(off)%m.g.Page
		n := copy(p, m.cells[page][in:])
		if l := m.loose[page]; l != nil {
			for i := range n {
				if l[in+i] {
					p[i] = m.unstable(m.olds[page][in+i], m.cells[page][in+i])
				}
			}
		}
		p, off = p[n:], off+int64(n)
	}
}

// Settle waits for the end of what is under way.
func (m *memory) Settle(ctx context.Context) error {
	if !m.on() {
		return sim.ErrPowerOff
	}
	m.mu.Lock()
	until := m.cycle.until
	m.mu.Unlock()
	if d := until - m.clock(); d > 0 {
		time.Sleep(d)
	}
	if !m.on() {
		return sim.ErrPowerOff
	}
	return ctx.Err()
}

// Program writes part of a page.
func (m *memory) Program(ctx context.Context, p []byte, off int64) error {
	if err := m.Settle(ctx); err != nil {
		return err
	}
	page, in := int(off)/m.g.Page, int(off)%m.g.Page
	if in+len(p) > m.g.Page || len(p) == 0 {
		panic(fmt.Sprintf("powercut: write of %d bytes at %#x", len(p), off))
	}
	if m.kind != fram {
		m.write(page, in, p)
		return nil
	}
	for i := range p {
		m.write(page, in+i, p[i:i+1])
	}
	return nil
}

// write begins a write cycle, and is in the middle of it when the hook is called.
func (m *memory) write(page, in int, p []byte) {
	m.mu.Lock()
	old := m.cells[page]
	now := slices.Clone(old)
	for i, v := range p {
		if m.kind == nor {
			if m.loose[page] == nil && v&^old[in+i] != 0 {
				panic(fmt.Sprintf("powercut: %#02x written over %#02x", v, old[in+i]))
			}
			v &= old[in+i]
		}
		now[in+i] = v
	}
	from, to := in, in+len(p)
	if m.kind == spi25 {
		from, to = 0, m.g.Page
	}
	if l := m.loose[page]; l != nil && m.kind != nor {
		l = slices.Clone(l)
		clear(l[from:to])
		m.loose[page] = l
		if !slices.Contains(l, true) {
			m.loose[page] = nil
		}
	}
	m.cells[page] = now
	m.begin(m.g.WriteMax, span{first: page, from: from, to: to, old: [][]byte{old}})
}

// begin takes m.mu and lets it go.
func (m *memory) begin(d time.Duration, s span) {
	if m.kind == fram || m.kind == file {
		d = 0
	}
	m.count++
	s.until = m.clock() + max(d, 1) // a cut at its position finds it under way
	m.cycle = s
	hook := m.hook
	m.mu.Unlock()
	if hook != nil {
		hook()
	}
	if m.kind == fram || m.kind == file {
		m.mu.Lock()
		m.cycle = span{}
		m.mu.Unlock()
	}
}

// eraser is a memory that is erased in blocks.
type eraser struct{ *memory }

// Erase erases a block.
func (m eraser) Erase(ctx context.Context, off int64) error {
	if err := m.Settle(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	first, n := int(off)/m.g.Page, m.g.Erase/m.g.Page
	s := span{first: first, to: m.g.Page, old: slices.Clone(m.cells[first : first+n]), erase: true}
	for i := range n {
		m.cells[first+i] = bytes.Repeat([]byte{m.g.Erased}, m.g.Page)
		m.loose[first+i] = nil
	}
	m.begin(m.g.EraseMax, s)
	return nil
}

// writing tells whether the kind of tear makes a difference now.
func (m *memory) writing() bool {
	if m == nil {
		return false
	}
	now := m.clock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cycle.underway(now)
}

func (s span) underway(now time.Duration) bool { return len(s.old) > 0 && now < s.until }

// powerCut tears what was being written at the instant at, by the world's clock.
func (m *memory) powerCut(t sim.Tear, at time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.cycle
	under := c.underway(at)
	m.cycle = span{}
	if !under {
		return
	}
	r := m.rng ^ t.Seed*0x9E3779B97F4A7C15 ^ uint64(t.Kind)<<56
	for k, old := range c.old {
		page := c.first + k
		want := m.cells[page]
		got := slices.Clone(want)
		for i := c.from; i < c.to; i++ {
			got[i] = m.torn(t.Kind, old[i], want[i], 2*(i-c.from) >= c.to-c.from, &r)
			if m.kind == nor && !c.erase { // only what changes is on its way
				got[i] = old[i] &^ (old[i] &^ want[i] &^ got[i])
			}
		}
		m.cells[page] = got
		m.loosen(page, c, old, want, t.Unstable, &r)
	}
}

func (m *memory) torn(k sim.TearKind, old, want byte, second bool, r *uint64) byte {
	switch k {
	case sim.TearOld:
		return old
	case sim.TearHalf:
		if second {
			return old
		}
	case sim.TearRandom:
		return byte(next(r))
	case sim.TearOnes:
		return 0xFF
	case sim.TearZeros:
		return 0
	case sim.TearPerByte:
		switch v := next(r); v % 3 {
		case 0:
			return old
		case 1:
			return byte(v >> 8)
		}
	}
	return want
}

// loosen makes n of the bytes that the write changes read as before or as after
// or as anything. What a disk has written reads the same each time.
func (m *memory) loosen(page int, c span, old, want []byte, n int, r *uint64) {
	if n == 0 || m.kind == file {
		return
	}
	var changed []int
	for i := c.from; i < c.to; i++ {
		if old[i] != want[i] {
			changed = append(changed, i)
		}
	}
	if len(changed) == 0 {
		return
	}
	l := make([]bool, m.g.Page)
	for range n {
		l[changed[next(r)%uint64(len(changed))]] = true
	}
	m.loose[page], m.olds[page] = l, old
}

func (m *memory) unstable(old, new byte) byte {
	switch v := next(&m.rng); v % 3 {
	case 0:
		return old
	case 1:
		return new
	default:
		return byte(v >> 8)
	}
}

// fingerprint adds the cells to h, and which of them are unstable.
func (m *memory) fingerprint(h *maphash.Hash) {
	if m == nil {
		return
	}
	loose := false
	for i, p := range m.cells {
		h.Write(p)
		if l := m.loose[i]; l != nil {
			loose = true
			maphash.WriteComparable(h, i)
			for k, on := range l {
				if on {
					maphash.WriteComparable(h, [2]int{k, int(m.olds[i][k])})
				}
			}
		}
	}
	if loose {
		maphash.WriteComparable(h, m.rng)
	}
}

// next is SplitMix64.
func next(s *uint64) uint64 {
	*s += 0x9E3779B97F4A7C15
	z := *s
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// spi is the memory as nvm's driver of the 25xx finds it on its bus.
type spi struct {
	*memory
	part  nvm.Part25
	latch bool
}

func (s *spi) String() string { return "spi0.0" }

// Tx is one transfer. Of FRAM each byte is in its cell as it comes.
func (s *spi) Tx(w, r []byte) error {
	if !s.on() {
		return sim.ErrPowerOff
	}
	busy := s.kind == spi25 && s.writing()
	if busy && w[0] != 0x05 {
		panic(fmt.Sprintf("powercut: instruction %#02x while a write is in progress", w[0]))
	}
	at := func() int64 { return int64(binary.BigEndian.Uint16(w[1:])) % s.g.Size }
	switch w[0] {
	case 0x05: // RDSR
		var st byte
		if busy {
			st |= 1
		}
		if s.latch {
			st |= 2
		}
		for i := 1; i < len(r); i++ {
			r[i] = st
		}
	case 0x06:
		s.latch = true
	case 0x04:
		s.latch = false
	case 0x9f:
		for i := 1; i < len(r); i++ {
			r[i] = 0xFF
		}
		copy(r[min(1, len(r)):], s.part.ID)
	case 0x03:
		s.read(r[3:], at())
	case 0x02:
		if s.latch {
			s.latch = false
			return s.Program(context.Background(), slices.Clone(w[3:]), at())
		}
	}
	return nil
}

// medium is where the store is.
type medium struct {
	name   string
	shared bool // on the chip of gpu0's engine: two masters
	new    func() *memory
	drive  func(m *memory) (m2 nvm.Medium, done func())
}

func over25(name string) (new func() *memory, drive func(*memory) (nvm.Medium, func())) {
	part := nvm.Parts25[name]
	k := spi25
	if part.WriteMax == 0 {
		k = fram
	}
	g := nvm.Geometry{Size: part.Size, Page: part.Page, Erased: 0xFF, WriteMax: part.WriteMax}
	return func() *memory { return newMemory(k, g) },
		func(m *memory) (nvm.Medium, func()) {
			d := nvm.NewSPI25(&spi{memory: m, part: part}, part)
			return d, func() { _ = d.Close() } // it answers: the model never wedges
		}
}

// media are those of docs/configuration.md. The 24xx and both SPI parts are
// driven by nvm's drivers; NOR and file stand at the place of nvm.MTD and
// nvm.File, whose system calls no model has.
var media = func() []medium {
	newFRAM, driveFRAM := over25("fm25v02")
	newSPI, driveSPI := over25("25lc256")
	flash := nvm.Geometry{Size: 64 << 10, Page: 256, Erase: 4096, Erased: 0xFF, WriteMax: 5 * time.Millisecond, EraseMax: 400 * time.Millisecond}
	disk := nvm.Geometry{Size: 32 << 10, Page: 64, Erased: 0xFF, WriteMax: time.Second}
	plain := func(m *memory) (nvm.Medium, func()) { return m, func() {} }
	return []medium{
		{name: "24xx"},
		{name: "24xx-shared", shared: true},
		{name: "25xx", new: newSPI, drive: driveSPI},
		{name: "fram", new: newFRAM, drive: driveFRAM},
		{name: "nor", new: func() *memory { return newMemory(nor, flash) }, drive: func(m *memory) (nvm.Medium, func()) { return eraser{m}, func() {} }},
		{name: "file", new: func() *memory { return newMemory(file, disk) }, drive: plain},
	}
}()
