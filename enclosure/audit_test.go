package enclosure_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/nvm"
	"baton/sim"
	"baton/test/rig"
)

// kindsOf are the kinds of records, with what they are about.
func kindsOf(recs []enclosure.AuditRecord) (kinds []string) {
	for _, a := range recs {
		kinds = append(kinds, strings.TrimSpace(fmt.Sprintf("%s %s%s %v", a.Kind, a.Host, a.Code, a.Slots)))
	}
	return kinds
}

// inStore are the numbers of the audit's records in the store's chip.
func inStore(t *testing.T, r *rig.Rig) (seqs []uint32) {
	t.Helper()
	for _, c := range r.W.Spec().Chips {
		if c.Name != "store" {
			continue
		}
		store, _, err := nvm.Mount(context.Background(), r.Chip(c), nvm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range store.All(plan.PrefixAudit) {
			a, err := plan.DecodeAudit(value)
			if err != nil {
				t.Error(err)
			}
			seqs = append(seqs, a.Seq)
		}
	}
	slices.Sort(seqs)
	return seqs
}

func TestAuditKeeps(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.W.Server(rig.A).StopVM(rig.VM1)
		first, _ := r.E.Audit()
		m := r.Move(rig.VM1, rig.B)
		q := r.Request(rig.VM1, "nowhere")
		if _, err := r.E.Move(r.Ctx(), q); err == nil {
			t.Fatal("a move to nowhere")
		}
		r.Fence(rig.B)
		r.Attach(rig.VM1, rig.A)
		r.Boot(rig.VM1, rig.A)
		r.Ack(rig.VM1, rig.A)
		r.Attach(rig.VM1, rig.A) // in place: nothing is assigned
		if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseKeep, By: "root"}); err != nil {
			t.Fatal(err)
		}
		if err := r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseKeep, By: "root"}); err != nil {
			t.Fatal(err) // a repeat
		}
		r.E.Note(enclosure.Event{Kind: "config", Text: "hosts and VMs: one VM more", By: "root"})
		kept, lost := r.E.Audit()
		want := []string{
			"move server2 [gpu0 gpu1]", "refused unknown-host []", "fence server2 []", "fence server2 [gpu0 gpu1]",
			"move server1 [gpu0 gpu1]", "release  [gpu0 gpu1]", "config  []",
		}
		if got := kindsOf(kept[len(first):]); !slices.Equal(got, want) || lost != 0 {
			t.Errorf("kept %q, lost %d; want %q", got, lost, want)
		}
		if a := kept[len(first)]; a.Move != m.ID.String() || a.VM != rig.VM1 || a.By != "test" || a.Run != 1 || a.Uptime == 0 || !strings.Contains(a.Text, "done") {
			t.Errorf("the move is kept as %+v", a)
		}
		if got := inStore(t, r); len(got) != 0 {
			t.Errorf("records %v are in the store; want none while nobody tends it", got)
		}

		// Written by Run, and what came last when it ends. The next agent has it
		// all, and writes nothing to know it.
		r.Run()
		time.Sleep(10 * time.Second)
		kept, _ = r.E.Audit()
		if got := inStore(t, r); len(got) != len(kept) {
			t.Errorf("%d of %d records are in the store after 10 s", len(got), len(kept))
		}
		r.E.Note(enclosure.Event{Kind: "config", Text: "late"})
		r.Stop()
		all, _ := r.E.Audit()
		quiet(t, r, r.Restart)
		again, lost := r.E.Audit()
		if lost != 0 || fmt.Sprint(again) != fmt.Sprint(all) || len(again) <= len(kept) {
			t.Errorf("after a restart: %d lost, %q; want %q", lost, kindsOf(again), kindsOf(all))
		}
		r.E.Note(enclosure.Event{Kind: "config", Text: "of the second start"})
		again, _ = r.E.Audit()
		if a := again[len(again)-1]; a.Run != 2 || a.Seq != uint32(len(again)) {
			t.Errorf("the second start's first record is %+v", a)
		}
	})
}

