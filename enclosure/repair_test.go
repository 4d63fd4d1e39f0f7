package enclosure_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/nvm"
	"baton/sim"
	"baton/test/rig"
)

// checkNVM checks, and fails the test if that writes anything or cuts anybody.
func checkNVM(t *testing.T, r *rig.Rig) (rep enclosure.NVMReport) {
	t.Helper()
	quiet(t, r, func() {
		var err error
		if rep, err = r.E.CheckNVM(r.Ctx()); err != nil {
			t.Fatalf("CheckNVM: %v", err)
		}
	})
	return rep
}

// repairNVM repairs by a check and starts the agent anew if that is asked for.
func repairNVM(t *testing.T, r *rig.Rig, format bool) enclosure.NVMReport {
	t.Helper()
	rep, err := r.E.RepairNVM(r.Ctx(), checkNVM(t, r).Token, format, "test")
	if err != nil || !rep.Repaired {
		t.Fatalf("RepairNVM = %+v, %v", rep, err)
	}
	if len(eventsOf(r, "repair")) == 0 {
		t.Error("a repair without an event")
	}
	if rep.Restart {
		_, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		wantCode(t, err, enclosure.CodeStore)
		restartUnmarked(r)
	}
	return rep
}

// restartUnmarked is a restart in place of an agent whose store could not be
// used: nothing tells it that nothing is torn.
func restartUnmarked(r *rig.Rig) {
	r.Stop()
	r.Start(enclosure.Options{})
	time.Sleep(5 * time.Millisecond)
}

func finding(rep enclosure.NVMReport, says string) *enclosure.NVMFinding {
	for i := range rep.Findings {
		if f := &rep.Findings[i]; strings.Contains(f.Where+" "+f.What, says) {
			return f
		}
	}
	return nil
}

// wantClean checks that nothing is left to repair.
func wantClean(t *testing.T, r *rig.Rig) {
	t.Helper()
	rep := checkNVM(t, r)
	for _, f := range rep.Findings {
		if f.Repair != "" {
			t.Errorf("left: %+v", f)
		}
	}
	_, err := r.E.RepairNVM(r.Ctx(), rep.Token, false, "test")
	wantCode(t, err, enclosure.CodeNotNeeded)
}

func TestCheckNVMWell(t *testing.T) {
	for _, shared := range []bool{false, true} {
		world(t, rig.Options{Slots: 2, Shared: shared}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			r.Move(rig.VM1, rig.B)
			rep := checkNVM(t, r)
			if rep.State != "formatted" || len(rep.Findings) != 0 || rep.Token == "" {
				t.Errorf("CheckNVM = %+v; want nothing found", rep)
			}
			_, err := r.E.RepairNVM(r.Ctx(), rep.Token, true, "test") // a store that works is not made anew
			wantCode(t, err, enclosure.CodeNotNeeded)
			_, err = r.E.RepairNVM(r.Ctx(), "0", false, "test")
			wantCode(t, err, enclosure.CodeStaleToken)
			r.WantHost("gpu0", rig.B)
		})
	}
}

// A check is not waited for: a fence during it takes as long as without it.
func TestCheckNVMKeepsNobodyWaiting(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		started := time.Now()
		r.Fence(rig.A)
		alone := time.Since(started)
		r.Unfence(rig.A)
		r.Attach(rig.VM1, rig.A)
		done := make(chan struct{})
		go func() {
			defer close(done)
			rep, err := r.E.CheckNVM(r.Ctx())
			if f := finding(rep, "gpu0"); err != nil || len(rep.Findings) != 1 || f == nil || f.Grade != "note" {
				t.Errorf("CheckNVM = %+v, %v; want that gpu0 was not looked at", rep, err)
			}
		}()
		time.Sleep(100 * time.Millisecond)
		started = time.Now()
		r.Fence(rig.A) // gpu0 is assigned anew after its page was read: that is no finding
		during := time.Since(started)
		select {
		case <-done:
			t.Error("the check was over already")
		default:
		}
		<-done
		t.Logf("fence alone %v, during a check %v", alone, during)
		if during > alone+60*time.Millisecond {
			t.Errorf("a fence took %v during a check, %v without", during, alone)
		}
	})
}

