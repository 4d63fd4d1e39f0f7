package sim

import (
	"strings"
	"testing"

	"baton/ee"
)

func TestDefaults(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(Spec{})
		s := w.Spec()
		if len(s.Buses) != 1 || s.Buses[0].Hz != 400_000 || w.Chip("store").spec.Addr != 0x57 || w.Chip("gpu0").part.Size != 32768 ||
			w.Slot("gpu0").spec.EngineAddr != 0x40 || w.Server("server2").group != 102 {
			t.Errorf("%+v", s)
		}
	})
}

func TestCheck(t *testing.T) {
	slot := func(f func(*SlotSpec)) Spec { s := oneSlot(); f(&s.Slots[0]); return s }
	chip := func(f func(*ChipSpec)) Spec { s := oneSlot(); f(&s.Chips[0]); return s }
	for _, tt := range []struct {
		name string
		spec Spec
		want string // "" = good
	}{
		{"zero", Spec{}, ""},
		{"one slot", oneSlot(), ""},
		{"eight slots", eightSlots(), ""},
		{"same address on two buses", Spec{Buses: []BusSpec{{}, {}}, Chips: []ChipSpec{{Name: "a", Addr: 0x50}, {Name: "b", Addr: 0x50, Bus: "bus1"}}}, ""},
		{"nvm-only slots need no engine address", Spec{Chips: []ChipSpec{{Name: "a"}}, Slots: []SlotSpec{{Name: "x", Chip: "a", EngineAddr: 0x50, NVMOnly: true}}}, ""},
		{"same address", Spec{Chips: []ChipSpec{{Name: "a", Addr: 0x50}, {Name: "b", Addr: 0x50}}}, "address 0x50 on bus0 is taken by chip a"},
		{"address inside another's blocks", Spec{Chips: []ChipSpec{{Name: "a", Addr: 0x50, Part: "24c16"}, {Name: "b", Addr: 0x53}}}, "address 0x53 on bus0 is taken by chip a"},
		{"blocks not aligned", Spec{Chips: []ChipSpec{{Name: "a", Addr: 0x54, Part: "24c16"}}}, "takes 8 addresses"},
		{"engine on a chip's address", slot(func(l *SlotSpec) { l.EngineAddr = 0x57 }), "address 0x57 on bus0 is taken by chip store"},
		{"reserved address", chip(func(c *ChipSpec) { c.Addr = 0x78 }), "not in 0x08..0x77"},
		{"no such bus", chip(func(c *ChipSpec) { c.Bus = "bus7" }), `there is no bus "bus7"`},
		{"no such bus of a slot", slot(func(l *SlotSpec) { l.Bus = "bus7" }), `there is no bus "bus7"`},
		{"no such chip", slot(func(l *SlotSpec) { l.Chip = "x" }), `there is no chip "x"`},
		{"no such part", chip(func(c *ChipSpec) { c.Part = "24c08x" }), `unknown part "24c08x"`},
		{"block outside", slot(func(l *SlotSpec) { l.BlockOffset = 32768 - ee.BlockSize + 1 }), "outside its chip"},
		{"image too large", chip(func(c *ChipSpec) { c.Image = make([]byte, 32769) }), "image has 32769 bytes"},
		{"bus too slow", Spec{Buses: []BusSpec{{Hz: 10}}}, "10 Hz"},
		{"two of a name", Spec{Servers: []ServerSpec{{Name: "a"}, {Name: "a"}}}, `two servers are called "a"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.spec.Check()
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("Check = %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("Check = %v; want %q in it", err, tt.want)
			}
		})
	}
}

// TestMisspelled: names that are not there are bugs of the test.
func TestMisspelled(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(Spec{})
		for name, look := range map[string]func(){
			"Bus": func() { w.Bus("x") }, "Chip": func() { w.Chip("x") }, "Slot": func() { w.Slot("x") }, "Server": func() { w.Server("x") },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s of a name that is not there did not panic", name)
					}
				}()
				look()
			}()
		}
	})
}
