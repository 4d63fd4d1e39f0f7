package enclosure_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"
)

// as is a change to what r is configured with.
func as(r *rig.Rig, change func(q *enclosure.Reconfiguration)) enclosure.Reconfiguration {
	q := enclosure.Reconfiguration{Hosts: slices.Clone(r.Config.Hosts), VMs: slices.Clone(r.Config.VMs), By: "test", Admin: true}
	change(&q)
	return q
}

func policy(p plan.Policy) func(q *enclosure.Reconfiguration) {
	return func(q *enclosure.Reconfiguration) { q.VMs[0].Policy = p }
}

// guarded tells whether the engine has its guard on, by the model.
func guarded(r *rig.Rig, slot string) bool {
	return r.W.Slot(slot).Registers()[ee.RegControl]&ee.CtlGuard != 0
}

func linkChanges(r *rig.Rig, slot string) uint32 {
	regs := r.W.Slot(slot).Registers()
	return binary.LittleEndian.Uint32(regs[ee.RegLinkChanges:])
}

// TestPolicyAtOnce: the guard is as the new policy wants it when Reconfigure
// returns, and no link has changed.
func TestPolicyAtOnce(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		links := linkChanges(r, "gpu0")
		for _, tt := range []struct {
			p    plan.Policy
			want bool
		}{{plan.OnMove, false}, {plan.Always, true}, {plan.Never, false}, {plan.Always, true}} {
			if err := r.E.Reconfigure(r.Ctx(), as(r, policy(tt.p))); err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{"gpu0", "gpu1"} {
				if got := guarded(r, s); got != tt.want {
					t.Errorf("policy %s: guard of %s %v; want %v", tt.p, s, got, tt.want)
				}
			}
			time.Sleep(3 * time.Second) // and it stays so
			if got := guarded(r, "gpu0"); got != tt.want {
				t.Errorf("policy %s, after the poller has looked: guard %v; want %v", tt.p, got, tt.want)
			}
		}
		if n := linkChanges(r, "gpu0") - links; n != 0 {
			t.Errorf("%d link changes", n)
		}
	})
}

// TestPolicyLater: an engine that does not answer follows when it does.
func TestPolicyLater(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, For: 4 * time.Second})
		if err := r.E.Reconfigure(r.Ctx(), as(r, policy(plan.OnMove))); err != nil {
			t.Fatal(err)
		}
		if !guarded(r, "gpu0") {
			t.Fatal("the guard is off, of an engine that did not answer")
		}
		time.Sleep(8 * time.Second)
		if guarded(r, "gpu0") {
			t.Error("the engine answers again, and its guard has not followed the policy")
		}
	})
}