// A page that goes bad while the agent runs costs nothing: what it held is in
// RAM. The agent goes on.
func TestRepairTornPage(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		gen := r.Gen("gpu0")
		img := r.W.Chip("store").Image()
		in, err := nvm.Inspect(context.Background(), memoryOf(img))
		if err != nil || in.Err != nil {
			t.Fatal(err, in.Err)
		}
		spoiled := 0
		for p, d := range in.Detail {
			if d.State == nvm.PageData || d.State == nvm.PageFormat && p == 1 {
				r.W.Chip("store").Poke(int64(p*64), bytes.Repeat([]byte{0x5a}, 64))
				spoiled++
			}
		}
		rep := checkNVM(t, r)
		if f := finding(rep, "is damaged"); f == nil || len(rep.Findings) != spoiled {
			t.Fatalf("CheckNVM = %+v; want %d damaged pages", rep, spoiled)
		}
		links := r.W.Reach()
		rep = repairNVM(t, r, false)
		if rep.Restart {
			t.Error("Restart for pages whose content is known")
		}
		wantClean(t, r)
		r.Restart()
		wantClean(t, r)
		if got := r.Gen("gpu0"); got != gen {
			t.Errorf("generation %s; want %s", got, gen)
		}
		if len(r.W.Reach()) != len(links) {
			t.Error("a link changed")
		}
		r.WantHost("gpu0", rig.A)
		r.WantVerdict("gpu0", plan.Yes)
	})
}

// memoryOf is a medium to be read.
func memoryOf(img []byte) nvm.Medium { return readMedium(img) }

type readMedium []byte

func (m readMedium) Geometry() nvm.Geometry {
	return nvm.Geometry{Size: int64(len(m)), Page: 64, Erased: 0xff, WriteMax: time.Second}
}
func (m readMedium) ReadAt(_ context.Context, p []byte, off int64) error {
	copy(p, m[off:])
	return nil
}
func (m readMedium) Program(context.Context, []byte, int64) error { panic("written") }
func (m readMedium) Settle(context.Context) error                 { return nil }

// A store that lost both format records is had back as it was: what is linked
// stays linked.
func TestRepairLostFormat(t *testing.T) {
	for _, shared := range []bool{false, true} {
		world(t, rig.Options{Slots: 2, Shared: shared}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			gens := []ee.Generation{r.Gen("gpu0"), r.Gen("gpu1")}
			r.Stop()
			chip, off := "store", int64(0)
			if shared {
				chip, off = "gpu0", 4096
			}
			for p := range int64(2) {
				r.W.Chip(chip).Poke(off+p*64+10, []byte{0xee})
			}
			r.Start(enclosure.Options{})
			if r.E.Status(r.Ctx()).Store.OK {
				t.Fatal("the store is well")
			}
			rep := checkNVM(t, r)
			if f := finding(rep, "lost all its format records"); rep.State != "foreign" || f == nil || f.Grade != "unusable" || f.Lost != "" {
				t.Fatalf("CheckNVM = %+v; want a store without format records", rep)
			}
			_, err := r.E.RepairNVM(r.Ctx(), rep.Token, true, "test")
			wantCode(t, err, enclosure.CodeNotNeeded)
			links := len(r.W.Reach())
			repairNVM(t, r, false)
			wantClean(t, r)
			for i, g := range gens {
				if got := r.Gen(rig.Slot(i)); got != g {
					t.Errorf("%s: generation %s; want %s", rig.Slot(i), got, g)
				}
				r.WantHost(rig.Slot(i), rig.A)
			}
			if n := len(r.W.Reach()); n != links {
				t.Errorf("%d links before, %d after", links, n)
			}
			r.Move(rig.VM1, rig.B)
		})
	}
}

