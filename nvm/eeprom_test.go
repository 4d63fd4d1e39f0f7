package nvm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"periph.io/x/conn/v3/i2c/i2ctest"
	"periph.io/x/conn/v3/physic"

	"baton/nvm"
)

func seq(from, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(from + i)
	}
	return b
}

// TestEEPROMBytes pins what goes over the wire.
func TestEEPROMBytes(t *testing.T) {
	read := func(n int, off int64) func(*nvm.EEPROM) error {
		return func(e *nvm.EEPROM) error {
			p := make([]byte, n)
			if err := e.ReadAt(bg, p, off); err != nil {
				return err
			}
			if want := seq(int(off), n); !bytes.Equal(p, want) {
				return fmt.Errorf("read % x; want % x", p, want)
			}
			return nil
		}
	}
	write := func(n int, off int64) func(*nvm.EEPROM) error {
		return func(e *nvm.EEPROM) error { return e.Program(bg, seq(int(off), n), off) }
	}
	for _, tt := range []struct {
		name, part string
		do         []func(*nvm.EEPROM) error
		ops        []i2ctest.IO
	}{
		{"one address byte, read", "24c02", []func(*nvm.EEPROM) error{read(3, 0x21)},
			[]i2ctest.IO{{Addr: 0x50, W: []byte{0x21}, R: seq(0x21, 3)}}},
		{"one address byte, page write", "24c02", []func(*nvm.EEPROM) error{write(8, 0xf8)},
			[]i2ctest.IO{{Addr: 0x50, W: append([]byte{0xf8}, seq(0xf8, 8)...)}}},
		{"block bits, read", "24c16", []func(*nvm.EEPROM) error{read(2, 0x534)},
			[]i2ctest.IO{{Addr: 0x55, W: []byte{0x34}, R: seq(0x34, 2)}}},
		{"block bits, read across two blocks", "24c16", []func(*nvm.EEPROM) error{read(4, 0x2fe)},
			[]i2ctest.IO{
				{Addr: 0x52, W: []byte{0xfe}, R: seq(0xfe, 2)},
				{Addr: 0x53, W: []byte{0x00}, R: seq(0x00, 2)},
			}},
		{"block bits, page write", "24c16", []func(*nvm.EEPROM) error{write(16, 0x7f0)},
			[]i2ctest.IO{{Addr: 0x57, W: append([]byte{0xf0}, seq(0xf0, 16)...)}}},
		{"two address bytes, read", "24c256", []func(*nvm.EEPROM) error{read(64, 0x1240)},
			[]i2ctest.IO{{Addr: 0x50, W: []byte{0x12, 0x40}, R: seq(0x40, 64)}}},
		{"two address bytes, page write, read back, end of write", "24c256",
			[]func(*nvm.EEPROM) error{
				write(64, 0x7fc0), read(64, 0x7fc0), write(1, 3),
				func(e *nvm.EEPROM) error { return e.Settle(bg) },
				func(e *nvm.EEPROM) error { return e.Settle(bg) }, // nothing outstanding: nothing on the wire
			},
			[]i2ctest.IO{
				{Addr: 0x50, W: append([]byte{0x7f, 0xc0}, seq(0xc0, 64)...)},
				{Addr: 0x50, W: []byte{0x7f, 0xc0}, R: seq(0xc0, 64)},
				{Addr: 0x50, W: []byte{0x00, 0x03, 0x03}},
				{Addr: 0x50, R: []byte{0x99}},
			}},
		{"long read", "24c256", []func(*nvm.EEPROM) error{read(8200, 0x100)},
			[]i2ctest.IO{
				{Addr: 0x50, W: []byte{0x01, 0x00}, R: seq(0x00, 8192)},
				{Addr: 0x50, W: []byte{0x21, 0x00}, R: seq(0x00, 8)},
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus := &i2ctest.Playback{Ops: tt.ops, DontPanic: true}
				e := nvm.NewEEPROM(bus, 0x50, nvm.Parts[tt.part])
				for i, do := range tt.do {
					if err := do(e); err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
				}
				if err := bus.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// busyBus does not answer until a time, and notes when it was asked.
type busyBus struct {
	i2ctest.Playback
	until time.Time
	asked []time.Duration
	start time.Time
}

var errNACK = errors.New("sysfs-i2c: remote i/o error")

func (b *busyBus) Tx(addr uint16, w, r []byte) error {
	b.asked = append(b.asked, time.Since(b.start))
	if time.Now().Before(b.until) {
		return errNACK
	}
	return b.Playback.Tx(addr, w, r)
}

func (b *busyBus) SetSpeed(physic.Frequency) error { return nil }

func TestEEPROMPolling(t *testing.T) {
	ms := time.Millisecond
	for _, tt := range []struct {
		name  string
		busy  time.Duration // from the write on
		do    func(ctx context.Context, e *nvm.EEPROM) error
		last  i2ctest.IO // what succeeds in the end
		want  error
		early time.Duration // no poll before
		late  time.Duration // has ended by
	}{
		{"a read is its own poll", 4 * ms,
			func(ctx context.Context, e *nvm.EEPROM) error { return e.ReadAt(ctx, make([]byte, 2), 0) },
			i2ctest.IO{Addr: 0x50, W: []byte{0, 0}, R: []byte{1, 2}}, nil, 2 * ms, 4300 * time.Microsecond},
		{"so is a write", 4 * ms,
			func(ctx context.Context, e *nvm.EEPROM) error { return e.Program(ctx, []byte{7}, 5) },
			i2ctest.IO{Addr: 0x50, W: []byte{0, 5, 7}}, nil, 2 * ms, 4300 * time.Microsecond},
		{"Settle reads a byte", 3 * ms,
			func(ctx context.Context, e *nvm.EEPROM) error { return e.Settle(ctx) },
			i2ctest.IO{Addr: 0x50, R: []byte{1}}, nil, 2 * ms, 3300 * time.Microsecond},
		{"a slow chip, within the slack", 9 * ms,
			func(ctx context.Context, e *nvm.EEPROM) error { return e.Settle(ctx) },
			i2ctest.IO{Addr: 0x50, R: []byte{1}}, nil, 2 * ms, 9300 * time.Microsecond},
		{"a dead chip", time.Hour,
			func(ctx context.Context, e *nvm.EEPROM) error { return e.Settle(ctx) },
			i2ctest.IO{}, nvm.ErrTimeout, 2 * ms, 15300 * time.Microsecond},
		{"ended by the caller", time.Hour,
			func(ctx context.Context, e *nvm.EEPROM) error {
				ctx, cancel := context.WithTimeout(ctx, 3*ms)
				defer cancel()
				return e.Settle(ctx)
			},
			i2ctest.IO{}, context.DeadlineExceeded, 2 * ms, 3 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bus := &busyBus{}
				bus.Ops = []i2ctest.IO{{Addr: 0x50, W: []byte{0, 0, 9}}, tt.last}
				e := nvm.NewEEPROM(bus, 0x50, nvm.Parts["24c256"])
				bus.start = time.Now()
				if err := e.Program(bg, []byte{9}, 0); err != nil {
					t.Fatal(err)
				}
				bus.until = time.Now().Add(tt.busy)
				bus.asked = nil
				if err := tt.do(bg, e); !errors.Is(err, tt.want) {
					t.Errorf("error = %v; want %v", err, tt.want)
				}
				if d := time.Since(bus.start); d > tt.late {
					t.Errorf("took %v; want at most %v", d, tt.late)
				}
				for i, at := range bus.asked {
					if at < tt.early {
						t.Errorf("polled after %v; want not before %v", at, tt.early)
					}
					if i > 0 && at-bus.asked[i-1] < 100*time.Microsecond {
						t.Errorf("polls %v apart: nobody else gets the bus", at-bus.asked[i-1])
					}
				}
			})
		})
	}
}

// TestEEPROMSecondMaster has the chip busy although nothing was written.
func TestEEPROMSecondMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := &busyBus{}
		bus.Ops = []i2ctest.IO{{Addr: 0x50, W: []byte{0, 0}, R: []byte{1}}}
		e := nvm.NewEEPROM(bus, 0x50, nvm.Parts["24c256"])
		bus.until = time.Now().Add(12 * time.Millisecond)
		if err := e.ReadAt(bg, make([]byte, 1), 0); err != nil {
			t.Errorf("read of a chip that is busy for 12 ms: %v", err)
		}
		start := time.Now()
		bus.until = start.Add(time.Hour)
		err := e.ReadAt(bg, make([]byte, 1), 0)
		if !errors.Is(err, nvm.ErrAbsent) || !errors.Is(err, errNACK) {
			t.Errorf("read of an absent chip: %v; want ErrAbsent and what the bus said", err)
		}
		if d := time.Since(start); d < 15*time.Millisecond || d > 16*time.Millisecond {
			t.Errorf("gave up after %v; want 15 ms", d)
		}
	})
}

