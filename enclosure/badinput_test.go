package enclosure_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/nvm"
	"baton/sim"
	"baton/test/rig"
)

// Bad input of each kind: one clear error with a code, nothing written, nothing
// lost, the agent still serving.

// wantClear fails the test unless err is a refusal of that code that says what to
// do next, and names all of says.
func wantClear(t *testing.T, err error, code enclosure.Code, says ...string) {
	t.Helper()
	var known *enclosure.Error
	if !errors.As(err, &known) {
		t.Errorf("error %v is no *enclosure.Error; want %s", err, code)
		return
	}
	if known.Code != code {
		t.Errorf("code %q (%v); want %q", known.Code, err, code)
	}
	if known.Next == "" || known.State == "" {
		t.Errorf("%v: state %q, next %q: it does not say how things are and what to do", err, known.State, known.Next)
	}
	text := known.Error() + " " + known.Next
	if strings.Contains(text, "\n") {
		t.Errorf("%q is not one line", text)
	}
	for _, want := range says {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not name %q", text, want)
		}
	}
}

// serving fails the test unless the agent answers and moves other slots.
func serving(t *testing.T, r *rig.Rig, slots ...string) {
	t.Helper()
	if st := r.E.Status(r.Ctx()); len(st.Slots) != len(r.Config.Slots) || len(st.Hosts) != len(r.Config.Hosts) || !st.Store.OK {
		t.Errorf("status lists %d slots and %d hosts, store %+v", len(st.Slots), len(st.Hosts), st.Store)
	}
	for _, s := range slots {
		r.Move(rig.VM1, rig.B, s)
		r.WantHost(s, rig.B)
	}
}

