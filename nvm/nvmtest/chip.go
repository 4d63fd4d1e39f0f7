// Package nvmtest has memories for tests of what is stored in them: they keep
// the rules of the real ones, by panicking, and lose power in the middle of a
// write.
package nvmtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"baton/nvm"
)

// ErrPower is returned by everything after the power cut that Cut has ordered.
var ErrPower = errors.New("power is off")

// Chip is a memory whose pages are overwritten in place, as an EEPROM's.
//
// Bytes of a page in whose write the power was cut may read differently each
// time, until they are written again.
type Chip struct {
	// ProgramHook, if set, is asked before a page is written; with an error the
	// page stays as it was.
	ProgramHook func(page int) error
	// EraseHook is the same for blocks.
	EraseHook func(block int) error
	// Pick, if set, chooses what a torn page reads as, of n things; by default
	// it is one at random each time.
	Pick func(page, n int) int

	g      nvm.Geometry
	cells  []byte
	ghosts map[int]*ghost // per page
	stuck  map[int]bool
	rng    *rand.Rand
	off    bool
	armed  bool
	left   int
	tear   Tear
	ops    int
	writes []int
	erases []int
}

// ghost is what a page may read as.
type ghost struct {
	alts    [][]byte
	perByte bool
}

// bg is for calls inside a model, which no caller can end.
func bg() context.Context { return context.Background() }

// NewChip returns an erased chip. Equal seeds behave alike.
func NewChip(g nvm.Geometry, seed uint64) *Chip {
	if g.Erase != 0 {
		panic("nvmtest: a Chip has no erase blocks, a NOR has")
	}
	return newChip(g, seed)
}

func newChip(g nvm.Geometry, seed uint64) *Chip {
	c := &Chip{
		g:      g,
		cells:  bytes.Repeat([]byte{g.Erased}, int(g.Size)),
		ghosts: map[int]*ghost{},
		stuck:  map[int]bool{},
		rng:    rand.New(rand.NewPCG(seed, 1)),
		writes: make([]int, int(g.Size)/g.Page),
	}
	if g.Erase > 0 {
		c.erases = make([]int, int(g.Size)/g.Erase)
	}
	return c
}

// Geometry is what the chip was made with.
func (c *Chip) Geometry() nvm.Geometry { return c.g }

