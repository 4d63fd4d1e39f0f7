package sim

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"baton/ee"
)

// everything is all that can be seen of a world without changing it.
func everything(w *World) map[string]any {
	m := map[string]any{
		"reach": w.Reach(), "positions": w.Positions(), "powered": w.Powered(), "violations": w.Violations(),
		"switch": w.Switch().Changes(), "now": w.Now(),
	}
	for _, c := range w.spec.Chips {
		m["chip "+c.Name] = string(w.Chip(c.Name).Image())
		m["wear "+c.Name] = w.Chip(c.Name).Wear()
	}
	for _, s := range w.spec.Slots {
		m["slot "+s.Name] = w.Slot(s.Name).State()
		m["regs "+s.Name] = w.Slot(s.Name).Registers()
		m["resets "+s.Name] = w.Resets(s.Name)
		m["writes "+s.Name] = w.Slot(s.Name).RegisterWrites()
		if s.Port != "" {
			m["port "+s.Port] = fmt.Sprint(w.sw.vlans[s.Port])
		}
	}
	for _, v := range w.spec.Servers {
		p := make([]byte, 16)
		err := w.Server(v.Name).ReadMem("gpu0", 0, p)
		m["server "+v.Name] = []any{w.Server(v.Name).VMs(), w.Server(v.Name).DMA(), string(p), fmt.Sprint(err)}
	}
	for _, b := range w.spec.Buses {
		m["bus "+b.Name] = w.Bus(b.Name).Stats()
	}
	return m
}

// still is what of it does not change by time alone.
func still(m map[string]any) map[string]any {
	m = maps.Clone(m)
	delete(m, "now")
	delete(m, "reach")
	for k, v := range m {
		if s, ok := v.([]any); ok { // a server: without its DMA
			m[k] = []any{s[0], s[2], s[3]}
		}
	}
	return m
}

// stir changes all that a world has.
func stir(t *testing.T, w *World, e engine) {
	t.Helper()
	time.Sleep(5 * time.Millisecond) // a write cycle is under way
	v := w.Server("server1")
	w.Bus("bus0").Tx(0x57, []byte{0}, nil) // meets the fault
	w.Bus("bus0").ClearFaults()
	must(t, memoryOf(w, "store").write(0, []byte{7, 7, 7}))
	must(t, v.WriteMem("gpu0", 0, []byte("stirred")))
	v.StopVM("train")
	must(t, v.StartVM("other", []string{"gpu0"}, VMOptions{}))
	e.set(ee.RegExpectPeer, 1, 2, 3, 4, 5, 6, ee.ShowBusy, base)
	must(t, w.Switch().Leave(t.Context(), "lan3", 101))
	w.Chip("gpu0").FlipBit(9, 1)
	w.Chip("store").SetUnstable(200, 4)
	w.Chip("gpu0").SetDead(true)
	w.Server("server2").PowerLoss()
	time.Sleep(time.Second)
	w.PowerCut()
}

func cloneSpec() Spec {
	s := oneSlot()
	s.Slots[0].Port = "lan3"
	return s
}

// cloneWorld is a world in the midst of things.
func cloneWorld(t *testing.T) (*World, engine) {
	t.Helper()
	w := New(cloneSpec())
	must(t, w.Switch().Join(t.Context(), "lan3", 101))
	boot(w)
	e := engineOf(t, w, "gpu0")
	e.set(ee.RegControl, base|ee.CtlLink|ee.CtlGuard)
	time.Sleep(w.spec.LinkUpTime)
	must(t, w.Server("server1").StartVM("train", []string{"gpu0"}, VMOptions{}))
	must(t, w.Server("server1").WriteMem("gpu0", 0, []byte("step 1")))
	must(t, memoryOf(w, "store").write(128, []byte{1, 2, 3})) // write cycle under way
	w.Bus("bus0").Inject(Fault{Kind: ArbitrationLost, Addr: 0x57, Count: 2})
	return w, e
}

