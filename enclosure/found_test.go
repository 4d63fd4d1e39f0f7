package enclosure_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
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

// What can not be cut is not called cut, and an unfence that is refused for it
// names the slot.
func TestFoundBlockedUncut(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Slot("gpu0").Kill()
		_, err := r.E.Fence(r.Ctx(), rig.A, "test")
		wantCode(t, err, enclosure.CodeUnconfirmed)
		_, err = r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.B, Slots: []string{"gpu0"}, By: "test"})
		wantCode(t, err, enclosure.CodeBlocked)
		var e *enclosure.Error
		if !errors.As(err, &e) || e.State != "the cut of [gpu0] is not confirmed: its old host may still reach it" {
			t.Errorf("attach: %v", err)
		}
		err = r.E.Unfence(r.Ctx(), rig.A, r.Host(rig.A).Epoch, "test")
		wantCode(t, err, enclosure.CodeUnconfirmed)
		if !errors.As(err, &e) || e.Slot != "gpu0" || e.Where == "" {
			t.Errorf("unfence: %v; want the slot and its address", err)
		}
	})
}

// An attach that is asked for again while the host's engine is still away has
// the answer of the first.
func TestFoundAttachAgainWaits(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		r.W.Server(rig.A).PowerLoss()
		for range 2 {
			a, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.A, Slots: []string{"gpu0"}, Wait: time.Second, By: "test"})
			if err != nil || a.State != enclosure.MoveWaiting {
				t.Fatalf("attach: %v, %v; want it to wait", a.State, err)
			}
		}
		r.W.Server(rig.A).PowerOn()
		time.Sleep(10 * time.Second)
		if a := r.Attach(rig.VM1, rig.A); a.State != enclosure.MoveDone {
			t.Errorf("attach: %v; want done", a.State)
		}
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

// An engine that restarts just before the guard is written under its link puts
// the link on again by that write: for its host alone, not for whoever has the
// group.
func TestFoundGuardWrittenAfterRestart(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).LinkLoss()
		r.W.Server(rig.C).SetGroup(rig.GroupA) // a stale one
		once := false
		r.W.Bus("bus0").OnTransfer(func(addr uint16, w []byte) {
			if addr == 0x60 && len(w) > 2 && !once {
				once = true
				r.W.Slot("gpu0").Restart()
			}
		})
		_, err := r.E.Arm(r.Ctx(), enclosure.ArmRequest{Slot: "gpu0", ID: rig.UUID(100), Gen: r.Gen("gpu0"), By: "test"})
		t.Logf("arm: %v", err)
		if !once {
			t.Fatal("nothing was written")
		}
		time.Sleep(time.Second)
		r.Run()
		time.Sleep(3 * time.Second)
		for _, iv := range r.W.Reach() {
			if iv.Server == rig.C {
				t.Errorf("C, which is not the slot's host, reached the device: %+v", iv)
			}
		}
		r.W.Server(rig.A).LinkRestore()
		time.Sleep(time.Second)
		r.WantHost("gpu0", rig.A)
		r.WantVerdict("gpu0", plan.No)
	})
}

// A link that could not be cut, and then need not be, is not called uncut.
func TestFoundUncutThatNeedNotBe(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Move(rig.VM1, rig.B)
		r.W.Slot("gpu0").RemoveDevice() // what hosts are shown must change
		stop := r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, Only: sim.WriteOp})
		r.Restart()
		if s := r.SlotStatus("gpu0"); s.Blocked == "" || s.Cut != "unconfirmed" {
			t.Errorf("%+v; want blocked and uncut", s)
		}
		stop()
		r.Run()
		time.Sleep(time.Minute)
		if s := r.SlotStatus("gpu0"); s.Blocked != "" || s.Cut != "" || s.Link != "up" {
			t.Errorf("%+v; want linked", s)
		}
	})
}

// lived fails the test if a life that once went wrong goes wrong again.
func lived(t *testing.T, l life) {
	t.Helper()
	for _, what := range live(t, l) {
		t.Error(what)
	}
}

// An agent that is killed between the intent and the reset leaves the memory of
// the VM before: the next agent must not take it for the new VM's.
func TestFoundKillBeforeReset(t *testing.T) {
	for _, release := range []string{"release-keep", "release-free"} {
		for when := time.Duration(0); when < 12*time.Millisecond; when += 2 * time.Millisecond {
			lived(t, life{policies: [2]plan.Policy{plan.Always, plan.Always}, steps: []step{
				{do: action{what: "start", vm: 1, host: 0, mask: 1}},
				{do: action{what: release, vm: 1, host: 0, mask: 1}},
				{do: action{what: "attach", vm: 0, host: 2, mask: 1}, mid: action{what: "kill-agent"}, when: when},
				{do: action{what: "boot", vm: 0, host: 2, mask: 1}},
			}})
		}
	}
}

