package nvm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"periph.io/x/conn/v3/conntest"
	"periph.io/x/conn/v3/physic"
	"periph.io/x/conn/v3/spi"
	"periph.io/x/conn/v3/spi/spitest"

	"baton/nvm"
	"baton/nvm/nvmtest"
)

func newSPI25(t *testing.T, conn nvm.SPIConn, part nvm.Part25) *nvm.SPI25 {
	t.Helper()
	m := nvm.NewSPI25(conn, part)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
	return m
}

// TestSPI25Bytes pins what goes over the wire.
func TestSPI25Bytes(t *testing.T) {
	const idle, wel, wip = 0x00, 0x02, 0x03
	status := func(st byte) conntest.IO { return conntest.IO{W: []byte{5, 0}, R: []byte{0, st}} }
	wren := conntest.IO{W: []byte{6}}
	read := func(head []byte, data ...byte) conntest.IO {
		return conntest.IO{
			W: append(slices.Clone(head), make([]byte, len(data))...),
			R: append(make([]byte, len(head)), data...),
		}
	}
	get := func(n int, off int64, want ...byte) func(*nvm.SPI25) error {
		return func(m *nvm.SPI25) error {
			p := make([]byte, n)
			if err := m.ReadAt(bg, p, off); err != nil {
				return err
			}
			if !bytes.Equal(p, want) {
				return fmt.Errorf("read % x; want % x", p, want)
			}
			return nil
		}
	}
	put := func(off int64, p ...byte) func(*nvm.SPI25) error {
		return func(m *nvm.SPI25) error { return m.Program(bg, p, off) }
	}
	settle := func(m *nvm.SPI25) error { return m.Settle(bg) }
	for _, tt := range []struct {
		name, part string
		do         []func(*nvm.SPI25) error
		ops        []conntest.IO
	}{
		{"one address byte, A8 in the instruction", "25lc040",
			[]func(*nvm.SPI25) error{get(2, 0x134, 7, 8), put(0x1f0, 9), put(0x0f, 1)},
			[]conntest.IO{
				status(idle), read([]byte{0x0b, 0x34}, 7, 8),
				status(idle), wren, status(wel), {W: []byte{0x0a, 0xf0, 9}},
				status(idle), wren, status(wel), {W: []byte{0x02, 0x0f, 1}},
			}},
		{"two address bytes, a write cycle, its end", "25lc256",
			[]func(*nvm.SPI25) error{put(0x7fc0, seq(0, 64)...), settle, settle, get(1, 0x7fc0, 0)},
			[]conntest.IO{
				status(idle), wren, status(wel), {W: append([]byte{2, 0x7f, 0xc0}, seq(0, 64)...)},
				status(wip), status(wip), status(idle), // the second Settle has nothing to ask
				status(idle), read([]byte{3, 0x7f, 0xc0}, 0),
			}},
		{"three address bytes", "25csm04",
			[]func(*nvm.SPI25) error{put(0x712300, 0xaa), get(3, 0x45678, 1, 2, 3)},
			nil},
		{"FRAM", "fm25v02",
			[]func(*nvm.SPI25) error{put(0x1234, 0xaa), settle},
			[]conntest.IO{status(0x40), wren, status(0x42), {W: []byte{2, 0x12, 0x34, 0xaa}}, status(0x40)}},
		{"a read longer than spidev's buffer", "25lc256",
			[]func(*nvm.SPI25) error{get(4094, 0x10, seq(0, 4094)...)},
			[]conntest.IO{
				status(idle),
				read([]byte{3, 0, 0x10}, seq(0, 4093)...),
				read([]byte{3, 0x10, 0x0d}, seq(4093, 1)...),
			}},
	} {
		if tt.ops == nil {
			tt.do = []func(*nvm.SPI25) error{put(0x71200, 0xaa), get(3, 0x45678, 1, 2, 3)}
			tt.ops = []conntest.IO{
				status(idle), wren, status(wel), {W: []byte{2, 0x07, 0x12, 0x00, 0xaa}},
				status(idle), read([]byte{3, 0x04, 0x56, 0x78}, 1, 2, 3),
			}
		}
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				port := &spitest.Playback{Playback: conntest.Playback{Ops: tt.ops, DontPanic: true}}
				conn, err := port.Connect(physic.MegaHertz, spi.Mode0, 8)
				if err != nil {
					t.Fatal(err)
				}
				m := newSPI25(t, conn, nvm.Parts25[tt.part])
				for i, do := range tt.do {
					if err := do(m); err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
				}
				if err := port.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestParts25 has every part do a write cycle of a page at its end, and refuse
// what no part takes.
func TestParts25(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(nvm.Parts25)) {
		part := nvm.Parts25[name]
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if part.Name != name || part.Sheet == "" || part.SpeedMax == 0 || part.Endurance == 0 {
					t.Errorf("incomplete: %+v", part)
				}
				chip := nvmtest.NewSPI(part, 1)
				m := newSPI25(t, chip, part)
				p, off := seq(3, part.Page), part.Size-int64(part.Page)
				start := time.Now()
				if err := m.Program(bg, p, off); err != nil {
					t.Fatal(err)
				}
				if err := m.Settle(bg); err != nil {
					t.Fatal(err)
				}
				if d := time.Since(start); d < part.WriteMax || d > part.WriteMax+time.Millisecond {
					t.Errorf("a write took %v; want %v", d, part.WriteMax)
				}
				got := make([]byte, part.Page)
				if err := m.ReadAt(bg, got, off); err != nil || !bytes.Equal(got, p) {
					t.Errorf("ReadAt = % x, %v", got, err)
				}
				if !bytes.Equal(chip.Image()[off:], p) || chip.Ops() != 1 || chip.Ignored != 0 {
					t.Errorf("the chip has taken %d writes and ignored %d", chip.Ops(), chip.Ignored)
				}
				for what, err := range map[string]error{
					"write beyond the end": m.Program(bg, p, part.Size),
					"read beyond the end":  m.ReadAt(bg, p, part.Size-1),
					"read before":          m.ReadAt(bg, p, -1),
				} {
					if !errors.Is(err, nvm.ErrRange) {
						t.Errorf("%s: %v; want ErrRange", what, err)
					}
				}
				if err := m.Program(bg, p, off-1); !errors.Is(err, nvm.ErrPage) {
					t.Errorf("write across a page: %v; want ErrPage", err)
				}
				ended, cancel := context.WithCancel(bg)
				cancel()
				if err := m.Program(ended, p, off); !errors.Is(err, context.Canceled) {
					t.Errorf("write, ended: %v", err)
				}
			})
		})
	}
}

