package enclosure_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"
)

// newMAC is that of an engine that is put in another's place.
var newMAC = sim.MAC{2, 'N', 'E', 'W', 0, 9}

// replaced is a part that was replaced at gpu0, and what adopting it must say.
type replacement struct {
	name  string
	swap  func(r *rig.Rig)
	old   func(r *rig.Rig, p enclosure.Parts) bool
	new   func(p enclosure.Parts) bool
	why   plan.Reason
	warns string // in the status afterwards
	fault bool   // the slot can not be used before
}

const newSerial = 0xFEED

var replacements = []replacement{
	{"engine", func(r *rig.Rig) {
		r.W.Slot("gpu0").Kill()
		r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC)
		r.W.Slot("gpu0").Revive()
	}, func(r *rig.Rig, p enclosure.Parts) bool { return p.Engine == ee.MAC(mac(r)).String() },
		func(p enclosure.Parts) bool { return p.Engine == ee.MAC(newMAC).String() }, plan.WhyReplaced, "engine " + ee.MAC(newMAC).String() + " was adopted", true},
	{"card", func(r *rig.Rig) { r.W.Slot("gpu0").InsertDevice(device(r, newSerial)) },
		func(r *rig.Rig, p enclosure.Parts) bool { return p.Serial == "0xba70000000000001" },
		func(p enclosure.Parts) bool { return p.Serial == "0x000000000000feed" }, plan.WhyReplaced, "device 0x000000000000feed was adopted", true},
	{"blank chip", func(r *rig.Rig) { r.W.Chip("gpu0").SetImage(image(32768, all(0xFF))) },
		func(_ *rig.Rig, p enclosure.Parts) bool { return strings.Contains(p.Block, "group 101") },
		func(p enclosure.Parts) bool { return strings.Contains(p.Block, "blank") }, plan.WhyOperator, "", false},
	{"foreign chip", func(r *rig.Rig) { r.W.Chip("gpu0").SetImage(image(32768, text)) },
		func(_ *rig.Rig, p enclosure.Parts) bool { return strings.Contains(p.Block, "group 101") },
		func(p enclosure.Parts) bool { return strings.Contains(p.Block, "magic") }, plan.WhyOperator, "", false},
	{"another store's chip", func(r *rig.Rig) {
		r.W.Slot("gpu0").SetBlock(ee.Block{Group: 200, From: ee.GroupFree, Generation: ee.Generation{Incarnation: 77, Counter: 9999}, VM: rig.UUID(77)})
	}, func(_ *rig.Rig, p enclosure.Parts) bool { return strings.Contains(p.Block, "group 101") },
		func(p enclosure.Parts) bool { return strings.Contains(p.Block, "another store") }, plan.WhyOperator, "", false},
	{"another slot's chip", func(r *rig.Rig) { r.W.Chip("gpu0").SetImage(r.W.Chip("gpu1").Image()) },
		func(_ *rig.Rig, p enclosure.Parts) bool { return strings.Contains(p.Block, "group 101") },
		func(p enclosure.Parts) bool { return strings.Contains(p.Block, rig.VM2) }, plan.WhyOperator, "", false},
	{"engine, card and chip", func(r *rig.Rig) {
		r.W.Slot("gpu0").Kill()
		r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC)
		r.W.Slot("gpu0").InsertDevice(device(r, newSerial))
		r.W.Chip("gpu0").SetImage(image(32768, all(0xFF)))
		r.W.Slot("gpu0").Revive()
	}, func(r *rig.Rig, p enclosure.Parts) bool { return p.Engine != "" },
		func(p enclosure.Parts) bool {
			return p.Engine == ee.MAC(newMAC).String() && p.Serial == "0x000000000000feed"
		}, plan.WhyReplaced, "device 0x000000000000feed was adopted", true},
}

