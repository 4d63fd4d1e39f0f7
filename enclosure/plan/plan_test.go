package plan

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"baton/ee"
)

func TestTablesPage(t *testing.T) {
	const page = "../../docs/state-tables.md"
	var want bytes.Buffer
	if err := WriteTables(&want); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.String(), string(got)); diff != "" {
		t.Errorf("%s is old, run go generate ./enclosure/plan:\n%s", page, diff)
	}
}

func TestNextIsDeterministic(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rules {
		for _, f := range r.From {
			k := string(f) + "/" + string(r.On)
			if seen[k] {
				t.Errorf("two rows for %s", k)
			}
			seen[k] = true
		}
	}
}

func TestNextRefuses(t *testing.T) {
	for _, tt := range []struct {
		f  Flag
		on Trigger
	}{
		{Armed, Proving}, {Target, Proving}, {Void, Proving}, // a proof would paper over a reset at VM start
		{Armed, Acking},
		{None, Disarming}, {Target, Disarming}, {Void, ArmProven},
	} {
		if to, err := Next(tt.f, tt.on, true); err == nil {
			t.Errorf("Next(%s, %s) = %s; want a refusal", tt.f, tt.on, to)
		}
	}
}

// uuid draws mostly few different values, so that they meet.
func uuid(t *rapid.T, label string) (u ee.UUID) {
	u[15] = rapid.Byte().Draw(t, label)
	return u
}

func group(t *rapid.T, label string) uint16 {
	if rapid.Bool().Draw(t, label+" free") {
		return ee.GroupFree
	}
	return rapid.Uint16Range(ee.GroupMin, ee.GroupMax).Draw(t, label)
}

func TestRecordsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := Assignment{
			Kind: Kind(rapid.IntRange(1, int(KindForced)).Draw(t, "kind")), Preserve: rapid.Bool().Draw(t, "preserve"), To: group(t, "to"),
			Slots: SlotSet(rapid.Uint64Min(1).Draw(t, "slots")), VM: uuid(t, "vm"), ID: uuid(t, "id"), Gen: rapid.Uint32().Draw(t, "gen"),
		}
		if got, err := DecodeAssignment(a.Key(), a.Encode()); err != nil || got != a {
			t.Fatalf("assignment %+v came back as %+v, %v", a, got, err)
		}
		if n := len(a.Key()) + len(a.Encode()); n > 49 {
			t.Fatalf("an assignment takes %d bytes: more than one page's", n)
		}
		e := Evidence{
			Flag: rapid.SampledFrom([]Flag{None, Armed, Target, Spent, Void}).Draw(t, "flag"), Gen: rapid.Uint32().Draw(t, "gen"),
			Base: Values{rapid.Uint32().Draw(t, "resets"), rapid.Uint32().Draw(t, "epoch"), rapid.Uint32().Draw(t, "ident")},
			ID:   uuid(t, "id"), GuardBefore: rapid.Bool().Draw(t, "guard"), Acked: rapid.Bool().Draw(t, "acked"),
			Lease: rapid.Uint16().Draw(t, "lease"), Why: Reason(rapid.IntRange(0, len(reasonText)-1).Draw(t, "why")),
		}
		if got, err := DecodeEvidence(e.Encode()); err != nil || got != e {
			t.Fatalf("evidence %+v came back as %+v, %v", e, got, err)
		}
		s := Start{Nonce: uuid(t, "nonce"), Gen: rapid.Uint32().Draw(t, "gen"), Serial: rapid.Uint32().Draw(t, "serial"), Slots: SlotSet(rapid.Uint64().Draw(t, "slots"))}
		if got, err := DecodeStart(s.Encode()); err != nil || got != s {
			t.Fatalf("start %+v came back as %+v, %v", s, got, err)
		}
		h := Host{Fenced: rapid.Bool().Draw(t, "fenced"), Epoch: rapid.Uint32().Draw(t, "epoch"), Serial: rapid.Uint32().Draw(t, "serial")}
		if got, err := DecodeHost(h.Encode()); err != nil || got != h {
			t.Fatalf("host %+v came back as %+v, %v", h, got, err)
		}
		id := func(label string) Identity {
			return Identity{ee.MAC{5: rapid.Byte().Draw(t, label+" MAC")}, rapid.Uint64().Draw(t, label+" serial")}
		}
		i := Adopted{id("configured"), id("found")}
		if got, err := DecodeAdopted(i.Encode()); err != nil || got != i {
			t.Fatalf("adopted %+v came back as %+v, %v", i, got, err)
		}
		groups := rapid.SliceOfN(rapid.Uint16(), 0, 3*uncutMax/2).Draw(t, "groups")
		u := UncutOf(rapid.Uint32().Draw(t, "uncut gen"), groups)
		if got, err := DecodeUncut(u.Encode()); err != nil || got != u {
			t.Fatalf("uncut %+v came back as %+v, %v", u, got, err)
		}
		if n := 2 + len(u.Encode()); n > 48 {
			t.Fatalf("an uncut takes %d bytes: more than one page's", n)
		}
		kept := groups[:min(len(groups), uncutMax)]
		if !slices.Equal(u.All(), kept) || slices.ContainsFunc(kept, func(g uint16) bool { return !u.Has(g) }) {
			t.Fatalf("uncut of %v has %v", groups, u.All())
		}
		f := Floor{rapid.Uint32().Draw(t, "incarnation"), rapid.Uint32().Draw(t, "counter")}
		if got, err := DecodeFloor(f.Encode()); err != nil || got != f {
			t.Fatalf("floor %+v came back as %+v, %v", f, got, err)
		}
	})
}

