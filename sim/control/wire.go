package control

import (
	"time"

	"baton/sim"
)

// State is the world at one instant, from the model's side.
type State struct {
	Now       Duration      `json:"now"` // since the world was made
	Powered   bool          `json:"powered"`
	Positions uint64        `json:"positions"` // cut positions passed
	Buses     []BusState    `json:"buses"`
	Chips     []ChipState   `json:"chips"`
	Slots     []SlotState   `json:"slots"`
	Servers   []ServerState `json:"servers"`
}

// Chip returns the state of the chip with that name; ok is false where there
// is none.
func (s State) Chip(name string) (c ChipState, ok bool) {
	for _, c := range s.Chips {
		if c.Name == name {
			return c, true
		}
	}
	return c, false
}

// Slot returns the state of the slot with that name.
func (s State) Slot(name string) (l SlotState, ok bool) {
	for _, l := range s.Slots {
		if l.Name == name {
			return l, true
		}
	}
	return l, false
}

// Server returns the state of the server with that name.
func (s State) Server(name string) (v ServerState, ok bool) {
	for _, v := range s.Servers {
		if v.Name == name {
			return v, true
		}
	}
	return v, false
}

// BusState is what passed over a bus.
type BusState struct {
	Name      string   `json:"name"`
	Transfers uint64   `json:"transfers"`
	NACKs     uint64   `json:"nacks"`
	Bytes     uint64   `json:"bytes"`
	Bits      uint64   `json:"bits"`
	Busy      Duration `json:"busy"`
}

// ChipState is an EEPROM.
type ChipState struct {
	Name       string `json:"name"`
	Part       string `json:"part"`
	PageWrites uint64 `json:"page_writes"` // write cycles since the world was made
	Hottest    uint32 `json:"hottest"`     // of one page
}

// SlotState is an engine and its device.
type SlotState struct {
	Name       string      `json:"name"`
	Group      uint16      `json:"group"` // of the block the engine runs with; 0 = none
	Generation string      `json:"generation"`
	Link       bool        `json:"link"`
	Peer       string      `json:"peer,omitempty"`    // server it is linked to
	Reacher    string      `json:"reacher,omitempty"` // server that can reach the device
	Control    Hex[uint16] `json:"control"`           // ee.Ctl* bits
	Status     Hex[uint16] `json:"status"`            // ee.Stat* bits
	Latch      Hex[uint16] `json:"latch"`             // ee.Latch* bits
	Show       Hex[uint16] `json:"show"`              // ee.Show* bits
	Resets     uint32      `json:"resets"`
	Swallowed  uint32      `json:"swallowed"`
	Proven     uint32      `json:"proven"`
	Epoch      Hex[uint32] `json:"epoch"`
	Writes     uint64      `json:"register_writes"`
}

// ServerState is a server.
type ServerState struct {
	Name    string   `json:"name"`
	VMs     []VM     `json:"vms"`
	Reaches []string `json:"reaches"` // slots whose device it can reach
	DMA     uint64   `json:"dma"`     // writes by devices into its memory
	Stray   uint64   `json:"stray"`   // of which from devices that another server programmed
}

// VM is a running VM.
type VM struct {
	Name  string   `json:"name"`
	Holds []string `json:"holds"` // slots whose device its QEMU holds
}

// Record is what the model remembers: the truth to judge an agent by.
type Record struct {
	Now        Duration       `json:"now"`
	Reach      []Interval     `json:"reach"`
	MaxOwners  map[string]int `json:"max_owners"` // per slot
	Resets     []Reset        `json:"resets"`
	PowerLoss  []PowerLoss    `json:"power_losses"`
	Violations []Violation    `json:"violations"`
}

// Interval is a time during which a server could reach a slot's device.
type Interval struct {
	Slot   string   `json:"slot"`
	Server string   `json:"server"`
	From   Duration `json:"from"`
	To     Duration `json:"to"` // while open, the present
	Open   bool     `json:"open,omitempty"`
}

// Reset is a reset that was sent to a slot's device.
type Reset struct {
	At        Duration `json:"at"`
	Slot      string   `json:"slot"`
	Cause     string   `json:"cause"`
	Server    string   `json:"server,omitempty"`
	Swallowed bool     `json:"swallowed,omitempty"`
}

// PowerLoss is a loss of a device's power.
type PowerLoss struct {
	At   Duration `json:"at"`
	Slot string   `json:"slot"`
}

// Violation is something that no agent should do.
type Violation struct {
	At   Duration `json:"at"`
	Name string   `json:"name"`
	What string   `json:"what"`
}

