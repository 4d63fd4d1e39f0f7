package sim

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// memory addresses an EEPROM as its data sheet says.
type memory struct {
	bus  *Bus
	addr uint16
	part Part
}

func memoryOf(w *World, chip string) memory {
	c := w.Chip(chip)
	return memory{c.bus, c.spec.Addr, c.part}
}

// at gives the device address and the word address bytes of off.
func (m memory) at(off int) (uint16, []byte) {
	if m.part.AddrBytes == 1 {
		return m.addr | uint16(off>>8), []byte{byte(off)}
	}
	return m.addr, []byte{byte(off >> 8), byte(off)}
}

// block is the block bits of a device address for off.
func (m memory) block(off int) uint16 {
	a, _ := m.at(off)
	return a - m.addr
}

func (m memory) write(off int, data []byte) error {
	a, w := m.at(off)
	return m.bus.Tx(a, append(w, data...), nil)
}

// put writes and waits for the write cycle.
func (m memory) put(t *testing.T, off int, data []byte) {
	t.Helper()
	must(t, m.write(off, data))
	time.Sleep(m.part.WriteMax)
}

func (m memory) read(off, n int) ([]byte, error) {
	a, w := m.at(off)
	r := make([]byte, n)
	err := m.bus.Tx(a, w, r)
	return r, err
}

func (m memory) get(t *testing.T, off, n int) []byte {
	t.Helper()
	r, err := m.read(off, n)
	must(t, err)
	return r
}

func oneChip(part string) Spec {
	return Spec{Chips: []ChipSpec{{Name: "c", Addr: 0x50, Part: part}}}
}

func TestPartsAsTheirDataSheets(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(Parts)) {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w := New(oneChip(name))
				m := memoryOf(w, "c")
				size, page := int(m.part.Size), m.part.Page
				if got := m.get(t, 0, 16); !bytes.Equal(got, bytes.Repeat([]byte{0xFF}, 16)) {
					t.Errorf("a new chip reads % x", got)
				}

				// Every page holds what its own write put there.
				want := make([]byte, size)
				r := rand.New(rand.NewPCG(1, 2))
				for off := 0; off < size; off += page {
					for i := range page {
						want[off+i] = byte(r.Uint32())
					}
					m.put(t, off, want[off:off+page])
				}
				if !bytes.Equal(w.Chip("c").Image(), want) {
					t.Error("the image is not what was written")
				}
				if n := w.PageWrites("c"); n != uint64(size/page) {
					t.Errorf("PageWrites = %d; want %d", n, size/page)
				}
				for n, c := range w.Chip("c").Wear() {
					if c != 1 {
						t.Fatalf("page %d was written %d times; want 1", n, c)
					}
				}

				// Sequential read wraps at the end of the part.
				if got := m.get(t, size-4, 8); !bytes.Equal(got, append(slices.Clone(want[size-4:]), want[:4]...)) {
					t.Errorf("read over the end = % x", got)
				}
				// A current-address read goes on from there.
				got := make([]byte, 3)
				must(t, m.bus.Tx(m.addr, nil, got))
				if !bytes.Equal(got, want[4:7]) {
					t.Errorf("current-address read = % x; want % x", got, want[4:7])
				}

				// A page write wraps inside its page, and is a violation.
				base := size/2 + page
				over := []byte{1, 2, 3, 4}
				m.put(t, base+page-2, over)
				copy(want[base+page-2:], over[:2])
				copy(want[base:], over[2:])
				must(t, m.bus.Tx(m.addr|m.block(base), nil, got[:1]))
				if got[0] != want[base+2] {
					t.Errorf("current-address read after it = %02x; want %02x, what follows in the page", got[0], want[base+2])
				}
				if got := m.get(t, base-page, 3*page); !bytes.Equal(got, want[base-page:base+2*page]) {
					t.Errorf("after a page write over the end of the page:\n% x\nwant\n% x", got, want[base-page:base+2*page])
				}
				if v := w.Violations(); len(v) != 1 {
					t.Errorf("violations = %v; want one", v)
				}
				// More bytes than a page: the last ones stay.
				long := make([]byte, page+3)
				for i := range long {
					long[i] = byte(i)
				}
				m.put(t, base, long)
				copy(want[base:], long[:page])
				copy(want[base:], long[page:])
				if got := m.get(t, base, page); !bytes.Equal(got, want[base:base+page]) {
					t.Errorf("after a page write of %d bytes: % x", len(long), got)
				}
			})
		})
	}
}