func TestBadRequests(t *testing.T) {
	seconds := func(n int) time.Duration { return time.Duration(n) * time.Second }
	type request struct {
		name string
		do   func(r *rig.Rig) error
		code enclosure.Code
		says []string
	}
	move := func(change func(r *rig.Rig, q *enclosure.MoveRequest)) func(r *rig.Rig) error {
		return func(r *rig.Rig) error {
			q := r.Request(rig.VM1, rig.B)
			q.Slots = []string{"gpu0"}
			change(r, &q)
			m, err := r.E.Move(r.Ctx(), q)
			if err != nil && m.State != "" {
				return errors.New("a refused move has a state")
			}
			return err
		}
	}
	attach := func(q enclosure.AttachRequest) func(r *rig.Rig) error {
		return func(r *rig.Rig) error { _, err := r.E.Attach(r.Ctx(), q); return err }
	}
	stale := ee.Generation{Incarnation: 1, Counter: 1}
	requests := []request{
		{"move: no ID", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.ID = ee.UUID{} }), enclosure.CodeBadRequest, []string{"ID"}},
		{"move: unknown VM", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.VM = "train9" }), enclosure.CodeUnknownVM, []string{`"train9"`}},
		{"move: no VM", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.VM = "" }), enclosure.CodeUnknownVM, []string{`""`}},
		{"move: unknown slot", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.Slots = []string{"gpu9"} }), enclosure.CodeUnknownSlot, []string{`"gpu9"`}},
		{"move: one of two slots unknown", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.Slots = []string{"gpu0", "gpu9"} }), enclosure.CodeUnknownSlot, []string{`"gpu9"`}},
		{"move: unknown host", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.To = "server9" }), enclosure.CodeUnknownHost, []string{`"server9"`}},
		{"move: no host", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.To = "" }), enclosure.CodeUnknownHost, []string{`""`}},
		{"move: host not allowed", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.To = rig.C }), enclosure.CodeNotAllowed, []string{rig.VM1, rig.C, rig.A, rig.B}},
		{"move: slot of another VM", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.Slots = []string{"gpu3"} }), enclosure.CodeSlotNotVM, []string{"gpu3", rig.VM1}},
		{"move: slot named twice", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.Slots = []string{"gpu0", "gpu1", "gpu0"} }), enclosure.CodeBadRequest, []string{"gpu0", "twice"}},
		{"move: set with two hosts", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.Slots = nil }), enclosure.CodeSplitSet, []string{"101", "102"}},
		{"move: wait below 0", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.Wait = -1 }), enclosure.CodeBadRequest, []string{"2m0s"}},
		{"move: wait too long", move(func(_ *rig.Rig, q *enclosure.MoveRequest) { q.Wait = enclosure.MaxWait + 1 }), enclosure.CodeBadRequest, []string{"2m0s"}},
		{"move: another counter", move(func(r *rig.Rig, q *enclosure.MoveRequest) {
			g := r.Gen("gpu0")
			g.Counter--
			q.Expect = map[string]ee.Generation{"gpu0": g}
		}), enclosure.CodeGenerationChanged, []string{"gpu0"}},
		{"move: another incarnation", move(func(r *rig.Rig, q *enclosure.MoveRequest) {
			g := r.Gen("gpu0")
			g.Incarnation++
			q.Expect = map[string]ee.Generation{"gpu0": g}
		}), enclosure.CodeGenerationChanged, []string{"gpu0"}},
		{"move: generation of a slot that is not in the set", move(func(r *rig.Rig, q *enclosure.MoveRequest) {
			q.Expect = map[string]ee.Generation{"gpu1": r.Gen("gpu1")}
		}), enclosure.CodeBadRequest, []string{"gpu1"}},
		{"move: generation of an unknown slot", move(func(_ *rig.Rig, q *enclosure.MoveRequest) {
			q.Expect = map[string]ee.Generation{"gpu9": stale}
		}), enclosure.CodeUnknownSlot, []string{`"gpu9"`}},
		{"move: ID known with another target", move(func(r *rig.Rig, q *enclosure.MoveRequest) {
			q.ID, q.To, q.Slots = rig.UUID(77), rig.A, []string{"gpu2"}
		}), enclosure.CodeMoveIDReused, []string{rig.UUID(77).String()}},
		{"move: ID known with other slots", move(func(r *rig.Rig, q *enclosure.MoveRequest) { q.ID = rig.UUID(77) }), enclosure.CodeMoveIDReused, []string{rig.UUID(77).String()}},
		{"move: ID known with another VM", move(func(r *rig.Rig, q *enclosure.MoveRequest) {
			q.ID, q.VM, q.Slots = rig.UUID(77), rig.VM2, []string{"gpu2"}
		}), enclosure.CodeMoveIDReused, []string{rig.UUID(77).String()}},
		{"move: ID known, but not preserved", move(func(r *rig.Rig, q *enclosure.MoveRequest) {
			q.ID, q.Slots, q.Preserve = rig.UUID(77), []string{"gpu2"}, false
		}), enclosure.CodeMoveIDReused, []string{rig.UUID(77).String()}},
		{"attach: unknown VM", attach(enclosure.AttachRequest{VM: "train9", Host: rig.A}), enclosure.CodeUnknownVM, []string{`"train9"`}},
		{"attach: unknown host", attach(enclosure.AttachRequest{VM: rig.VM1, Host: "server9"}), enclosure.CodeUnknownHost, []string{`"server9"`}},
		{"attach: unknown slot", attach(enclosure.AttachRequest{VM: rig.VM1, Host: rig.A, Slots: []string{"gpu9"}}), enclosure.CodeUnknownSlot, []string{`"gpu9"`}},
		{"attach: host not allowed", attach(enclosure.AttachRequest{VM: rig.VM1, Host: rig.C}), enclosure.CodeNotAllowed, []string{rig.C}},
		{"attach: slot of another VM", attach(enclosure.AttachRequest{VM: rig.VM1, Host: rig.A, Slots: []string{"gpu3"}}), enclosure.CodeSlotNotVM, []string{"gpu3"}},
		{"attach: slot named twice", attach(enclosure.AttachRequest{VM: rig.VM1, Host: rig.A, Slots: []string{"gpu0", "gpu0"}}), enclosure.CodeBadRequest, []string{"twice"}},
		{"attach: set with two hosts", attach(enclosure.AttachRequest{VM: rig.VM1, Host: rig.A}), enclosure.CodeSplitSet, []string{"101", "102"}},
		{"attach: slot in use", attach(enclosure.AttachRequest{VM: rig.VM2, Host: rig.A, Slots: []string{"gpu0"}}), enclosure.CodeInUse, []string{"gpu0", rig.VM1}},
		{"attach: wait too long", attach(enclosure.AttachRequest{VM: rig.VM1, Host: rig.A, Wait: seconds(121)}), enclosure.CodeBadRequest, []string{"2m0s"}},
		{"release: unknown mode", func(r *rig.Rig) error {
			return r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Slots: []string{"gpu0"}, Mode: "forget"})
		}, enclosure.CodeBadRequest, []string{`"forget"`, "keep"}},
		{"release: unknown VM", func(r *rig.Rig) error {
			return r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: "train9", Mode: enclosure.ReleaseFree})
		}, enclosure.CodeUnknownVM, []string{`"train9"`}},
		{"release: slot of another VM", func(r *rig.Rig) error {
			return r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM2, Slots: []string{"gpu0"}, Mode: enclosure.ReleaseFree})
		}, enclosure.CodeWrongState, []string{"gpu0", rig.VM2}},
		{"release: another generation", func(r *rig.Rig) error {
			return r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Slots: []string{"gpu0"}, Expect: map[string]ee.Generation{"gpu0": stale}, Mode: enclosure.ReleaseFree})
		}, enclosure.CodeGenerationChanged, []string{"gpu0"}},
		{"fence: unknown host", func(r *rig.Rig) error { _, err := r.E.Fence(r.Ctx(), "server9", "test"); return err }, enclosure.CodeUnknownHost, []string{`"server9"`}},
		{"unfence: unknown host", func(r *rig.Rig) error { return r.E.Unfence(r.Ctx(), "server9", 0, "test") }, enclosure.CodeUnknownHost, []string{`"server9"`}},
		{"unfence: another fence", func(r *rig.Rig) error { return r.E.Unfence(r.Ctx(), rig.A, 7, "test") }, enclosure.CodeStaleUnfence, []string{rig.A}},
		{"verdict: unknown slot", func(r *rig.Rig) error { _, err := r.E.Verdict(r.Ctx(), "gpu9"); return err }, enclosure.CodeUnknownSlot, []string{`"gpu9"`}},
		{"arm: unknown slot", func(r *rig.Rig) error {
			_, err := r.E.Arm(r.Ctx(), enclosure.ArmRequest{Slot: "gpu9"})
			return err
		}, enclosure.CodeUnknownSlot, []string{`"gpu9"`}},
		{"arm: another generation", func(r *rig.Rig) error {
			_, err := r.E.Arm(r.Ctx(), enclosure.ArmRequest{Slot: "gpu0", ID: rig.UUID(5), Gen: stale})
			return err
		}, enclosure.CodeGenerationChanged, []string{"gpu0"}},
		{"disarm: unknown slot", func(r *rig.Rig) error { return r.E.Disarm(r.Ctx(), "gpu9", ee.UUID{}, "test") }, enclosure.CodeUnknownSlot, []string{`"gpu9"`}},
		{"disarm: not armed", func(r *rig.Rig) error { return r.E.Disarm(r.Ctx(), "gpu0", rig.UUID(5), "test") }, enclosure.CodeWrongState, []string{"gpu0"}},
		{"ack: unknown slot", func(r *rig.Rig) error {
			return r.E.Ack(r.Ctx(), enclosure.AckRequest{Slot: "gpu9"})
		}, enclosure.CodeUnknownSlot, []string{`"gpu9"`}},
		{"ack: another generation", func(r *rig.Rig) error {
			return r.E.Ack(r.Ctx(), enclosure.AckRequest{Slot: "gpu0", Gen: stale, Nonce: r.Nonce(rig.VM1)})
		}, enclosure.CodeGenerationChanged, []string{"gpu0"}},
		{"ack: another start", func(r *rig.Rig) error {
			return r.E.Ack(r.Ctx(), enclosure.AckRequest{Slot: "gpu0", Gen: r.Gen("gpu0"), Nonce: rig.UUID(9)})
		}, enclosure.CodeStaleNonce, []string{"gpu0"}},
		{"alive: unknown slot", func(r *rig.Rig) error {
			return r.E.Alive(r.Ctx(), enclosure.AliveRequest{Slot: "gpu9"})
		}, enclosure.CodeUnknownSlot, []string{`"gpu9"`}},
		{"alive: another generation", func(r *rig.Rig) error {
			return r.E.Alive(r.Ctx(), enclosure.AliveRequest{Slot: "gpu0", Gen: stale})
		}, enclosure.CodeGenerationChanged, []string{"gpu0"}},
		{"alive: other values", func(r *rig.Rig) error {
			v := r.Verdict("gpu0").Now
			v.Resets++
			return r.E.Alive(r.Ctx(), enclosure.AliveRequest{Slot: "gpu0", Gen: r.Gen("gpu0"), Seen: v})
		}, enclosure.CodeValuesDiffer, []string{"gpu0", "bus0/0x60"}},
	}
	options := rig.Options{Slots: 4, Config: func(c *enclosure.Config) {
		c.VMs[0].Hosts, c.VMs[0].Slots = []string{rig.A, rig.B}, []string{"gpu0", "gpu1", "gpu2"}
	}}
	for _, tc := range requests {
		t.Run(tc.name, func(t *testing.T) {
			world(t, options, func(t *testing.T, r *rig.Rig) {
				running(t, r, "gpu0", "gpu1")
				q := r.Request(rig.VM1, rig.B)
				q.ID, q.Slots = rig.UUID(77), []string{"gpu2"}
				if m, err := r.E.Move(r.Ctx(), q); err != nil || m.State != enclosure.MoveDone {
					t.Fatalf("move = %s, %v", m.State, err)
				}
				gen, flag := r.Gen("gpu0"), r.SlotStatus("gpu0").Flag
				told := len(eventsOf(r, "refused"))
				var err error
				quiet(t, r, func() { err = tc.do(r) })
				wantClear(t, err, tc.code, tc.says...)
				var known *enclosure.Error
				if errors.As(err, &known) && known.Code == enclosure.CodeGenerationChanged && known.Current != gen {
					t.Errorf("the current generation is given as %s; want %s", known.Current, gen)
				}
				if r.Gen("gpu0") != gen || r.SlotStatus("gpu0").Flag != flag {
					t.Error("generation or flag changed")
				}
				if now := eventsOf(r, "refused"); !strings.HasPrefix(tc.name, "verdict") && (len(now) != told+1 || now[told].Code != string(tc.code)) {
					t.Errorf("%d refusals were told of, the last with code %q; want %d with %q", len(now), now[len(now)-1].Code, told+1, tc.code)
				}
				r.WantHost("gpu0", rig.A)
				r.WantHost("gpu1", rig.A)
				r.WantHost("gpu2", rig.B)
				serving(t, r, "gpu0", "gpu1")
			})
		})
	}
}

