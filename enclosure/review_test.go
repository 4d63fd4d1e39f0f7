package enclosure_test

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/nvm"
	"baton/sim"
	"baton/test/rig"
)

// What a review with fresh eyes has found, each as the sequence that showed it.

// leashAll makes the agent killable.
func leashAll(l *leash) func(*enclosure.Config) {
	return func(c *enclosure.Config) {
		w := &witness{bare: *c, leash: l}
		*c = w.leashed(c.Store.Shared != "")
	}
}

func TestReviewStaleUnfenceRace(t *testing.T) {
	lost := 0
	sweep(t, rig.Options{}, 12*time.Millisecond, 500*time.Microsecond, func(t *testing.T, r *rig.Rig, at time.Duration) {
		running(t, r)
		old := r.Fence(rig.A).Epoch
		var f enclosure.Fenced
		var ferr error
		wait := background(func() { f, ferr = r.E.Fence(r.Ctx(), rig.A, "test") })
		time.Sleep(at)
		err := r.E.Unfence(r.Ctx(), rig.A, old, "late")
		wait()
		if h := r.Host(rig.A); ferr == nil && (!h.Fenced || h.Epoch != f.Epoch) {
			t.Errorf("at %v: fence %d acknowledged, unfence of %d said %v; host is now fenced=%v epoch %d", at, f.Epoch, old, err, h.Fenced, h.Epoch)
			lost++
		}
	})
}

func TestReviewFenceRepeatedUnconfirmed(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60})
		_, err := r.E.Fence(r.Ctx(), rig.A, "test")
		wantCode(t, err, enclosure.CodeUnconfirmed)
		f, err := r.E.Fence(r.Ctx(), rig.A, "test")
		if err == nil && r.W.Server(rig.A).Reach("gpu0") {
			t.Errorf("fence repeated says %+v, but A reaches the device", f)
		}
		r.Restart()
		f, err = r.E.Fence(r.Ctx(), rig.A, "test")
		if err == nil && r.W.Server(rig.A).Reach("gpu0") {
			t.Errorf("after restart: fence says %+v, but A reaches the device", f)
		}
		if err := r.E.Unfence(r.Ctx(), rig.A, r.Host(rig.A).Epoch, "x"); err == nil {
			t.Errorf("after restart: unfence accepted with an unconfirmed cut")
		}
	})
}

func TestReviewFenceFromDuringMove(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		r.StartVM(rig.VM1, rig.A, "gpu0")
		r.StartVM(rig.VM2, rig.A, "gpu1")
		_ = r.Alive(rig.VM1, rig.A, "gpu0")
		r.W.Server(rig.B).LinkLoss()
		q := r.Request(rig.VM1, rig.B)
		q.Slots = []string{"gpu0"}
		q.Wait = 60 * time.Second
		wait := background(func() { r.E.Move(r.Ctx(), q) })
		time.Sleep(3 * time.Millisecond)
		began := time.Now()
		wf := background(func() { r.Fence(rig.A) })
		time.Sleep(time.Second)
		if r.W.Server(rig.A).Reach("gpu1") {
			t.Errorf("A, fenced a second ago, still reaches gpu1, which nobody moves")
		}
		wf()
		if d := time.Since(began); d > time.Second {
			t.Errorf("fence(from) took %v", d)
		}
		wait()
	})
}

func TestReviewOtherVMKill(t *testing.T) {
	for at := time.Duration(0); at <= 40*time.Millisecond; at += time.Millisecond {
		l := &leash{}
		world(t, rig.Options{Config: leashAll(l)}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			secret := []byte("secret of train1")
			r.W.Server(rig.A).WriteMem("gpu0", 0, secret)
			r.W.Server(rig.A).StopVM(rig.VM1)
			if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseKeep}); err != nil {
				t.Fatal(err)
			}
			wait := background(func() {
				r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM2, Host: rig.B, Wait: time.Second})
			})
			time.Sleep(at)
			l.cut.Store(true)
			r.Stop()
			wait()
			l.cut.Store(false)
			r.Start(enclosure.Options{SameBoot: true})
			time.Sleep(5 * time.Millisecond)
			s := r.SlotStatus("gpu0")
			v := r.Verdict("gpu0")
			p := make([]byte, len(secret))
			err := r.W.Server(rig.B).ReadMem("gpu0", 0, p)
			if s.VM == rig.VM2 && (v.Preserved == plan.Yes || (err == nil && string(p) == string(secret))) {
				d, _ := r.W.Server(rig.B).DVSEC("gpu0")
				t.Errorf("killed at %v: slot is %s's at %q, flag %s, verdict %s (%s); B reads %q %v; DVSEC %v", at, s.VM, s.Host, s.Flag, v.Preserved, v.Reason, p, err, d.Flags)
			}
		})
		if t.Failed() {
			return
		}
	}
}

