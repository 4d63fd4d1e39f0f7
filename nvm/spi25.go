package nvm

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// SPI25 is a 25xx EEPROM or FRAM on an SPI bus. It never closes the bus.
//
// A write has its order (section 2.3 and 2.4 of the 25LC256 data sheet): the
// latch is set (WREN) and read back, then the page is sent, then the status is
// asked until it no longer says that a write is in progress (WIP). The chip
// ignores all else meanwhile. What is write-protected is not tried.
//
// Like an EEPROM it may be used by several goroutines, each for a part of its
// own (Section): one call has the chip at a time. Two SPI25 for one chip would
// come between each other's latch and write.
type SPI25 struct {
	// Slack is added to the part's write cycle before ErrTimeout.
	Slack time.Duration
	// PollAfter is when the first poll follows a write.
	PollAfter time.Duration
	// PollEvery is slept between polls.
	PollEvery time.Duration
	// Limit is how long a transfer may take, beside its bytes, before ErrWedged.
	Limit time.Duration

	conn  SPIConn
	part  Part25
	owner *owner

	use chan struct{} // full while a call has the chip

	busy      bool // a write cycle of ours may be under way
	busySince time.Time
}

// SPIConn is one chip select of an SPI bus in mode 0, as periph's spi.Conn.
type SPIConn interface {
	String() string
	// Tx sends w and fills r, which is as long or nil, between one fall and
	// one rise of the chip select.
	Tx(w, r []byte) error
}

// Instructions (table 2-1 of the 25LC256 data sheet), and RDID of FRAM.
const (
	opWRITE = 0x02
	opREAD  = 0x03
	opWRDI  = 0x04
	opRDSR  = 0x05
	opWREN  = 0x06
	opRDID  = 0x9f
)

// Bits of the status register (section 2.5 of the same).
const (
	statusWIP = 0x01
	statusWEL = 0x02
	statusBP  = 0x0c // what is protected: the upper quarter, the upper half, all
	// statusNone is what a data line reads that nobody drives. No chip has it
	// for longer than a write cycle: WIP is set.
	statusNone = 0xff
)

const (
	// maxExchange is the longest transfer: spidev's buffer, unless its module
	// was told otherwise (bufsiz in drivers/spi/spidev.c).
	maxExchange = 4096
	// exchangeLimit bounds a transfer beside its bytes: drivers give up by
	// themselves after some 2 s (spi_imx_calculate_timeout in
	// drivers/spi/spi-imx.c), and say more. exchangeByte is what a byte takes:
	// 8 bits at 100 kHz, and some.
	exchangeLimit = 3 * time.Second
	exchangeByte  = 100 * time.Microsecond
)

// NewSPI25 returns a driver for the part behind conn. It does not touch the
// bus. Close ends it.
func NewSPI25(conn SPIConn, part Part25) *SPI25 {
	return &SPI25{
		Slack:     10 * time.Millisecond,
		PollAfter: part.WriteMax / 2,
		PollEvery: 200 * time.Microsecond,
		Limit:     exchangeLimit,
		conn:      conn,
		part:      part,
		owner:     newOwner(),
		use:       make(chan struct{}, 1),
	}
}

// Close ends the goroutine that talks to the bus, and leaves the bus open.
// ErrWedged says that a transfer has not come back.
func (s *SPI25) Close() error {
	if err := s.owner.close(); err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	return nil
}

// String names the chip for messages.
func (s *SPI25) String() string { return fmt.Sprintf("%s at %s", s.part.Name, s.conn) }

// Geometry is the part's.
func (s *SPI25) Geometry() Geometry {
	return Geometry{Size: s.part.Size, Page: s.part.Page, Erased: 0xff, WriteMax: s.part.WriteMax}
}

func (s *SPI25) enter(ctx context.Context) error {
	select {
	case s.use <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", s, ctx.Err())
	}
}

func (s *SPI25) leave() { <-s.use }

// ReadAt asks the status first: what nobody drives would read as erased. It
// returns ErrRange, ErrAbsent, ErrTimeout if a write cycle before it does not
// end, ErrWedged, or the bus's error.
func (s *SPI25) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > s.part.Size {
		return fmt.Errorf("%s: read of %d bytes at %#x: %w", s, len(p), off, ErrRange)
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if err := s.read(ctx, p, off); err != nil {
		return fmt.Errorf("%s: read at %#x: %w", s, off, err)
	}
	return nil
}

