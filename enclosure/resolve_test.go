package enclosure_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"
)

// moveState fails the test unless the agent says so of a move, at once and after
// a restart.
func moveState(t *testing.T, r *rig.Rig, id ee.UUID, want enclosure.MoveState) {
	t.Helper()
	for _, when := range []string{"at once", "after a restart"} {
		if m, ok := r.E.MoveByID(id); !ok || m.State != want {
			t.Errorf("%s: move is %s (%s); want %s", when, m.State, m.Reason, want)
		}
		r.Restart()
	}
}

// TestResolve: a set is blocked since one engine does not take the make. Without
// that slot the rest goes on; the slot is nobody's until its cut is confirmed.
func TestResolve(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		world(t, rig.Options{Slots: 3}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			m := blockedMove(t, r)
			if restarted {
				r.Restart()
				st := r.E.Status(r.Ctx())
				if i := slices.IndexFunc(st.Moves, func(o enclosure.Move) bool { return o.ID == m.ID && o.State == enclosure.MoveBlocked }); i < 0 {
					t.Errorf("a move that is blocked since before the start is not listed: %+v", st.Moves)
				}
			}
			quiet(t, r, func() {
				for _, tt := range []struct {
					id   ee.UUID
					drop []string
					code enclosure.Code
					says string
				}{
					{ee.UUID{}, []string{"gpu1"}, enclosure.CodeBadRequest, "baton moves"},
					{rig.UUID(99), []string{"gpu1"}, enclosure.CodeUnknownMove, rig.UUID(99).String()},
					{m.ID, nil, enclosure.CodeBadRequest, "gpu0 gpu1 gpu2"},
					{m.ID, []string{"gpu9"}, enclosure.CodeUnknownSlot, "gpu9"},
					{m.ID, []string{"gpu1", "gpu1"}, enclosure.CodeBadRequest, "twice"},
					{m.ID, []string{"gpu2", "gpu1", "gpu0"}, enclosure.CodeBadRequest, "--force-free"},
				} {
					told := r.E.Counters().Refusals[tt.code] // equal ones are one event
					_, err := r.E.Resolve(r.Ctx(), tt.id, tt.drop, "test")
					wantClear(t, err, tt.code, tt.says)
					if r.E.Counters().Refusals[tt.code] != told+1 {
						t.Errorf("%v was not told of", err)
					}
				}
			})
			gen := r.Gen("gpu1")
			got, err := r.E.Resolve(r.Ctx(), m.ID, []string{"gpu1"}, "test")
			if err != nil || got.State != enclosure.MoveDone {
				t.Fatalf("resolve = %s %s, %v", got.State, got.Reason, err)
			}
			time.Sleep(5 * time.Millisecond)
			for _, n := range []string{"gpu0", "gpu2"} {
				r.WantHost(n, rig.B)
			}
			dropped := func(when string) enclosure.SlotStatus {
				t.Helper()
				s := r.SlotStatus("gpu1")
				if s.Host != "" || s.VM != rig.VM1 || !s.Held || s.Flag != plan.Void || s.Generation.Counter <= gen.Counter {
					t.Errorf("%s: dropped: %+v", when, s)
				}
				_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Slots: []string{"gpu1"}, Host: rig.B})
				if rig.Code(err) != enclosure.CodeUnassignable && rig.Code(err) != enclosure.CodeBlocked {
					t.Errorf("%s: attach: %v", when, err)
				}
				return s
			}
			// Its engine takes no write: it was cut before, and is not told to be.
			if s := dropped("at once"); s.Blocked == "" {
				t.Errorf("%+v; want blocked on its own", s)
			}
			moveState(t, r, m.ID, enclosure.MoveDone)
			dropped("after restarts")
			_, err = r.E.Resolve(r.Ctx(), m.ID, []string{"gpu1"}, "test")
			wantClear(t, err, enclosure.CodeWrongState, "not blocked")

			r.W.Bus("bus0").ClearFaults()
			r.Run()
			time.Sleep(2 * time.Minute)
			if s := r.SlotStatus("gpu1"); s.Blocked != "" || s.Cut != "confirmed" || s.Host != "" {
				t.Errorf("mended: %+v", s)
			}
			resets := r.Verdict("gpu1").Now.Resets
			r.Attach(rig.VM1, rig.B, "gpu1")
			if now := r.Verdict("gpu1"); now.Preserved != plan.No || now.Now.Resets == resets {
				t.Errorf("verdict %+v; want no, after a reset", now)
			}
			r.WantHost("gpu1", rig.B)
		})
	}
}