func TestReviewRestartGlitch(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Stop()
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, Skip: 7, Count: 4})
		r.Start(enclosure.Options{SameBoot: true})
		time.Sleep(5 * time.Millisecond)
		st := r.W.Slot("gpu0").State()
		if !r.W.Server(rig.A).Reach("gpu0") {
			t.Errorf("a restart of the agent with 4 NACKs in a row took the device from a running VM: control 0x%02x status 0x%02x", st.Control, st.Status)
		}
		r.Run()
		time.Sleep(time.Minute)
		t.Logf("a minute later: %+v", r.W.Slot("gpu0").State())
		r.WantVerdict("gpu0", plan.Yes)
		for _, e := range eventsOf(r, "blocked") {
			t.Log(e.Text)
		}
	})
}

func TestReviewNVMOnlySetKilled(t *testing.T) {
	for at := 100 * time.Millisecond; at <= 240*time.Millisecond; at += 500 * time.Microsecond {
		l := &leash{}
		world(t, rig.Options{Profile: "nvm-only", Slots: 2, Config: leashAll(l)}, func(t *testing.T, r *rig.Rig) {
			r.Attach(rig.VM1, rig.A)
			wait := background(func() { r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) })
			time.Sleep(at)
			l.cut.Store(true)
			r.Stop()
			wait()
			l.cut.Store(false)
			r.Start(enclosure.Options{SameBoot: true})
			time.Sleep(200 * time.Millisecond)
			for i := range 2 {
				s := r.SlotStatus(rig.Slot(i))
				b, err := ee.DecodeBlock(r.W.Chip(rig.Slot(i)).Peek(0, 64))
				if err != nil || b.Group != s.Group {
					t.Errorf("killed at %v: %s: the agent says group %d (%s), the page has %d, %v; blocked %q", at, s.Name, s.Group, s.Host, b.Group, err, s.Blocked)
				}
			}
		})
		if t.Failed() {
			return
		}
	}
}

func TestReviewLeaseAfterRestart(t *testing.T) {
	world(t, rig.Options{Policy: plan.OnMove}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		if _, err := r.Arm("gpu0", true); err != nil {
			t.Fatal(err)
		}
		r.Restart()
		if err := r.Alive(rig.VM1, rig.A, "gpu0"); err == nil {
			t.Errorf("after a restart of the agent a proof of life ended an arming within its lease")
		}
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.Move(rig.VM1, rig.B)
		r.WantVerdict("gpu0", plan.Yes)
	})
}

func TestReviewArmNil(t *testing.T) {
	world(t, rig.Options{Policy: plan.Never}, func(t *testing.T, r *rig.Rig) {
		r.Attach(rig.VM1, rig.A)
		r.Fence(rig.A)
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("arm panics: %v", p)
				}
			}()
			a, err := r.Arm("gpu0", true)
			t.Logf("%+v %v", a, err)
		}()
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("disarm panics: %v", p)
				}
			}()
			t.Log(r.E.Disarm(r.Ctx(), "gpu0", rig.UUID(9), "x"))
		}()
	})
}

func TestReviewBlockedUndoRestart(t *testing.T) {
	for _, how := range []string{"agent restart", "power cycle"} {
		t.Run(how, func(t *testing.T) {
			world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
				running(t, r)
				r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x21, Only: sim.WriteOp, Byte: 10})
				m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
				if err != nil || m.State != enclosure.MoveBlocked {
					t.Fatalf("move = %s %s, %v; want blocked", m.State, m.Reason, err)
				}
				if how == "agent restart" {
					r.Restart()
				} else {
					r.PowerCycle()
				}
				r.Run()
				time.Sleep(3 * time.Second)
				a, b := r.W.Server(rig.A).Reach("gpu0"), r.W.Server(rig.A).Reach("gpu1")
				if a != b {
					t.Errorf("of a blocked set, A reaches gpu0: %v, gpu1: %v; %q %q", a, b, r.SlotStatus("gpu0").Blocked, r.SlotStatus("gpu1").Blocked)
				}
			})
		})
	}
}