// A repeat of what was refused is tried anew: the refusal had no effect.
func TestBadRequestThenGood(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		q := r.Request(rig.VM1, rig.B)
		q.Expect = map[string]ee.Generation{"gpu0": {Counter: 1}}
		_, err := r.E.Move(r.Ctx(), q)
		wantClear(t, err, enclosure.CodeGenerationChanged, "gpu0")
		q.Expect["gpu0"] = r.Gen("gpu0")
		if m, err := r.E.Move(r.Ctx(), q); err != nil || m.State != enclosure.MoveDone {
			t.Errorf("move = %s, %v; want done under the same ID", m.State, err)
		}
	})
}

// image is a chip's content by a rule.
func image(size int, f func(i int) byte) []byte {
	p := make([]byte, size)
	for i := range p {
		p[i] = f(i)
	}
	return p
}

func all(v byte) func(int) byte { return func(int) byte { return v } }

func random(seed uint64) func(int) byte {
	r := rand.New(rand.NewPCG(seed, 1))
	return func(int) byte { return byte(r.Uint32()) }
}

// text is what another project may have in its EEPROM.
func text(i int) byte {
	const s = "U-Boot env: bootcmd=run distro_bootcmd; serial#=SN0042; "
	return s[i%len(s)] ^ byte(i>>8)
}