// TestAuditFlood: nobody can push an assignment out of the store, nor wear it
// out, by what is kept for people.
func TestAuditFlood(t *testing.T) {
	small := func(s *sim.Spec) { s.Chips[0].Part = "24c128" }
	world(t, rig.Options{Slots: 2, Sim: small}, func(t *testing.T, r *rig.Rig) {
		r.StartVM(rig.VM1, rig.A)
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.Run()
		bad := func(by string) {
			q := r.Request(rig.VM1, "nowhere")
			q.By = by
			if _, err := r.E.Move(r.Ctx(), q); rig.Code(err) != enclosure.CodeUnknownHost {
				t.Fatalf("a move to nowhere = %v", err)
			}
		}
		most := uint64(0)
		for i := range 1000 {
			for range 10 {
				bad(fmt.Sprintf("stranger%d", i%300))
			}
			before := r.W.PageWrites("store") + r.W.PageWrites("gpu0")
			q := r.Request(rig.VM1, []string{rig.B, rig.A}[i%2])
			q.ID[0], q.ID[1], q.ID[2] = 1, byte(i>>8), byte(i)
			q.Slots = []string{"gpu0"}
			if m, err := r.E.Move(r.Ctx(), q); err != nil || m.State != enclosure.MoveDone {
				t.Fatalf("move %d: %s %s, %v", i, m.State, m.Reason, err)
			}
			most = max(most, r.W.PageWrites("store")+r.W.PageWrites("gpu0")-before)
			if i%100 == 99 {
				time.Sleep(5 * time.Second)
				r.W.ClearRecord()
			}
		}
		if most != 2 {
			t.Errorf("a move wrote up to %d pages; want 2", most)
		}
		kept, lost := r.E.Audit()
		last := kept[len(kept)-1]
		if int(lost)+len(kept) != int(last.Seq) || len(kept) < 10 {
			t.Errorf("%d kept, %d lost, the last has number %d", len(kept), lost, last.Seq)
		}
		if st := r.E.Status(r.Ctx()).Store; st.Free < 40 || !st.OK {
			t.Errorf("the store has %d pages free, problem %q", st.Free, st.Problem)
		}
		gens := []any{r.Gen("gpu0"), r.Gen("gpu1")}
		r.Restart()
		if now := []any{r.Gen("gpu0"), r.Gen("gpu1")}; !slices.Equal(now, gens) {
			t.Errorf("generations after a restart %v; want %v", now, gens)
		}
		r.WantHost("gpu0", rig.A)
		r.WantHost("gpu1", rig.A)
		for _, h := range []string{rig.A, rig.B, rig.C} {
			if r.Host(h).Fenced {
				t.Errorf("%s counts as fenced: records were lost", h)
			}
		}
		r.Move(rig.VM1, rig.B)

		// One caller alone, for an hour: a record a minute.
		r.Run()
		time.Sleep(2 * time.Minute)
		before, pages := refusalsKept(r), r.W.PageWrites("store")
		for range 3600 {
			bad("root")
			time.Sleep(time.Second)
		}
		n, w := refusalsKept(r)-before, r.W.PageWrites("store")-pages
		if n > 61 || n < 55 || w > 61*4+100 {
			t.Errorf("an hour of refusals made %d records and %d page writes; want one a minute", n, w)
		}
	})
}

// refusalsKept is how many records of refusals there ever were, if nothing else
// happens.
func refusalsKept(r *rig.Rig) int {
	kept, _ := r.E.Audit()
	return int(kept[len(kept)-1].Seq)
}