func TestRollNoticesLostHosts(t *testing.T) {
	hosts := map[string]Host{"a": {Epoch: 1, Serial: 1}, "b": {Fenced: true, Epoch: 1, Serial: 2}, "c": {Epoch: 2, Serial: 3}}
	roll := RollOf(hosts)
	with := func(name string, h *Host) map[string]Host {
		m := maps.Clone(hosts)
		delete(m, name)
		if h != nil {
			m[name] = *h
		}
		return m
	}
	for _, tt := range []struct {
		name  string
		roll  *Roll
		hosts map[string]Host
		want  bool
	}{
		{"all there", &roll, hosts, true},
		{"nothing ever written", nil, nil, true},
		{"power went after the first host", nil, map[string]Host{"a": {Serial: 1}}, true},
		{"power went before the roll", &roll, with("a", &Host{Fenced: true, Epoch: 2, Serial: 4}), true},
		{"an old record is gone", &roll, with("a", nil), false},
		{"the newest record is gone", &roll, with("c", nil), false},
		{"an older version came back", &roll, with("b", &Host{Epoch: 0, Serial: 1}), false},
		{"the newest record's older version came back", &roll, with("c", &Host{Epoch: 1, Serial: 2}), false},
		{"the roll is gone", nil, hosts, false},
	} {
		if got := tt.roll.Complete(tt.hosts); got != tt.want {
			t.Errorf("%s: Complete = %v; want %v", tt.name, got, tt.want)
		}
	}
}

func FuzzDecodeRecords(f *testing.F) {
	a := Assignment{Kind: KindMove, Preserve: true, To: 101, Slots: 3, VM: ee.UUID{1}, ID: ee.UUID{2}, Gen: 7}
	f.Add(a.Key(), a.Encode())
	f.Add("b\x00", Evidence{Flag: Armed, Gen: 7, Base: Values{1, 2, 3}}.Encode())
	f.Add("hserver1", Host{Fenced: true, Epoch: 3, Serial: 4}.Encode())
	f.Add("s", Start{Gen: 1}.Encode())
	f.Add("i\x00", Adopted{Identity{ee.MAC{1}, 2}, Identity{ee.MAC{3}, 4}}.Encode())
	f.Add("u\x00", UncutOf(7, []uint16{101, 102}).Encode())
	f.Add("g", Floor{1, 2}.Encode())
	f.Fuzz(func(t *testing.T, key string, p []byte) {
		if a, err := DecodeAssignment(key, p); err == nil {
			if again, err := DecodeAssignment(a.Key(), a.Encode()); err != nil || again != a {
				t.Errorf("assignment %+v, then %+v, %v", a, again, err)
			}
		}
		if e, err := DecodeEvidence(p); err == nil {
			if again, err := DecodeEvidence(e.Encode()); err != nil || again != e {
				t.Errorf("evidence %+v, then %+v, %v", e, again, err)
			}
		}
		if s, err := DecodeStart(p); err == nil {
			if again, err := DecodeStart(s.Encode()); err != nil || again != s {
				t.Errorf("start %+v, then %+v, %v", s, again, err)
			}
		}
		if h, err := DecodeHost(p); err == nil {
			if again, err := DecodeHost(h.Encode()); err != nil || again != h {
				t.Errorf("host %+v, then %+v, %v", h, again, err)
			}
		}
		if r, err := DecodeRoll(p); err == nil {
			if again, err := DecodeRoll(r.Encode()); err != nil || again != r {
				t.Errorf("roll %+v, then %+v, %v", r, again, err)
			}
		}
		if i, err := DecodeAdopted(p); err == nil {
			if again, err := DecodeAdopted(i.Encode()); err != nil || again != i {
				t.Errorf("adopted %+v, then %+v, %v", i, again, err)
			}
		}
		if u, err := DecodeUncut(p); err == nil {
			if again, err := DecodeUncut(u.Encode()); err != nil || again != u {
				t.Errorf("uncut %+v, then %+v, %v", u, again, err)
			}
		}
		if g, err := DecodeFloor(p); err == nil {
			if again, err := DecodeFloor(g.Encode()); err != nil || again != g {
				t.Errorf("floor %+v, then %+v, %v", g, again, err)
			}
		}
	})
}