// TestAdopt: parts are replaced under a running agent, looked at and adopted.
func TestAdopt(t *testing.T) {
	for _, p := range replacements {
		t.Run(p.name, func(t *testing.T) {
			world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
				r.StartVM(rig.VM1, rig.A, "gpu0")
				r.StartVM(rig.VM2, rig.B, "gpu1")
				gen := r.Gen("gpu0")
				p.swap(r)
				if p.fault {
					r.Run()
					time.Sleep(3 * time.Second)
					if s := r.SlotStatus("gpu0"); !strings.Contains(s.Problem, "configured") {
						t.Errorf("problem %q", s.Problem)
					}
				}
				var a enclosure.Adoption
				quietBesideAudit(t, r, func() {
					var err error
					if a, err = r.E.AdoptionOf(r.Ctx(), "gpu0"); err != nil {
						t.Fatal(err)
					}
				})
				if !a.Needed || a.Adopted || a.Token == "" || a.Generation != gen || len(a.Effect) < 3 || !p.old(r, a.Old) || !p.new(a.New) {
					t.Errorf("adoption = %+v", a)
				}
				if a.Old.Chip == "" || !strings.Contains(a.New.Chip, "24c256 at bus0") {
					t.Errorf("chip %q, %q", a.Old.Chip, a.New.Chip)
				}
				quiet(t, r, func() {
					_, err := r.E.Adopt(r.Ctx(), "gpu0", a.Token+"0", "test")
					wantClear(t, err, enclosure.CodeStaleToken, "gpu0")
				})
				done, err := r.E.Adopt(r.Ctx(), "gpu0", a.Token, "test")
				if err != nil || !done.Adopted {
					t.Fatalf("adopt = %+v, %v", done, err)
				}
				check := func(when string) {
					t.Helper()
					s := r.SlotStatus("gpu0")
					if s.Problem != "" || s.Blocked != "" || !s.Held || s.VM != rig.VM1 || s.Flag != plan.Void || s.FlagReason != p.why.String() || s.Generation != done.Generation || s.Cut != "confirmed" {
						t.Errorf("%s: %+v", when, s)
					}
					warned := strings.Join(r.E.Status(r.Ctx()).Warnings, "\n")
					if strings.Contains(warned, "adopted") != (p.warns != "") || !strings.Contains(warned, p.warns) {
						t.Errorf("%s: warnings %q", when, warned)
					}
					r.WantHost("gpu0", "")
					r.WantHost("gpu1", rig.B)
				}
				if done.Generation.Counter <= gen.Counter || done.Generation.Counter <= r.Gen("gpu1").Counter || done.Generation.Incarnation != gen.Incarnation {
					t.Errorf("generation %s; want one above %s and all others", done.Generation, gen)
				}
				if len(eventsOf(r, "adopt")) != 1 {
					t.Errorf("events %+v", eventsOf(r, "adopt"))
				}
				check("at once")
				_, err = r.E.Adopt(r.Ctx(), "gpu0", a.Token, "test")
				wantClear(t, err, enclosure.CodeNotNeeded)
				quietBesideAudit(t, r, func() { r.Restart() })
				check("after a restart")
				r.PowerCycle()
				check("after a power cycle")
				r.Run()
				time.Sleep(5 * time.Second)
				check("polled")

				// It is the VM's that had it, after a device reset; nobody else's.
				r.W.Server(rig.A).StopVM(rig.VM1)
				_, err = r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM2, Slots: []string{"gpu0"}, Host: rig.B})
				wantClear(t, err, enclosure.CodeHeldForOther)
				resets := r.Verdict("gpu0").Now.Resets
				r.Attach(rig.VM1, rig.B, "gpu0")
				if now := r.Verdict("gpu0"); now.Preserved != plan.No || now.Now.Resets == resets {
					t.Errorf("verdict %+v; want no, and a reset", now)
				}
				r.WantHost("gpu0", rig.B)
			})
		})
	}
}

