package plan

import (
	"fmt"
	"io"
	"strings"

	"baton/ee"
)

//go:generate go run ./tables ../../docs/state-tables.md

// WriteTables prints the tables that the agent works by, as the page
// docs/state-tables.md.
func WriteTables(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# The tables that the agent works by

This page is generated from enclosure/plan (go generate ./enclosure/plan); a
test fails when it is old. The words are those of design.md.

## The flag

What is not listed is refused with code wrong-state. "Nothing seen" means that
the engine's words are those of the baseline: verdict yes.

| from | event | to, nothing seen | to, else | note |
|---|---|---|---|---|
`)
	for _, r := range Rules {
		from := make([]string, len(r.From))
		for i, f := range r.From {
			from[i] = string(f)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", strings.Join(from, ", "), r.On, r.To, r.Otherwise, r.Note)
	}
	b.WriteString(`
## What the records mean

The flag is folded from the newest assignment of the slot and the last evidence
(arm, disarm, ack, start in place, doubt); the tables above say which of them
are written.

| newest assignment | last evidence | flag |
|---|---|---|
`)
	for _, row := range foldRows {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", row.assignment, row.evidence, row.slot().Flag())
	}
	b.WriteString(`
## Guard by policy

Guard swallows resets from the host side, hold keeps the device when the link
drops.

| policy | none | armed | target | spent | void | held |
|---|---|---|---|---|---|---|
`)
	for _, p := range []Policy{Never, OnMove, Always} {
		fmt.Fprintf(&b, "| %s |", p)
		for _, f := range []Flag{None, Armed, Target, Spent, Void} {
			fmt.Fprintf(&b, " %s |", p.Guard(f, false))
		}
		fmt.Fprintf(&b, " %s |\n", p.Guard(None, true))
	}
	b.WriteString(`
## What recovery finds and does

Each row is one difference from what the store says; several add up. Where
nothing differs, nothing is written.

| found | write block | cut | reload | connect | show |
|---|---|---|---|---|---|
`)
	for _, row := range compareRows {
		d := row.diff()
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", row.name, mark(d, DoWrite), mark(d, DoCut), mark(d, DoReload), mark(d, DoConnect), mark(d, DoShow))
	}
	b.WriteString(`
## Which invariants a profile's hardware can hold

| profile | capabilities | can not hold |
|---|---|---|
`)
	for _, name := range ee.ProfileNames() {
		p, err := ee.LoadProfile(name)
		if err != nil {
			return err
		}
		var not []string
		for n := ee.Invariant(1); n <= ee.Invariants; n++ {
			if ok, why := p.Holds(n); !ok {
				not = append(not, fmt.Sprintf("%d: %s", n, why))
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, strings.Join(p.Caps.Names(), ", "), strings.Join(not, "; "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (g Guarding) String() string {
	switch {
	case g.Guard && g.Hold:
		return "guard, hold"
	case g.Guard:
		return "guard"
	case g.Hold:
		return "hold"
	}
	return "-"
}

func mark(d, bit Diff) string {
	if d.Has(bit) {
		return "x"
	}
	return ""
}

// foldRows are one example for each way of folding.
var foldRows = []struct {
	assignment, evidence string
	slot                 func() Slot
}{
	{"none", "any", func() Slot { return Slot{} }},
	{"any", "of the same generation", func() Slot {
		return Slot{Now: Assignment{Kind: KindMove, Gen: 2, To: ee.GroupMin}, Evidence: &Evidence{Gen: 2, Flag: Spent}}
	}},
	{"does not preserve, or brings another VM", "older", func() Slot {
		return Slot{Now: Assignment{Kind: KindMove, Gen: 2, To: ee.GroupMin}, Root: 2, Evidence: &Evidence{Gen: 1, Flag: Spent}}
	}},
	{"preserves, to a host", "older, not void", func() Slot {
		return Slot{Now: Assignment{Kind: KindMove, Gen: 2, To: ee.GroupMin, Preserve: true}, Evidence: &Evidence{Gen: 1, Flag: Spent}}
	}},
	{"preserves, held", "older, not void", func() Slot {
		return Slot{Now: Assignment{Kind: KindFence, Gen: 2, To: ee.GroupFree, Preserve: true}, Evidence: &Evidence{Gen: 1, Flag: Spent}}
	}},
	{"preserves", "none since the VM got the device", func() Slot {
		return Slot{Now: Assignment{Kind: KindMove, Gen: 3, To: ee.GroupMin, Preserve: true}, Root: 2, Evidence: &Evidence{Gen: 1, Flag: Spent}}
	}},
	{"adopt, drop, forced", "written with it", func() Slot {
		return Slot{Now: Assignment{Kind: KindDrop, Gen: 2, To: ee.GroupFree, VM: ee.UUID{1}}, Root: 2, Evidence: &Evidence{Gen: 2, Flag: Void, Why: WhyOperator}}
	}},
	{"preserves", "older, void", func() Slot {
		return Slot{Now: Assignment{Kind: KindMove, Gen: 2, To: ee.GroupMin, Preserve: true}, Evidence: &Evidence{Gen: 1, Flag: Void}}
	}},
}

type compareRow struct {
	name   string
	change func(w *Want, f *Found)
}

// compareRows are the single differences that Compare knows.
var compareRows = []compareRow{
	{"all as the store says", func(*Want, *Found) {}},
	{"page damaged or blank", func(_ *Want, f *Found) { f.Block = nil }},
	{"page of another group or generation", func(_ *Want, f *Found) { f.Block.Generation.Counter-- }},
	{"page's flags differ", func(_ *Want, f *Found) { f.Block.Flags ^= ee.FlagTarget }},
	{"power may have been lost inside a write cycle", func(_ *Want, f *Found) { f.Suspect = true }},
	{"engine has not loaded", func(_ *Want, f *Found) { f.Live.Status &^= ee.StatLoaded }},
	{"engine says config bad", func(_ *Want, f *Found) { f.Live.Status |= ee.StatConfigBad }},
	{"engine runs with another group", func(_ *Want, f *Found) { f.Live.Group++ }},
	{"link on, must be off", func(w *Want, _ *Found) { w.Link = false }},
	{"link off, must be on", func(_ *Want, f *Found) { f.Live.Control &^= ee.CtlLink }},
	{"another peer expected", func(_ *Want, f *Found) { f.Peer[0]++ }},
	{"flag shown differs", func(_ *Want, f *Found) { f.Show ^= ee.ShowTarget }},
	{"guard off, policy wants it", func(_ *Want, f *Found) { f.Live.Control &^= ee.CtlGuard }},
	{"guard on, policy does not", func(w *Want, _ *Found) { w.Guard = false }},
}

// diff is what Compare says of a linked slot that differs by row alone.
func (row *compareRow) diff() Diff {
	b := ee.Block{Group: ee.GroupMin, From: ee.GroupFree, Generation: ee.Generation{Incarnation: 1, Counter: 2}}
	page := b
	w := Want{Block: b, Link: true, Peer: ee.MAC{2}, Show: ee.ShowValid, Guarding: Guarding{true, true}}
	f := Found{
		Block: &page, Peer: w.Peer, Show: w.Show,
		Live: &ee.Observation{Control: ee.CtlLink | ee.CtlGuard | ee.CtlHold | ee.CtlPower, Status: ee.StatLoaded | ee.StatLink, Group: b.Group},
	}
	row.change(&w, &f)
	return Compare(w, f, ^ee.Caps(0))
}