// TestBadStore: an agent whose store can not be used writes nothing anywhere,
// keeps what is linked, says what is wrong and refuses all changes.
func TestBadStore(t *testing.T) {
	const size = 32 * 1024
	for _, tc := range []struct {
		name   string
		spoil  func(t *testing.T, r *rig.Rig)
		format bool
		says   []string
	}{
		{"all ones, not to be formatted", func(_ *testing.T, r *rig.Rig) { r.W.Chip("store").SetImage(image(size, all(0xFF))) }, false, []string{"blank"}},
		{"all zero", func(_ *testing.T, r *rig.Rig) { r.W.Chip("store").SetImage(image(size, all(0))) }, true, []string{"foreign"}},
		{"of another project", func(_ *testing.T, r *rig.Rig) { r.W.Chip("store").SetImage(image(size, text)) }, true, []string{"foreign"}},
		{"random", func(_ *testing.T, r *rig.Rig) { r.W.Chip("store").SetImage(image(size, random(1))) }, true, []string{"foreign"}},
		{"one byte in an erased chip", func(_ *testing.T, r *rig.Rig) {
			r.W.Chip("store").SetImage(image(size, all(0xFF)))
			r.W.Chip("store").Poke(20000, []byte{0x42})
		}, true, []string{"foreign"}},
		{"half formatted", func(t *testing.T, r *rig.Rig) { r.W.Chip("store").SetImage(halfFormatted(t)) }, true, []string{"half formatted"}},
		{"chip of half the size", func(_ *testing.T, r *rig.Rig) {
			r.W.Chip("store").Replace("24c128", image(size/2, text))
		}, true, []string{"16384"}},
		{"chip of twice the size", func(_ *testing.T, r *rig.Rig) {
			r.W.Chip("store").Replace("24c512", image(2*size, random(2)))
		}, true, []string{"65536"}},
		{"chip with one address byte", func(_ *testing.T, r *rig.Rig) {
			r.W.Chip("store").Replace("24c16", image(2048, text))
		}, true, []string{"1 address byte"}},
		{"no chip", func(_ *testing.T, r *rig.Rig) { r.W.Chip("store").SetDead(true) }, true, []string{"no chip answers"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wrongChips(t, 2, func(t *testing.T, r *rig.Rig) {
				running(t, r)
				arrived := r.Nonce(rig.VM1)
				r.Stop()
				tc.spoil(t, r)
				r.Config.Store.FormatBlank = tc.format
				before := r.W.Chip("store").Image()
				quiet(t, r, func() {
					r.Start(enclosure.Options{})
					r.Run()
					time.Sleep(5 * time.Second)
					st := r.E.Status(r.Ctx())
					if st.Store.OK || len(st.Slots) != 2 || len(st.Hosts) != 3 {
						t.Errorf("status = store %+v, %d slots, %d hosts", st.Store, len(st.Slots), len(st.Hosts))
					}
					for _, want := range append(tc.says, "bus0/0x48", "nothing was written") {
						if !strings.Contains(st.Store.Problem, want) {
							t.Errorf("the store's problem %q does not name %q", st.Store.Problem, want)
						}
					}
					told := 0
					for _, e := range eventsOf(r, "store") {
						if e.Code == string(enclosure.CodeStore) {
							told++
						}
					}
					if told != 1 {
						t.Errorf("the store's problem was told of %d times", told)
					}
					for name, err := range everyChange(r, arrived) {
						wantClear(t, err, enclosure.CodeStore, "bus0/0x48")
						if rig.Code(err) != enclosure.CodeStore {
							t.Errorf("by %s", name)
						}
					}
					if _, err := r.E.Verdict(r.Ctx(), "gpu0"); err != nil {
						t.Errorf("verdict: %v", err)
					}
				})
				if !bytes.Equal(r.W.Chip("store").Image(), before) {
					t.Error("the chip's content changed")
				}
				for _, n := range []string{"gpu0", "gpu1"} { // whoever has it goes on with it
					if !r.W.Server(rig.A).Reach(n) {
						t.Errorf("A lost %s", n)
					}
				}
			})
		})
	}
}

