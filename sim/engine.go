package sim

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"baton/ee"
)

// Slot is an engine, the device behind it and its place on the fabric.
type Slot struct {
	w     *World
	index int
	spec  *SlotSpec
	bus   *Bus
	chip  *Chip

	// What the parts are.
	id       uint32
	revision uint16
	mac      MAC
	device   Device

	// The engine's registers and the block it runs with.
	pointer     uint16
	control     byte
	show        byte
	latches     byte
	expect      MAC
	loaded      bool
	configBad   bool
	block       ee.Block // zero where there is none
	assigned    bool     // block has a group that can connect
	resets      uint32
	epoch       uint32
	proven      uint32
	swallowed   uint32
	linkChanges uint32
	retransmits uint32

	// When things end; never = they are not under way.
	startAt   time.Duration // registers begin to answer, the load begins
	loadAt    time.Duration // the block is read, or tried again
	loadLimit time.Duration // no further try after this
	linkAt    time.Duration
	resetAt   time.Duration // the device reset of CtlDeviceReset
	readyAt   time.Duration // end of a reset or power-up: no event, only StatResetting
	restartAt time.Duration // fault: the engine restarts by itself

	peer      int // server it is linked to; -1 = link down
	reacher   int // server that can reach the device; -1 = none
	reachFrom time.Duration

	// The device.
	powered   bool
	memory    []byte        // nil = all zero
	memShared bool          // a copy of the world has it too
	master    bool          // Bus Master Enable
	dmaTo     int           // server whose addresses its driver programmed; -1 = none
	dmaAt     time.Duration // its next write, while it is bus master and linked

	// Faults and counts.
	running   bool // the engine has power and is not dead
	dead      bool
	obey      int    // writes to CONTROL that are still taken before those that are not
	ignore    int    // writes to CONTROL that are not taken
	writes    uint64 // register bytes written
	cutInLoad bool   // power goes during the next load
}

// Register pointers that a transfer has to stop at: what they do depends on the
// instant.
const (
	regControl = ee.RegControl
	regLatch   = ee.RegLatch
)

// engineRevision is what RegRevision reads.
const engineRevision = 0x0100

// engineRetry is how often an engine asks a busy chip again.
const engineRetry = 250 * time.Microsecond

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newSlot(w *World, i int, s *SlotSpec) Slot {
	l := Slot{
		w: w, index: i, spec: s, bus: w.Bus(s.Bus), chip: w.Chip(s.Chip),
		id: ee.EngineID, revision: engineRevision, mac: s.MAC,
		device:  Device{s.Vendor, s.Device, s.Class, s.Serial},
		startAt: never, loadAt: never, linkAt: never, resetAt: never, restartAt: never,
		peer: -1, reacher: -1, dmaTo: -1,
	}
	if s.Block != nil {
		l.chip.poke(s.BlockOffset, s.Block.Encode())
	}
	return l
}

// due is the instant of the slot's next event.
func (s *Slot) due() time.Duration {
	return min(s.startAt, s.loadAt, s.linkAt, s.resetAt, s.restartAt)
}

// event carries out the slot's next event, which is due at t.
func (s *Slot) event(t time.Duration) {
	switch s.due() {
	case s.restartAt:
		s.restartAt = never
		s.engineStart(t, false)
	case s.startAt:
		s.startAt = never
		s.beginLoad(t)
	case s.loadAt:
		s.load(t)
	case s.resetAt:
		s.resetAt = never
		s.resetDevice(t, "device reset", -1)
	case s.linkAt:
		s.linkAt = never
		if p := s.candidate(); p >= 0 {
			s.linkUp(t, p)
		}
	}
}

// engineStart is power-on of the enclosure, or a restart of the engine alone:
// then the device loses its upstream port and is reset, but keeps its power.
func (s *Slot) engineStart(t time.Duration, powerOn bool) {
	if s.dead {
		return
	}
	s.linkGone(t)
	s.running = true
	s.control, s.show, s.expect = ee.CtlPower, 0, MAC{}
	s.resets, s.swallowed, s.linkChanges, s.retransmits, s.proven = 0, 0, 0, 0, 0
	s.resetAt, s.pointer = never, 0
	s.unload()
	s.latches = ee.LatchRestarted
	switch {
	case powerOn:
		s.latches |= ee.LatchPowerLost
		s.devicePowerUp(t)
	case s.powered:
		s.resetDevice(t, "engine restart", -1)
	default: // CtlPower was off
		s.latches |= ee.LatchPowerLost | ee.LatchReset
		s.devicePowerUp(t)
	}
	s.loadAt = never
	s.startAt = t + s.w.spec.EngineStartTime
	s.w.schedule(s.startAt)
	if s.cutInLoad { // planned here already, so that OnCut is told in time
		s.cutInLoad = false
		s.w.cutAtInstant(s.startAt + s.w.spec.ReloadLatency/2)
	}
}

