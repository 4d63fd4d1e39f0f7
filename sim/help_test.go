package sim

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"baton/ee"
)

// in runs a test in a bubble.
func in(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// must is for transfers that have no reason to fail.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// blockFor is a config block of a group.
func blockFor(group uint16) *ee.Block {
	return &ee.Block{Group: group, From: ee.GroupFree, Generation: ee.Generation{Incarnation: 0xCAFE0001, Counter: 7}}
}

// oneSlot is a world with a slot in group 101.
func oneSlot() Spec {
	return Spec{
		Chips: []ChipSpec{{Name: "store", Addr: 0x57}, {Name: "gpu0", Addr: 0x50}},
		Slots: []SlotSpec{{Name: "gpu0", Block: blockFor(101)}},
	}
}

// engine is the register file of a slot, as an agent sees it.
type engine struct {
	t   *testing.T
	bus *Bus
	at  uint16
}

func engineOf(t *testing.T, w *World, slot string) engine {
	s := w.Slot(slot).spec
	return engine{t, w.Bus(s.Bus), s.EngineAddr}
}

func (e engine) set(reg uint16, v ...byte) {
	e.t.Helper()
	must(e.t, e.bus.Tx(e.at, append([]byte{byte(reg >> 8), byte(reg)}, v...), nil))
}

func (e engine) get(reg uint16, n int) []byte {
	e.t.Helper()
	r := make([]byte, n)
	must(e.t, e.bus.Tx(e.at, []byte{byte(reg >> 8), byte(reg)}, r))
	return r
}

func (e engine) get1(reg uint16) byte { e.t.Helper(); return e.get(reg, 1)[0] }

func (e engine) get4(reg uint16) uint32 {
	e.t.Helper()
	return binary.LittleEndian.Uint32(e.get(reg, 4))
}

// boot lets engines load.
func boot(w *World) {
	time.Sleep(w.spec.EngineStartTime + w.spec.ReloadLatency + w.spec.DeviceResetTime)
}

// linked is a world whose slot gpu0 is linked to server1, with latches clear
// and these bits of CONTROL beside link and power.
func linked(t *testing.T, s Spec, control byte) (*World, engine) {
	t.Helper()
	w := New(s)
	boot(w)
	e := engineOf(t, w, "gpu0")
	e.set(ee.RegLatch, 0xFF)
	e.set(ee.RegControl, ee.CtlPower|ee.CtlLink|control)
	time.Sleep(w.spec.LinkUpTime)
	if !w.Server("server1").Reach("gpu0") {
		t.Fatalf("gpu0 is not linked to server1: %+v", w.Slot("gpu0").State())
	}
	return w, e
}
