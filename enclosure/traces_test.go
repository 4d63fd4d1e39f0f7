package enclosure_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/nvm"
	"baton/sim"
	"baton/test/rig"
)

// The traces of docs/traces.md, each by its number.

// world runs f with a rig in a bubble and checks afterwards what the model
// alone can see.
func world(t *testing.T, o rig.Options, f func(t *testing.T, r *rig.Rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, o)
		defer r.Stop()
		f(t, r)
		r.Check()
	})
}

// sweep runs f once for every instant of a span, each in a world of its own.
func sweep(t *testing.T, o rig.Options, span, step time.Duration, f func(t *testing.T, r *rig.Rig, at time.Duration)) {
	t.Helper()
	for at := time.Duration(0); at <= span; at += step {
		synctest.Test(t, func(t *testing.T) {
			r := rig.New(t, o)
			defer r.Stop()
			f(t, r, at)
			r.Check()
			if t.Failed() {
				t.Logf("at %v", at)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// running brings vm up on A and has it proven alive.
func running(t *testing.T, r *rig.Rig, slots ...string) {
	t.Helper()
	r.StartVM(rig.VM1, rig.A, slots...)
	for _, s := range r.Slots(rig.VM1, rig.A) {
		if err := r.Alive(rig.VM1, rig.A, s); err != nil {
			t.Fatalf("alive: %v", err)
		}
	}
}

func wantCode(t *testing.T, err error, want enclosure.Code) {
	t.Helper()
	if got := rig.Code(err); got != want {
		t.Errorf("refusal is %q (%v); want %q", got, err, want)
	}
}

func background(f func()) (wait func()) {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	return func() { <-done }
}

func noGuard(p *ee.Profile) { p.Caps &^= ee.CapResetGuard }

func TestT01(t *testing.T) {
	world(t, rig.Options{ProfileMod: noGuard}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).Hang()
		r.Fence(rig.A)
		r.Attach(rig.VM1, rig.B)
		r.WantVerdict("gpu0", plan.Yes)
		r.Boot(rig.VM1, rig.B) // without a guard the open's resets reach the device
		if err := r.Alive(rig.VM1, rig.B, "gpu0"); err == nil {
			t.Error("a proof of life was accepted between attach and ack")
		}
		r.WantVerdict("gpu0", plan.No)
	})
}

func TestT02(t *testing.T) {
	world(t, rig.Options{Policy: plan.OnMove}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).StopVM(rig.VM1)
		a, err := r.Arm("gpu0", false)
		if err != nil || a.Flag == plan.Armed {
			t.Fatalf("arm without proof = %+v, %v", a, err)
		}
		r.Move(rig.VM1, rig.B)
		r.WantVerdict("gpu0", plan.No)
	})
}

func TestT03(t *testing.T) {
	undone := 0
	sweep(t, rig.Options{}, 45*time.Millisecond, 500*time.Microsecond, func(t *testing.T, r *rig.Rig, at time.Duration) {
		running(t, r)
		// The block's write fails for a while, so that the move is undone.
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x20, Only: sim.WriteOp, Byte: 10, For: 20 * time.Millisecond})
		wait := background(func() { r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) })
		time.Sleep(at)
		r.Fence(rig.A)
		fenced := r.W.Now()
		wait()
		time.Sleep(5 * time.Second)
		for _, iv := range r.W.Reach() {
			if iv.Server == rig.A && (iv.Open || iv.To > fenced) {
				t.Errorf("A reaches the device after its fence at %v: %+v", fenced, iv)
			}
		}
		s := r.SlotStatus("gpu0")
		switch {
		case s.Host == "":
			if !s.Held {
				t.Errorf("slot is %+v; want held", s)
			}
			undone++
		case s.Host != rig.B:
			t.Errorf("slot is with %s", s.Host)
		}
	})
	if undone == 0 {
		t.Error("no fence came before the undo's end: the sweep shows nothing")
	}
}