// enginePowerLost is the enclosure's power going.
func (s *Slot) enginePowerLost(t time.Duration) {
	s.linkGone(t)
	s.devicePowerDown(t)
	s.running = false
	s.control, s.latches, s.show, s.expect = 0, 0, 0, MAC{}
	s.startAt, s.loadAt, s.resetAt, s.restartAt = never, never, never, never
	s.unload()
}

// unload forgets the block the engine ran with.
func (s *Slot) unload() {
	s.loaded, s.configBad, s.assigned = false, false, false
	s.block = ee.Block{}
}

// beginLoad makes the engine read its block, ReloadLatency from now.
func (s *Slot) beginLoad(t time.Duration) {
	s.unload()
	s.loadAt = t + s.w.spec.ReloadLatency
	s.loadLimit = s.loadAt + s.w.spec.EngineRetryMax
	s.w.schedule(s.loadAt)
	if s.cutInLoad {
		s.cutInLoad = false
		s.w.cutAtInstant(t + s.w.spec.ReloadLatency/2)
	}
}

// load is the engine reading its block: the second master on the chip.
func (s *Slot) load(t time.Duration) {
	c := s.chip
	if !c.answers(t) || c.inUse(t) {
		if t+engineRetry <= s.loadLimit {
			s.loadAt = t + engineRetry
			s.w.schedule(s.loadAt)
			return
		}
		s.endLoad(t, ee.Block{}, false)
		return
	}
	var page [ee.BlockSize]byte
	c.engineReads(page[:], s.spec.BlockOffset)
	b, err := ee.DecodeBlock(page[:])
	s.endLoad(t, b, err == nil)
}

func (s *Slot) endLoad(t time.Duration, b ee.Block, good bool) {
	s.loadAt = never
	s.loaded, s.configBad = true, !good
	if good {
		s.block, s.assigned = b, ee.ValidGroup(b.Group)
	}
	if s.spec.NVMOnly {
		s.control |= ee.CtlLink
	} else {
		s.control &^= ee.CtlLink
		s.show = 0
	}
	s.relink(t, true)
}

// answers tells whether the register file acknowledges its address.
func (s *Slot) answers() bool { return s.running && s.startAt == never }

// write is one byte arriving at register reg.
func (s *Slot) write(t time.Duration, reg uint16, v byte) {
	s.writes++
	switch {
	case reg >= ee.RegExpectPeer && reg < ee.RegExpectPeer+6:
		s.expect[reg-ee.RegExpectPeer] = v
		if reg == ee.RegExpectPeer+5 {
			s.relink(t, false)
		}
	case reg == ee.RegDVSEC:
		s.show = v & (ee.ShowValid | ee.ShowTarget | ee.ShowPowerKept | ee.ShowBusy)
	case reg == ee.RegControl:
		switch {
		case s.obey > 0:
			s.obey--
		case s.ignore > 0:
			s.ignore--
			return
		}
		s.command(t, v)
	case reg == ee.RegLatch:
		s.latches &^= v
	case reg >= ee.RegProven && reg < ee.RegProven+4:
		shift := 8 * (reg - ee.RegProven)
		s.proven = s.proven&^(0xFF<<shift) | uint32(v)<<shift
	}
}

