package control

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"baton/ee"
	"baton/sim"
)

// ParseWorld reads the file of a world: sim.Spec as JSON, with the names of
// ExampleWorld. What is left out has sim's default. Durations are "5ms", MACs
// "02:45:45:00:00:01", addresses and IDs numbers or "0x57".
func ParseWorld(data []byte) (sim.Spec, error) {
	var w world
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return sim.Spec{}, fmt.Errorf("world: %w", err)
	}
	if d.More() {
		return sim.Spec{}, errors.New("world: there is something behind the object")
	}
	s, err := w.spec()
	if err != nil {
		return sim.Spec{}, fmt.Errorf("world: %w", err)
	}
	if err := s.Check(); err != nil {
		return sim.Spec{}, fmt.Errorf("world: %w", err)
	}
	return s, nil
}

// FormatWorld is the inverse of ParseWorld. What a chip holds is not part of
// it.
func FormatWorld(s sim.Spec) []byte {
	p, err := json.MarshalIndent(worldOf(s), "", "  ")
	if err != nil {
		panic(err) // strings and numbers only
	}
	return append(p, '\n')
}

// ExampleWorld is an enclosure with a store of its own, one GPU slot, and two
// servers.
func ExampleWorld() sim.Spec {
	return sim.Spec{
		Seed:  1,
		Buses: []sim.BusSpec{{Name: "bus0", Hz: 400_000}},
		Chips: []sim.ChipSpec{
			{Name: "store", Bus: "bus0", Addr: 0x57, Part: "24c256"},
			{Name: "gpu0", Bus: "bus0", Addr: 0x50, Part: "24c256"},
		},
		Slots: []sim.SlotSpec{{
			Name: "gpu0", Bus: "bus0", EngineAddr: 0x40, Chip: "gpu0", MAC: sim.MAC{0x8c, 0xdf, 0x9d, 0, 1, 1},
			Vendor: 0x10DE, Device: 0x2330, Class: 0x030200, Serial: 0xBA70000000000001, MemoryBytes: 4096,
		}},
		Servers: []sim.ServerSpec{
			{Name: "server1", Group: 101, MAC: sim.MAC{0x8c, 0xdf, 0x9d, 0, 2, 1}},
			{Name: "server2", Group: 102, MAC: sim.MAC{0x8c, 0xdf, 0x9d, 0, 2, 2}},
		},
	}
}

// world mirrors sim.Spec.
type world struct {
	Seed        uint64      `json:"seed,omitempty"`
	Buses       []wBus      `json:"buses,omitempty"`
	Chips       []wChip     `json:"chips,omitempty"`
	Slots       []wSlot     `json:"slots,omitempty"`
	Servers     []wServer   `json:"servers,omitempty"`
	Reload      Duration    `json:"reload_latency,omitzero"`
	EngineStart Duration    `json:"engine_start_time,omitzero"`
	DeviceReset Duration    `json:"device_reset_time,omitzero"`
	LinkUp      Duration    `json:"link_up_time,omitzero"`
	Switch      Duration    `json:"switch_time,omitzero"`
	DMAPeriod   Duration    `json:"dma_period,omitzero"`
	EngineRetry Duration    `json:"engine_retry_max,omitzero"`
	DVSECVendor Hex[uint16] `json:"dvsec_vendor,omitzero"`
	SwitchKeeps bool        `json:"switch_keeps,omitempty"`
	Off         bool        `json:"off,omitempty"`
}

type wBus struct {
	Name    string   `json:"name"`
	Hz      int      `json:"hz,omitempty"`
	Timeout Duration `json:"timeout,omitzero"`
}

type wChip struct {
	Name       string      `json:"name"`
	Bus        string      `json:"bus,omitempty"`
	Addr       Hex[uint16] `json:"addr,omitzero"`
	Part       string      `json:"part,omitempty"`
	WriteCycle Duration    `json:"write_cycle,omitzero"`
	Endurance  uint32      `json:"endurance,omitempty"`
}

