package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"baton/ee"
)

const base = ee.CtlPower // CONTROL after a start

func TestPowerOn(t *testing.T) {
	in(t, func(t *testing.T) {
		s := oneSlot()
		s.Slots[0].Serial = 0x1122334455667788
		w := New(s)
		e := engineOf(t, w, "gpu0")
		if err := e.bus.Tx(e.at, []byte{0, 0}, make([]byte, 4)); !errors.Is(err, syscall.ENXIO) {
			t.Errorf("before EngineStartTime: %v; want ENXIO", err)
		}
		time.Sleep(5*time.Millisecond - w.Now())
		if got := e.get1(ee.RegStatus); got != ee.StatDevice|ee.StatPower|ee.StatResetting {
			t.Errorf("STATUS at the start = 0x%02x", got)
		}
		time.Sleep(10*time.Millisecond - w.Now())

		want := make([]byte, ee.RegEnd)
		le := binary.LittleEndian
		copy(want, "EEI1")
		le.PutUint16(want[ee.RegRevision:], 0x0100)
		copy(want[ee.RegMAC:], []byte{2, 'E', 'E', 0, 0, 1})
		le.PutUint16(want[ee.RegVendor:], 0x10DE)
		le.PutUint16(want[ee.RegDevice:], 0x20B5)
		le.PutUint32(want[ee.RegClass:], 0x030200)
		le.PutUint64(want[ee.RegSerial:], 0x1122334455667788)
		want[ee.RegControl] = base
		want[ee.RegStatus] = ee.StatPeer | ee.StatDevice | ee.StatPower | ee.StatLoaded
		want[ee.RegLatch] = ee.LatchPowerLost | ee.LatchRestarted
		le.PutUint16(want[ee.RegGroup:], 101)
		le.PutUint32(want[ee.RegResets:], 1)
		le.PutUint32(want[ee.RegIdent:], crc32.Checksum(want[:0x1C], crc32.MakeTable(crc32.Castagnoli)))
		copy(want[ee.RegPeerMAC:], []byte{2, 'S', 'V', 0, 0, 1})
		le.PutUint16(want[ee.RegPeerGroup:], 101)
		le.PutUint32(want[ee.RegGeneration:], 0xCAFE0001)
		le.PutUint32(want[ee.RegGeneration+4:], 7)
		le.PutUint16(want[ee.RegFromGroup:], ee.GroupFree)
		got := e.get(0, ee.RegEnd)
		epoch := got[ee.RegEpoch : ee.RegEpoch+4]
		if bytes.Equal(epoch, make([]byte, 4)) {
			t.Error("POWER_EPOCH is 0")
		}
		copy(want[ee.RegEpoch:], epoch)
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		if r := e.get(ee.RegEnd, 3); !bytes.Equal(r, []byte{0xFF, 0xFF, 0xFF}) {
			t.Errorf("beyond the registers: % x", r)
		}
		time.Sleep(time.Second)
		if len(w.Reach()) != 0 {
			t.Errorf("an engine linked up by itself: %v", w.Reach())
		}
	})
}

// TestReadOnly writes ones into every register but CONTROL: only those meant to
// be written take them.
func TestReadOnly(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		boot(w)
		e := engineOf(t, w, "gpu0")
		before := w.Slot("gpu0").Registers()
		for reg := range uint16(ee.RegEnd + 4) {
			if reg != ee.RegControl {
				e.set(reg, 0xFF)
			}
		}
		want := before
		copy(want[ee.RegExpectPeer:], bytes.Repeat([]byte{0xFF}, 6))
		want[ee.RegDVSEC] = 0x0F
		want[ee.RegLatch] = 0
		copy(want[ee.RegProven:], bytes.Repeat([]byte{0xFF}, 4))
		copy(want[ee.RegPeerMAC:], make([]byte, 6)) // nobody has the MAC expected
		copy(want[ee.RegPeerGroup:], make([]byte, 2))
		want[ee.RegStatus] &^= ee.StatPeer
		got := w.Slot("gpu0").Registers()
		if d := cmp.Diff(want[:], got[:]); d != "" {
			t.Error(d)
		}
	})
}