// command is a write to CONTROL.
func (s *Slot) command(t time.Duration, v byte) {
	const once = ee.CtlReload | ee.CtlDeviceReset
	was := s.control
	if v&ee.CtlReload != 0 && (v|was)&ee.CtlLink != 0 {
		panic(fmt.Sprintf("sim: %s: reload with the link enabled (CONTROL was 0x%02x, written 0x%02x)", s.spec.Name, was, v))
	}
	s.control = v &^ once
	rose, fell := v&^was, was&^v
	if rose&ee.CtlLink != 0 {
		switch {
		case s.loadAt != never:
			s.w.violate(t, s.spec.Name, "link enabled while the engine loads")
		case s.configBad:
			s.w.violate(t, s.spec.Name, "link enabled while the config block is bad")
		}
	}
	if v&ee.CtlQuiesce != 0 {
		s.account(t)
		s.master = false
	}
	if fell&ee.CtlPower != 0 {
		s.devicePowerDown(t)
		s.latches |= ee.LatchPowerLost
	}
	if rose&ee.CtlPower != 0 {
		s.devicePowerUp(t)
	}
	s.relink(t, true)
	if v&ee.CtlReload != 0 {
		s.show, s.expect = 0, MAC{}
		s.beginLoad(t)
		s.relink(t, true)
	}
	if v&ee.CtlDeviceReset != 0 && s.powered {
		s.resetAt = t + s.w.spec.DeviceResetTime
		s.readyAt = max(s.readyAt, s.resetAt)
		s.w.schedule(s.resetAt)
	}
}

// read fills r with a snapshot of the registers from the pointer on.
func (s *Slot) read(r []byte) {
	regs := &s.w.scratch
	s.registers(regs)
	for i := range r {
		r[i] = 0xFF
		if s.pointer < ee.RegEnd {
			r[i] = regs[s.pointer]
		}
		s.pointer++
	}
}

// registers builds what the register file reads.
func (s *Slot) registers(r *[ee.RegEnd]byte) {
	*r = [ee.RegEnd]byte{}
	le := binary.LittleEndian
	le.PutUint32(r[ee.RegID:], s.id)
	le.PutUint16(r[ee.RegRevision:], s.revision)
	copy(r[ee.RegMAC:], s.mac[:])
	le.PutUint16(r[ee.RegVendor:], s.device.Vendor)
	le.PutUint16(r[ee.RegDevice:], s.device.Device)
	le.PutUint32(r[ee.RegClass:], s.device.Class)
	le.PutUint64(r[ee.RegSerial:], s.device.Serial)
	copy(r[ee.RegExpectPeer:], s.expect[:])
	r[ee.RegDVSEC] = s.show
	r[ee.RegControl] = s.control
	r[ee.RegStatus] = s.status()
	r[ee.RegLatch] = s.latches
	le.PutUint16(r[ee.RegGroup:], s.block.Group)
	le.PutUint32(r[ee.RegResets:], s.resets)
	le.PutUint32(r[ee.RegEpoch:], s.epoch)
	le.PutUint32(r[ee.RegProven:], s.proven)
	le.PutUint32(r[ee.RegIdent:], crc32.Checksum(r[:0x1C], castagnoli))
	le.PutUint32(r[ee.RegSwallowed:], s.swallowed)
	le.PutUint32(r[ee.RegLinkChanges:], s.linkChanges)
	le.PutUint32(r[ee.RegRetransmits:], s.retransmits)
	if p := s.seenPeer(); p >= 0 {
		mac := s.w.servers[p].mac
		copy(r[ee.RegPeerMAC:], mac[:])
		le.PutUint16(r[ee.RegPeerGroup:], s.w.servers[p].group)
	}
	le.PutUint32(r[ee.RegGeneration:], s.block.Generation.Incarnation)
	le.PutUint32(r[ee.RegGeneration+4:], s.block.Generation.Counter)
	le.PutUint16(r[ee.RegFromGroup:], s.block.From)
}

func (s *Slot) status() (v byte) {
	set := func(bit byte, on bool) {
		if on {
			v |= bit
		}
	}
	set(ee.StatLink, s.peer >= 0)
	set(ee.StatPeer, s.seenPeer() >= 0)
	set(ee.StatDevice, s.device.present())
	set(ee.StatPower, s.powered)
	set(ee.StatConfigBad, s.configBad)
	set(ee.StatLoaded, s.loaded)
	set(ee.StatResetting, s.w.at < s.readyAt && s.powered)
	set(ee.StatEnabled, s.control&ee.CtlLink != 0)
	return v
}

// guarded tells whether the guard swallows resets.
func (s *Slot) guarded() bool { return s.control&ee.CtlGuard != 0 }

