package enclosure_test

import (
	"testing"

	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/test/rig"
)

// A move that was answered as done, and whose VM has not started yet, keeps that
// outcome: a fence of its target holds the slots, and is not its end.
func TestOutcomeOutlivesFence(t *testing.T) {
	for _, tt := range []struct {
		name string
		then func(r *rig.Rig)
	}{
		{"fence", func(r *rig.Rig) { r.Fence(rig.B) }},
		{"restart, fence", func(r *rig.Rig) { r.Restart(); r.Fence(rig.B) }},
		{"fence, restart", func(r *rig.Rig) { r.Fence(rig.B); r.Restart() }},
		{"restart, fence, restart", func(r *rig.Rig) { r.Restart(); r.Fence(rig.B); r.Restart() }},
		{"restart, fence, power cut", func(r *rig.Rig) { r.Restart(); r.Fence(rig.B); r.PowerCycle() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
				running(t, r)
				q := r.Request(rig.VM1, rig.B)
				first, err := r.E.Move(r.Ctx(), q)
				if err != nil || first.State != enclosure.MoveDone {
					t.Fatalf("move = %s, %v", first.State, err)
				}
				tt.then(r)
				again, err := r.E.Move(r.Ctx(), q)
				if err != nil || again.State != enclosure.MoveDone || again.To != rig.B || again.Generation != first.Generation {
					t.Errorf("repeated = %s to %s, generation %v, %v; want its recorded outcome: done to %s, generation %v",
						again.State, again.To, again.Generation, err, rig.B, first.Generation)
				}
				for _, slot := range []string{"gpu0", "gpu1"} {
					r.WantHost(slot, "")
					if s := r.SlotStatus(slot); !s.Held {
						t.Errorf("%s is not held: %+v", slot, s)
					}
				}
			})
		})
	}
}

// Starts in place of a target write no baseline of their own: where a proof of
// life has replaced the count of the last ack, asking again and again does not
// give the memory up for nothing.
func TestStartInPlaceAfterProof(t *testing.T) {
	world(t, rig.Options{Policy: plan.OnMove}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		if err := r.W.Server(rig.A).GuestReboot(rig.VM1); err != nil {
			t.Fatal(err)
		}
		if err := r.Alive(rig.VM1, rig.A, "gpu0"); err != nil {
			t.Fatal(err)
		}
		if v := r.Verdict("gpu0"); v.Now.Resets == v.Base.Resets {
			t.Fatalf("the reboot did not reset the device: %+v", v)
		}
		r.W.Server(rig.A).PowerLoss()
		r.Fence(rig.A)
		for range 3 {
			r.Attach(rig.VM1, rig.B)
			r.WantVerdict("gpu0", plan.Yes)
		}
		r.Restart()
		r.Attach(rig.VM1, rig.B)
		r.WantVerdict("gpu0", plan.Yes)
		if v := r.StartVM(rig.VM1, rig.B); v["gpu0"].Preserved != plan.Yes {
			t.Errorf("started with %+v", v["gpu0"])
		}
	})
}
