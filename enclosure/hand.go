package enclosure

import (
	"context"

	"baton/ee"
)

// Parts are who is in a slot; "" = not known.
type Parts struct {
	Engine string // MAC
	Device string
	Serial string
	Chip   string
	Block  string
}

// Adoption compares the parts that the agent knew with those it finds.
type Adoption struct {
	Slot       string
	Needed     bool
	Old, New   Parts
	Generation ee.Generation
	Effect     []string
	Token      string
	Adopted    bool
}

// AdoptionOf looks who is in a slot. It changes nothing.
func (e *Enclosure) AdoptionOf(ctx context.Context, slot string) (Adoption, error) {
	return Adoption{}, notYet()
}

// Adopt takes the parts that token stands for as the slot's.
func (e *Enclosure) Adopt(ctx context.Context, slot, token, by string) (Adoption, error) {
	return Adoption{}, notYet()
}

// Locate switches the slot's locate LED.
func (e *Enclosure) Locate(ctx context.Context, slot string, on bool, by string) error {
	return notYet()
}

// PowerState is what becomes of a device's power.
type PowerState string

// States of device power.
const (
	PowerOn    PowerState = "on"
	PowerOff   PowerState = "off"
	PowerCycle PowerState = "cycle"
)

// PowerRequest asks for a device's power to be switched. The slot must be cut.
type PowerRequest struct {
	Slot  string
	Gen   ee.Generation
	State PowerState
	By    string
}

// Power switches a device's power.
func (e *Enclosure) Power(ctx context.Context, r PowerRequest) error { return notYet() }

// ResetRequest asks for a reset of a device.
type ResetRequest struct {
	Slot string
	Gen  ee.Generation
	By   string
}

// Reset has the engine reset the device, seen by its counter.
func (e *Enclosure) Reset(ctx context.Context, r ResetRequest) error { return notYet() }

// Resolve lets the blocked set of a move go on without some of its slots.
func (e *Enclosure) Resolve(ctx context.Context, id ee.UUID, drop []string, by string) (Move, error) {
	return Move{}, notYet()
}

// ForceFree makes the records of a slot say free, whatever the hardware does.
func (e *Enclosure) ForceFree(ctx context.Context, slot, typed, by string) error { return notYet() }

func notYet() *Error { return &Error{Code: CodeInternal, What: "not built yet"} }
