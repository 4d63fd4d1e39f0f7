package enclosure_test

import (
	"context"
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

// drainRig has train1 with gpu0 and gpu1, train2 with gpu2 on A; gpu3 is free.
func drainRig(t *testing.T, r *rig.Rig) {
	t.Helper()
	r.StartVM(rig.VM1, rig.A, "gpu0", "gpu1")
	r.StartVM(rig.VM2, rig.A, "gpu2")
}

func drainTo(r *rig.Rig, to string) enclosure.DrainRequest {
	return enclosure.DrainRequest{ID: rig.UUID(50), Host: rig.A, To: to, Wait: time.Second, By: "test"}
}

func drainFree(r *rig.Rig, mode enclosure.ReleaseMode) enclosure.DrainRequest {
	return enclosure.DrainRequest{ID: rig.UUID(50), Host: rig.A, Release: mode, By: "test"}
}

func sets(d enclosure.Drained) (out []string) {
	for _, s := range d.Sets {
		out = append(out, s.VM+" "+strings.Join(s.Slots, ",")+" "+s.State)
	}
	return out
}

func TestDrain(t *testing.T) {
	moved := []string{"train1 gpu0,gpu1 done", "train2 gpu2 done"}
	released := []string{"train1 gpu0,gpu1 released", "train2 gpu2 released"}
	for _, tt := range []struct {
		name  string
		q     func(r *rig.Rig) enclosure.DrainRequest
		want  []string
		again []string // when it is asked for once more
		host  string
		held  bool
	}{
		{"to B", func(r *rig.Rig) enclosure.DrainRequest { return drainTo(r, rig.B) }, moved, moved, rig.B, false},
		{"hold", func(r *rig.Rig) enclosure.DrainRequest { return drainFree(r, enclosure.ReleaseHold) }, released, nil, "", true},
		{"free", func(r *rig.Rig) enclosure.DrainRequest { return drainFree(r, enclosure.ReleaseFree) }, released, nil, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			world(t, rig.Options{Slots: 4}, func(t *testing.T, r *rig.Rig) {
				drainRig(t, r)
				r.StartVM(rig.VM2, rig.C, "gpu3") // not A's
				d, err := r.E.Drain(r.Ctx(), tt.q(r))
				if err != nil || !d.Done || len(d.Left) != 0 || d.Host != rig.A || !slices.Equal(sets(d), tt.want) {
					t.Fatalf("drain = %+v, %v", d, err)
				}
				progress := eventsOf(r, "drain")
				if len(progress) != 3 || !strings.Contains(progress[0].Text, "1 of 2 sets") || !strings.Contains(progress[1].Text, "2 of 2 sets") || progress[0].VM != rig.VM1 {
					t.Errorf("events %+v", progress)
				}
				time.Sleep(5 * time.Millisecond)
				for i := range 3 {
					r.WantHost(rig.Slot(i), tt.host)
					if s := r.SlotStatus(rig.Slot(i)); s.Held != tt.held {
						t.Errorf("%+v", s)
					}
				}
				r.WantHost("gpu3", rig.C)
				if tt.host != "" {
					r.WantVerdict("gpu0", plan.Yes)
				}
				for _, when := range []string{"at once", "after a restart"} {
					quiet(t, r, func() {
						d, err := r.E.Drain(r.Ctx(), tt.q(r))
						if err != nil || !d.Done || !slices.Equal(sets(d), tt.again) {
							t.Errorf("repeated %s: %+v, %v", when, d, err)
						}
					})
					r.Restart()
				}
			})
		})
	}
}