// wrongChips is world with chips that may be replaced by ones with one address
// byte. To such a one the second byte of an address is data, which a repeated
// start throws away: the model tells of that, and that nothing was written.
func wrongChips(t *testing.T, slots int, f func(t *testing.T, r *rig.Rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, rig.Options{Slots: slots, Sim: chipsApart})
		defer r.Stop()
		f(t, r)
		for _, v := range r.W.Violations() {
			if !strings.HasPrefix(v.What, "repeated START in a page write") {
				t.Errorf("%v: %s: %s", v.At, v.Name, v.What)
			}
		}
		for _, s := range r.W.Spec().Slots {
			if n := r.W.MaxOwners(s.Name); n > 1 {
				t.Errorf("%s: %d servers could reach the device at the same instant", s.Name, n)
			}
		}
	})
}

// chipsApart leaves room for chips with several addresses.
func chipsApart(s *sim.Spec) {
	for i := range s.Chips {
		switch s.Chips[i].Name {
		case "store":
			s.Chips[i].Addr = 0x48
		case "gpu0":
			s.Chips[i].Addr = 0x50
		}
	}
}

// everyChange asks for one of each.
func everyChange(r *rig.Rig, nonce ee.UUID) map[string]error {
	errs := map[string]error{}
	ctx := r.Ctx()
	_, errs["move"] = r.E.Move(ctx, r.Request(rig.VM1, rig.B))
	_, errs["attach"] = r.E.Attach(ctx, enclosure.AttachRequest{VM: rig.VM1, Host: rig.A})
	_, errs["arm"] = r.E.Arm(ctx, enclosure.ArmRequest{Slot: "gpu0", ID: rig.UUID(9)})
	errs["disarm"] = r.E.Disarm(ctx, "gpu0", rig.UUID(9), "test")
	errs["ack"] = r.E.Ack(ctx, enclosure.AckRequest{Slot: "gpu0", Nonce: nonce})
	errs["alive"] = r.E.Alive(ctx, enclosure.AliveRequest{Slot: "gpu0"})
	errs["release"] = r.E.Release(ctx, enclosure.ReleaseRequest{VM: rig.VM1, Slots: []string{"gpu0"}, Mode: enclosure.ReleaseFree})
	_, errs["fence"] = r.E.Fence(ctx, rig.A, "test")
	errs["unfence"] = r.E.Unfence(ctx, rig.A, 0, "test")
	return errs
}