// TestSPI25Faults has chips that do not do what they are asked: each is named,
// and nothing is written.
func TestSPI25Faults(t *testing.T) {
	part := nvm.Parts25["25lc256"]
	for _, tt := range []struct {
		name      string
		break_    func(*nvmtest.SPI)
		off       int64
		want      error
		says      string
		readsWell bool
	}{
		{"no chip, line high", func(c *nvmtest.SPI) { c.Absent = true }, 0, nvm.ErrAbsent, "0xff", false},
		{"no chip, line low", func(c *nvmtest.SPI) { c.Absent, c.Line = true, 0 }, 0, nvm.ErrAbsent, "latch does not set", true},
		{"all protected", func(c *nvmtest.SPI) { c.Protect = 3 }, 0, nvm.ErrReadOnly, "block protect", true},
		{"upper half protected", func(c *nvmtest.SPI) { c.Protect = 2 }, 16384, nvm.ErrReadOnly, "0x0a", true},
		{"below the upper half", func(c *nvmtest.SPI) { c.Protect = 2 }, 0, nvm.ErrReadOnly, "block protect", true},
		{"upper quarter protected", func(c *nvmtest.SPI) { c.Protect = 1 }, 24576, nvm.ErrReadOnly, "0x06", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				chip := nvmtest.NewSPI(part, 1)
				tt.break_(chip)
				m := newSPI25(t, chip, part)
				start := time.Now()
				err := m.Program(bg, []byte{1}, tt.off)
				if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("Program = %v; want %v, saying %q", err, tt.want, tt.says)
				}
				if d := time.Since(start); d > 20*time.Millisecond {
					t.Errorf("told after %v", d)
				}
				if chip.Ops() != 0 || chip.Ignored != 0 {
					t.Errorf("%d writes, %d ignored; want none sent", chip.Ops(), chip.Ignored)
				}
				if err := m.ReadAt(bg, make([]byte, 4), 0); (err == nil) != tt.readsWell {
					t.Errorf("ReadAt = %v", err)
				}
				if _, err := nvm.Format(bg, m, 1, nvm.Options{}); !errors.Is(err, tt.want) {
					t.Errorf("Format = %v; want %v", err, tt.want)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		chip := nvmtest.NewSPI(part, 1)
		chip.Busy = time.Hour
		m := newSPI25(t, chip, part)
		if err := m.Program(bg, []byte{1}, 0); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := m.Settle(bg); !errors.Is(err, nvm.ErrTimeout) || time.Since(start) > 16*time.Millisecond {
			t.Errorf("Settle = %v after %v; want ErrTimeout within 16 ms", err, time.Since(start))
		}
		// Another driver, as after a restart in a write cycle, waits for it too.
		chip.Busy = 3 * time.Millisecond
		chip.PowerOn()
		if err := m.Program(bg, []byte{1}, 64); err != nil {
			t.Fatal(err)
		}
		again := newSPI25(t, chip, part)
		if err := again.ReadAt(bg, make([]byte, 1), 64); err != nil {
			t.Errorf("a read of another driver in the cycle: %v", err)
		}
	})
}

