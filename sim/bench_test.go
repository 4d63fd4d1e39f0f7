package sim

import (
	"fmt"
	"testing"
	"testing/synctest"

	"baton/ee"
)

// inBubble runs a benchmark's loop in a bubble. Package synctest knows only
// tests, so it gets one that nobody reports on. The clock inside is virtual:
// only the loop over b.N goes in, never the timer.
func inBubble(b *testing.B, f func()) {
	b.Helper()
	b.ReportAllocs()
	synctest.Test(new(testing.T), func(*testing.T) { f() })
}

func BenchmarkTx(b *testing.B) {
	store := make([]byte, 66)
	big := make([]byte, 8192)
	for _, bb := range []struct {
		name string
		tx   func(*Bus)
	}{
		{"nack", func(x *Bus) { x.Tx(0x10, store[:1], nil) }},
		{"read64", func(x *Bus) { x.Tx(0x50, store[:2], big[:64]) }},
		{"read8192", func(x *Bus) { x.Tx(0x50, store[:2], big) }},
		{"statusburst", func(x *Bus) { x.Tx(0x40, []byte{1, 8}, big[:16]) }},
		{"pagewrite", func(x *Bus) {
			for x.Tx(0x57, store, nil) != nil {
			}
		}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			inBubble(b, func() {
				w := New(Spec{})
				bus := w.Bus("bus0")
				for range b.N {
					bb.tx(bus)
				}
			})
		})
	}
}

// eightSlots is the largest world the figures ask for.
func eightSlots() Spec {
	s := Spec{Chips: []ChipSpec{{Name: "store", Addr: 0x20}}}
	for i := range 8 {
		n := fmt.Sprintf("gpu%d", i)
		s.Chips = append(s.Chips, ChipSpec{Name: n, Addr: uint16(0x50 + i)})
		s.Slots = append(s.Slots, SlotSpec{Name: n, Block: &ee.Block{Group: 101, From: ee.GroupFree}})
	}
	return s
}

func BenchmarkWorld(b *testing.B) {
	for _, bb := range []struct {
		name string
		spec Spec
	}{{"1slot", Spec{}}, {"8slots", eightSlots()}} {
		b.Run("New/"+bb.name, func(b *testing.B) {
			inBubble(b, func() {
				for range b.N {
					New(bb.spec)
				}
			})
		})
		b.Run("Clone/"+bb.name, func(b *testing.B) {
			inBubble(b, func() {
				w := New(bb.spec)
				for range b.N {
					w.Clone()
				}
			})
		})
		b.Run("Snapshot.World/"+bb.name, func(b *testing.B) {
			inBubble(b, func() {
				s := New(bb.spec).Snapshot()
				for range b.N {
					s.World()
				}
			})
		})
	}
}
