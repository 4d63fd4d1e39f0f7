package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"baton/enclosure/bug"
	"baton/sim/control"

	"go.uber.org/goleak"
)

// binaries is where the programs are that tests run; "" = none was built.
var binaries string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(binaries); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}))
}

// programs builds batond and batonsim once for all tests.
var programs = sync.OnceValues(func() (dir string, err error) {
	if binaries, err = os.MkdirTemp("", "bkillbin"); err != nil {
		return "", err
	}
	return binaries, build(context.Background(), binaries)
})

// setting is a directory, which is short, and options for a test.
func setting(t *testing.T) (string, options) {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "bkill")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(dir, "*", "batond.log"))
			for _, name := range logs {
				text, _ := os.ReadFile(name)
				t.Logf("%s:\n%s", name, text[max(0, len(text)-6000):])
			}
		}
		_ = os.RemoveAll(dir)
	})
	return dir, options{seed: 1, workers: 2, each: 1000, bin: bin, wait: patience, say: func(format string, args ...any) { t.Logf(format, args...) }}
}

// A few dozen kills, with the same draws each time. make kill has a thousand.
func TestKills(t *testing.T) {
	t.Parallel()
	dir, o := setting(t)
	o.runs = 24
	r, err := campaign(t.Context(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d\n%s", o.seed, r.table())
	for _, w := range r.wrong {
		t.Error(w)
	}
	inside := 0
	for _, by := range r.hits {
		inside += by[toCommit] + by[links]
	}
	if r.runs != o.runs || inside < 5 {
		t.Errorf("%d of %d runs, %d kills in the middle of an operation; want 5", r.runs, o.runs, inside)
	}
}

// An agent with a bug against an invariant is caught within a few kills.
func TestPlanted(t *testing.T) {
	dir, o := setting(t)
	o.bin = filepath.Join(dir, "buggy")
	if err := build(t.Context(), o.bin, "-tags", "batonbug"); err != nil {
		t.Fatal(err)
	}
	o.wait = 10 * time.Second
	for _, tt := range []struct {
		bug    bug.Bug
		forget bool
		want   string // in what is found
	}{
		{bug.Together, false, "together"},
		{"", true, ""}, // a store that loses what was acknowledged
	} {
		t.Run("bug "+string(tt.bug), func(t *testing.T) {
			o := o
			o.runs, o.most, o.forget, o.env = 60, 1, tt.forget, []string{"BATON_BUG=" + string(tt.bug)}
			o.say = func(format string, args ...any) { t.Logf(format, args...) }
			r, err := campaign(t.Context(), filepath.Join(dir, "w"+string(tt.bug)), o)
			if err != nil {
				t.Fatal(err)
			}
			if found := strings.Join(r.wrong, "\n"); found == "" || !strings.Contains(found, tt.want) {
				t.Errorf("%d kills found %q; want %q", r.runs, found, tt.want)
			}
		})
	}
}

func TestPhase(t *testing.T) {
	for _, tt := range []struct {
		p    progress
		want phase
	}{
		{progress{of: 2, links: true}, beforeIntent},
		{progress{of: 2, links: true, intent: true}, toCommit},
		{progress{of: 2, links: true, intent: true, blocks: 1}, toCommit},
		{progress{of: 2, links: true, intent: true, blocks: 2}, links},
		{progress{of: 2, intent: true, blocks: 2}, afterwards},
		{progress{of: 0, intent: true}, afterwards},
		{progress{of: 0}, beforeIntent},
		{progress{of: 2, links: true, replied: true}, afterwards},
	} {
		if got := tt.p.phase(); got != tt.want {
			t.Errorf("%+v: %s; want %s", tt.p, got, tt.want)
		}
	}
}

// Each check finds what it is for, and nothing in a world that is well.
func TestChecks(t *testing.T) {
	set := []string{"a", "b"}
	reach := func(slot, server string, from, to control.Duration) control.Interval {
		return control.Interval{Slot: slot, Server: server, From: from, To: to}
	}
	well := control.Record{Now: 100, MaxOwners: map[string]int{"a": 1}, Reach: []control.Interval{
		reach("a", "s1", 0, 10), reach("b", "s1", 0, 12), reach("a", "s2", 20, 30), reach("b", "s2", 25, 30), reach("c", "s3", 0, 30),
	}}
	if got := recorded(well, set); len(got) > 0 {
		t.Errorf("a world that is well: %q", got)
	}
	for want, spoil := range map[string]func(*control.Record){
		"one owner": func(r *control.Record) { r.MaxOwners = map[string]int{"a": 2} },
		"hardware":  func(r *control.Record) { r.Violations = []control.Violation{{Name: "a"}} },
		"together":  func(r *control.Record) { r.Reach = append(r.Reach, reach("b", "s1", 29, 30)) },
	} {
		r := well
		r.Reach = append([]control.Interval(nil), well.Reach...)
		spoil(&r)
		if got := recorded(r, set); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s: %q", want, got)
		}
	}
	if why := reachedSince(well, "s2", 31); why != "" {
		t.Errorf("s2, fenced since 31: %s", why)
	}
	if reachedSince(well, "s2", 29) == "" {
		t.Error("s2, fenced since 29, had a link until 30")
	}

	for _, tt := range []struct {
		was, now string
		want     bool
	}{{"", "aa-1", true}, {"aa-1", "aa-1", true}, {"aa-9", "aa-10", true}, {"aa-10", "aa-9", false}, {"aa-1", "ab-2", false}} {
		if got := older(tt.was, tt.now) == ""; got != tt.want {
			t.Errorf("generation %s after %s: %v; want %v", tt.now, tt.was, got, tt.want)
		}
	}
	for _, tt := range []struct {
		preserved           string
		intact, same, keeps bool
		want                bool
	}{
		{"yes", true, true, true, true}, {"yes", false, true, true, false}, {"yes", true, false, true, false},
		{"no", true, true, true, false}, {"unknown", true, true, true, false}, {"no", true, true, false, true}, {"no", false, false, true, true},
	} {
		if got := falsely(tt.preserved, tt.intact, tt.same, tt.keeps) == ""; got != tt.want {
			t.Errorf("%+v: right: %v", tt, got)
		}
	}

	state := func(a, b control.SlotState, pages uint64) control.State {
		a.Name, b.Name = "a", "b"
		return control.State{Slots: []control.SlotState{a, b}, Chips: []control.ChipState{{Name: "a"}, {Name: "b", PageWrites: pages}}}
	}
	old := control.SlotState{Generation: "aa-1", Reacher: "s1"}
	cut := control.SlotState{Generation: "aa-2"}
	linked := control.SlotState{Generation: "aa-2", Reacher: "s2"}
	before := state(old, old, 0)
	for i, tt := range []struct {
		now  control.State
		want bool
	}{{before, false}, {state(cut, cut, 0), false}, {state(linked, cut, 0), false}, {state(linked, linked, 0), false}, {state(linked, old, 0), true}, {state(linked, control.SlotState{Generation: "aa-1"}, 0), true}} {
		if got := early(tt.now, set, "s2", before); (got != "") != tt.want {
			t.Errorf("early, case %d: %q", i, got)
		}
	}
	for i, tt := range []struct {
		now  control.State
		want int
	}{{before, 0}, {state(linked, old, 0), 0}, {state(old, cut, 0), 1}, {state(old, old, 1), 1}} {
		if got := untouched(before, tt.now, []string{"a"}); len(got) != tt.want {
			t.Errorf("untouched, case %d: %q", i, got)
		}
	}
}

// The campaign fails where a phase was never hit.
func TestMissed(t *testing.T) {
	r := newResult()
	for _, op := range ops {
		for _, p := range phases {
			if has(op, p) {
				r.add(kill{op: op, phase: p})
			}
		}
	}
	if m := r.missed(); len(m) > 0 {
		t.Errorf("all were hit, and yet %q", m)
	}
	delete(r.hits["move"], links)
	if m := fmt.Sprint(r.missed()); m != "[move, links]" {
		t.Errorf("missed %s; want the links of a move", m)
	}
}