// A set that was undone, and blocked on its way back, goes back without the slot
// that is in its way.
func TestResolveUndone(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x21, Only: sim.WriteOp, Byte: 10})
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		if err != nil || m.State != enclosure.MoveBlocked {
			t.Fatalf("move = %s, %v", m.State, err)
		}
		got, err := r.E.Resolve(r.Ctx(), m.ID, []string{"gpu1"}, "test")
		if err != nil || got.State != enclosure.MoveUndone {
			t.Fatalf("resolve = %s %s, %v", got.State, got.Reason, err)
		}
		time.Sleep(5 * time.Millisecond)
		r.WantHost("gpu0", rig.A)
		moveState(t, r, m.ID, enclosure.MoveUndone)
		r.WantHost("gpu0", rig.A)
		if s := r.SlotStatus("gpu1"); s.Host != "" || !s.Held {
			t.Errorf("%+v", s)
		}
	})
}

// Attaches and releases that are blocked are listed, and resolved, like moves,
// also after a restart.
func TestResolveOthers(t *testing.T) {
	for _, what := range []string{"attach", "release"} {
		for _, restarted := range []bool{false, true} {
			world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
				running(t, r)
				failAtMake(r, 0x61)
				rest := rig.B
				if what == "attach" {
					_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.B, Wait: time.Second})
					t.Logf("attach: %v", err)
				} else {
					rest = ""
					r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x61, Only: sim.WriteOp})
					t.Logf("release: %v", r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold}))
				}
				if restarted {
					r.W.Bus("bus0").ClearFaults()
					r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x61, Only: sim.WriteOp})
					r.Restart()
				}
				moves := r.E.Status(r.Ctx()).Moves
				i := slices.IndexFunc(moves, func(m enclosure.Move) bool { return m.State == enclosure.MoveBlocked })
				if what == "release" && restarted {
					return // slots that are to be with nobody are each on their own again
				}
				if i < 0 || len(moves[i].Slots) != 2 || moves[i].VM != rig.VM1 {
					t.Fatalf("%s, restarted %v: listed are %+v", what, restarted, moves)
				}
				got, err := r.E.Resolve(r.Ctx(), moves[i].ID, []string{"gpu1"}, "test")
				if err != nil || got.State != enclosure.MoveDone && got.State != enclosure.MoveUndone || got.VM != rig.VM1 {
					t.Errorf("%s, restarted %v: resolve = %+v, %v", what, restarted, got, err)
				}
				time.Sleep(5 * time.Millisecond)
				if got.State == enclosure.MoveUndone {
					rest = rig.A
				}
				r.WantHost("gpu0", rest)
			})
		}
	}
}

// What is still in the way leaves the rest blocked; a target that was fenced
// meanwhile gets nothing.
func TestResolveStillBlockedOrFenced(t *testing.T) {
	world(t, rig.Options{Slots: 3}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		m := blockedMove(t, r)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x62, Only: sim.WriteOp})
		got, err := r.E.Resolve(r.Ctx(), m.ID, []string{"gpu1"}, "test")
		if err != nil || got.State != enclosure.MoveBlocked {
			t.Fatalf("resolve = %s, %v", got.State, err)
		}
		if r.W.Server(rig.B).Reach("gpu0") {
			t.Error("B reaches a slot of a set that is blocked")
		}
		got, err = r.E.Resolve(r.Ctx(), m.ID, []string{"gpu2"}, "test")
		if err != nil || got.State != enclosure.MoveDone {
			t.Fatalf("resolve again = %s, %v", got.State, err)
		}
		time.Sleep(5 * time.Millisecond)
		r.WantHost("gpu0", rig.B)
	})
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		m := blockedMove(t, r)
		r.W.Bus("bus0").ClearFaults()
		wait := background(func() { r.Fence(rig.B) })
		time.Sleep(7 * time.Millisecond)
		got, err := r.E.Resolve(r.Ctx(), m.ID, []string{"gpu1"}, "test")
		wait()
		t.Logf("resolve: %s, %v", got.State, err)
		time.Sleep(5 * time.Millisecond)
		r.WantHost("gpu0", "")
		r.WantHost("gpu1", "")
	})
}

