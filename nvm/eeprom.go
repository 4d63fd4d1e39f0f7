package nvm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"periph.io/x/conn/v3/i2c"
)

// ErrAddressing is returned by Identify when the chip takes another number of
// address bytes than the part that is configured.
var ErrAddressing = errors.New("chip has another address width")

// EEPROM is a 24Cxx on an I2C bus. It never closes the bus.
//
// An EEPROM answers nothing while it writes its cells. That is polled for (the
// data sheets' "acknowledge polling"), asleep between the polls, so that the
// bus is free for others: a read or write after a write is its own poll.
//
// The chip may have a second master, which reads and writes it too: a chip that
// does not answer although nothing was written is asked again for a while.
//
// Unlike other media it may be used by several goroutines, each for a part of
// its own (Section): one call has the chip at a time.
type EEPROM struct {
	// Slack is added to the part's write cycle before ErrTimeout.
	Slack time.Duration
	// PollAfter is when the first poll follows a write: cells take most of the
	// data sheet's longest time in practice.
	PollAfter time.Duration
	// PollEvery is slept between polls.
	PollEvery time.Duration

	bus  i2c.Bus
	addr uint16
	part Part

	use chan struct{} // full while a call has the chip

	buf       []byte // address and data; on the heap, since drivers pass its address on
	poll      []byte
	busy      bool // a write cycle of ours may be under way
	busyAddr  uint16
	busySince time.Time
}

const (
	// maxMessage is the longest read in one message: what the kernel's i2c-dev
	// takes (I2C_RDWR in drivers/i2c/i2c-dev.c).
	maxMessage = 8192
	// foreignBusy is how long a chip may be kept busy by another master, beyond
	// a write cycle. A guess, the same that the engine is built on.
	foreignBusy = 10 * time.Millisecond
)

// NewEEPROM returns a driver for the part at a 7-bit device address. It does
// not touch the bus.
func NewEEPROM(bus i2c.Bus, addr uint16, part Part) *EEPROM {
	return &EEPROM{
		Slack:     10 * time.Millisecond,
		PollAfter: part.WriteMax / 2,
		PollEvery: 200 * time.Microsecond,
		bus:       bus,
		addr:      addr,
		part:      part,
		use:       make(chan struct{}, 1),
		buf:       make([]byte, 2+part.Page),
		poll:      make([]byte, 1),
	}
}

// String names the chip for messages.
func (e *EEPROM) String() string { return fmt.Sprintf("%s at %s/%#02x", e.part.Name, e.bus, e.addr) }

// Geometry is the part's.
func (e *EEPROM) Geometry() Geometry {
	return Geometry{Size: e.part.Size, Page: e.part.Page, Erased: 0xff, WriteMax: e.part.WriteMax}
}

// enter takes the chip for a call; leave gives it back.
func (e *EEPROM) enter(ctx context.Context) error {
	select {
	case e.use <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", e, ctx.Err())
	}
}

func (e *EEPROM) leave() { <-e.use }

// ReadAt reads in messages of up to 8192 bytes. It returns ErrRange, ErrAbsent,
// or ErrTimeout if a write cycle before it does not end.
func (e *EEPROM) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > e.part.Size {
		return fmt.Errorf("%s: read of %d bytes at %#x: %w", e, len(p), off, ErrRange)
	}
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	for len(p) > 0 {
		n := min(len(p), maxMessage)
		if e.part.AddrBytes == 1 {
			n = min(n, 256-int(off)%256) // the block is in the device address
		}
		dev, ptr := e.pointer(off)
		if err := e.tx(ctx, dev, ptr, p[:n]); err != nil {
			return fmt.Errorf("%s: read at %#x: %w", e, off, err)
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// Program sends p, which starts a write cycle. It returns ErrRange, ErrPage,
// ErrAbsent, or ErrTimeout if the cycle before does not end.
func (e *EEPROM) Program(ctx context.Context, p []byte, off int64) error {
	if err := checkProgram(e.Geometry(), p, off); err != nil {
		return fmt.Errorf("%s: write of %d bytes at %#x: %w", e, len(p), off, err)
	}
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	dev, ptr := e.pointer(off)
	msg := e.buf[:len(ptr)+len(p)]
	copy(msg[len(ptr):], p)
	if err := e.tx(ctx, dev, msg, nil); err != nil {
		return fmt.Errorf("%s: write at %#x: %w", e, off, err)
	}
	e.busy, e.busyAddr, e.busySince = true, dev, time.Now()
	return nil
}

// Settle polls until the chip answers again. It reads a byte to do so, from
// wherever the chip's own pointer is.
func (e *EEPROM) Settle(ctx context.Context) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	if !e.busy {
		return nil
	}
	if err := e.tx(ctx, e.busyAddr, nil, e.poll); err != nil {
		return fmt.Errorf("%s: end of write: %w", e, err)
	}
	return nil
}

// pointer returns the device address for off and the bytes that point to it,
// at the start of e.buf.
func (e *EEPROM) pointer(off int64) (dev uint16, ptr []byte) {
	if e.part.AddrBytes == 1 {
		e.buf[0] = byte(off)
		return e.addr | uint16(off>>8), e.buf[:1]
	}
	e.buf[0], e.buf[1] = byte(off>>8), byte(off)
	return e.addr, e.buf[:2]
}

// tx does a transaction, again and again while the chip does not answer and
// may be busy. periph says what failed in words only, so that every error
// counts as no answer.
func (e *EEPROM) tx(ctx context.Context, dev uint16, w, r []byte) error {
	gaveUp, until := ErrAbsent, time.Now().Add(e.part.WriteMax+foreignBusy)
	if e.busy {
		gaveUp, until = ErrTimeout, e.busySince.Add(e.part.WriteMax+e.Slack)
		if err := sleep(ctx, time.Until(e.busySince.Add(e.PollAfter))); err != nil {
			return err
		}
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		late := !time.Now().Before(until) // asked once more, however late we are
		err := e.bus.Tx(dev, w, r)
		if err == nil {
			e.busy = false
			return nil
		}
		if late {
			e.busy = false
			return fmt.Errorf("%w: %w", gaveUp, err)
		}
		if err := sleep(ctx, e.PollEvery); err != nil {
			return err
		}
	}
}

// checkProgram applies the rules of Medium.Program.
func checkProgram(g Geometry, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > g.Size {
		return ErrRange
	}
	if page := int64(g.Page); len(p) > 0 && off/page != (off+int64(len(p))-1)/page {
		return ErrPage
	}
	return nil
}

// sleep waits, and returns early with ctx's error if that ends.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