// A token stands for what was shown: anything that changed since is looked at
// again first.
func TestAdoptStaleToken(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, r *rig.Rig){
		"another engine": func(_ *testing.T, r *rig.Rig) { r.W.Slot("gpu0").SetEngine(ee.EngineID, sim.MAC{2, 9, 9}) },
		"another card":   func(_ *testing.T, r *rig.Rig) { r.W.Slot("gpu0").InsertDevice(device(r, 0xABC)) },
		"no card":        func(_ *testing.T, r *rig.Rig) { r.W.Slot("gpu0").RemoveDevice() },
		"another page": func(_ *testing.T, r *rig.Rig) {
			r.W.Slot("gpu0").SetBlock(ee.Block{Group: 17, From: ee.GroupFree, Generation: ee.Generation{Incarnation: 5, Counter: 5}})
		},
		"another generation": func(t *testing.T, r *rig.Rig) {
			wantCode(t, r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test"), enclosure.CodeUnconfirmed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
				running(t, r)
				r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC)
				r.Restart()
				a, err := r.E.AdoptionOf(r.Ctx(), "gpu0")
				if err != nil {
					t.Fatal(err)
				}
				change(t, r)
				_, err = r.E.Adopt(r.Ctx(), "gpu0", a.Token, "test")
				wantClear(t, err, enclosure.CodeStaleToken, "baton slot adopt gpu0")
				if _, err := adopt(r, "gpu0"); err != nil {
					t.Errorf("looked at again: %v", err)
				}
			})
		})
	}
}

// What no adopting can make the slot's is said, both when looking and when
// adopting, and nothing is written.
func TestAdoptImpossible(t *testing.T) {
	for _, p := range badParts {
		if p.link && p.name == "another engine" || p.name == "another device" {
			continue // those can
		}
		t.Run(p.name, func(t *testing.T) {
			wrongChips(t, 2, func(t *testing.T, r *rig.Rig) {
				running(t, r)
				p.spoil(r)
				before := r.W.Chip("gpu0").Image()
				quiet(t, r, func() {
					_, err := r.E.AdoptionOf(r.Ctx(), "gpu0")
					wantClear(t, err, p.code, append(p.says, "gpu0")...)
					_, err = r.E.Adopt(r.Ctx(), "gpu0", "x", "test")
					wantClear(t, err, p.code, append(p.says, "gpu0")...)
				})
				if !bytes.Equal(r.W.Chip("gpu0").Image(), before) {
					t.Error("the chip's content changed")
				}
			})
		})
	}
}

// An adopted part counts as long as the configuration says what it said then.
func TestAdoptThenConfigured(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		was := mac(r)
		r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC)
		r.Restart()
		if _, err := adopt(r, "gpu0"); err != nil {
			t.Fatal(err)
		}
		problem := func() string { return r.SlotStatus("gpu0").Problem }
		warned := func() bool { return strings.Contains(strings.Join(r.E.Status(r.Ctx()).Warnings, "\n"), "adopted") }
		r.Config.Slots[0].MAC = ee.MAC(newMAC) // corrected
		quietBesideAudit(t, r, func() { r.Restart() })
		if problem() != "" || warned() {
			t.Errorf("corrected: problem %q, warned %v", problem(), warned())
		}
		r.Config.Slots[0].MAC = ee.MAC{2, 7, 7} // says something else again
		quietBesideAudit(t, r, func() { r.Restart() })
		if !strings.Contains(problem(), "configured is 02:07:07") || warned() {
			t.Errorf("other: problem %q, warned %v", problem(), warned())
		}
		r.Config.Slots[0].MAC = ee.MAC(was) // and what it said at the adoption
		quietBesideAudit(t, r, func() { r.Restart() })
		if problem() != "" || !warned() {
			t.Errorf("as before: problem %q, warned %v", problem(), warned())
		}
		r.W.Slot("gpu0").SetEngine(ee.EngineID, was) // the old engine comes back
		quietBesideAudit(t, r, func() { r.Restart() })
		if !strings.Contains(problem(), "adopted is 02:4e:45:57:00:09") {
			t.Errorf("the old engine: problem %q", problem())
		}
		if _, err := adopt(r, "gpu0"); err != nil || problem() != "" || warned() {
			t.Errorf("adopted back: %v, problem %q, warned %v", err, problem(), warned())
		}
	})
}