// What is known to fail half way is refused before anything is changed.
func TestDrainRefused(t *testing.T) {
	for _, tt := range []struct {
		name string
		q    func(r *rig.Rig) enclosure.DrainRequest
		prep func(t *testing.T, r *rig.Rig)
		code enclosure.Code
		says string
	}{
		{"no ID", func(r *rig.Rig) enclosure.DrainRequest { q := drainTo(r, rig.B); q.ID = ee.UUID{}; return q }, nil, enclosure.CodeBadRequest, "ID"},
		{"wait too long", func(r *rig.Rig) enclosure.DrainRequest { q := drainTo(r, rig.B); q.Wait = time.Hour; return q }, nil, enclosure.CodeBadRequest, "2m0s"},
		{"unknown host", func(r *rig.Rig) enclosure.DrainRequest { q := drainTo(r, rig.B); q.Host = "server9"; return q }, nil, enclosure.CodeUnknownHost, "server9"},
		{"to nowhere", func(r *rig.Rig) enclosure.DrainRequest { return drainTo(r, "") }, nil, enclosure.CodeBadRequest, "--release"},
		{"both", func(r *rig.Rig) enclosure.DrainRequest { q := drainTo(r, rig.B); q.Release = "free"; return q }, nil, enclosure.CodeBadRequest, "--to"},
		{"keep", func(r *rig.Rig) enclosure.DrainRequest { return drainFree(r, enclosure.ReleaseKeep) }, nil, enclosure.CodeBadRequest, "keep"},
		{"to itself", func(r *rig.Rig) enclosure.DrainRequest { return drainTo(r, rig.A) }, nil, enclosure.CodeBadRequest, rig.A},
		{"to an unknown host", func(r *rig.Rig) enclosure.DrainRequest { return drainTo(r, "server9") }, nil, enclosure.CodeUnknownHost, "server9"},
		{"to a fenced host", func(r *rig.Rig) enclosure.DrainRequest { return drainTo(r, rig.B) }, func(_ *testing.T, r *rig.Rig) { r.Fence(rig.B) }, enclosure.CodeFenced, rig.B},
		{"the second VM may not run there", func(r *rig.Rig) enclosure.DrainRequest { return drainTo(r, rig.C) }, nil, enclosure.CodeNotAllowed, rig.VM2},
		{"a faulty slot", func(r *rig.Rig) enclosure.DrainRequest { return drainTo(r, rig.B) }, func(_ *testing.T, r *rig.Rig) {
			r.W.Slot("gpu2").SetEngine(ee.EngineID, newMAC)
			r.Restart()
		}, enclosure.CodeIdentity, "gpu2"},
		{"a faulty slot, released", func(r *rig.Rig) enclosure.DrainRequest { return drainFree(r, "free") }, func(_ *testing.T, r *rig.Rig) {
			r.W.Slot("gpu2").SetEngine(ee.EngineID, newMAC)
			r.Restart()
		}, enclosure.CodeIdentity, "gpu2"},
		{"an engine that can not be read", func(r *rig.Rig) enclosure.DrainRequest { return drainTo(r, rig.B) }, func(_ *testing.T, r *rig.Rig) {
			r.W.Slot("gpu2").Kill()
			r.Verdict("gpu2")
		}, enclosure.CodeHardware, "gpu2"},
		{"an engine that can not be read, released", func(r *rig.Rig) enclosure.DrainRequest { return drainFree(r, "hold") }, func(_ *testing.T, r *rig.Rig) {
			r.W.Slot("gpu2").Kill()
			r.Verdict("gpu2")
		}, enclosure.CodeHardware, "gpu2"},
		{"a VM that is no longer configured", func(r *rig.Rig) enclosure.DrainRequest { return drainTo(r, rig.B) }, func(_ *testing.T, r *rig.Rig) {
			r.Config.VMs = r.Config.VMs[:1]
			r.Restart()
		}, enclosure.CodeUnknownVM, "gpu2"},
		{"a slot that is no longer the VM's", func(r *rig.Rig) enclosure.DrainRequest { return drainTo(r, rig.B) }, func(_ *testing.T, r *rig.Rig) {
			r.Config.VMs[1].Slots = []string{"gpu3"}
			r.Restart()
		}, enclosure.CodeSlotNotVM, "gpu2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			world(t, rig.Options{Slots: 4, Config: func(c *enclosure.Config) { c.VMs[1].Hosts = []string{rig.A, rig.B} }}, func(t *testing.T, r *rig.Rig) {
				drainRig(t, r)
				if tt.prep != nil {
					tt.prep(t, r)
				}
				told := len(eventsOf(r, "refused"))
				quiet(t, r, func() {
					_, err := r.E.Drain(r.Ctx(), tt.q(r))
					wantClear(t, err, tt.code, tt.says)
				})
				if len(eventsOf(r, "refused")) != told+1 {
					t.Errorf("refusals %+v", eventsOf(r, "refused"))
				}
				r.WantHost("gpu0", rig.A)
			})
		})
	}
}

