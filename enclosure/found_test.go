package enclosure_test

import (
	"testing"
	"time"

	"baton/enclosure"
	"baton/sim"
	"baton/test/rig"
)

// What random lives (property_test.go) have found, each made small.

// An engine that does not take "link off" while its link happens to be down is
// not cut: the link would come up as soon as the server is back.
func TestFoundCutWhileLinkIsDown(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).PowerLoss()
		r.W.Slot("gpu0").IgnoreControl(40)
		_, err := r.E.Fence(r.Ctx(), rig.A, "test")
		wantCode(t, err, enclosure.CodeUnconfirmed)
		if s := r.SlotStatus("gpu0"); s.Cut != "unconfirmed" {
			t.Errorf("cut is %q; want unconfirmed", s.Cut)
		}
		r.W.Slot("gpu0").IgnoreControl(0)
		r.Fence(rig.A)
		r.W.Server(rig.A).PowerOn()
		time.Sleep(time.Second)
		r.WantHost("gpu0", "")
	})
}

// A fence that is repeated, as cluster managers do, says the same as long as
// nothing was confirmed; so does one after a restart of the agent.
func TestFoundRepeatedFence(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60})
		for range 2 {
			_, err := r.E.Fence(r.Ctx(), rig.A, "test")
			wantCode(t, err, enclosure.CodeUnconfirmed)
		}
		r.Restart()
		_, err := r.E.Fence(r.Ctx(), rig.A, "test")
		wantCode(t, err, enclosure.CodeUnconfirmed)
		wantCode(t, r.E.Unfence(r.Ctx(), rig.A, r.Host(rig.A).Epoch, "test"), enclosure.CodeUnconfirmed)
		if !r.W.Server(rig.A).Reach("gpu0") {
			t.Error("the engine was to be out of reach, and A linked")
		}
		r.W.Bus("bus0").ClearFaults()
		if f := r.Fence(rig.A); len(f.Slots) != 1 {
			t.Errorf("fence = %+v; want the slot that it cut", f)
		}
		r.WantHost("gpu0", "")
		r.Unfence(rig.A)
		r.Attach(rig.VM1, rig.A)
	})
}

// Hardware that can not confirm a cut makes every fence fail, but no host is
// kept out for ever.
func TestFoundUnfenceWithoutConfirmation(t *testing.T) {
	world(t, rig.Options{Profile: "nvm-only"}, func(t *testing.T, r *rig.Rig) {
		r.Attach(rig.VM1, rig.A)
		for range 2 {
			_, err := r.E.Fence(r.Ctx(), rig.A, "test")
			wantCode(t, err, enclosure.CodeUnconfirmed)
		}
		time.Sleep(5 * time.Millisecond)
		r.WantHost("gpu0", "")
		r.Restart()
		r.Unfence(rig.A)
		r.Attach(rig.VM1, rig.A)
	})
}