func TestT04(t *testing.T) {
	cutInFlight := 0
	for fence := time.Duration(0); fence <= 24*time.Millisecond; fence += 3 * time.Millisecond {
		sweep(t, rig.Options{}, 40*time.Millisecond, 2*time.Millisecond, func(t *testing.T, r *rig.Rig, at time.Duration) {
			running(t, r)
			r.W.CutAfter(at)
			wait := background(func() { r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) })
			time.Sleep(fence)
			waitFence := background(func() { r.E.Fence(r.Ctx(), rig.B, "test") })
			wait()
			waitFence()
			time.Sleep(100 * time.Millisecond)
			r.PowerUp()
			time.Sleep(5 * time.Second)
			if !r.Host(rig.B).Fenced {
				return // the power went before the fence was recorded
			}
			cutInFlight++
			if s := r.SlotStatus("gpu0"); s.Host == rig.B || (s.Host == "" && !s.Held) {
				t.Errorf("fence after %v: slot is with %q, held %v", fence, s.Host, s.Held)
			}
			for _, iv := range r.W.Reach() {
				if iv.Server == rig.B && iv.Open {
					t.Errorf("fence after %v: B reaches the device: %+v", fence, iv)
				}
			}
		})
	}
	if cutInFlight < 20 {
		t.Errorf("only %d power cuts came after the fence was recorded", cutInFlight)
	}
}

func TestT05(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		blockedMove(t, r)
		r.Run()
		r.Fence(rig.B)
		r.W.Bus("bus0").ClearFaults()
		time.Sleep(3 * time.Minute)
		for _, n := range []string{"gpu0", "gpu1"} {
			r.WantHost(n, "")
			if s := r.SlotStatus(n); !s.Held || s.Blocked != "" {
				t.Errorf("%s: held %v, blocked %q; want held and free of the blockage", n, s.Held, s.Blocked)
			}
		}
	})
}

// blockedMove makes a move to B whose engine 2 stops answering at the make.
func blockedMove(t *testing.T, r *rig.Rig) enclosure.Move {
	t.Helper()
	failAtMake(r, 0x61)
	m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
	if err != nil || m.State != enclosure.MoveBlocked {
		t.Fatalf("move = %s %s, %v; want blocked", m.State, m.Reason, err)
	}
	return m
}

// failAtMake lets a slot's engine take the cut and the reload of the next move,
// and then no write any more.
func failAtMake(r *rig.Rig, engine uint16) {
	r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: engine, Only: sim.WriteOp, Skip: 2})
}

func TestT06(t *testing.T) {
	refused := 0
	sweep(t, rig.Options{Slots: 2}, 30*time.Millisecond, time.Millisecond, func(t *testing.T, r *rig.Rig, at time.Duration) {
		r.StartVM(rig.VM1, rig.B, "gpu1")
		r.StartVM(rig.VM2, rig.A, "gpu0")
		wait := background(func() { r.Fence(rig.A) })
		time.Sleep(at)
		q := r.Request(rig.VM1, rig.A)
		q.Slots = []string{"gpu1"}
		m, err := r.E.Move(r.Ctx(), q)
		wait()
		if err != nil || m.State == enclosure.MoveHeld {
			refused++
		}
		for _, iv := range r.W.Reach() {
			if iv.Server == rig.A && iv.Slot == "gpu1" && iv.Open {
				t.Errorf("A reaches gpu1 after its fence; move %s, %v", m.State, err)
			}
		}
	})
	if refused == 0 {
		t.Error("no move met the fence")
	}
}

func TestT07(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).StopVM(rig.VM1)
		_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM2, Host: rig.A})
		wantCode(t, err, enclosure.CodeInUse)
		if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseKeep}); err != nil {
			t.Fatal(err)
		}
		gen, before := r.Gen("gpu0"), r.Verdict("gpu0").Now.Resets
		r.Attach(rig.VM2, rig.A)
		if r.Gen("gpu0") == gen {
			t.Error("the generation is the same for another VM")
		}
		if now := r.Verdict("gpu0").Now.Resets; now == before {
			t.Errorf("the reset counter did not move: %d", now)
		}
		r.WantVerdict("gpu0", plan.No)
		p := make([]byte, 8)
		if err := r.W.Server(rig.A).ReadMem("gpu0", 0, p); err != nil || string(p) != string(make([]byte, 8)) {
			t.Errorf("the next VM reads %x, %v", p, err)
		}
	})
}

