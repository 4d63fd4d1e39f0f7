package bus

import (
	"context"
	"errors"

	"periph.io/x/conn/v3/i2c"
)

// Addresses of devices: the others are reserved (UM10204 section 3.1.12).
const (
	scanFirst = 0x08
	scanLast  = 0x77
)

// Scan tells which addresses of b answer to a read of one byte, in their order.
// Those that skip names are left out: it is for chips that are known, and read
// by their own rules.
//
// A read changes nothing in an EEPROM or a register file but the address that
// the next read without one begins at. i2cdetect does the same at 0x30..0x37
// and 0x50..0x5F; at other addresses it writes zero bytes, which some chips
// take for a command and which not every adapter can do.
//
// A bus that does not work ends it at once: the error is of a class other than
// ErrNACK. At 100 kHz a scan takes about 25 ms.
func Scan(ctx context.Context, b i2c.Bus, skip func(addr uint16) bool) (found []uint16, err error) {
	for addr := uint16(scanFirst); addr <= scanLast; addr++ {
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
		if skip(addr) {
			continue
		}
		err := b.Tx(addr, nil, make([]byte, 1))
		switch err = Classify("transfer", b.String(), addr, err); {
		case err == nil:
			found = append(found, addr)
		case !errors.Is(err, ErrNACK) && !errors.Is(err, ErrArbitration):
			return found, err
		}
	}
	return found, nil
}
