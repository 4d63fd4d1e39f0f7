//go:build onboard

package onboard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"periph.io/x/conn/v3/physic"

	"baton/ee/bus"
	"baton/nvm"
	"baton/nvm/nvmtest"
	"baton/nvm/spidev"
)

var bg = context.Background()

// sst25 is the NOR flash of the sabrelite, seen as what it is to a driver of
// 25xx: the same instructions, three address bytes. (A real one programs a byte
// at a time; QEMU's takes pages.)
var sst25 = nvm.Part25{
	Name: "sst25vf016b", Size: 2 << 20, Page: 256, AddrBytes: 3, WriteMax: 5 * time.Millisecond,
	SpeedMax: 20 * physic.MegaHertz, Endurance: 100_000, ID: []byte{0xbf, 0x25, 0x41},
	Sheet: "SST25VF016B, S71271: tables 5 (instructions) and 6 (JEDEC ID)",
}

// flash gives the driver of 25xx the erasing that a NOR flash needs.
type flash struct {
	*nvm.SPI25
	port *spidev.Port
}

const flashSector = 4096

func (f flash) Geometry() nvm.Geometry {
	g := f.SPI25.Geometry()
	g.Erase, g.EraseMax = flashSector, 25*time.Millisecond
	return g
}

// Erase erases a sector of 4 KiB (instruction 20h) and waits for that.
func (f flash) Erase(ctx context.Context, off int64) error {
	if err := f.port.Tx([]byte{0x06}, nil); err != nil {
		return err
	}
	if err := f.port.Tx([]byte{0x20, byte(off >> 16), byte(off >> 8), byte(off)}, nil); err != nil {
		return err
	}
	for range 1000 {
		r := make([]byte, 2)
		if err := f.port.Tx([]byte{0x05, 0}, r); err != nil || r[1]&1 == 0 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return nvm.ErrTimeout
}

// erased is the first n bytes of a flash, all blocks erased.
func erased(t *testing.T, m nvm.Eraser, n int64) nvm.Medium {
	t.Helper()
	s, err := nvm.Section(m, 0, n)
	if err != nil {
		t.Fatal(err)
	}
	for off := int64(0); off < n; off += int64(m.Geometry().Erase) {
		if err := errors.Join(m.Erase(bg, off), m.Settle(bg)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestSPI is on a board whose SPI controller does spidev's transfers.
func TestSPI(t *testing.T) {
	port := spidev.New("/dev/spidev0.0", sst25.SpeedMax)
	chip := nvm.NewSPI25(port, sst25)
	// An emulated controller on a busy machine may stand still for a while.
	chip.Limit, chip.Slack = 20*time.Second, 20*time.Second
	t.Cleanup(func() {
		if err := errors.Join(chip.Close(), port.Close()); err != nil {
			t.Error(err)
		}
	})
	found, err := chip.Identify(bg)
	t.Logf("%s: Identify = %s, %v", chip, found, err)
	if err != nil || found.ID != "bf 25 41" {
		t.Fatalf("Identify = %s, %v", found, err)
	}
	// Pages in the last half, which nothing else here uses, each once.
	for i, off := range []int64{1 << 20, 1<<20 + 256, sst25.Size - 256} {
		page := bytes.Repeat([]byte{byte(0x11 * (i + 1))}, sst25.Page)
		copy(page, fmt.Sprintf("page %d by spidev", i))
		if err := chip.Program(bg, page, off); err != nil {
			t.Fatal(err)
		}
		if err := chip.Settle(bg); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(page))
		if err := chip.ReadAt(bg, got, off); err != nil || !bytes.Equal(got, page) {
			t.Errorf("at %#x: % x..., %v; want % x...", off, got[:8], err, page[:8])
		}
	}
	all := make([]byte, 3*4096+5) // in several transfers
	if err := chip.ReadAt(bg, all, 1<<20-5); err != nil || string(all[5:11]) != "page 0" {
		t.Errorf("a long read: %q, %v", all[5:11], err)
	}
	wrong := sst25
	wrong.Name, wrong.ID = "mb85rs256", []byte{0x04, 0x7f, 0x05, 0x09}
	other := nvm.NewSPI25(port, wrong)
	if _, err := other.Identify(bg); !errors.Is(err, nvm.ErrKind) {
		t.Errorf("Identify as another part = %v; want ErrKind", err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	// A chip select that no device is behind.
	if err := spidev.New("/dev/spidev0.3", sst25.SpeedMax).Tx([]byte{5, 0}, make([]byte, 2)); err == nil {
		t.Error("a chip select that is absent transfers")
	}

	t.Run("Suite", func(t *testing.T) {
		nvmtest.TestStore(t, nvmtest.Media{Rounds: 60, Open: func(t *testing.T, _ uint64) nvmtest.Subject {
			return nvmtest.Subject{Medium: erased(t, flash{chip, port}, 8*flashSector)}
		}})
	})
}

// eeprom is a 24c256 behind the kernel's I2C driver.
func eeprom(t *testing.T, path string) *nvm.EEPROM {
	t.Helper()
	b, err := bus.Open(path, false)
	if err != nil {
		t.Fatal(err)
	}
	// An emulated controller on a busy machine may stand still for a while.
	owned := bus.Own(b, 20*time.Second)
	t.Cleanup(func() {
		if err := errors.Join(owned.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	chip := nvm.NewEEPROM(owned, 0x50, nvm.Parts["24c256"])
	chip.Slack = time.Second
	return chip
}

// TestPage writes one page: i2c-imx takes seconds for a suite here.
func TestPage(t *testing.T) {
	chip := eeprom(t, "/dev/i2c-1")
	page, got := bytes.Repeat([]byte{0xa5}, 64), make([]byte, 64)
	if err := errors.Join(chip.Program(bg, page, 64), chip.Settle(bg), chip.ReadAt(bg, got, 64)); err != nil || !bytes.Equal(got, page) {
		t.Errorf("% x, %v; want % x", got, err, page)
	}
}

// TestEEPROM is on a board that runs batond with its store elsewhere.
func TestEEPROM(t *testing.T) {
	chip := eeprom(t, "/dev/i2c-6")
	nvmtest.TestStore(t, nvmtest.Media{Rounds: 12, Open: func(t *testing.T, _ uint64) nvmtest.Subject {
		s, err := nvm.Section(chip, 0, 4096)
		if err != nil {
			t.Fatal(err)
		}
		blank := bytes.Repeat([]byte{0xff}, 64)
		for off := int64(0); off < s.Geometry().Size; off += 64 {
			if err := errors.Join(s.Program(bg, blank, off), s.Settle(bg)); err != nil {
				t.Fatal(err)
			}
		}
		return nvmtest.Subject{Medium: s}
	}})
}

// TestMTD is on the flash of a board that runs batond with its store there.
func TestMTD(t *testing.T) {
	store, err := nvm.FindMTD("store")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nvm.OpenMTD(store); !errors.Is(err, nvm.ErrInUse) {
		t.Errorf("OpenMTD of batond's partition = %v; want ErrInUse", err)
	}
	path, err := nvm.FindMTD("bank-b")
	if err != nil {
		t.Fatal(err)
	}
	m, err := nvm.OpenMTD(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%s: %+v", m, m.Geometry())
	if _, err := nvm.OpenMTD(path); !errors.Is(err, nvm.ErrInUse) {
		t.Errorf("OpenMTD again = %v; want ErrInUse", err)
	}

	// Bits go one way until a block is erased.
	erased(t, m, int64(m.Geometry().Erase))
	got := make([]byte, 3)
	for _, step := range []struct{ write, want string }{
		{"\xf0\x0f\xff", "\xf0\x0f\xff"},
		{"\xf3\xff\x01", "\xf0\x0f\x01"},
	} {
		if err := m.Program(bg, []byte(step.write), 256); err != nil {
			t.Fatal(err)
		}
		if err := m.ReadAt(bg, got, 256); err != nil || string(got) != step.want {
			t.Errorf("after % x: % x, %v; want % x", step.write, got, err, step.want)
		}
	}
	nvmtest.TestStore(t, nvmtest.Media{Rounds: 300, Open: func(t *testing.T, _ uint64) nvmtest.Subject {
		return nvmtest.Subject{Medium: erased(t, m, 6*int64(m.Geometry().Erase))}
	}})
}
