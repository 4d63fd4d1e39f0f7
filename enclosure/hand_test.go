package enclosure_test

import (
	"fmt"
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

// flagStates bring gpu0, with VM1 on A or B, into each state of the flag.
var flagStates = []struct {
	name string
	flag plan.Flag
	do   func(t *testing.T, r *rig.Rig)
}{
	{"none, never used", plan.None, func(_ *testing.T, r *rig.Rig) { r.Attach(rig.VM1, rig.A) }},
	{"none, used", plan.None, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		if _, err := r.Arm("gpu0", true); err != nil {
			t.Fatal(err)
		}
		if err := r.E.Disarm(r.Ctx(), "gpu0", rig.UUID(100), "test"); err != nil {
			t.Fatal(err)
		}
	}},
	{"spent", plan.Spent, func(t *testing.T, r *rig.Rig) { running(t, r) }},
	{"armed", plan.Armed, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		if _, err := r.Arm("gpu0", true); err != nil {
			t.Fatal(err)
		}
	}},
	{"target", plan.Target, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Move(rig.VM1, rig.B)
	}},
	{"void", plan.Void, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		seen := r.Verdict("gpu0").Now
		seen.Resets++
		if _, err := r.E.Arm(r.Ctx(), enclosure.ArmRequest{Slot: "gpu0", ID: rig.UUID(100), Gen: r.Gen("gpu0"), Seen: &seen}); err != nil {
			t.Fatal(err)
		}
	}},
}

// hold releases gpu0 so that it waits for its VM.
func hold(t *testing.T, r *rig.Rig) {
	t.Helper()
	if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold}); err != nil {
		t.Fatal(err)
	}
}

// A reset and a loss of power that people ask for never leave a yes, whatever
// the flag was, whoever has the slot, and whenever the agent is killed.
func TestHandNeverLeavesYes(t *testing.T) {
	verbs := []struct {
		name string
		held bool // only for a slot that is cut
		do   func(r *rig.Rig) error
	}{
		{"reset", false, func(r *rig.Rig) error {
			return r.E.Reset(r.Ctx(), enclosure.ResetRequest{Slot: "gpu0", Gen: r.Gen("gpu0"), By: "test"})
		}},
		{"power off", true, func(r *rig.Rig) error { return power(r, "off") }},
		{"power cycle", true, func(r *rig.Rig) error { return power(r, "cycle") }},
	}
	for _, policy := range []plan.Policy{plan.Always, plan.OnMove} {
		for _, fs := range flagStates {
			for _, held := range []bool{false, true} {
				for _, v := range verbs {
					if v.held && !held {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/held %v/%s", policy, fs.name, held, v.name), func(t *testing.T) {
						reached := 0
						// To the end, and killed at instants on the way.
						for at := time.Duration(0); at < 30*time.Millisecond; at += 2 * time.Millisecond {
							l := &leash{}
							world(t, rig.Options{Policy: policy, Config: leashAll(l)}, func(t *testing.T, r *rig.Rig) {
								fs.do(t, r)
								if held {
									hold(t, r)
								}
								if at == 0 {
									if err := v.do(r); err != nil {
										t.Fatal(err)
									}
									r.WantVerdict("gpu0", plan.No)
								} else {
									wait := background(func() { _ = v.do(r) })
									time.Sleep(at)
									l.cut.Store(true)
									r.Stop()
									wait()
									time.Sleep(time.Second) // a reset that was begun ends
									l.cut.Store(false)
									r.Start(enclosure.Options{SameBoot: true})
									time.Sleep(5 * time.Millisecond)
								}
								lost := slices.ContainsFunc(r.W.Resets("gpu0"), func(x sim.Reset) bool { return x.Cause == "device reset" && x.At > r.W.Now()-2*time.Second }) ||
									r.W.Slot("gpu0").State().Status&ee.StatPower == 0
								if lost {
									reached++
									r.WantVerdict("gpu0", plan.No)
								}
								for range 2 { // not either when the device comes back
									if lost && r.SlotStatus("gpu0").Power == "off" {
										if err := power(r, "on"); err != nil {
											t.Fatal(err)
										}
									}
									if lost {
										r.WantVerdict("gpu0", plan.No)
									}
									r.Restart()
								}
								if d, err := r.W.Server(rig.B).DVSEC("gpu0"); err == nil && lost && uint16(d.Flags)&2 != 0 {
									t.Errorf("hosts are shown %v", d.Flags)
								}
							})
							if t.Failed() {
								t.Fatalf("killed at %v", at)
							}
						}
						if reached == 0 {
							t.Error("no run reached the device")
						}
					})
				}
			}
		}
	}
}

