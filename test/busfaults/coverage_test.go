package busfaults

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"baton/sim"
)

// harmless are the methods of sim's parts that make nothing go wrong.
var harmless = map[string][]string{
	"Chip": {"Image", "PageWrites", "Peek", "Wear"},
	"Slot": {"DeviceMaster", "InsertDevice", "Pulse", "RegisterWrites", "Registers", "Retransmit", "Revive", "State"},
}

// harmful are the others, with the fault of the table that is made by them; ""
// are not of a bus, or are made in another test.
var harmful = map[string]map[string]string{
	"Chip": {
		"FlipBit":         "a bit flipped",
		"Poke":            "", // TestEveryBit
		"Replace":         "another part",
		"SetDead":         "missing",
		"SetImage":        "", // as Replace
		"SetUnstable":     "bytes that read differently",
		"SetWorn":         "worn out",
		"SetWriteCycle":   "write cycle over the maximum",
		"SetWriteProtect": "write-protected",
	},
	"Slot": {
		"CutDuringLoad":      "", // power: enclosure's campaign
		"IgnoreControl":      "ignores commands",
		"IgnoreControlAfter": "ignores all but the first",
		"Kill":               "dead",
		"RemoveDevice":       "", // the device: enclosure's tests
		"Restart":            "", // as RestartAfter; TestSetOfEight
		"RestartAfter":       "restarts by itself",
		"SetBlock":           "", // as Poke
		"SetEngine":          "another engine",
	},
}

// uncovered tells which faults and targets are in none of rows.
func uncovered(rows []row) []string {
	var out []string
	in := func(has func(r row) bool, what string, args ...any) {
		if !slices.ContainsFunc(rows, has) {
			out = append(out, fmt.Sprintf(what+" is in no line of the table", args...))
		}
	}
	for _, tg := range targets {
		in(func(r row) bool { return r.target == tg }, "target %s", tg.name)
		for k := range sim.FaultKind(sim.FaultKinds) {
			in(func(r row) bool { return r.fault.wire && r.fault.kind == k && r.target == tg }, "sim.FaultKind %d with target %s", k, tg.name)
		}
	}
	for _, f := range faults {
		in(func(r row) bool { return r.fault.name == f.name }, "fault %q", f.name)
	}
	return out
}

// TestCoverage fails where sim has a fault, or this package a fault or target,
// that no line of the table has.
func TestCoverage(t *testing.T) {
	all, named := rows(t), map[string]bool{}
	for _, r := range all {
		named[r.fault.name] = true
	}
	for _, missing := range uncovered(all) {
		t.Error(missing)
	}
	for _, f := range faults {
		if len(uncovered(slices.DeleteFunc(slices.Clone(all), func(r row) bool { return r.fault.name == f.name }))) == 0 {
			t.Errorf("nobody misses fault %q", f.name)
		}
	}
	for _, tg := range targets {
		if len(uncovered(slices.DeleteFunc(slices.Clone(all), func(r row) bool { return r.target == tg }))) == 0 {
			t.Errorf("nobody misses target %s", tg.name)
		}
	}
	for _, part := range []reflect.Type{reflect.TypeFor[*sim.Chip](), reflect.TypeFor[*sim.Slot]()} {
		name := part.Elem().Name()
		have := map[string]bool{}
		for method := range part.Methods() {
			m := method.Name
			have[m] = true
			fault, harms := harmful[name][m]
			switch {
			case slices.Contains(harmless[name], m):
			case !harms:
				t.Errorf("sim.%s.%s: say whether it makes something go wrong, and which fault of the table it is", name, m)
			case fault != "" && !named[fault]:
				t.Errorf("sim.%s.%s: its fault %q is in no line of the table", name, m, fault)
			}
		}
		for m := range harmful[name] {
			if !have[m] {
				t.Errorf("sim.%s.%s is no longer there", name, m)
			}
		}
	}
}
