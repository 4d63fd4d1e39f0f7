package enclosure_test

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/sim"
	"baton/test/rig"

	"periph.io/x/conn/v3/i2c"
)

// powerless hides that a device has power, or shows power where there is none:
// what a card does whose supply does not do as told.
type powerless struct {
	i2c.Bus
	addr   uint16
	status atomic.Int32 // 0 = as it is, 1 = no power, 2 = power
}

func (p *powerless) Tx(addr uint16, w, r []byte) error {
	err := p.Bus.Tx(addr, w, r)
	if err != nil || addr != p.addr || len(w) < 2 {
		return err
	}
	from := int(binary.BigEndian.Uint16(w)) + len(w) - 2 // what is written is in front
	if i := ee.RegStatus - from; i >= 0 && i < len(r) {
		switch p.status.Load() {
		case 1:
			r[i] &^= ee.StatPower
		case 2:
			r[i] |= ee.StatPower
		}
	}
	return nil
}

// Power that did not come on, or go, is not said to be so when it is asked for
// once more: the register that was written is not what is asked about.
func TestPowerIsReadBackWhenRepeated(t *testing.T) {
	p := &powerless{}
	world(t, rig.Options{Config: func(c *enclosure.Config) {
		p.Bus, p.addr = c.Slots[0].Bus, c.Slots[0].Addr
		c.Slots[0].Bus = p
	}}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		hold(t, r)
		if err := power(r, "off"); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			to   enclosure.PowerState
			lies int32
		}{{"on", 1}, {"off", 2}} {
			p.status.Store(tt.lies)
			for range 2 {
				if err := power(r, tt.to); rig.Code(err) != enclosure.CodeHardware {
					t.Errorf("power %s that is not read back: %v", tt.to, err)
				}
			}
			p.status.Store(0)
			if err := power(r, "cycle"); err != nil {
				t.Fatal(err)
			}
		}
		// With a host it is no reason to touch the link.
		r.Attach(rig.VM1, rig.A)
		time.Sleep(5 * time.Millisecond)
		p.status.Store(1)
		if err := power(r, "on"); rig.Code(err) != enclosure.CodeInUse {
			t.Errorf("under a host: %v", err)
		}
		p.status.Store(0)
		r.WantHost("gpu0", rig.A)
	})
}

// The wait for a host that does not appear ends with the agent, links as they
// are: two minutes are more than it is given to stop.
func TestDrainDoesNotHoldUpTheAgent(t *testing.T) {
	world(t, rig.Options{Slots: 3}, func(t *testing.T, r *rig.Rig) {
		drainRig(t, r)
		r.W.Server(rig.B).LinkLoss()
		q := drainTo(r, rig.B)
		q.Wait = enclosure.MaxWait
		ctx, cancel := context.WithTimeout(r.Ctx(), time.Second)
		defer cancel()
		began := time.Now()
		d, err := r.E.Drain(ctx, q)
		if took := time.Since(began); err != nil || took > 9*time.Second || len(d.Sets) != 1 || d.Sets[0].State != string(enclosure.MoveWaiting) {
			t.Errorf("after %v: %+v, %v", took, d, err)
		}
	})
}

// Looking who is in a slot, and checking, is everybody's; a move must not have
// to wait for those who do nothing else.
func TestLookersDoNotDelayMoves(t *testing.T) {
	for name, look := range map[string]func(r *rig.Rig){
		"adopt": func(r *rig.Rig) { _, _ = r.E.AdoptionOf(r.Ctx(), "gpu0") },
		"check": func(r *rig.Rig) { _, _ = r.E.CheckNVM(r.Ctx()) },
	} {
		t.Run(name, func(t *testing.T) {
			world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
				r.Attach(rig.VM1, rig.A)
				var stop atomic.Bool
				var waits []func()
				for range 8 {
					waits = append(waits, background(func() {
						for !stop.Load() {
							look(r)
							time.Sleep(time.Millisecond)
						}
					}))
				}
				time.Sleep(100 * time.Millisecond)
				began := time.Now()
				m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
				took := time.Since(began)
				stop.Store(true)
				for _, w := range waits {
					w()
				}
				t.Logf("%v", took)
				if err != nil || m.State != enclosure.MoveDone || took > 600*time.Millisecond {
					t.Errorf("%s after %v: %v", m.State, took, err)
				}
			})
		})
	}
}

// A move that the records alone tell of came from a host, not from nobody.
func TestRecordedMoveTellsFrom(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		done := r.Move(rig.VM1, rig.B)
		r.Restart()
		if m, ok := r.E.MoveByID(done.ID); !ok || m.From != rig.A {
			t.Errorf("after a restart: %+v", m)
		}
	})
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		stop := r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x21, Only: sim.WriteOp, Byte: 10, For: 40 * time.Millisecond})
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		stop()
		if err != nil || m.State != enclosure.MoveUndone || m.From != rig.A {
			t.Fatalf("%+v", m)
		}
		r.Restart()
		if m, ok := r.E.MoveByID(m.ID); !ok || m.From != rig.A {
			t.Errorf("after a restart: %+v", m)
		}
	})
}