// TestWriteCycle pins that the chip answers nobody from STOP to the end of its
// write cycle, and answers at once after it.
func TestWriteCycle(t *testing.T) {
	for _, d := range []time.Duration{0, 3 * time.Millisecond, 20 * time.Millisecond} {
		t.Run(d.String(), func(t *testing.T) {
			in(t, func(t *testing.T) {
				w := New(oneChip("24c256"))
				m := memoryOf(w, "c")
				cycle := 5 * time.Millisecond
				if d > 0 {
					w.Chip("c").SetWriteCycle(d)
					cycle = d
				}
				must(t, m.write(0x40, []byte{0xAB}))
				stop := w.Now()
				polls := 0
				for {
					if err := m.bus.Tx(m.addr, []byte{0, 0x40}, nil); err == nil {
						break
					} else if !errors.Is(err, syscall.ENXIO) {
						t.Fatal(err)
					}
					polls++
					time.Sleep(100 * time.Microsecond)
				}
				// The poll that was answered had its acknowledge after the end,
				// the one before it did not.
				poll := 100*time.Microsecond + w.Bus("bus0").span(addrNACKed)
				if took := w.Now() - stop; took < cycle || took > cycle+poll+w.Bus("bus0").span(29) {
					t.Errorf("answered after %v; want within a poll of %v", took, cycle)
				}
				if polls < int(cycle/poll) {
					t.Errorf("%d polls were not acknowledged; want at least %d", polls, cycle/poll)
				}
				if got := m.get(t, 0x40, 1)[0]; got != 0xAB {
					t.Errorf("read %02x", got)
				}
			})
		})
	}
}

func TestChipOddities(t *testing.T) {
	old := []byte{9, 8, 7, 6}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, w *World, m memory)
		want []byte // at 0x100
	}{
		{"write protect: acknowledged, no write cycle", func(t *testing.T, w *World, m memory) {
			w.Chip("c").SetWriteProtect(true)
			must(t, m.write(0x100, []byte{1, 2}))
			if _, err := m.read(0, 1); err != nil {
				t.Errorf("busy after a protected write: %v", err)
			}
		}, old},
		{"worn page: a write cycle that changes nothing", func(t *testing.T, w *World, m memory) {
			w.Chip("c").SetWorn(4, true)
			m.put(t, 0x100, []byte{1, 2})
			if n := w.Chip("c").Wear()[4]; n != 1 {
				t.Errorf("wear = %d; want 1", n)
			}
		}, old},
		{"dead chip", func(t *testing.T, w *World, m memory) {
			w.Chip("c").SetDead(true)
			if err := m.write(0x100, []byte{1, 2}); !errors.Is(err, syscall.ENXIO) {
				t.Errorf("write = %v; want ENXIO", err)
			}
			w.Chip("c").SetDead(false)
		}, old},
		{"repeated START in place of STOP", func(t *testing.T, w *World, m memory) {
			must(t, m.bus.Tx(m.addr, []byte{1, 0, 1, 2}, make([]byte, 1)))
			if v := w.Violations(); len(v) != 1 {
				t.Errorf("violations = %v; want one", v)
			}
		}, old},
		{"address alone latches", func(t *testing.T, w *World, m memory) {
			must(t, m.bus.Tx(m.addr, []byte{1, 2}, nil))
			r := make([]byte, 2)
			must(t, m.bus.Tx(m.addr, nil, r))
			if !bytes.Equal(r, old[2:]) {
				t.Errorf("read % x; want % x", r, old[2:])
			}
		}, old},
		{"flipped bit", func(t *testing.T, w *World, m memory) { w.Chip("c").FlipBit(0x101, 7) }, []byte{9, 0x88, 7, 6}},
		{"partial write keeps the rest of the page", func(t *testing.T, w *World, m memory) {
			m.put(t, 0x101, []byte{1})
		}, []byte{9, 1, 7, 6}},
		{"one-byte chip where a two-byte one was", func(t *testing.T, w *World, m memory) {
			w.Chip("c").Replace("24c02", bytes.Repeat([]byte{0x5A}, 256))
			// Two address bytes: the second is data. This is why nobody may
			// write before he knows.
			must(t, m.bus.Tx(m.addr, []byte{1, 0}, nil))
			time.Sleep(5 * time.Millisecond)
			if got := w.Chip("c").Image()[1]; got != 0 {
				t.Errorf("byte 1 = %02x; want 00", got)
			}
			img := make([]byte, 0x200)
			copy(img[0x100:], old)
			w.Chip("c").Replace("24c256", img)
		}, old},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				s := oneChip("24c256")
				w := New(s)
				w.Chip("c").Poke(0x100, old)
				m := memoryOf(w, "c")
				tt.do(t, w, m)
				if got := m.get(t, 0x100, 4); !bytes.Equal(got, tt.want) {
					t.Errorf("at 0x100 = % x; want % x", got, tt.want)
				}
			})
		})
	}
}