func TestReload(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		boot(w)
		e := engineOf(t, w, "gpu0")
		keep := byte(ee.CtlGuard | ee.CtlHold | ee.CtlQuiesce | ee.CtlPower | ee.CtlLocate)
		e.set(ee.RegExpectPeer, 2, 'S', 'V', 0, 0, 2, ee.ShowValid|ee.ShowTarget, keep)
		e.set(ee.RegProven, 9, 0, 0, 0)
		e.set(ee.RegLatch, 0xFF)
		w.Slot("gpu0").SetBlock(*blockFor(102))
		if st := w.Slot("gpu0").State(); st.Block.Group != 101 {
			t.Fatalf("the block counts before a reload: %+v", st.Block)
		}
		e.set(ee.RegControl, keep|ee.CtlReload)
		began := w.Now() - e.bus.span(stopBit) // effect at the byte's acknowledge
		st := w.Slot("gpu0").State()
		if st.Status&ee.StatLoaded != 0 || st.Show != 0 || st.Expect != (MAC{}) || st.Control != keep || st.Block.Group != 0 {
			t.Errorf("during the load: %+v", st)
		}
		time.Sleep(w.spec.ReloadLatency - (w.Now() - began) - 1)
		if w.Slot("gpu0").State().Status&ee.StatLoaded != 0 {
			t.Error("loaded too early")
		}
		time.Sleep(time.Nanosecond)
		st = w.Slot("gpu0").State()
		if st.Status&ee.StatLoaded == 0 || st.Block.Group != 102 || st.Control != keep || st.Latch != 0 || st.Proven != 9 || st.Resets != 1 {
			t.Errorf("after the load: %+v", st)
		}
		e.set(ee.RegControl, keep|ee.CtlLink)
		time.Sleep(w.spec.LinkUpTime)
		if st = w.Slot("gpu0").State(); st.Peer != "server2" {
			t.Errorf("linked to %q; want server2", st.Peer)
		}
	})
}

func TestReloadWithLinkPanics(t *testing.T) {
	for _, tt := range []struct {
		name   string
		writes []byte
	}{
		{"same write", []byte{base | ee.CtlLink | ee.CtlReload}},
		{"link was on", []byte{base | ee.CtlLink, base | ee.CtlReload}},
		{"both", []byte{base | ee.CtlLink, base | ee.CtlLink | ee.CtlReload}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w := New(oneSlot())
				boot(w)
				e := engineOf(t, w, "gpu0")
				for i, v := range tt.writes {
					func() {
						defer func() {
							r := recover()
							if last := i == len(tt.writes)-1; (r != nil) != last {
								t.Errorf("write %d panicked with %v", i, r)
							} else if last && !strings.Contains(fmt.Sprint(r), "gpu0: reload with the link enabled") {
								t.Errorf("panic says %q", r)
							}
						}()
						e.set(ee.RegControl, v)
					}()
				}
				e.get1(ee.RegStatus) // the bus is usable after a panic
			})
		})
	}
}

func TestBadBlock(t *testing.T) {
	good := blockFor(101).Encode()
	for _, tt := range []struct {
		name string
		page []byte
	}{
		{"erased", bytes.Repeat([]byte{0xFF}, 64)},
		{"zero", make([]byte, 64)},
		{"bit flip", func() []byte { p := bytes.Clone(good); p[30] ^= 1; return p }()},
		{"half", append(bytes.Clone(good[:32]), bytes.Repeat([]byte{0xFF}, 32)...)},
		{"foreign", append([]byte("ONIE"), good[4:]...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w := New(oneSlot())
				w.Chip("gpu0").SetImage(tt.page)
				boot(w)
				e := engineOf(t, w, "gpu0")
				if got := e.get1(ee.RegStatus); got != ee.StatDevice|ee.StatPower|ee.StatLoaded|ee.StatConfigBad {
					t.Errorf("STATUS = 0x%02x", got)
				}
				e.set(ee.RegControl, base|ee.CtlLink)
				time.Sleep(time.Second)
				if len(w.Reach()) != 0 {
					t.Error("it linked up")
				}
				if v := w.Violations(); len(v) != 1 {
					t.Errorf("violations = %v; want one", v)
				}
				// Repaired and reloaded, it is good.
				w.Slot("gpu0").SetBlock(*blockFor(101))
				e.set(ee.RegControl, base)
				e.set(ee.RegControl, base|ee.CtlReload)
				time.Sleep(w.spec.ReloadLatency)
				if got := e.get1(ee.RegStatus); got&ee.StatConfigBad != 0 {
					t.Errorf("STATUS after repair = 0x%02x", got)
				}
			})
		})
	}
}

