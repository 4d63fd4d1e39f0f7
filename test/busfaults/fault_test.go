package busfaults

import (
	"time"

	"baton/ee"
	"baton/sim"
	"baton/test/rig"
)

// The world of every cell. VM1 has gpu0 and gpu1, which are on two buses; gpu1
// is the slot whose parts fail. VM2 has a slot on each of the buses.
//
//	bus0: store 0x57   gpu0 0x20/0x60   gpu2 0x22/0x62
//	bus1:              gpu1 0x21/0x61   gpu3 0x23/0x63
const (
	ours     = "gpu0" // of the set, untouched
	faulty   = "gpu1" // of the set, the one with the fault
	elseSlot = "gpu2" // VM2's, on another bus than the fault
	sameBus  = "gpu3" // VM2's, on the fault's bus
)

// target is a part that a fault is in.
type target struct {
	name string
	bus  string
	addr uint16
	chip string // "" = an engine
	page int    // bytes of a write to it, register or word address included
}

var (
	eeprom = target{"eeprom", "bus1", 0x21, faulty, 2 + ee.BlockSize}
	engine = target{"engine", "bus1", 0x61, "", 2 + 8} // EXPECT_PEER, DVSEC and CONTROL in one burst
	store  = target{"store", "bus0", 0x57, "store", 2 + 64}
)

var targets = []target{eeprom, engine, store}

// where is how messages name the part.
func (t target) where() string {
	return t.bus + "/0x" + string("0123456789"[t.addr>>4]) + string("0123456789"[t.addr&15])
}

// fault is something that goes wrong with a part, until the function that inject
// returns is called.
type fault struct {
	name      string
	wire      bool // of transfers, of this kind
	kind      sim.FaultKind
	holds     bool   // nobody on the bus can be talked to
	swaps     bool   // another chip, with a history of its own, takes the place
	mute      bool   // nobody can tell by what is read back
	tolerated string // what the model may find wrong, as the agent could not know better
	inject    func(r *rig.Rig, t target) (lift func())
}

const forEver = 1 << 30

// onWire is a fault of transfers.
func onWire(name string, f sim.Fault) fault {
	whole := f.Kind == sim.StuckSDA || f.Kind == sim.Wedged
	holds := f.Kind == sim.Wedged || f.Kind == sim.StuckSDA && f.Pulses == 0
	return fault{name: name, kind: f.Kind, wire: true, holds: holds, inject: func(r *rig.Rig, t target) func() {
		f := f
		if !whole {
			f.Addr = t.addr
		}
		return r.W.Bus(t.bus).Inject(f)
	}}
}

// inChip is a fault of an EEPROM.
func inChip(name string, inject func(c *sim.Chip, t target) (lift func())) fault {
	return fault{name: name, inject: func(r *rig.Rig, t target) func() { return inject(r.W.Chip(t.chip), t) }}
}

// inEngine is a fault of an engine.
func inEngine(name string, inject func(s *sim.Slot) (lift func())) fault {
	return fault{name: name, inject: func(r *rig.Rig, t target) func() { return inject(r.W.Slot(faulty)) }}
}

// pages are all of a chip's that an operation may write.
func pages(t target) int {
	if t == store {
		return 32768 / 64
	}
	return 1
}

// replaced is another part in the chip's place; the right one comes back.
func replaced(name, part string, content func(was []byte) []byte) fault {
	f := inChip(name, func(c *sim.Chip, _ target) func() {
		was := c.Image()
		c.Replace(part, content(was))
		return func() { c.Replace("24c256", was) }
	})
	f.swaps = true
	return f
}

// alike is what a chip of another kind came with: not blank, and nothing of ours.
func alike(n int) func([]byte) []byte {
	return func([]byte) []byte {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(i*7 + i/256)
		}
		return p
	}
}

// muted is f where a page that is written as it was looks written.
func muted(f fault) fault {
	f.mute = true
	return f
}

// tolerating is f where the model may find that wrong.
func tolerating(text string, f fault) fault {
	f.tolerated = text
	return f
}

var otherEngine = sim.MAC{0x02, 'E', 'E', 0xFF, 0, 1}