func TestEEPROMRefuses(t *testing.T) {
	bus := &i2ctest.Playback{DontPanic: true} // nothing may reach it
	e := nvm.NewEEPROM(bus, 0x50, nvm.Parts["24c256"])
	for _, tt := range []struct {
		name string
		err  error
		want error
	}{
		{"write across a page", e.Program(bg, make([]byte, 2), 63), nvm.ErrPage},
		{"write of more than a page", e.Program(bg, make([]byte, 65), 0), nvm.ErrPage},
		{"write beyond the end", e.Program(bg, make([]byte, 64), 32768), nvm.ErrRange},
		{"write before the start", e.Program(bg, make([]byte, 1), -1), nvm.ErrRange},
		{"read beyond the end", e.ReadAt(bg, make([]byte, 2), 32767), nvm.ErrRange},
		{"read before the start", e.ReadAt(bg, make([]byte, 1), -1), nvm.ErrRange},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: %v; want %v", tt.name, tt.err, tt.want)
		}
	}
}

// bareChip is a 24Cxx as a bus sees it: as much as the store and Identify need.
type bareChip struct {
	cells     []byte
	addrBytes int
	page      int
	addr      uint16
	ptr       int
	busy      time.Time
	wrote     int
}

func (c *bareChip) String() string                  { return "bus" }
func (c *bareChip) SetSpeed(physic.Frequency) error { return nil }