// A slot that the store knows nothing of and whose page tells nothing is taken
// as it is by adopting it: free.
func TestAdoptUnknown(t *testing.T) {
	damaged := ee.Block{Group: 300, From: ee.GroupFree, Generation: ee.Generation{Incarnation: 7, Counter: 7}}.Encode()
	damaged[30] ^= 1
	for name, page := range map[string][]byte{"blank": image(64, all(0xFF)), "zeros": image(64, all(0)), "foreign": image(64, text), "damaged": damaged} {
		t.Run(name, func(t *testing.T) {
			newSlot(t, func(t *testing.T, r *rig.Rig) {
				r.W.Chip("gpu0").Poke(0, page)
				r.Config.Store.FormatBlank = false
				r.Start(enclosure.Options{SameBoot: true})
				r.Run()
				if s := r.SlotStatus("gpu0"); !strings.Contains(s.Problem, "no config block") {
					t.Fatalf("problem %q", s.Problem)
				}
				wantClear(t, r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test"), enclosure.CodeWrongState, "baton slot adopt gpu0")
				a, err := adopt(r, "gpu0")
				if err != nil {
					t.Fatalf("%+v, %v", a, err)
				}
				s := r.SlotStatus("gpu0")
				if s.Problem != "" || s.Host != "" || s.VM != "" || s.Generation.Counter <= r.Gen("gpu1").Counter {
					t.Errorf("%+v; want free", s)
				}
				quietBesideAudit(t, r, func() { r.Restart() })
				r.Attach(rig.VM1, rig.A, "gpu0")
				r.WantHost("gpu0", rig.A)
			})
		})
	}
}

// Whatever the flag was, parts that are adopted and slots that are forced free
// have no memory of anybody's.
func TestByHandVoidsEveryFlag(t *testing.T) {
	for _, fs := range flagStates {
		for _, held := range []bool{false, true} {
			for _, forced := range []bool{false, true} {
				world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
					fs.do(t, r)
					if held {
						hold(t, r)
					}
					r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC) // the device and its counters are the same
					r.Restart()
					if forced {
						wantCode(t, r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test"), enclosure.CodeUnconfirmed)
						r.W.Slot("gpu0").SetEngine(ee.EngineID, mac(r))
						r.Run()
						time.Sleep(3 * time.Second)
					} else if _, err := adopt(r, "gpu0"); err != nil {
						t.Fatal(err)
					}
					s := r.SlotStatus("gpu0")
					if s.Flag != plan.Void || s.Memory.Preserved != plan.No || s.Held == forced || s.Host != "" || s.Cut != "confirmed" {
						t.Errorf("%s, held %v, forced %v: %+v", fs.name, held, forced, s)
					}
					resets := r.Verdict("gpu0").Now.Resets
					r.Move(rig.VM1, rig.C)
					if v := r.Verdict("gpu0"); v.Preserved != plan.No || v.Now.Resets == resets {
						t.Errorf("%s, held %v, forced %v: verdict %+v; want no, after a reset", fs.name, held, forced, v)
					}
				})
			}
		}
	}
}

// A slot that its VM has released is nobody's when its parts are adopted.
func TestAdoptReleased(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseKeep}); err != nil {
			t.Fatal(err)
		}
		r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC)
		r.Restart()
		if _, err := adopt(r, "gpu0"); err != nil {
			t.Fatal(err)
		}
		if s := r.SlotStatus("gpu0"); s.Held || s.VM != "" || s.Host != "" {
			t.Errorf("%+v; want free", s)
		}
		r.Attach(rig.VM2, rig.B)
		r.WantHost("gpu0", rig.B)
	})
}

// Engines of which nothing can be read but the page are adopted by that alone.
func TestAdoptNVMOnly(t *testing.T) {
	world(t, rig.Options{Profile: "nvm-only"}, func(t *testing.T, r *rig.Rig) {
		r.Attach(rig.VM1, rig.A)
		r.W.Chip("gpu0").SetImage(image(32768, text))
		a, err := adopt(r, "gpu0")
		if err != nil || a.New.Engine != "" {
			t.Fatalf("%+v, %v", a, err)
		}
		time.Sleep(5 * time.Millisecond)
		r.WantHost("gpu0", "")
		if s := r.SlotStatus("gpu0"); s.VM != rig.VM1 || !s.Held {
			t.Errorf("%+v", s)
		}
		r.Attach(rig.VM1, rig.B)
		time.Sleep(5 * time.Millisecond)
		r.WantHost("gpu0", rig.B)
	})
}