func TestFreeBlock(t *testing.T) {
	in(t, func(t *testing.T) {
		s := oneSlot()
		s.Slots[0].Block = blockFor(ee.GroupFree)
		w := New(s)
		boot(w)
		w.Server("server1").SetGroup(ee.GroupFree)
		e := engineOf(t, w, "gpu0")
		e.set(ee.RegControl, base|ee.CtlLink)
		time.Sleep(time.Second)
		if len(w.Reach()) != 0 {
			t.Error("a free slot linked up")
		}
		if got := binary.LittleEndian.Uint16(e.get(ee.RegGroup, 2)); got != ee.GroupFree {
			t.Errorf("GROUP = %d; want %d", got, ee.GroupFree)
		}
	})
}

// TestTwoMasters has the agent use the chip while the engine loads from it.
func TestTwoMasters(t *testing.T) {
	page := make([]byte, 66)
	page[0] = 0x10 // not the config block's page
	for _, tt := range []struct {
		name  string
		agent func(w *World, bus *Bus)
		bad   bool
		after time.Duration // the load ends this long after the reload at the earliest
		viol  int
	}{
		{"idle", func(*World, *Bus) {}, false, time.Millisecond, 0},
		{"a read over the instant", func(w *World, bus *Bus) { bus.Tx(0x50, page[:2], make([]byte, 64)) }, false, 1537500, 0},
		{"a page write", func(w *World, bus *Bus) { bus.Tx(0x50, page, nil) }, false, 5 * time.Millisecond, 1},
		{"page writes back to back", func(w *World, bus *Bus) {
			for end := w.Now() + 15*time.Millisecond; w.Now() < end; {
				bus.Tx(0x50, page, nil)
			}
		}, true, 11 * time.Millisecond, 2},
		{"a chip slower than its data sheet", func(w *World, bus *Bus) {
			w.Chip("gpu0").SetWriteCycle(30 * time.Millisecond)
			bus.Tx(0x50, page, nil)
		}, true, 11 * time.Millisecond, 1},
		{"dead chip", func(w *World, bus *Bus) { w.Chip("gpu0").SetDead(true) }, true, 11 * time.Millisecond, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w := New(oneSlot())
				boot(w)
				e := engineOf(t, w, "gpu0")
				e.set(ee.RegControl, base|ee.CtlReload)
				began := w.Now() - e.bus.span(stopBit)
				done := make(chan time.Duration)
				go func() {
					for w.Slot("gpu0").State().Status&ee.StatLoaded == 0 {
						time.Sleep(10 * time.Microsecond)
					}
					done <- w.Now() - began
				}()
				tt.agent(w, e.bus)
				took := <-done
				if took < tt.after || took > tt.after+2*time.Millisecond {
					t.Errorf("the load took %v; want %v", took, tt.after)
				}
				if bad := w.Slot("gpu0").State().Status&ee.StatConfigBad != 0; bad != tt.bad {
					t.Errorf("config bad = %v; want %v", bad, tt.bad)
				}
				if v := w.Violations(); len(v) != tt.viol {
					t.Errorf("violations = %v; want %d", v, tt.viol)
				}
			})
		})
	}
}

func TestDeviceReset(t *testing.T) {
	in(t, func(t *testing.T) {
		w, e := linked(t, oneSlot(), ee.CtlGuard)
		v := w.Server("server1")
		must(t, v.WriteMem("gpu0", 0, []byte("step 41")))
		e.set(ee.RegControl, base|ee.CtlLink|ee.CtlGuard|ee.CtlDeviceReset)
		if got := e.get1(ee.RegControl); got != base|ee.CtlLink|ee.CtlGuard {
			t.Errorf("CONTROL = 0x%02x: the reset does not clear itself", got)
		}
		if st := w.Slot("gpu0").State(); st.Status&ee.StatResetting == 0 || st.Resets != 1 {
			t.Errorf("during the reset: %+v", st)
		}
		time.Sleep(w.spec.DeviceResetTime)
		st := w.Slot("gpu0").State()
		if st.Status&ee.StatResetting != 0 || st.Resets != 2 || st.Latch != ee.LatchReset || st.Swallowed != 0 {
			t.Errorf("after the reset: %+v", st)
		}
		if got := readMem(t, v, 7); got != "\x00\x00\x00\x00\x00\x00\x00" {
			t.Errorf("memory holds %q", got)
		}
		// Latches are cleared one by one, by writing 1.
		e.set(ee.RegLatch, 0xFF&^ee.LatchReset)
		if got := e.get1(ee.RegLatch); got != ee.LatchReset {
			t.Errorf("LATCH = 0x%02x", got)
		}
		e.set(ee.RegLatch, ee.LatchReset)
		if got := e.get1(ee.RegLatch); got != 0 {
			t.Errorf("LATCH = 0x%02x after it was cleared", got)
		}
	})
}