// TestForceFree: an engine is out of reach while its link is up. The records say
// free, and nothing more than that: a fence that waits for the cut goes on
// waiting, over restarts, and nobody gets the slot.
func TestForceFree(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60})
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x20})
		_, err := r.E.Fence(r.Ctx(), rig.A, "test")
		wantCode(t, err, enclosure.CodeUnconfirmed)
		gen := r.Gen("gpu0")
		for range 2 { // a repeat is one
			wantClear(t, r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test"), enclosure.CodeUnconfirmed, "gpu0", "pull its cable")
		}
		forced := r.Gen("gpu0")
		if forced.Counter <= gen.Counter {
			t.Errorf("generation %s, was %s", forced, gen)
		}
		for _, when := range []string{"at once", "after a restart", "after another"} {
			s := r.SlotStatus("gpu0")
			if s.Host != "" || s.VM != "" || s.Held || s.Cut != "unconfirmed" || s.Generation != forced || s.Memory.Preserved == plan.Yes {
				t.Errorf("%s: %+v", when, s)
			}
			if !r.W.Server(rig.A).Reach("gpu0") {
				t.Error("A was to reach it")
			}
			wantCode(t, r.E.Unfence(r.Ctx(), rig.A, r.Host(rig.A).Epoch, "test"), enclosure.CodeUnconfirmed)
			_, err := r.E.Fence(r.Ctx(), rig.A, "test")
			wantCode(t, err, enclosure.CodeUnconfirmed)
			if _, err := r.E.Fence(r.Ctx(), rig.C, "test"); err != nil {
				t.Errorf("%s: fence of a host that never had it: %v", when, err)
			}
			_, err = r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM2, Host: rig.B})
			if err == nil {
				t.Errorf("%s: VM2 got the slot", when)
			}
			if when != "at once" && !strings.Contains(strings.Join(r.E.Status(r.Ctx()).Warnings, "\n"), "its cut is not confirmed") {
				t.Errorf("%s: no warning", when)
			}
			r.Restart()
		}
		r.Run()
		r.W.Bus("bus0").ClearFaults()
		time.Sleep(2 * time.Minute)
		if s := r.SlotStatus("gpu0"); s.Cut != "confirmed" || s.Blocked != "" || s.Problem != "" {
			t.Errorf("mended: %+v", s)
		}
		r.WantHost("gpu0", "")
		r.Unfence(rig.A)
		resets := r.Verdict("gpu0").Now.Resets
		r.Attach(rig.VM2, rig.B)
		if now := r.Verdict("gpu0"); now.Now.Resets == resets {
			t.Error("VM2 got it without a reset")
		}
		r.WantHost("gpu0", rig.B)
		quietBesideAudit(t, r, func() { r.Restart() })
	})
}

// An engine that stops answering while the agent starts is left as it is. What
// was taken from it by hand is nobody's all the same, until it is seen to be cut.
func TestForceFreeUnreadAfterRestart(t *testing.T) {
	met := 0
	for skip := range 40 {
		world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60})
			_ = r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold}) // it is blocked by that
			wantCode(t, r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test"), enclosure.CodeUnconfirmed)
			r.W.Bus("bus0").ClearFaults()
			r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, Skip: skip})
			r.Restart()
			_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM2, Host: rig.B})
			if rig.Code(err) == enclosure.CodeUnassignable {
				wantClear(t, err, enclosure.CodeUnassignable, "gpu0", "by hand")
				met++
			} else if err == nil && r.W.Server(rig.A).Reach("gpu0") {
				t.Errorf("after %d transfers: given to B, and A reaches it", skip)
			}
			r.W.Bus("bus0").ClearFaults()
			r.Run()
			time.Sleep(2 * time.Minute)
			r.Attach(rig.VM2, rig.B)
			r.WantHost("gpu0", rig.B)
		})
	}
	if met == 0 {
		t.Error("no attach met a slot that is neither blocked nor faulty and not seen to be cut")
	}
}

