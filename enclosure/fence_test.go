package enclosure_test

import (
	"context"
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

// A fence whose caller no longer waits goes on by itself. A slot that another
// operation had at that time, and that is with another host, is none of its.
func TestFenceGivenUpLeavesOthers(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		r.Run()
		r.Unfence(rig.A)
		r.Unfence(rig.B)
		r.StartVM(rig.VM1, rig.A, "gpu0")
		r.StartVM(rig.VM1, rig.B, "gpu1")
		if !r.W.Server(rig.B).Reach("gpu1") {
			t.Fatal("gpu1 is not with B")
		}
		gen := r.Gen("gpu1")
		resets := r.Verdict("gpu1").Now.Resets
		// It takes 0.1 s and more to look who is in a slot, and then it is refused.
		looked := background(func() { _, _ = r.E.Adopt(r.Ctx(), "gpu1", "stale", "test") })
		time.Sleep(time.Millisecond)
		short, cancel := context.WithTimeout(r.Ctx(), 5*time.Millisecond)
		_, err := r.E.Fence(short, rig.A, "test")
		cancel()
		looked()
		wantCode(t, err, enclosure.CodeBusy)
		lost := time.Duration(0)
		for range 5000 {
			time.Sleep(time.Millisecond)
			if !r.W.Server(rig.B).Reach("gpu1") {
				lost += time.Millisecond
			}
		}
		if lost > 0 {
			t.Errorf("B lost gpu1 for %v, since A was fenced", lost)
		}
		if v := r.Verdict("gpu1"); v.Now.Resets != resets {
			t.Errorf("gpu1 was reset: %d, was %d", v.Now.Resets, resets)
		}
		if got := r.Gen("gpu1"); got != gen {
			t.Errorf("gpu1 has generation %s, had %s", got, gen)
		}
		r.WantHost("gpu0", "")
		r.WantHost("gpu1", rig.B)
		if h := r.Host(rig.A); h.Why != "" {
			t.Errorf("A: %s", h.Why)
		}
	})
}

// Two fences at a time on a bus that hangs, and the agent ends before either is
// through: no record was lost by that, and whom nobody fenced keeps its slots.
func TestTwoFencesCutShort(t *testing.T) {
	world(t, rig.Options{Slots: 4, Buses: 2}, func(t *testing.T, r *rig.Rig) {
		r.StartVM(rig.VM1, rig.C, "gpu0") // bus0 has the store, too
		r.StartVM(rig.VM2, rig.A, "gpu1")
		r.StartVM(rig.VM2, rig.B, "gpu3")
		r.W.Bus("bus1").Inject(sim.Fault{Kind: sim.Wedged, Hold: 2 * time.Second})
		var waits []func()
		for _, h := range []string{rig.A, rig.B} {
			waits = append(waits, background(func() { _, _ = r.E.Fence(r.Ctx(), h, "test") }))
		}
		time.Sleep(100 * time.Millisecond)
		// What the next agent finds is what is in the chips now.
		next := r.Fork(r.W.Snapshot())
		defer next.Stop()
		r.W.Bus("bus1").ClearFaults()
		for _, w := range waits {
			w()
		}
		next.W.Bus("bus1").ClearFaults()
		next.Start(enclosure.Options{SameBoot: true})
		next.WantHost("gpu0", rig.C)
		if h := next.Host(rig.C); h.Fenced {
			t.Errorf("C is fenced: %s", h.Why)
		}
		for _, h := range []string{rig.A, rig.B} {
			if !next.Host(h).Fenced {
				t.Errorf("%s is not fenced", h)
			}
		}
	})
}