func TestT08(t *testing.T) {
	world(t, rig.Options{Policy: plan.OnMove}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		// The agent reads the count, a reset arrives, the agent dies before the
		// write of PROVEN gets through.
		r.W.Server(rig.A).GuestReboot(rig.VM1)
		v := r.Verdict("gpu0")
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, Only: sim.WriteOp})
		wait := background(func() {
			r.E.Alive(r.Ctx(), enclosure.AliveRequest{Slot: "gpu0", Gen: r.Gen("gpu0"), Seen: v.Now})
		})
		time.Sleep(2 * time.Millisecond)
		r.W.Server(rig.A).Reset("gpu0")
		r.Stop()
		wait()
		r.W.Bus("bus0").ClearFaults()
		r.Start(enclosure.Options{SameBoot: true})
		r.WantVerdict("gpu0", plan.No)
	})
}

func TestT09(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		first, err := r.Arm("gpu0", true)
		if err != nil || first.Flag != plan.Armed {
			t.Fatalf("arm = %+v, %v", first, err)
		}
		r.Restart()
		r.W.Server(rig.A).Reset("gpu0") // swallowed
		again, err := r.Arm("gpu0", true)
		if err != nil || again.Base != first.Base || again.ID != first.ID {
			t.Errorf("arm repeated = %+v, %v; want %+v", again, err, first)
		}
		r.Move(rig.VM1, rig.B)
		r.WantVerdict("gpu0", plan.Yes)
	})
}

func TestT10(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		wait := background(func() { r.Move(rig.VM1, rig.B) })
		time.Sleep(5 * time.Millisecond)
		hosts := append([]enclosure.HostConfig(nil), r.Config.Hosts...)
		hosts[1].Group, hosts[2].Group = hosts[2].Group, hosts[1].Group
		hosts[1].MAC, hosts[2].MAC = hosts[2].MAC, hosts[1].MAC
		wantCode(t, r.E.Reconfigure(r.Ctx(), enclosure.Reconfiguration{Hosts: hosts, VMs: r.Config.VMs, By: "test", Admin: true}), enclosure.CodeBusy)
		wait()
		r.WantHost("gpu0", rig.B)
	})
}

func TestT11(t *testing.T) {
	for _, tt := range []struct {
		name string
		mod  func(*ee.Profile)
	}{
		{"expect peer", nil},
		{"without", func(p *ee.Profile) { p.Caps &^= ee.CapExpectPeer }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			world(t, rig.Options{Slots: 2, ProfileMod: tt.mod}, func(t *testing.T, r *rig.Rig) {
				running(t, r)
				r.W.Server(rig.B).LinkLoss()
				r.W.Server(rig.C).SetGroup(rig.GroupB) // the stale one
				q := r.Request(rig.VM1, rig.B)
				q.Wait = 3 * time.Second
				var m enclosure.Move
				wait := background(func() { m, _ = r.E.Move(r.Ctx(), q) })
				time.Sleep(time.Second)
				r.W.Server(rig.C).PowerLoss()
				r.W.Server(rig.B).LinkRestore()
				wait()
				if m.State != enclosure.MoveDone {
					t.Fatalf("move = %s %s", m.State, m.Reason)
				}
				r.WantHost("gpu0", rig.B)
				r.WantVerdict("gpu0", plan.Yes)
				for _, iv := range r.W.Reach() {
					if iv.Server == rig.C {
						t.Errorf("the stale server reached a device: %+v", iv)
					}
				}
			})
		})
	}
}

func TestT12(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		began := time.Now()
		blockedMove(t, r)
		if d := time.Since(began); d < time.Second || d > 5*time.Second {
			t.Errorf("blocked after %v; Wait was 1s", d)
		}
		for _, h := range []string{rig.A, rig.B} {
			if r.W.Server(h).Reach("gpu0") {
				t.Errorf("%s reaches gpu0 of a blocked set", h)
			}
		}
	})
}

