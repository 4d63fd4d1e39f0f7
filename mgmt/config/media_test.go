package config

import (
	"errors"
	"strings"
	"testing"
)

// TestMedia is about stores and chips that are not on I2C.
func TestMedia(t *testing.T) {
	spiSlot := func(eeprom string) string {
		return `{"name": "s", "bus": "a", "address": "0x40", "profile": "regs-v1", "eeprom": ` + eeprom + `}`
	}
	known := strings.Join(sortedKeys(parts25), ", ")
	for _, tt := range []struct {
		name string
		over map[string]string
		want string
	}{
		{"spi", map[string]string{"STORE": `{"spi": "/dev/spidev0.0", "part": "25lc256", "speed": "1MHz"}`}, ""},
		{"spi without a speed", map[string]string{"STORE": `{"spi": "/dev/spidev12.3", "part": "fm25v02"}`}, ""},
		{"spi, all wrong", map[string]string{"STORE": `{"spi": "/dev/spidev0", "part": "24c256", "speed": "1GHz", "page": 64, "address": "0x50"}`},
			"line 4: store.speed: \"1GHz\" is not a clock from 1kHz to 100MHz, want the form 1MHz\n" +
				"line 4: store.spi: \"/dev/spidev0\": want /dev/spidevB.C, bus and chip select\n" +
				"line 4: store.part: \"24c256\" is not an SPI part that is known: " + known + "\n" +
				"line 4: store.address: has no meaning beside \"spi\"\n" +
				"line 4: store.page: has no meaning beside \"spi\""},
		{"spi too fast", map[string]string{"STORE": `{"spi": "/dev/spidev0.0", "part": "25lc256", "speed": "10MHz"}`},
			"line 4: store.speed: 10MHz, and a 25lc256 takes 5MHz"},
		{"spi too small", map[string]string{"STORE": `{"spi": "/dev/spidev0.0", "part": "25lc040"}`},
			"line 4: store.part: a store of 512 bytes has 8 pages; 1 slots, 1 hosts and 0 VMs can need 126"},
		{"mtd by name", map[string]string{"STORE": `{"mtd": "u-boot env", "format_blank": true, "config": true}`}, ""},
		{"mtd by device", map[string]string{"STORE": `{"mtd": "/dev/mtd5"}`}, ""},
		{"mtd's block device", map[string]string{"STORE": `{"mtd": "/dev/mtdblock5"}`},
			"line 4: store.mtd: \"/dev/mtdblock5\": want /dev/mtdN, or the name of a partition"},
		{"mtd elsewhere", map[string]string{"STORE": `{"mtd": "/tmp/x", "size": 5, "part": "24c256", "speed": "1MHz"}`},
			"line 4: store.speed: has no meaning beside \"mtd\"\n" +
				"line 4: store.mtd: \"/tmp/x\": want the name of a partition, or /dev/mtdN\n" +
				"line 4: store.part: has no meaning beside \"mtd\"\n" +
				"line 4: store.size: has no meaning beside \"mtd\""},
		{"two", map[string]string{"STORE": `{"mtd": "store", "spi": "/dev/spidev0.0"}`},
			"line 4: store: want one of bus, spi, mtd, file and slot, found spi, mtd"},
		{"slot on spi", map[string]string{"SLOT": spiSlot(`{"spi": "/dev/spidev0.0", "part": "25lc256"}`)}, ""},
		{"store on the slot's spi chip", map[string]string{
			"STORE": `{"slot": "s"}`, "SLOT": spiSlot(`{"spi": "/dev/spidev0.0", "part": "25lc256"}`)}, ""},
		{"slot on both", map[string]string{"SLOT": spiSlot(`{"spi": "/dev/spidev0.0", "address": "0x50", "part": "25lc256"}`)},
			"line 5: slots[0].eeprom.address: has no meaning beside \"spi\""},
		{"slot on neither", map[string]string{"SLOT": spiSlot(`{"part": "24c256", "speed": "1MHz"}`)},
			"line 5: slots[0].eeprom.address: missing: say where the chip is on the slot's bus, or \"spi\" if it is on SPI\n" +
				"line 5: slots[0].eeprom.speed: has no meaning without \"spi\""},
		{"two on one chip select", map[string]string{
			"STORE": `{"spi": "/dev/spidev0.0", "part": "25lc256"}`,
			"SLOT":  spiSlot(`{"spi": "/dev/spidev0.0", "part": "25lc256"}`)},
			"line 5: slots[0].eeprom.spi: the 25lc256 of slot s would be at /dev/spidev0.0 together with the store's 25lc256: one chip select is one chip"},
	} {
		_, err := Parse(fill(tt.over), lookup)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s:\n%s\nwant:\n%s", tt.name, got, tt.want)
		}
	}
}

func TestStoreRoom(t *testing.T) {
	c, err := Parse(fill(map[string]string{"STORE": `{"mtd": "store", "config": true}`}), lookup)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		size, page, erase int64
		ok                bool
	}{
		{512 << 10, 256, 64 << 10, true},
		{512 << 10, 256, 4 << 10, true},
		{64 << 10, 256, 4 << 10, true},
		{32 << 10, 256, 4 << 10, false},
		{128 << 10, 256, 64 << 10, false},
		{0, 256, 64 << 10, false},
	} {
		err := c.StoreRoom(tt.size, tt.page, tt.erase)
		if (err == nil) != tt.ok || err != nil && !errors.As(err, new(Errors)) {
			t.Errorf("StoreRoom(%d, %d, %d) = %v; want ok %v", tt.size, tt.page, tt.erase, err, tt.ok)
		}
	}
}

func TestFrequency(t *testing.T) {
	for text, want := range map[string]Frequency{
		"1MHz": 1e6, "400kHz": 400e3, "100MHz": 100e6, "1kHz": 1e3,
		"0kHz": 0, "101MHz": 0, "1": 0, "1 MHz": 0, "-1MHz": 0, "1.5MHz": 0, "MHz": 0, "99999999999MHz": 0,
	} {
		var f Frequency
		err := f.UnmarshalText([]byte(text))
		if f != want || (err == nil) != (want != 0) {
			t.Errorf("UnmarshalText(%q) = %d, %v; want %d", text, f, err, want)
		}
		if err == nil && f.String() != text {
			t.Errorf("%q is shown as %q", text, f)
		}
	}
}
