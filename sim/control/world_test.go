package control

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"baton/ee"
	"baton/sim"
)

// full has something in every field that a file can have.
func full() sim.Spec {
	return sim.Spec{
		Seed: 7, ReloadLatency: time.Millisecond, EngineStartTime: 2 * time.Millisecond, DeviceResetTime: 3 * time.Millisecond,
		LinkUpTime: 4 * time.Microsecond, SwitchTime: 5 * time.Nanosecond, DMAPeriod: 6 * time.Second, EngineRetryMax: 7 * time.Millisecond,
		DVSECVendor: 0x1033, SwitchKeeps: true, Off: true,
		Buses: []sim.BusSpec{{Name: "a", Hz: 100_000, Timeout: time.Second}, {Name: "b", Hz: 400_000}},
		Chips: []sim.ChipSpec{{Name: "store", Bus: "b", Addr: 0x57, Part: "24c512", WriteCycle: 4 * time.Millisecond, Endurance: 9}},
		Slots: []sim.SlotSpec{{
			Name: "gpu0", Bus: "a", EngineAddr: 0x41, Chip: "store", BlockOffset: 128, MAC: sim.MAC{1, 2, 3, 4, 5, 6},
			Vendor: 0x10de, Device: 0x2330, Class: 0x030200, Serial: 0x48b02d0300a1b2c3, MemoryBytes: 8192, Port: "lan3", NVMOnly: true,
			Block: &ee.Block{Group: 101, From: ee.GroupFree, Generation: ee.Generation{Incarnation: 1, Counter: 2}, Flags: ee.FlagTarget | ee.FlagHeld,
				VM: ee.UUID{1}, Move: ee.UUID{2}},
		}},
		Servers: []sim.ServerSpec{{Name: "s1", Group: 101, MAC: sim.MAC{6, 5, 4, 3, 2, 1}, Off: true}},
	}
}

func TestWorldRoundTrip(t *testing.T) {
	for name, want := range map[string]sim.Spec{"full": full(), "example": ExampleWorld(), "nothing": {}} {
		got, err := ParseWorld(FormatWorld(want))
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, FormatWorld(want))
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s, formatted and parsed (-want +got):\n%s", name, d)
		}
	}
}

// A field that sim.Spec has and the file has not would be lost silently: full
// has to have all of them, so that the round trip shows.
func TestFullIsFull(t *testing.T) {
	var check func(path string, v reflect.Value)
	check = func(path string, v reflect.Value) {
		if v.Type() == reflect.TypeFor[time.Duration]() || v.Type() == reflect.TypeFor[sim.MAC]() {
			if v.IsZero() {
				t.Errorf("%s is zero", path)
			}
			return
		}
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				check(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case reflect.Slice:
			if path == "Spec.Chips.Image" {
				return // what a chip holds is not part of the file
			}
			if v.Len() == 0 {
				t.Errorf("%s is empty", path)
				return
			}
			check(path, v.Index(0))
		case reflect.Pointer:
			check(path, v.Elem())
		default:
			if v.IsZero() {
				t.Errorf("%s is zero", path)
			}
		}
	}
	check("Spec", reflect.ValueOf(full()))
}

func TestParseWorldRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                          "EOF",
		`[]`:                        "cannot unmarshal",
		`{} {}`:                     "behind",
		`{"busses":[]}`:             "busses",
		`{"reload_latency":"soon"}`: "soon",
		`{"reload_latency":"-1s"}`:  "below zero",
		`{"chips":[{"name":"x","addr":"0x100000"}]}`: "0x100000",
		`{"chips":[{"name":"x","addr":-1}]}`:         "-1",
		`{"chips":[{"name":"x","part":"24c9"}]}`:     "24c9",
		`{"slots":[{"name":"x","mac":"1:2:3"}]}`:     "1:2:3",
		`{"slots":[{"name":"x"}]}`:                   `no chip "x"`,
		`{"servers":[{"name":"x"},{"name":"x"}]}`:    "two servers",
		`{"chips":[{"name":"x"}],"slots":[{"name":"x","block":{"group":5,"from":4093,"generation":"00000001-1"}}]}`:                 "group 5",
		`{"chips":[{"name":"x"}],"slots":[{"name":"x","block":{"group":101,"from":4093,"generation":"1"}}]}`:                        `generation "1"`,
		`{"chips":[{"name":"x"}],"slots":[{"name":"x","block":{"group":101,"from":4093,"generation":"00000001-1","vm":"train1"}}]}`: "train1",
	} {
		_, err := ParseWorld([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseWorld(%s) = %v; want something with %q", text, err, want)
		}
	}
}

func FuzzParseWorld(f *testing.F) {
	f.Add(FormatWorld(ExampleWorld()))
	f.Add([]byte(`{"chips":[{"name":"x","addr":87}],"slots":[{"name":"x"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ParseWorld(text)
		if err != nil {
			return
		}
		again, err := ParseWorld(FormatWorld(s))
		if err != nil {
			t.Fatalf("%v\n%s", err, FormatWorld(s))
		}
		if d := cmp.Diff(s, again); d != "" {
			t.Errorf("parsed, formatted and parsed (-was +is):\n%s", d)
		}
	})
}
