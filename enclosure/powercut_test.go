package enclosure_test

import (
	"testing"
	"testing/synctest"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"
)

// cutOp is an operation in which the agent is killed.
type cutOp struct {
	name  string
	slots int
	setup func(t *testing.T, r *rig.Rig)
	do    func(r *rig.Rig)
	want  []string // what check must come to return, all of it
	check func(t *testing.T, r *rig.Rig, before uint32) string
}

// handOps are done by hand, with checks that also show that they can be done
// again. test/powercut cuts the power in these, too.
var handOps = []cutOp{
	{"adopt of another engine", 2, func(t *testing.T, r *rig.Rig) {
		r.StartVM(rig.VM1, rig.A, "gpu0")
		r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC)
		r.Restart()
	}, func(r *rig.Rig) { adopt(r, "gpu0") }, []string{"before", "adopted"}, checkAdoptCut},
	{"resolve", 2, func(t *testing.T, r *rig.Rig) { running(t, r); blockedMove(t, r) },
		func(r *rig.Rig) { r.E.Resolve(r.Ctx(), rig.UUID(1), []string{"gpu1"}, "test") }, []string{"before", "dropped"}, checkResolveCut},
	{"force-free", 1, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, Only: sim.WriteOp})
		r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold})
		r.W.Bus("bus0").ClearFaults()
	}, func(r *rig.Rig) { r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test") }, []string{"before", "freed"}, checkForceCut},
}

// checkAdoptCut: the parts are adopted or not; if not, they can be.
func checkAdoptCut(t *testing.T, r *rig.Rig, before uint32) string {
	t.Helper()
	state := "adopted"
	if s := r.SlotStatus("gpu0"); s.Problem != "" {
		state = "before"
		if _, err := adopt(r, "gpu0"); err != nil {
			t.Errorf("adopt: %v", err)
		}
	}
	s := r.SlotStatus("gpu0")
	if s.Problem != "" || s.Blocked != "" || !s.Held || s.VM != rig.VM1 || s.Flag != plan.Void || s.Generation.Counter <= before {
		t.Errorf("%s: %+v", state, s)
	}
	r.WantHost("gpu0", "")
	return state
}

// checkResolveCut: the slot was dropped, or the set is together.
func checkResolveCut(t *testing.T, r *rig.Rig, before uint32) string {
	t.Helper()
	s, o := r.SlotStatus("gpu0"), r.SlotStatus("gpu1")
	if s.Problem+s.Blocked+o.Problem+o.Blocked != "" || s.Host == "" || s.Generation.Counter < before {
		t.Errorf("gpu0 %+v, gpu1 %+v", s, o)
	}
	r.WantHost("gpu0", s.Host)
	r.WantHost("gpu1", o.Host)
	if o.Host == s.Host {
		return "before"
	}
	if o.Host != "" || !o.Held || o.VM != rig.VM1 || o.Flag != plan.Void || o.Cut != "confirmed" || o.Memory.Preserved == plan.Yes {
		t.Errorf("dropped: %+v", o)
	}
	return "dropped"
}

// checkForceCut: the slot is its VM's, or nobody's; nobody reaches it.
func checkForceCut(t *testing.T, r *rig.Rig, before uint32) string {
	t.Helper()
	s := r.SlotStatus("gpu0")
	if s.Problem+s.Blocked != "" || s.Host != "" || s.Generation.Counter < before || s.Cut != "confirmed" || !s.Held && s.Memory.Preserved == plan.Yes {
		t.Errorf("%+v", s)
	}
	r.WantHost("gpu0", "")
	if s.Held {
		return "before"
	}
	return "freed"
}

// TestHandKills kills the agent alone at positions all along what people do by
// hand: chips end their write cycles, engines go on, another agent starts.
func TestHandKills(t *testing.T) {
	kills := 0
	for _, op := range handOps {
		t.Run(op.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rig.New(t, rig.Options{Slots: op.slots})
				op.setup(t, r)
				before := r.Gen("gpu0").Counter
				var at []*sim.Snapshot
				r.W.OnPosition(func(sim.Position) { at = append(at, r.W.Snapshot()) })
				op.do(r)
				r.W.OnPosition(nil)
				r.Stop()
				seen := map[string]int{}
				for i := 0; i < len(at); i += 1 + len(at)/(500/(1+raceFactor)) {
					f := r.Fork(at[i])
					f.W.Bus("bus0").ClearFaults()
					time.Sleep(50 * time.Millisecond)
					f.Start(enclosure.Options{SameBoot: true})
					time.Sleep(5 * time.Millisecond)
					seen[after(t, f, op, before)]++
					f.Stop()
					kills++
					if t.Failed() {
						t.Fatalf("position %d of %d", i, len(at))
					}
				}
				for _, h := range op.want {
					if seen[h] == 0 {
						t.Errorf("outcomes %v: %q never came", seen, h)
					}
				}
			})
		})
	}
	t.Logf("%d kills", kills)
}

// after looks at the agent that came up, by the operation's own check.
func after(t *testing.T, r *rig.Rig, op cutOp, before uint32) string {
	t.Helper()
	state := op.check(t, r, before)
	if st := r.E.Status(r.Ctx()); !st.Store.OK {
		t.Errorf("store: %s", st.Store.Problem)
	}
	quiet(t, r, func() { r.Restart() })
	r.Check()
	return state
}