// TestAuditPowerCuts cuts the power at positions all along the writing of
// records, into an empty ring and into a full one.
func TestAuditPowerCuts(t *testing.T) {
	for _, before := range []int{0, 70} {
		t.Run(fmt.Sprintf("after %d", before), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rig.New(t, rig.Options{})
				running(t, r)
				r.Run()
				for i := range before {
					r.E.Note(enclosure.Event{Kind: "config", Text: fmt.Sprintf("change %d, with some words to it", i)})
					time.Sleep(300 * time.Millisecond)
				}
				time.Sleep(10 * time.Second)
				flushed := inStore(t, r)
				for i := range 6 {
					r.E.Note(enclosure.Event{Kind: "config", Slot: "gpu0", Text: fmt.Sprintf("late change %d", i)})
				}
				all, _ := r.E.Audit()
				newest := all[len(all)-1].Seq
				texts := map[uint32]string{}
				for _, a := range all {
					texts[a.Seq] = fmt.Sprint(a)
				}
				var mu sync.Mutex
				var at []*sim.Snapshot
				r.W.OnPosition(func(p sim.Position) {
					s := r.W.Snapshot()
					mu.Lock()
					defer mu.Unlock()
					if p.Name == "store" {
						at = append(at, s)
					}
				})
				time.Sleep(3 * time.Second)
				r.W.OnPosition(nil)
				gen, host := r.Gen("gpu0").Counter, r.SlotStatus("gpu0").Host
				r.Stop()
				if got := inStore(t, r); got[len(got)-1] < newest {
					t.Fatalf("records up to %d are in the store; want %d", got[len(got)-1], newest)
				}
				lasts := map[uint32]bool{}
				stride := 1 + len(at)/(400/(1+raceFactor))
				for i := 0; i < len(at); i += stride {
					f := r.Fork(at[i])
					f.W.SetTear(sim.Tear{Kind: sim.TearKind(i % sim.TearKinds), Seed: uint64(i), Unstable: i % 4})
					f.W.PowerCut()
					f.PowerUp()
					kept, lost := f.E.Audit()
					kept = slices.DeleteFunc(kept, func(a enclosure.AuditRecord) bool { return a.Run != 1 })
					lasts[kept[len(kept)-1].Seq] = true
					for j, a := range kept {
						if fmt.Sprint(a) != texts[a.Seq] {
							t.Errorf("record %d reads %v; was %s", a.Seq, a, texts[a.Seq])
						}
						if j > 0 && a.Seq != kept[j-1].Seq+1 {
							t.Errorf("record %d follows %d", a.Seq, kept[j-1].Seq)
						}
					}
					if last := kept[len(kept)-1].Seq; last < flushed[len(flushed)-1] || lost+uint32(len(kept)) != last {
						t.Errorf("%d kept up to %d, %d lost; %d were in the store before", len(kept), last, lost, flushed[len(flushed)-1])
					}
					if before == 0 && kept[0].Seq != 1 {
						t.Errorf("the oldest is %d; want 1", kept[0].Seq)
					}
					if g := f.Gen("gpu0").Counter; g != gen {
						t.Errorf("generation %d; want %d", g, gen)
					}
					f.WantHost("gpu0", host)
					for _, h := range []string{rig.A, rig.B, rig.C} {
						if f.Host(h).Fenced {
							t.Errorf("%s counts as fenced", h)
						}
					}
					f.Move(rig.VM1, rig.B)
					f.Stop()
					if t.Failed() {
						t.Fatalf("position %d of %d", i, len(at))
					}
				}
				if len(lasts) < 2 {
					t.Errorf("the cuts left records up to %v: they do not reach what is written", lasts)
				}
				t.Logf("%d cuts", (len(at)+stride-1)/stride)
			})
		})
	}
}

// A record of the audit that nobody can read is nothing that anybody depends on.
func TestAuditUnreadable(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Stop()
		store, _, err := nvm.Mount(context.Background(), r.Chip(r.W.Spec().Chips[0]), nvm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range [][]byte{nil, {1}, []byte("of another version")} {
			if err := store.Put(context.Background(), nvm.Normal, nvm.Record{Key: plan.SlotKey(plan.PrefixAudit, i), Value: append([]byte{}, v...)}); err != nil {
				t.Fatal(err)
			}
		}
		r.Start(enclosure.Options{SameBoot: true})
		if r.Host(rig.A).Fenced || r.Host(rig.B).Fenced {
			t.Error("hosts are distrusted for it")
		}
		r.Move(rig.VM1, rig.B)
		kept, lost := r.E.Audit()
		if got := kindsOf(kept); !slices.Equal(got, []string{"store  []", "move server2 [gpu0]"}) || lost != 0 || !strings.Contains(kept[0].Text, "3 records") {
			t.Errorf("kept %q, %d lost", got, lost)
		}
		r.Run()
		for range 48 {
			r.E.Note(enclosure.Event{Kind: "config", Text: "change"})
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Second)
		if got := inStore(t, r); len(got) != 48 || got[0] != 3 { // it fails where one can not be read
			t.Errorf("the ring has %v", got)
		}
	})
}