// A store that nothing can be had back of is made anew when that is ordered:
// hosts are fenced, slots are held for whom their blocks name, and a slot whose
// block is damaged too is free.
func TestRepairFormat(t *testing.T) {
	const size = 32 * 1024
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, r *rig.Rig)
		state string
	}{
		{"foreign", func(_ *testing.T, r *rig.Rig) { r.W.Chip("store").SetImage(image(size, text)) }, "foreign"},
		{"half formatted", func(t *testing.T, r *rig.Rig) { r.W.Chip("store").SetImage(halfFormatted(t)) }, "half formatted"},
		{"blank chip swapped in", func(_ *testing.T, r *rig.Rig) { r.W.Chip("store").SetImage(image(size, all(0xFF))) }, "blank"},
	} {
		for _, badBlock := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, bad block %v", tc.name, badBlock), func(t *testing.T) {
				world(t, rig.Options{Slots: 3, Config: func(c *enclosure.Config) { c.Slots = slices.Clone(c.Slots) }}, func(t *testing.T, r *rig.Rig) {
					running(t, r, "gpu0", "gpu1")
					old := r.Gen("gpu0")
					r.Stop()
					tc.spoil(t, r)
					if badBlock {
						r.W.Chip("gpu1").FlipBit(40, 3)
					}
					r.Config.Store.FormatBlank = false
					r.Start(enclosure.Options{})
					rep := checkNVM(t, r)
					if rep.State != tc.state {
						t.Fatalf("state %q; want %q", rep.State, tc.state)
					}
					_, err := r.E.RepairNVM(r.Ctx(), rep.Token, false, "test")
					wantCode(t, err, enclosure.CodeStore)
					if !r.W.Server(rig.A).Reach("gpu0") {
						t.Error("A lost gpu0 before anything was repaired")
					}
					r.Config.Store.FormatBlank = true
					repairNVM(t, r, true)
					st := r.E.Status(r.Ctx())
					if !st.Store.OK {
						t.Fatalf("store: %s", st.Store.Problem)
					}
					for _, h := range st.Hosts {
						if !h.Fenced {
							t.Errorf("%s is not fenced", h.Name)
						}
					}
					for i, n := range []string{"gpu0", "gpu1"} {
						s := r.SlotStatus(n)
						wantVM := rig.VM1
						if badBlock && i == 1 {
							wantVM = ""
						}
						if s.Host != "" || s.VM != wantVM || s.Held != (wantVM != "") || s.Problem != "" || s.Blocked != "" || s.Generation.Incarnation == old.Incarnation {
							t.Errorf("%s = %+v; want cut, held for %q, of a new store", n, s, wantVM)
						}
						if s.Memory.Preserved == plan.Yes {
							t.Errorf("%s: its memory counts as preserved", n)
						}
						r.WantHost(n, "")
					}
					if s := r.SlotStatus("gpu2"); s.Problem != "" || s.Host != "" {
						t.Errorf("gpu2 = %+v; want free", s)
					}
					wantClean(t, r)
					r.Unfence(rig.B)
					r.Attach(rig.VM1, rig.B, "gpu0")
					r.WantHost("gpu0", rig.B)
				})
			})
		}
	}
}

// What is wrong beside the store itself: undecodable records, lost hosts, a
// damaged block. The agent starts anew by what the repair has written.
func TestRepairRecords(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Stop()
		// Somebody writes to the store: a host's record that can not be read, and
		// an assignment above all others.
		m := r.Config.Store.Medium
		s, _, err := nvm.Mount(context.Background(), m, nvm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Put(context.Background(), nvm.Urgent, nvm.Record{Key: "hserver2", Value: []byte("x")}, nvm.Record{Key: "a\x00\x00\x01\x00", Value: []byte("?")}); err != nil {
			t.Fatal(err)
		}
		r.W.Chip("gpu1").FlipBit(40, 3)
		r.Start(enclosure.Options{SameBoot: true})
		rep := checkNVM(t, r)
		for _, want := range []string{"hserver2", `record "a`} {
			if finding(rep, want) == nil {
				t.Errorf("no finding of %q: %+v", want, rep.Findings)
			}
		}
		repairNVM(t, r, false)
		wantClean(t, r)
		r.Restart() // and it stays so
		for _, h := range r.E.Status(r.Ctx()).Hosts {
			if !h.Fenced || h.Epoch < plan.LostGap {
				t.Errorf("%s: %+v; want fenced, above all old fences", h.Name, h)
			}
		}
		for _, n := range []string{"gpu0", "gpu1"} {
			r.WantHost(n, "")
		}
		for _, h := range []string{rig.A, rig.B, rig.C} {
			r.Unfence(h)
		}
		r.Attach(rig.VM1, rig.B, "gpu0")
	})
}