// Without a device reset nothing shows in the engine's counter: the proof of the
// VM before must not speak for the next.
func TestFoundProofOfTheVMBefore(t *testing.T) {
	for _, policy := range []plan.Policy{plan.Never, plan.OnMove, plan.Always} {
		world(t, rig.Options{Policy: policy, ProfileMod: func(p *ee.Profile) { p.Caps &^= ee.CapDeviceReset }}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseKeep}); err != nil {
				t.Fatal(err)
			}
			r.Attach(rig.VM2, rig.B)
			r.WantVerdict("gpu0", plan.No)
			q := r.Request(rig.VM2, rig.C)
			q.Preserve = false
			if m, err := r.E.Move(r.Ctx(), q); err != nil || m.State != enclosure.MoveDone {
				t.Fatalf("move = %s, %v", m.State, err)
			}
			r.WantVerdict("gpu0", plan.No)
		})
	}
}

// A guard that is gone while the slot is with nobody is put back, not only at
// the next start of the agent.
func TestFoundGuardOfHeldSlot(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		r.Attach(rig.VM1, rig.A) // nothing is known of its memory: no flag shows the restart
		r.Fence(rig.A)
		r.Run()
		r.W.Slot("gpu0").Restart()
		time.Sleep(3 * time.Second)
		if c := r.W.Slot("gpu0").State().Control; c&(ee.CtlGuard|ee.CtlHold) != ee.CtlGuard|ee.CtlHold {
			t.Errorf("CONTROL is 0x%02x; want guard and hold", c)
		}
		quietBesideAudit(t, r, func() { r.Restart() })
	})
}

// What a cut does to a memory that nothing guards is recorded and shown at once.
func TestFoundReleaseWithoutGuard(t *testing.T) {
	world(t, rig.Options{Policy: plan.Never}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold}); err != nil {
			t.Fatal(err)
		}
		if s := r.SlotStatus("gpu0"); s.Link != "down" || s.Flag == plan.Armed || s.Memory.Preserved != plan.No {
			t.Errorf("link %s, flag %s, memory %s; want down, not armed, no", s.Link, s.Flag, s.Memory.Preserved)
		}
		quiet(t, r, func() { r.Restart() })
	})
}

// A device keeps its power when its engine could not be read before the cut.
func TestFoundCutOfUnreadEngine(t *testing.T) {
	for skip := range 30 {
		world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
			r.Attach(rig.VM1, rig.A)
			r.Stop()
			r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, Skip: skip, Count: 8})
			r.Start(enclosure.Options{SameBoot: true})
			r.E.Fence(r.Ctx(), rig.A, "test")
			if c := r.W.Slot("gpu0").State().Control; c&ee.CtlPower == 0 {
				t.Errorf("after %d transfers: the agent took the device's power", skip)
			}
		})
	}
}

// An EEPROM that does not answer is no reason to leave its engine linked to a
// fenced host.
func TestFoundFenceWithoutChip(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Chip("gpu0").SetDead(true)
		r.Restart()
		r.Fence(rig.A)
		r.WantHost("gpu0", "")
		r.Restart()
		if s := r.SlotStatus("gpu0"); s.Cut != "confirmed" {
			t.Errorf("after a restart the cut is %q; want confirmed", s.Cut)
		}
		r.W.Chip("gpu0").SetDead(false)
		r.Run()
		time.Sleep(2 * time.Minute)
		r.Unfence(rig.A)
		r.Attach(rig.VM1, rig.A)
		r.WantHost("gpu0", rig.A)
	})
}

// What an ack could not write, the page above all, is written once that works.
func TestFoundAckThatCouldNotBeFollowed(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Move(rig.VM1, rig.B)
		a := r.Attach(rig.VM1, rig.B)
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.Boot(rig.VM1, rig.B)
		r.Run()
		stop := r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x20, Only: sim.WriteOp})
		v := r.Verdict("gpu0")
		err := r.E.Ack(r.Ctx(), enclosure.AckRequest{Slot: "gpu0", Nonce: a.Nonce, Gen: r.Gen("gpu0"), Seen: v.Now})
		wantCode(t, err, enclosure.CodeHardware)
		stop()
		time.Sleep(3 * time.Second)
		if b, err := ee.DecodeBlock(r.W.Chip("gpu0").Peek(0, ee.BlockSize)); err != nil || b.Flags&ee.FlagTarget != 0 {
			t.Errorf("page = %+v, %v; want no target any more", b, err)
		}
		if show := r.W.Slot("gpu0").State().Show; show&ee.ShowTarget != 0 {
			t.Errorf("hosts are shown 0x%02x; want no target any more", show)
		}
	})
}

