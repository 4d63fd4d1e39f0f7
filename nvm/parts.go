package nvm

import "time"

// Part is what must be known of a kind of EEPROM to use it.
type Part struct {
	Name      string
	Size      int64         // bytes
	Page      int           // bytes that one write cycle takes
	AddrBytes int           // 1 or 2; 1 with more than 256 bytes: block bits in the device address
	WriteMax  time.Duration // longest write cycle
	Endurance int           // write cycles that a page stands, at least
	Sheet     string        // where the figures come from
}

// Parts are the EEPROMs that are known by name. Of the makers' variants of a
// part the figures are those that hold for all: the 5 ms and the million
// cycles are Microchip's 24LC and Atmel's AT24C alike; older parts than the
// revisions named take up to 10 ms.
var Parts = map[string]Part{
	"24c02": {"24c02", 256, 8, 1, 5 * time.Millisecond, 1_000_000,
		"Microchip 24LC02B, DS20001709: AC characteristics, TWC; sections 5.0 (device addressing), 6.2 (page write)"},
	"24c16": {"24c16", 2048, 16, 1, 5 * time.Millisecond, 1_000_000,
		"Microchip 24LC16B, DS20001703: AC characteristics, TWC; sections 5.0 (device addressing, block bits), 6.2 (page write)"},
	"24c32": {"24c32", 4096, 32, 2, 5 * time.Millisecond, 1_000_000,
		"Microchip 24LC32A, DS20001713: AC characteristics, TWC; section 6.2 (page write)"},
	"24c64": {"24c64", 8192, 32, 2, 5 * time.Millisecond, 1_000_000,
		"Microchip 24LC64, DS20001189: AC characteristics, TWC; section 6.2 (page write)"},
	"24c128": {"24c128", 16384, 64, 2, 5 * time.Millisecond, 1_000_000,
		"Microchip 24LC128, DS20001191: AC characteristics, TWC; section 6.2 (page write)"},
	"24c256": {"24c256", 32768, 64, 2, 5 * time.Millisecond, 1_000_000,
		"Microchip 24LC256, DS20001203: AC characteristics, TWC; sections 6.2 (page write), 7.0 (acknowledge polling), 8.0 (read)"},
	"24c512": {"24c512", 65536, 128, 2, 5 * time.Millisecond, 1_000_000,
		"Microchip 24LC512, DS20001754: AC characteristics, TWC; section 6.2 (page write)"},
}