// The assignment of a set of two slots is lost: both are taken from their
// blocks, neither falls back to the host that it had before.
func TestLostAssignmentOfASet(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Move(rig.VM1, rig.B)
		gen := r.Gen("gpu0")
		r.Stop()
		spoilRecord(t, r, plan.Assignment{Gen: gen.Counter}.Key())
		r.Start(enclosure.Options{SameBoot: true})
		for _, n := range []string{"gpu0", "gpu1"} {
			if s := r.SlotStatus(n); s.Generation != gen || s.Host != rig.B {
				t.Errorf("%s: generation %s with %q; want %s, with B as its block says", n, s.Generation, s.Host, gen)
			}
			r.WantHost(n, rig.B)
		}
	})
}

// As before, and a block is damaged too: nobody can know who has the slot.
func TestLostAssignmentAndBlock(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Move(rig.VM1, rig.B)
		gen := r.Gen("gpu0")
		for range 4 { // so that the page is not where a write may have been under way
			r.Fence(rig.C)
		}
		r.Stop()
		spoilRecord(t, r, plan.Assignment{Gen: gen.Counter}.Key())
		r.W.Chip("gpu1").FlipBit(40, 3)
		r.Start(enclosure.Options{})
		time.Sleep(5 * time.Millisecond)
		s := r.SlotStatus("gpu1")
		if s.Host != "" || s.VM != "" || s.Generation.Counter <= gen.Counter || s.Memory.Preserved == plan.Yes {
			t.Errorf("gpu1 = %+v; want free, void, above generation %s", s, gen)
		}
		r.WantHost("gpu1", "")
		r.WantHost("gpu0", rig.B)
	})
}

// spoilRecord damages every page that has a record of that key.
func spoilRecord(t *testing.T, r *rig.Rig, key string) {
	t.Helper()
	in, err := nvm.Inspect(context.Background(), memoryOf(r.W.Chip("store").Image()))
	if err != nil || in.Err != nil {
		t.Fatal(err, in.Err)
	}
	n := 0
	for _, b := range in.Batches {
		if slices.ContainsFunc(b.Records, func(q nvm.Record) bool { return q.Key == key }) {
			for _, p := range b.Pages {
				r.W.Chip("store").Poke(int64(p*64+20), []byte{0xff, 0, 0xaa, 0x55})
				n++
			}
		}
	}
	if n == 0 {
		t.Fatalf("no page has %q", key)
	}
}

// A foreign chip whose first page happens to be erased is not taken for a new
// one.
func TestForeignChipWithABlankPage(t *testing.T) {
	newSlot(t, func(t *testing.T, r *rig.Rig) {
		img := image(32*1024, all(0xFF))
		copy(img[20000:], "serial 0042")
		r.W.Chip("gpu0").Replace("24c256", img)
		r.Start(enclosure.Options{SameBoot: true})
		if s := r.SlotStatus("gpu0"); !strings.Contains(s.Problem, "blank") {
			t.Errorf("gpu0 = %+v; want a fault: the chip is somebody's", s)
		}
		if !bytes.Equal(r.W.Chip("gpu0").Image(), img) {
			t.Error("the chip was written to")
		}
	})
}

