package nvm

import (
	"bytes"
	"context"
	"fmt"
)

// Identify finds out, without writing to a cell, whether the chip is of the part
// that is configured. It returns ErrAbsent when no chip answers, ErrKind when
// it says to be another, ErrAddressing when it takes another number of address
// bytes and ErrSize when it is of another size, each with what was found.
//
// First the write enable latch is set and reset: a chip's status follows, and a
// line that nobody drives does not. A part with an ID is asked for it. One
// without is told by its content, and so not if that is all alike (Blank):
//
//   - What stands at an address stands, shifted by one byte, at the address
//     before. To a chip with fewer address bytes both are the same address, and
//     to one with more they are 256 bytes apart.
//   - A part ignores the address bits that it has no cells for. A chip that
//     holds the same image twice passes for one of half the size.
func (s *SPI25) Identify(ctx context.Context) (Found, error) {
	if err := s.enter(ctx); err != nil {
		return Found{}, err
	}
	defer s.leave()
	f, err := s.identify(ctx)
	if err != nil {
		return f, fmt.Errorf("%s: identify: %w", s, err)
	}
	switch {
	case f.AddrBytes != 0 && f.AddrBytes != s.part.AddrBytes:
		return f, fmt.Errorf("%s: %w: found %s", s, ErrAddressing, f)
	case f.Size != 0 && f.Size != s.part.Size:
		return f, fmt.Errorf("%s: %w: found %s", s, ErrSize, f)
	}
	return f, nil
}

func (s *SPI25) identify(ctx context.Context) (Found, error) {
	if _, err := s.idle(ctx); err != nil {
		return Found{}, err
	}
	set, err := s.latch(ctx, opWREN)
	if err != nil {
		return Found{}, err
	}
	reset, err := s.latch(ctx, opWRDI)
	if err != nil {
		return Found{}, err
	}
	if set&statusWEL == 0 || reset&statusWEL != 0 {
		return Found{}, fmt.Errorf("%w: the write enable latch does not follow, status reads %#02x, then %#02x", ErrAbsent, set, reset)
	}
	if s.part.ID == nil {
		return s.identifyContent(ctx)
	}
	id, err := s.exchange(ctx, []byte{opRDID}, len(s.part.ID))
	if err != nil {
		return Found{}, err
	}
	f := Found{ID: fmt.Sprintf("% x", id)}
	if !bytes.Equal(id, s.part.ID) {
		return f, fmt.Errorf("%w: its ID is %s, that of a %s is % x", ErrKind, f.ID, s.part.Name, s.part.ID)
	}
	return f, nil
}

// sample is some content of a chip that is not all alike.
type sample struct {
	at   int64
	data []byte
}

const sampleSize = 32

func (s *SPI25) identifyContent(ctx context.Context) (Found, error) {
	samples, shift, err := s.samples(ctx)
	if err != nil {
		return Found{}, err
	}
	if len(samples) == 0 {
		return Found{Blank: true}, nil
	}
	f := Found{AddrBytes: s.part.AddrBytes + shift}
	if shift != 0 {
		return f, nil
	}
	// alike says whether all content stands at a distance, too.
	alike := func(distance int64) (bool, error) {
		for _, a := range samples {
			got := make([]byte, sampleSize)
			if err := s.read(ctx, got, a.at^distance); err != nil || !bytes.Equal(got, a.data) {
				return false, err
			}
		}
		return true, nil
	}
	f.Size = s.part.Size
	most := int64(1) << (8 * s.part.AddrBytes)
	if s.part.AddrBytes == 1 {
		most *= 2
	}
	for size := f.Size; size < most; size *= 2 {
		same, err := alike(size)
		if err != nil {
			return Found{}, err
		}
		if !same {
			f.Size = 2 * size
		}
	}
	for f.Size <= s.part.Size && f.Size > 256 {
		same, err := alike(f.Size / 2)
		if err != nil {
			return Found{}, err
		}
		if !same {
			break
		}
		f.Size /= 2
	}
	return f, nil
}

// samples finds content, and by how many address bytes the chip differs from
// the part. A page that a power cut has torn may read differently each time, and
// is left out.
func (s *SPI25) samples(ctx context.Context) (found []sample, shift int, err error) {
	const enough = 4
	step := int64(64)
	for at := int64(0); at+sampleSize < min(s.part.Size, 64<<10) && len(found) < enough; at += step {
		if at == 4096 {
			step = 256
		}
		a := make([]byte, sampleSize)
		if err := s.read(ctx, a, at); err != nil {
			return nil, 0, err
		}
		if period(a) == 1 {
			continue
		}
		b := make([]byte, sampleSize)
		if err := s.read(ctx, b, at+1); err != nil {
			return nil, 0, err
		}
		steady, err := s.steady(ctx, at, a)
		if err != nil {
			return nil, 0, err
		}
		switch {
		case !steady:
			continue
		case bytes.Equal(a[1:], b[:sampleSize-1]):
		case bytes.Equal(a, b):
			shift = -1
		default:
			if again, err := s.steady(ctx, at+1, b); err != nil {
				return nil, 0, err
			} else if !again {
				continue
			}
			shift = 1
		}
		found = append(found, sample{at, a})
		if shift != 0 {
			return found, shift, nil
		}
	}
	return found, 0, nil
}

// steady tells whether what was read reads the same again and again.
func (s *SPI25) steady(ctx context.Context, at int64, want []byte) (bool, error) {
	got := make([]byte, len(want))
	for range 4 {
		if err := s.read(ctx, got, at); err != nil || !bytes.Equal(got, want) {
			return false, err
		}
	}
	return true, nil
}