// While the store is nearly full, or does not take a record, what is kept for
// people waits, and nothing else does.
func TestAuditWaits(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Stop()
		fillStore(t, r)
		r.Start(enclosure.Options{SameBoot: true})
		r.Run()
		for i := range 100 {
			r.E.Refuse("stranger", enclosure.Code(fmt.Sprintf("code%d", i)), "no")
			r.E.Note(enclosure.Event{Kind: "config", Text: "change"})
		}
		time.Sleep(10 * time.Second)
		if got := inStore(t, r); len(got) != 0 {
			t.Errorf("%v were written to a full store", got)
		}
		if told := eventsOf(r, "store"); len(told) != 1 || !strings.Contains(told[0].Text, "pages free") {
			t.Errorf("told of as %+v; want once", told)
		}
		r.Move(rig.VM1, rig.B)
		kept, lost := r.E.Audit()
		for i, a := range kept {
			if a.Kind == "refused" {
				t.Errorf("a refusal is kept where changes went: %v", a)
			}
			if want := kept[len(kept)-1].Seq; lost+uint32(len(kept)) != want || len(kept) != 64 {
				t.Fatalf("record %d: %d kept, %d lost, newest %d", i, len(kept), lost, want)
			}
		}
	})
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		time.Sleep(5 * time.Second)
		stop := r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x57, Only: sim.WriteOp, Byte: 10})
		r.E.Note(enclosure.Event{Kind: "config", Text: "change"})
		time.Sleep(30 * time.Second)
		if st := r.E.Status(r.Ctx()).Store; !st.OK {
			t.Errorf("a record of the audit that was not taken made the store unusable: %s", st.Problem)
		}
		if n := len(eventsOf(r, "store")); n != 2 { // formatted, and this
			t.Errorf("told of %d times: %+v", n-1, eventsOf(r, "store"))
		}
		stop()
		r.Move(rig.VM1, rig.B)
		time.Sleep(5 * time.Second)
		kept, lost := r.E.Audit()
		if got := inStore(t, r); len(got) != len(kept) || lost != 0 {
			t.Errorf("%v in the store of %q, %d lost", got, kindsOf(kept), lost)
		}
	})
}

// TestAuditHoldsUpLittle: a move that comes while records are written waits for
// one batch, and for that before its set is cut.
func TestAuditHoldsUpLittle(t *testing.T) {
	for name, tc := range map[string]struct {
		shared bool
		most   time.Duration
	}{"chip of its own": {false, 30 * time.Millisecond}, "chip of an engine": {true, 80 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			var most, least time.Duration
			sweep(t, rig.Options{Shared: tc.shared}, 200*time.Millisecond, 3*time.Millisecond, func(t *testing.T, r *rig.Rig, at time.Duration) {
				running(t, r)
				r.W.Server(rig.A).StopVM(rig.VM1)
				r.Run()
				time.Sleep(2500 * time.Millisecond)
				for i := range 8 {
					r.E.Note(enclosure.Event{Kind: "config", Text: fmt.Sprintf("change %d, told in words of which there are usually as many", i), By: "root"})
				}
				time.Sleep(450*time.Millisecond + at)
				m := r.Move(rig.VM1, rig.B)
				intent := stepAt(m, "intent")
				if most = max(most, intent); least == 0 || intent < least {
					least = intent
				}
			})
			if most > tc.most || most < least+5*time.Millisecond {
				t.Errorf("intents took %v to %v; want up to %v, and some that met a batch", least, most, tc.most)
			}
		})
	}
}

// TestAuditConcurrent is for the race detector.
func TestAuditConcurrent(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		var waits []func()
		for _, f := range []func(int){
			func(i int) { r.E.Refuse(fmt.Sprintf("uid%d", i%7), enclosure.CodeForbidden, "no") },
			func(i int) { r.E.Note(enclosure.Event{Kind: "config", Text: "change"}) },
			func(i int) {
				kept, lost := r.E.Audit()
				for j, a := range kept {
					if j > 0 && a.Seq <= kept[j-1].Seq || a.Seq > kept[0].Seq+lost+uint32(len(kept)) {
						t.Errorf("record %d after %d", a.Seq, kept[j-1].Seq)
					}
				}
			},
			func(i int) { r.E.Counters() },
		} {
			waits = append(waits, background(func() {
				for i := range 40 {
					f(i)
					time.Sleep(97 * time.Millisecond)
				}
			}))
		}
		for _, wait := range waits {
			wait()
		}
		r.Move(rig.VM1, rig.B)
	})
}