func TestDumpNVM(t *testing.T) {
	for _, shared := range []bool{false, true} {
		world(t, rig.Options{Shared: shared}, func(t *testing.T, r *rig.Rig) {
			running(t, r)
			quiet(t, r, func() {
				d, err := r.E.DumpNVM(r.Ctx(), "store")
				want := r.W.Chip("gpu0").Image()
				if !shared {
					want = r.W.Chip("store").Image()
				}
				if err != nil || !bytes.Equal(d.Image, want[d.Offset:d.Offset+int64(len(d.Image))]) || !strings.HasPrefix(d.Part, "24c256 at bus0/") {
					t.Errorf("DumpNVM(store) = %s, offset %d, %d bytes, %v", d.Part, d.Offset, len(d.Image), err)
				}
				if in, err := nvm.Inspect(context.Background(), memoryOf(d.Image)); err != nil || in.Err != nil || in.Incarnation != r.Gen("gpu0").Incarnation {
					t.Errorf("what was dumped is no store: %v", err)
				}
				d, err = r.E.DumpNVM(r.Ctx(), "gpu0")
				if err != nil || !bytes.Equal(d.Image, r.W.Chip("gpu0").Image()) {
					t.Errorf("DumpNVM(gpu0) = %d bytes, %v", len(d.Image), err)
				}
				_, err = r.E.DumpNVM(r.Ctx(), "gpu9")
				wantCode(t, err, enclosure.CodeUnknownSlot)
			})
		})
	}
}

// A check where hardware does not answer says so, and looks at the rest.
func TestCheckNVMBrokenHardware(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		r.W.Chip("gpu1").SetDead(true)
		if f := finding(checkNVM(t, r), "gpu1 config block"); f == nil || !strings.Contains(f.What, "can not be read") {
			t.Errorf("finding = %+v; want that gpu1's chip can not be read", f)
		}
		r.Stop()
		r.W.Chip("store").SetDead(true)
		r.Start(enclosure.Options{})
		rep := checkNVM(t, r)
		if rep.State != "unreadable" {
			t.Errorf("state %q; want unreadable", rep.State)
		}
		_, err := r.E.RepairNVM(r.Ctx(), rep.Token, true, "test")
		wantCode(t, err, enclosure.CodeNotNeeded)
	})
}

// TestFirstStartCuts cuts the power at positions all along an enclosure's first
// start, on blank chips, and again in the start after that: it always ends with
// a store and free slots.
func TestFirstStartCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, rig.Options{Slots: 2, Fenced: true})
		r.Stop()
		blank := func(f *rig.Rig) {
			for _, c := range []string{"store", "gpu0", "gpu1"} {
				f.W.Chip(c).SetImage(image(32*1024, all(0xFF)))
			}
		}
		r.W.PowerCut()
		blank(r)
		time.Sleep(time.Second)
		r.W.PowerOn()
		time.Sleep(50 * time.Millisecond)
		var at []*sim.Snapshot
		r.W.OnPosition(func(sim.Position) { at = append(at, r.W.Snapshot()) })
		r.Start(enclosure.Options{})
		r.W.OnPosition(nil)
		r.Stop()
		cuts, again := 0, 0
		stride := 1 + len(at)/(120/(1+raceFactor))
		for i := 0; i < len(at); i += stride {
			for tear := range sim.TearKind(sim.TearKinds) {
				f := r.Fork(at[i])
				f.W.SetTear(sim.Tear{Kind: tear, Seed: uint64(i), Unstable: i % 4})
				f.W.PowerCut()
				cuts++
				if i/stride%3 == 0 { // power goes once more, during the next start
					f.W.SetTear(sim.Tear{Kind: (tear + 3) % sim.TearKind(sim.TearKinds), Seed: uint64(i), Unstable: 2})
					f.W.CutAt(f.W.Positions() + 1 + uint64(i*7)%400)
					f.PowerUp()
					if !f.W.Powered() {
						again++
					}
					f.Stop()
					f.W.PowerCut()
				}
				f.PowerUp()
				st := f.E.Status(f.Ctx())
				if !st.Store.OK {
					t.Fatalf("position %d of %d, %s: store: %s", i, len(at), tear, st.Store.Problem)
				}
				for _, s := range st.Slots {
					if s.Problem != "" || s.Blocked != "" || s.Host != "" || s.Generation.Counter == 0 {
						t.Fatalf("position %d of %d, %s: %s = %+v; want free", i, len(at), tear, s.Name, s)
					}
				}
				f.Unfence(rig.A)
				f.Attach(rig.VM1, rig.A)
				f.WantHost("gpu0", rig.A)
				f.Stop()
			}
		}
		t.Logf("%d positions, %d cuts, %d cuts of the start after them", len(at), cuts, again)
	})
}

