package enclosure_test

import (
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/sim"
	"baton/test/rig"
)

// A move that was answered as done is not undone, whatever hardware refuses at a
// later start: who asked for it counts on it.
func TestDoneMoveIsNotUndone(t *testing.T) {
	at := func(kind sim.Fault) func(*rig.Rig) func() {
		return func(r *rig.Rig) func() {
			stop := r.W.Bus("bus0").Inject(kind)
			return func() { stop() }
		}
	}
	for _, tc := range []struct {
		name    string
		trouble func(r *rig.Rig) (mend func())
		waits   bool // nobody has the set until it is mended
	}{
		{"engine is dead", func(r *rig.Rig) func() {
			r.W.Slot("gpu1").Kill()
			return func() { r.W.Slot("gpu1").Revive() }
		}, true},
		{"engine takes no command", at(sim.Fault{Kind: sim.NACKAddr, Addr: 0x61, Only: sim.WriteOp}), true},
		{"engine ignores what it is told", func(r *rig.Rig) func() {
			r.W.Slot("gpu1").IgnoreControl(1 << 20)
			return func() { r.W.Slot("gpu1").IgnoreControl(0) }
		}, true},
		{"chip takes no page", at(sim.Fault{Kind: sim.NACKData, Addr: 0x21, Only: sim.WriteOp, Byte: 10}), true},
		{"chip is dead", func(r *rig.Rig) func() {
			r.W.Chip("gpu1").SetDead(true)
			return func() { r.W.Chip("gpu1").SetDead(false) }
		}, true},
		{"device is pulled", func(r *rig.Rig) func() {
			d := device(r, r.W.Spec().Slots[1].Serial)
			r.W.Slot("gpu1").RemoveDevice()
			return func() { r.W.Slot("gpu1").InsertDevice(d) }
		}, false},
	} {
		for _, how := range []string{"power cut", "engine restarts"} {
			t.Run(tc.name+"/"+how, func(t *testing.T) {
				world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
					running(t, r)
					r.W.Server(rig.A).StopVM(rig.VM1)
					m := r.Move(rig.VM1, rig.B)
					gen := r.Gen("gpu0")
					var mend func()
					if how == "power cut" {
						r.W.PowerCut()
						mend = tc.trouble(r)
						r.PowerUp()
						r.Run()
					} else {
						r.Run()
						r.W.Slot("gpu1").Restart()
						mend = tc.trouble(r)
					}
					for range 20 {
						time.Sleep(500 * time.Millisecond)
						for _, n := range []string{"gpu0", "gpu1"} {
							if s := r.SlotStatus(n); s.Host != rig.B || s.Generation != gen {
								t.Fatalf("%s is with %q, generation %s; want %s, %s (blocked %q)", n, s.Host, s.Generation, rig.B, gen, s.Blocked)
							}
							if r.W.Server(rig.A).Reach(n) {
								t.Fatalf("%s reaches %s", rig.A, n)
							}
						}
					}
					if b := r.W.Server(rig.B); tc.waits && how == "power cut" && (b.Reach("gpu0") || b.Reach("gpu1")) {
						t.Errorf("B reaches gpu0 %v, gpu1 %v of a set that waits for gpu1", b.Reach("gpu0"), b.Reach("gpu1"))
					}
					if again, ok := r.E.MoveByID(m.ID); !ok || again.State == enclosure.MoveUndone {
						t.Errorf("the move is %s now: %s", again.State, again.Reason)
					}
					mend()
					time.Sleep(3 * time.Minute)
					r.WantHost("gpu0", rig.B)
					r.WantHost("gpu1", rig.B)
					for _, ev := range eventsOf(r, "move") {
						if ev.Slot != "" {
							t.Errorf("told of: %s", ev.Text)
						}
					}
				})
			})
		}
	}
}

// A move that was cut short before all its pages were written goes back where
// hardware refuses to let it go forward; from the last page on it only goes
// forward, and waits.
func TestMoveUnderwayIsUndone(t *testing.T) {
	ends := map[string]int{}
	sweep(t, rig.Options{Slots: 2}, 40*time.Millisecond, 500*time.Microsecond, func(t *testing.T, r *rig.Rig, at time.Duration) {
		running(t, r)
		r.W.Server(rig.A).StopVM(rig.VM1)
		old := r.Gen("gpu0").Counter
		r.W.CutAfter(at)
		r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		time.Sleep(100 * time.Millisecond)
		r.Stop()
		before, unknown := 0, 0
		for _, n := range []string{"gpu0", "gpu1"} {
			b, err := ee.DecodeBlock(r.W.Chip(n).Peek(r.Profile.BlockOffset, ee.BlockSize))
			switch {
			case err != nil:
				unknown++
			case b.Generation.Counter == old:
				before++
			}
		}
		stop := r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x21, Only: sim.WriteOp, Byte: 10})
		r.PowerUp()
		r.Run()
		time.Sleep(10 * time.Second)
		stop()
		time.Sleep(2 * time.Minute)
		m, known := r.E.MoveByID(rig.UUID(1))
		want := rig.B
		if !known || before > 0 {
			want = rig.A
		}
		r.WantHost("gpu0", want)
		r.WantHost("gpu1", want)
		switch {
		case !known:
			ends["never begun"]++
		case before == 2:
			ends["no page"]++
		case before == 1:
			ends["one page"]++
		case unknown > 0:
			ends["torn"]++
		default:
			ends["all pages"]++
		}
		if known && (m.State == enclosure.MoveUndone) != (want == rig.A) {
			t.Errorf("%d pages of before, %d torn: the move is %s", before, unknown, m.State)
		}
	})
	for _, e := range []string{"never begun", "no page", "one page", "all pages"} {
		if ends[e] == 0 {
			t.Errorf("the sweep does not reach %q: %v", e, ends)
		}
	}
	t.Log(ends)
}