// It stops at the first set that fails; what was moved stays moved, and says so
// when it is asked again.
func TestDrainStops(t *testing.T) {
	world(t, rig.Options{Slots: 4}, func(t *testing.T, r *rig.Rig) {
		r.StartVM(rig.VM1, rig.A, "gpu0")
		r.StartVM(rig.VM2, rig.A, "gpu1", "gpu2")
		stop := r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x21, Only: sim.WriteOp, Byte: 10, For: 40 * time.Millisecond})
		d, err := r.E.Drain(r.Ctx(), drainTo(r, rig.B))
		stop()
		if err != nil || d.Done || !slices.Equal(d.Left, []string{"gpu1", "gpu2"}) || !slices.Equal(sets(d), []string{"train1 gpu0 done", "train2 gpu1,gpu2 undone"}) || d.Sets[1].Reason == "" {
			t.Fatalf("drain = %+v, %v", d, err)
		}
		time.Sleep(5 * time.Millisecond)
		r.WantHost("gpu0", rig.B)
		r.WantHost("gpu1", rig.A)
		// The same request has had its effect; another goes on.
		quiet(t, r, func() {
			again, err := r.E.Drain(r.Ctx(), drainTo(r, rig.B))
			if err != nil || again.Done || !slices.Equal(sets(again), sets(d)) || !slices.Equal(again.Left, d.Left) {
				t.Errorf("repeated: %+v, %v", again, err)
			}
		})
		q := drainTo(r, rig.B)
		q.ID = rig.UUID(51)
		if d, err := r.E.Drain(r.Ctx(), q); err != nil || !d.Done || !slices.Equal(sets(d), []string{"train2 gpu1,gpu2 done"}) {
			t.Errorf("with another ID: %+v, %v", d, err)
		}
		// A late repeat of a drain does not move what has come back since.
		r.Move(rig.VM2, rig.A, "gpu1", "gpu2")
		d, err = r.E.Drain(r.Ctx(), q)
		if err != nil || d.Done || len(d.Sets) != 1 || d.Sets[0].State != "failed" || !strings.Contains(d.Sets[0].Reason, "new ID") {
			t.Errorf("late repeat: %+v, %v", d, err)
		}
		time.Sleep(5 * time.Millisecond)
		r.WantHost("gpu1", rig.A)
	})
	t.Run("the target is not there", func(t *testing.T) {
		world(t, rig.Options{Slots: 3}, func(t *testing.T, r *rig.Rig) {
			drainRig(t, r)
			r.W.Server(rig.B).LinkLoss()
			d, err := r.E.Drain(r.Ctx(), drainTo(r, rig.B))
			if err != nil || d.Done || !slices.Equal(sets(d), []string{"train1 gpu0,gpu1 waiting"}) || !slices.Equal(d.Left, []string{"gpu2"}) {
				t.Errorf("drain = %+v, %v", d, err)
			}
			quiet(t, r, func() {
				if again, err := r.E.Drain(r.Ctx(), drainTo(r, rig.B)); err != nil || !slices.Equal(sets(again), sets(d)) {
					t.Errorf("repeated: %+v, %v", again, err)
				}
			})
			r.Run()
			r.W.Server(rig.B).LinkRestore()
			time.Sleep(3 * time.Second)
			if d, err := r.E.Drain(r.Ctx(), drainTo(r, rig.B)); err != nil || !d.Done || !slices.Equal(sets(d), []string{"train1 gpu0,gpu1 done", "train2 gpu2 done"}) {
				t.Errorf("it is there: %+v, %v", d, err)
			}
		})
	})
	t.Run("busy", func(t *testing.T) {
		world(t, rig.Options{Slots: 3}, func(t *testing.T, r *rig.Rig) {
			drainRig(t, r)
			r.W.Server(rig.C).LinkLoss()
			q := r.Request(rig.VM2, rig.C)
			q.Slots = []string{"gpu2"}
			var d enclosure.Drained
			wait := background(func() { d, _ = r.E.Drain(r.Ctx(), drainFree(r, "free")) })
			other := background(func() { r.E.Move(r.Ctx(), q) })
			wait()
			other()
			t.Logf("%+v", d)
			if d.Done != (len(d.Left) == 0) {
				t.Errorf("%+v", d)
			}
		})
	})
}

