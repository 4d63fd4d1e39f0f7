package ee

import (
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"periph.io/x/conn/v3/physic"
)

// chip is a register file laid out as a profile says, with what an engine does
// by itself as far as a driver can see it.
type chip struct {
	p       *Profile
	mem     [1 << 16]byte
	pointer uint16
	writes  []uint16 // registers written, by pointer

	loads     int // reads of STATUS until a load has ended
	resetting int // reads of STATUS until a device reset has ended
}

func (c *chip) String() string                  { return "board" }
func (c *chip) SetSpeed(physic.Frequency) error { return nil }

func (c *chip) Tx(addr uint16, w, r []byte) error {
	if addr != 0x2A {
		return errNACK
	}
	if len(w) >= 2 {
		c.pointer = binary.BigEndian.Uint16(w)
		for _, v := range w[2:] {
			c.write(c.pointer, v)
			c.pointer++
		}
	}
	for i := range r {
		r[i] = c.read(c.pointer)
		c.pointer++
	}
	return nil
}

func (c *chip) at(r reg) []byte { return c.mem[c.p.regs[r]:][:regSize[r]] }

func (c *chip) write(at uint16, v byte) {
	c.writes = append(c.writes, at)
	switch at {
	case c.p.regs[rControl]:
		c.mem[at] = v &^ (CtlReload | CtlDeviceReset)
		status := &c.mem[c.p.regs[rStatus]]
		if v&CtlLink != 0 {
			*status |= StatLink
		} else {
			*status &^= StatLink
		}
		if v&CtlReload != 0 {
			*status &^= StatLoaded
			c.loads = 3
		}
		if v&CtlDeviceReset != 0 {
			*status |= StatResetting
			c.resetting = 2
		}
	case c.p.regs[rLatch]:
		c.mem[at] &^= v
	default:
		c.mem[at] = v
	}
}

func (c *chip) read(at uint16) byte {
	if at == c.p.regs[rStatus] {
		switch {
		case c.loads > 1:
			c.loads--
		case c.loads == 1:
			c.loads = 0
			c.mem[at] |= StatLoaded
			binary.LittleEndian.PutUint16(c.at(rGroup), 102)
		case c.resetting > 1:
			c.resetting--
		case c.resetting == 1:
			c.resetting = 0
			c.mem[at] &^= StatResetting
			binary.LittleEndian.PutUint32(c.at(rResets), binary.LittleEndian.Uint32(c.at(rResets))+1)
		}
	}
	return c.mem[at]
}