// The page of a slot can not be read, and its move was cut short before the
// link: who had it may still have it, and a fence of that host must see to it.
func TestFoundFenceAfterKillWithoutChip(t *testing.T) {
	for when := time.Duration(0); when < 8*time.Millisecond; when += time.Millisecond {
		lived(t, life{policies: [2]plan.Policy{plan.Always, plan.Always}, steps: []step{
			{do: action{what: "start", vm: 0, host: 0, mask: 1}},
			{do: action{what: "chip-dies"}},
			{do: action{what: "attach", vm: 0, host: 1, mask: 1}, mid: action{what: "kill-agent"}, when: when},
			{do: action{what: "fence", host: 0}},
		}})
	}
}

// The pollers of two buses look at the same instants; a set on both is brought
// back all the same.
func TestFoundPollersOfTwoBuses(t *testing.T) {
	for i := range 2 {
		world(t, rig.Options{Slots: 3, Buses: 2}, func(t *testing.T, r *rig.Rig) {
			r.Attach(rig.VM1, rig.A, "gpu0", "gpu1") // nobody was seen to use the set: it stays together
			r.Attach(rig.VM1, rig.A, "gpu2")
			r.Run()
			r.W.Slot(rig.Slot(i)).Restart()
			time.Sleep(10 * time.Second)
			r.WantHost("gpu0", rig.A)
			r.WantHost("gpu1", rig.A)
		})
	}
}

// A part of a blocked set is replaced, which may be what was to be done about it:
// nothing is written to another one than the configured, and nobody gets it.
func TestFoundReplacedWhileBlocked(t *testing.T) {
	for _, what := range []string{"engine", "card"} {
		world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			m := blockedMove(t, r)
			r.W.Slot("gpu1").Kill()
			r.W.Bus("bus0").ClearFaults()
			if what == "engine" {
				r.W.Slot("gpu1").SetEngine(ee.EngineID, newMAC)
			} else {
				r.W.Slot("gpu1").InsertDevice(sim.Device{Vendor: 0x10de, Device: 0x20b5, Class: 0x030200, Serial: 4711})
			}
			r.W.Slot("gpu1").Revive()
			time.Sleep(50 * time.Millisecond)
			regs, pages := r.W.Slot("gpu1").RegisterWrites(), r.W.PageWrites("gpu1")
			r.Run()
			time.Sleep(2 * time.Minute)
			if r.W.Slot("gpu1").RegisterWrites() != regs || r.W.PageWrites("gpu1") != pages || r.W.Server(rig.B).Reach("gpu1") {
				t.Errorf("%s: written to, or given to B: %v", what, r.W.Server(rig.B).Reach("gpu1"))
			}
			if s := r.SlotStatus("gpu1"); !strings.Contains(s.Problem, "configured") || s.Blocked == "" {
				t.Errorf("%s: problem %q, blocked %q", what, s.Problem, s.Blocked)
			}
			if got, err := r.E.Resolve(r.Ctx(), m.ID, []string{"gpu1"}, "test"); err != nil || got.State != enclosure.MoveDone {
				t.Errorf("%s: resolve = %s, %v", what, got.State, err)
			}
			if _, err := adopt(r, "gpu1"); err != nil {
				t.Errorf("%s: adopt: %v", what, err)
			}
			r.Attach(rig.VM1, rig.B, "gpu1")
			r.WantHost("gpu0", rig.B)
			r.WantHost("gpu1", rig.B)
		})
	}
}

// TestDistrustOutlivesUnfence: the unfence of one host makes the roll complete
// again, and the next start must not believe the store of the others.
func TestDistrustOutlivesUnfence(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		r.Fence(rig.C) // the record that rots: an older one says unfenced
		img := r.W.Chip("store").Image()
		last := -1
		for p := 4; p < len(img)/64; p++ {
			if findKey(img[p*64:p*64+64], "h"+rig.C) != "" {
				last = p
			}
		}
		r.W.Chip("store").FlipBit(int64(last*64+40), 3)
		r.Restart()
		if h := r.Host(rig.C); !h.Fenced {
			t.Fatalf("%+v", h)
		}
		r.Unfence(rig.B)
		for _, start := range []func(){r.Restart, r.PowerCycle, r.Restart} {
			start()
			if h := r.Host(rig.C); !h.Fenced {
				t.Errorf("nobody has unfenced %s: %+v", rig.C, h)
			}
			if h := r.Host(rig.A); !h.Fenced {
				t.Errorf("nobody has unfenced %s since the store lost records: %+v", rig.A, h)
			}
			if h := r.Host(rig.B); h.Fenced {
				t.Errorf("%s was unfenced: %+v", rig.B, h)
			}
		}
		quietBesideAudit(t, r, r.Restart)
		r.Unfence(rig.C)
		quietBesideAudit(t, r, r.Restart)
		if h := r.Host(rig.C); h.Fenced {
			t.Errorf("%+v", h)
		}
	})
}
