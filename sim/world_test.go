package sim

import (
	"sync"
	"testing"
	"time"

	"baton/ee"
)

// TestRealTime runs outside a bubble, as cmd/batonsim does: nothing may take
// less time than the hardware, and events come though nobody polls.
func TestRealTime(t *testing.T) {
	s := oneSlot()
	s.EngineStartTime, s.DeviceResetTime = time.Millisecond, time.Millisecond
	t0 := time.Now()
	w, e := linked(t, s, ee.CtlGuard)
	must(t, memoryOf(w, "store").write(0, make([]byte, 64)))
	stop := time.Now()
	for e.bus.Tx(0x57, []byte{0, 0}, nil) != nil {
		time.Sleep(100 * time.Microsecond)
	}
	if took := time.Since(stop); took < 4900*time.Microsecond {
		t.Errorf("the write cycle took %v", took)
	}
	busy := e.bus.Stats().Busy
	if took := time.Since(t0); took < busy {
		t.Errorf("%v of bus time passed in %v", busy, took)
	}
	w.Slot("gpu0").RestartAfter(time.Millisecond)
	time.Sleep(10 * time.Millisecond)
	r := w.Reach()
	if len(r) != 1 || r[0].Open {
		t.Errorf("reach = %+v", r)
	}
}

// TestConcurrent uses all of a world at once; the race detector judges.
func TestConcurrent(t *testing.T) {
	in(t, func(t *testing.T) {
		s := Spec{Buses: []BusSpec{{}, {}}, Chips: []ChipSpec{{Name: "gpu0", Addr: 0x50}, {Name: "gpu1", Bus: "bus1", Addr: 0x50}}}
		for i, n := range []string{"gpu0", "gpu1"} {
			s.Slots = append(s.Slots, SlotSpec{Name: n, Bus: s.Chips[i].Bus, Block: blockFor(101), Port: n})
		}
		w := New(s)
		boot(w)
		var wg sync.WaitGroup
		loop := func(f func(i int)) {
			wg.Go(func() {
				for i := range 200 {
					f(i)
					time.Sleep(time.Duration(37+i) * time.Microsecond)
				}
			})
		}
		for _, n := range []string{"gpu0", "gpu1"} {
			e := engineOf(t, w, n)
			loop(func(i int) {
				e.bus.Tx(e.at, []byte{1, 7, base | byte(i)&(ee.CtlLink|ee.CtlGuard|ee.CtlHold)}, make([]byte, 4))
			})
			loop(func(i int) { e.bus.Tx(0x50, []byte{1, byte(i), 7}, nil) })
			loop(func(i int) {
				w.Switch().Join(t.Context(), n, 101)
				w.Server("server1").StartVM(n, []string{n}, VMOptions{})
				w.Server("server1").WriteMem(n, 0, []byte{byte(i)})
			})
		}
		loop(func(i int) { w.Server("server1").LinkLoss(); w.Server("server1").LinkRestore() })
		loop(func(i int) { w.Server("server1").PanicReboot() })
		loop(func(i int) {
			c := w.Clone()
			must(t, c.Switch().Join(t.Context(), "gpu0", uint16(i+200)))
			c.PowerCut()
			if c.Reach(); c.MaxOwners("gpu0") > 1 {
				t.Error("two owners")
			}
		})
		wg.Wait()
		if n := w.Bus("bus0").Stats().Transfers; n != 400 {
			t.Errorf("%d transfers on bus0; want 400", n)
		}
		if got := w.MaxOwners("gpu1"); got != 1 {
			t.Errorf("MaxOwners = %d", got)
		}
	})
}