// Pulse is the line that makes an engine of profile nvm-only reload: its link
// drops, and comes back by itself with the group of the block.
func (s *Slot) Pulse() {
	t := s.w.enter()
	defer s.w.mu.Unlock()
	if !s.spec.NVMOnly {
		panic("sim: " + s.spec.Name + ": this engine has no reload line")
	}
	if !s.running || s.startAt != never {
		return
	}
	s.control &^= ee.CtlLink
	s.relink(t, true)
	s.beginLoad(t)
}

// Registers returns what all registers read now, without a transfer.
func (s *Slot) Registers() (r [ee.RegEnd]byte) {
	s.w.enter()
	defer s.w.mu.Unlock()
	s.registers(&r)
	return r
}

// State is what a test may want to know of a slot, from the model's side.
type State struct {
	Control, Status, Latch, Show byte
	Expect                       MAC
	Block                        ee.Block // the block the engine runs with; zero = none
	Resets, Swallowed, Proven    uint32
	Epoch                        uint32
	Peer                         string // server it is linked to
	Reacher                      string // server that can reach the device
	Master                       bool   // Bus Master Enable
}

// State returns the slot's present state.
func (s *Slot) State() State {
	s.w.enter()
	defer s.w.mu.Unlock()
	st := State{
		Control: s.control, Status: s.status(), Latch: s.latches, Show: s.show, Expect: s.expect, Block: s.block,
		Resets: s.resets, Swallowed: s.swallowed, Proven: s.proven, Epoch: s.epoch, Master: s.master,
	}
	if s.peer >= 0 {
		st.Peer = s.w.servers[s.peer].spec.Name
	}
	if s.reacher >= 0 {
		st.Reacher = s.w.servers[s.reacher].spec.Name
	}
	return st
}

// RegisterWrites is the number of bytes written to the register file since the
// world was made.
func (s *Slot) RegisterWrites() uint64 {
	s.w.enter()
	defer s.w.mu.Unlock()
	return s.writes
}

// SetBlock writes a config block where the engine loads it from, without a
// write cycle.
func (s *Slot) SetBlock(b ee.Block) { s.chip.Poke(s.spec.BlockOffset, b.Encode()) }

// Restart makes the engine restart by itself, now.
func (s *Slot) Restart() {
	t := s.w.enter()
	defer s.w.mu.Unlock()
	if s.w.on {
		s.engineStart(t, false)
	}
}

// RestartAfter makes the engine restart by itself when d has passed, unless
// power goes before.
func (s *Slot) RestartAfter(d time.Duration) {
	t := s.w.enter()
	defer s.w.mu.Unlock()
	s.restartAt = t + d
	s.w.schedule(s.restartAt)
}

// Kill ends the engine: it never answers again, and its link is down.
func (s *Slot) Kill() {
	t := s.w.enter()
	defer s.w.mu.Unlock()
	s.enginePowerLost(t)
	s.dead = true
}

// Revive puts a dead engine back, as if its slot were powered on.
func (s *Slot) Revive() {
	t := s.w.enter()
	defer s.w.mu.Unlock()
	if s.dead = false; s.w.on {
		s.engineStart(t, true)
	}
}

// IgnoreControl makes the engine acknowledge the next n writes to CONTROL and
// do nothing about them.
func (s *Slot) IgnoreControl(n int) { s.IgnoreControlAfter(0, n) }

// IgnoreControlAfter is IgnoreControl once skip more writes to CONTROL were
// taken.
func (s *Slot) IgnoreControlAfter(skip, n int) {
	s.w.enter()
	defer s.w.mu.Unlock()
	s.obey, s.ignore = skip, n
}

// CutDuringLoad makes the enclosure's power go in the middle of this engine's
// next load.
func (s *Slot) CutDuringLoad() {
	s.w.enter()
	defer s.w.mu.Unlock()
	s.cutInLoad = true
}

// SetEngine replaces the engine's ID and MAC: another engine sits there.
func (s *Slot) SetEngine(id uint32, mac MAC) {
	s.w.enter()
	defer s.w.mu.Unlock()
	s.id, s.mac = id, mac
}

// Retransmit adds n to the count of frames retransmitted.
func (s *Slot) Retransmit(n uint32) {
	s.w.enter()
	defer s.w.mu.Unlock()
	s.retransmits += n
}