// halfFormatted is a chip whose power went in the middle of a format.
func halfFormatted(t *testing.T) []byte {
	t.Helper()
	for n := uint64(1); n < 1000; n++ {
		w := sim.New(sim.Spec{})
		w.SetTear(sim.Tear{Kind: sim.TearOld})
		w.CutAt(n)
		m := nvm.NewEEPROM(w.Bus("bus0"), 0x57, nvm.Parts["24c256"])
		_, err := nvm.Format(context.Background(), m, 1, nvm.Options{})
		w.PowerOn()
		m = nvm.NewEEPROM(w.Bus("bus0"), 0x57, nvm.Parts["24c256"])
		if _, report, _ := nvm.Mount(context.Background(), m, nvm.Options{}); err != nil && report.State == nvm.HalfFormatted {
			return w.Chip("store").Image()
		}
	}
	t.Fatal("no cut leaves a half formatted chip")
	return nil
}

// part is something wrong with one slot's hardware. It is at gpu0, whose engine
// is at 0x60 and whose chip at 0x50; the others go on.
type part struct {
	name  string
	spoil func(r *rig.Rig)
	mend  func(r *rig.Rig)
	code  enclosure.Code // at a start
	says  []string
	asked enclosure.Code // of a move under a running agent that has not noticed yet
	link  bool           // it leaves the link alone
}

var badParts = []part{
	{"another engine ID", func(r *rig.Rig) { r.W.Slot("gpu0").SetEngine(0x31494546, mac(r)) }, func(r *rig.Rig) { r.W.Slot("gpu0").SetEngine(ee.EngineID, mac(r)) },
		enclosure.CodeIdentity, []string{"bus0/0x60", "0x31494546", "0x31494545"}, enclosure.CodeIdentity, true},
	{"another engine", func(r *rig.Rig) { r.W.Slot("gpu0").SetEngine(ee.EngineID, sim.MAC{2, 0xBA, 0xD}) }, func(r *rig.Rig) { r.W.Slot("gpu0").SetEngine(ee.EngineID, mac(r)) },
		enclosure.CodeIdentity, []string{"bus0/0x60", "02:ba:0d:00:00:00", "02:45:45:00:00:01"}, enclosure.CodeIdentity, true},
	{"another device", func(r *rig.Rig) { r.W.Slot("gpu0").InsertDevice(device(r, 0xBAD)) }, func(r *rig.Rig) { r.W.Slot("gpu0").InsertDevice(device(r, 0)) },
		enclosure.CodeIdentity, []string{"bus0/0x60", "0000000000000bad", "ba70000000000001"}, enclosure.CodeIdentity, true},
	{"no engine", func(r *rig.Rig) { r.W.Slot("gpu0").Kill() }, func(r *rig.Rig) { r.W.Slot("gpu0").Revive() },
		enclosure.CodeHardware, []string{"bus0/0x60"}, enclosure.CodeHardware, false},
	{"no chip", func(r *rig.Rig) { r.W.Chip("gpu0").SetDead(true) }, func(r *rig.Rig) { r.W.Chip("gpu0").SetDead(false) },
		enclosure.CodeHardware, []string{"bus0/0x50"}, enclosure.CodeHardware, true},
	{"chip with one address byte", func(r *rig.Rig) { swap(r, "24c16", 2048, text) }, unswap,
		enclosure.CodeIdentity, []string{"bus0/0x50", "1 address byte"}, enclosure.CodeHardware, true},
	{"chip of half the size", func(r *rig.Rig) { swap(r, "24c128", 16384, text) }, unswap,
		enclosure.CodeIdentity, []string{"bus0/0x50", "16384"}, enclosure.CodeHardware, true},
	{"chip of twice the size", func(r *rig.Rig) { swap(r, "24c512", 65536, random(3)) }, unswap,
		enclosure.CodeIdentity, []string{"bus0/0x50", "65536"}, enclosure.CodeHardware, true},
}