// A page that reads differently each time, as a torn one may, is no reason to
// refuse every token.
func TestAdoptTornPage(t *testing.T) {
	newSlot(t, func(t *testing.T, r *rig.Rig) {
		r.W.Chip("gpu0").Poke(0, image(64, text))
		r.W.Chip("gpu0").SetUnstable(8, 40)
		r.Config.Store.FormatBlank = false
		r.Start(enclosure.Options{SameBoot: true})
		a, err := adopt(r, "gpu0")
		if err != nil || !strings.Contains(a.New.Block, "differently") {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

// One slot of a set that nobody was seen to use yet is not taken alone.
func TestAdoptOfSet(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		r.Attach(rig.VM1, rig.A)
		r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC)
		r.Restart()
		quiet(t, r, func() {
			_, err := adopt(r, "gpu0")
			wantClear(t, err, enclosure.CodeWrongState, "gpu1", "baton move resolve --force-free gpu0")
		})
		wantClear(t, r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test"), enclosure.CodeUnconfirmed)
		if _, err := adopt(r, "gpu0"); err != nil {
			t.Error(err)
		}
		r.WantHost("gpu1", rig.A)
		if s := r.SlotStatus("gpu0"); s.Cut != "confirmed" || s.Problem != "" {
			t.Errorf("%+v", s)
		}
	})
}

// A set of one that is blocked is over when its parts are adopted, and its move
// says so, also after a restart.
func TestAdoptBlocked(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		failAtMake(r, 0x60)
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		if err != nil || m.State != enclosure.MoveBlocked {
			t.Fatalf("move = %s, %v", m.State, err)
		}
		r.W.Bus("bus0").ClearFaults()
		r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC)
		if _, err := adopt(r, "gpu0"); err != nil {
			t.Fatal(err)
		}
		for _, when := range []string{"at once", "after a restart"} {
			if now, _ := r.E.MoveByID(m.ID); now.State != enclosure.MoveHeld {
				t.Errorf("%s: move is %s; want held", when, now.State)
			}
			if s := r.SlotStatus("gpu0"); s.Blocked != "" || s.VM != rig.VM1 || !s.Held {
				t.Errorf("%s: %+v", when, s)
			}
			r.Restart()
		}
	})
}

// Where the configuration lets any part be there, a replaced one is taken
// without asking. No VM gets it as what it had.
func TestReplacedWithoutConfigured(t *testing.T) {
	any := func(c *enclosure.Config) { c.Slots[0].Serial, c.Slots[0].MAC = 0, ee.MAC{} }
	for _, fs := range flagStates {
		for _, what := range []string{"card", "engine"} {
			for _, held := range []bool{false, true} {
				for _, polled := range []bool{false, true} {
					world(t, rig.Options{Config: any}, func(t *testing.T, r *rig.Rig) {
						fs.do(t, r)
						if held {
							hold(t, r)
						}
						if polled {
							r.Run()
							time.Sleep(2 * time.Second)
						}
						if what == "card" {
							r.W.Slot("gpu0").InsertDevice(device(r, newSerial))
						} else {
							r.W.Slot("gpu0").Kill()
							r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC)
							r.W.Slot("gpu0").Revive()
							time.Sleep(50 * time.Millisecond)
						}
						r.WantVerdict("gpu0", plan.No)
						if polled {
							time.Sleep(3 * time.Second)
							r.WantVerdict("gpu0", plan.No)
							if s := r.SlotStatus("gpu0"); fs.name != "none, never used" && s.Flag != plan.Void {
								t.Errorf("%s, %s, held %v: flag %s; want void", fs.name, what, held, s.Flag)
							}
						}
						quietBesideAudit(t, r, func() {
							_, err := adopt(r, "gpu0")
							wantClear(t, err, enclosure.CodeNotNeeded)
						})
						r.Restart()
						r.WantVerdict("gpu0", plan.No)
						host := r.SlotStatus("gpu0").Host
						resets := r.Verdict("gpu0").Now.Resets
						r.Move(rig.VM1, rig.C)
						if v := r.Verdict("gpu0"); v.Preserved != plan.No || v.Now.Resets == resets {
							t.Errorf("%s, %s, held %v: from %q: verdict %+v; want no, after a reset (count was %d)", fs.name, what, held, host, v, resets)
						}
					})
				}
			}
		}
	}
}