// Adopting a part does not make anybody forget who may still reach the slot: a
// fence of that host goes on failing until the cut is seen.
func TestAdoptKeepsWhoIsNotCut(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			r.W.Slot("gpu0").IgnoreControl(1 << 20)
			_ = r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold})
			wantClear(t, r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test"), enclosure.CodeUnconfirmed)
			r.W.Chip("gpu0").SetImage(image(32768, all(0xFF)))
			_, _ = adopt(r, "gpu0")
			if restarted {
				r.Restart()
			}
			if up := r.W.Slot("gpu0").State().Status&ee.StatLink != 0; !up {
				t.Fatal("the engine has been cut")
			}
			_, err := r.E.Fence(r.Ctx(), rig.A, "test")
			if rig.Code(err) != enclosure.CodeUnconfirmed {
				t.Errorf("restarted %v: fence: %v", restarted, err)
			}
			r.W.Slot("gpu0").IgnoreControl(0)
			r.Run()
			time.Sleep(2 * time.Minute)
			if _, err := r.E.Fence(r.Ctx(), rig.A, "test"); err != nil {
				t.Errorf("restarted %v: fence of what obeys: %v", restarted, err)
			}
		})
	}
}

// A release whose records are written, and that the hardware does not follow,
// does not say that nothing was done.
func TestReleaseSaysWhatItDid(t *testing.T) {
	for name, prep := range map[string]func(r *rig.Rig){
		"another engine": func(r *rig.Rig) { r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC) },
		"dead":           func(r *rig.Rig) { r.W.Slot("gpu0").Kill() },
		"stuck":          func(r *rig.Rig) { r.W.Slot("gpu0").IgnoreControl(1 << 20) },
	} {
		t.Run(name, func(t *testing.T) {
			world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
				running(t, r)
				prep(r)
				gen := r.Gen("gpu0")
				err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold})
				if r.Gen("gpu0") == gen {
					t.Fatalf("no record: %v", err)
				}
				var known *enclosure.Error
				if !errors.As(err, &known) || strings.Contains(known.State, "nothing") || !strings.Contains(known.State, "released") {
					t.Errorf("%v; state %q", err, known.State)
				}
			})
		})
	}
}

// A host that may still reach a slot has not been drained.
func TestDrainOfWhatIsNotCut(t *testing.T) {
	world(t, rig.Options{Slots: 3}, func(t *testing.T, r *rig.Rig) {
		drainRig(t, r)
		r.W.Slot("gpu2").IgnoreControl(1 << 20)
		d, err := r.E.Drain(r.Ctx(), drainFree(r, enclosure.ReleaseHold))
		if err != nil || d.Done || !slices.Equal(d.Left, []string{"gpu2"}) {
			t.Errorf("drain = %+v, %v", d, err)
		}
		if d, err := r.E.Drain(r.Ctx(), drainFree(r, enclosure.ReleaseHold)); err != nil || d.Done {
			t.Errorf("repeated: %+v, %v", d, err)
		}
		r.W.Slot("gpu2").IgnoreControl(0)
		r.Run()
		time.Sleep(2 * time.Minute)
		if d, err := r.E.Drain(r.Ctx(), drainFree(r, enclosure.ReleaseHold)); err != nil || !d.Done {
			t.Errorf("once it obeys: %+v, %v", d, err)
		}
	})
}

// What is left of a set is not done while its host's engine is not there; a
// fence of that host does not wait for it.
func TestResolveWaitsForTheHost(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		world(t, rig.Options{Slots: 3}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			m := blockedMove(t, r)
			r.W.Server(rig.B).LinkLoss()
			wait := func() {}
			if fenced {
				wait = background(func() {
					time.Sleep(time.Second)
					began := time.Now()
					_, _ = r.E.Fence(r.Ctx(), rig.B, "test") // gpu1 does not take its cut
					if d := time.Since(began); d > time.Second {
						t.Errorf("the fence took %v", d)
					}
				})
			}
			got, err := r.E.Resolve(r.Ctx(), m.ID, []string{"gpu1"}, "test")
			wait()
			if err != nil || got.State != enclosure.MoveWaiting || !strings.Contains(got.Reason, rig.B) {
				t.Errorf("resolve = %s (%s), %v", got.State, got.Reason, err)
			}
			if fenced {
				return
			}
			r.Run()
			r.W.Server(rig.B).LinkRestore()
			time.Sleep(3 * time.Second)
			if now, _ := r.E.MoveByID(m.ID); now.State != enclosure.MoveDone || now.Reason != "" {
				t.Errorf("it is there: %s (%s)", now.State, now.Reason)
			}
		})
	}
}
