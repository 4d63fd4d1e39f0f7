package enclosure_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"
)

// cutOp is an operation that is cut short at positions at which a power
// cut makes a difference.
type cutOp struct {
	name  string
	slots int
	buses int
	setup func(t *testing.T, r *rig.Rig)
	do    func(r *rig.Rig)
	hosts []string // where the set may be afterwards; "" = held
}

var cutOps = []cutOp{
	{"move of one slot", 1, 1, func(t *testing.T, r *rig.Rig) { running(t, r) },
		func(r *rig.Rig) { r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) }, []string{rig.A, rig.B}},
	{"move of three slots on two buses", 3, 2, func(t *testing.T, r *rig.Rig) { running(t, r) },
		func(r *rig.Rig) { r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) }, []string{rig.A, rig.B}},
	{"attach of another VM", 2, 1, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseKeep})
	}, func(r *rig.Rig) {
		r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM2, Host: rig.B, Wait: time.Second})
	}, []string{rig.A, rig.B}},
	{"fence", 2, 1, func(t *testing.T, r *rig.Rig) { running(t, r) },
		func(r *rig.Rig) { r.E.Fence(r.Ctx(), rig.A, "test") }, []string{rig.A, ""}},
	{"release", 2, 1, func(t *testing.T, r *rig.Rig) { running(t, r) },
		func(r *rig.Rig) {
			r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold})
		}, []string{rig.A, ""}},
	{"ack of a target", 1, 1, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).PowerLoss()
		r.Fence(rig.A)
		r.Attach(rig.VM1, rig.B)
		r.Boot(rig.VM1, rig.B)
	}, func(r *rig.Rig) {
		v, _ := r.E.Verdict(r.Ctx(), "gpu0")
		r.E.Ack(r.Ctx(), enclosure.AckRequest{Slot: "gpu0", Nonce: r.Nonce(rig.VM1), Gen: r.Gen("gpu0"), Seen: v.Now})
	}, []string{rig.B}},
	{"undo", 2, 1, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x21, Only: sim.WriteOp, Byte: 10, For: 40 * time.Millisecond})
	}, func(r *rig.Rig) { r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) }, []string{rig.A, rig.B}},
}

// TestPowerCuts cuts the power at positions all along every operation, with each
// way of tearing a page, and looks what a new agent makes of it.
func TestPowerCuts(t *testing.T) {
	cuts := 0
	for _, op := range cutOps {
		t.Run(op.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rig.New(t, rig.Options{Slots: op.slots, Buses: op.buses})
				op.setup(t, r)
				before := r.Gen("gpu0").Counter
				var mu sync.Mutex // buses pass positions at the same time
				var at []*sim.Snapshot
				r.W.OnPosition(func(sim.Position) {
					s := r.W.Snapshot()
					mu.Lock()
					defer mu.Unlock()
					at = append(at, s)
				})
				op.do(r)
				r.W.OnPosition(nil)
				r.Stop()
				seen := map[string]int{}
				// Data bytes of one page write are alike but for where they
				// stand; the race detector makes each case ten times as slow.
				stride := 1 + len(at)/(150/(1+raceFactor))
				for i := 0; i < len(at); i += stride {
					for tear := range sim.TearKind(sim.TearKinds) {
						f := r.Fork(at[i])
						f.W.Bus("bus0").ClearFaults()
						f.W.SetTear(sim.Tear{Kind: tear, Seed: uint64(i), Unstable: i % 4})
						f.W.PowerCut()
						f.PowerUp()
						seen[checkAfterCut(t, f, op, before)]++
						f.Stop()
						cuts++
						if t.Failed() {
							t.Fatalf("position %d of %d, tear %d", i, len(at), tear)
						}
					}
				}
				for _, h := range op.hosts {
					if seen[h] == 0 {
						t.Errorf("outcomes %v: %q never came", seen, h)
					}
				}
			})
		})
	}
	t.Logf("%d cuts", cuts)
}

// checkAfterCut looks at the agent that came up after a power cut and returns
// where the set is.
func checkAfterCut(t *testing.T, r *rig.Rig, op cutOp, before uint32) string {
	t.Helper()
	first := r.SlotStatus("gpu0")
	ok := false
	for _, h := range op.hosts {
		ok = ok || h == first.Host
	}
	if !ok {
		t.Errorf("with %q after the cut; want one of %q", first.Host, op.hosts)
	}
	for i := range op.slots {
		s := r.SlotStatus(rig.Slot(i))
		if s.Problem != "" || s.Blocked != "" {
			t.Errorf("%s: problem %q, blocked %q", s.Name, s.Problem, s.Blocked)
		}
		if s.Generation.Counter < before {
			t.Errorf("%s: generation %d went back from %d", s.Name, s.Generation.Counter, before)
		}
		if s.Host == "" && !s.Held {
			t.Errorf("%s is free; want held for its VM", s.Name)
		}
		r.WantHost(s.Name, first.Host)
		if v := r.Verdict(s.Name); v.Preserved == plan.Yes {
			t.Errorf("%s: verdict yes after a power cut", s.Name)
		}
	}
	if st := r.E.Status(r.Ctx()); !st.Store.OK {
		t.Errorf("store: %s", st.Store.Problem)
	}
	quiet(t, r, func() { r.Restart() })
	r.Check()
	return fmt.Sprint(first.Host)
}
