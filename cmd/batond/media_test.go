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

// TestNoPartition: a partition that does not come is a problem of the store,
// after a bounded wait, and the agent starts.
func TestNoPartition(t *testing.T) {
	for _, tt := range []struct {
		mtd  string
		wait time.Duration
		want error
	}{
		{"no such partition", mtdWait, fs.ErrNotExist},
		{"/dev/mtd250", mtdWait, fs.ErrNotExist},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, err := config.Parse([]byte(`{"enclosure": "e", "buses": {"a": "/dev/i2c-250"}, "store": {"mtd": "`+tt.mtd+`"},
"slots": [{"name": "s", "bus": "a", "address": "0x40", "profile": "regs-v1", "eeprom": {"address": "0x50", "part": "24c256"}}]}`), nil)
			if err != nil {
				t.Fatal(err)
			}
			h := &hardware{chips: map[string]*nvm.SPI25{}, log: slog.New(slog.DiscardHandler)}
			start := time.Now()
			out := h.store(c)
			if !errors.Is(out.Problem, tt.want) || out.Medium != nil || out.Name != "mtd "+tt.mtd {
				t.Errorf("store = %+v; want the problem %v", out, tt.want)
			}
			if d := time.Since(start); d < tt.wait || d > tt.wait+time.Second {
				t.Errorf("%s: given up after %v; want %v", tt.mtd, d, tt.wait)
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