func TestReconfigureRefused(t *testing.T) {
	host := func(change func(h *enclosure.HostConfig)) func(q *enclosure.Reconfiguration) {
		return func(q *enclosure.Reconfiguration) { change(&q.Hosts[0]) }
	}
	use := func(t *testing.T, r *rig.Rig) { running(t, r, "gpu0") }
	for _, tt := range []struct {
		name   string
		setup  func(t *testing.T, r *rig.Rig)
		change func(q *enclosure.Reconfiguration)
		want   enclosure.Code
	}{
		{"nothing", use, func(*enclosure.Reconfiguration) {}, ""},
		{"group of a host in use", use, host(func(h *enclosure.HostConfig) { h.Group = 200 }), enclosure.CodeInUse},
		{"MAC of a host in use", use, host(func(h *enclosure.HostConfig) { h.MAC[5]++ }), enclosure.CodeInUse},
		{"host in use removed", use, func(q *enclosure.Reconfiguration) { q.Hosts = q.Hosts[1:] }, enclosure.CodeInUse},
		{"another host removed", use, func(q *enclosure.Reconfiguration) { q.Hosts = q.Hosts[:2] }, ""},
		{"VM in use removed", use, func(q *enclosure.Reconfiguration) { q.VMs = q.VMs[1:] }, enclosure.CodeInUse},
		{"VM in use renamed", use, func(q *enclosure.Reconfiguration) { q.VMs[0].Name = "other" }, ""},
		{"another VM removed", use, func(q *enclosure.Reconfiguration) { q.VMs = q.VMs[:1] }, ""},
		{"slot in use changed", use, func(q *enclosure.Reconfiguration) { q.Changed = []string{"gpu0"} }, enclosure.CodeInUse},
		{"slot in use removed", use, func(q *enclosure.Reconfiguration) { q.Removed = []string{"gpu0"} }, enclosure.CodeInUse},
		{"free slot changed", use, func(q *enclosure.Reconfiguration) { q.Changed = []string{"gpu1"} }, ""},
		{"free slot removed", use, func(q *enclosure.Reconfiguration) { q.Removed = []string{"gpu1"} }, ""},
		{"released slot that is still with its host removed", func(t *testing.T, r *rig.Rig) {
			running(t, r)
			r.W.Server(rig.A).StopVM(rig.VM1)
			if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseKeep}); err != nil {
				t.Fatal(err)
			}
		}, func(q *enclosure.Reconfiguration) { q.Removed = []string{"gpu0"} }, enclosure.CodeInUse},
		{"held slot changed", func(t *testing.T, r *rig.Rig) { running(t, r, "gpu0"); r.Fence(rig.A) },
			func(q *enclosure.Reconfiguration) { q.Changed = []string{"gpu0"} }, enclosure.CodeBusy},
		{"VM that a slot is held for", func(t *testing.T, r *rig.Rig) { running(t, r, "gpu0"); r.Fence(rig.A) }, policy(plan.Never), enclosure.CodeBusy},
		{"host whose cut is not confirmed", func(t *testing.T, r *rig.Rig) {
			running(t, r, "gpu0")
			r.W.Slot("gpu0").IgnoreControl(1000)
			_, err := r.E.Fence(r.Ctx(), rig.A, "test")
			wantCode(t, err, enclosure.CodeUnconfirmed)
			wantCode(t, r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test"), enclosure.CodeUnconfirmed)
		}, func(q *enclosure.Reconfiguration) { q.Hosts = q.Hosts[1:] }, enclosure.CodeBusy},
		{"host of an unfinished move", func(t *testing.T, r *rig.Rig) { use(t, r); r.Move(rig.VM1, rig.B, "gpu0") },
			func(q *enclosure.Reconfiguration) { q.Hosts[1].MAC[5]++ }, enclosure.CodeInUse},
	} {
		t.Run(tt.name, func(t *testing.T) {
			world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
				tt.setup(t, r)
				kept := 0
				q := as(r, tt.change)
				q.Keep = func(context.Context) error { kept++; return nil }
				q.Dry = true
				wantCode(t, r.E.Reconfigure(r.Ctx(), q), tt.want)
				if kept > 0 {
					t.Error("a dry run was kept")
				}
				q.Dry = false
				err := r.E.Reconfigure(r.Ctx(), q)
				wantCode(t, err, tt.want)
				if err != nil {
					wantClear(t, err, tt.want)
				}
				if (kept == 1) != (tt.want == "") {
					t.Errorf("kept %d times", kept)
				}
			})
		})
	}
}

// TestReconfigureWhileKeeping: while a change is being written no move begins
// that it may change, and a fence does; where that leaves a slot held, the
// change is given up and what was written put back.
func TestReconfigureWhileKeeping(t *testing.T) {
	for _, tt := range []struct {
		name       string
		during     func(r *rig.Rig) error
		code, want enclosure.Code // of what comes between, and of the change
	}{
		{"move", func(r *rig.Rig) error { _, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)); return err }, enclosure.CodeBusy, ""},
		{"attach", func(r *rig.Rig) error {
			_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.A})
			return err
		}, enclosure.CodeBusy, ""},
		{"fence of the host", func(r *rig.Rig) error { _, err := r.E.Fence(r.Ctx(), rig.A, "test"); return err }, "", enclosure.CodeBusy},
		{"fence of another", func(r *rig.Rig) error { _, err := r.E.Fence(r.Ctx(), rig.C, "test"); return err }, "", ""},
		{"another change", func(r *rig.Rig) error { return r.E.Reconfigure(r.Ctx(), as(r, policy(plan.Never))) }, enclosure.CodeBusy, ""},
		{"nothing", func(*rig.Rig) error { return nil }, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
				running(t, r)
				var did []string
				q := as(r, policy(plan.OnMove))
				q.Keep = func(context.Context) error {
					began := time.Now()
					err := tt.during(r)
					wantCode(t, err, tt.code)
					if d := time.Since(began); d > time.Second {
						t.Errorf("it took %v", d)
					}
					did = append(did, "kept")
					return nil
				}
				q.Undo = func(context.Context) error { did = append(did, "undone"); return nil }
				wantCode(t, r.E.Reconfigure(r.Ctx(), q), tt.want)
				want := []string{"kept"}
				if tt.want != "" {
					want = append(want, "undone")
				}
				if !slices.Equal(did, want) {
					t.Errorf("%q; want %q", did, want)
				}
				if changed := r.SlotStatus("gpu0").Policy == plan.OnMove; changed != (tt.want == "") {
					t.Errorf("policy is %s", r.SlotStatus("gpu0").Policy)
				}
				if tt.want == "" && tt.name != "fence of another" {
					r.Move(rig.VM1, rig.B) // moves begin again
				}
			})
		})
	}
}

