package enclosure_test

import (
	"testing"
	"time"

	"baton/sim"
	"baton/test/rig"
)

// The engine stops answering before the cut of a move; A is fenced meanwhile.
func TestRy60FenceMeetsUncutMove(t *testing.T) {
	bad := 0
	for at := time.Duration(0); at <= 60*time.Millisecond; at += time.Millisecond {
		world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			wait := background(func() { r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) })
			time.Sleep(7 * time.Millisecond) // looked at, not yet cut
			r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60})
			time.Sleep(at)
			f, err := r.E.Fence(r.Ctx(), rig.A, "test")
			if err == nil && r.W.Server(rig.A).Reach("gpu0") {
				bad++
				if bad == 1 {
					t.Errorf("at %v: fence says %+v, but A reaches the device; slot %+v", at, f, r.SlotStatus("gpu0"))
				}
			}
			wait()
		})
	}
	t.Log(bad)
}

func TestRy61AliveAfterEngineRestart(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		time.Sleep(500 * time.Millisecond)
		r.W.Slot("gpu0").Restart()
		time.Sleep(20 * time.Millisecond) // the poller has not looked yet
		since := r.W.Now()
		_ = since
		err := r.Alive(rig.VM1, rig.A, "gpu0") // QEMU still holds what is gone
		t.Log(err, r.W.Server(rig.A).Reach("gpu0"))
		time.Sleep(5 * time.Second)
		if v := r.Verdict("gpu0"); v.Preserved == "yes" {
			t.Errorf("engine restarted, its device was reset, nobody was linked; a proof of life made it: %+v", v)
		}
	})
}

// T1's twin: the VM starts again in place.
func TestRy62AliveBetweenStartInPlaceAndAck(t *testing.T) {
	world(t, rig.Options{Policy: "on-move"}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).WriteMem("gpu0", 0, []byte("checkpointed weights"))
		r.W.Server(rig.A).StopVM(rig.VM1)
		since := r.W.Now()
		r.Attach(rig.VM1, rig.A)
		t.Logf("before start: %s", r.Verdict("gpu0").Preserved)
		r.Boot(rig.VM1, rig.A)                 // opening resets it
		err := r.Alive(rig.VM1, rig.A, "gpu0") // the timer, before the hook's 'started' asks
		v := r.Verdict("gpu0")                 // what 'started' is told
		if v.Preserved == "yes" {
			t.Errorf("alive %v; 'started' is told %s (%s); intact since the VM stopped: %v", err, v.Preserved, v.Reason, r.W.MemoryIntactSince("gpu0", since))
		}
	})
}