func TestReviewPartialAck(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).StopVM(rig.VM1)
		a := r.Attach(rig.VM1, rig.B)
		r.Boot(rig.VM1, rig.B)
		v := r.Verdict("gpu0")
		if err := r.E.Ack(r.Ctx(), enclosure.AckRequest{Slot: "gpu0", Nonce: a.Nonce, Gen: r.Gen("gpu0"), Seen: v.Now}); err != nil {
			t.Fatal(err)
		}
		r.W.PowerCut()
		r.Stop()
		time.Sleep(time.Second)
		// engine 1 answers, but takes no command for a while
		r.W.PowerOn()
		time.Sleep(50 * time.Millisecond)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x61, Only: sim.WriteOp, For: 2 * time.Second})
		r.Start(enclosure.Options{})
		r.Run()
		time.Sleep(3 * time.Minute)
		if a, b := r.SlotStatus("gpu0").Host, r.SlotStatus("gpu1").Host; a != b {
			t.Errorf("the set is split: gpu0 with %q, gpu1 with %q", a, b)
		}
		for _, h := range []string{rig.A, rig.B} {
			t.Logf("%s reaches gpu0 %v gpu1 %v", h, r.W.Server(h).Reach("gpu0"), r.W.Server(h).Reach("gpu1"))
		}
	})
}

func TestReviewBlockedThenRestartedEngine(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		blockedMove(t, r)
		r.W.Slot("gpu0").Restart()
		time.Sleep(100 * time.Millisecond)
		r.W.Bus("bus0").ClearFaults()
		lied := ""
		r.Run()
		for range 50000 {
			time.Sleep(200 * time.Microsecond)
			if d, err := r.W.Server(rig.B).DVSEC("gpu0"); err == nil {
				lied = d.Flags.String()
				if uint16(d.Flags)&2 != 0 {
					t.Errorf("gpu0 restarted while its set was blocked; B reads DVSEC %s", lied)
				}
				break
			}
		}
		if lied == "" {
			t.Error("never linked")
		}
		t.Log(lied)
	})
}

func TestReviewForeignSwap(t *testing.T) {
	world(t, rig.Options{ProfileMod: func(p *ee.Profile) { p.Caps &^= ee.CapExpectPeer }}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		time.Sleep(3 * time.Second)
		r.W.Server(rig.A).LinkLoss()
		r.W.Server(rig.C).SetGroup(rig.GroupA) // a stale one
		time.Sleep(10 * time.Second)
		if r.W.Server(rig.C).Reach("gpu0") {
			t.Errorf("a foreign server reaches the device for 10 s; status peer %s", r.SlotStatus("gpu0").Peer)
		}
		r.WantVerdict("gpu0", plan.No)
	})
}

func TestReviewForeignSwapBetweenPollsAgain(t *testing.T) {
	world(t, rig.Options{ProfileMod: func(p *ee.Profile) { p.Caps &^= ee.CapExpectPeer }}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		time.Sleep(3300 * time.Millisecond)
		r.W.Server(rig.A).LinkLoss()
		r.W.Server(rig.C).SetGroup(rig.GroupA) // a stale one
		time.Sleep(10 * time.Second)
		if r.W.Server(rig.C).Reach("gpu0") {
			t.Errorf("a foreign server reaches the device for 10 s; status peer %s", r.SlotStatus("gpu0").Peer)
		}
		r.WantVerdict("gpu0", plan.No)
		t.Log(r.W.Server(rig.C).WriteMem("gpu0", 0, []byte("mine now")))
		r.Fence(rig.A)
		r.Attach(rig.VM1, rig.B)
		t.Log(r.Verdict("gpu0"))
	})
}

func TestReviewDisarmNil(t *testing.T) {
	for _, prof := range []string{"nvm-only", "no latches"} {
		t.Run(prof, func(t *testing.T) {
			o := rig.Options{Policy: plan.Never, Profile: "nvm-only"}
			if prof != "nvm-only" {
				o = rig.Options{Policy: plan.Never, ProfileMod: func(p *ee.Profile) { p.Caps &^= ee.CapLatches }}
			}
			world(t, o, func(t *testing.T, r *rig.Rig) {
				r.Attach(rig.VM1, rig.A)
				if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold}); err != nil {
					t.Fatal(err)
				}
				defer func() {
					if p := recover(); p != nil {
						t.Errorf("disarm panics: %v", p)
					}
				}()
				t.Log(r.E.Disarm(r.Ctx(), "gpu0", rig.UUID(9), "x"))
			})
		})
	}
}

