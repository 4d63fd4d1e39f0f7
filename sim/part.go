package sim

import "time"

// Part is a type of EEPROM as its data sheet has it.
type Part struct {
	Size      int64         // bytes
	Page      int           // bytes that one write cycle takes
	AddrBytes int           // word address bytes: 1 or 2
	WriteMax  time.Duration // longest write cycle, tWR
}

// Parts are the models, by name, after the Microchip (Atmel) data sheets of the
// AT24C02D, AT24C16D, AT24C32D, AT24C64D, AT24C128C, AT24C256C and AT24C512C:
// sections "Device Addressing" (word address bytes, block bits), "Page Write"
// (page) and "AC Characteristics" (tWR).
var Parts = map[string]Part{
	"24c02":  {256, 8, 1, 5 * time.Millisecond},
	"24c16":  {2048, 16, 1, 5 * time.Millisecond},
	"24c32":  {4096, 32, 2, 5 * time.Millisecond},
	"24c64":  {8192, 32, 2, 5 * time.Millisecond},
	"24c128": {16384, 64, 2, 5 * time.Millisecond},
	"24c256": {32768, 64, 2, 5 * time.Millisecond},
	"24c512": {65536, 128, 2, 5 * time.Millisecond},
}

// maxPage is the longest page of Parts.
const maxPage = 128

// addresses is how many device addresses the part answers to: one-byte parts
// above 256 bytes have the high bits of the word address there.
func (p Part) addresses() int {
	if p.AddrBytes == 1 && p.Size > 256 {
		return int(p.Size / 256)
	}
	return 1
}