// A slot that is forced free leaves its blocked set, which goes on; when the
// last one is, the move is over.
func TestForceFreeOfSet(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		m := blockedMove(t, r)
		r.Run()
		err := r.E.ForceFree(r.Ctx(), "gpu1", "gpu1", "test")
		t.Logf("force-free: %v", err)
		time.Sleep(3 * time.Second)
		r.WantHost("gpu0", rig.B)
		moveState(t, r, m.ID, enclosure.MoveDone)
		if s := r.SlotStatus("gpu1"); s.VM != "" || s.Held || s.Host != "" {
			t.Errorf("%+v", s)
		}
	})
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		failAtMake(r, 0x60)
		m := blockedMove(t, r)
		for i, n := range []string{"gpu0", "gpu1"} {
			err := r.E.ForceFree(r.Ctx(), n, n, "test")
			t.Logf("force-free: %v", err)
			want := []enclosure.MoveState{enclosure.MoveBlocked, enclosure.MoveHeld}[i]
			if now, _ := r.E.MoveByID(m.ID); now.State != want {
				t.Errorf("after %s: move is %s; want %s", n, now.State, want)
			}
		}
		moveState(t, r, m.ID, enclosure.MoveHeld)
		r.W.Bus("bus0").ClearFaults()
		r.Run()
		time.Sleep(2 * time.Minute)
		r.Attach(rig.VM2, rig.A)
		r.WantHost("gpu0", rig.A)
		r.WantHost("gpu1", rig.A)
	})
}

// Hardware that can never confirm a cut keeps nobody out for ever: the slot can
// be had again once its page says free, and not before.
func TestForceFreeNVMOnly(t *testing.T) {
	world(t, rig.Options{Profile: "nvm-only"}, func(t *testing.T, r *rig.Rig) {
		r.Attach(rig.VM1, rig.A)
		r.W.Chip("gpu0").SetDead(true)
		_ = r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold}) // it is blocked by that
		wantClear(t, r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test"), enclosure.CodeUnconfirmed)
		r.Run()
		time.Sleep(time.Minute)
		_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM2, Host: rig.B})
		wantClear(t, err, enclosure.CodeBlocked)
		r.W.Chip("gpu0").SetDead(false)
		time.Sleep(2 * time.Minute)
		if s := r.SlotStatus("gpu0"); s.Blocked != "" || s.Cut != "unconfirmed" {
			t.Errorf("%+v; want free, and no cut claimed", s)
		}
		r.WantHost("gpu0", "")
		r.Attach(rig.VM2, rig.B)
		time.Sleep(5 * time.Millisecond)
		r.WantHost("gpu0", rig.B)
	})
}

// A port that is in no VLAN is a confirmed cut too, also where the engine can
// confirm nothing.
func TestForceFreeByVLAN(t *testing.T) {
	for _, profile := range []string{"regs-v1", "nvm-only"} {
		world(t, rig.Options{Switch: true, Profile: profile}, func(t *testing.T, r *rig.Rig) {
			r.Attach(rig.VM1, rig.A)
			r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60})
			r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x20})
			_ = r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold}) // it is blocked by that
			if err := r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test"); err != nil {
				t.Errorf("%s: %v", profile, err)
			}
			r.WantHost("gpu0", "")
			r.W.Bus("bus0").ClearFaults()
			r.Run()
			time.Sleep(2 * time.Minute)
			r.Attach(rig.VM2, rig.B)
			time.Sleep(5 * time.Millisecond)
			r.WantHost("gpu0", rig.B)
		})
	}
}