func TestReviewNVMOnlyUnfence(t *testing.T) {
	world(t, rig.Options{Profile: "nvm-only"}, func(t *testing.T, r *rig.Rig) {
		r.Attach(rig.VM1, rig.A)
		r.Run()
		_, err := r.E.Fence(r.Ctx(), rig.A, "test")
		t.Logf("fence: %v", err)
		time.Sleep(10 * time.Minute)
		if err := r.E.Unfence(r.Ctx(), rig.A, r.Host(rig.A).Epoch, "test"); err != nil {
			t.Errorf("never to be unfenced: %v", err)
		}
	})
}

func TestReviewSharedPowerUp(t *testing.T) {
	n := 0
	for at := time.Duration(0); at < 12*time.Millisecond; at += 500 * time.Microsecond {
		world(t, rig.Options{Shared: true}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			r.W.PowerCut()
			r.Stop()
			time.Sleep(time.Second)
			r.W.PowerOn()
			time.Sleep(at)
			r.Start(enclosure.Options{})
			n += len(r.W.Violations())
			if len(r.W.Violations()) > 0 {
				t.Logf("agent started %v after power-on", at)
			}
		})
	}
	t.Log(n)
}

func TestReviewAlreadyThereRepeated(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		m1 := r.Request(rig.VM1, rig.A)
		m, err := r.E.Move(r.Ctx(), m1)
		if err != nil || m.State != enclosure.MoveDone {
			t.Fatal(m, err)
		}
		r.Move(rig.VM1, rig.B)
		m, err = r.E.Move(r.Ctx(), m1)
		t.Logf("M1 repeated: %s %v", m.State, err)
		r.WantHost("gpu0", rig.B)
	})
}

func TestReviewSameIDBehindPoll(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		time.Sleep(3 * time.Second)
		before := len(r.W.Resets("gpu0"))
		// Status reads over a slow bus, as the poller.
		stop := r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.Stretch, Addr: 0x60, Hold: 4 * time.Millisecond, Count: 1})
		ws := background(func() { r.E.Status(r.Ctx()) })
		time.Sleep(time.Millisecond)
		q := r.Request(rig.VM1, rig.B)
		q.Expect = map[string]ee.Generation{}
		q.Preserve = false
		var ms [2]enclosure.Move
		var errs [2]error
		var waits []func()
		for i := range 2 {
			waits = append(waits, background(func() { ms[i], errs[i] = r.E.Move(r.Ctx(), q) }))
		}
		for _, w := range waits {
			w()
		}
		ws()
		stop()
		t.Logf("%s %v / %s %v; gens %v %v", ms[0].State, errs[0], ms[1].State, errs[1], ms[0].Generation, ms[1].Generation)
		resets := 0
		for _, rs := range r.W.Resets("gpu0")[before:] {
			if rs.Cause == "device reset" {
				resets++
			}
		}
		if resets != 1 || ms[0].Generation != ms[1].Generation {
			t.Errorf("one move ID had %d effects", resets)
		}
	})
}

func TestReviewReconfigureBehindPoll(t *testing.T) {
	world(t, rig.Options{Config: func(c *enclosure.Config) { c.VMs[0].Hosts = []string{rig.A, rig.B} }}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		time.Sleep(3 * time.Second)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.Stretch, Addr: 0x60, Hold: 30 * time.Millisecond, Count: 1})
		ws := background(func() { r.E.Status(r.Ctx()) })
		time.Sleep(time.Millisecond)
		var m enclosure.Move
		var err error
		wait := background(func() { m, err = r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) })
		time.Sleep(5 * time.Millisecond)
		hosts := slices.Clone(r.Config.Hosts)
		hosts[1].Group, hosts[2].Group = hosts[2].Group, hosts[1].Group
		if e := r.E.Reconfigure(r.Ctx(), enclosure.Reconfiguration{Hosts: hosts, VMs: r.Config.VMs, By: "test", Admin: true}); e != nil {
			t.Fatalf("reconfigure: %v", e)
		}
		r.W.Server(rig.B).SetGroup(rig.GroupC)
		r.W.Server(rig.C).SetGroup(rig.GroupB)
		wait()
		ws()
		t.Logf("move %s to %s: %s, %v", m.State, m.To, m.Reason, err)
		if r.W.Server(rig.C).Reach("gpu0") {
			t.Errorf("asked for B, C got it, which the VM may not run on; status host %q", r.SlotStatus("gpu0").Host)
		}
	})
}

