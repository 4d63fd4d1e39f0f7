package nvm

import (
	"time"

	"periph.io/x/conn/v3/physic"
)

// Part25 is what must be known of a kind of SPI EEPROM or FRAM to use it.
type Part25 struct {
	Name      string
	Size      int64            // bytes
	Page      int              // bytes that one write cycle takes; of FRAM, which has none, that one write takes here
	AddrBytes int              // 1 to 3; 1 with more than 256 bytes: address bit 8 in the instruction
	WriteMax  time.Duration    // longest write cycle; 0 = none, FRAM
	SpeedMax  physic.Frequency // of the clock, at 3.3 V
	Endurance int              // write cycles that a page stands, at least
	ID        []byte           // what RDID (9Fh) begins with; nil = it has none that is relied on
	Sheet     string           // where the figures come from
}

// Parts25 are the SPI memories that are known by name. "25lc" stands for 25LC
// and 25AA, whose figures differ in supply voltage alone: clocks are those at
// 2.5 V and up. FRAM has no pages; 64 bytes are what the store writes at a time.
var Parts25 = map[string]Part25{
	"25lc040": {"25lc040", 512, 16, 1, 5 * time.Millisecond, 5 * physic.MegaHertz, 1_000_000, nil,
		"Microchip 25LC040A, DS20001827: table 1-2 (TWC, FCLK); sections 2.1 (A8 in the instruction), 2.3 (page write)"},
	"25lc320": {"25lc320", 4096, 32, 2, 5 * time.Millisecond, 5 * physic.MegaHertz, 1_000_000, nil,
		"Microchip 25LC320A, DS20001832: table 1-2 (TWC, FCLK); section 2.3 (write sequence)"},
	"25lc640": {"25lc640", 8192, 32, 2, 5 * time.Millisecond, 5 * physic.MegaHertz, 1_000_000, nil,
		"Microchip 25LC640A, DS20001830: table 1-2 (TWC, FCLK); section 2.3 (write sequence)"},
	"25lc128": {"25lc128", 16384, 64, 2, 5 * time.Millisecond, 5 * physic.MegaHertz, 1_000_000, nil,
		"Microchip 25LC128, DS20001831: table 1-2 (TWC, FCLK); section 2.3 (write sequence)"},
	"25lc256": {"25lc256", 32768, 64, 2, 5 * time.Millisecond, 5 * physic.MegaHertz, 1_000_000, nil,
		"Microchip 25LC256, DS20001822: table 1-2 (TWC, FCLK); sections 2.2 (read), 2.3 (write), 2.5 (status register)"},
	"25lc512": {"25lc512", 65536, 128, 2, 5 * time.Millisecond, 10 * physic.MegaHertz, 1_000_000, nil,
		"Microchip 25LC512, DS20002065: table 1-2 (TWC, FCLK); section 2.3 (write sequence)"},
	"25lc1024": {"25lc1024", 131072, 256, 3, 6 * time.Millisecond, 10 * physic.MegaHertz, 1_000_000, nil,
		"Microchip 25LC1024, DS20002064: table 1-2 (TWC, FCLK); section 2.3 (write sequence)"},
	"25csm04": {"25csm04", 524288, 256, 3, 5 * time.Millisecond, 5 * physic.MegaHertz, 1_000_000, nil,
		"Microchip 25CSM04, DS20005817: features (page, write cycle, clock); only its legacy write protection is looked at"},
	"fm25v02": {"fm25v02", 32768, 64, 2, 0, 40 * physic.MegaHertz, 1_000_000_000, []byte{0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0xc2, 0x22},
		"Cypress FM25V02, 001-84497: status register (bit 0 reads 0, bit 6 reads 1), device ID, write operation"},
	"mb85rs256": {"mb85rs256", 32768, 64, 2, 0, 25 * physic.MegaHertz, 1_000_000_000, []byte{0x04, 0x7f, 0x05, 0x09},
		"Fujitsu MB85RS256B, DS501-00021: status register, RDID, block protect"},
}
