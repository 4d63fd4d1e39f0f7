package enclosure_test

import (
	"math/rand"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"
)

func noExpect(p *ee.Profile) { p.Caps &^= ee.CapExpectPeer }

func TestRx50AlreadyThereStale(t *testing.T) {
	world(t, rig.Options{Policy: plan.OnMove}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		time.Sleep(1300 * time.Millisecond)
		r.W.Server(rig.A).GuestReboot(rig.VM1)
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.A))
		if m.Memory["gpu0"].Preserved == plan.Yes {
			t.Errorf("move says %s, memory %s (%v); verdict %s", m.State, m.Memory["gpu0"].Preserved, err, r.Verdict("gpu0").Preserved)
		}
	})
}

func TestRx51BadNVM(t *testing.T) {
	rnd := rand.New(rand.NewSource(1))
	images := map[string]func([]byte){
		"zero": func(p []byte) { clear(p) },
		"zero page, then foreign": func(p []byte) {
			rnd.Read(p)
			clear(p[:64])
		},
		"random": func(p []byte) { rnd.Read(p) },
	}
	for name, f := range images {
		t.Run(name, func(t *testing.T) {
			world(t, rig.Options{Fenced: true, Sim: func(s *sim.Spec) {
				for i := range s.Chips {
					if s.Chips[i].Name != "store" {
						p := make([]byte, 32768)
						f(p)
						s.Chips[i].Image = p
					}
				}
			}}, func(t *testing.T, r *rig.Rig) {
				s := r.SlotStatus("gpu0")
				if n := r.W.PageWrites("gpu0"); n != 0 {
					t.Errorf("%d pages were written to the chip; problem %q", n, s.Problem)
				}
				t.Log(s.Problem)
			})
		})
	}
}

func TestRx52UnfinishedGlitch(t *testing.T) {
	for _, skip := range []int{7} {
		world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			r.W.Server(rig.A).StopVM(rig.VM1)
			r.Attach(rig.VM1, rig.B)
			r.Boot(rig.VM1, rig.B) // runs; its ack is under way
			r.Stop()
			r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, Skip: skip, Count: 4})
			r.Start(enclosure.Options{SameBoot: true})
			r.Run()
			time.Sleep(10 * time.Second)
			evs, _ := r.E.Events(0)
			for _, e := range evs {
				t.Log(e.Uptime, e.Kind, e.Text)
			}
			t.Logf("%+v", r.W.Reach())
			if !r.W.Server(rig.B).Reach("gpu0") {
				t.Errorf("skip %d: the agent was restarted, four NACKs: the VM that runs on B lost its device; now with %q", skip, r.SlotStatus("gpu0").Host)
			}
		})
	}
}

func TestRx53NameSlotsSkipsRecovery(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r, "gpu0")
		r.Fence(rig.C)
		r.Stop()
		fillStore(t, r)
		r.Config.Slots = append(r.Config.Slots[:0:0], r.Config.Slots...)
		r.Config.Slots[1].Name = "gpu1-new"
		for i := range r.Config.VMs {
			r.Config.VMs[i].Slots = []string{"gpu0", "gpu1-new"}
		}
		r.W.PowerCut()
		time.Sleep(time.Second)
		r.W.PowerOn()
		time.Sleep(50 * time.Millisecond)
		r.Start(enclosure.Options{})
		time.Sleep(10 * time.Millisecond)
		st := r.E.Status(r.Ctx())
		t.Logf("store ok %v %q", st.Store.OK, st.Store.Problem)
		evs, _ := r.E.Events(0)
		for _, e := range evs {
			t.Log(e.Uptime, e.Kind, e.Text)
		}
		if st.Store.OK && !r.W.Server(rig.A).Reach("gpu0") {
			t.Errorf("a new slot could not be named in a full store: nothing was recovered, and nothing says so")
		}
	})
}

func TestRx54ForeignPeerOneOfSet(t *testing.T) {
	world(t, rig.Options{Slots: 2, ProfileMod: noExpect}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.B).LinkLoss()
		q := r.Request(rig.VM1, rig.B)
		q.Wait = 100 * time.Millisecond
		m, err := r.E.Move(r.Ctx(), q)
		t.Log(m.State, err)
		r.Run()
		time.Sleep(2500 * time.Millisecond)
		// slot 1's fabric shows the stale server first
		r.W.Server(rig.C).SetGroup(rig.GroupB)
		time.Sleep(2 * time.Second)
		for i := range 20 {
			time.Sleep(250 * time.Millisecond)
			a, b := r.W.Server(rig.C).Reach("gpu0"), r.W.Server(rig.C).Reach("gpu1")
			t.Log(i, a, b, r.SlotStatus("gpu0").Blocked != "", r.SlotStatus("gpu1").Blocked != "")
		}
	})
}

func TestRx55FencePollRace(t *testing.T) {
	for at := time.Duration(0); at < 120*time.Millisecond; at += 2 * time.Millisecond {
		world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			r.W.Server(rig.A).StopVM(rig.VM1)
			r.Move(rig.VM1, rig.B)
			r.Run()
			time.Sleep(500 * time.Millisecond)
			// engine 1 restarts, its chip takes no page for a while: recovery goes back to A
			r.W.Chip("gpu1").FlipBit(30, 1)
			r.W.Slot("gpu1").Restart()
			r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x21, Only: sim.WriteOp, Byte: 10, For: 540 * time.Millisecond})
			time.Sleep(500*time.Millisecond + at)
			f, err := r.E.Fence(r.Ctx(), rig.A, "test")
			_ = f
			if err == nil {
				for i := range 2 {
					if r.W.Server(rig.A).Reach(rig.Slot(i)) {
						t.Errorf("at %v: fence said %v and A reaches %d", at, f, i)
					}
				}
			}
			time.Sleep(5 * time.Second)
			for i := range 2 {
				if r.W.Server(rig.A).Reach(rig.Slot(i)) {
					t.Errorf("at %v: A reaches %d later", at, i)
				}
			}
		})
	}
}