func TestReviewFenceContextEnds(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		time.Sleep(1500 * time.Millisecond)
		// an arm sits on a slow bus
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.Stretch, Addr: 0x60, Hold: 90 * time.Millisecond, Count: 3})
		wa := background(func() { r.Arm("gpu0", true) })
		time.Sleep(time.Millisecond)
		ctx, cancel := context.WithTimeout(r.Ctx(), 20*time.Millisecond)
		_, err := r.E.Fence(ctx, rig.A, "test")
		cancel()
		t.Logf("fence: %v", err)
		wa()
		time.Sleep(5 * time.Second)
		s := r.SlotStatus("gpu0")
		if s.Host != "" || !s.Held {
			t.Errorf("fence was carried on, but the slot is with %q, held %v, link %s", s.Host, s.Held, s.Link)
		}
		if err := r.E.Unfence(r.Ctx(), rig.A, r.Host(rig.A).Epoch, "x"); err != nil {
			t.Logf("unfence: %v", err)
		}
		time.Sleep(5 * time.Second)
		if r.W.Server(rig.A).Reach("gpu0") {
			t.Errorf("unfence alone gave A the device back")
		}
	})
}

func TestReviewOutcomeAfterFence(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		q := r.Request(rig.VM1, rig.B)
		m, err := r.E.Move(r.Ctx(), q)
		if err != nil || m.State != enclosure.MoveDone {
			t.Fatal(m.State, err)
		}
		r.Fence(rig.B)
		r.Restart()
		m, err = r.E.Move(r.Ctx(), q)
		if m.State != enclosure.MoveDone {
			t.Errorf("outcome of a move that was done is now %s %v", m.State, err)
		}
	})
}

func TestReviewRefusedRetry(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		q := r.Request(rig.VM1, rig.B)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, Count: 4})
		_, err := r.E.Move(r.Ctx(), q)
		t.Logf("first: %v (retry %v)", err, err.(*enclosure.Error).Retry)
		m, err := r.E.Move(r.Ctx(), q)
		if err == nil && m.State == enclosure.MoveRefused {
			t.Errorf("the first answer said retry; the retry: %s, %v", m.State, err)
		}
	})
}

func TestReviewForeignNoReset(t *testing.T) {
	world(t, rig.Options{ProfileMod: func(p *ee.Profile) { p.Caps &^= ee.CapExpectPeer }}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.B).LinkLoss()
		r.W.Server(rig.C).SetGroup(rig.GroupB)
		q := r.Request(rig.VM1, rig.B)
		q.Wait = 3 * time.Second
		var m enclosure.Move
		wait := background(func() { m, _ = r.E.Move(r.Ctx(), q) })
		time.Sleep(40 * time.Millisecond)
		r.W.Server(rig.C).WriteMem("gpu0", 0, []byte("foreign"))
		time.Sleep(time.Second)
		r.W.Server(rig.C).PowerLoss()
		r.W.Server(rig.B).LinkRestore()
		wait()
		resets := 0
		for _, rs := range r.W.Resets("gpu0") {
			if rs.Cause == "device reset" {
				resets++
			}
		}
		t.Logf("%s; verdict %s; agent's resets %d", m.State, r.Verdict("gpu0").Preserved, resets)
		if r.Verdict("gpu0").Preserved != plan.Yes && r.W.Server(rig.B).Reach("gpu0") && resets < 2 {
			t.Errorf("linked, not preserved, and the agent has not reset the device since the foreign engine (%d resets)", resets)
		}
	})
}

func TestReviewPollSerial(t *testing.T) {
	world(t, rig.Options{Slots: 8, Buses: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		time.Sleep(2500 * time.Millisecond)
		// bus1 is wedged; every transfer takes a second to fail.
		r.W.Bus("bus1").Inject(sim.Fault{Kind: sim.Wedged, Hold: time.Second})
		time.Sleep(5 * time.Second)
		r.W.Slot("gpu0").Restart()
		time.Sleep(2 * time.Second)
		if s := r.SlotStatus("gpu0"); s.Flag != plan.Void || s.Link != "up" {
			t.Errorf("2 s after its engine restarted: flag %s, link %s; the other bus is wedged", s.Flag, s.Link)
		}
	})
}