func TestCloneIndependence(t *testing.T) {
	for _, stirred := range []string{"original", "copy", "other copy"} {
		t.Run(stirred, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w, _ := cloneWorld(t)
				s := w.Snapshot()
				a, b := s.World(), s.World()
				before := everything(w)
				for name, c := range map[string]*World{"copy": a, "other copy": b} {
					if d := cmp.Diff(before, everything(c)); d != "" {
						t.Errorf("%s differs:\n%s", name, d)
					}
				}
				left := map[string]*World{"original": w, "copy": a, "other copy": b}
				victim := left[stirred]
				delete(left, stirred)
				began := time.Now()
				stir(t, victim, engineOf(t, victim, "gpu0"))
				dt := time.Since(began)
				got := make(map[string]map[string]any)
				for name, c := range left {
					got[name] = everything(c)
				}
				// A world from the snapshot that only let the time pass.
				idle := s.World()
				time.Sleep(dt)
				want := everything(idle)
				for name, c := range left {
					if d := cmp.Diff(want, got[name]); d != "" {
						t.Errorf("%s changed with the %s:\n%s", name, stirred, d)
					}
					for range 2 {
						if err := c.Bus("bus0").Tx(0x57, []byte{0, 0}, nil); !errors.Is(err, syscall.EAGAIN) {
							t.Errorf("%s lost its fault: %v", name, err)
						}
					}
					must(t, c.Bus("bus0").Tx(0x57, []byte{0, 0}, nil))
				}
				if d := cmp.Diff(still(before), still(want)); d != "" {
					t.Errorf("the snapshot changed with the %s:\n%s", stirred, d)
				}
				if cmp.Equal(still(want), still(everything(victim))) {
					t.Error("nothing was stirred")
				}
				// What the others add to their records does not show in the one
				// that was stirred.
				mine := everything(victim)
				for _, c := range left {
					must(t, c.Server("server1").Reset("gpu0"))
					c.PowerCut()
				}
				after := everything(victim)
				delete(mine, "now")
				delete(after, "now")
				if d := cmp.Diff(mine, after); d != "" {
					t.Errorf("%s changed with the others:\n%s", stirred, d)
				}
			})
		})
	}
}

// TestCloneGoesOn: a copy does what its original does, in its time.
func TestCloneGoesOn(t *testing.T) {
	var snap *Snapshot
	var want map[string]any
	run := func(t *testing.T, w *World) map[string]any {
		e := engineOf(t, w, "gpu0")
		for range 2 {
			w.Bus("bus0").Tx(0x57, []byte{0}, nil)
		}
		e.set(ee.RegControl, base|ee.CtlGuard)
		e.set(ee.RegControl, base|ee.CtlGuard|ee.CtlReload)
		time.Sleep(5 * time.Millisecond)
		e.set(ee.RegControl, base|ee.CtlGuard|ee.CtlLink|ee.CtlDeviceReset)
		memoryOf(w, "store").put(t, 0, []byte{1})
		w.SetTear(Tear{Kind: TearPerByte, Unstable: 4})
		must(t, memoryOf(w, "store").write(64, []byte("torn")))
		w.PowerCut()
		w.PowerOn() // a new epoch from the same randomness
		boot(w)
		return everything(w)
	}
	in(t, func(t *testing.T) {
		w, _ := cloneWorld(t)
		snap = w.Snapshot()
		want = run(t, w)
	})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			in(t, func(t *testing.T) {
				time.Sleep(time.Hour) // the bubble's clock is another
				if d := cmp.Diff(want, run(t, snap.World())); d != "" {
					t.Errorf("the copy went another way:\n%s", d)
				}
			})
		})
	}
	wg.Wait()
}

func TestCloneDropsHooks(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		n := 0
		w.OnPosition(func(Position) { n++ })
		w.OnCut(func() { n++ })
		c := w.Clone()
		memoryOf(c, "store").put(t, 0, []byte{1})
		c.PowerCut()
		if n != 0 {
			t.Errorf("the copy called its original's hooks %d times", n)
		}
		memoryOf(w, "store").put(t, 0, []byte{1})
		w.PowerCut()
		if n != 3 { // byte, cycle, cut
			t.Errorf("the original's hooks were called %d times; want 3", n)
		}
	})
}

// TestSeal: two copies that append do not see each other's.
func TestSeal(t *testing.T) {
	r := record{make([]Interval, 1, 8), make([]Reset, 1, 8), make([]PowerLoss, 1, 8), make([]Violation, 1, 8)}
	a, b := r.seal(), r.seal()
	for i, c := range []*record{&a, &b} {
		at := time.Duration(i + 1)
		c.reach = append(c.reach, Interval{From: at})
		c.resets = append(c.resets, Reset{At: at})
		c.losses = append(c.losses, PowerLoss{At: at})
		c.violations = append(c.violations, Violation{At: at})
	}
	if a.reach[1].From != 1 || a.resets[1].At != 1 || a.losses[1].At != 1 || a.violations[1].At != 1 {
		t.Errorf("the first copy holds what the second appended: %+v", a)
	}
}
