package busfaults

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"
)

// Every bit of every page that holds anything, of the store and of the config
// blocks, is inverted, and a new agent started, after a power cut and without
// one. gpu0 is with A and its memory is as it was; gpu1 is with A and its device
// was reset; gpu2 is held for VM2, whose host B is fenced. Whatever the agent
// makes of the damage, by these it is judged:
//
//   - nobody but A ever reaches gpu0 or gpu1, nobody gpu2, and no slot has another
//     host or VM by the agent's word than it had, or none
//   - no generation goes back
//   - gpu1's verdict is never yes, and gpu2's only where nothing of it is lost
//   - B stays fenced
//   - what was lost or mended is said
func TestEveryBit(t *testing.T) {
	outcomes := map[string]int{}
	flips := 0
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, rig.Options{Slots: 3, Policy: plan.OnMove, Sim: func(s *sim.Spec) { s.Chips[0].Part = "24c64" }})
		r.StartVM(rig.VM1, rig.A, "gpu0", "gpu1")
		r.StartVM(rig.VM2, rig.B, "gpu2")
		for slot, vm := range map[string][2]string{"gpu0": {rig.VM1, rig.A}, "gpu1": {rig.VM1, rig.A}, "gpu2": {rig.VM2, rig.B}} {
			if err := r.Alive(vm[0], vm[1], slot); err != nil {
				t.Fatal(err)
			}
		}
		r.Fence(rig.B)
		since := r.W.Now()
		if err := r.E.Reset(r.Ctx(), enclosure.ResetRequest{Slot: "gpu1", Gen: r.Gen("gpu1"), By: "test"}); err != nil {
			t.Fatal(err)
		}
		before := map[string]enclosure.SlotStatus{}
		for _, s := range r.E.Status(r.Ctx()).Slots {
			before[s.Name] = s
		}
		want := map[string]plan.Answer{"gpu0": plan.Yes, "gpu1": plan.No, "gpu2": plan.Yes}
		for n, a := range want {
			r.WantVerdict(n, a)
		}
		r.Stop()
		snap := r.W.Snapshot()

		for _, chip := range []string{"store", "gpu0", "gpu1", "gpu2"} {
			img := r.W.Chip(chip).Image()
			for page := 0; page < len(img); page += 64 {
				if !slices.ContainsFunc(img[page:page+64], func(b byte) bool { return b != 0xFF }) {
					continue
				}
				for bit := page * 8; bit < (page+64)*8; bit += every(13, 203) {
					flips++
					f := r.Fork(snap)
					f.W.Chip(chip).FlipBit(int64(bit/8), uint(bit%8))
					f.Start(enclosure.Options{SameBoot: bit%16 < 8})
					time.Sleep(5 * time.Millisecond)
					outcomes[chip+" "+judgeFlip(t, f, before, since, chip)]++
					f.Stop()
					if t.Failed() {
						t.Fatalf("bit %d of byte 0x%x of %s", bit%8, bit/8, chip)
					}
				}
			}
		}
	})
	t.Logf("%d flips: %v", flips, outcomes)
	if flips < 9000/every(13, 203) {
		t.Errorf("only %d bits were inverted", flips)
	}
}

func judgeFlip(t *testing.T, f *rig.Rig, before map[string]enclosure.SlotStatus, since time.Duration, chip string) string {
	t.Helper()
	st := f.E.Status(f.Ctx())
	outcome := "as it was"
	if !st.Store.OK {
		return "refused"
	}
	changed := false
	for _, s := range st.Slots {
		was := before[s.Name]
		if s.Host != "" && s.Host != was.Host || s.VM != "" && s.VM != was.VM {
			t.Errorf("%s is with %q for %q; was with %q for %q", s.Name, s.Host, s.VM, was.Host, was.VM)
		}
		if s.Generation.Counter < was.Generation.Counter && s.Problem == "" {
			t.Errorf("%s: generation %s, was %s", s.Name, s.Generation, was.Generation)
		}
		if s.Memory.Preserved == plan.Yes && (s.Name == "gpu1" || !f.W.MemoryIntactSince(s.Name, since)) {
			t.Errorf("%s: verdict yes: %s", s.Name, s.Memory.Reason)
		}
		for _, h := range f.W.Spec().Servers {
			if f.W.Server(h.Name).Reach(s.Name) && h.Name != s.Host {
				t.Errorf("%s reaches %s, which is with %q", h.Name, s.Name, s.Host)
			}
		}
		switch {
		case s.Problem != "":
			outcome = "problem"
		case s.Host != was.Host || s.VM != was.VM:
			outcome = "free"
		case s.Generation != was.Generation && outcome == "as it was":
			outcome = "another generation"
		case s.Flag != was.Flag && outcome == "as it was":
			outcome = fmt.Sprintf("flag %s", s.Flag)
		case s.Memory.Preserved != was.Memory.Preserved && s.Name != "gpu1" && outcome == "as it was":
			outcome = "verdict " + string(s.Memory.Preserved)
		}
		changed = changed || outcome != "as it was"
	}
	if !f.Host(rig.B).Fenced {
		t.Errorf("B is no longer fenced")
	}
	for _, iv := range f.W.Reach() {
		if iv.From > since && iv.Server != rig.A {
			t.Errorf("%s reached %s: %+v", iv.Server, iv.Slot, iv)
		}
	}
	said := slices.ContainsFunc(eventsOf(f), func(e enclosure.Event) bool {
		return slices.Contains([]string{"recovery", "fault", "void", "store"}, e.Kind)
	})
	if !said && (changed || chip != "store" || st.Store.Damaged > 0) {
		t.Errorf("%s, and no event says so", outcome)
	}
	if chip != "store" {
		// The store proves what the block was.
		p := f.W.Chip(chip).Peek(0, ee.BlockSize)
		b, err := ee.DecodeBlock(p)
		if err != nil || b.Generation != before[chip].Generation || b.Group != before[chip].Group {
			t.Errorf("the block was not repaired: %+v, %v", b, err)
		}
	} else if st.Store.Damaged == 0 {
		t.Error("the store does not say that a page is damaged")
	}
	f.Check()
	return outcome
}

func eventsOf(r *rig.Rig) []enclosure.Event {
	events, _ := r.E.Events(0)
	return events
}
