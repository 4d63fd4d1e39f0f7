package enclosure_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"
)

func TestRw32LinkLostLatch(t *testing.T) {
	sweep(t, rig.Options{}, 12*time.Millisecond, 500*time.Microsecond, func(t *testing.T, r *rig.Rig, at time.Duration) {
		running(t, r)
		since := r.W.Now()
		wait := background(func() { r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) })
		time.Sleep(at)
		r.W.Server(rig.A).PowerLoss()
		wait()
		if v := r.Verdict("gpu0"); v.Preserved != plan.Yes {
			t.Errorf("A lost power %v into the move: verdict %s (%s); intact %v; %+v", at, v.Preserved, v.Reason, r.W.MemoryIntactSince("gpu0", since), r.W.Resets("gpu0")[len(r.W.Resets("gpu0"))-1])
		}
	})
}

func TestRw33AckFollow(t *testing.T) {
	world(t, rig.Options{Policy: plan.OnMove}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).PowerLoss()
		r.Fence(rig.A)
		a := r.Attach(rig.VM1, rig.B)
		r.Boot(rig.VM1, rig.B)
		r.Run()
		v := r.Verdict("gpu0")
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x20, Only: sim.WriteOp, Byte: 10, For: 40 * time.Millisecond})
		q := enclosure.AckRequest{Slot: "gpu0", Nonce: a.Nonce, Gen: r.Gen("gpu0"), Seen: v.Now}
		t.Log(r.E.Ack(r.Ctx(), q))
		time.Sleep(time.Second)
		t.Log(r.E.Ack(r.Ctx(), q))
		time.Sleep(time.Minute)
		d, err := r.W.Server(rig.B).DVSEC("gpu0")
		if err != nil || uint16(d.Flags)&2 != 0 {
			t.Errorf("a minute after the ack (flag %s): DVSEC %s, %v", r.SlotStatus("gpu0").Flag, d.Flags, err)
		}
		b, _ := ee.DecodeBlock(r.W.Chip("gpu0").Peek(0, 64))
		t.Log(b.Flags)
	})
}

func TestRw34VerdictRefusesMove(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		var stop atomic.Bool
		w := background(func() {
			for !stop.Load() {
				r.E.Verdict(r.Ctx(), "gpu0")
			}
		})
		time.Sleep(300 * time.Microsecond)
		busy := 0
		for range 20 {
			_, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
			if rig.Code(err) == enclosure.CodeBusy {
				busy++
				if busy == 1 {
					t.Log(err)
				}
			} else {
				break
			}
			time.Sleep(130 * time.Microsecond)
		}
		stop.Store(true)
		w()
		if busy > 0 {
			t.Errorf("%d moves refused as busy because a viewer reads verdicts", busy)
		}
	})
}

func TestRw35SwappedAtRuntime(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		time.Sleep(3 * time.Second)
		// Somebody swaps the board: another engine, another chip with another store's content, another card.
		r.W.Slot("gpu0").Kill()
		r.W.Slot("gpu0").SetEngine(ee.EngineID, sim.MAC{2, 'X', 'X', 0, 0, 9})
		foreign := ee.Block{Group: 200, From: 4093, Generation: ee.Generation{Incarnation: 77, Counter: 5}, VM: rig.UUID(77)}
		r.W.Chip("gpu0").Replace("24c256", foreign.Encode())
		r.W.Slot("gpu0").Revive()
		regs, pages := r.W.Slot("gpu0").RegisterWrites(), r.W.PageWrites("gpu0")
		time.Sleep(5 * time.Second)
		if w, p := r.W.Slot("gpu0").RegisterWrites()-regs, r.W.PageWrites("gpu0")-pages; w != 0 || p != 0 {
			t.Errorf("another engine (MAC differs from the configured one) sits there: %d register bytes and %d pages were written; problem %q; A reaches it: %v", w, p, r.SlotStatus("gpu0").Problem, r.W.Server(rig.A).Reach("gpu0"))
		}
	})
}