func TestT13(t *testing.T) {
	dead := func(r *rig.Rig) { r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60}) }
	t.Run("by VLAN", func(t *testing.T) {
		world(t, rig.Options{Switch: true}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			dead(r)
			r.Fence(rig.A)
			if r.W.Server(rig.A).Reach("gpu0") {
				t.Error("A still reaches the device")
			}
		})
	})
	t.Run("unconfirmed", func(t *testing.T) {
		world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			dead(r)
			r.Run()
			_, err := r.E.Fence(r.Ctx(), rig.A, "test")
			wantCode(t, err, enclosure.CodeUnconfirmed)
			if s := r.SlotStatus("gpu0"); s.Cut != "unconfirmed" {
				t.Errorf("cut is %q; want unconfirmed", s.Cut)
			}
			_, err = r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.B})
			if err == nil {
				t.Error("a slot whose cut is not confirmed was assigned")
			}
			r.W.Bus("bus0").ClearFaults()
			time.Sleep(2 * time.Minute)
			if r.W.Server(rig.A).Reach("gpu0") {
				t.Error("the fence was not tried again")
			}
			r.Attach(rig.VM1, rig.B)
		})
	})
}

func TestT14(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		old := r.Fence(rig.A).Epoch
		r.Fence(rig.A)
		wantCode(t, r.E.Unfence(r.Ctx(), rig.A, old, "test"), enclosure.CodeStaleUnfence)
		if !r.Host(rig.A).Fenced {
			t.Error("A is not fenced")
		}
	})
}

func TestT15(t *testing.T) {
	for _, how := range []string{"formatted", "restored"} {
		t.Run(how, func(t *testing.T) {
			world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
				running(t, r)
				image := r.W.Chip("store").Image() // A is not fenced in it
				r.Fence(rig.A)
				r.Stop()
				if how == "formatted" {
					blank := make([]byte, len(image))
					for i := range blank {
						blank[i] = 0xFF
					}
					r.W.Chip("store").SetImage(blank)
				} else {
					r.W.Chip("store").SetImage(image)
				}
				r.Start(enclosure.Options{})
				for _, h := range r.E.Status(r.Ctx()).Hosts {
					if !h.Fenced || h.Why == "" {
						t.Errorf("%s: fenced %v, why %q", h.Name, h.Fenced, h.Why)
					}
				}
				r.WantHost("gpu0", "")
			})
		})
	}
}

func TestT16(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r, "gpu0")
		r.Attach(rig.VM1, rig.A, "gpu1")
		if r.Gen("gpu0") == r.Gen("gpu1") {
			t.Fatal("the generations should differ")
		}
		q := r.Request(rig.VM1, rig.B)
		q.Expect = map[string]ee.Generation{"gpu0": r.Gen("gpu0"), "gpu1": r.Gen("gpu1")}
		m, err := r.E.Move(r.Ctx(), q)
		if err != nil || m.State != enclosure.MoveDone {
			t.Fatalf("move = %s, %v", m.State, err)
		}
		r.WantHost("gpu0", rig.B)
		r.WantHost("gpu1", rig.B)
		if r.Gen("gpu0") != r.Gen("gpu1") {
			t.Error("a set has one generation after its move")
		}
	})
}

func TestT17(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Slots: []string{"gpu1"}, Mode: enclosure.ReleaseHold}); err != nil {
			t.Fatal(err)
		}
		r.WantHost("gpu1", "")
		r.Move(rig.VM1, rig.B)
		r.WantHost("gpu0", rig.B)
		r.WantHost("gpu1", rig.B)
		r.WantVerdict("gpu0", plan.Yes)
		r.WantVerdict("gpu1", plan.Yes)
	})
}

func TestT18(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		if l := r.SlotStatus("gpu0").Latches; len(l) == 0 {
			t.Fatal("no latch stands after power-up")
		}
		r.StartVM(rig.VM1, rig.A)
		if l := r.SlotStatus("gpu0").Latches; len(l) != 0 {
			t.Errorf("latches %v stand after the ack", l)
		}
		r.W.Server(rig.A).PowerLoss()
		r.Fence(rig.A)
		r.Attach(rig.VM1, rig.B)
		r.WantVerdict("gpu0", plan.Yes)
	})
}

func TestT19(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		if _, err := r.Arm("gpu0", true); err != nil {
			t.Fatal(err)
		}
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.Move(rig.VM1, rig.B)
		if v := r.StartVM(rig.VM1, rig.B); v["gpu0"].Preserved != plan.Yes {
			t.Fatalf("planned move: %+v", v)
		}
		r.W.Server(rig.B).PowerLoss()
		r.Fence(rig.B)
		r.Attach(rig.VM1, rig.A)
		r.WantVerdict("gpu0", plan.Yes)
	})
}

