package sim

import (
	"syscall"
	"time"
)

// FaultKind is what goes wrong with a transfer.
type FaultKind int

const (
	NACKAddr        FaultKind = iota // the address is not acknowledged: ENXIO
	NACKData                         // byte Byte of the write is not taken nor acknowledged, the master stops: EIO. What came before is in effect
	ArbitrationLost                  // another master won at the address: EAGAIN
	StuckSDA                         // a chip holds SDA low until it has seen Pulses clock pulses: EBUSY; each attempt gives 9
	Wedged                           // the driver blocks for Hold, then ETIMEDOUT; nothing reaches the wire
	Stretch                          // the clock is stretched by Hold; beyond the bus's Timeout the adapter gives up: ETIMEDOUT
	FlipRead                         // bit Bit of byte Byte of what is read arrives inverted

	FaultKinds = iota // how many there are
)

// Fault is a schedule of something that goes wrong on a bus.
type Fault struct {
	Kind   FaultKind
	Addr   uint16        // hits transfers to this address; 0 = to any
	Only   Op            // hits only these
	Skip   int           // lets so many that it would hit pass first
	Count  int           // hits so many; 0 = for ever
	For    time.Duration // ends when this has passed since Inject; 0 = never
	Hold   time.Duration // Wedged, Stretch
	Pulses int           // StuckSDA: clock pulses until SDA is free; 0 = never
	Byte   int           // NACKData, FlipRead: which byte, from 0; in a write the register or word address counts
	Bit    uint          // FlipRead
}

// Op is a kind of transfer.
type Op int

const (
	AnyOp   Op = iota
	WriteOp    // has something to write beyond a two-byte address
	ReadOp     // has something to read
)

type fault struct {
	Fault
	id    uint64
	until time.Duration
	left  int // of Count
}

// Inject adds a fault and returns what takes it away again. Of several that
// could hit a transfer the first does.
func (b *Bus) Inject(f Fault) (remove func()) {
	t := b.w.enter()
	defer b.w.mu.Unlock()
	until := never
	if f.For > 0 {
		until = t + f.For
	}
	id := tokens.Add(1)
	b.faults = append(b.faults, &fault{Fault: f, id: id, until: until, left: f.Count})
	return func() {
		b.w.enter()
		defer b.w.mu.Unlock()
		b.drop(id)
	}
}

// ClearFaults takes all faults of the bus away.
func (b *Bus) ClearFaults() {
	b.w.enter()
	defer b.w.mu.Unlock()
	b.faults = nil
}

func (b *Bus) drop(id uint64) {
	for i, f := range b.faults {
		if f.id == id {
			b.faults = append(b.faults[:i:i], b.faults[i+1:]...)
			return
		}
	}
}

// meetFault finds the fault that hits x. It returns an error if that ends the
// transfer, else the fault, if any, that is still to have its effect.
func (x *transfer) meetFault() (*Fault, error) {
	b := x.b
	f := x.findFault()
	if f == nil {
		return nil, nil
	}
	hit := f.Fault
	if f.Count > 0 {
		if f.left--; f.left == 0 {
			b.drop(f.id)
		}
	}
	switch hit.Kind {
	case NACKAddr:
		return nil, x.nack()
	case ArbitrationLost:
		x.until(startBit + byteBits)
		return nil, syscall.EAGAIN
	case StuckSDA:
		if hit.Pulses > 0 {
			if f.Pulses -= 9; f.Pulses <= 0 {
				b.drop(f.id)
			}
		}
		x.until(addrNACKed)
		return nil, syscall.EBUSY
	case Wedged:
		x.pause(hit.Hold)
		return nil, syscall.ETIMEDOUT
	case Stretch:
		if hit.Hold > b.spec.Timeout {
			x.pause(b.spec.Timeout)
			return nil, syscall.ETIMEDOUT
		}
		if !x.pause(hit.Hold) {
			return nil, errPowerOff
		}
	}
	return &hit, nil
}

func (x *transfer) findFault() *fault {
	for i := 0; i < len(x.b.faults); i++ {
		f := x.b.faults[i]
		if x.b.w.at >= f.until {
			x.b.drop(f.id)
			i--
			continue
		}
		switch {
		case f.Addr != 0 && f.Addr != x.addr:
		case f.Only == WriteOp && len(x.w) <= 2, f.Only == ReadOp && len(x.r) == 0:
		case f.Skip > 0:
			f.Skip--
		default:
			return f
		}
	}
	return nil
}
