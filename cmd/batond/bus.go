package main

import (
	"time"

	"baton/ee/bus"

	"periph.io/x/conn/v3/i2c"
	"periph.io/x/conn/v3/physic"
)

// lateBus opens its bus when it first can: drivers may load after the agent.
// Its owner serialises calls.
type lateBus struct {
	name      string
	simulated bool

	bus   i2c.BusCloser // nil = not open yet
	err   error         // why
	tried time.Time
}

// openEvery is how often opening is tried again.
const openEvery = time.Second

func (b *lateBus) open() error {
	if b.bus != nil {
		return nil
	}
	if b.err != nil && time.Since(b.tried) < openEvery {
		return b.err
	}
	b.tried = time.Now()
	b.bus, b.err = bus.Open(b.name, b.simulated)
	return b.err
}

// String names the bus as the configuration does.
func (b *lateBus) String() string { return b.name }

// Tx is that of i2c.Bus.
func (b *lateBus) Tx(addr uint16, w, r []byte) error {
	if err := b.open(); err != nil {
		return err
	}
	return b.bus.Tx(addr, w, r)
}

// SetSpeed is that of i2c.Bus.
func (b *lateBus) SetSpeed(f physic.Frequency) error {
	if err := b.open(); err != nil {
		return err
	}
	return b.bus.SetSpeed(f)
}

// Close closes what was opened.
func (b *lateBus) Close() error {
	if b.bus == nil {
		return nil
	}
	return b.bus.Close()
}
