package sim

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"baton/ee"
	"baton/pcie"
)

// TestHostResets counts what each thing a host does sends to the device, and that the guard swallows all of it.
func TestHostResets(t *testing.T) {
	start := func(w *World, opt VMOptions) error {
		return w.Server("server1").StartVM("train", []string{"gpu0"}, opt)
	}
	for _, tt := range []struct {
		name string
		opt  VMOptions
		do   func(v *Server) error
		n    int // resets beside those of the start
	}{
		{"nothing more", VMOptions{}, func(*Server) error { return nil }, 0},
		{"stopped", VMOptions{}, func(v *Server) error { return v.StopVM("train") }, 1},
		{"killed", VMOptions{}, func(v *Server) error { return v.KillQEMU("train") }, 1},
		{"guest reboot", VMOptions{}, func(v *Server) error { return v.GuestReboot("train") }, 2},
		{"hang", VMOptions{}, func(v *Server) error { v.Hang(); return nil }, 0},
		{"panic", VMOptions{}, func(v *Server) error { v.PanicReboot(); return nil }, 2},
		{"panic of a server that hung", VMOptions{}, func(v *Server) error { v.Hang(); v.PanicReboot(); return nil }, 2},
		{"reset", VMOptions{}, func(v *Server) error { return v.Reset("gpu0") }, 1},
		{"quiet host, stopped", VMOptions{NoCloseReset: true}, func(v *Server) error { return v.StopVM("train") }, 0},
		{"quiet host, killed", VMOptions{NoCloseReset: true}, func(v *Server) error { return v.KillQEMU("train") }, 0},
		{"quiet host, guest reboot", VMOptions{NoRebootReset: true}, func(v *Server) error { return v.GuestReboot("train") }, 0},
	} {
		for _, guard := range []byte{0, ee.CtlGuard} {
			t.Run(fmt.Sprintf("%s/guard=%v", tt.name, guard != 0), func(t *testing.T) {
				in(t, func(t *testing.T) {
					w, _ := linked(t, oneSlot(), guard)
					v := w.Server("server1")
					must(t, v.WriteMem("gpu0", 100, []byte("before")))
					must(t, start(w, tt.opt))
					mem := make([]byte, 6)
					must(t, v.ReadMem("gpu0", 100, mem))
					if kept := string(mem) == "before"; kept != (guard != 0) {
						t.Errorf("memory kept through the start: %v", kept)
					}
					must(t, v.WriteMem("gpu0", 100, []byte("step 1")))
					at := w.Now()
					time.Sleep(time.Second)
					must(t, tt.do(v))
					n := 2 + tt.n
					st := w.Slot("gpu0").State()
					wantR, wantS := uint32(1+n), uint32(0)
					if guard != 0 {
						wantR, wantS = 1, uint32(n)
					}
					if st.Resets != wantR || st.Swallowed != wantS {
						t.Errorf("RESETS %d, SWALLOWED %d; want %d, %d", st.Resets, st.Swallowed, wantR, wantS)
					}
					intact := guard != 0 || tt.n == 0
					if got := w.MemoryIntactSince("gpu0", at+1); got != intact {
						t.Errorf("MemoryIntactSince = %v; want %v: %v", got, intact, w.Resets("gpu0"))
					}
					v.Resume()
					must(t, v.ReadMem("gpu0", 100, mem))
					if kept := string(mem) == "step 1"; kept != intact {
						t.Errorf("memory holds %q; want it intact: %v", mem, intact)
					}
					if log := w.Resets("gpu0"); len(log) != 1+n || log[len(log)-1].Swallowed != (guard != 0) {
						t.Errorf("log: %+v", log)
					}
				})
			})
		}
	}
}

// TestResetsNeedTheLink: what a host sends over a link that is down reaches
// nobody.
func TestResetsNeedTheLink(t *testing.T) {
	in(t, func(t *testing.T) {
		w, e := linked(t, oneSlot(), ee.CtlHold)
		v := w.Server("server1")
		must(t, v.StartVM("train", []string{"gpu0"}, VMOptions{}))
		must(t, v.WriteMem("gpu0", 0, []byte("step")))
		e.set(ee.RegControl, base|ee.CtlHold)
		if !v.HoldsDevice("train", "gpu0") {
			t.Error("QEMU let go of a device that went away")
		}
		must(t, v.KillQEMU("train"))
		v.PanicReboot()
		if v.HoldsDevice("train", "gpu0") {
			t.Error("a killed QEMU holds the device")
		}
		if st := w.Slot("gpu0").State(); st.Resets != 3 || st.Swallowed != 0 { // power-up, and two at the start
			t.Errorf("%+v", st)
		}
		e.set(ee.RegControl, base|ee.CtlHold|ee.CtlLink)
		time.Sleep(w.spec.LinkUpTime)
		if got := readMem(t, v, 4); got != "step" {
			t.Errorf("memory holds %q", got)
		}
	})
}

