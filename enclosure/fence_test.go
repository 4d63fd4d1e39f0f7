package enclosure_test

import (
	"slices"
	"testing"
	"time"

	"baton/enclosure"
	"baton/sim"
	"baton/test/rig"
)

// What an operation takes on one slot, on a bus that hangs, must not keep a
// fenced host linked with the others.
func TestFenceCutsWhatIsFree(t *testing.T) {
	for busy, bus := range map[string]string{"gpu1": "bus1", "gpu2": "bus2"} { // the store is on bus0
		t.Run(busy+" is busy", func(t *testing.T) {
			world(t, rig.Options{Slots: 4, Buses: 3}, func(t *testing.T, r *rig.Rig) {
				running(t, r, "gpu0", "gpu1", "gpu2", "gpu3")
				well := slices.DeleteFunc([]string{"gpu0", "gpu1", "gpu2", "gpu3"}, func(n string) bool { return n == busy })
				r.W.Bus(bus).Inject(sim.Fault{Kind: sim.Wedged, Hold: 2 * time.Second})
				gen := r.Gen(busy)
				armed := background(func() { r.E.Arm(r.Ctx(), enclosure.ArmRequest{Slot: busy, ID: rig.UUID(9), Gen: gen, By: rig.A}) })
				time.Sleep(time.Millisecond)
				began := time.Now()
				var f enclosure.Fenced
				fenced := background(func() { f, _ = r.E.Fence(r.Ctx(), rig.A, "test") })
				for _, n := range well {
					for r.W.Server(rig.A).Reach(n) && time.Since(began) < time.Minute {
						time.Sleep(10 * time.Millisecond)
					}
				}
				if d := time.Since(began); d > 100*time.Millisecond {
					t.Errorf("A reached %v for %v after its fence, since %s is busy", well, d, busy)
				}
				r.W.Bus(bus).ClearFaults()
				armed()
				fenced()
				if len(f.Slots) != 4 {
					t.Errorf("fenced %+v; want four slots cut", f)
				}
				for i := range 4 {
					r.WantHost(rig.Slot(i), "")
				}
			})
		})
	}
}