// TestRepairCuts cuts the power at positions all along a repair. The next agent
// comes up with the store, or another repair brings it: with all that it held
// where only the format records were lost, else with hosts fenced and nobody
// linked.
func TestRepairCuts(t *testing.T) {
	for _, format := range []bool{false, true} {
		t.Run(fmt.Sprintf("format %v", format), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// A small chip: to clear a page is the same for each.
				r := rig.New(t, rig.Options{Sim: func(s *sim.Spec) { s.Chips[0].Part = "24c32" }})
				running(t, r)
				old := r.Gen("gpu0")
				r.Stop()
				if format {
					r.W.Chip("store").SetImage(image(4096, text))
				} else {
					for p := range int64(2) {
						r.W.Chip("store").Poke(p*64+10, []byte{0xee})
					}
				}
				r.Config.Store.FormatBlank = false
				r.Start(enclosure.Options{})
				rep := checkNVM(t, r)
				var at []*sim.Snapshot
				r.W.OnPosition(func(sim.Position) { at = append(at, r.W.Snapshot()) })
				if _, err := r.E.RepairNVM(r.Ctx(), rep.Token, format, "test"); err != nil {
					t.Fatal(err)
				}
				r.W.OnPosition(nil)
				r.Stop()
				states := map[string]int{}
				stride := 1 + len(at)/(50/(1+raceFactor))
				for i := 0; i < len(at); i += stride {
					for tear := range sim.TearKind(sim.TearKinds) {
						f := r.Fork(at[i])
						f.Config.Store.FormatBlank = i/stride%2 == 0
						f.W.SetTear(sim.Tear{Kind: tear, Seed: uint64(i), Unstable: i % 4})
						f.W.PowerCut()
						f.PowerUp()
						for try := 0; !f.E.Status(f.Ctx()).Store.OK; try++ {
							rep, err := f.E.CheckNVM(f.Ctx())
							if err != nil || try == 5 {
								t.Fatalf("position %d of %d, %s: %+v, %v", i, len(at), tear, rep, err)
							}
							states[rep.State]++
							if _, err := f.E.RepairNVM(f.Ctx(), rep.Token, format, "test"); err != nil && rig.Code(err) != enclosure.CodeStaleToken {
								t.Fatalf("position %d of %d, %s: repair: %v", i, len(at), tear, err)
							}
							restartUnmarked(f)
						}
						states["store"]++
						s := f.SlotStatus("gpu0")
						wantHost := rig.A
						if format {
							wantHost = ""
						}
						if s.Host != wantHost || s.VM != rig.VM1 || s.Problem != "" || s.Blocked != "" || (s.Generation == old) != !format {
							t.Fatalf("position %d of %d, %s: gpu0 = %+v; want with %q", i, len(at), tear, s, wantHost)
						}
						if format != f.Host(rig.A).Fenced {
							t.Errorf("position %d of %d, %s: %s: fenced %v", i, len(at), tear, rig.A, f.Host(rig.A).Fenced)
						}
						f.Stop()
					}
				}
				t.Logf("%d positions, %v", len(at), states)
				if states["foreign"] == 0 {
					t.Error("no cut left a store that had to be repaired again")
				}
			})
		})
	}
}