func (s *SPI25) read(ctx context.Context, p []byte, off int64) error {
	if _, err := s.idle(ctx); err != nil {
		return err
	}
	for len(p) > 0 {
		head := s.head(opREAD, off)
		n := min(len(p), maxExchange-len(head))
		r, err := s.exchange(ctx, head, n)
		if err != nil {
			return err
		}
		copy(p, r)
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// Program sends p, which starts a write cycle. It returns ErrRange, ErrPage,
// ErrReadOnly for a chip that protects any part of itself, ErrAbsent where the latch can
// not be set, ErrTimeout if the cycle before does not end, ErrWedged, or the
// bus's error. Nothing was written then, unless the bus failed in the write.
func (s *SPI25) Program(ctx context.Context, p []byte, off int64) error {
	if err := checkProgram(s.Geometry(), p, off); err != nil {
		return fmt.Errorf("%s: write of %d bytes at %#x: %w", s, len(p), off, err)
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if err := s.program(ctx, p, off); err != nil {
		return fmt.Errorf("%s: write at %#x: %w", s, off, err)
	}
	return nil
}

func (s *SPI25) program(ctx context.Context, p []byte, off int64) error {
	if _, err := s.idle(ctx); err != nil {
		return err
	}
	st, err := s.latch(ctx, opWREN)
	switch {
	case err != nil:
		return err
	case st == statusNone || st&statusWEL == 0:
		return fmt.Errorf("%w: the write enable latch does not set, status reads %#02x", ErrAbsent, st)
	case st&statusBP != 0:
		// Also where this place is not protected: a store would find out much later.
		if _, err := s.latch(ctx, opWRDI); err != nil {
			return err
		}
		return fmt.Errorf("%w: its block protect bits are set, status reads %#02x; clear them with the tool that set them", ErrReadOnly, st)
	}
	_, err = s.exchange(ctx, append(s.head(opWRITE, off), p...), 0)
	s.busy, s.busySince = true, time.Now() // also where it failed: who knows
	return err
}

// Settle polls until the status says that no write is in progress.
func (s *SPI25) Settle(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if !s.busy {
		return nil
	}
	if _, err := s.idle(ctx); err != nil {
		return fmt.Errorf("%s: end of write: %w", s, err)
	}
	return nil
}

// idle waits until no write is in progress, also one that was begun before
// this driver was, and returns the status.
func (s *SPI25) idle(ctx context.Context) (byte, error) {
	until := time.Now().Add(s.part.WriteMax + s.Slack)
	if s.busy {
		until = s.busySince.Add(s.part.WriteMax + s.Slack)
		if err := sleep(ctx, time.Until(s.busySince.Add(s.PollAfter))); err != nil {
			return 0, err
		}
	}
	for {
		late := !time.Now().Before(until) // asked once more, however late we are
		st, err := s.status(ctx)
		switch {
		case err != nil:
			return 0, err
		case st&statusWIP == 0:
			s.busy = false
			return st, nil
		case late:
			s.busy = false
			if st == statusNone {
				return 0, fmt.Errorf("%w: status reads %#02x", ErrAbsent, st)
			}
			return 0, fmt.Errorf("%w: status reads %#02x", ErrTimeout, st)
		}
		if err := sleep(ctx, s.PollEvery); err != nil {
			return 0, err
		}
	}
}

func (s *SPI25) status(ctx context.Context) (byte, error) {
	r, err := s.exchange(ctx, []byte{opRDSR}, 1)
	if err != nil {
		return 0, err
	}
	return r[0], nil
}

// latch sets or resets the write enable latch and returns the status after.
func (s *SPI25) latch(ctx context.Context, op byte) (byte, error) {
	if _, err := s.exchange(ctx, []byte{op}, 0); err != nil {
		return 0, err
	}
	return s.status(ctx)
}

// head is an instruction with its address.
func (s *SPI25) head(op byte, off int64) []byte {
	switch s.part.AddrBytes {
	case 1:
		return []byte{op | byte(off>>8)<<3, byte(off)}
	case 2:
		return []byte{op, byte(off >> 8), byte(off)}
	}
	return []byte{op, byte(off >> 16), byte(off >> 8), byte(off)}
}

// exchange sends w, and returns the n bytes that follow. The buffers are the
// transfer's own: one that is given up goes on using them.
func (s *SPI25) exchange(ctx context.Context, w []byte, n int) ([]byte, error) {
	out := append(slices.Clone(w), make([]byte, n)...)
	var in []byte
	if n > 0 {
		in = make([]byte, len(out))
	}
	limit := s.Limit + time.Duration(len(out))*exchangeByte
	if err := s.owner.do(ctx, limit, func() error { return s.conn.Tx(out, in) }); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, nil
	}
	return in[len(w):], nil
}