func readMem(t *testing.T, v *Server, n int) string {
	t.Helper()
	p := make([]byte, n)
	must(t, v.ReadMem("gpu0", 0, p))
	return string(p)
}

func TestDevicePower(t *testing.T) {
	in(t, func(t *testing.T) {
		w, e := linked(t, oneSlot(), ee.CtlGuard|ee.CtlHold)
		v := w.Server("server1")
		must(t, v.WriteMem("gpu0", 0, []byte("step 41")))
		epoch := e.get4(ee.RegEpoch)
		off := byte(ee.CtlLink | ee.CtlGuard | ee.CtlHold)
		e.set(ee.RegControl, off)
		if st := w.Slot("gpu0").State(); st.Status&(ee.StatPower|ee.StatLink) != ee.StatLink || st.Latch != ee.LatchPowerLost {
			t.Errorf("without device power: %+v", st)
		}
		if v.Reach("gpu0") {
			t.Error("a device without power can be reached")
		}
		if _, err := v.DVSEC("gpu0"); err != nil {
			t.Errorf("the port above a device without power: %v", err)
		}
		e.set(ee.RegControl, off) // again: nothing more is lost
		e.set(ee.RegControl, off|ee.CtlDeviceReset)
		time.Sleep(time.Second)
		e.set(ee.RegControl, off|ee.CtlPower)
		st := w.Slot("gpu0").State()
		if st.Resets != 2 || st.Epoch == epoch || st.Epoch == 0 || st.Status&ee.StatResetting == 0 || st.Latch != ee.LatchPowerLost {
			t.Errorf("device power back: %+v", st)
		}
		if got := readMem(t, v, 7); strings.Trim(got, "\x00") != "" {
			t.Errorf("memory holds %q", got)
		}
		if n := len(w.PowerLosses("gpu0")); n != 1 {
			t.Errorf("%d power losses; want 1", n)
		}
	})
}

// TestResetEndsWithPower: a device reset that power cut short does not come
// afterwards.
func TestResetEndsWithPower(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		boot(w)
		e := engineOf(t, w, "gpu0")
		for _, c := range []byte{base | ee.CtlDeviceReset, 0, base} {
			e.set(ee.RegControl, c)
		}
		time.Sleep(time.Second)
		if got := e.get4(ee.RegResets); got != 2 {
			t.Errorf("RESETS = %d; want 2: two power-ups", got)
		}
	})
}

func TestEngineRestart(t *testing.T) {
	for _, how := range []string{"now", "later"} {
		t.Run(how, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w, e := linked(t, oneSlot(), ee.CtlGuard|ee.CtlHold)
				v := w.Server("server1")
				must(t, v.WriteMem("gpu0", 0, []byte("step 41")))
				e.set(ee.RegProven, 1, 0, 0, 0)
				epoch := e.get4(ee.RegEpoch)
				at := w.Now()
				if how == "now" {
					w.Slot("gpu0").Restart()
				} else {
					at += time.Minute
					w.Slot("gpu0").RestartAfter(time.Minute)
					time.Sleep(time.Minute + time.Second)
				}
				if r := w.Reach(); len(r) != 1 || r[0].Open || r[0].To != at {
					t.Errorf("reach = %+v; want one interval until %v", r, at)
				}
				boot(w)
				st := w.Slot("gpu0").State()
				want := State{
					Control: base, Status: ee.StatPeer | ee.StatDevice | ee.StatPower | ee.StatLoaded,
					Latch: ee.LatchRestarted | ee.LatchReset, Block: *blockFor(101), Resets: 1, Epoch: epoch,
				}
				if d := cmp.Diff(want, st); d != "" {
					t.Error(d)
				}
				if w.MemoryIntactSince("gpu0", at) || !w.MemoryIntactSince("gpu0", at+1) {
					t.Errorf("resets: %+v", w.Resets("gpu0"))
				}
			})
		})
	}
}