// TestFoldAgreesWithTable drives the records as the agent does by what Next
// says, and looks that folding them gives the same flag.
func TestFoldAgreesWithTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vm := ee.UUID{1}
		s := Slot{Caps: ^ee.Caps(0), Now: Assignment{Kind: KindAdopt, To: 101, VM: vm, Gen: 1}}
		flag := None
		write := func(f Flag) { s.Evidence = &Evidence{Flag: f, Gen: s.Now.Gen} }
		assign := func(kind Kind, to uint16, preserve bool) {
			s.Now = Assignment{Kind: kind, To: to, VM: vm, Preserve: preserve, Gen: s.Now.Gen + 1}
			if !preserve {
				s.Root = s.Now.Gen
			}
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			on := rapid.SampledFrom([]Trigger{ArmProven, Fencing, Moving, Undoing, Starting, Disarming, Acking, Doubting, Replacing}).Draw(t, "trigger")
			clean := rapid.Bool().Draw(t, "clean")
			if on != ArmProven {
				clean = clean && s.HasEvidence() // without any, nothing can be compared
			}
			to, err := Next(flag, on, clean)
			if err != nil {
				continue
			}
			switch on {
			case Fencing:
				assign(KindFence, ee.GroupFree, true)
			case Moving:
				assign(KindMove, 102, true)
			case Undoing:
				assign(KindUndo, 101, true)
			case Replacing:
				assign(KindMove, 103, false)
			default:
				if to != flag {
					write(to)
				}
			}
			if to == Void && flag != Void && s.Flag() != Void {
				write(Void) // the agent records doubt after the links are as they should be
			}
			flag = to
			if got := s.Flag(); got != flag {
				t.Fatalf("after %s (clean %v): folded %s; the table says %s", on, clean, got, flag)
			}
		}
	})
}

func TestJudge(t *testing.T) {
	const good = ee.StatDevice | ee.StatPower
	seen := ee.Observation{Status: good, Resets: 4, Epoch: 7, Ident: 9, Proven: 4}
	base := ValuesOf(seen)
	now := Assignment{Kind: KindMove, To: 101, VM: ee.UUID{1}, Gen: 5, Preserve: true}
	all := ^ee.Caps(0)
	with := func(f func(o *ee.Observation)) *ee.Observation {
		o := seen
		f(&o)
		return &o
	}
	for _, tt := range []struct {
		name string
		s    Slot
		o    *ee.Observation
		want Answer
	}{
		{"proof, nothing since", Slot{Caps: all, Now: now, Evidence: &Evidence{Flag: None, Gen: 5}}, &seen, Yes},
		{"no proof", Slot{Caps: all, Now: now, Evidence: &Evidence{Flag: None, Gen: 5}}, with(func(o *ee.Observation) { o.Proven = 0 }), No},
		{"reset after the proof", Slot{Caps: all, Now: now, Evidence: &Evidence{Flag: None, Gen: 5}}, with(func(o *ee.Observation) { o.Resets++ }), No},
		{"proof, but nobody was ever seen to use it", Slot{Caps: all, Now: now}, &seen, No},
		{"proof and baseline of the VM before", Slot{Caps: all, Now: now, Root: 5, Evidence: &Evidence{Flag: Spent, Gen: 4, Base: base}}, &seen, No},
		{"held for the next VM, proof of the one before", Slot{Caps: all, Now: now, Root: 4, Evidence: &Evidence{Flag: Spent, Gen: 3, Base: base}}, &seen, No},
		{"armed, nothing since", Slot{Caps: all, Now: now, Evidence: &Evidence{Flag: Armed, Gen: 4, Base: base}}, &seen, Yes},
		{"armed, count and proof moved together", Slot{Caps: all, Now: now, Evidence: &Evidence{Flag: Armed, Gen: 4, Base: base}},
			with(func(o *ee.Observation) { o.Resets++; o.Proven++ }), No},
		{"acked, then a guest reboot and a proof", Slot{Caps: all, Now: now, Evidence: &Evidence{Flag: Spent, Gen: 5, Base: base}},
			with(func(o *ee.Observation) { o.Resets++; o.Proven++ }), Yes},
		{"acked, then power lost", Slot{Caps: all, Now: now, Evidence: &Evidence{Flag: Spent, Gen: 5, Base: base}},
			with(func(o *ee.Observation) { o.Epoch++ }), No},
		{"acked, then another card", Slot{Caps: all, Now: now, Evidence: &Evidence{Flag: Spent, Gen: 5, Base: base}},
			with(func(o *ee.Observation) { o.Ident++ }), No},
		{"engine restarted", Slot{Caps: all, Now: now, Evidence: &Evidence{Flag: Spent, Gen: 5, Base: base}},
			with(func(o *ee.Observation) { o.Proven = 0 }), No},
		{"void", Slot{Caps: all, Now: now, Evidence: &Evidence{Flag: Void, Gen: 5, Why: WhyOperator}}, &seen, No},
		{"device without power", Slot{Caps: all, Now: now, Evidence: &Evidence{Flag: None, Gen: 5}}, with(func(o *ee.Observation) { o.Status = ee.StatDevice }), No},
		{"not readable", Slot{Caps: all, Now: now}, nil, Unknown},
		{"engine without status", Slot{Now: now}, &seen, Unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := Judge(tt.s, tt.o)
			if v.Preserved != tt.want || v.Reason == "" {
				t.Errorf("Judge = %s (%s); want %s", v.Preserved, v.Reason, tt.want)
			}
		})
	}
}