type wSlot struct {
	Name        string      `json:"name"`
	Bus         string      `json:"bus,omitempty"`
	EngineAddr  Hex[uint16] `json:"engine_addr,omitzero"`
	Chip        string      `json:"chip,omitempty"`
	BlockOffset int64       `json:"block_offset,omitempty"`
	Block       *wBlock     `json:"block,omitempty"`
	MAC         MAC         `json:"mac,omitzero"`
	Vendor      Hex[uint16] `json:"vendor,omitzero"`
	Device      Hex[uint16] `json:"device,omitzero"`
	Class       Hex[uint32] `json:"class,omitzero"`
	Serial      Hex[uint64] `json:"serial,omitzero"`
	MemoryBytes int         `json:"memory_bytes,omitempty"`
	Port        string      `json:"port,omitempty"`
	NVMOnly     bool        `json:"nvm_only,omitempty"`
}

type wBlock struct {
	Group      uint16 `json:"group"`
	From       uint16 `json:"from"`
	Generation string `json:"generation"`
	Target     bool   `json:"target,omitempty"`
	Held       bool   `json:"held,omitempty"`
	VM         string `json:"vm,omitempty"`
	Move       string `json:"move,omitempty"`
}

type wServer struct {
	Name  string `json:"name"`
	Group uint16 `json:"group,omitempty"`
	MAC   MAC    `json:"mac,omitzero"`
	Off   bool   `json:"off,omitempty"`
}

func (w world) spec() (sim.Spec, error) {
	s := sim.Spec{
		Seed: w.Seed, ReloadLatency: time.Duration(w.Reload), EngineStartTime: time.Duration(w.EngineStart),
		DeviceResetTime: time.Duration(w.DeviceReset), LinkUpTime: time.Duration(w.LinkUp), SwitchTime: time.Duration(w.Switch),
		DMAPeriod: time.Duration(w.DMAPeriod), EngineRetryMax: time.Duration(w.EngineRetry),
		DVSECVendor: w.DVSECVendor.N, SwitchKeeps: w.SwitchKeeps, Off: w.Off,
	}
	for _, b := range w.Buses {
		s.Buses = append(s.Buses, sim.BusSpec{Name: b.Name, Hz: b.Hz, Timeout: time.Duration(b.Timeout)})
	}
	for _, c := range w.Chips {
		s.Chips = append(s.Chips, sim.ChipSpec{
			Name: c.Name, Bus: c.Bus, Addr: c.Addr.N, Part: c.Part, WriteCycle: time.Duration(c.WriteCycle), Endurance: c.Endurance,
		})
	}
	var errs []error
	for _, l := range w.Slots {
		b, err := l.Block.block()
		if err != nil {
			errs = append(errs, fmt.Errorf("slot %s: block: %w", l.Name, err))
		}
		s.Slots = append(s.Slots, sim.SlotSpec{
			Name: l.Name, Bus: l.Bus, EngineAddr: l.EngineAddr.N, Chip: l.Chip, BlockOffset: l.BlockOffset, Block: b, MAC: sim.MAC(l.MAC),
			Vendor: l.Vendor.N, Device: l.Device.N, Class: l.Class.N, Serial: l.Serial.N,
			MemoryBytes: l.MemoryBytes, Port: l.Port, NVMOnly: l.NVMOnly,
		})
	}
	for _, v := range w.Servers {
		s.Servers = append(s.Servers, sim.ServerSpec{Name: v.Name, Group: v.Group, MAC: sim.MAC(v.MAC), Off: v.Off})
	}
	return s, errors.Join(errs...)
}