func mac(r *rig.Rig) sim.MAC { return r.W.Spec().Slots[0].MAC }

func device(r *rig.Rig, serial uint64) sim.Device {
	s := r.W.Spec().Slots[0]
	if serial == 0 {
		serial = s.Serial
	}
	return sim.Device{Vendor: s.Vendor, Device: s.Device, Class: s.Class, Serial: serial}
}

// kept is the right chip while another is in its place.
var kept []byte

func swap(r *rig.Rig, part string, size int, f func(int) byte) {
	kept = r.W.Chip("gpu0").Image()
	r.W.Chip("gpu0").Replace(part, image(size, f))
}

func unswap(r *rig.Rig) { r.W.Chip("gpu0").Replace("24c256", kept) }

// slotFault fails the test unless gpu0's problem is clear.
func slotFault(t *testing.T, r *rig.Rig, p part) {
	t.Helper()
	s := r.SlotStatus("gpu0")
	for _, want := range append(p.says, "gpu0", "nothing was written") {
		if !strings.Contains(s.Problem, want) {
			t.Errorf("problem %q does not name %q", s.Problem, want)
		}
	}
	faults := 0
	for _, e := range eventsOf(r, "fault") {
		if e.Slot == "gpu0" && e.Code == string(p.code) {
			faults++
		}
	}
	if faults != 1 {
		t.Errorf("the fault was told of %d times; want once", faults)
	}
}

// TestBadPartAtStart: an agent starts and finds another part than configured.
func TestBadPartAtStart(t *testing.T) {
	for _, p := range badParts {
		t.Run(p.name, func(t *testing.T) {
			wrongChips(t, 3, func(t *testing.T, r *rig.Rig) {
				running(t, r)
				gen := r.Gen("gpu0")
				r.Stop()
				p.spoil(r)
				before := r.W.Chip("gpu0").Image()
				quiet(t, r, func() {
					r.Start(enclosure.Options{SameBoot: true})
					r.Run()
					time.Sleep(5 * time.Second)
					slotFault(t, r, p)
					q := r.Request(rig.VM1, rig.B)
					q.Slots = []string{"gpu0"}
					_, err := r.E.Move(r.Ctx(), q)
					wantClear(t, err, p.code, append(p.says, "gpu0")...)
					_, err = r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)) // all of them: none is moved
					wantClear(t, err, p.code, append(p.says, "gpu0")...)
				})
				if !bytes.Equal(r.W.Chip("gpu0").Image(), before) {
					t.Error("the chip's content changed")
				}
				if p.link != r.W.Server(rig.A).Reach("gpu0") {
					t.Errorf("A reaches the device: %v", !p.link)
				}
				serving(t, r, "gpu1", "gpu2")
				mended(t, r, p, gen)
			})
		})
	}
}

// TestBadPartAtRun: a part is replaced under a running agent, and asked for
// before the agent has looked by itself.
func TestBadPartAtRun(t *testing.T) {
	for _, p := range badParts {
		t.Run(p.name, func(t *testing.T) {
			wrongChips(t, 3, func(t *testing.T, r *rig.Rig) {
				running(t, r)
				p.spoil(r)
				chip := r.W.PageWrites("gpu0")
				regs := r.W.Slot("gpu0").RegisterWrites()
				_, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
				wantClear(t, err, p.asked, "gpu0", "bus0/0x")
				if r.W.PageWrites("gpu0") != chip || r.W.Slot("gpu0").RegisterWrites() != regs {
					t.Error("the wrong part was written to")
				}
				r.WantHost("gpu1", rig.A)
				r.WantHost("gpu2", rig.A)
				serving(t, r, "gpu1", "gpu2")
				gen := r.Gen("gpu0")
				r.Run()
				time.Sleep(5 * time.Second)
				mended(t, r, p, gen)
			})
		})
	}
}