func power(r *rig.Rig, state enclosure.PowerState) error {
	return r.E.Power(r.Ctx(), enclosure.PowerRequest{Slot: "gpu0", Gen: r.Gen("gpu0"), State: state, By: "test"})
}

func adopt(r *rig.Rig, slot string) (enclosure.Adoption, error) {
	a, err := r.E.AdoptionOf(r.Ctx(), slot)
	if err != nil {
		return a, err
	}
	return r.E.Adopt(r.Ctx(), slot, a.Token, "test")
}

// TestHandByState asks for every verb in every condition.
func TestHandByState(t *testing.T) {
	const ok = enclosure.Code("")
	conditions := []struct {
		name string
		o    rig.Options
		do   func(t *testing.T, r *rig.Rig)
	}{
		{"free", rig.Options{}, func(*testing.T, *rig.Rig) {}},
		{"held", rig.Options{}, func(t *testing.T, r *rig.Rig) { running(t, r); r.Fence(rig.A) }},
		{"in use", rig.Options{}, func(t *testing.T, r *rig.Rig) { running(t, r) }},
		{"blocked", rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) { running(t, r); blockedMove(t, r) }},
		{"faulty", rig.Options{}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			r.W.Slot("gpu0").SetEngine(ee.EngineID, sim.MAC{2, 'N', 'E', 'W', 0, 1})
			r.Restart()
		}},
		{"dead", rig.Options{}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			r.W.Slot("gpu0").Kill()
			r.Verdict("gpu0")
		}},
		{"power off", rig.Options{}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			hold(t, r)
			if err := power(r, "off"); err != nil {
				t.Fatal(err)
			}
		}},
		{"nvm-only", rig.Options{Profile: "nvm-only"}, func(_ *testing.T, r *rig.Rig) { r.Attach(rig.VM1, rig.A) }},
	}
	verbs := []struct {
		name string
		do   func(r *rig.Rig) error
		want []enclosure.Code // by condition
	}{
		{"locate", func(r *rig.Rig) error { return r.E.Locate(r.Ctx(), "gpu0", true, "test") },
			[]enclosure.Code{ok, ok, ok, ok, enclosure.CodeIdentity, enclosure.CodeHardware, ok, enclosure.CodeCapability}},
		{"power on", func(r *rig.Rig) error { return power(r, "on") },
			[]enclosure.Code{ok, ok, ok, enclosure.CodeBlocked, enclosure.CodeIdentity, enclosure.CodeHardware, ok, enclosure.CodeCapability}},
		{"power off", func(r *rig.Rig) error { return power(r, "off") },
			[]enclosure.Code{ok, ok, enclosure.CodeInUse, enclosure.CodeBlocked, enclosure.CodeIdentity, enclosure.CodeHardware, ok, enclosure.CodeCapability}},
		{"power cycle", func(r *rig.Rig) error { return power(r, "cycle") },
			[]enclosure.Code{ok, ok, enclosure.CodeInUse, enclosure.CodeBlocked, enclosure.CodeIdentity, enclosure.CodeHardware, ok, enclosure.CodeCapability}},
		{"power of another generation", func(r *rig.Rig) error {
			return r.E.Power(r.Ctx(), enclosure.PowerRequest{Slot: "gpu0", Gen: ee.Generation{Counter: 1}, State: "off"})
		}, []enclosure.Code{enclosure.CodeGenerationChanged, enclosure.CodeGenerationChanged, enclosure.CodeGenerationChanged, enclosure.CodeBlocked,
			enclosure.CodeIdentity, enclosure.CodeGenerationChanged, enclosure.CodeGenerationChanged, enclosure.CodeCapability}},
		{"power to nowhere", func(r *rig.Rig) error { return power(r, "half") }, slices.Repeat([]enclosure.Code{enclosure.CodeBadRequest}, 8)},
		{"reset", func(r *rig.Rig) error {
			return r.E.Reset(r.Ctx(), enclosure.ResetRequest{Slot: "gpu0", Gen: r.Gen("gpu0"), By: "test"})
		}, []enclosure.Code{ok, ok, ok, enclosure.CodeBlocked, enclosure.CodeIdentity, enclosure.CodeHardware, enclosure.CodeWrongState, enclosure.CodeCapability}},
		{"reset of another generation", func(r *rig.Rig) error {
			return r.E.Reset(r.Ctx(), enclosure.ResetRequest{Slot: "gpu0", Gen: ee.Generation{Counter: 1}})
		}, []enclosure.Code{enclosure.CodeGenerationChanged, enclosure.CodeGenerationChanged, enclosure.CodeGenerationChanged, enclosure.CodeBlocked,
			enclosure.CodeIdentity, enclosure.CodeGenerationChanged, enclosure.CodeGenerationChanged, enclosure.CodeCapability}},
		{"adopt", func(r *rig.Rig) error { _, err := adopt(r, "gpu0"); return err },
			[]enclosure.Code{enclosure.CodeNotNeeded, enclosure.CodeNotNeeded, enclosure.CodeNotNeeded, enclosure.CodeNotNeeded, ok, enclosure.CodeHardware, enclosure.CodeNotNeeded, enclosure.CodeNotNeeded}},
		{"adopt with a made-up token", func(r *rig.Rig) error { _, err := r.E.Adopt(r.Ctx(), "gpu0", "00", "test"); return err },
			[]enclosure.Code{enclosure.CodeNotNeeded, enclosure.CodeNotNeeded, enclosure.CodeNotNeeded, enclosure.CodeNotNeeded, enclosure.CodeStaleToken, enclosure.CodeHardware, enclosure.CodeNotNeeded, enclosure.CodeNotNeeded}},
		{"resolve of the first move", func(r *rig.Rig) error {
			_, err := r.E.Resolve(r.Ctx(), rig.UUID(1), []string{"gpu0"}, "test")
			return err
		}, []enclosure.Code{enclosure.CodeUnknownMove, enclosure.CodeUnknownMove, enclosure.CodeUnknownMove, ok, enclosure.CodeUnknownMove, enclosure.CodeUnknownMove, enclosure.CodeUnknownMove, enclosure.CodeUnknownMove}},
		{"force-free", func(r *rig.Rig) error { return r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test") },
			[]enclosure.Code{enclosure.CodeWrongState, enclosure.CodeWrongState, enclosure.CodeWrongState, ok, enclosure.CodeUnconfirmed, enclosure.CodeUnconfirmed, enclosure.CodeWrongState, enclosure.CodeWrongState}},
		{"force-free, mistyped", func(r *rig.Rig) error { return r.E.ForceFree(r.Ctx(), "gpu0", "gpu1", "test") }, slices.Repeat([]enclosure.Code{enclosure.CodeBadRequest}, 8)},
		{"attach", func(r *rig.Rig) error {
			_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Slots: []string{"gpu0"}, Host: rig.C, Wait: time.Second})
			return err
		}, []enclosure.Code{ok, ok, ok, enclosure.CodeBlocked, enclosure.CodeIdentity, enclosure.CodeHardware, enclosure.CodeWrongState, ok}},
		{"move", func(r *rig.Rig) error {
			q := r.Request(rig.VM1, rig.C)
			q.Slots = []string{"gpu0"}
			_, err := r.E.Move(r.Ctx(), q)
			return err
		}, []enclosure.Code{ok, ok, ok, enclosure.CodeBlocked, enclosure.CodeIdentity, enclosure.CodeHardware, enclosure.CodeWrongState, ok}},
	}
	changed := []enclosure.Code{ok, enclosure.CodeUnconfirmed}
	for i, c := range conditions {
		for _, v := range verbs {
			t.Run(c.name+"/"+v.name, func(t *testing.T) {
				world(t, c.o, func(t *testing.T, r *rig.Rig) {
					c.do(t, r)
					gen, told := r.Gen("gpu0"), len(eventsOf(r, "refused"))
					var err error
					do := func() { err = v.do(r) }
					hardwareAfterIntent := v.want[i] == enclosure.CodeHardware && (v.name == "attach" || v.name == "move")
					if slices.Contains(changed, v.want[i]) || hardwareAfterIntent {
						do() // the intent, and its cancellation
					} else {
						quiet(t, r, do)
					}
					if v.want[i] == ok {
						if err != nil {
							t.Fatalf("%v", err)
						}
						return
					}
					wantClear(t, err, v.want[i])
					if v.want[i] == enclosure.CodeUnconfirmed {
						if s := r.SlotStatus("gpu0"); s.Host != "" || s.VM != "" || s.Held || s.Flag != plan.Void || s.Cut != "unconfirmed" {
							t.Errorf("forced: %+v", s)
						}
						return
					}
					if r.Gen("gpu0") != gen {
						t.Error("the generation changed")
					}
					now := eventsOf(r, "refused")
					if looked := v.name == "adopt" && v.want[i] == enclosure.CodeHardware; !looked && (len(now) != told+1 || now[told].Code != string(v.want[i])) {
						t.Errorf("refusals told of: %+v", now[told:])
					}
				})
			})
		}
	}
}