// An enclosure that has got more slots has room for fewer records: the oldest go.
func TestAuditShrinks(t *testing.T) {
	some := func(c *enclosure.Config) { c.Slots = c.Slots[:2] }
	o := rig.Options{Slots: 24, Buses: 2, Config: some}
	world(t, o, func(t *testing.T, r *rig.Rig) {
		r.Run()
		for range 60 {
			r.E.Note(enclosure.Event{Kind: "config", Text: "change"})
			time.Sleep(time.Second)
		}
		r.Stop()
		before, _ := r.E.Audit()
		r.Restart()
		same, _ := r.E.Audit()
		if fmt.Sprint(same) != fmt.Sprint(before) || len(before) != 48 {
			t.Errorf("%d records, %d after a restart; want 48", len(before), len(same))
		}
		r.Stop()
		r.Config.Slots = rigConfig(r)
		r.Start(enclosure.Options{SameBoot: true})
		kept, _ := r.E.Audit()
		kept = slices.DeleteFunc(kept, func(a enclosure.AuditRecord) bool { return a.Run != 1 })
		if len(kept) >= 48 || len(kept) < 4 || kept[len(kept)-1].Seq != before[47].Seq {
			t.Errorf("%d records are kept, up to %d; want fewer, up to %d", len(kept), kept[len(kept)-1].Seq, before[47].Seq)
		}
		room := len(kept)
		r.Run()
		time.Sleep(2 * time.Minute)
		all, lost := r.E.Audit()
		got := inStore(t, r) // those that were forgotten are there too
		if got = got[len(got)-room:]; got[0] != all[0].Seq || len(all) != room || all[0].Seq != lost+1 {
			t.Errorf("the ring has %v, kept are %d from %d on, %d lost; want %d", got, len(all), all[0].Seq, lost, room)
		}
		if st := r.E.Status(r.Ctx()).Store; st.Free < 64 {
			t.Errorf("%d pages free", st.Free)
		}
	})
}

// rigConfig are all slots of r's world.
func rigConfig(r *rig.Rig) []enclosure.SlotConfig {
	var all []enclosure.SlotConfig
	for i, s := range r.W.Spec().Slots {
		sc := r.Config.Slots[0]
		sc.Name, sc.BusName, sc.Bus, sc.Addr = s.Name, s.Bus, r.W.Bus(s.Bus), s.EngineAddr
		sc.Medium = r.Chip(r.W.Spec().Chips[i+1])
		sc.MAC = [6]byte(s.MAC)
		sc.Serial = s.Serial
		all = append(all, sc)
	}
	return all
}

func TestRefusalsCoalesced(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Run()
		time.Sleep(500 * time.Millisecond)
		told := func() (texts []string) {
			for _, ev := range eventsOf(r, "refused") {
				texts = append(texts, fmt.Sprintf("%s/%s/%s: %s", ev.By, ev.Code, ev.Slot, ev.Text))
			}
			return texts
		}
		arm := func(by, slot string) {
			if _, err := r.E.Arm(r.Ctx(), enclosure.ArmRequest{Slot: slot, By: by}); rig.Code(err) != enclosure.CodeGenerationChanged {
				t.Fatalf("arm of another generation = %v", err)
			}
		}
		for range 100 {
			arm("server1", "gpu0")
			time.Sleep(100 * time.Millisecond)
		}
		if got := told(); len(got) != 1 || !strings.HasPrefix(got[0], "server1/generation-changed/gpu0: gpu0: generation is") {
			t.Errorf("told of %q; want the first", got)
		}
		// Another slot, caller or code is told of at once.
		arm("server1", "gpu1")
		arm("server2", "gpu0")
		r.E.Refuse("server1", enclosure.CodeForbidden, "server1 may not")
		r.E.Refuse("server1", enclosure.CodeForbidden, "server1 may not do that either")
		if got := told(); len(got) != 4 || !strings.HasSuffix(got[3], "server1 may not") {
			t.Errorf("told of %q; want four", got)
		}
		time.Sleep(70 * time.Second)
		got := told()
		if len(got) != 6 || !strings.HasPrefix(got[4], "server1/generation-changed/gpu0: refused 99 more times within a minute, the last: gpu0: generation") ||
			got[5] != "server1/forbidden/: refused once more within a minute, the last: server1 may not do that either" {
			t.Errorf("told of %q; want what was counted", got)
		}
		// In the audit it is by caller and code.
		time.Sleep(2 * time.Minute)
		var kept []string
		all, _ := r.E.Audit()
		for _, a := range all {
			if a.Kind == "refused" {
				kept = append(kept, fmt.Sprintf("%s/%s %v %d", a.By, a.Code, a.Slots, a.Count))
			}
		}
		want := []string{
			"server1/generation-changed [gpu0] 0", "server2/generation-changed [gpu0] 0", "server1/forbidden [] 0",
			"server1/generation-changed [gpu0 gpu1] 100", "server1/forbidden [] 0",
		}
		if !slices.Equal(kept, want) {
			t.Errorf("kept %q; want %q", kept, want)
		}
		// All of it counts, and a minute without any is told of at once again.
		if n := r.E.Counters().Refusals; n[enclosure.CodeGenerationChanged] != 102 || n[enclosure.CodeForbidden] != 2 {
			t.Errorf("counted %v", n)
		}
		arm("server1", "gpu0")
		if n := len(told()); n != 7 {
			t.Errorf("told of %d; want 7", n)
		}
		// Who asks under ever new names is counted together.
		before := len(told())
		for i := range 1000 {
			r.E.Refuse(fmt.Sprintf("uid%d", i), enclosure.CodeForbidden, "who are you")
		}
		if n := len(told()) - before; n > 257 || n < 250 {
			t.Errorf("1000 callers were told of %d times", n)
		}
		time.Sleep(2 * time.Minute)
		got = told()
		if last := got[len(got)-1]; !strings.HasPrefix(last, "others//: refused 7") {
			t.Errorf("the rest is told of as %q", last)
		}
	})
}