func TestEndurance(t *testing.T) {
	in(t, func(t *testing.T) {
		s := oneChip("24c256")
		s.Chips[0].Endurance = 3
		w := New(s)
		m := memoryOf(w, "c")
		var got []byte
		for i := range 5 {
			m.put(t, 0, []byte{byte(i)})
			got = append(got, m.get(t, 0, 1)[0])
		}
		if want := []byte{0, 1, 2, 2, 2}; !bytes.Equal(got, want) {
			t.Errorf("read % x; want % x", got, want)
		}
	})
}

func TestUnstableUntilRewritten(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneChip("24c256"))
		w.Chip("c").SetUnstable(0x10, 1)
		m := memoryOf(w, "c")
		seen := make(map[byte]bool)
		for range 64 {
			r := m.get(t, 0x0F, 3)
			if r[0] != 0xFF || r[2] != 0xFF {
				t.Fatalf("neighbours read % x", r)
			}
			seen[r[1]] = true
		}
		if len(seen) < 3 {
			t.Errorf("an unstable byte had the readings %v", seen)
		}
		m.put(t, 0x20, []byte{1}) // anywhere in the page
		first := m.get(t, 0x10, 1)
		for range 64 {
			if r := m.get(t, 0x10, 1); !bytes.Equal(r, first) {
				t.Fatalf("after a rewrite: %x, then %x", first, r)
			}
		}
	})
}

// TestChipAgainstArray holds a chip against an array under random writes and
// reads.
func TestChipAgainstArray(t *testing.T) {
	names := slices.Sorted(maps.Keys(Parts))
	type op struct {
		Off  int
		Data []byte // to be written; nil = read N
		N    int
	}
	rapid.Check(t, func(r *rapid.T) {
		name := rapid.SampledFrom(names).Draw(r, "part")
		size, page := int(Parts[name].Size), Parts[name].Page
		ops := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) op {
			o := op{Off: rapid.IntRange(0, size-1).Draw(r, "off"), N: rapid.IntRange(1, 2*page).Draw(r, "n")}
			if rapid.Bool().Draw(r, "write") {
				o.Data = rapid.SliceOfN(rapid.Byte(), 1, page-o.Off%page).Draw(r, "data")
			}
			return o
		}), 1, 20).Draw(r, "ops")

		var diff strings.Builder // a bubble has its own goroutine, rapid wants to be told in its
		in(t, func(t *testing.T) {
			w := New(oneChip(name))
			m := memoryOf(w, "c")
			want := bytes.Repeat([]byte{0xFF}, size)
			for _, o := range ops {
				if o.Data != nil {
					m.put(t, o.Off, o.Data)
					copy(want[o.Off:], o.Data)
				} else if d := cmp.Diff(append(want[o.Off:len(want):len(want)], want...)[:o.N], m.get(t, o.Off, o.N)); d != "" {
					diff.WriteString(fmt.Sprintf("read of %d bytes at 0x%04x:\n%s", o.N, o.Off, d))
				}
			}
			if img := w.Chip("c").Image(); !bytes.Equal(img, want) { // cmp is slow on this much
				diff.WriteString("the image differs:\n" + cmp.Diff(want, img))
			}
		})
		if diff.String() != "" {
			r.Fatal(diff.String())
		}
	})
}

func TestBlockBits(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneChip("24c16"))
		m := memoryOf(w, "c")
		for b := range 8 {
			m.put(t, b<<8|0x30, fmt.Appendf(nil, "block%d", b))
		}
		for b := range 8 {
			want := fmt.Sprintf("block%d", b)
			if got := string(w.Chip("c").Image()[b<<8|0x30:][:6]); got != want {
				t.Errorf("block %d holds %q", b, got)
			}
			if got := string(m.get(t, b<<8|0x30, 6)); got != want {
				t.Errorf("block %d reads %q", b, got)
			}
		}
		if err := w.Bus("bus0").Tx(0x58, []byte{0}, nil); !errors.Is(err, syscall.ENXIO) {
			t.Errorf("address 0x58 = %v; want ENXIO", err)
		}
	})
}