// ReadAt reads. Pages that were torn read as one of the things they may be.
func (c *Chip) ReadAt(ctx context.Context, p []byte, off int64) error {
	if c.off {
		return ErrPower
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if off < 0 || off+int64(len(p)) > c.g.Size {
		panic(fmt.Sprintf("nvmtest: read of %d bytes at %#x", len(p), off))
	}
	copy(p, c.cells[off:])
	if len(c.ghosts) == 0 {
		return nil
	}
	for _, page := range c.tornPages() {
		g := c.ghosts[page]
		start := page * c.g.Page
		pick := func() int { return c.rng.IntN(len(g.alts)) }
		if c.Pick != nil {
			pick = func() int { return c.Pick(page, len(g.alts)) }
		}
		alt := pick()
		for i := range c.g.Page {
			if g.perByte {
				alt = pick()
			}
			if at := start + i - int(off); at >= 0 && at < len(p) {
				p[at] = g.alts[alt][i]
			}
		}
	}
	return nil
}

// tearFurther tears a page that may have been torn already. If it is not stable
// afterwards, it may read as what it could read as before, too.
func (c *Chip) tearFurther(olds [][]byte, new []byte) Torn {
	t := c.tear(c.rng, olds[c.rng.IntN(len(olds))], new)
	if len(t.Alts) > 1 && !t.PerByte {
		for _, old := range olds {
			if !slices.ContainsFunc(t.Alts, func(a []byte) bool { return bytes.Equal(a, old) }) {
				t.Alts = append(t.Alts, old)
			}
		}
	}
	return t
}

func (c *Chip) tornPages() []int {
	var pages []int
	for p := range c.ghosts {
		pages = append(pages, p)
	}
	slices.Sort(pages)
	return pages
}

// Program writes part of a page or all of it.
func (c *Chip) Program(ctx context.Context, p []byte, off int64) error {
	return c.program(ctx, p, off, func(_, want byte) byte { return want })
}

// program writes what merge makes of what is there and what is wanted.
func (c *Chip) program(ctx context.Context, p []byte, off int64, merge func(have, want byte) byte) error {
	if c.off {
		return ErrPower
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	page := int(off) / c.g.Page
	if off < 0 || off+int64(len(p)) > c.g.Size || len(p) == 0 || (int(off)+len(p)-1)/c.g.Page != page {
		panic(fmt.Sprintf("nvmtest: write of %d bytes at %#x", len(p), off))
	}
	c.ops++
	c.writes[page]++
	if c.ProgramHook != nil {
		if err := c.ProgramHook(page); err != nil {
			return err
		}
	}
	in := int(off) % c.g.Page
	olds, perByte := c.page(page)
	news := make([][]byte, len(olds))
	for i, old := range olds {
		news[i] = slices.Clone(old)
		for j, b := range p {
			news[i][in+j] = merge(old[in+j], b)
		}
	}
	if c.stuck[page] {
		news = olds
	}
	if c.cutNow() {
		c.off = true
		c.setPage(page, c.tearFurther(olds, news[0]))
		if c.rng.IntN(2) == 0 {
			return nil // it had the bytes, and power went in the write cycle
		}
		return ErrPower
	}
	c.setPage(page, Torn{Alts: news, PerByte: perByte})
	return nil
}

// Settle has nothing to wait for.
func (c *Chip) Settle(ctx context.Context) error {
	if c.off {
		return ErrPower
	}
	return ctx.Err()
}

func (c *Chip) cutNow() bool {
	if !c.armed {
		return false
	}
	c.left--
	return c.left < 0
}

func (c *Chip) page(page int) (alts [][]byte, perByte bool) {
	if g := c.ghosts[page]; g != nil {
		return g.alts, g.perByte
	}
	return [][]byte{slices.Clone(c.cells[page*c.g.Page : (page+1)*c.g.Page])}, false
}

func (c *Chip) setPage(page int, t Torn) {
	same := true
	for _, a := range t.Alts[1:] {
		same = same && bytes.Equal(a, t.Alts[0])
	}
	copy(c.cells[page*c.g.Page:], t.Alts[0])
	delete(c.ghosts, page)
	if !same {
		c.ghosts[page] = &ghost{t.Alts, t.PerByte}
	}
}

// Cut orders a power cut inside the write or erase after the next n.
func (c *Chip) Cut(n int, tear Tear) { c.armed, c.left, c.tear = true, n, tear }

// Off says whether the power is off.
func (c *Chip) Off() bool { return c.off }

// PowerOn ends a power cut, and takes back the order for one.
func (c *Chip) PowerOn() { c.off, c.armed = false, false }

// Torn is how many pages read differently each time.
func (c *Chip) Torn() int { return len(c.ghosts) }

// Readings is how many things each torn page may read as.
func (c *Chip) Readings() map[int]int {
	n := map[int]int{}
	for p, g := range c.ghosts {
		n[p] = len(g.alts)
	}
	return n
}

// SetPick sets Pick.
func (c *Chip) SetPick(pick func(page, n int) int) { c.Pick = pick }

// Ops is how many pages have been written and blocks erased, all told.
func (c *Chip) Ops() int { return c.ops }

// Writes is how often each page has been written.
func (c *Chip) Writes() []int { return slices.Clone(c.writes) }

// Erases is how often each block has been erased.
func (c *Chip) Erases() []int { return slices.Clone(c.erases) }

// Stick makes a page keep what it holds, whatever is written to it.
func (c *Chip) Stick(page int, stuck bool) { c.stuck[page] = stuck }

// Flip inverts a bit.
func (c *Chip) Flip(bit int) { c.cells[bit/8] ^= 1 << (bit % 8) }

// Image is a copy of the content. Pages that were torn are in it as one of the
// things they may be.
func (c *Chip) Image() []byte { return slices.Clone(c.cells) }

// Load replaces the content.
func (c *Chip) Load(img []byte) {
	if len(img) != len(c.cells) {
		panic(fmt.Sprintf("nvmtest: image of %d bytes for %d", len(img), len(c.cells)))
	}
	copy(c.cells, img)
	c.ghosts = map[int]*ghost{}
}

// clone is a chip of its own with the same content, and the power on.
func (c *Chip) clone(seed uint64) *Chip {
	d := newChip(c.g, seed)
	copy(d.cells, c.cells)
	// alternatives are never changed, only replaced
	maps.Copy(d.ghosts, c.ghosts)
	maps.Copy(d.stuck, c.stuck)
	return d
}

// Clone is a chip of its own with the same content, torn pages included, the
// power on and the counts at zero.
func (c *Chip) Clone(seed uint64) *Chip { return c.clone(seed) }

// NOR is a flash memory: bits are only programmed away from the erased value,
// until a block is erased.
type NOR struct{ Chip }

// NewNOR returns an erased flash.
func NewNOR(g nvm.Geometry, seed uint64) *NOR {
	if g.Erase <= 0 || g.Erase%g.Page != 0 {
		panic("nvmtest: a NOR has erase blocks of whole pages")
	}
	return &NOR{*newChip(g, seed)}
}

// Program panics where a bit would have to go back to the erased value, unless
// the page was torn: nobody can know then.
func (n *NOR) Program(ctx context.Context, p []byte, off int64) error {
	torn := n.ghosts[int(off)/n.g.Page] != nil
	return n.program(ctx, p, off, func(have, want byte) byte {
		got := have & want
		if n.g.Erased == 0 {
			got = have | want
		}
		if got != want && !torn {
			panic(fmt.Sprintf("nvmtest: %#02x written over %#02x in the page of %#x", want, have, off))
		}
		return got
	})
}

// Erase erases a block. A power cut leaves any of its pages as anything.
func (n *NOR) Erase(ctx context.Context, off int64) error {
	if n.off {
		return ErrPower
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if off < 0 || off >= n.g.Size || off%int64(n.g.Erase) != 0 {
		panic(fmt.Sprintf("nvmtest: erase at %#x", off))
	}
	block := int(off) / n.g.Erase
	n.ops++
	n.erases[block]++
	if n.EraseHook != nil {
		if err := n.EraseHook(block); err != nil {
			return err
		}
	}
	cut := n.cutNow()
	per := n.g.Erase / n.g.Page
	erased := bytes.Repeat([]byte{n.g.Erased}, n.g.Page)
	for page := block * per; page < (block+1)*per; page++ {
		switch {
		case n.stuck[page]:
		case cut:
			olds, _ := n.page(page)
			n.setPage(page, n.tearFurther(olds, erased))
		default:
			n.setPage(page, Torn{Alts: [][]byte{erased}})
		}
	}
	if cut {
		n.off = true
		return ErrPower
	}
	return nil
}

// Clone is a flash of its own with the same content.
func (n *NOR) Clone(seed uint64) *NOR { return &NOR{*n.clone(seed)} }

// Arm orders a cut inside the n-th write or erase from now on, torn in a way
// that the seed chooses. With Off, PowerOn and Count a Chip is a Power.
func (c *Chip) Arm(n int, seed uint64) { c.Cut(n, Tears[seed%uint64(len(Tears))].Tear) }

// Count is Ops.
func (c *Chip) Count() int { return c.ops }