var (
	nackAddr     = onWire("address not acknowledged", sim.Fault{Kind: sim.NACKAddr})
	nackByte     = onWire("data byte not acknowledged", sim.Fault{Kind: sim.NACKData, Only: sim.WriteOp, Byte: 2})
	nackPointer  = onWire("second byte not acknowledged", sim.Fault{Kind: sim.NACKData, Byte: 1})
	arbitration  = onWire("arbitration lost", sim.Fault{Kind: sim.ArbitrationLost})
	arbitration1 = onWire("arbitration lost, twice", sim.Fault{Kind: sim.ArbitrationLost, Count: 2})
	stuck        = onWire("SDA stuck low", sim.Fault{Kind: sim.StuckSDA})
	stuckFreed   = onWire("SDA stuck low, clocked free", sim.Fault{Kind: sim.StuckSDA, Pulses: 20})
	wedged       = onWire("driver does not come back", sim.Fault{Kind: sim.Wedged, Hold: 10 * time.Second})
	stretched    = onWire("clock stretched past the limit", sim.Fault{Kind: sim.Stretch, Hold: 150 * time.Millisecond})
	stretchedOK  = onWire("clock stretched within it", sim.Fault{Kind: sim.Stretch, Hold: 2 * time.Millisecond})
	flipped      = onWire("a bit of each read inverted", sim.Fault{Kind: sim.FlipRead, Byte: 1, Bit: 5})

	slow = inChip("write cycle over the maximum", func(c *sim.Chip, _ target) func() {
		c.SetWriteCycle(60 * time.Millisecond)
		return func() { c.SetWriteCycle(5 * time.Millisecond) }
	})
	missing = inChip("missing", func(c *sim.Chip, _ target) func() {
		c.SetDead(true)
		return func() { c.SetDead(false) }
	})
	// A part with one address byte takes the second for data: the agent meets it
	// only at its next start, as nobody changes parts under power.
	otherPart = tolerating("page", replaced("another part", "24c02", alike(256)))
	otherSize = replaced("another size", "24c128", func(was []byte) []byte { return was[:16384] })
	foreign   = replaced("foreign content", "24c256", alike(32768))
	blank     = replaced("blank", "24c256", alike(0))
	protected = muted(inChip("write-protected", func(c *sim.Chip, _ target) func() {
		c.SetWriteProtect(true)
		return func() { c.SetWriteProtect(false) }
	}))
	worn = inChip("worn out", func(c *sim.Chip, t target) func() {
		for p := range pages(t) {
			c.SetWorn(p, true)
		}
		return func() {
			for p := range pages(t) {
				c.SetWorn(p, false)
			}
		}
	})
	wornSome = inChip("worn out, every third page", func(c *sim.Chip, t target) func() {
		for p := 0; p < pages(t); p += 3 {
			c.SetWorn(p, true)
		}
		return func() {}
	})
	decayed = inChip("a bit flipped", func(c *sim.Chip, t target) func() {
		c.FlipBit(0x11, 3)
		return func() {}
	})
	unstable = inChip("bytes that read differently", func(c *sim.Chip, t target) func() {
		c.SetUnstable(0x10, 4)
		return func() {}
	})

	dead = inEngine("dead", func(s *sim.Slot) func() {
		s.Kill()
		return s.Revive
	})
	// Nobody tells the agent that an engine loads that was not told to.
	restarts = tolerating("while the engine of gpu1 loads", inEngine("restarts by itself", func(s *sim.Slot) func() {
		s.RestartAfter(5 * time.Millisecond)
		return func() {}
	}))
	deaf = inEngine("ignores commands", func(s *sim.Slot) func() {
		s.IgnoreControl(forEver)
		return func() { s.IgnoreControl(0) }
	})
	deafOnce = inEngine("ignores one command", func(s *sim.Slot) func() {
		s.IgnoreControl(1)
		return func() { s.IgnoreControl(0) }
	})
	deafLater = inEngine("ignores all but the first", func(s *sim.Slot) func() {
		s.IgnoreControlAfter(1, forEver)
		return func() { s.IgnoreControl(0) }
	})
	wrongEngine = fault{name: "another engine", inject: func(r *rig.Rig, _ target) func() {
		s := r.W.Slot(faulty)
		was := r.W.Spec().Slots[1].MAC
		s.SetEngine(ee.EngineID, otherEngine)
		return func() { s.SetEngine(ee.EngineID, was) }
	}}
	wrongID = fault{name: "no engine at all", inject: func(r *rig.Rig, _ target) func() {
		s := r.W.Slot(faulty)
		was := r.W.Spec().Slots[1].MAC
		s.SetEngine(0x12345678, was)
		return func() { s.SetEngine(ee.EngineID, was) }
	}}
)

// faults are all there are; coverage_test.go holds them against sim's.
var faults = []fault{
	nackAddr, nackByte, nackPointer, arbitration, arbitration1, stuck,
	stuckFreed, wedged, stretched, stretchedOK, flipped, slow,
	missing, otherPart, otherSize, foreign, blank, protected,
	worn, wornSome, decayed, unstable, dead, restarts,
	deaf, deafOnce, deafLater, wrongEngine, wrongID,
}
