package figures

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"
)

// happening is something that happens to a VM that runs on A, or to the
// hardware under it.
type happening struct {
	name string
	do   func(r *rig.Rig)
}

var happenings = []happening{
	{"nothing", func(*rig.Rig) {}},
	{"server hangs", func(r *rig.Rig) { r.W.Server(rig.A).Hang() }},
	{"server loses power", func(r *rig.Rig) { r.W.Server(rig.A).PowerLoss() }},
	{"server loses its fabric link", func(r *rig.Rig) { r.W.Server(rig.A).LinkLoss() }},
	{"fabric link comes and goes", func(r *rig.Rig) {
		r.W.Server(rig.A).LinkLoss()
		time.Sleep(time.Second)
		r.W.Server(rig.A).LinkRestore()
		time.Sleep(time.Second)
	}},
	{"server panics and reboots", func(r *rig.Rig) { r.W.Server(rig.A).PanicReboot() }},
	{"QEMU is killed", func(r *rig.Rig) { r.W.Server(rig.A).KillQEMU(rig.VM1) }},
	{"guest reboots", func(r *rig.Rig) { r.W.Server(rig.A).GuestReboot(rig.VM1) }},
	{"guest reboots, then a proof of life", func(r *rig.Rig) {
		r.W.Server(rig.A).GuestReboot(rig.VM1)
		alive(r)
	}},
	{"engine restarts", func(r *rig.Rig) { r.W.Slot("gpu0").Restart(); time.Sleep(3 * time.Second) }},
	{"enclosure loses power", func(r *rig.Rig) { r.PowerCycle(); r.Run() }},
	{"device loses power", func(r *rig.Rig) { cyclePower(r) }},
	{"agent restarts", func(r *rig.Rig) { r.Restart(); r.Run() }},
	{"agent is away when the guest reboots", func(r *rig.Rig) {
		r.Stop()
		r.W.Server(rig.A).GuestReboot(rig.VM1)
		r.Start(enclosure.Options{SameBoot: true})
		r.Run()
	}},
	{"agent is away when the engine restarts", func(r *rig.Rig) {
		r.Stop()
		r.W.Slot("gpu0").Restart()
		time.Sleep(time.Second)
		r.Start(enclosure.Options{SameBoot: true})
		r.Run()
		time.Sleep(2 * time.Second)
	}},
	{"bus is dead for a while", func(r *rig.Rig) {
		r.W.Bus("bus0").Inject(deadBus)
		time.Sleep(2 * time.Second)
		r.W.Bus("bus0").ClearFaults()
		time.Sleep(2 * time.Second)
	}},
}

// cyclePower takes the device's power by the engine's own switch.
func cyclePower(r *rig.Rig) {
	control := r.W.Slot("gpu0").State().Control
	for _, c := range []byte{control &^ ee.CtlPower, control} {
		if err := r.W.Bus("bus0").Tx(0x60, []byte{ee.RegControl >> 8, ee.RegControl & 0xFF, c}, nil); err != nil {
			r.T.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// deadBus is a bus on which nothing answers, deafChip an engine's chip that
// takes no page for longer than the move tries.
var (
	deadBus  = sim.Fault{Kind: sim.NACKAddr}
	deafChip = sim.Fault{Kind: sim.NACKData, Addr: 0x20, Only: sim.WriteOp, Byte: 10, For: 40 * time.Millisecond}
)

// way is how the device comes to where its verdict is taken.
type way struct {
	name string
	go_  func(r *rig.Rig) error
}

var ways = []way{
	{"fence, attach on B", func(r *rig.Rig) error {
		r.Fence(rig.A)
		r.Attach(rig.VM1, rig.B)
		return nil
	}},
	{"fence, agent restarts, attach on B", func(r *rig.Rig) error {
		r.Fence(rig.A)
		r.Restart()
		r.Run()
		r.Attach(rig.VM1, rig.B)
		return nil
	}},
	{"attach on B, which fails to start it, back to C", func(r *rig.Rig) error {
		r.Fence(rig.A)
		r.Attach(rig.VM1, rig.B)
		r.Move(rig.VM1, rig.C)
		return nil
	}},
	{"move to B without arming", func(r *rig.Rig) error {
		r.Move(rig.VM1, rig.B)
		return nil
	}},
	{"move to B, undone, started again on A", func(r *rig.Rig) error {
		q := r.Request(rig.VM1, rig.B)
		r.W.Bus("bus0").Inject(deafChip)
		m, err := r.E.Move(r.Ctx(), q)
		r.W.Bus("bus0").ClearFaults()
		time.Sleep(10 * time.Millisecond)
		if err != nil || m.State != enclosure.MoveUndone {
			return fmt.Errorf("move %s, %v", m.State, err)
		}
		r.Attach(rig.VM1, rig.A)
		return nil
	}},
	{"started again on A", func(r *rig.Rig) error {
		r.Attach(rig.VM1, rig.A)
		return nil
	}},
}

// alive posts a proof of life; provenAt remembers when the VM was last known to
// run, by the model's clock.
func alive(r *rig.Rig) {
	if err := r.Alive(rig.VM1, rig.A, "gpu0"); err == nil {
		provenAt = r.W.Now()
	}
}

var provenAt time.Duration

// TestFlag runs every happening by every way under every policy and compares
// the verdict with what the model saw: yes exactly if no reset reached the
// device and its power was kept since its VM was last known to run.
func TestFlag(t *testing.T) {
	falseYes, falseNo, n := 0, 0, 0
	yes := 0
	for _, policy := range []plan.Policy{plan.Never, plan.OnMove, plan.Always} {
		for _, armed := range []bool{false, true} {
			for _, h := range happenings {
				for _, w := range ways {
					name := fmt.Sprintf("%s/armed %v/%s/%s", policy, armed, h.name, w.name)
					synctest.Test(t, func(t *testing.T) {
						r := rig.New(t, rig.Options{Policy: policy})
						defer func() { r.Stop() }()
						r.Run()
						r.StartVM(rig.VM1, rig.A)
						provenAt = r.W.Now()
						time.Sleep(5 * time.Second)
						alive(r)
						if armed {
							if a, err := r.Arm("gpu0", true); err != nil || a.Flag != plan.Armed {
								t.Fatalf("%s: arm = %+v, %v", name, a, err)
							}
							provenAt = r.W.Now()
						}
						h.do(r)
						if err := w.go_(r); err != nil {
							t.Fatalf("%s: %v", name, err)
						}
						v := r.Verdict("gpu0")
						intact := r.W.MemoryIntactSince("gpu0", provenAt)
						n++
						switch {
						case v.Preserved == plan.Yes && !intact:
							falseYes++
							t.Errorf("%s: verdict yes, but the model saw %+v", name, r.W.Resets("gpu0"))
						case v.Preserved != plan.Yes && intact:
							falseNo++
							t.Errorf("%s: verdict %s (%s), but the memory is intact", name, v.Preserved, v.Reason)
						}
						if v.Preserved == plan.Yes {
							yes++
						}
						r.Check()
					})
				}
			}
		}
	}
	if yes < n/10 || yes > n*9/10 {
		t.Errorf("%d of %d verdicts are yes: the scenarios do not tell", yes, n)
	}
	figure("false_yes", falseYes, fmt.Sprintf("verdicts of %d scenarios", n))
	figure("false_no", falseNo, fmt.Sprintf("verdicts of %d scenarios, %d of them yes", n, yes))
}