func (c *bareChip) Tx(addr uint16, w, r []byte) error {
	block := 0
	if c.addrBytes == 1 && len(c.cells) > 256 {
		block = int(addr&7) << 8 & (len(c.cells) - 1)
		addr &^= 7
	}
	if addr != c.addr || time.Now().Before(c.busy) {
		return errNACK
	}
	time.Sleep(time.Duration(len(w)+len(r)) * 22500 * time.Nanosecond)
	if len(w) > 0 {
		n := min(len(w), c.addrBytes)
		p := 0
		for _, b := range w[:n] {
			p = p<<8 | int(b)
		}
		c.ptr = (block | p) % len(c.cells)
		if data := w[n:]; len(data) > 0 {
			// A chip that takes a repeated start for a stop writes even so.
			c.wrote++
			start := c.ptr / c.page * c.page
			for i, b := range data {
				c.cells[start+(c.ptr-start+i)%c.page] = b
			}
			if len(r) == 0 {
				c.busy = time.Now().Add(4 * time.Millisecond)
			}
		}
	}
	for i := range r {
		r[i] = c.cells[c.ptr]
		c.ptr = (c.ptr + 1) % len(c.cells)
	}
	return nil
}

func newBareChip(size, page, addrBytes int) *bareChip {
	return &bareChip{cells: bytes.Repeat([]byte{0xff}, size), page: page, addrBytes: addrBytes, addr: 0x50}
}

// TestStoreOnEEPROM runs the store over the driver and a chip that is busy.
func TestStoreOnEEPROM(t *testing.T) {
	for _, name := range []string{"24c16", "24c32", "24c256", "24c512"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				part := nvm.Parts[name]
				chip := newBareChip(int(part.Size), part.Page, part.AddrBytes)
				e := nvm.NewEEPROM(chip, 0x50, part)
				s := mustFormat(t, e, nvm.Options{})
				want := newModel()
				if _, err := run(s, want, workload(20)); err != nil {
					t.Fatal(err)
				}
				s, rep := mustMount(t, e, suspect)
				if why := want.differs(contents(s)); why != "" || len(rep.Damaged) > 0 {
					t.Errorf("remounted: %s, %+v", why, rep)
				}
				if part.Page == 64 {
					start := time.Now()
					mustPut(t, s, rec("key", "value"))
					// 66 + 66 bytes at 400 kHz, and 4 ms found by polls.
					if d := time.Since(start); d > 7400*time.Microsecond {
						t.Errorf("a Put took %v of bus time", d)
					}
				}
			})
		})
	}
}

