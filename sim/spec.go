package sim

import (
	"errors"
	"fmt"
	"time"

	"baton/ee"
)

// MAC is an Ethernet address in wire order.
type MAC = [6]byte

// Spec says what is in a world. Every field has a default, and so has every
// list: the zero Spec is one bus with the store's chip and one slot, and two
// servers, "server1" with group 101 and "server2" with group 102.
type Spec struct {
	Seed    uint64 // all that is random follows from it
	Buses   []BusSpec
	Chips   []ChipSpec
	Slots   []SlotSpec
	Servers []ServerSpec

	ReloadLatency   time.Duration // from reload (or the end of EngineStartTime) to the block read; 1 ms
	EngineStartTime time.Duration // from power-on or restart until registers answer; 5 ms
	DeviceResetTime time.Duration // of a device reset or power-up; 10 ms
	LinkUpTime      time.Duration // from all conditions met to link up; 200 us
	SwitchTime      time.Duration // that a call to the switch takes; 0
	DMAPeriod       time.Duration // between two writes of a device that is bus master; 10 us

	DVSECVendor    uint16        // vendor ID of the engines' DVSEC; 0x1033
	SwitchKeeps    bool          // the switch keeps its VLANs through a power cut; else every port is then member of none
	Off            bool          // the enclosure starts without power
	EngineRetryMax time.Duration // how long an engine asks a busy chip again; 10 ms
}

// BusSpec is an I2C bus.
type BusSpec struct {
	Name    string
	Hz      int           // 400_000
	Timeout time.Duration // after which the adapter gives up a stretched clock; 100 ms
}

// ChipSpec is an EEPROM.
type ChipSpec struct {
	Name       string
	Bus        string        // the first bus
	Addr       uint16        // 7 bits; of a part with block bits the lowest of its addresses; 0x50, 0x51, ...
	Part       string        // a name of Parts; "24c256"
	WriteCycle time.Duration // of this specimen; the data sheet's maximum
	Endurance  uint32        // page writes after which a page takes no more; 0 = never
	Image      []byte        // content, from offset 0; the rest is erased
}

// SlotSpec is a slot: an engine and the device behind it.
type SlotSpec struct {
	Name        string
	Bus         string    // the first bus
	EngineAddr  uint16    // of the register file; 0x40, 0x41, ...
	Chip        string    // the chip the engine loads from; the one called Name
	BlockOffset int64     // of the config block in it
	Block       *ee.Block // config block at the start; nil = as the chip's Image has it
	MAC         MAC       // of the engine; 02:45:45:00:00:01, ...
	Vendor      uint16    // of the device; 0x10DE. 0xFFFF = no device
	Device      uint16    // 0x20B5
	Class       uint32    // 24 bits; 0x030200
	Serial      uint64    // 0xBA70000000000001, ...
	MemoryBytes int       // device memory; 4096
	Port        string    // switch port; "" = the engine is on the fabric without a switch
	NVMOnly     bool      // no register file: connects by itself after a load, reloads by Pulse
}

// ServerSpec is a server with its EE(Server).
type ServerSpec struct {
	Name  string
	Group uint16 // 101, 102, ...
	MAC   MAC    // 02:53:56:00:00:01, ...
	Off   bool   // starts without power
}

