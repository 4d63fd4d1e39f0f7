package busfaults

import (
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

// TestCoverage fails where sim has a fault, or this package a fault or target,
// that no line of the table has.
func TestCoverage(t *testing.T) {
	kinds, named, hit := map[sim.FaultKind]bool{}, map[string]bool{}, map[string]bool{}
	for _, r := range rows(t) {
		if r.fault.wire {
			kinds[r.fault.kind] = true
		}
		named[r.fault.name] = true
		hit[r.target.name] = true
	}
	for k := range sim.FaultKind(sim.FaultKinds) {
		if !kinds[k] {
			t.Errorf("sim.FaultKind %d is in no line of the table", k)
		}
		for _, tg := range targets {
			if !slices.ContainsFunc(rows(t), func(r row) bool { return r.fault.wire && r.fault.kind == k && r.target == tg }) {
				t.Errorf("sim.FaultKind %d does not meet target %s", k, tg.name)
			}
		}
	}
	for _, f := range faults {
		if !named[f.name] {
			t.Errorf("fault %q is in no line of the table", f.name)
		}
	}
	for _, tg := range targets {
		if !hit[tg.name] {
			t.Errorf("target %s is in no line of the table", tg.name)
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
