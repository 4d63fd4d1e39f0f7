package sim

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"baton/ee"
)

// move is a move of gpu0 to server 2 as an agent without checks does it, the
// operation that the tests here cut. It stops at the first error.
func move(w *World) error {
	b := w.Bus("bus0")
	tx := func(addr uint16, p ...byte) error { return b.Tx(addr, p, nil) }
	control := func(v byte) error { return tx(0x40, 1, 7, v) }
	wait := func(addr uint16) error { time.Sleep(5 * time.Millisecond); return tx(addr, 0, 0) }
	for _, step := range []func() error{
		func() error { return tx(0x57, append([]byte{0, 64}, bytes.Repeat([]byte{0x11}, 64)...)...) },
		func() error { return wait(0x57) },
		func() error { return control(base | ee.CtlGuard) },
		func() error { return tx(0x50, append([]byte{0, 0}, blockFor(102).Encode()...)...) },
		func() error { return wait(0x50) },
		func() error { return control(base | ee.CtlGuard | ee.CtlReload) },
		func() error { time.Sleep(2 * time.Millisecond); return nil },
		func() error { return tx(0x40, 1, 0, 2, 'S', 'V', 0, 0, 2, ee.ShowValid, base|ee.CtlGuard|ee.CtlLink) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

const movePositions = 64 + 1 + 1 + 64 + 1 + 1 + 8

// cutState is what a cut leaves, from the model's side.
type cutState struct {
	Store, Block string
	Reach        []Interval
	At           time.Duration
}

func stateOf(w *World) cutState {
	return cutState{string(w.Chip("store").Image()), string(w.Chip("gpu0").Image()[:64]), w.Reach(), w.Now()}
}

func TestPositions(t *testing.T) {
	in(t, func(t *testing.T) {
		w, _ := linked(t, oneSlot(), ee.CtlGuard)
		before := w.Positions()
		var seen []Position
		w.OnPosition(func(p Position) { seen = append(seen, p) })
		t0 := w.Now()
		must(t, move(w))
		hooked := w.Now() - t0
		if n := w.Positions() - before; n != movePositions || len(seen) != movePositions {
			t.Errorf("Positions = %d, the hook saw %d; want %d", n, len(seen), movePositions)
		}
		kinds := make(map[string]int)
		for i, p := range seen {
			if p.N != before+uint64(i)+1 {
				t.Errorf("position %d has N = %d", i, p.N)
			}
			kinds[p.Kind.String()+" "+p.Name]++
		}
		want := map[string]int{"data store": 64, "cycle store": 1, "data gpu0": 64, "cycle gpu0": 1, "register gpu0": 10}
		if d := cmp.Diff(want, kinds); d != "" {
			t.Error(d)
		}
		w.OnPosition(nil)
		w2, _ := linked(t, oneSlot(), ee.CtlGuard)
		t0 = w2.Now()
		must(t, move(w2))
		if took := w2.Now() - t0; took != hooked {
			t.Errorf("the hook changes the time: %v with, %v without", hooked, took)
		}
	})
}

// TestCutAtEveryPosition cuts a move at each position, twice: both leave the
// same; and what is left is right for the position.
func TestCutAtEveryPosition(t *testing.T) {
	old := bytes.Repeat([]byte{0xFF}, 64)
	rec := bytes.Repeat([]byte{0x11}, 64)
	block1, block2 := blockFor(101).Encode(), blockFor(102).Encode()
	run := func(n uint64, tear Tear) (left cutState) {
		in(t, func(t *testing.T) {
			w, _ := linked(t, oneSlot(), ee.CtlGuard)
			w.SetTear(tear)
			before := w.Positions()
			w.CutAt(n)
			var off atomic.Bool
			w.OnCut(func() { off.Store(true) })
			if err := move(w); !errors.Is(err, ErrPowerOff) && n < movePositions {
				t.Fatalf("cut at %d: the move ended with %v", n, err)
			}
			if w.Powered() || !off.Load() {
				t.Fatalf("cut at %d: powered %v, OnCut called %v", n, w.Powered(), off.Load())
			}
			if passed := w.Positions() - before; passed != n {
				t.Errorf("cut at %d: %d positions were passed", n, passed)
			}
			left = stateOf(w)
		})
		return left
	}
	for n := uint64(1); n <= movePositions; n++ {
		for _, tear := range []Tear{{Kind: TearOld}, {Kind: TearPerByte, Seed: n, Unstable: 2}} {
			a, b := run(n, tear), run(n, tear)
			if d := cmp.Diff(a, b); d != "" {
				t.Fatalf("cut at %d, twice, differs:\n%s", n, d)
			}
			wantStore, wantBlock := old, block1
			if n > 65 {
				wantStore = rec
			}
			if n > 66+65 {
				wantBlock = block2
			}
			tornStore, tornBlock := n == 65 && tear.Kind != TearOld, n == 66+65 && tear.Kind != TearOld
			if got := a.Store[64:128]; (got == string(wantStore)) == tornStore {
				t.Errorf("cut at %d, %+v: the store's page holds % x", n, tear, got)
			}
			if (a.Block == string(wantBlock)) == tornBlock {
				t.Errorf("cut at %d, %+v: the block holds % x", n, tear, a.Block)
			}
			if len(a.Reach) != 1 || a.Reach[0].Open {
				t.Errorf("cut at %d: reach %+v", n, a.Reach)
			}
		}
	}
}

// TestSnapshotAtPosition: a power cut of a world from a snapshot at a position
// leaves what a cut at that position leaves.
func TestSnapshotAtPosition(t *testing.T) {
	tear := Tear{Kind: TearRandom, Seed: 5}
	var snaps []*Snapshot
	in(t, func(t *testing.T) {
		w, _ := linked(t, oneSlot(), ee.CtlGuard)
		w.OnPosition(func(Position) { snaps = append(snaps, w.Snapshot()) })
		must(t, move(w))
	})
	if len(snaps) != movePositions {
		t.Fatalf("%d snapshots", len(snaps))
	}
	for i, s := range snaps {
		in(t, func(t *testing.T) { // another bubble than the snapshot's
			w := s.World()
			w.SetTear(tear)
			w.PowerCut()
			cut, _ := linked(t, oneSlot(), ee.CtlGuard)
			cut.SetTear(tear)
			cut.CutAt(uint64(i) + 1)
			if err := move(cut); err == nil && i+1 < movePositions {
				t.Fatal("the move went through")
			}
			a, b := stateOf(w), stateOf(cut)
			if a.Store != b.Store || a.Block != b.Block {
				t.Errorf("position %d: a snapshot's cut leaves another content", i+1)
			}
			if w.PageWrites("store") != cut.PageWrites("store") || w.PageWrites("gpu0") != cut.PageWrites("gpu0") {
				t.Errorf("position %d: page writes differ", i+1)
			}
			w.PowerOn()
			boot(w)
			if got := engineOf(t, w, "gpu0").get1(ee.RegLatch); got != ee.LatchPowerLost|ee.LatchRestarted {
				t.Errorf("position %d: LATCH = 0x%02x after power-on", i+1, got)
			}
		})
	}
}

func TestTears(t *testing.T) {
	old := bytes.Repeat([]byte{0x3C}, 64)
	written := bytes.Repeat([]byte{0xC3}, 64)
	all := func(v byte) func([]byte) bool {
		return func(p []byte) bool { return bytes.Equal(p, bytes.Repeat([]byte{v}, 64)) }
	}
	count := func(p []byte, v byte) int { return bytes.Count(p, []byte{v}) }
	for _, tt := range []struct {
		kind TearKind
		ok   func([]byte) bool
	}{
		{TearOld, all(0x3C)},
		{TearNew, all(0xC3)},
		{TearHalf, func(p []byte) bool { return bytes.Equal(p, append(bytes.Clone(written[:32]), old[32:]...)) }},
		{TearRandom, func(p []byte) bool { return count(p, 0x3C) < 8 && count(p, 0xC3) < 8 }},
		{TearOnes, all(0xFF)},
		{TearZeros, all(0)},
		{TearPerByte, func(p []byte) bool {
			o, n := count(p, 0x3C), count(p, 0xC3)
			return o > 5 && n > 5 && o+n < 60
		}},
	} {
		t.Run(tt.kind.String(), func(t *testing.T) {
			in(t, func(t *testing.T) {
				w := New(oneChip("24c256"))
				around := bytes.Repeat([]byte{0x77}, 64)
				w.Chip("c").SetImage(bytes.Join([][]byte{around, old, around}, nil))
				tear := func(unstable int, seed uint64) []byte {
					w.Chip("c").Poke(64, old)
					w.SetTear(Tear{Kind: tt.kind, Unstable: unstable, Seed: seed})
					must(t, memoryOf(w, "c").write(64, written))
					w.PowerCut()
					w.PowerOn()
					return w.Chip("c").Peek(64, 64)
				}
				first := tear(0, 1)
				if !tt.ok(first) {
					t.Errorf("left % x", first)
				}
				if again := tear(0, 1); !bytes.Equal(again, first) {
					t.Error("the same tear leaves something else the second time")
				}
				if other := tear(0, 2); bytes.Equal(other, first) == (tt.kind == TearRandom || tt.kind == TearPerByte) {
					t.Errorf("another seed: same content %v", bytes.Equal(other, first))
				}
				tear(3, 1)
				m := memoryOf(w, "c")
				loose := make(map[int]bool)
				ref := m.get(t, 64, 64)
				for range 100 {
					for i, v := range m.get(t, 64, 64) {
						if v != ref[i] {
							loose[i] = true
						}
					}
				}
				if len(loose) != 3 {
					t.Errorf("%d bytes are unstable; want 3", len(loose))
				}
				if !bytes.Equal(m.get(t, 0, 64), around) || !bytes.Equal(m.get(t, 128, 64), around) {
					t.Error("a neighbouring page changed")
				}
				// A cut that leaves a page as it was leaves it unstable too; a
				// write that ends makes it good.
				w.SetTear(Tear{Kind: TearOld})
				must(t, m.write(64, written))
				w.PowerCut()
				w.PowerOn()
				changed := false
				ref = m.get(t, 64, 64)
				for range 100 {
					changed = changed || !bytes.Equal(m.get(t, 64, 64), ref)
				}
				if !changed {
					t.Error("unstable bytes became good by a write that did not happen")
				}
				m.put(t, 64, written)
				for range 100 {
					if got := m.get(t, 64, 64); !bytes.Equal(got, written) {
						t.Fatalf("after a whole write: % x", got)
					}
				}
			})
		})
	}
}

// TestCutOutsideCycle: a page whose write cycle is over keeps what it has.
func TestCutOutsideCycle(t *testing.T) {
	for _, tt := range []struct {
		after time.Duration
		want  byte
	}{{0, 0xFF}, {5*time.Millisecond - 1, 0xFF}, {5 * time.Millisecond, 1}} {
		in(t, func(t *testing.T) {
			w := New(oneChip("24c256"))
			w.SetTear(Tear{Kind: TearOld})
			must(t, memoryOf(w, "c").write(0, []byte{1}))
			time.Sleep(tt.after)
			w.PowerCut()
			if got := w.Chip("c").Image()[0]; got != tt.want {
				t.Errorf("cut %v into the write cycle: %02x; want %02x", tt.after, got, tt.want)
			}
		})
	}
}

// TestWithoutPower: transfers fail, soon, and those under way as well.
func TestWithoutPower(t *testing.T) {
	in(t, func(t *testing.T) {
		w, e := linked(t, oneSlot(), ee.CtlGuard)
		must(t, w.Server("server1").WriteMem("gpu0", 0, []byte("step")))
		for _, tx := range []struct {
			addr uint16
			w, r []byte
		}{{0x57, make([]byte, 66), nil}, {0x57, []byte{0, 0}, make([]byte, 100)}, {0x40, []byte{1, 7, base, 0, 0, 0, 0, 0}, nil}, {0x40, []byte{1, 7}, make([]byte, 50)}} {
			w.PowerOn()
			boot(w)
			w.CutAfter(80 * time.Microsecond)
			if err := w.Bus("bus0").Tx(tx.addr, tx.w, tx.r); !errors.Is(err, ErrPowerOff) {
				t.Errorf("power went under a transfer with 0x%02x: %v", tx.addr, err)
			}
			t0 := time.Now()
			if err := w.Bus("bus0").Tx(tx.addr, tx.w, tx.r); !errors.Is(err, ErrPowerOff) {
				t.Errorf("without power: %v", err)
			}
			if took := time.Since(t0); took > 100*time.Microsecond {
				t.Errorf("a transfer without power took %v", took)
			}
		}
		if n := w.PageWrites("store"); n != 0 {
			t.Errorf("%d page writes without STOP", n)
		}
		if w.MemoryIntactSince("gpu0", 0) || len(w.PowerLosses("gpu0")) != 4 {
			t.Errorf("power losses: %v", w.PowerLosses("gpu0"))
		}
		// Power that went and came back under a transfer fails it too.
		w.PowerOn()
		boot(w)
		go func() {
			time.Sleep(time.Millisecond)
			w.PowerCut()
			w.PowerOn()
		}()
		if err := e.bus.Tx(0x57, make([]byte, 66), nil); !errors.Is(err, ErrPowerOff) {
			t.Errorf("power came back under a transfer: %v", err)
		}
		if n := w.PageWrites("store"); n != 0 {
			t.Errorf("%d page writes", n)
		}
	})
}

func TestCutAfter(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		gone := make(chan time.Duration, 1)
		w.OnCut(func() { gone <- w.at })
		w.CutAfter(time.Minute)
		if at := <-gone; at != time.Minute { // told in time, though nobody looks
			t.Errorf("power went at %v", at)
		}
		w.PowerOn()
		w.CutAfter(time.Minute)
		w.CutAfter(-1)
		w.CutAt(1)
		w.CutAt(0)
		time.Sleep(time.Hour)
		must(t, w.Bus("bus0").Tx(0x57, []byte{0, 0, 1}, nil))
		if !w.Powered() {
			t.Error("a cut that was called off came")
		}
	})
}

// TestCutDuringLoad: power goes while the engine reads its block, once.
func TestCutDuringLoad(t *testing.T) {
	for _, how := range []string{"reload", "power-on"} {
		t.Run(how, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w := New(oneSlot())
				boot(w)
				e := engineOf(t, w, "gpu0")
				cut := make(chan struct{})
				w.OnCut(func() { close(cut) })
				w.Slot("gpu0").CutDuringLoad()
				began := w.Now()
				want := began + w.spec.ReloadLatency/2
				if how == "reload" {
					e.set(ee.RegControl, base|ee.CtlReload)
					want = w.Now() - e.bus.span(stopBit) + w.spec.ReloadLatency/2
				} else {
					w.Slot("gpu0").Restart()
					want += w.spec.EngineStartTime
				}
				<-cut
				if w.Now() != want {
					t.Errorf("power went at %v; want %v", w.Now(), want)
				}
				w.PowerOn()
				boot(w)
				if got := e.get1(ee.RegStatus); got&(ee.StatLoaded|ee.StatConfigBad) != ee.StatLoaded {
					t.Errorf("STATUS = 0x%02x", got)
				}
			})
		})
	}
}

