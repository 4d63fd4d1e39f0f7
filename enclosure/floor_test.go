package enclosure_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"
)

func raise(t *testing.T, r *rig.Rig, f enclosure.Floor) string {
	t.Helper()
	words, err := r.E.Raise(r.Ctx(), f, false, "test")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(words, "\n")
}

// A floor that is not above what is known changes nothing, in the store or
// anywhere else.
func TestFloorOfOlder(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Fence(rig.C)
		f := r.E.Floor()
		if len(f.Slots) != 2 || f.Slots["gpu0"] != r.Gen("gpu0") || f.Hosts[rig.C] != r.Host(rig.C).Epoch || len(f.Hosts) != 3 {
			t.Errorf("floor %+v", f)
		}
		r.Unfence(rig.C)
		r.Move(rig.VM1, rig.B)
		quiet(t, r, func() {
			for _, dry := range []bool{true, false} {
				if words, err := r.E.Raise(r.Ctx(), f, dry, "test"); err != nil || len(words) != 0 {
					t.Errorf("raise = %q, %v", words, err)
				}
			}
		})
		if r.Host(rig.C).Fenced {
			t.Error("C is fenced again by its own old fence")
		}
		r.WantHost("gpu0", rig.B)
	})
}

// A backup that knows more: nothing at or below its generations is given out
// again, also after restarts, and what is assigned stays.
func TestFloorOfNewer(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		f := r.E.Floor()
		for n, g := range f.Slots {
			g.Counter += 500
			f.Slots[n] = g
		}
		f.Slots["gone"] = ee.Generation{Incarnation: f.Slots["gpu0"].Incarnation, Counter: 900} // a slot that is no longer configured
		gen := r.Gen("gpu0")
		quiet(t, r, func() {
			words, err := r.E.Raise(r.Ctx(), f, true, "test")
			if text := strings.Join(words, "\n"); err != nil || !strings.Contains(text, "901") || !strings.Contains(text, "gpu0") || !strings.Contains(text, "older than the backup") {
				t.Errorf("dry: %q, %v", text, err)
			}
		})
		raise(t, r, f)
		quiet(t, r, func() {
			if text := raise(t, r, f); text != "" {
				t.Errorf("repeated: %q", text)
			}
		})
		if r.Gen("gpu0") != gen {
			t.Error("the present generation changed")
		}
		r.WantHost("gpu0", rig.A)
		quietBesideAudit(t, r, func() { r.Restart() })
		if got := r.E.Floor().Slots["gpu1"]; got.Counter != 900 {
			t.Errorf("a backup of what was restored says %s; want 900", got)
		}
		r.Move(rig.VM1, rig.B)
		if now := r.Gen("gpu0"); now.Counter <= 900 {
			t.Errorf("generation %s was given out again", now)
		}
		if len(eventsOf(r, "restore")) != 0 {
			t.Error("events of before the restart")
		}
	})
}

// Generations of another store say nothing; its fences do.
func TestFloorOfAnotherStore(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		gen := r.Gen("gpu0")
		f := enclosure.Floor{Slots: map[string]ee.Generation{"gpu0": {Incarnation: gen.Incarnation + 2, Counter: 7000}}, Hosts: map[string]uint32{rig.B: 5, rig.C: 0}}
		text := raise(t, r, f)
		if !strings.Contains(text, "another") && !strings.Contains(text, "of store") || !strings.Contains(text, "server2: the backup knows fence 5") {
			t.Errorf("%q", text)
		}
		if h := r.Host(rig.B); !h.Fenced || h.Epoch != 6 {
			t.Errorf("%+v", h)
		}
		if h := r.Host(rig.C); h.Fenced {
			t.Errorf("%+v", h)
		}
		r.WantHost("gpu0", rig.A)
		_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.B})
		wantCode(t, err, enclosure.CodeFenced)
		r.Restart()
		wantCode(t, r.E.Unfence(r.Ctx(), rig.B, 5, "late"), enclosure.CodeStaleUnfence)
		r.Unfence(rig.B)
		r.Move(rig.VM1, rig.C)
		if now := r.Gen("gpu0"); now.Counter > 7000 || now.Counter <= gen.Counter {
			t.Errorf("generation %s, was %s", now, gen)
		}
	})
}

// A fence that is missing here is carried out: the host loses what it has.
func TestFloorFences(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		f := enclosure.Floor{Hosts: map[string]uint32{rig.A: r.Host(rig.A).Epoch + 3, "server9": 4}}
		quiet(t, r, func() {
			words, err := r.E.Raise(r.Ctx(), f, true, "test")
			if text := strings.Join(words, "\n"); err != nil || !strings.Contains(text, "gpu0") || !strings.Contains(text, "baton unfence server1") || !strings.Contains(text, "server9") {
				t.Errorf("dry: %q, %v", text, err)
			}
		})
		raise(t, r, f)
		r.WantHost("gpu0", "")
		if s := r.SlotStatus("gpu0"); !s.Held || s.VM != rig.VM1 {
			t.Errorf("%+v", s)
		}
		if !maps.Equal(r.E.Floor().Hosts, map[string]uint32{rig.A: f.Hosts[rig.A] + 1, rig.B: 0, rig.C: 0, "server9": 5}) {
			t.Errorf("floor %v", r.E.Floor().Hosts)
		}
		quiet(t, r, func() {
			raise(t, r, f)
			r.Restart()
		})
		if !r.Host(rig.A).Fenced || r.Host(rig.B).Fenced {
			t.Errorf("%+v, %+v", r.Host(rig.A), r.Host(rig.B))
		}
		r.WantVerdict("gpu0", plan.Yes)
		if len(eventsOf(r, "restore")) != 0 {
			t.Error("a repeat was told of")
		}
	})
}

