package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Frequency is a clock in Hz, written "1MHz" or "400kHz".
type Frequency int64

// UnmarshalText reads whole numbers of kHz and MHz from 1 kHz to 100 MHz.
func (f *Frequency) UnmarshalText(p []byte) error {
	for _, unit := range []struct {
		name string
		hz   int64
	}{{"MHz", 1e6}, {"kHz", 1e3}} {
		digits, ok := strings.CutSuffix(string(p), unit.name)
		n, err := strconv.ParseInt(digits, 10, 32)
		if ok && err == nil && n > 0 && n*unit.hz <= 100e6 {
			*f = Frequency(n * unit.hz)
			return nil
		}
	}
	return fmt.Errorf("%q is not a clock from 1kHz to 100MHz, want the form 1MHz", p)
}

func (f Frequency) String() string {
	if f%1e6 == 0 {
		return fmt.Sprintf("%dMHz", f/1e6)
	}
	return fmt.Sprintf("%dkHz", f/1e3)
}

// part25 is what the checks need of a 25xx; nvm.Parts25 has the rest, and a
// test of batond compares.
type part25 struct {
	part
	speed Frequency // that it stands at 3.3 V
}

var parts25 = map[string]part25{
	"25lc040":   {part{512, 16}, 5e6},
	"25lc320":   {part{4096, 32}, 5e6},
	"25lc640":   {part{8192, 32}, 5e6},
	"25lc128":   {part{16384, 64}, 5e6},
	"25lc256":   {part{32768, 64}, 5e6},
	"25lc512":   {part{65536, 128}, 10e6},
	"25lc1024":  {part{131072, 256}, 10e6},
	"25csm04":   {part{524288, 256}, 5e6},
	"fm25v02":   {part{32768, 64}, 40e6},
	"mb85rs256": {part{32768, 64}, 25e6},
}

// part is what is known of the chip, on whichever bus.
func (e EEPROM) part() (part, bool) {
	if e.SPI != "" {
		p, ok := parts25[e.Part]
		return p.part, ok
	}
	p, ok := parts[e.Part]
	return p, ok
}

// eeprom checks where the chip of a slot is.
func (v *checker) eeprom(key string, e EEPROM) (part, bool) {
	if e.SPI != "" {
		if e.Address != 0 {
			v.bad(key+"address", "has no meaning beside \"spi\"")
		}
		return v.spi(key, e.SPI, e.Part, e.Speed)
	}
	if e.Address == 0 {
		v.bad(key+"address", "missing: say where the chip is on the slot's bus, or \"spi\" if it is on SPI")
	}
	if e.Speed != 0 {
		v.bad(key+"speed", "has no meaning without \"spi\"")
	}
	return v.part(key+"part", e.Part)
}

// spi checks a chip select and the part behind it.
func (v *checker) spi(key, path, name string, speed Frequency) (part, bool) {
	if !isSPI(path) {
		v.bad(key+"spi", "%q: want /dev/spidevB.C, bus and chip select", clip(path))
	}
	p, ok := parts25[name]
	switch {
	case !ok:
		v.bad(key+"part", "%q is not an SPI part that is known: %s", clip(name), strings.Join(sortedKeys(parts25), ", "))
	case speed > p.speed:
		v.bad(key+"speed", "%s, and a %s takes %s", speed, name, p.speed)
	}
	return p.part, ok
}

// isSPI says whether path is as the kernel writes it.
func isSPI(path string) bool {
	bus, sel, ok := strings.Cut(strings.TrimPrefix(path, "/dev/spidev"), ".")
	return ok && strings.HasPrefix(path, "/dev/spidev") && isNumber(bus, 65535) && isNumber(sel, 255)
}

func isNumber(s string, most uint64) bool {
	n, err := strconv.ParseUint(s, 10, 32)
	return err == nil && n <= most && strconv.FormatUint(n, 10) == s
}

// mtd checks the name or the device of a partition. Its size is only known
// where it is: see StoreRoom.
func (v *checker) mtd(key, name string) {
	switch digits, dev := strings.CutPrefix(name, "/dev/mtd"); {
	case dev && !isNumber(digits, 255):
		v.bad(key, "%q: want /dev/mtdN, or the name of a partition", clip(name))
	case !dev && (len(name) > 63 || strings.ContainsAny(name, "/\"\n")):
		v.bad(key, "%q: want the name of a partition, or /dev/mtdN", clip(name))
	}
}

// StoreRoom checks that a partition of a flash can hold what this configuration
// may need of it: size in bytes, as pages and erase blocks of so many. The error
// is Errors.
func (c *Config) StoreRoom(size, page, erase int64) error {
	v := checker{c: c}
	// Three blocks' worth of pages is what housekeeping keeps erased, at most;
	// a batch takes half of a block (erasable.reserve and maxParts in nvm).
	have := max(0, size/page-3*(erase/page)-size/erase)
	v.roomOf("store.mtd", have, (erase/page-1)/2, size, page)
	if len(v.errs) > 0 {
		return v.sorted()
	}
	return nil
}
