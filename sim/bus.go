package sim

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"periph.io/x/conn/v3/i2c"
	"periph.io/x/conn/v3/physic"
)

// ErrPowerOff is found by errors.Is in what a transfer returns when the
// enclosure has no power, or lost it under the transfer.
var ErrPowerOff = errors.New("the enclosure has no power")

var errPowerOff = fmt.Errorf("%w: %w", ErrPowerOff, syscall.EIO)

// Error is what a transfer ended with. Err holds the errno that Linux's I2C
// drivers give for it: ENXIO address not acknowledged, EIO data not
// acknowledged, EAGAIN arbitration lost, EBUSY a line held low, ETIMEDOUT
// clock stretched or driver wedged.
type Error struct {
	Bus  string
	Addr uint16
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: 0x%02x: %v", e.Bus, e.Addr, e.Err) }

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// Bus is an I2C bus of the enclosure. Tx may be called from several
// goroutines; transfers follow each other.
type Bus struct {
	w      *World
	spec   *BusSpec
	lock   chan struct{} // held through a transfer; its holder sleeps
	faults []*fault
	stats  BusStats
	hook   func(addr uint16, w []byte)
}

var _ i2c.BusCloser = (*Bus)(nil)

// BusStats is what passed over a bus since the world was made.
type BusStats struct {
	Transfers uint64
	NACKs     uint64 // transfers that ended with an address or byte not acknowledged
	Bytes     uint64 // address bytes included
	Bits      uint64 // bit times: 9 a byte, 1 for each START, repeated START and STOP
	Busy      time.Duration
}

// Stats returns the counts so far.
func (b *Bus) Stats() BusStats {
	b.w.enter()
	defer b.w.mu.Unlock()
	s := b.stats
	s.Busy = b.span(int64(s.Bits))
	return s
}

// String returns the bus's name.
func (b *Bus) String() string { return b.spec.Name }

// SetSpeed fails, as it does on Linux.
func (b *Bus) SetSpeed(physic.Frequency) error { return errors.New("sim: not supported") }

// Close does nothing: it lets a Bus stand where an opened one is closed.
func (b *Bus) Close() error { return nil }

// span is the time of n bits.
func (b *Bus) span(n int64) time.Duration {
	return time.Duration(n * int64(time.Second) / int64(b.spec.Hz))
}

// Tx carries out a transfer and takes the time that its bits take. With both w
// and r it is a combined one, with a repeated START between them; with neither
// it is none, as with periph's bus on Linux. The error is an *Error.
func (b *Bus) Tx(addr uint16, w, r []byte) error {
	if len(w) == 0 && len(r) == 0 {
		return nil
	}
	b.lock <- struct{}{}
	defer func() { <-b.lock }()
	b.w.enter()
	defer b.w.mu.Unlock()
	if hook := b.hook; hook != nil {
		b.w.mu.Unlock()
		hook(addr, w)
		b.w.enter()
	}
	x := transfer{b: b, addr: addr, w: w, r: r, start: b.w.at, boot: b.w.boots}
	if err := x.run(); err != nil {
		return &Error{Bus: b.spec.Name, Addr: addr, Err: err}
	}
	return nil
}

// OnTransfer has f called before each transfer begins, with what it is going to
// write (nil: no more). f holds up the bus, not the world: it may take any
// action but a transfer on the same bus, so that something can happen between
// two steps of an agent.
func (b *Bus) OnTransfer(f func(addr uint16, w []byte)) {
	b.w.enter()
	defer b.w.mu.Unlock()
	b.hook = f
}

// transfer is one Tx on its way.
type transfer struct {
	b     *Bus
	addr  uint16
	w, r  []byte
	start time.Duration
	bits  int64 // passed so far
	boot  uint64
}

// Lengths in bits.
const (
	startBit   = 1
	stopBit    = 1
	byteBits   = 9 // with its acknowledge
	addrNACKed = startBit + byteBits + stopBit
)

// until lets bits of the transfer pass, counted from its START, and tells
// whether the enclosure had power throughout. The lock is released meanwhile.
func (x *transfer) until(bits int64) bool {
	w := x.b.w
	w.mu.Unlock()
	if d := x.start + x.b.span(bits) - w.Now(); d > 0 {
		time.Sleep(d)
	}
	w.enter()
	x.b.stats.Bits += uint64(bits - x.bits)
	x.b.stats.Bytes += uint64(bits/byteBits - x.bits/byteBits)
	x.bits = bits
	return w.on && w.boots == x.boot
}

// pause lets d pass before the transfer goes on.
func (x *transfer) pause(d time.Duration) bool {
	w := x.b.w
	w.mu.Unlock()
	time.Sleep(d)
	w.enter()
	x.start += d
	return w.on && w.boots == x.boot
}

func (x *transfer) nack() error {
	x.until(addrNACKed)
	x.b.stats.NACKs++
	return syscall.ENXIO
}

func (x *transfer) run() error {
	w := x.b.w
	x.b.stats.Transfers++
	if !w.on {
		x.until(addrNACKed)
		return errPowerOff
	}
	f, err := x.meetFault()
	if err != nil {
		return err
	}
	var dataNACK bool
	if f != nil && f.Kind == NACKData && f.Byte < len(x.w) {
		dataNACK = true
		x.w, x.r = x.w[:f.Byte], nil
	}
	if err := x.deliver(dataNACK); err != nil {
		return err
	}
	if dataNACK {
		x.b.stats.NACKs++
		return syscall.EIO
	}
	if f != nil && f.Kind == FlipRead && f.Byte < len(x.r) {
		x.r[f.Byte] ^= 1 << (f.Bit & 7)
	}
	return nil
}

// deliver takes the transfer to whoever has the address. With dataNACK the
// byte after the last of w is not acknowledged, and the master stops.
func (x *transfer) deliver(dataNACK bool) error {
	w, ack := x.b.w, x.start+x.b.span(startBit+byteBits)
	for i := range w.slots {
		if s := &w.slots[i]; s.bus == x.b && s.spec.EngineAddr == x.addr && !s.spec.NVMOnly {
			if !s.answers() {
				return x.nack()
			}
			return x.engine(s, dataNACK)
		}
	}
	for i := range w.chips {
		if c := &w.chips[i]; c.bus == x.b && c.has(x.addr) {
			if !c.answers(ack) {
				return x.nack()
			}
			return x.chip(c, dataNACK)
		}
	}
	return x.nack()
}

// length is the transfer's bits up to and including STOP.
func (x *transfer) length(dataNACK bool) int64 {
	n := int64(startBit + stopBit)
	if len(x.w) > 0 || dataNACK {
		n += byteBits * int64(1+len(x.w))
		if len(x.r) > 0 {
			n += startBit
		}
	}
	if dataNACK {
		n += byteBits
	}
	if len(x.r) > 0 {
		n += byteBits * int64(1+len(x.r))
	}
	return n
}

// chip is a transfer with an EEPROM. Nothing that anybody can see changes
// before STOP, so one sleep takes it there, or to where power goes.
func (x *transfer) chip(c *Chip, dataNACK bool) error {
	w, all := x.b.w, x.length(dataNACK)
	data := max(0, len(x.w)-c.part.AddrBytes)
	c.useFrom, c.useUntil = x.start, x.start+x.b.span(all)
	first := w.cut.done
	if n := w.cut.take(data); n > 0 {
		if x.until(startBit + byteBits*int64(1+c.part.AddrBytes+n)) {
			w.powerCut(w.at)
		}
		return errPowerOff
	}
	if w.cut.hook != nil && data > 0 {
		if !x.until(all - stopBit) {
			return errPowerOff
		}
		for i := range data {
			w.tellPosition(Position{first + uint64(i) + 1, PositionData, c.spec.Name})
		}
	}
	if !x.until(all) {
		return errPowerOff
	}
	c.useUntil = w.at
	if len(x.w) > 0 {
		c.latch(x.addr, x.w)
		if data > 0 {
			c.write(w.at, x.w[c.part.AddrBytes:], len(x.r) > 0)
		}
	}
	if len(x.r) > 0 {
		c.read(x.addr, x.r)
	}
	return nil
}

// engine is a transfer with a register file. A byte takes effect when it is
// acknowledged; the sleeps end at those whose instant matters.
func (x *transfer) engine(s *Slot, dataNACK bool) error {
	w, all := x.b.w, x.length(dataNACK)
	passed := int64(startBit) // bits before the byte at hand
	if len(x.w) > 0 {
		passed += byteBits
		var data []byte
		switch {
		case len(x.w) == 1:
			s.pointer = uint16(x.w[0])<<8 | s.pointer&0xFF
		default:
			s.pointer = uint16(x.w[0])<<8 | uint16(x.w[1])
			data = x.w[2:]
		}
		passed += byteBits * int64(min(2, len(x.w)))
		first := w.cut.done
		cut := w.cut.take(len(data))
		pending := 0 // bytes acknowledged, not yet in effect
		for i := range data {
			passed += byteBits
			pending++
			here := s.pointer + uint16(pending-1)
			if here != regControl && here != regLatch && i != len(data)-1 && i+1 != cut && w.cut.hook == nil {
				continue
			}
			if !x.until(passed) {
				return errPowerOff
			}
			for _, v := range data[i+1-pending : i+1] {
				s.write(w.at, s.pointer, v)
				s.pointer++
			}
			pending = 0
			if i+1 == cut {
				w.powerCut(w.at)
				return errPowerOff
			}
			w.tellPosition(Position{first + uint64(i) + 1, PositionRegister, s.spec.Name})
			if !w.on || w.boots != x.boot {
				return errPowerOff
			}
		}
		if len(x.r) > 0 {
			passed += startBit
		}
	}
	if len(x.r) > 0 {
		if !x.until(passed + byteBits) {
			return errPowerOff
		}
		s.read(x.r)
	}
	if !x.until(all) {
		return errPowerOff
	}
	return nil
}