func TestRw36DeviceReplaced(t *testing.T) {
	world(t, rig.Options{Config: func(c *enclosure.Config) { c.Slots[0].Serial = 0 }}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.W.Slot("gpu0").InsertDevice(sim.Device{Vendor: 0x10de, Device: 0x20b5, Class: 0x030200, Serial: 4711})
		time.Sleep(time.Minute)
		_, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		if err != nil {
			t.Errorf("a minute after the card was replaced (any serial is configured): %v; next: %s", err, err.(*enclosure.Error).Next)
		}
	})
}

func cutDevicePower(r *rig.Rig) {
	control := r.W.Slot("gpu0").State().Control
	for _, c := range []byte{control &^ ee.CtlPower, control} {
		if err := r.W.Bus("bus0").Tx(0x60, []byte{1, 7, c}, nil); err != nil {
			r.T.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func TestRw37PowerLostInTarget(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		r.W.Server(rig.A).PowerLoss()
		r.Fence(rig.A)
		r.Attach(rig.VM1, rig.B)
		cutDevicePower(r)
		time.Sleep(10 * time.Second)
		v := r.Verdict("gpu0")
		d, err := r.W.Server(rig.B).DVSEC("gpu0")
		if uint16(d.Flags)&2 != 0 {
			t.Errorf("the device lost power in target 10 s ago: verdict %s, flag %s, DVSEC %s %v", v.Preserved, v.Flag, d.Flags, err)
		}
	})
}

func TestRw38ForeignWear(t *testing.T) {
	world(t, rig.Options{ProfileMod: func(p *ee.Profile) { p.Caps &^= ee.CapExpectPeer }}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.B).LinkLoss()
		r.W.Server(rig.C).SetGroup(rig.GroupB)
		q := r.Request(rig.VM1, rig.B)
		q.Wait = 2 * time.Minute
		p, s := r.W.PageWrites("gpu0"), r.W.PageWrites("store")
		m, err := r.E.Move(r.Ctx(), q)
		t.Log(m.State, err)
		if n := r.W.PageWrites("gpu0") - p; n > 4 {
			t.Errorf("one move with a foreign engine on the fabric wrote the config page %d times (store %d)", n, r.W.PageWrites("store")-s)
		}
	})
}

func TestRw39StoreHeldByLook(t *testing.T) {
	world(t, rig.Options{Slots: 8, Buses: 2}, func(t *testing.T, r *rig.Rig) {
		r.StartVM(rig.VM1, rig.A, "gpu0")
		r.StartVM(rig.VM2, rig.C, "gpu1", "gpu3", "gpu5", "gpu7")
		r.W.Bus("bus1").Inject(sim.Fault{Kind: sim.Wedged, Hold: time.Second})
		q := r.Request(rig.VM2, rig.B)
		q.Slots = []string{"gpu1", "gpu3", "gpu5", "gpu7"}
		wait := background(func() { r.E.Move(r.Ctx(), q) })
		time.Sleep(time.Millisecond)
		began := time.Now()
		r.E.Fence(r.Ctx(), rig.A, "test")
		if d := time.Since(began); d > time.Second {
			t.Errorf("fence of A took %v: a move of another host's slots on a wedged bus holds the store", d)
		}
		wait()
	})
}

