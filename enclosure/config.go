package enclosure

import (
	"context"
	"log/slog"
	"time"

	"periph.io/x/conn/v3/i2c"

	"baton/ee"
	"baton/enclosure/plan"
	"baton/nvm"
)

// Config is an enclosure as cmd/batond builds it from its configuration file.
// It is taken as valid: names are unique and refer to each other.
type Config struct {
	Name      string
	Simulated bool
	Store     StoreConfig
	Slots     []SlotConfig // at most 64; the index is in the store's records
	Hosts     []HostConfig
	VMs       []VMConfig
	Switch    Switch // nil = the ports' VLANs are not ours to set
}

// StoreConfig is where the agent keeps its own records.
type StoreConfig struct {
	Medium nvm.Medium // nil = there is none: Problem says why
	Name   string     // for messages
	Part   string     // of the chip; "" = a file, or not known
	Offset int64      // of Medium on the chip, where Shared is set
	// Shared names the slot on whose engine's chip the store is; "" = it has a
	// medium of its own.
	Shared string
	// LoadTime is how long that slot's engine may take to load. It is needed
	// where the store is mounted before the slots are known.
	LoadTime time.Duration
	// FormatBlank allows to format a medium and to write a config block where
	// all bytes are as erased. Anything else that is not ours is never
	// overwritten.
	FormatBlank bool
	Problem     error
}

// SlotConfig is one slot: an engine and the chip that it loads from.
type SlotConfig struct {
	Name    string
	BusName string // slots of one bus are driven one after the other, buses in parallel
	Bus     i2c.Bus
	Addr    uint16 // of the engine
	Medium  nvm.Medium
	Part    string // of Medium; "" = not known
	Page    string // where the config block is, for messages
	Profile *ee.Profile
	MAC     ee.MAC // the engine's; zero = any
	Serial  uint64 // the device's; 0 = any
	Port    string // of the enclosure's switch; "" = none
	Reload  ee.Reloader
	Problem error // why bus or chip could not be opened; the slot is then a fault
}

// HostConfig is a server.
type HostConfig struct {
	Name  string
	Group uint16
	MAC   ee.MAC // of its EE(Server)
}

// VMConfig is a VM whose devices are here.
type VMConfig struct {
	Name   string
	UUID   ee.UUID
	Hosts  []string // it may run on
	Slots  []string
	Policy plan.Policy
}

// Options of Open.
type Options struct {
	// SameBoot says that an agent already ran since this controller's
	// power-up, so that no write cycle can have been cut short since: nothing
	// has to be rewritten before it is trusted.
	SameBoot bool
	Log      *slog.Logger // nil = none
	Memory   *Memory      // mounted already; nil = Open mounts Config.Store
	Random   func([]byte) // fills with random bytes; nil = crypto/rand. Tests that must repeat give their own
	// Wall is the date that events and the audit are given; nil = time.Now.
	// Nothing else depends on it.
	Wall func() time.Time
}

// Switch makes the ports of the enclosure's switch members of groups' VLANs.
type Switch interface {
	// Set makes port a member of the group's VLAN and of no other, 0 = of none,
	// and reads that back. It changes nothing where that is so already.
	// errors.Is finds vlan.ErrUnseen where nothing is known, and nothing changed.
	Set(ctx context.Context, port string, group uint16) error
	// May tells, by looking alone, why Set of these ports would fail.
	May(ctx context.Context, ports []string, group uint16) error
	// Check tells, by looking alone, what would not be so after a Set. errors.Is
	// finds vlan.ErrUnseen where that can not be seen.
	Check(ctx context.Context, port string, group uint16) error
	// Last is what was last read of port, for people. It asks nobody.
	Last(port string) string
}