func TestReviewFenceBehindWedge(t *testing.T) {
	world(t, rig.Options{Slots: 16, Buses: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Bus("bus1").Inject(sim.Fault{Kind: sim.Wedged, Hold: time.Second})
		began := time.Now()
		wf := background(func() { _, err := r.E.Fence(r.Ctx(), rig.A, "test"); t.Logf("%v after %v", err, time.Since(began)) })
		for r.W.Server(rig.A).Reach("gpu0") && time.Since(began) < 10*time.Minute {
			time.Sleep(100 * time.Millisecond)
			if time.Since(began) == 40*time.Second {
				r.Run()
			}
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("A reached gpu0, whose bus is well, for %v after its fence", d)
		}
		wf()
	})
}

func TestReviewBitRotFence(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Fence(rig.C) // the record that rots
		img := r.W.Chip("store").Image()
		var pages []int
		for p := 4; p < len(img)/64; p++ {
			if slices.Contains([]string{"h" + rig.C}, findKey(img[p*64:p*64+64], "h"+rig.C)) {
				pages = append(pages, p)
			}
		}
		t.Logf("pages with %s: %v", rig.C, pages)
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.Move(rig.VM1, rig.B)
		r.Move(rig.VM1, rig.A)
		r.Move(rig.VM1, rig.B)
		r.W.Chip("store").FlipBit(int64(pages[len(pages)-1]*64+40), 3)
		r.Restart()
		h := r.Host(rig.C)
		t.Logf("%+v damaged %d", h, r.E.Status(r.Ctx()).Store.Damaged)
		if !h.Fenced {
			t.Errorf("one flipped bit in the store, and the acknowledged fence is gone: %+v", h)
		}
	})
}

func findKey(p []byte, key string) string {
	for i := 0; i+len(key) <= len(p); i++ {
		if string(p[i:i+len(key)]) == key {
			return key
		}
	}
	return ""
}

func TestReviewNVMOnlyBlockedRetryAgain(t *testing.T) {
	world(t, rig.Options{Profile: "nvm-only", Slots: 2}, func(t *testing.T, r *rig.Rig) {
		r.Attach(rig.VM1, rig.A)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x21, Only: sim.WriteOp, Byte: 10})
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		t.Log(m.State, m.Reason, err)
		r.W.Bus("bus0").ClearFaults()
		r.Run()
		time.Sleep(10 * time.Minute)
		for i := range 2 {
			s := r.SlotStatus(rig.Slot(i))
			b, err := ee.DecodeBlock(r.W.Chip(rig.Slot(i)).Peek(0, 64))
			if err != nil || b.Group != s.Group {
				t.Errorf("%s: the agent says group %d (%s), the page has %d, %v; blocked %q", s.Name, s.Group, s.Host, b.Group, err, s.Blocked)
			}
		}
	})
}

func TestReviewFenceRetriedNotHeldAgain(t *testing.T) {
	world(t, rig.Options{Slots: 2, Buses: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		time.Sleep(2975 * time.Millisecond)
		r.W.Bus("bus1").Inject(sim.Fault{Kind: sim.Stretch, Addr: 0x61, Hold: 90 * time.Millisecond, Count: 3})
		gen := r.Gen("gpu1")
		wa := background(func() { r.E.Arm(r.Ctx(), enclosure.ArmRequest{Slot: "gpu1", ID: rig.UUID(7), Gen: gen}) })
		time.Sleep(time.Millisecond)
		ctx, cancel := context.WithTimeout(r.Ctx(), 20*time.Millisecond)
		_, err := r.E.Fence(ctx, rig.A, "test")
		cancel()
		t.Logf("fence: %v", err)
		wa()
		time.Sleep(5 * time.Second)
		s := r.SlotStatus("gpu1")
		if s.Host != "" || !s.Held {
			t.Errorf("fence was carried on, but the slot is with %q, held %v, link %s", s.Host, s.Held, s.Link)
		}
		evs, _ := r.E.Events(0)
		for _, e := range evs {
			t.Log(e.Uptime, e.Kind, e.Text)
		}
		if err := r.E.Unfence(r.Ctx(), rig.A, r.Host(rig.A).Epoch, "x"); err != nil {
			t.Logf("unfence: %v", err)
		}
		time.Sleep(5 * time.Second)
		if r.W.Server(rig.A).Reach("gpu1") {
			t.Errorf("unfence alone gave A the device back")
		}
	})
}