func TestServerRefusals(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(w *World, v *Server) error
		want error
	}{
		{"start on one not reached", func(w *World, v *Server) error {
			return w.Server("server2").StartVM("a", []string{"gpu0"}, VMOptions{})
		}, ErrNotReached},
		{"read on one not reached", func(w *World, v *Server) error {
			return w.Server("server2").ReadMem("gpu0", 0, make([]byte, 1))
		}, ErrNotReached},
		{"DVSEC on one not reached", func(w *World, v *Server) error { _, err := w.Server("server2").DVSEC("gpu0"); return err }, ErrNotReached},
		{"write on a hung one", func(w *World, v *Server) error { v.Hang(); return v.WriteMem("gpu0", 0, []byte{1}) }, ErrServerHung},
		{"stop on a hung one", func(w *World, v *Server) error { v.Hang(); return v.StopVM("train") }, ErrServerHung},
		{"start without power", func(w *World, v *Server) error { v.PowerLoss(); return v.StartVM("a", nil, VMOptions{}) }, ErrServerOff},
		{"stop of a VM that went with the power", func(w *World, v *Server) error { v.PowerLoss(); v.PowerOn(); return v.StopVM("train") }, ErrNoVM},
		{"reboot of no VM", func(w *World, v *Server) error { return v.GuestReboot("a") }, ErrNoVM},
		{"reset of one not reached", func(w *World, v *Server) error { v.LinkLoss(); return v.Reset("gpu0") }, ErrNotReached},
		{"bus master of one not reached", func(w *World, v *Server) error { v.LinkLoss(); return v.SetBusMaster("gpu0", true) }, ErrNotReached},
		{"second VM on a device", func(w *World, v *Server) error { return v.StartVM("a", []string{"gpu0"}, VMOptions{}) }, nil},
		{"same VM twice", func(w *World, v *Server) error { return v.StartVM("train", nil, VMOptions{}) }, nil},
		{"memory below", func(w *World, v *Server) error { return v.ReadMem("gpu0", -1, make([]byte, 2)) }, nil},
		{"memory beyond", func(w *World, v *Server) error { return v.WriteMem("gpu0", 4095, make([]byte, 2)) }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w, _ := linked(t, oneSlot(), ee.CtlHold)
				v := w.Server("server1")
				must(t, v.StartVM("train", []string{"gpu0"}, VMOptions{}))
				err := tt.do(w, v)
				if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
					t.Errorf("err = %v; want %v", err, tt.want)
				}
				v.Resume() // the lock was given back
			})
		})
	}
}

func TestVMs(t *testing.T) {
	in(t, func(t *testing.T) {
		w, _ := linked(t, oneSlot(), 0)
		v := w.Server("server1")
		must(t, v.StartVM("a", nil, VMOptions{}))
		must(t, v.StartVM("b", []string{"gpu0"}, VMOptions{}))
		must(t, v.StartVM("c", nil, VMOptions{}))
		must(t, v.StopVM("a"))
		if got := v.VMs(); !slices.Equal(got, []string{"b", "c"}) {
			t.Errorf("VMs = %v", got)
		}
		if !v.HoldsDevice("b", "gpu0") || v.HoldsDevice("c", "gpu0") || w.Server("server2").HoldsDevice("b", "gpu0") {
			t.Error("HoldsDevice is wrong about b, c or server2")
		}
		v.PowerLoss()
		if len(v.VMs()) != 0 || v.HoldsDevice("b", "gpu0") {
			t.Error("VMs run without power")
		}
	})
}

// TestStrayDMA: a device that moves as bus master, with its old addresses,
// writes into the memory of the new server, unless it was quiesced or reset.
func TestStrayDMA(t *testing.T) {
	for _, tt := range []struct {
		name  string
		steps []byte // CONTROL written before the link comes up again
		stray bool
	}{
		{"nothing", []byte{base | ee.CtlGuard}, true},
		{"quiesced", []byte{base | ee.CtlGuard | ee.CtlQuiesce, base | ee.CtlGuard}, false},
		{"reset by the agent", []byte{base | ee.CtlGuard, base | ee.CtlGuard | ee.CtlDeviceReset}, false},
		{"reset as the link dropped", []byte{base}, false},
		{"power", []byte{base | ee.CtlGuard, ee.CtlGuard, base | ee.CtlGuard}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w, e := linked(t, oneSlot(), ee.CtlGuard)
				v1, v2 := w.Server("server1"), w.Server("server2")
				must(t, v1.StartVM("train", []string{"gpu0"}, VMOptions{}))
				time.Sleep(time.Second)
				if n := v1.DMA(); n != 100_001 {
					t.Errorf("%d DMA writes in 1 s at one each 10 us", n)
				}
				for _, c := range tt.steps {
					e.set(ee.RegControl, c)
				}
				before := v1.DMA()
				w.Slot("gpu0").SetBlock(*blockFor(102))
				control := tt.steps[len(tt.steps)-1] &^ ee.CtlDeviceReset
				time.Sleep(w.spec.DeviceResetTime)
				e.set(ee.RegControl, control|ee.CtlReload)
				time.Sleep(w.spec.ReloadLatency)
				e.set(ee.RegControl, control|ee.CtlLink)
				time.Sleep(time.Millisecond)
				if got := v2.StrayDMA() > 0; got != tt.stray {
					t.Errorf("stray DMA: %v; want %v", got, tt.stray)
				}
				if v1.StrayDMA() != 0 || v1.DMA() != before {
					t.Errorf("server1: %d DMA writes after the break, %d stray", v1.DMA()-before, v1.StrayDMA())
				}
				// Its new driver programs it: no more stray.
				must(t, v2.SetBusMaster("gpu0", true))
				stray, dma := v2.StrayDMA(), v2.DMA()
				time.Sleep(time.Millisecond)
				if v2.StrayDMA() != stray || v2.DMA() <= dma {
					t.Errorf("after the new driver: %d stray, %d in all", v2.StrayDMA()-stray, v2.DMA()-dma)
				}
			})
		})
	}
}