func TestHandUnknownSlot(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		ctx := r.Ctx()
		for name, err := range map[string]error{
			"locate":     r.E.Locate(ctx, "gpu9", true, "test"),
			"power":      r.E.Power(ctx, enclosure.PowerRequest{Slot: "gpu9", State: "off"}),
			"reset":      r.E.Reset(ctx, enclosure.ResetRequest{Slot: "gpu9"}),
			"force-free": r.E.ForceFree(ctx, "gpu9", "gpu9", "test"),
			"adopt":      func() error { _, err := r.E.Adopt(ctx, "gpu9", "", "test"); return err }(),
			"look":       func() error { _, err := r.E.AdoptionOf(ctx, "gpu9"); return err }(),
		} {
			if rig.Code(err) != enclosure.CodeUnknownSlot {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// An LED is no change of anything else, also on a slot whose VM runs.
func TestLocate(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		pages, links := r.W.PageWrites("store")+r.W.PageWrites("gpu0"), len(r.W.Reach())
		lit := func() bool { return r.W.Slot("gpu0").State().Control&ee.CtlLocate != 0 }
		for _, on := range []bool{true, true, false, false, true} {
			if err := r.E.Locate(r.Ctx(), "gpu0", on, "test"); err != nil || lit() != on {
				t.Fatalf("locate %v: %v, LED %v", on, err, lit())
			}
			time.Sleep(3 * time.Second)
		}
		if n := len(eventsOf(r, "locate")); n != 3 {
			t.Errorf("%d events; want one for each change", n)
		}
		if now := r.W.PageWrites("store") + r.W.PageWrites("gpu0"); now != pages || len(r.W.Reach()) != links {
			t.Error("pages or links changed")
		}
		r.WantVerdict("gpu0", plan.Yes)
		r.Move(rig.VM1, rig.B)
		if !lit() {
			t.Error("a move put the LED out")
		}
		r.Restart()
		if !lit() {
			t.Error("a restart put the LED out")
		}
		r.WantVerdict("gpu0", plan.Yes)
	})
}

// Off lasts over restarts of the agent, and nobody is given a device without
// power, also not by an intent that an agent left behind.
func TestPowerOff(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		hold(t, r)
		if err := power(r, "off"); err != nil {
			t.Fatal(err)
		}
		for _, when := range []string{"at once", "after a restart", "polled"} {
			if s := r.SlotStatus("gpu0"); s.Power != "off" || r.W.Slot("gpu0").State().Status&ee.StatPower != 0 {
				t.Errorf("%s: power %q", when, s.Power)
			}
			quiet(t, r, func() {
				_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.B})
				wantClear(t, err, enclosure.CodeWrongState, "no power", "baton slot power gpu0 on")
			})
			if when == "at once" {
				quiet(t, r, func() { r.Restart() })
			} else {
				r.Run()
				time.Sleep(5 * time.Second)
			}
		}
		if err := power(r, "on"); err != nil {
			t.Fatal(err)
		}
		if s := r.SlotStatus("gpu0"); s.Power != "on" {
			t.Errorf("power %q", s.Power)
		}
		r.Attach(rig.VM1, rig.B)
		r.WantHost("gpu0", rig.B)
		r.WantVerdict("gpu0", plan.No)
	})
	for at := time.Duration(0); at < 10*time.Millisecond; at += time.Millisecond {
		l := &leash{}
		world(t, rig.Options{Config: leashAll(l)}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			hold(t, r)
			// The agent has not seen that the power went, so its intent is written.
			control := r.W.Slot("gpu0").State().Control
			if err := r.W.Bus("bus0").Tx(0x60, []byte{1, 7, control &^ ee.CtlPower}, nil); err != nil {
				t.Fatal(err)
			}
			var err error
			wait := background(func() {
				_, err = r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.B, Wait: time.Second})
			})
			time.Sleep(at)
			l.cut.Store(true)
			r.Stop()
			wait()
			l.cut.Store(false)
			r.Start(enclosure.Options{SameBoot: true})
			time.Sleep(5 * time.Millisecond)
			r.WantHost("gpu0", "")
			if s := r.SlotStatus("gpu0"); !s.Held || s.Blocked != "" || s.Power != "off" {
				t.Errorf("killed at %v (%v): %+v", at, err, s)
			}
		})
	}
}