// TestReconfigureNotKept: what could not be written is not put in force; what
// could not be put back is said.
func TestReconfigureNotKept(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		q := as(r, policy(plan.OnMove))
		q.Keep = func(context.Context) error {
			return &enclosure.Error{Code: enclosure.CodeStore, What: "full", State: "nothing was changed", Next: "x"}
		}
		q.Undo = func(context.Context) error { t.Error("undone, and nothing was kept"); return nil }
		wantCode(t, r.E.Reconfigure(r.Ctx(), q), enclosure.CodeStore)
		if p := r.SlotStatus("gpu0").Policy; p != plan.Always {
			t.Errorf("policy %s", p)
		}
		q.Keep = func(context.Context) error { r.Fence(rig.A); return nil }
		q.Undo = func(context.Context) error { return errors.New("no room") }
		err := r.E.Reconfigure(r.Ctx(), q)
		wantCode(t, err, enclosure.CodeBusy)
		var known *enclosure.Error
		if !errors.As(err, &known) || known.Retry || known.State != "the change is in force from the agent's next start: what was kept could not be put back" {
			t.Errorf("error %+v", known)
		}
		r.Unfence(rig.A)
		r.Attach(rig.VM1, rig.A) // the agent has not stopped taking requests
	})
}

// TestReconfigureDuringMoves: changes of another VM come and go while moves
// are made; none is lost, and none of the moves goes to where nobody asked.
func TestReconfigureDuringMoves(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r, "gpu0")
		stop := make(chan struct{})
		changes := 0
		done := background(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(3 * time.Millisecond):
				}
				err := r.E.Reconfigure(r.Ctx(), as(r, func(q *enclosure.Reconfiguration) { q.VMs[1].Hosts = []string{r.Config.Hosts[i%3].Name} }))
				if err == nil {
					changes++
				} else if rig.Code(err) != enclosure.CodeBusy {
					t.Error(err)
				}
			}
		})
		moved := 0
		for i := range 40 {
			to := []string{rig.B, rig.A}[i%2]
			q := r.Request(rig.VM1, to)
			q.Slots = []string{"gpu0"}
			m, err := r.E.Move(r.Ctx(), q)
			switch {
			case err == nil && m.State == enclosure.MoveDone:
				moved++
				r.WantHost("gpu0", to)
			case rig.Code(err) != enclosure.CodeBusy:
				t.Fatal(fmt.Sprint(m.State, " ", m.Reason, " ", err))
			}
			time.Sleep(time.Millisecond)
		}
		close(stop)
		done()
		if moved == 0 || changes == 0 {
			t.Errorf("%d moves, %d changes", moved, changes)
		}
	})
}

// Where the store was put back from an older image fences may be missing: nobody
// is believed until unfenced, however often the agent is started meanwhile.
func TestDistrustLasts(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r, "gpu0")
		old := r.W.Chip("store").Image()
		r.Fence(rig.A)
		r.Fence(rig.C)
		r.Attach(rig.VM1, rig.B, "gpu0")
		r.Stop()
		r.W.Chip("store").SetImage(old)
		r.Start(enclosure.Options{})
		if !r.Host(rig.C).Fenced {
			t.Fatal("an older image was not noticed")
		}
		r.Unfence(rig.B)
		r.Attach(rig.VM1, rig.B, "gpu0")
		r.Restart()
		r.PowerCycle()
		r.Restart()
		for _, h := range []string{rig.A, rig.C} {
			if !r.Host(h).Fenced {
				t.Errorf("%s is believed", h)
			}
		}
		if r.Host(rig.B).Fenced {
			t.Error("B is fenced again")
		}
		r.WantHost("gpu0", rig.B)
	})
}