// TestCloseEndsBusMaster: the kernel clears Bus Master Enable when it closes a
// device, also where the guard swallows the reset; over a link that is down it
// can not.
func TestCloseEndsBusMaster(t *testing.T) {
	for _, linkUp := range []bool{true, false} {
		in(t, func(t *testing.T) {
			w, e := linked(t, oneSlot(), ee.CtlGuard)
			v := w.Server("server1")
			must(t, v.StartVM("train", []string{"gpu0"}, VMOptions{}))
			if !linkUp {
				e.set(ee.RegControl, base|ee.CtlGuard)
			}
			must(t, v.KillQEMU("train"))
			if got := w.Slot("gpu0").State().Master; got == linkUp {
				t.Errorf("link up %v: bus master after close = %v", linkUp, got)
			}
		})
	}
}

func TestQuiesceHoldsBusMasterClear(t *testing.T) {
	in(t, func(t *testing.T) {
		w, e := linked(t, oneSlot(), ee.CtlQuiesce)
		v := w.Server("server1")
		must(t, v.StartVM("train", []string{"gpu0"}, VMOptions{}))
		must(t, v.SetBusMaster("gpu0", true))
		time.Sleep(time.Second)
		if v.DMA() != 0 {
			t.Errorf("%d DMA writes while quiesced", v.DMA())
		}
		e.set(ee.RegControl, base|ee.CtlLink)
		if w.Slot("gpu0").State().Master {
			t.Error("bus master by itself after quiesce")
		}
		must(t, v.SetBusMaster("gpu0", true))
		if !w.Slot("gpu0").State().Master {
			t.Error("the driver could not set bus master after quiesce")
		}
		// The count does not depend on how often somebody looks.
		n := v.DMA()
		for range 1000 {
			time.Sleep(time.Microsecond)
			v.DMA()
		}
		if got := v.DMA() - n; got != 100 {
			t.Errorf("%d writes in 1 ms at one each 10 us", got)
		}
	})
}

func TestDVSEC(t *testing.T) {
	in(t, func(t *testing.T) {
		w, e := linked(t, oneSlot(), 0)
		v := w.Server("server1")
		want := pcie.DVSEC{Vendor: 0x1033, Incarnation: 0xCAFE0001, Counter: 7, From: ee.GroupFree, Group: 101, Engine: w.Slot("gpu0").mac, Resets: 1}
		check := func(when string, resets uint32, flags pcie.DVSECFlags) {
			t.Helper()
			want.Resets, want.Flags = resets, flags
			got, err := v.DVSEC("gpu0")
			if d := cmp.Diff(want, got); err != nil || d != "" {
				t.Errorf("%s: %v\n%s", when, err, d)
			}
		}
		check("after load", 1, 0)
		e.set(ee.RegDVSEC, ee.ShowValid)
		check("valid", 1, pcie.DVSECValid)
		e.set(ee.RegDVSEC, 0xFF)
		check("all", 1, pcie.DVSECValid|pcie.DVSECTarget|pcie.DVSECPowerKept|pcie.DVSECBusy)
		e.set(ee.RegDVSEC, ee.ShowValid|ee.ShowTarget, base|ee.CtlLink|ee.CtlGuard|ee.CtlQuiesce)
		check("guard, quiesced", 1, pcie.DVSECValid|pcie.DVSECTarget|pcie.DVSECGuard|pcie.DVSECQuiesced)
		e.set(ee.RegControl, base|ee.CtlLink)
		must(t, v.Reset("gpu0"))
		check("reset", 2, pcie.DVSECValid|pcie.DVSECTarget|pcie.DVSECResetSeen)
		e.set(ee.RegLatch, ee.LatchReset)
		check("latch cleared", 2, pcie.DVSECValid|pcie.DVSECTarget)

		got, _ := v.DVSEC("gpu0")
		if back, err := pcie.DecodeDVSEC(got.Encode()); err != nil || back != got {
			t.Errorf("encoded and decoded: %+v, %v", back, err)
		}
	})
}