// lying takes a page and says it did not, as an adapter does whose interrupt
// comes late.
type lying struct {
	nvm.Medium
	lies *bool
}

func (m lying) Program(ctx context.Context, p []byte, off int64) error {
	err := m.Medium.Program(ctx, p, off)
	if *m.lies {
		return fmt.Errorf("timed out: %w", nvm.ErrAbsent)
	}
	return err
}

// Of a record of which nobody knows whether it was written, the agent makes
// sure at once by starting again: not whenever it happens to be restarted.
func TestReviewUnknownAtBegin(t *testing.T) {
	lies := false
	world(t, rig.Options{Config: func(c *enclosure.Config) { c.Store.Medium = lying{c.Store.Medium, &lies} }}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		lies = true
		_, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		wantCode(t, err, enclosure.CodeStore)
		lies = false
		began := time.Now()
		if err := r.E.Run(r.Ctx()); err == nil || time.Since(began) > 2*time.Second {
			t.Errorf("Run = %v after %v; want an error at once", err, time.Since(began))
		}
		r.Restart()
		if m, ok := r.E.MoveByID(rig.UUID(1)); !ok || m.State != enclosure.MoveDone {
			t.Errorf("after the restart the move is %s (known %v); its intent was written", m.State, ok)
		}
		r.WantHost("gpu0", rig.B)
	})
}

// A host's reset between the look and the cut must not count as the agent's.
func TestReviewWasReset(t *testing.T) {
	world(t, rig.Options{Policy: plan.OnMove}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		first := true
		r.W.Bus("bus0").OnTransfer(func(addr uint16, w []byte) {
			if addr != 0x60 || len(w) != 3 || w[0] != 1 || w[1] != 7 {
				return
			}
			if first {
				first = false
				r.W.Server(rig.A).Reset("gpu0") // a guest's driver resets its card
				r.W.Server(rig.A).WriteMem("gpu0", 0, []byte("secret"))
				return
			}
			if w[2]&ee.CtlDeviceReset != 0 {
				r.W.Slot("gpu0").IgnoreControl(1)
			}
		})
		q := r.Request(rig.VM1, rig.B)
		q.Preserve = false
		m, err := r.E.Move(r.Ctx(), q)
		t.Log(m.State, m.Reason, err)
		p := make([]byte, 6)
		e2 := r.W.Server(rig.B).ReadMem("gpu0", 0, p)
		if e2 == nil && string(p) == "secret" {
			t.Errorf("the agent's reset was not taken, and B reads %q", p)
		}
	})
}

// The engine's load is told late; the store's gate must not stay shut.
func TestReviewGateStuck(t *testing.T) {
	world(t, rig.Options{Shared: true, Sim: nil}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		time.Sleep(time.Second)
		began := time.Now()
		r.Fence(rig.C)
		before := time.Since(began)
		// the readings that would show the end of a load fail, in the move and in its undo
		r.W.Bus("bus0").OnTransfer(func(addr uint16, w []byte) {
			if addr == 0x60 && len(w) == 3 && w[0] == 1 && w[1] == 7 && w[2]&ee.CtlReload != 0 {
				time.AfterFunc(300*time.Microsecond, func() {
					r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, For: 12 * time.Millisecond})
				})
			}
		})
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		t.Log(m.State, m.Reason, err)
		r.W.Bus("bus0").OnTransfer(nil)
		r.W.Bus("bus0").ClearFaults()
		r.Run()
		time.Sleep(time.Hour)
		began = time.Now()
		r.Fence(rig.C)
		if d := time.Since(began); d > before+10*time.Millisecond {
			t.Errorf("a store write took %v before, and %v an hour after a load whose end was not read", before, d)
		}
		t.Logf("%+v", r.SlotStatus("gpu0").Blocked)
	})
}