func TestIdentify(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := func(c *bareChip) {
		for i := range c.cells {
			c.cells[i] = byte(r.Uint32())
		}
	}
	blank := func(*bareChip) {}
	zero := func(c *bareChip) { clear(c.cells) }
	few := func(c *bareChip) { copy(c.cells[len(c.cells)*3/4:], "a config block, and nothing else") }
	store := func(c *bareChip) {
		e := nvm.NewEEPROM(c, 0x50, nvm.Parts["24c256"])
		s, err := nvm.Format(bg, e, 1, nvm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if err := s.Put(bg, nvm.Urgent, rec(fmt.Sprint(i), "value")); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name string
		chip *bareChip
		fill func(*bareChip)
		part string
		want error
		f    nvm.Found
	}{
		{"right", newBareChip(32768, 64, 2), random, "24c256", nil, nvm.Found{AddrBytes: 2, Size: 32768}},
		{"right, with a store", newBareChip(32768, 64, 2), store, "24c256", nil, nvm.Found{AddrBytes: 2, Size: 32768}},
		{"right, with a config block only", newBareChip(32768, 64, 2), few, "24c256", nil, nvm.Found{AddrBytes: 2, Size: 32768}},
		{"right, 24C512", newBareChip(65536, 128, 2), random, "24c512", nil, nvm.Found{AddrBytes: 2, Size: 65536}},
		{"right, 24C02", newBareChip(256, 8, 1), random, "24c02", nil, nvm.Found{AddrBytes: 1, Size: 256}},
		{"right, 24C16", newBareChip(2048, 16, 1), random, "24c16", nil, nvm.Found{AddrBytes: 1, Size: 2048}},
		{"24C02 for 24C256", newBareChip(256, 8, 1), random, "24c256", nvm.ErrAddressing, nvm.Found{AddrBytes: 1, Size: 256}},
		{"24C16 for 24C256", newBareChip(2048, 16, 1), random, "24c256", nvm.ErrAddressing, nvm.Found{AddrBytes: 1, Size: 2048}},
		{"24C16 with little in it for 24C256", newBareChip(2048, 16, 1), few, "24c256", nvm.ErrAddressing, nvm.Found{AddrBytes: 1, Size: 2048}},
		{"24C256 for 24C02", newBareChip(32768, 64, 2), random, "24c02", nvm.ErrAddressing, nvm.Found{AddrBytes: 2, Size: 32768}},
		{"24C64 for 24C256", newBareChip(8192, 32, 2), random, "24c256", nvm.ErrSize, nvm.Found{AddrBytes: 2, Size: 8192}},
		{"24C512 for 24C256", newBareChip(65536, 128, 2), random, "24c256", nvm.ErrSize, nvm.Found{AddrBytes: 2, Size: 65536}},
		{"24C02 for 24C16", newBareChip(256, 8, 1), random, "24c16", nvm.ErrSize, nvm.Found{AddrBytes: 1, Size: 256}},
		{"blank", newBareChip(32768, 64, 2), blank, "24c256", nil, nvm.Found{Blank: true}},
		{"blank 24C02 for 24C256", newBareChip(256, 8, 1), blank, "24c256", nil, nvm.Found{Blank: true}},
		{"zeroed 24C16 for 24C256", newBareChip(2048, 16, 1), zero, "24c256", nil, nvm.Found{Blank: true}},
		{"blank 24C256 for 24C02", newBareChip(32768, 64, 2), blank, "24c02", nil, nvm.Found{Blank: true}},
		{"at another address", &bareChip{cells: make([]byte, 256), addrBytes: 2, page: 8, addr: 0x51}, random, "24c256", nvm.ErrAbsent, nvm.Found{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.fill(tt.chip)
				before := bytes.Clone(tt.chip.cells)
				e := nvm.NewEEPROM(tt.chip, 0x50, nvm.Parts[tt.part])
				for _, at := range []int{0, 37, len(tt.chip.cells) / 2, len(tt.chip.cells) - 1} {
					tt.chip.ptr = at // wherever the chip's own pointer is
					start := time.Now()
					f, err := e.Identify(bg)
					if !errors.Is(err, tt.want) || f != tt.f {
						t.Errorf("pointer at %#x: Identify = %+v, %v; want %+v, %v", at, f, err, tt.f, tt.want)
					}
					if d := time.Since(start); d > 350*time.Millisecond {
						t.Errorf("took %v", d)
					}
				}
				if !bytes.Equal(tt.chip.cells, before) {
					t.Error("content has changed")
				}
			})
		})
	}
}

func TestParts(t *testing.T) {
	for name, p := range nvm.Parts {
		if p.Name != name || p.Size <= 0 || p.Size%int64(p.Page) != 0 || p.WriteMax <= 0 || p.Endurance <= 0 || p.Sheet == "" {
			t.Errorf("%s: %+v", name, p)
		}
		if two := p.Size > 2048; two != (p.AddrBytes == 2) {
			t.Errorf("%s: %d bytes with %d address bytes", name, p.Size, p.AddrBytes)
		}
	}
}
