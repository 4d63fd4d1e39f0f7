package nvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
)

// Found is what Identify could tell of a chip. Zero is unknown.
type Found struct {
	AddrBytes int    // 1 or 2, of an SPI chip up to 3
	Size      int64  // bytes
	Blank     bool   // every byte that was looked at is the same: nothing can be told
	ID        string // of an SPI chip that has one, in hex
}

// String is what was found, in words.
func (f Found) String() string {
	switch {
	case f.ID != "":
		return "a chip with the ID " + f.ID
	case f.AddrBytes == 0 && f.Size == 0 && !f.Blank:
		return "nothing that can be told"
	case f.Blank:
		return "a chip whose content is all alike, of unknown kind"
	case f.Size == 0:
		return fmt.Sprintf("a chip with %d address bytes, of unknown size", f.AddrBytes)
	}
	return fmt.Sprintf("a chip with %d address bytes and %d bytes", f.AddrBytes, f.Size)
}

// OtherPart says whether Identify has found a chip, and it is not of the part
// that is configured.
func OtherPart(err error) bool {
	return errors.Is(err, ErrAddressing) || errors.Is(err, ErrSize) || errors.Is(err, ErrKind)
}

// identifyWindow is read in one message without setting an address: twice the
// largest part with one address byte, so that of such a part it holds
// everything, twice.
const identifyWindow = 4096

// Identify finds out, by reads alone, whether the chip is of the part that is
// configured. It returns ErrAbsent when nothing answers, ErrAddressing when the
// chip takes another number of address bytes and ErrSize when it is of another
// size, each with what was found. At 400 kHz it takes 0.1 s, on a chip with little
// in it up to 0.35 s.
//
// A chip cannot be asked what it is. This is how it is told, without ever
// sending a byte that a wrong chip would take for data:
//
//   - Reading on from wherever the chip's own pointer stands needs no address.
//     A part with one address byte wraps around at its end, after 2048 bytes at
//     most: the window then repeats itself. If it does not, the part has two.
//   - To a part with one address byte the second byte of an address is data. It
//     would be written only at a stop, and a repeated start follows; in case a
//     chip takes that for a stop, two are only sent when the chip is known to
//     take two, or when all of it, if it took one, is the byte sent.
//   - A part ignores the address bits that it has no cells for: what stands at
//     an address then stands at the address with that bit inverted, too.
//
// So a chip whose content is all alike, or a short pattern repeated, tells
// nothing (Blank): that is no error. And a chip that holds the same image twice
// passes for one of half the size. Parts of more than 65536 bytes, which use a
// bit of the device address, pass for ones of 65536.
func (e *EEPROM) Identify(ctx context.Context) (Found, error) {
	if err := e.enter(ctx); err != nil {
		return Found{}, err
	}
	defer e.leave()
	f, err := e.identify(ctx)
	if err != nil {
		return f, fmt.Errorf("%s: identify: %w", e, err)
	}
	switch {
	case f.AddrBytes != 0 && f.AddrBytes != e.part.AddrBytes:
		return f, fmt.Errorf("%s: %w: found %s", e, ErrAddressing, f)
	case f.Size != 0 && f.Size != e.part.Size:
		return f, fmt.Errorf("%s: %w: found %s", e, ErrSize, f)
	}
	return f, nil
}

func (e *EEPROM) identify(ctx context.Context) (Found, error) {
	win := make([]byte, identifyWindow)
	if err := e.tx(ctx, e.addr, nil, win); err != nil {
		return Found{}, err
	}
	switch p := period(win); {
	case p == 0:
		return e.identifyTwo(ctx)
	case p >= 128: // the smallest part is the 24C01
		return Found{AddrBytes: 1, Size: int64(p)}, nil
	case p > 1 || e.part.AddrBytes == 1:
		return Found{Blank: true}, nil
	}
	// All of the window is alike. If this were a part with one address byte, all
	// of it would be, and an address whose second byte is that byte changes
	// nothing: look further with such addresses.
	fill := win[0]
	got := make([]byte, 32)
	for hi := 0; hi < int(e.part.Size>>8); hi++ {
		if err := e.readTwo(ctx, hi<<8|int(fill), got); err != nil {
			return Found{}, err
		}
		if period(got) != 1 || got[0] != fill {
			return e.identifyTwo(ctx)
		}
	}
	return Found{Blank: true}, nil
}

// identifyTwo finds the size of a chip that is known to take two address bytes.
func (e *EEPROM) identifyTwo(ctx context.Context) (Found, error) {
	type sample struct {
		at   int
		data [32]byte
	}
	const enough = 4
	var samples []sample
	step := 64
	for at := 0; at < int(max(e.part.Size, 4096)) && len(samples) < enough; at += step {
		if at == 4096 {
			step = 256
		}
		s := sample{at: at}
		if err := e.readTwo(ctx, at, s.data[:]); err != nil {
			return Found{}, err
		}
		if period(s.data[:]) != 1 {
			samples = append(samples, s)
		}
	}
	f := Found{AddrBytes: 2}
	got := make([]byte, 32)
	for f.Size = 4096; f.Size < 65536; f.Size *= 2 {
		alike := 0
		for i := 0; i < len(samples); i++ {
			s := &samples[i]
			if err := e.readTwo(ctx, s.at^int(f.Size), got); err != nil {
				return Found{}, err
			}
			if bytes.Equal(got, s.data[:]) {
				alike++
				continue
			}
			steady, err := e.steady(ctx, s.at, s.data[:])
			if err != nil {
				return Found{}, err
			}
			if !steady {
				samples = append(samples[:i], samples[i+1:]...)
				i--
			}
		}
		if len(samples) == 0 {
			return Found{AddrBytes: 2}, nil
		}
		if alike == len(samples) {
			break
		}
	}
	return f, nil
}

// steady tells whether the bytes at an address read as want again and again: a
// page that a power cut has torn may read differently each time, and then says
// nothing about the chip.
func (e *EEPROM) steady(ctx context.Context, at int, want []byte) (bool, error) {
	got := make([]byte, len(want))
	for range 4 {
		if err := e.readTwo(ctx, at, got); err != nil {
			return false, err
		}
		if !bytes.Equal(got, want) {
			return false, nil
		}
	}
	return true, nil
}

func (e *EEPROM) readTwo(ctx context.Context, at int, p []byte) error {
	e.buf[0], e.buf[1] = byte(at>>8), byte(at)
	return e.tx(ctx, e.addr, e.buf[:2], p)
}

// period returns the smallest power of two at which b repeats itself all
// along, up to half its length; 0 if there is none.
func period(b []byte) int {
	for p := 1; p <= len(b)/2; p *= 2 {
		if bytes.Equal(b[p:], b[:len(b)-p]) {
			return p
		}
	}
	return 0
}