// mended puts the right part back under a running poller, and the slot comes
// back by itself, under the generation it had.
func mended(t *testing.T, r *rig.Rig, p part, gen ee.Generation) {
	t.Helper()
	p.mend(r)
	time.Sleep(5 * time.Second)
	s := r.SlotStatus("gpu0")
	if s.Problem != "" || s.Blocked != "" {
		t.Errorf("mended: problem %q, blocked %q", s.Problem, s.Blocked)
	}
	if s.Generation != gen {
		t.Errorf("mended: generation %s; want %s as before", s.Generation, gen)
	}
	r.WantHost("gpu0", rig.A)
	r.Move(rig.VM1, rig.B, "gpu0")
	r.WantHost("gpu0", rig.B)
}

// TestBadBlock: a new slot whose chip holds no config block of ours. What is
// not blank is never overwritten; what is blank only if that is allowed.
func TestBadBlock(t *testing.T) {
	const size = 32 * 1024
	other := ee.Block{Group: 300, From: ee.GroupFree, Generation: ee.Generation{Incarnation: 7, Counter: 7}}
	damaged := other.Encode()
	damaged[30] ^= 1
	for _, tc := range []struct {
		name   string
		page   []byte // the first bytes of the chip
		rest   func(int) byte
		format bool
		says   []string
	}{
		{"blank, not to be written", nil, all(0xFF), false, []string{"blank"}},
		{"all zero", nil, all(0), true, []string{"magic"}},
		{"of another project", nil, text, true, []string{"magic"}},
		{"random", nil, random(4), true, []string{"magic"}},
		{"a damaged block", damaged, all(0xFF), true, []string{"damaged"}},
		{"a block of another layout", blockWith(other, 4, 9), all(0xFF), true, []string{"layout"}},
		{"a block with a group out of range", blockWith(other, 7, 0x10), all(0xFF), true, []string{"group"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			newSlot(t, func(t *testing.T, r *rig.Rig) {
				img := image(size, tc.rest)
				copy(img, tc.page)
				r.W.Chip("gpu0").Replace("24c256", img)
				r.Config.Store.FormatBlank = tc.format
				r.Start(enclosure.Options{SameBoot: true})
				quiet(t, r, func() {
					r.Restart() // the first start gave the slot its number
					r.Run()
					time.Sleep(5 * time.Second)
					p := part{code: enclosure.CodeUnassignable, says: append(tc.says, "bus0/0x50")}
					slotFault(t, r, p)
					_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.A, Slots: []string{"gpu0"}})
					wantClear(t, err, enclosure.CodeUnassignable, append(tc.says, "gpu0", "bus0/0x50", "baton slot adopt gpu0")...)
				})
				if !bytes.Equal(r.W.Chip("gpu0").Image(), img) {
					t.Error("the chip's content changed")
				}
				serving(t, r, "gpu1")
			})
		})
	}
	t.Run("blank, to be written", func(t *testing.T) {
		newSlot(t, func(t *testing.T, r *rig.Rig) {
			r.Start(enclosure.Options{SameBoot: true})
			if s := r.SlotStatus("gpu0"); s.Problem != "" || s.Host != "" || s.Held {
				t.Errorf("slot is %+v; want free", s)
			}
			r.Attach(rig.VM1, rig.A, "gpu0")
			r.WantHost("gpu0", rig.A)
		})
	})
	t.Run("of another enclosure", func(t *testing.T) {
		newSlot(t, func(t *testing.T, r *rig.Rig) {
			r.W.Slot("gpu0").SetBlock(other)
			r.Start(enclosure.Options{SameBoot: true})
			if s := r.SlotStatus("gpu0"); s.Problem != "" || s.Host != "" {
				t.Errorf("slot is %+v; want cut, nobody's owner guessed", s)
			}
			r.WantHost("gpu0", "")
			serving(t, r, "gpu1")
		})
	})
}

// newSlot runs f with a rig whose agent is stopped, and has not known gpu0 yet;
// gpu1 is in use.
func newSlot(t *testing.T, f func(t *testing.T, r *rig.Rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var all []enclosure.SlotConfig
		r := rig.New(t, rig.Options{Slots: 2, Sim: chipsApart, Config: func(c *enclosure.Config) {
			all = c.Slots
			c.Slots = c.Slots[1:]
		}})
		defer r.Stop()
		running(t, r, "gpu1")
		r.Stop()
		r.Config.Slots = all
		f(t, r)
		r.Check()
	})
}

// blockWith is b's page with one byte changed, and the right CRC.
func blockWith(b ee.Block, at int, v byte) []byte {
	p := b.Encode()
	p[at] = v
	binary.LittleEndian.PutUint32(p[ee.DigestOffset:], 0)
	binary.LittleEndian.PutUint32(p[ee.DigestOffset:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}