func TestT20(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		if _, err := r.Arm("gpu0", true); err != nil {
			t.Fatal(err)
		}
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x20, Only: sim.WriteOp, Byte: 10, For: 25 * time.Millisecond})
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		if err != nil || (m.State != enclosure.MoveUndone) {
			t.Fatalf("move = %s %s, %v; want undone", m.State, m.Reason, err)
		}
		r.W.Bus("bus0").ClearFaults()
		time.Sleep(5 * time.Millisecond)
		r.WantHost("gpu0", rig.A)
		if v := r.StartVM(rig.VM1, rig.A); v["gpu0"].Preserved != plan.Yes {
			t.Errorf("started again in place: %+v", v["gpu0"])
		}
	})
}

func TestT21(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).PowerLoss()
		r.Fence(rig.A)
		r.Attach(rig.VM1, rig.B)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, For: 200 * time.Millisecond})
		r.WantVerdict("gpu0", plan.Unknown)
		time.Sleep(200 * time.Millisecond)
		r.WantVerdict("gpu0", plan.Yes)
	})
}

func TestT22(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Move(rig.VM1, rig.B)
		r.Move(rig.VM1, rig.C, "gpu0")
		quiet(t, r, func() { r.Restart() })
		r.WantHost("gpu0", rig.C)
		r.WantHost("gpu1", rig.B)
	})
}

// quiet fails the test if anything is written while f runs.
func quiet(t *testing.T, r *rig.Rig, f func()) {
	t.Helper()
	type counts struct {
		pages, regs uint64
		links       int
	}
	count := func() map[string]counts {
		m := map[string]counts{}
		for _, c := range r.W.Spec().Chips {
			m[c.Name] = counts{pages: r.W.PageWrites(c.Name)}
		}
		for _, s := range r.W.Spec().Slots {
			k := m[s.Name]
			k.regs = r.W.Slot(s.Name).RegisterWrites()
			k.links = len(r.W.Reach())
			m[s.Name] = k
		}
		return m
	}
	before := count()
	f()
	for n, after := range count() {
		if after != before[n] {
			t.Errorf("%s: %+v before, %+v after; want no write and no link change", n, before[n], after)
		}
	}
}

func TestT23(t *testing.T) {
	undone := 0
	sweep(t, rig.Options{}, 80*time.Millisecond, time.Millisecond, func(t *testing.T, r *rig.Rig, at time.Duration) {
		running(t, r)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x20, Only: sim.WriteOp, Byte: 10, For: 30 * time.Millisecond})
		r.W.CutAfter(at)
		r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		time.Sleep(200 * time.Millisecond)
		r.W.Bus("bus0").ClearFaults()
		r.PowerUp()
		m, ok := r.E.MoveByID(rig.UUID(1))
		if ok && m.State == enclosure.MoveUndone {
			undone++
			r.WantHost("gpu0", rig.A)
		}
		gen := r.Gen("gpu0")
		r.PowerCycle()
		if r.Gen("gpu0") != gen {
			t.Errorf("generation %s after another power cycle; want %s", r.Gen("gpu0"), gen)
		}
	})
	if undone == 0 {
		t.Error("no cut came after the abort record")
	}
}

func TestT24(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x21, Only: sim.WriteOp, Byte: 10})
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		if err != nil || m.State != enclosure.MoveBlocked {
			t.Fatalf("move = %s %s, %v; want blocked", m.State, m.Reason, err)
		}
		r.Run()
		time.Sleep(5 * time.Hour)
		for _, n := range []string{"gpu0", "gpu1"} {
			if s := r.SlotStatus(n); s.Blocked == "" || r.W.Server(rig.A).Reach(n) || r.W.Server(rig.B).Reach(n) {
				t.Errorf("%s: blocked %q; want blocked and cut", n, s.Blocked)
			}
		}
		r.W.Bus("bus0").ClearFaults()
		time.Sleep(3 * time.Minute)
		r.WantHost("gpu0", rig.A)
		r.WantHost("gpu1", rig.A)
	})
}