// The counter or the power that does not move is said, and the slot is as the
// registers have it.
func TestHandNotTaken(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Slot("gpu0").IgnoreControl(1)
		err := r.E.Reset(r.Ctx(), enclosure.ResetRequest{Slot: "gpu0", Gen: r.Gen("gpu0")})
		wantClear(t, err, enclosure.CodeHardware, "not reset")
		r.WantVerdict("gpu0", plan.Yes) // nothing reached it
		r.WantHost("gpu0", rig.A)
		hold(t, r)
		r.W.Slot("gpu0").IgnoreControl(100)
		wantClear(t, power(r, "off"), enclosure.CodeHardware, "power")
		r.W.Slot("gpu0").IgnoreControl(0)
		r.WantVerdict("gpu0", plan.No)
		if s := r.SlotStatus("gpu0"); s.Power != "on" || s.FlagReason != plan.WhyOperator.String() {
			t.Errorf("%+v", s)
		}
	})
}

// A device that is reset by hand under a running VM can be proven again.
func TestResetThenProven(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		before := r.Verdict("gpu0").Now.Resets
		if err := r.E.Reset(r.Ctx(), enclosure.ResetRequest{Slot: "gpu0", Gen: r.Gen("gpu0"), By: "test"}); err != nil {
			t.Fatal(err)
		}
		v := r.Verdict("gpu0")
		if v.Preserved != plan.No || v.Now.Resets != before+1 {
			t.Errorf("verdict %+v; want no, and one reset more than %d", v, before)
		}
		r.WantHost("gpu0", rig.A)
		if err := r.Alive(rig.VM1, rig.A, "gpu0"); err != nil {
			t.Fatal(err)
		}
		r.WantVerdict("gpu0", plan.Yes)
		if ev := eventsOf(r, "reset"); len(ev) != 1 || !strings.Contains(ev[0].Text, fmt.Sprint(before+1)) {
			t.Errorf("events %+v", ev)
		}
	})
}

// A fence of another host does not wait for a power cycle.
func TestFenceDuringPowerCycle(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r, "gpu1")
		wait := background(func() {
			if err := power(r, "cycle"); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		r.Fence(rig.A)
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("the fence took %v", d)
		}
		wait()
		if losses := r.W.PowerLosses("gpu0"); len(losses) != 1 {
			t.Errorf("power went at %v; want once", losses)
		}
	})
}
