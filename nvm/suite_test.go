package nvm_test

import (
	"path/filepath"
	"testing"
	"time"

	"baton/nvm"
	"baton/nvm/nvmtest"
	"baton/sim"
)

// TestSuite runs the suite that every medium must stand on all kinds of media:
// the models of chips behind their drivers, and a file. Those of a real
// controller are in test/e2e.
func TestSuite(t *testing.T) {
	for _, k := range []struct {
		name  string
		media nvmtest.Media
	}{
		{"file", nvmtest.Media{Open: openSuiteFile}},
		{"24c64 over I2C", nvmtest.Media{Virtual: true, Open: openSuiteEEPROM}},
		{"25lc640 over SPI", nvmtest.Media{Virtual: true, Open: onSPI("25lc640")}},
		{"25lc1024 over SPI", nvmtest.Media{Virtual: true, Cuts: 20, Open: onSPI("25lc1024")}},
		{"fm25v02 over SPI", nvmtest.Media{Virtual: true, Open: onSPI("fm25v02")}},
		{"NOR, sectors of 4 KiB, through MTD", nvmtest.Media{Virtual: true, Rounds: 80, Open: onMTD(8*4096, 4096)}},
		{"NOR, sectors of 64 KiB, through MTD", nvmtest.Media{Virtual: true, Rounds: 400, Cuts: 12, Open: onMTD(6*65536, 65536)}},
	} {
		t.Run(k.name, func(t *testing.T) { nvmtest.TestStore(t, k.media) })
	}
}

func openSuiteFile(t *testing.T, _ uint64) nvmtest.Subject {
	path := filepath.Join(t.TempDir(), "nvm.bin")
	open := func() nvm.Medium {
		f, err := nvm.OpenFile(path, geometry(8192, 64, 0), true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	return nvmtest.Subject{Medium: open(), Reopen: open}
}

// worldPower cuts that of the simulator, inside write cycles.
type worldPower struct{ *sim.World }

func (w worldPower) Arm(n int, seed uint64) {
	w.SetTear(sim.Tear{Kind: sim.TearKind(seed % 6), Seed: seed, Unstable: int(seed/6%4) * 3})
	w.OnPosition(func(p sim.Position) {
		if p.Kind != sim.PositionCycle {
			return
		}
		if n--; n == -1 {
			w.CutAfter(time.Duration(seed%5) * time.Millisecond)
		}
	})
}

func (w worldPower) Off() bool { return !w.Powered() }

// PowerOn also takes back an order for a cut that has not come.
func (w worldPower) PowerOn() {
	w.OnPosition(nil)
	w.CutAfter(-1)
	w.World.PowerOn()
}

func (w worldPower) Count() int { return int(w.Chip("c").PageWrites()) }

func openSuiteEEPROM(*testing.T, uint64) nvmtest.Subject {
	w := sim.New(sim.Spec{Buses: []sim.BusSpec{{Name: "b"}}, Chips: []sim.ChipSpec{{Name: "c", Bus: "b", Addr: 0x50, Part: "24c64"}}})
	open := func() nvm.Medium { return nvm.NewEEPROM(w.Bus("b"), 0x50, nvm.Parts["24c64"]) }
	return nvmtest.Subject{Medium: open(), Reopen: open, Power: worldPower{w}}
}

func onSPI(part string) func(*testing.T, uint64) nvmtest.Subject {
	return func(t *testing.T, seed uint64) nvmtest.Subject {
		chip := nvmtest.NewSPI(nvm.Parts25[part], seed)
		open := func() nvm.Medium {
			m := nvm.NewSPI25(chip, nvm.Parts25[part])
			t.Cleanup(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
			return m
		}
		return nvmtest.Subject{Medium: open(), Reopen: open, Power: chip}
	}
}

func onMTD(size int64, erase int) func(*testing.T, uint64) nvmtest.Subject {
	return func(t *testing.T, seed uint64) nvmtest.Subject {
		k := &kernel{NOR: nvmtest.NewNOR(geometry(size, 256, erase), seed)}
		return nvmtest.Subject{Medium: openKernel(t, k), Reopen: func() nvm.Medium { return openKernel(t, k) }, Power: k}
	}
}