// filled returns s with its defaults in place.
func (s Spec) filled() Spec {
	def(&s.ReloadLatency, time.Millisecond)
	def(&s.EngineStartTime, 5*time.Millisecond)
	def(&s.DeviceResetTime, 10*time.Millisecond)
	def(&s.LinkUpTime, 200*time.Microsecond)
	def(&s.DMAPeriod, 10*time.Microsecond)
	def(&s.EngineRetryMax, 10*time.Millisecond)
	def(&s.DVSECVendor, 0x1033)
	if len(s.Chips) == 0 && len(s.Slots) == 0 {
		s.Chips = []ChipSpec{{Name: "store", Addr: 0x57}, {Name: "gpu0", Addr: 0x50}}
		s.Slots = []SlotSpec{{Name: "gpu0"}}
	}
	if len(s.Servers) == 0 {
		s.Servers = make([]ServerSpec, 2)
	}
	if len(s.Buses) == 0 {
		s.Buses = make([]BusSpec, 1)
	}
	s.Buses = append([]BusSpec(nil), s.Buses...)
	s.Chips = append([]ChipSpec(nil), s.Chips...)
	s.Slots = append([]SlotSpec(nil), s.Slots...)
	s.Servers = append([]ServerSpec(nil), s.Servers...)
	for i := range s.Buses {
		b := &s.Buses[i]
		def(&b.Name, fmt.Sprintf("bus%d", i))
		def(&b.Hz, 400_000)
		def(&b.Timeout, 100*time.Millisecond)
	}
	for i := range s.Chips {
		c := &s.Chips[i]
		def(&c.Bus, s.Buses[0].Name)
		def(&c.Addr, uint16(0x50+i))
		def(&c.Part, "24c256")
		def(&c.WriteCycle, Parts[c.Part].WriteMax)
	}
	for i := range s.Slots {
		l := &s.Slots[i]
		def(&l.Name, fmt.Sprintf("slot%d", i))
		def(&l.Bus, s.Buses[0].Name)
		def(&l.EngineAddr, uint16(0x40+i))
		def(&l.Chip, l.Name)
		def(&l.MAC, MAC{0x02, 'E', 'E', 0, byte((i + 1) >> 8), byte(i + 1)})
		def(&l.Vendor, 0x10DE)
		def(&l.Device, 0x20B5)
		def(&l.Class, 0x030200)
		def(&l.Serial, 0xBA70000000000001+uint64(i))
		def(&l.MemoryBytes, 4096)
	}
	for i := range s.Servers {
		v := &s.Servers[i]
		def(&v.Name, fmt.Sprintf("server%d", i+1))
		def(&v.Group, uint16(101+i))
		def(&v.MAC, MAC{0x02, 'S', 'V', 0, byte((i + 1) >> 8), byte(i + 1)})
	}
	return s
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Check tells all that is wrong with s, its defaults considered. Servers may
// share a group or a MAC: a stale server is a case to be modelled.
func (s Spec) Check() error {
	s = s.filled()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("sim: "+format, args...)) }
	names := make(map[string]bool)
	unique := func(kind, name string) {
		if names[kind+name] {
			bad("two %ss are called %q", kind, name)
		}
		names[kind+name] = true
	}
	used := make(map[string]string) // bus and address: who
	take := func(who, bus string, first, n uint16) {
		if !names["bus"+bus] {
			bad("%s: there is no bus %q", who, bus)
		}
		for a := first; a < first+n; a++ {
			k := fmt.Sprint(bus, " ", a)
			if other, ok := used[k]; ok {
				bad("%s: address 0x%02x on %s is taken by %s", who, a, bus, other)
			}
			used[k] = who
			if a < 0x08 || a > 0x77 {
				bad("%s: address 0x%02x is not in 0x08..0x77", who, a)
			}
		}
	}
	for _, b := range s.Buses {
		unique("bus", b.Name)
		if b.Hz < 1000 || b.Hz > 5_000_000 {
			bad("bus %s: %d Hz is not in 1000..5000000", b.Name, b.Hz)
		}
	}
	sizes := make(map[string]int64)
	for _, c := range s.Chips {
		unique("chip", c.Name)
		p, ok := Parts[c.Part]
		if !ok {
			bad("chip %s: unknown part %q", c.Name, c.Part)
			continue
		}
		sizes[c.Name] = p.Size
		take("chip "+c.Name, c.Bus, c.Addr, uint16(p.addresses()))
		if c.Addr%uint16(p.addresses()) != 0 {
			bad("chip %s: a %s takes %d addresses, the first a multiple of that; not 0x%02x", c.Name, c.Part, p.addresses(), c.Addr)
		}
		if int64(len(c.Image)) > p.Size {
			bad("chip %s: image has %d bytes, a %s has %d", c.Name, len(c.Image), c.Part, p.Size)
		}
	}
	for _, l := range s.Slots {
		unique("slot", l.Name)
		if !names["bus"+l.Bus] {
			bad("slot %s: there is no bus %q", l.Name, l.Bus)
		}
		if !l.NVMOnly {
			take("slot "+l.Name, l.Bus, l.EngineAddr, 1)
		}
		size, ok := sizes[l.Chip]
		if !ok {
			bad("slot %s: there is no chip %q", l.Name, l.Chip)
		} else if l.BlockOffset < 0 || l.BlockOffset+ee.BlockSize > size {
			bad("slot %s: block at 0x%x is outside its chip of %d bytes", l.Name, l.BlockOffset, size)
		}
		if l.MemoryBytes < 0 {
			bad("slot %s: %d bytes of memory", l.Name, l.MemoryBytes)
		}
	}
	for _, v := range s.Servers {
		unique("server", v.Name)
	}
	return errors.Join(errs...)
}