func worldOf(s sim.Spec) world {
	w := world{
		Seed: s.Seed, Reload: Duration(s.ReloadLatency), EngineStart: Duration(s.EngineStartTime),
		DeviceReset: Duration(s.DeviceResetTime), LinkUp: Duration(s.LinkUpTime), Switch: Duration(s.SwitchTime),
		DMAPeriod: Duration(s.DMAPeriod), EngineRetry: Duration(s.EngineRetryMax),
		DVSECVendor: Hex[uint16]{s.DVSECVendor}, SwitchKeeps: s.SwitchKeeps, Off: s.Off,
	}
	for _, b := range s.Buses {
		w.Buses = append(w.Buses, wBus{b.Name, b.Hz, Duration(b.Timeout)})
	}
	for _, c := range s.Chips {
		w.Chips = append(w.Chips, wChip{c.Name, c.Bus, Hex[uint16]{c.Addr}, c.Part, Duration(c.WriteCycle), c.Endurance})
	}
	for _, l := range s.Slots {
		w.Slots = append(w.Slots, wSlot{
			Name: l.Name, Bus: l.Bus, EngineAddr: Hex[uint16]{l.EngineAddr}, Chip: l.Chip, BlockOffset: l.BlockOffset, Block: blockOf(l.Block),
			MAC: MAC(l.MAC), Vendor: Hex[uint16]{l.Vendor}, Device: Hex[uint16]{l.Device}, Class: Hex[uint32]{l.Class},
			Serial: Hex[uint64]{l.Serial}, MemoryBytes: l.MemoryBytes, Port: l.Port, NVMOnly: l.NVMOnly,
		})
	}
	for _, v := range s.Servers {
		w.Servers = append(w.Servers, wServer{v.Name, v.Group, MAC(v.MAC), v.Off})
	}
	return w
}

func (b *wBlock) block() (*ee.Block, error) {
	if b == nil {
		return nil, nil
	}
	uuid := func(s string) (ee.UUID, error) {
		if s == "" {
			return ee.UUID{}, nil
		}
		return ee.ParseUUID(s)
	}
	gen, err1 := ee.ParseGeneration(b.Generation)
	vm, err2 := uuid(b.VM)
	move, err3 := uuid(b.Move)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	out := &ee.Block{Group: b.Group, From: b.From, Generation: gen, VM: vm, Move: move}
	if b.Target {
		out.Flags |= ee.FlagTarget
	}
	if b.Held {
		out.Flags |= ee.FlagHeld
	}
	// What an engine refuses is no block to start with.
	if _, err := ee.DecodeBlock(out.Encode()); err != nil {
		return nil, err
	}
	return out, nil
}

func blockOf(b *ee.Block) *wBlock {
	if b == nil {
		return nil
	}
	uuid := func(u ee.UUID) string {
		if u.IsZero() {
			return ""
		}
		return u.String()
	}
	return &wBlock{
		Group: b.Group, From: b.From, Generation: b.Generation.String(), VM: uuid(b.VM), Move: uuid(b.Move),
		Target: b.Flags&ee.FlagTarget != 0, Held: b.Flags&ee.FlagHeld != 0,
	}
}

// Duration is a time.Duration that is "5ms" in JSON.
type Duration time.Duration

// MarshalText gives the form of time.Duration.String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText takes what time.ParseDuration takes, from 0 up.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil && v < 0 {
		err = fmt.Errorf("duration %s is below zero", v)
	}
	*d = Duration(v)
	return err
}

// MAC is an Ethernet address that is "02:45:45:00:00:01" in JSON.
type MAC sim.MAC

// String gives six hex bytes with colons.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// MarshalText gives String.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText takes the form of String.
func (m *MAC) UnmarshalText(text []byte) error {
	parts := strings.Split(string(text), ":")
	p, err := hex.DecodeString(strings.Join(parts, ""))
	if err != nil || len(parts) != len(m) || len(p) != len(m) {
		return fmt.Errorf("MAC %q: want the form 02:45:45:00:00:01", text)
	}
	*m = MAC(p)
	return nil
}

// Hex is a number that is written "0x57" in JSON, and read in that form or as
// a number.
type Hex[T uint16 | uint32 | uint64] struct{ N T }

// MarshalJSON gives "0x57".
func (h Hex[T]) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"0x%02x"`, h.N), nil }

// UnmarshalJSON takes "0x57", "87" and 87.
func (h *Hex[T]) UnmarshalJSON(text []byte) error {
	n, err := strconv.ParseUint(strings.Trim(string(text), `"`), 0, 64)
	if err != nil || uint64(T(n)) != n {
		return fmt.Errorf("%s is not a number of the size that belongs here", text)
	}
	h.N = T(n)
	return nil
}
