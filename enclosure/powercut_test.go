package enclosure_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"baton/ee"
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
	// check replaces checkAfterCut; what it returns must come to be all of hosts.
	check func(t *testing.T, r *rig.Rig, before uint32) string
}

var cutOps = []cutOp{
	{"move of one slot", 1, 1, func(t *testing.T, r *rig.Rig) { running(t, r) },
		func(r *rig.Rig) { r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) }, []string{rig.A, rig.B}, nil},
	{"move of three slots on two buses", 3, 2, func(t *testing.T, r *rig.Rig) { running(t, r) },
		func(r *rig.Rig) { r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) }, []string{rig.A, rig.B}, nil},
	{"attach of another VM", 2, 1, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseKeep})
	}, func(r *rig.Rig) {
		r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM2, Host: rig.B, Wait: time.Second})
	}, []string{rig.A, rig.B}, nil},
	{"fence", 2, 1, func(t *testing.T, r *rig.Rig) { running(t, r) },
		func(r *rig.Rig) { r.E.Fence(r.Ctx(), rig.A, "test") }, []string{rig.A, ""}, nil},
	{"release", 2, 1, func(t *testing.T, r *rig.Rig) { running(t, r) },
		func(r *rig.Rig) {
			r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold})
		}, []string{rig.A, ""}, nil},
	{"ack of a target", 1, 1, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).PowerLoss()
		r.Fence(rig.A)
		r.Attach(rig.VM1, rig.B)
		r.Boot(rig.VM1, rig.B)
	}, func(r *rig.Rig) {
		v, _ := r.E.Verdict(r.Ctx(), "gpu0")
		r.E.Ack(r.Ctx(), enclosure.AckRequest{Slot: "gpu0", Nonce: r.Nonce(rig.VM1), Gen: r.Gen("gpu0"), Seen: v.Now})
	}, []string{rig.B}, nil},
	{"undo", 2, 1, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x21, Only: sim.WriteOp, Byte: 10, For: 40 * time.Millisecond})
	}, func(r *rig.Rig) { r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) }, []string{rig.A, rig.B}, nil},
	{"adopt of another engine", 2, 1, func(t *testing.T, r *rig.Rig) {
		r.StartVM(rig.VM1, rig.A, "gpu0")
		r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC)
		r.Restart()
	}, func(r *rig.Rig) { adopt(r, "gpu0") }, []string{"before", "adopted"}, checkAdoptCut},
	{"adopt of a blank chip", 1, 1, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Chip("gpu0").SetImage(image(32768, all(0xFF)))
	}, func(r *rig.Rig) { adopt(r, "gpu0") }, []string{rig.A, ""}, nil},
	{"resolve", 2, 1, func(t *testing.T, r *rig.Rig) { running(t, r); blockedMove(t, r) },
		func(r *rig.Rig) { r.E.Resolve(r.Ctx(), rig.UUID(1), []string{"gpu1"}, "test") }, []string{"before", "dropped"}, checkResolveCut},
	{"force-free", 1, 1, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, Only: sim.WriteOp})
		r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold})
		r.W.Bus("bus0").ClearFaults()
	}, func(r *rig.Rig) { r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test") }, []string{"before", "freed"}, checkForceCut},
	{"reset of a target", 1, 1, func(t *testing.T, r *rig.Rig) { running(t, r); r.Move(rig.VM1, rig.B) },
		func(r *rig.Rig) {
			r.E.Reset(r.Ctx(), enclosure.ResetRequest{Slot: "gpu0", Gen: r.Gen("gpu0"), By: "test"})
		}, []string{rig.B}, nil},
	{"power cycle of a held slot", 1, 1, func(t *testing.T, r *rig.Rig) { running(t, r); hold(t, r) },
		func(r *rig.Rig) { power(r, "cycle") }, []string{""}, nil},
	{"raise of a floor with a fence", 1, 1, func(t *testing.T, r *rig.Rig) { running(t, r) },
		func(r *rig.Rig) {
			f := r.E.Floor()
			f.Hosts[rig.A] += 3
			f.Slots["gpu0"] = ee.Generation{Incarnation: f.Slots["gpu0"].Incarnation, Counter: 900}
			r.E.Raise(r.Ctx(), f, false, "test")
		}, []string{rig.A, ""}, nil},
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
						seen[after(t, f, op, before)]++
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

// TestHandKills kills the agent alone at positions all along what people do by
// hand: chips end their write cycles, engines go on, another agent starts.
func TestHandKills(t *testing.T) {
	kills := 0
	for _, op := range cutOps {
		if op.check == nil {
			continue
		}
		t.Run(op.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rig.New(t, rig.Options{Slots: op.slots, Buses: op.buses})
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
				for _, h := range op.hosts {
					if seen[h] == 0 {
						t.Errorf("outcomes %v: %q never came", seen, h)
					}
				}
			})
		})
	}
	t.Logf("%d kills", kills)
}

// after looks at the agent that came up, by the operation's own check if it has
// one.
func after(t *testing.T, r *rig.Rig, op cutOp, before uint32) string {
	t.Helper()
	if op.check == nil {
		return checkAfterCut(t, r, op, before)
	}
	state := op.check(t, r, before)
	if st := r.E.Status(r.Ctx()); !st.Store.OK {
		t.Errorf("store: %s", st.Store.Problem)
	}
	quiet(t, r, func() { r.Restart() })
	r.Check()
	return state
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