// When nobody waits any more no further set is begun, and the same request goes
// on later.
func TestDrainCancelled(t *testing.T) {
	partly := 0
	for at := time.Duration(0); at < 80*time.Millisecond; at += 8 * time.Millisecond {
		world(t, rig.Options{Slots: 3}, func(t *testing.T, r *rig.Rig) {
			drainRig(t, r)
			ctx, cancel := context.WithTimeout(r.Ctx(), at)
			defer cancel()
			d, err := r.E.Drain(ctx, drainTo(r, rig.B))
			if err != nil {
				t.Fatal(err)
			}
			if len(d.Sets) == 1 && len(d.Left) == 1 {
				partly++
				last := eventsOf(r, "drain")
				if text := last[len(last)-1].Text; !strings.Contains(text, "gpu2") {
					t.Errorf("told %q", text)
				}
			}
			time.Sleep(5 * time.Millisecond)
			if a, b := r.SlotStatus("gpu0").Host, r.SlotStatus("gpu1").Host; a != b {
				t.Errorf("at %v: the set is split: %s, %s", at, a, b)
			}
			r.WantHost("gpu0", r.SlotStatus("gpu0").Host)
			for _, n := range d.Left {
				r.WantHost(n, rig.A)
			}
		})
	}
	if partly == 0 {
		t.Error("no run stopped between the sets")
	}
}

// A kill in the middle leaves sets whole; the same request goes on.
func TestDrainKilled(t *testing.T) {
	for at := time.Duration(0); at < 60*time.Millisecond; at += 3 * time.Millisecond {
		l := &leash{}
		world(t, rig.Options{Slots: 3, Config: leashAll(l)}, func(t *testing.T, r *rig.Rig) {
			drainRig(t, r)
			wait := background(func() { r.E.Drain(r.Ctx(), drainTo(r, rig.B)) })
			time.Sleep(at)
			l.cut.Store(true)
			r.Stop()
			wait()
			l.cut.Store(false)
			r.Start(enclosure.Options{SameBoot: true})
			time.Sleep(5 * time.Millisecond)
			if a, b := r.SlotStatus("gpu0").Host, r.SlotStatus("gpu1").Host; a != b {
				t.Errorf("the set is split: %s, %s", a, b)
			}
			d, err := r.E.Drain(r.Ctx(), drainTo(r, rig.B))
			if err != nil || !d.Done {
				t.Errorf("killed at %v, then: %+v, %v", at, d, err)
			}
			time.Sleep(5 * time.Millisecond)
			for i := range 3 {
				r.WantHost(rig.Slot(i), rig.B)
			}
		})
	}
}

// Slots that no VM has are released; a VM that has released its slots and kept
// them there is moved like any other.
func TestDrainNobodys(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		r.StartVM(rig.VM1, rig.A, "gpu0")
		if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Slots: []string{"gpu0"}, Mode: enclosure.ReleaseKeep}); err != nil {
			t.Fatal(err)
		}
		// What the store lost is taken from the page, which names no VM.
		gen := r.Gen("gpu1")
		gen.Counter += 1000
		r.W.Slot("gpu1").SetBlock(ee.Block{Group: rig.GroupA, From: ee.GroupFree, Generation: gen})
		img := r.W.Chip("store").Image()
		for p := 4; p < len(img)/64; p++ { // a page that was lost tells that the store is no older image
			if findKey(img[p*64:p*64+64], "b\x00") != "" {
				r.W.Chip("store").FlipBit(int64(p*64+40), 3)
				break
			}
		}
		r.Restart()
		if s := r.SlotStatus("gpu1"); s.Host != rig.A || s.VM != "" {
			t.Fatalf("%+v", s)
		}
		d, err := r.E.Drain(r.Ctx(), drainTo(r, rig.B))
		if err != nil || !d.Done || !slices.Equal(sets(d), []string{"train1 gpu0 done", " gpu1 released"}) {
			t.Errorf("drain = %+v, %v", d, err)
		}
		time.Sleep(5 * time.Millisecond)
		r.WantHost("gpu0", rig.B)
		r.WantHost("gpu1", "")
	})
}