func TestRestartWithDevicePowerOff(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		boot(w)
		e := engineOf(t, w, "gpu0")
		epoch := e.get4(ee.RegEpoch)
		e.set(ee.RegControl, 0)
		w.Slot("gpu0").Restart()
		if st := w.Slot("gpu0").State(); st.Epoch == epoch || st.Control != base || st.Resets != 1 || st.Latch&ee.LatchPowerLost == 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestIgnoreControl(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		boot(w)
		e := engineOf(t, w, "gpu0")
		w.Slot("gpu0").IgnoreControl(2)
		for i, want := range []byte{base, base, base | ee.CtlGuard} {
			e.set(ee.RegControl, base|ee.CtlGuard)
			if got := e.get1(ee.RegControl); got != want {
				t.Errorf("after write %d CONTROL = 0x%02x; want 0x%02x", i, got, want)
			}
		}
	})
}

func TestIgnoreControlAfter(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		boot(w)
		e := engineOf(t, w, "gpu0")
		w.Slot("gpu0").IgnoreControlAfter(1, 1)
		for i, tt := range []struct{ set, want byte }{
			{base | ee.CtlGuard, base | ee.CtlGuard},
			{base | ee.CtlHold, base | ee.CtlGuard},
			{base | ee.CtlHold, base | ee.CtlHold},
		} {
			e.set(ee.RegControl, tt.set)
			if got := e.get1(ee.RegControl); got != tt.want {
				t.Errorf("after write %d CONTROL = 0x%02x; want 0x%02x", i, got, tt.want)
			}
		}
	})
}

func TestRetransmits(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		boot(w)
		w.Slot("gpu0").Retransmit(3)
		w.Slot("gpu0").Retransmit(4)
		if got := engineOf(t, w, "gpu0").get4(ee.RegRetransmits); got != 7 {
			t.Errorf("RETRANSMITS = %d; want 7", got)
		}
	})
}

func TestKill(t *testing.T) {
	in(t, func(t *testing.T) {
		w, e := linked(t, oneSlot(), ee.CtlGuard)
		w.Slot("gpu0").Kill()
		if w.Server("server1").Reach("gpu0") {
			t.Error("a dead engine's device can be reached")
		}
		w.PowerCut()
		w.PowerOn()
		boot(w)
		if err := e.bus.Tx(e.at, []byte{0, 0}, make([]byte, 1)); !errors.Is(err, syscall.ENXIO) {
			t.Errorf("a dead engine answers after power-on: %v", err)
		}
		w.Slot("gpu0").Revive()
		boot(w)
		if got := e.get1(ee.RegLatch); got != ee.LatchPowerLost|ee.LatchRestarted {
			t.Errorf("LATCH of a revived engine = 0x%02x", got)
		}
	})
}

func TestIdentity(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		boot(w)
		e := engineOf(t, w, "gpu0")
		seen := map[uint32]string{e.get4(ee.RegIdent): "at first"}
		for what, change := range map[string]func(){
			"another device": func() { w.Slot("gpu0").InsertDevice(Device{0x10DE, 0x20B5, 0x030200, 77}) },
			"no device":      w.Slot("gpu0").RemoveDevice,
			"another MAC":    func() { w.Slot("gpu0").SetEngine(ee.EngineID, MAC{1}) },
			"another ID":     func() { w.Slot("gpu0").SetEngine(1, MAC{1}) },
		} {
			change()
			id := e.get4(ee.RegIdent)
			if other, ok := seen[id]; ok {
				t.Errorf("IDENT is the same with %s and %s", what, other)
			}
			seen[id] = what
		}
		w.Slot("gpu0").RemoveDevice()
		if got := e.get(ee.RegVendor, 4); !bytes.Equal(got, []byte{0xFF, 0xFF, 0xFF, 0xFF}) {
			t.Errorf("vendor and device without a device: % x", got)
		}
		if got := e.get1(ee.RegStatus); got&ee.StatDevice != 0 {
			t.Errorf("STATUS without a device = 0x%02x", got)
		}
		resets := e.get4(ee.RegResets)
		epoch := e.get4(ee.RegEpoch)
		w.Slot("gpu0").InsertDevice(Device{1, 2, 3, 4})
		if st := w.Slot("gpu0").State(); st.Resets != resets+1 || st.Epoch == epoch || st.Latch&ee.LatchPowerLost == 0 {
			t.Errorf("a device put in: %+v", st)
		}
	})
}