func TestT25(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		m1 := r.Request(rig.VM1, rig.B)
		m1.Expect = map[string]ee.Generation{"gpu0": r.Gen("gpu0")}
		if m, err := r.E.Move(r.Ctx(), m1); err != nil || m.State != enclosure.MoveDone {
			t.Fatalf("M1 = %s, %v", m.State, err)
		}
		r.Move(rig.VM1, rig.C)
		check := func() {
			t.Helper()
			quiet(t, r, func() {
				m, err := r.E.Move(r.Ctx(), m1)
				if err != nil || m.State != enclosure.MoveDone || m.To != rig.B {
					t.Errorf("M1 repeated = %s to %s, %v; want its recorded outcome", m.State, m.To, err)
				}
			})
			r.WantHost("gpu0", rig.C)
		}
		check()
		r.Restart()
		check()
		m1.To = rig.A
		_, err := r.E.Move(r.Ctx(), m1)
		wantCode(t, err, enclosure.CodeMoveIDReused)
	})
}

func TestT26(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).PowerLoss()
		r.Fence(rig.A)
		first := r.Attach(rig.VM1, rig.B)
		r.Boot(rig.VM1, rig.B)
		r.W.Server(rig.B).KillQEMU(rig.VM1)
		r.Attach(rig.VM1, rig.B)
		r.Boot(rig.VM1, rig.B)
		late := enclosure.AckRequest{Slot: "gpu0", Nonce: first.Nonce, Gen: r.Gen("gpu0"), Seen: r.Verdict("gpu0").Now}
		wantCode(t, r.E.Ack(r.Ctx(), late), enclosure.CodeStaleNonce)
		r.Restart() // the latest nonce outlives the agent
		wantCode(t, r.E.Ack(r.Ctx(), late), enclosure.CodeStaleNonce)
		if f := r.SlotStatus("gpu0").Flag; f != plan.Target {
			t.Errorf("flag is %s; want still target", f)
		}
		if v := r.Ack(rig.VM1, rig.B); v["gpu0"].Preserved != plan.Yes {
			t.Errorf("verdict %+v", v["gpu0"])
		}
	})
}

func TestT27(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		r.Attach(rig.VM1, rig.A)
		r.Boot(rig.VM1, rig.A)
		r.Ack(rig.VM1, rig.A)
		quiet(t, r, func() { r.W.Now() })
		pages := r.W.PageWrites("store")
		r.E.Ack(r.Ctx(), enclosure.AckRequest{Slot: "gpu0", Nonce: r.Nonce(rig.VM1), Gen: r.Gen("gpu0"), Seen: r.Verdict("gpu0").Now})
		if n := r.W.PageWrites("store"); n != pages {
			t.Errorf("a repeated ack wrote %d pages", n-pages)
		}
		if _, err := r.Arm("gpu0", true); err != nil {
			t.Fatal(err)
		}
		// migrate dies here.
		if err := r.Alive(rig.VM1, rig.A, "gpu0"); err == nil {
			t.Error("a proof of life ended an arming within its lease")
		}
		time.Sleep(enclosure.DefaultLease + time.Second)
		if err := r.Alive(rig.VM1, rig.A, "gpu0"); err != nil {
			t.Errorf("alive after the lease: %v", err)
		}
		if f := r.SlotStatus("gpu0").Flag; f != plan.None {
			t.Errorf("flag is %s; want none", f)
		}
	})
}

func TestT28(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		time.Sleep(10 * time.Second)
		r.W.Slot("gpu0").Restart()
		time.Sleep(2 * time.Second)
		s := r.SlotStatus("gpu0")
		if s.Flag != plan.Void || s.Link != "up" || !s.Guard {
			t.Errorf("flag %s, link %s, guard %v; want void, up, guard of policy always", s.Flag, s.Link, s.Guard)
		}
		r.WantHost("gpu0", rig.A)
		found := false
		events, _ := r.E.Events(0)
		for _, e := range events {
			found = found || (e.Kind == "void" && e.Slot == "gpu0")
		}
		if !found {
			t.Error("no event tells of it")
		}
		r.WantVerdict("gpu0", plan.No)
	})
}

func TestT29(t *testing.T) {
	world(t, rig.Options{Slots: 8, Switch: true}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		quiet(t, r, func() {
			r.Restart()
			r.Run()
			time.Sleep(10 * time.Second)
		})
	})
}