// A board whose CONTROL, STATUS and LATCH are not neighbours, whose EXPECT_PEER
// and DVSEC lie elsewhere, and whose values are spread, is a file and no code.
func TestAnotherBoard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		p, err := LoadProfile("testdata/scattered.json")
		if err != nil {
			t.Fatal(err)
		}
		c := &chip{p: p}
		le := binary.LittleEndian
		le.PutUint32(c.at(rID), p.ID)
		copy(c.at(rMAC), []byte{2, 0, 0, 0, 0, 9})
		le.PutUint16(c.at(rVendor), 0x10DE)
		le.PutUint16(c.at(rDevice), 0x2330)
		le.PutUint32(c.at(rClass), 0xAA120200)
		le.PutUint64(c.at(rSerial), 77)
		le.PutUint32(c.at(rIdent), 0x1D)
		le.PutUint32(c.at(rResets), 5)
		le.PutUint32(c.at(rEpoch), 0xE0)
		le.PutUint32(c.at(rSwallowed), 1)
		le.PutUint32(c.at(rLinkChanges), 2)
		le.PutUint32(c.at(rRetransmits), 3)
		c.at(rStatus)[0] = StatDevice | StatPower
		c.at(rLatch)[0] = LatchPowerLost | LatchRestarted
		e := New(c, 0x2A, p, nil)

		id, err := e.Identity(ctx)
		if want := (Identity{ID: p.ID, MAC: MAC{2, 0, 0, 0, 0, 9}, Vendor: 0x10DE, Device: 0x2330, Class: 0x120200, Serial: 77, Word: 0x1D}); err != nil || id != want {
			t.Errorf("Identity = %+v, %v; want %+v", id, err, want)
		}
		status, latch, err := e.Set(ctx, CtlGuard|CtlHold|CtlQuiesce|CtlPower)
		if err != nil || status != StatDevice|StatPower || latch != LatchPowerLost|LatchRestarted {
			t.Errorf("Set = 0x%02x, 0x%02x, %v", status, latch, err)
		}
		if err := e.ResetDevice(ctx, CtlGuard|CtlHold|CtlQuiesce|CtlPower); err != nil {
			t.Fatal(err)
		}
		o, err := e.WasReset(ctx, 5)
		if err != nil || o.Resets != 6 || o.Status&StatResetting != 0 {
			t.Errorf("WasReset = %+v, %v; want reset count 6", o, err)
		}
		if err := e.Reload(ctx, CtlGuard|CtlHold|CtlPower); err != nil {
			t.Fatal(err)
		}
		o, err = e.Loaded(ctx)
		if err != nil || o.Group != 102 || o.Control != CtlGuard|CtlHold|CtlPower || o.Resets != 6 {
			t.Errorf("Loaded = %+v, %v", o, err)
		}
		if err := e.Prove(ctx, 6); err != nil {
			t.Fatal(err)
		}
		if err := e.ClearLatches(ctx, LatchRestarted); err != nil {
			t.Fatal(err)
		}
		before := len(c.writes)
		peer := MAC{2, 'S', 'V', 0, 0, 1}
		if err := e.Connect(ctx, peer, ShowValid|ShowTarget, CtlLink|CtlGuard|CtlPower); err != nil {
			t.Fatal(err)
		}
		if n := len(c.writes); n != before+8 || c.writes[n-2] != p.regs[rDVSEC] || c.writes[n-1] != p.regs[rControl] {
			t.Errorf("Connect wrote %#x; want peer, then DVSEC, then the link", c.writes[before:])
		}
		o, err = e.Observe(ctx)
		want := Observation{
			Control: CtlLink | CtlGuard | CtlPower, Status: StatLink | StatDevice | StatPower | StatLoaded, Latch: LatchPowerLost,
			Group: 102, Resets: 6, Epoch: 0xE0, Proven: 6, Ident: 0x1D,
		}
		if err != nil || o != want {
			t.Errorf("Observe = %+v, %v; want %+v", o, err, want)
		}
		if got, show, err := e.Expected(ctx); err != nil || got != peer || show != ShowValid|ShowTarget {
			t.Errorf("Expected = %s, 0x%02x, %v", got, show, err)
		}
		if n, err := e.Counters(ctx); err != nil || n != (Counters{1, 2, 3}) {
			t.Errorf("Counters = %+v, %v", n, err)
		}
		copy(c.at(rPeerMAC), peer[:])
		le.PutUint16(c.at(rPeerGroup), 102)
		if got, err := e.Peer(ctx); err != nil || got != (Peer{peer, 102}) {
			t.Errorf("Peer = %+v, %v", got, err)
		}
		if err := e.Reload(ctx, CtlLink); !errors.Is(err, ErrLinkOn) {
			t.Errorf("Reload = %v; want ErrLinkOn", err)
		}
		for _, at := range c.writes {
			for r := range numRegs {
				switch r {
				case rControl, rLatch, rExpectPeer, rDVSEC, rProven:
				default:
					if p.regs[r] <= at && int(at) < p.end(r) {
						t.Errorf("wrote to %s at 0x%04x", regNames[r], at)
					}
				}
			}
		}
	})
}

// Its registers really are elsewhere, so that the test above shows something.
func TestScatteredIsScattered(t *testing.T) {
	p, err := LoadProfile("testdata/scattered.json")
	if err != nil {
		t.Fatal(err)
	}
	v1 := regsV1(t)
	for r := range numRegs {
		if p.regs[r] == v1.regs[r] {
			t.Errorf("%s is at 0x%04x as in regs-v1", regNames[r], p.regs[r])
		}
	}
	if p.regs[rStatus] == p.regs[rControl]+1 || p.regs[rLatch] == p.regs[rControl]+2 || p.regs[rDVSEC] == p.regs[rExpectPeer]+6 {
		t.Error("CONTROL, STATUS, LATCH and EXPECT_PEER, DVSEC are neighbours as in regs-v1")
	}
	if p.LoadTime != 40*time.Millisecond || p.BlockOffset != 0x1000 {
		t.Errorf("load time %v, block at 0x%x", p.LoadTime, p.BlockOffset)
	}
}
