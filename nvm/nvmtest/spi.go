package nvmtest

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"baton/nvm"
)

// SPI is a 25xx as it stands on its bus: an nvm.SPIConn over a Chip, whose
// power can be cut in a write. What a driver must never do panics: all but
// reading the status while a write is in progress, and a write past a page's
// end, which wraps around in the page.
type SPI struct {
	*Chip
	// Protect are the block protect bits, 0 to 3.
	Protect byte
	// Line is what a data line reads that the chip does not drive.
	Line byte
	// Absent says that no chip is there.
	Absent bool
	// Busy is how long a write cycle takes; NewSPI sets the part's longest.
	Busy time.Duration
	// Ignored counts the writes that the chip did not take: not enabled,
	// protected.
	Ignored int

	part  nvm.Part25
	latch bool
	until time.Time // end of the write cycle
}

// NewSPI returns an erased chip of the part. Equal seeds behave alike.
func NewSPI(part nvm.Part25, seed uint64) *SPI {
	g := nvm.Geometry{Size: part.Size, Page: part.Page, Erased: 0xff, WriteMax: part.WriteMax}
	return &SPI{Chip: NewChip(g, seed), Line: 0xff, Busy: part.WriteMax, part: part}
}

// PowerOn also resets the latch, as power-up does.
func (s *SPI) PowerOn() {
	s.Chip.PowerOn()
	s.latch, s.until = false, time.Time{}
}

// Clone is a chip of its own with the same content and the power on.
func (s *SPI) Clone(seed uint64) *SPI {
	d := NewSPI(s.part, seed)
	d.Chip = s.Chip.Clone(seed)
	return d
}

// String names the chip select.
func (s *SPI) String() string { return "spitest" }

// Tx is one transfer, full duplex.
func (s *SPI) Tx(w, r []byte) error {
	if len(w) == 0 || len(r) != 0 && len(r) != len(w) {
		panic(fmt.Sprintf("nvmtest: transfer of %d bytes out and %d in", len(w), len(r)))
	}
	if len(w) > 4096 {
		return fmt.Errorf("nvmtest: %d bytes, and spidev takes 4096", len(w))
	}
	for i := range r {
		r[i] = s.Line
	}
	if s.Absent || s.Off() {
		return nil
	}
	busy := time.Now().Before(s.until)
	if !busy && !s.until.IsZero() {
		s.latch, s.until = false, time.Time{}
	}
	op := w[0]
	if s.part.AddrBytes == 1 && op&^0x08 <= 0x03 {
		op &^= 0x08
	}
	if busy && op != 0x05 {
		panic(fmt.Sprintf("nvmtest: instruction %#02x while a write is in progress", op))
	}
	switch op {
	case 0x05: // RDSR
		st := s.Protect << 2
		if busy {
			st |= 1
		}
		if s.latch {
			st |= 2
		}
		fill(r, 1, func(int) byte { return st })
	case 0x06, 0x04: // WREN, WRDI
		if len(w) == 1 {
			s.latch = op == 0x06
		}
	case 0x9f: // RDID
		fill(r, 1, func(i int) byte {
			if i < len(s.part.ID) {
				return s.part.ID[i]
			}
			return s.Line
		})
	case 0x03:
		if at, n := s.address(w); n > 0 {
			s.read(r, at, n)
		}
	case 0x02:
		if at, n := s.address(w); n > 0 && len(w) > n {
			s.write(w[n:], at)
		}
	}
	return nil
}

func fill(r []byte, from int, f func(i int) byte) {
	for i := from; i < len(r); i++ {
		r[i] = f(i - from)
	}
}

// address takes the address out of a transfer, and the bytes before the data;
// 0 where it is cut short. Bits that the chip has no cells for are ignored.
func (s *SPI) address(w []byte) (at int64, n int) {
	n = 1 + s.part.AddrBytes
	if len(w) < n {
		return 0, 0
	}
	if s.part.AddrBytes == 1 {
		at = int64(w[0] >> 3 & 1)
	}
	for _, b := range w[1:n] {
		at = at<<8 | int64(b)
	}
	return at % s.part.Size, n
}

// read goes on at the start behind the end.
func (s *SPI) read(r []byte, at int64, n int) {
	for r = r[min(n, len(r)):]; len(r) > 0; at = 0 {
		part := r[:min(int64(len(r)), s.part.Size-at)]
		if err := s.ReadAt(bg(), part, at); err != nil {
			return
		}
		r = r[len(part):]
	}
}

func (s *SPI) write(p []byte, at int64) {
	size, page := s.part.Size, int64(s.part.Page)
	from := [...]int64{size, size - size/4, size / 2, 0}[s.Protect]
	if !s.latch || at+int64(len(p)) > from {
		s.Ignored++
		s.latch = false
		return
	}
	if at/page != (at+int64(len(p))-1)/page {
		panic(fmt.Sprintf("nvmtest: write of %d bytes at %#x wraps around in its page", len(p), at))
	}
	// Power may go in it, and then nobody hears of it on this bus.
	_ = s.Program(bg(), bytes.Clone(p), at)
	if s.Busy == 0 {
		s.latch = false // FRAM: with the rise of the chip select
		return
	}
	s.until = time.Now().Add(s.Busy)
}

// SetID makes the chip say that it is another.
func (s *SPI) SetID(id []byte) { s.part.ID = slices.Clone(id) }