func TestT30(t *testing.T) {
	world(t, rig.Options{Shared: true}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		for range 30 {
			r.W.Slot("gpu0").Restart() // it loads by itself, and nobody knows yet
			for i := range 10 {
				if f, err := r.E.Fence(r.Ctx(), rig.C, "test"); err != nil {
					t.Fatalf("write %d: %v %v", i, f, err)
				}
			}
			if st := r.W.Slot("gpu0").Registers()[ee.RegStatus]; st&ee.StatLoaded == 0 || st&ee.StatConfigBad != 0 {
				t.Fatalf("engine's status 0x%02x; want loaded", st)
			}
			time.Sleep(1337 * time.Millisecond)
		}
	})
}

func TestT31(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Stop()
		fillStore(t, r)
		r.Start(enclosure.Options{SameBoot: true})
		before := r.W.PageWrites("store")
		m := r.Move(rig.VM1, rig.B)
		if n := r.W.PageWrites("store") - before; n != 1 {
			t.Errorf("a move in a full store wrote %d pages to it; want the intent alone", n)
		}
		if at := stepAt(m, "intent"); at > 10*time.Millisecond {
			t.Errorf("intent after %v", at)
		}
	})
}

// fillStore writes audit until nothing more is taken.
func fillStore(t *testing.T, r *rig.Rig) {
	t.Helper()
	m := r.Chip(r.W.Spec().Chips[0])
	store, _, err := nvm.Mount(context.Background(), m, nvm.Options{ReservePages: 32})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10000 {
		key := string([]byte{'z', byte(i >> 8), byte(i)})
		if err := store.Put(context.Background(), nvm.Normal, nvm.Record{Key: key, Value: make([]byte, 40)}); err != nil {
			if i < 100 {
				t.Fatalf("only %d records: %v", i, err)
			}
			return
		}
	}
	t.Fatal("the store never filled")
}

func stepAt(m enclosure.Move, name string) time.Duration {
	for _, s := range m.Steps {
		if s.Name == name {
			return s.At
		}
	}
	return -1
}

func TestT32(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		vms := append([]enclosure.VMConfig(nil), r.Config.VMs...)
		vms[0].Hosts = []string{rig.C}
		wantCode(t, r.E.Reconfigure(r.Ctx(), enclosure.Reconfiguration{Hosts: r.Config.Hosts, VMs: vms, By: rig.C}), enclosure.CodeForbidden)
		events, _ := r.E.Events(0)
		if last := events[len(events)-1]; last.Kind != "refused" || last.By != rig.C {
			t.Errorf("last event is %+v; want the refusal of %s", last, rig.C)
		}
		r.Move(rig.VM1, rig.B) // the list is what it was
	})
}

func TestT33(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Fence(rig.A)
		r.Gen("gpu0")
		_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.A})
		wantCode(t, err, enclosure.CodeFenced)
		r.WantHost("gpu0", "")
	})
}

func TestT34(t *testing.T) {
	world(t, rig.Options{Slots: 3}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		var errs [2]error
		var ms [2]enclosure.Move
		var waits []func()
		for i, slots := range [][]string{{"gpu0", "gpu1"}, {"gpu1", "gpu2"}} {
			q := r.Request(rig.VM1, []string{rig.B, rig.C}[i])
			q.Slots = slots
			waits = append(waits, background(func() { ms[i], errs[i] = r.E.Move(r.Ctx(), q) }))
		}
		for _, w := range waits {
			w()
		}
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		if errs[winner] != nil || ms[winner].State != enclosure.MoveDone {
			t.Errorf("winner: %s, %v", ms[winner].State, errs[winner])
		}
		wantCode(t, errs[1-winner], enclosure.CodeBusy)
	})
}

func TestT35(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).PowerLoss()
		r.Fence(rig.A)
		r.Attach(rig.VM1, rig.B)
		r.W.PowerCut()
		r.Stop()
		time.Sleep(time.Second)
		up := r.W.Now()
		r.W.PowerOn()
		time.Sleep(10 * time.Second) // the agent takes long to boot
		for _, iv := range r.W.Reach() {
			if iv.Open || iv.To > up {
				t.Errorf("a link came up before the agent had looked: %+v", iv)
			}
		}
		r.Start(enclosure.Options{})
		r.WantVerdict("gpu0", plan.No)
		r.WantHost("gpu0", rig.B)
	})
}
