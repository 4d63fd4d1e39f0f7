package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"baton/mgmt/config"
	"baton/nvm"
)

// TestOneDriverPerChip: a store on the chip of a slot's engine, on SPI, and the
// config block share a driver; two would come between each other's writes.
func TestOneDriverPerChip(t *testing.T) {
	c, err := config.Parse([]byte(`{"enclosure": "e", "buses": {"a": "/dev/i2c-250"},
"store": {"slot": "s"},
"slots": [{"name": "s", "bus": "a", "profile": "nvm-only", "reload": "none", "eeprom": {"spi": "/dev/spidev250.0", "part": "25lc256", "speed": "1MHz"}}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	h := openHardware(c, slog.New(slog.DiscardHandler))
	h.use(c)
	if len(h.chips) != 1 {
		t.Errorf("%d drivers for one chip", len(h.chips))
	}
	store, slot := h.config.Store, h.config.Slots[0]
	if store.Name != "/dev/spidev250.0+64" || store.Part != "25lc256" || store.Shared != "s" || store.Problem != nil {
		t.Errorf("store %q, part %q, shared with %q: %v", store.Name, store.Part, store.Shared, store.Problem)
	}
	if slot.Page != "/dev/spidev250.0" || slot.Medium != nvm.Medium(h.chips["/dev/spidev250.0"]) {
		t.Errorf("slot's chip at %q: %v", slot.Page, slot.Medium)
	}
	// Nothing is there: it is said where, and in time.
	if err := slot.Medium.ReadAt(t.Context(), make([]byte, 1), 0); err == nil || !strings.Contains(err.Error(), "/dev/spidev250.0") {
		t.Errorf("ReadAt = %v; want where", err)
	}
	if err := h.close(); err != nil {
		t.Error(err)
	}
}

// TestNoPartition: a partition that is not there is a problem of the store, at
// once: it was waited for before, and who asks for it later holds a start up.
func TestNoPartition(t *testing.T) {
	for _, mtd := range []string{"no such partition", "/dev/mtd250"} {
		synctest.Test(t, func(t *testing.T) {
			c, err := config.Parse([]byte(`{"enclosure": "e", "buses": {"a": "/dev/i2c-250"}, "store": {"mtd": "`+mtd+`"},
"slots": [{"name": "s", "bus": "a", "address": "0x40", "profile": "regs-v1", "eeprom": {"address": "0x50", "part": "24c256"}}]}`), nil)
			if err != nil {
				t.Fatal(err)
			}
			h := &hardware{chips: map[string]*nvm.SPI25{}, log: slog.New(slog.DiscardHandler)}
			start := time.Now()
			out := h.store(c)
			if !errors.Is(out.Problem, fs.ErrNotExist) || out.Medium != nil || out.Name != "mtd "+mtd {
				t.Errorf("store = %+v; want the problem %v", out, fs.ErrNotExist)
			}
			if d := time.Since(start); d > 0 {
				t.Errorf("%s: given up after %v; want at once", mtd, d)
			}
		})
	}
}

func TestStorePart(t *testing.T) {
	for _, tt := range []struct {
		size  int64
		erase int
		want  int64
	}{
		{512 << 10, 64 << 10, 512 << 10},
		{16 << 20, 64 << 10, 512 << 10},
		{16 << 20, 4 << 10, 512 << 10},
		{16 << 20, 256 << 10, 2 << 20},
		{384 << 10, 64 << 10, 384 << 10},
		{64 << 10, 4 << 10, 64 << 10},
	} {
		if got := storePart(nvm.Geometry{Size: tt.size, Erase: tt.erase}); got != tt.want {
			t.Errorf("storePart(%d in blocks of %d) = %d; want %d", tt.size, tt.erase, got, tt.want)
		}
	}
}