func TestRw40NameSlotsFull(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		full := r.Config
		r.Stop()
		img := r.W.Chip("store").Image()
		for i := range img {
			img[i] = 0xff
		}
		r.W.Chip("store").SetImage(img)
		for i := range 2 {
			r.W.Chip(rig.Slot(i)).SetImage(img)
		}
		r.Config.Slots = full.Slots[:1]
		r.Config.VMs = slices.Clone(full.VMs)
		for i := range r.Config.VMs {
			r.Config.VMs[i].Slots = []string{"gpu0"}
		}
		r.Start(enclosure.Options{})
		r.Unfence(rig.A)
		r.Unfence(rig.B)
		r.Attach(rig.VM1, rig.A)
		r.Stop()
		fillStore(t, r)
		r.Config = full
		r.Start(enclosure.Options{})
		st := r.E.Status(r.Ctx())
		t.Logf("store ok %v %q", st.Store.OK, st.Store.Problem)
		_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM2, Slots: []string{"gpu1"}, Host: rig.B, Wait: time.Second})
		t.Logf("attach gpu1: %v", err)
		r.Stop()
		// gpu1 is taken out again, and another slot is there in its stead
		c := full
		c.Slots = slices.Clone(full.Slots)
		c.Slots[1].Name = "nic0"
		c.VMs = slices.Clone(full.VMs)
		for i := range c.VMs {
			c.VMs[i].Slots = []string{"gpu0", "nic0"}
		}
		r.Config = c
		r.Start(enclosure.Options{})
		for _, s := range r.E.Status(r.Ctx()).Slots {
			t.Logf("%s: host %q vm %q problem %q", s.Name, s.Host, s.VM, s.Problem)
		}
	})
}

func TestRw41CutConfirmedIgnored(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).PowerLoss()
		time.Sleep(10 * time.Millisecond)
		r.W.Slot("gpu0").IgnoreControl(1)
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("%v", p)
			}
		}()
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		t.Log(m.State, m.Reason, err)
	})
}

func TestRw42OutcomePruned(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		r.StartVM(rig.VM1, rig.A, "gpu0")
		r.W.Server(rig.A).StopVM(rig.VM1)
		m1 := r.Request(rig.VM1, rig.B)
		m1.Slots = []string{"gpu0"}
		var m enclosure.Move
		wait := background(func() { m, _ = r.E.Move(r.Ctx(), m1) })
		time.Sleep(9 * time.Millisecond)
		r.Fence(rig.B)
		wait()
		t.Logf("M1: %s", m.State)
		was := m.State
		r.Unfence(rig.B)
		r.Move(rig.VM1, rig.A, "gpu0")
		r.Move(rig.VM1, rig.B, "gpu0")
		r.Move(rig.VM1, rig.A, "gpu0")
		for range 50 {
			r.Attach(rig.VM2, rig.C, "gpu1")
			r.Fence(rig.C)
			r.Unfence(rig.C)
		}
		r.Restart()
		m, ok := r.E.MoveByID(m1.ID)
		if !ok || m.State != was {
			t.Errorf("M1 was %s; after the restart it is %s (known %v)", was, m.State, ok)
		}
	})
}

// An unfence that quotes the fence which is still cutting waits for its end;
// the fence does not answer success for a host that is let in meanwhile.
func TestRw43UnfenceWhileCutting(t *testing.T) {
	met := 0
	sweep(t, rig.Options{Slots: 4}, 40*time.Millisecond, time.Millisecond, func(t *testing.T, r *rig.Rig, at time.Duration) {
		running(t, r)
		var fenced, unfenced time.Duration
		var fenceErr error
		wait := background(func() {
			_, fenceErr = r.E.Fence(r.Ctx(), rig.A, "test")
			fenced = r.W.Now()
		})
		time.Sleep(at)
		if r.Host(rig.A).Epoch == 1 {
			if err := r.E.Unfence(r.Ctx(), rig.A, 1, "test"); err != nil {
				t.Errorf("unfence: %v", err)
			}
			unfenced = r.W.Now()
		}
		wait()
		if unfenced == 0 {
			return // it came before the fence was recorded
		}
		met++
		if fenceErr != nil || unfenced < fenced {
			t.Errorf("unfenced at %v, the fence ended at %v with %v", unfenced, fenced, fenceErr)
		}
	})
	if met == 0 {
		t.Error("no unfence met a fence")
	}
}

func TestRw44StatusCancelled(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		time.Sleep(3 * time.Second)
		ctx, cancel := context.WithCancel(r.Ctx())
		cancel()
		r.E.Status(ctx)
		s := r.E.Status(ctx).Slots[0]
		if s.Problem != "" {
			t.Errorf("a client that hung up made: %q, verdict %s", s.Problem, s.Memory.Preserved)
		}
	})
}