// A fence whose cut is not confirmed fails, and stands.
func TestFloorUnconfirmed(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60})
		_, err := r.E.Raise(r.Ctx(), enclosure.Floor{Hosts: map[string]uint32{rig.A: 9}}, false, "test")
		wantCode(t, err, enclosure.CodeUnconfirmed)
		if h := r.Host(rig.A); !h.Fenced || h.Epoch != 10 {
			t.Errorf("%+v", h)
		}
	})
}

func TestFloorBad(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		inc := r.Gen("gpu0").Incarnation
		for name, f := range map[string]enclosure.Floor{
			"the last generation": {Slots: map[string]ee.Generation{"gpu0": {Incarnation: inc, Counter: 1<<32 - 1}}},
			"the last fence":      {Hosts: map[string]uint32{rig.A: 1<<32 - 1}},
			"a host without name": {Hosts: map[string]uint32{"": 1}},
			"a long host":         {Hosts: map[string]uint32{strings.Repeat("x", 300): 1}},
		} {
			quiet(t, r, func() {
				_, err := r.E.Raise(r.Ctx(), f, false, "test")
				wantClear(t, err, enclosure.CodeBadBackup)
				if t.Failed() {
					t.Fatal(name)
				}
			})
		}
	})
}

// A kill between the two writes of a fence that a floor brings leaves no host
// that is believed by mistake.
func TestFloorKilled(t *testing.T) {
	for at := time.Duration(0); at < 25*time.Millisecond; at += time.Millisecond {
		l := &leash{}
		world(t, rig.Options{Config: leashAll(l)}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			f := r.E.Floor()
			f.Hosts[rig.A] += 3
			f.Slots["gpu0"] = ee.Generation{Incarnation: f.Slots["gpu0"].Incarnation, Counter: 900}
			wait := background(func() { _, _ = r.E.Raise(r.Ctx(), f, false, "test") })
			time.Sleep(at)
			l.cut.Store(true)
			r.Stop()
			wait()
			l.cut.Store(false)
			r.Start(enclosure.Options{SameBoot: true})
			time.Sleep(5 * time.Millisecond)
			if h := r.Host(rig.A); h.Fenced == r.W.Server(rig.A).Reach("gpu0") {
				t.Errorf("killed at %v: %+v, reach %v", at, h, !h.Fenced)
			}
			if words, err := r.E.Raise(r.Ctx(), f, false, "test"); err != nil {
				t.Errorf("%q, %v", words, err)
			}
			r.WantHost("gpu0", "")
		})
	}
}

// The page with the floor is lost, and nothing was assigned above it yet.
func TestLostFloor(t *testing.T) {
	for _, sameBoot := range []bool{false, true} {
		world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			gen := r.Gen("gpu0")
			gen.Counter += 1000
			if _, err := r.E.Raise(r.Ctx(), enclosure.Floor{Slots: map[string]ee.Generation{"gpu0": gen}}, false, "test"); err != nil {
				t.Fatal(err)
			}
			for range 4 { // so that the page is not where a write may have been under way
				r.Fence(rig.C)
			}
			r.Stop()
			spoilRecord(t, r, plan.KeyFloor)
			for range 2 {
				r.Start(enclosure.Options{SameBoot: sameBoot})
				time.Sleep(5 * time.Millisecond)
				r.WantHost("gpu0", rig.A)
				r.Stop()
			}
			r.Start(enclosure.Options{SameBoot: true})
			r.Move(rig.VM1, rig.B)
			if g := r.Gen("gpu0"); g.Counter <= gen.Counter {
				t.Errorf("same boot %v: generation %s; the backup knew %s", sameBoot, g, gen)
			}
		})
	}
}

// What is being assigned while a floor is raised has a generation that the backup
// may know: either the one or the other is refused.
func TestRaiseMeetsMove(t *testing.T) {
	sweep(t, rig.Options{}, 30*time.Millisecond, time.Millisecond, func(t *testing.T, r *rig.Rig, at time.Duration) {
		running(t, r)
		gen := r.Gen("gpu0")
		gen.Counter += 1000
		moved := background(func() { _, _ = r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) })
		time.Sleep(at)
		_, err := r.E.Raise(r.Ctx(), enclosure.Floor{Slots: map[string]ee.Generation{"gpu0": gen}}, false, "test")
		before := r.Gen("gpu0")
		moved()
		if now := r.Gen("gpu0"); err == nil && now != before && now.Counter <= gen.Counter {
			t.Errorf("at %v: moved to generation %s under a floor of %s", at, now, gen)
		}
	})
}