// TestBurstIsSnapshot: what a long read brings is as old as its address.
func TestBurstIsSnapshot(t *testing.T) {
	in(t, func(t *testing.T) {
		w, e := linked(t, oneSlot(), 0)
		go func() {
			time.Sleep(300 * time.Microsecond) // 4 bytes and their STARTs took 95
			must(t, w.Server("server1").Reset("gpu0"))
		}()
		r := e.get(ee.RegControl, 40) // 1.1 ms
		if got := r[ee.RegResets-ee.RegControl]; got != 1 {
			t.Errorf("RESETS = %d; want 1, from before the reset", got)
		}
		if got := e.get4(ee.RegResets); got != 2 {
			t.Errorf("RESETS = %d; want 2", got)
		}
	})
}

// TestBytesInTime: a byte of a long write takes effect when it is acknowledged.
func TestBytesInTime(t *testing.T) {
	in(t, func(t *testing.T) {
		w, e := linked(t, oneSlot(), ee.CtlGuard)
		t0 := w.Now()
		e.set(ee.RegControl, append([]byte{base | ee.CtlGuard}, make([]byte, 40)...)...)
		// START, address, pointer, CONTROL.
		if r := w.Reach(); len(r) != 1 || r[0].To != t0+e.bus.span(1+4*9) {
			t.Errorf("reach = %+v; want an end 37 bits after %v", r, t0)
		}
		if n := w.Slot("gpu0").RegisterWrites(); n != 1+1+41 {
			t.Errorf("RegisterWrites = %d", n)
		}
	})
}

// TestLinkDuringLoad: a link enable written during a load is taken back.
func TestLinkDuringLoad(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		boot(w)
		e := engineOf(t, w, "gpu0")
		e.set(ee.RegControl, base|ee.CtlReload)
		e.set(ee.RegDVSEC, ee.ShowValid, base|ee.CtlLink)
		if got := e.get1(ee.RegControl); got != base|ee.CtlLink {
			t.Errorf("CONTROL during the load = 0x%02x", got)
		}
		time.Sleep(time.Second)
		if st := w.Slot("gpu0").State(); st.Control != base || st.Show != 0 || len(w.Reach()) != 0 {
			t.Errorf("after the load: %+v, reach %v", st, w.Reach())
		}
		if v := w.Violations(); len(v) != 1 {
			t.Errorf("violations = %v; want one", v)
		}
	})
}

func TestNVMOnly(t *testing.T) {
	in(t, func(t *testing.T) {
		s := oneSlot()
		s.Slots[0].NVMOnly = true
		w := New(s)
		boot(w)
		if err := w.Bus("bus0").Tx(0x40, []byte{0, 0}, make([]byte, 1)); !errors.Is(err, syscall.ENXIO) {
			t.Errorf("a register file answers: %v", err)
		}
		v1, v2 := w.Server("server1"), w.Server("server2")
		if !v1.Reach("gpu0") {
			t.Fatal("it did not connect by itself")
		}
		must(t, v1.WriteMem("gpu0", 0, []byte("step 41")))
		for _, group := range []uint16{ee.GroupFree, 102} {
			w.Slot("gpu0").SetBlock(*blockFor(group))
			w.Slot("gpu0").Pulse()
			if v1.Reach("gpu0") {
				t.Error("still linked after the pulse")
			}
			boot(w)
			if v2.Reach("gpu0") != (group == 102) {
				t.Errorf("group %d: server2 reaches it: %v", group, v2.Reach("gpu0"))
			}
		}
		if got := readMem(t, v2, 7); strings.Trim(got, "\x00") != "" {
			t.Errorf("memory %q came through without a guard", got)
		}
	})
}

func TestNoReloadLine(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		defer func() {
			if recover() == nil {
				t.Error("Pulse of an engine with registers did not panic")
			}
		}()
		w.Slot("gpu0").Pulse()
	})
}