// stuck is a driver that does not come back.
type stuck struct{ hang chan struct{} }

func (s stuck) String() string       { return "stuck" }
func (s stuck) Tx(w, r []byte) error { <-s.hang; return nil }

func TestSPI25Wedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stuck{make(chan struct{})}
		m := newSPI25(t, s, nvm.Parts25["25lc256"])
		start := time.Now()
		if err := m.ReadAt(bg, make([]byte, 4), 0); !errors.Is(err, nvm.ErrWedged) || time.Since(start) > 4*time.Second {
			t.Errorf("ReadAt = %v after %v; want ErrWedged", err, time.Since(start))
		}
		start = time.Now()
		if err := m.Program(bg, []byte{1}, 0); !errors.Is(err, nvm.ErrWedged) || time.Since(start) != 0 {
			t.Errorf("Program = %v after %v; want ErrWedged at once", err, time.Since(start))
		}
		close(s.hang)
		synctest.Wait()
	})
}

func TestSPI25Identify(t *testing.T) {
	content := func(c *nvmtest.SPI) {
		img := c.Image()
		for i := range img {
			img[i] = byte(i*7 + i/256*13 + i/4096)
		}
		c.Load(img)
	}
	for _, tt := range []struct {
		configured, real string
		prepare          func(*nvmtest.SPI)
		want             error
		found            nvm.Found
	}{
		{"25lc256", "25lc256", content, nil, nvm.Found{AddrBytes: 2, Size: 32768}},
		{"25lc256", "25lc256", nil, nil, nvm.Found{Blank: true}},
		{"25lc256", "25lc128", content, nvm.ErrSize, nvm.Found{AddrBytes: 2, Size: 16384}},
		{"25lc256", "25lc320", content, nvm.ErrSize, nvm.Found{AddrBytes: 2, Size: 4096}},
		{"25lc128", "25lc256", content, nvm.ErrSize, nvm.Found{AddrBytes: 2, Size: 32768}},
		{"25lc256", "25lc1024", content, nvm.ErrAddressing, nvm.Found{AddrBytes: 3}},
		{"25lc1024", "25lc256", content, nvm.ErrAddressing, nvm.Found{AddrBytes: 2}},
		{"25lc256", "25lc040", content, nvm.ErrAddressing, nvm.Found{AddrBytes: 1}},
		{"25lc040", "25lc040", content, nil, nvm.Found{AddrBytes: 1, Size: 512}},
		{"25csm04", "25csm04", content, nil, nvm.Found{AddrBytes: 3, Size: 524288}},
		{"fm25v02", "fm25v02", content, nil, nvm.Found{ID: "7f 7f 7f 7f 7f 7f c2 22"}},
		{"fm25v02", "mb85rs256", nil, nvm.ErrKind, nvm.Found{ID: "04 7f 05 09 ff ff ff ff"}},
		{"mb85rs256", "25lc256", content, nvm.ErrKind, nvm.Found{ID: "ff ff ff ff"}},
		{"25lc256", "25lc256", func(c *nvmtest.SPI) { c.Absent = true }, nvm.ErrAbsent, nvm.Found{}},
		{"25lc256", "25lc256", func(c *nvmtest.SPI) { c.Absent, c.Line = true, 0 }, nvm.ErrAbsent, nvm.Found{}},
	} {
		synctest.Test(t, func(t *testing.T) {
			chip := nvmtest.NewSPI(nvm.Parts25[tt.real], 1)
			if tt.prepare != nil {
				tt.prepare(chip)
			}
			before := chip.Image()
			m := newSPI25(t, chip, nvm.Parts25[tt.configured])
			found, err := m.Identify(bg)
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) || found != tt.found {
				t.Errorf("a %s configured as %s: Identify = %+v, %v; want %+v, %v", tt.real, tt.configured, found, err, tt.found, tt.want)
			}
			if other := tt.want != nil && !errors.Is(tt.want, nvm.ErrAbsent); nvm.OtherPart(err) != other {
				t.Errorf("OtherPart(%v) = %v; want %v", err, !other, other)
			}
			if chip.Ops() != 0 || chip.Ignored != 0 || !bytes.Equal(chip.Image(), before) {
				t.Errorf("Identify of a %s has written", tt.real)
			}
		})
	}
}