// TestCutWithTwoBuses: a cut at a position on one bus fails the transfer on the
// other, and what that had latched is lost.
func TestCutWithTwoBuses(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(Spec{Buses: []BusSpec{{}, {}}, Chips: []ChipSpec{{Name: "a"}, {Name: "b", Bus: "bus1"}}})
		other := make(chan error)
		go func() { // begins first, ends last
			other <- w.Bus("bus1").Tx(0x51, make([]byte, 66), nil)
		}()
		time.Sleep(500 * time.Microsecond)
		w.CutAt(3)
		t0 := w.Now()
		if err := w.Bus("bus0").Tx(0x50, make([]byte, 34), nil); !errors.Is(err, ErrPowerOff) {
			t.Errorf("bus0: %v", err)
		}
		// START, address, word address, three bytes.
		if took := w.Now() - t0; took != 55*2500*time.Nanosecond {
			t.Errorf("power went after %v", took)
		}
		if err := <-other; !errors.Is(err, ErrPowerOff) {
			t.Errorf("bus1: %v", err)
		}
		w.PowerOn()
		if a, b := w.PageWrites("a"), w.PageWrites("b"); a+b != 0 {
			t.Errorf("page writes: %d and %d", a, b)
		}
	})
}

// TestCutPlannedWithoutPower: it comes if power is back by then.
func TestCutPlannedWithoutPower(t *testing.T) {
	for _, back := range []time.Duration{10 * time.Millisecond, 30 * time.Millisecond} {
		in(t, func(t *testing.T) {
			w := New(oneChip("24c256"))
			w.PowerCut()
			w.CutAfter(20 * time.Millisecond)
			time.Sleep(back)
			w.PowerOn()
			time.Sleep(time.Second)
			if got, want := w.Powered(), back > 20*time.Millisecond; got != want {
				t.Errorf("power back after %v: powered %v later; want %v", back, got, want)
			}
		})
	}
}

// TestOff: a world may start without power.
func TestOff(t *testing.T) {
	in(t, func(t *testing.T) {
		s := oneSlot()
		s.Off = true
		w := New(s)
		if err := w.Bus("bus0").Tx(0x57, []byte{0, 0}, nil); !errors.Is(err, ErrPowerOff) {
			t.Errorf("Tx = %v", err)
		}
		time.Sleep(time.Hour)
		w.PowerOn()
		boot(w)
		if got := engineOf(t, w, "gpu0").get1(ee.RegStatus); got&ee.StatLoaded == 0 {
			t.Errorf("STATUS = 0x%02x", got)
		}
	})
}