func TestCounters(t *testing.T) {
	world(t, rig.Options{Slots: 2, Buses: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		base := r.E.Counters()
		if n := base.BusErrors; n["bus0"] != 0 || n["bus1"] != 0 || len(n) != 2 || base.Moves[enclosure.MoveDone] != 1 {
			t.Errorf("at first %+v", base)
		}
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.Move(rig.VM1, rig.B)
		r.Fence(rig.B)
		r.W.Slot("gpu1").Restart()
		time.Sleep(100 * time.Millisecond)
		r.Run()
		time.Sleep(3 * time.Second)
		stop := r.W.Bus("bus1").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x61})
		time.Sleep(3 * time.Second)
		stop()
		now := r.E.Counters()
		if now.Moves[enclosure.MoveDone] != 2 || now.Fences != base.Fences+1 || now.Voids != base.Voids+1 || now.BusErrors["bus0"] != 0 || now.BusErrors["bus1"] == 0 {
			t.Errorf("counted %+v, %+v before", now, base)
		}
		if st := r.E.Status(r.Ctx()).Store; now.PageWrites != st.PageWrites || now.PageWrites == base.PageWrites || now.Events <= base.Events {
			t.Errorf("counted %+v", now)
		}
		now.Moves[enclosure.MoveDone]++
		if r.E.Counters().Moves[enclosure.MoveDone] != 2 {
			t.Error("who asks can change them")
		}
	})
}

// A request that a look at the hardware refuses again and again costs two page
// writes a minute, not two each time.
func TestRefusedLookWritesOnce(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		good := r.W.Chip("gpu0").Image()
		r.W.Chip("gpu0").FlipBit(r.Profile.BlockOffset+20, 1) // the agent compares the CRC
		gen := r.Gen("gpu0")
		ask := func(want uint64) {
			t.Helper()
			before := r.W.PageWrites("store")
			_, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
			wantCode(t, err, enclosure.CodeHardware)
			if n := r.W.PageWrites("store") - before; n != want {
				t.Errorf("%d page writes; want %d", n, want)
			}
			if r.Gen("gpu0") != gen {
				t.Errorf("generation %s; want %s", r.Gen("gpu0"), gen)
			}
		}
		ask(2) // its intent, and the cancellation
		for range 100 {
			ask(0)
			time.Sleep(5 * time.Second)
		}
		time.Sleep(time.Minute)
		ask(2)
		r.WantHost("gpu0", rig.A)
		r.W.Chip("gpu0").SetImage(good)
		before := r.W.PageWrites("store") + r.W.PageWrites("gpu0")
		r.Move(rig.VM1, rig.B)
		if n := r.W.PageWrites("store") + r.W.PageWrites("gpu0") - before; n != 2 {
			t.Errorf("the move wrote %d pages; want 2", n)
		}
	})
}