// The start of one slot of a set that was started as one.
func TestReviewStartReplaced(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.Move(rig.VM1, rig.B)
		a := r.Attach(rig.VM1, rig.B)
		r.Boot(rig.VM1, rig.B)
		r.Attach(rig.VM1, rig.B, "gpu0") // the hook asks again for one slot
		r.Restart()
		v := r.Verdict("gpu1")
		err := r.E.Ack(r.Ctx(), enclosure.AckRequest{Slot: "gpu1", Nonce: a.Nonce, Gen: r.Gen("gpu1"), Seen: v.Now})
		if err != nil {
			t.Errorf("ack of gpu1 by its latest start, after a restart: %v", err)
		}
	})
}

func TestReviewReAddedSlot(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		r.StartVM(rig.VM1, rig.A, "gpu0")
		r.StartVM(rig.VM2, rig.A, "gpu1")
		full := r.Config
		r.Stop()
		r.Config.Slots = r.Config.Slots[:1]
		r.Config.VMs = slices.Clone(r.Config.VMs)
		for i := range r.Config.VMs {
			r.Config.VMs[i].Slots = []string{"gpu0"}
		}
		r.Start(enclosure.Options{SameBoot: true})
		r.W.Server(rig.A).StopVM(rig.VM1)
		for i := range 700 {
			q := r.Request(rig.VM1, []string{rig.B, rig.A}[i%2])
			q.ID[0], q.ID[1], q.ID[2] = 1, byte(i>>8), byte(i)
			if m, err := r.E.Move(r.Ctx(), q); err != nil || m.State != enclosure.MoveDone {
				t.Fatalf("move %d: %s %s, %v", i, m.State, m.Reason, err)
			}
		}
		r.Stop()
		r.Config = full
		r.Start(enclosure.Options{SameBoot: true})
		time.Sleep(5 * time.Millisecond)
		s := r.SlotStatus("gpu1")
		if s.Host != rig.A || s.VM != rig.VM2 {
			t.Errorf("gpu1 left the configuration for a while; now with %q for %q, flag %s, problem %q; A fenced: %v %q", s.Host, s.VM, s.Flag, s.Problem, r.Host(rig.A).Fenced, r.Host(rig.A).Why)
		}
	})
}

// The retry of a blocked set: how many page writes in a day?
func TestReviewBlockedWear(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Chip("gpu1").SetWorn(0, true)
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		t.Log(m.State, m.Reason, err)
		r.Run()
		time.Sleep(time.Hour)
		b := map[string]uint64{}
		for _, c := range r.W.Spec().Chips {
			b[c.Name] = r.W.PageWrites(c.Name)
		}
		time.Sleep(24 * time.Hour)
		for _, c := range r.W.Spec().Chips {
			t.Logf("%s: %d page writes in a day", c.Name, r.W.PageWrites(c.Name)-b[c.Name])
		}
	})
}

func TestReviewLinkLostLatch(t *testing.T) {
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

func TestReviewAckFollow(t *testing.T) {
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

func TestReviewVerdictRefusesMove(t *testing.T) {
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

func TestReviewSwappedAtRuntime(t *testing.T) {
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

func TestReviewDeviceReplaced(t *testing.T) {
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

func TestReviewPowerLostInTarget(t *testing.T) {
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

func TestReviewForeignWear(t *testing.T) {
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

func TestReviewStoreHeldByLook(t *testing.T) {
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

func TestReviewNameSlotsFull(t *testing.T) {
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

func TestReviewCutConfirmedIgnored(t *testing.T) {
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

func TestReviewOutcomePruned(t *testing.T) {
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
func TestReviewUnfenceWhileCutting(t *testing.T) {
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

func TestReviewStatusCancelled(t *testing.T) {
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

func noExpect(p *ee.Profile) { p.Caps &^= ee.CapExpectPeer }

func TestReviewAlreadyThereStale(t *testing.T) {
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

func TestReviewBadNVM(t *testing.T) {
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

func TestReviewUnfinishedGlitch(t *testing.T) {
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

func TestReviewNameSlotsSkipsRecovery(t *testing.T) {
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

func TestReviewForeignPeerOneOfSet(t *testing.T) {
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

func TestReviewFencePollRace(t *testing.T) {
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

// The engine stops answering before the cut of a move; A is fenced meanwhile.
func TestReviewFenceMeetsUncutMove(t *testing.T) {
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

func TestReviewAliveAfterEngineRestart(t *testing.T) {
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
func TestReviewAliveBetweenStartInPlaceAndAck(t *testing.T) {
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