// IntactSince tells whether neither a reset nor a loss of power reached the
// slot's device at or after instant t.
func (r Record) IntactSince(slot string, t time.Duration) bool {
	for _, x := range r.Resets {
		if x.Slot == slot && time.Duration(x.At) >= t && !x.Swallowed {
			return false
		}
	}
	for _, x := range r.PowerLoss {
		if x.Slot == slot && time.Duration(x.At) >= t {
			return false
		}
	}
	return true
}

// Reached counts the resets that reached the slot's device so far.
func (r Record) Reached(slot string) int {
	n := 0
	for _, x := range r.Resets {
		if x.Slot == slot && !x.Swallowed {
			n++
		}
	}
	return n
}

// StartVM says how a VM is started; see sim.VMOptions for the resets.
type StartVM struct {
	Slots         []string `json:"slots"`
	NoOpenReset   bool     `json:"no_open_reset,omitempty"`
	NoRebootReset bool     `json:"no_reboot_reset,omitempty"`
	NoCloseReset  bool     `json:"no_close_reset,omitempty"`
	NoBusMaster   bool     `json:"no_bus_master,omitempty"`
}

func (o StartVM) options() sim.VMOptions {
	return sim.VMOptions{NoOpenReset: o.NoOpenReset, NoRebootReset: o.NoRebootReset, NoCloseReset: o.NoCloseReset, NoBusMaster: o.NoBusMaster}
}

// Fault is something that goes wrong on a bus; see sim.Fault.
type Fault struct {
	Kind   string      `json:"kind"` // a key of FaultKinds
	Addr   Hex[uint16] `json:"addr,omitzero"`
	Only   string      `json:"only,omitempty"` // write, read; "" = any
	Skip   int         `json:"skip,omitempty"`
	Count  int         `json:"count,omitempty"`
	For    Duration    `json:"for,omitzero"`
	Hold   Duration    `json:"hold,omitzero"`
	Pulses int         `json:"pulses,omitempty"`
	Byte   int         `json:"byte,omitempty"`
	Bit    uint        `json:"bit,omitempty"`
}

// FaultKinds are the names of what can go wrong on a bus.
var FaultKinds = map[string]sim.FaultKind{
	"nack-address":     sim.NACKAddr,
	"nack-data":        sim.NACKData,
	"arbitration-lost": sim.ArbitrationLost,
	"stuck-sda":        sim.StuckSDA,
	"wedged":           sim.Wedged,
	"stretch":          sim.Stretch,
	"flip-read":        sim.FlipRead,
}

var faultOps = map[string]sim.Op{"": sim.AnyOp, "write": sim.WriteOp, "read": sim.ReadOp}

// Tears are the names of what a power cut leaves of a page in its write cycle.
var Tears = map[string]sim.TearKind{
	"old": sim.TearOld, "new": sim.TearNew, "half": sim.TearHalf, "random": sim.TearRandom,
	"ones": sim.TearOnes, "zeros": sim.TearZeros, "per-byte": sim.TearPerByte,
}

// PowerCut plans when the enclosure's power goes: now, or at what is given.
type PowerCut struct {
	Position uint64   `json:"position,omitempty"` // after so many further cut positions
	After    Duration `json:"after,omitzero"`
	Tear     string   `json:"tear,omitempty"` // a key of Tears; "" = half
	Seed     uint64   `json:"seed,omitempty"`
	Unstable int      `json:"unstable,omitempty"` // bytes that read differently each time
}

// memory is the body of requests and answers about device memory and chips.
type memory struct {
	Offset int64  `json:"offset,omitempty"`
	Length int    `json:"length,omitempty"`
	Data   []byte `json:"data,omitempty"` // base64
}

// do names one of the things that can be done to a part, with what it needs.
type do struct {
	Do     string   `json:"do"`
	After  Duration `json:"after,omitzero"`
	N      int      `json:"n,omitempty"`
	On     bool     `json:"on,omitempty"`
	Offset int64    `json:"offset,omitempty"`
	Bit    uint     `json:"bit,omitempty"`
	Time   Duration `json:"time,omitzero"`
	VLAN   uint16   `json:"vlan,omitempty"`
}

type vlans struct {
	VLANs []uint16 `json:"vlans"`
}

// failure is the body of an answer other than 2xx.
type failure struct {
	Error string `json:"error"`
	Code  string `json:"code,omitempty"`
}

// codes carry those errors over the wire that callers tell apart.
var codes = map[string]error{
	"server-off":  sim.ErrServerOff,
	"server-hung": sim.ErrServerHung,
	"not-reached": sim.ErrNotReached,
	"no-vm":       sim.ErrNoVM,
	"power-off":   sim.ErrPowerOff,
	"switch":      sim.ErrSwitch,
}
