// Package ee drives PCIe-over-Ethernet expander engines: their config block,
// their registers and what a board's profile says of them.
//
// The register map and the config block are Baton's own (docs/engine-regs-v1.md,
// docs/nvm-format.md); the group IDs are those of the ExpEther manager.
package ee

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"periph.io/x/conn/v3/i2c"
)

// Engine is one EE(IO) on an I2C bus. Its methods block for the time the bus
// takes and for at most retryMax more; they are for one goroutine at a time.
type Engine struct {
	bus    i2c.Bus
	addr   uint16
	p      *Profile
	reload Reloader
	buf    [2 + 32]byte // pointer and value; periph wants heap buffers
	in     [64]byte
}

// Reloader makes an engine load its config block where there is no register
// for it (a GPIO line).
type Reloader interface {
	Reload(ctx context.Context) error
}

// New returns the engine at addr. It does not touch the bus. reload may be nil
// where the profile has LinkControl.
func New(bus i2c.Bus, addr uint16, p *Profile, reload Reloader) *Engine {
	return &Engine{bus: bus, addr: addr, p: p, reload: reload}
}

// Profile returns what the engine can do.
func (e *Engine) Profile() *Profile { return e.p }

// Where names the engine for messages: "bus0/0x40".
func (e *Engine) Where() string { return fmt.Sprintf("%s/0x%02x", e.bus, e.addr) }

// Errors that errors.Is finds in what an Engine returns.
var (
	ErrWrongID    = errors.New("what answers is not an engine of this profile")
	ErrIgnored    = errors.New("the engine did not take the command")
	ErrNotLoaded  = errors.New("the engine did not load its config block in time")
	ErrConfigBad  = errors.New("the engine found its config block bad")
	ErrLinkOn     = errors.New("reload with the link enabled")
	ErrNoReset    = errors.New("the reset counter did not move")
	ErrCapability = errors.New("this engine can not do that")
)

// Error is a failed access to an engine.
type Error struct {
	Op    string // what was being done
	Where string // bus and address
	Err   error
}

func (e *Error) Error() string { return fmt.Sprintf("engine %s: %s: %v", e.Where, e.Op, e.Err) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Identity is what does not change unless a part is replaced.
type Identity struct {
	ID       uint32
	Revision uint16
	MAC      MAC
	Vendor   uint16 // PCI vendor of the device; 0xFFFF = no device
	Device   uint16
	Class    uint32 // PCI class code, 24 bits
	Serial   uint64 // PCIe Device Serial Number
	Word     uint32 // the IDENT register: CRC over all of these
}

// NoDevice is the PCI vendor ID that is read where there is no device.
const NoDevice = 0xFFFF

// Observation is one burst over the live registers. Its words belong together:
// the engine latches them when the burst begins.
type Observation struct {
	Control uint8
	Status  uint8
	Latch   uint8
	Group   uint16 // the engine runs with; 0 = none
	Resets  uint32
	Epoch   uint32
	Proven  uint32
	Ident   uint32
}

// Peer is who is at the other end of an engine's link.
type Peer struct {
	MAC   MAC // zero = nobody
	Group uint16
}

// Counters are for people.
type Counters struct {
	Swallowed, LinkChanges, Retransmits uint32
}

// Identity reads and checks who is there. It fails with ErrWrongID where
// something else than an engine of the profile answers.
func (e *Engine) Identity(ctx context.Context) (Identity, error) {
	const op = "identify"
	var id Identity
	for _, f := range []struct {
		r   reg
		set func(p []byte)
	}{
		{rID, func(p []byte) { id.ID = binary.LittleEndian.Uint32(p) }},
		{rMAC, func(p []byte) { id.MAC = MAC(p) }},
		{rVendor, func(p []byte) { id.Vendor = binary.LittleEndian.Uint16(p) }},
		{rDevice, func(p []byte) { id.Device = binary.LittleEndian.Uint16(p) }},
		{rClass, func(p []byte) { id.Class = binary.LittleEndian.Uint32(p) & 0xFFFFFF }},
		{rSerial, func(p []byte) { id.Serial = binary.LittleEndian.Uint64(p) }},
		{rIdent, func(p []byte) { id.Word = binary.LittleEndian.Uint32(p) }},
	} {
		p, err := e.read(ctx, op, f.r, f.r)
		if err != nil {
			return Identity{}, err
		}
		f.set(p)
		if f.r == rID && id.ID != e.p.ID {
			return id, e.fail(op, fmt.Errorf("%w: ID 0x%08x, profile %s has 0x%08x", ErrWrongID, id.ID, e.p.Name, e.p.ID))
		}
	}
	return id, nil
}

// Observe reads the live registers, CONTROL to IDENT, in one burst.
func (e *Engine) Observe(ctx context.Context) (Observation, error) {
	return e.live(ctx, "read live registers", rIdent)
}

// live reads CONTROL to last in one burst. last is RESETS or IDENT; the words
// that were not read are zero.
func (e *Engine) live(ctx context.Context, op string, last reg) (Observation, error) {
	p, err := e.read(ctx, op, rControl, last)
	if err != nil {
		return Observation{}, err
	}
	at := func(r reg) []byte { return p[e.p.regs[r]-e.p.regs[rControl]:] }
	o := Observation{
		Control: at(rControl)[0],
		Status:  at(rStatus)[0],
		Latch:   at(rLatch)[0],
		Group:   binary.LittleEndian.Uint16(at(rGroup)),
		Resets:  binary.LittleEndian.Uint32(at(rResets)),
	}
	if last == rIdent {
		o.Epoch = binary.LittleEndian.Uint32(at(rEpoch))
		o.Proven = binary.LittleEndian.Uint32(at(rProven))
		o.Ident = binary.LittleEndian.Uint32(at(rIdent))
	}
	return o, nil
}

// Peer reads who the engine is connected to.
func (e *Engine) Peer(ctx context.Context) (Peer, error) {
	p, err := e.read(ctx, "read peer", rPeerMAC, rPeerGroup)
	if err != nil {
		return Peer{}, err
	}
	return Peer{MAC: MAC(p), Group: binary.LittleEndian.Uint16(p[e.p.regs[rPeerGroup]-e.p.regs[rPeerMAC]:])}, nil
}

// Expected reads back EXPECT_PEER and DVSEC.
func (e *Engine) Expected(ctx context.Context) (peer MAC, show uint8, err error) {
	p, err := e.read(ctx, "read expected peer", rExpectPeer, rDVSEC)
	if err != nil {
		return MAC{}, 0, err
	}
	return MAC(p), p[e.p.regs[rDVSEC]-e.p.regs[rExpectPeer]], nil
}

// Counters reads the engine's statistics.
func (e *Engine) Counters(ctx context.Context) (Counters, error) {
	p, err := e.read(ctx, "read counters", rSwallowed, rRetransmits)
	if err != nil {
		return Counters{}, err
	}
	at := func(r reg) uint32 { return binary.LittleEndian.Uint32(p[e.p.regs[r]-e.p.regs[rSwallowed]:]) }
	return Counters{at(rSwallowed), at(rLinkChanges), at(rRetransmits)}, nil
}

// Set writes CONTROL and reads STATUS and LATCH behind it, in one transfer
// where the map has them side by side.
func (e *Engine) Set(ctx context.Context, control uint8) (status, latch uint8, err error) {
	const op = "write control"
	if e.p.regs[rStatus] == e.p.regs[rControl]+1 && e.p.regs[rLatch] == e.p.regs[rControl]+2 {
		if err := e.tx(ctx, op, e.out(rControl, []byte{control}), e.in[:2]); err != nil {
			return 0, 0, err
		}
		return e.in[0], e.in[1], nil
	}
	if err := e.write(ctx, op, rControl, []byte{control}); err != nil {
		return 0, 0, err
	}
	p, err := e.read(ctx, op, rStatus, rLatch)
	if err != nil {
		return 0, 0, err
	}
	return p[0], p[e.p.regs[rLatch]-e.p.regs[rStatus]], nil
}

// Reload makes the engine load its config block; control is what CONTROL keeps
// meanwhile. It refuses with ErrLinkOn where control has the link enabled, and
// does not wait: Loaded does. Without LinkControl the Reloader is used.
func (e *Engine) Reload(ctx context.Context, control uint8) error {
	const op = "reload"
	if !e.p.Caps.Has(CapLinkControl) {
		if e.reload == nil {
			return e.fail(op, fmt.Errorf("%w: profile %s has no LinkControl and no reload line is configured", ErrCapability, e.p.Name))
		}
		if err := e.reload.Reload(ctx); err != nil {
			return e.fail(op, err)
		}
		return nil
	}
	if control&CtlLink != 0 {
		return e.fail(op, ErrLinkOn)
	}
	return e.write(ctx, op, rControl, []byte{control | CtlReload})
}

// Loaded waits, at most the profile's LoadTime, until a reload has ended, and
// returns the reading that showed it: CONTROL to RESETS, the other words are
// zero. Where STATUS can not be read it waits for LoadTime and returns a zero
// Observation.
func (e *Engine) Loaded(ctx context.Context) (Observation, error) {
	const op = "wait for load"
	if !e.p.Caps.Has(CapStatus) {
		return Observation{}, sleep(ctx, e.p.LoadTime)
	}
	deadline := time.Now().Add(e.p.LoadTime)
	for {
		o, err := e.live(ctx, op, rResets)
		if err != nil {
			return o, err
		}
		switch {
		case o.Status&StatConfigBad != 0:
			return o, e.fail(op, ErrConfigBad)
		case o.Status&StatLoaded != 0:
			return o, nil
		case time.Now().After(deadline):
			return o, e.fail(op, fmt.Errorf("%w: status 0x%02x after %v", ErrNotLoaded, o.Status, e.p.LoadTime))
		}
		if err := sleep(ctx, loadPoll); err != nil {
			return o, err
		}
	}
}

// Connect writes EXPECT_PEER, DVSEC and CONTROL, in this order, so that the
// link comes up only with the right peer expected and the flag shown. What the
// profile lacks is left out.
func (e *Engine) Connect(ctx context.Context, peer MAC, show, control uint8) error {
	const op = "link on"
	if e.p.Caps.Has(CapExpectPeer|CapFlagMirror) && e.p.regs[rDVSEC] == e.p.regs[rExpectPeer]+6 && e.p.regs[rControl] == e.p.regs[rDVSEC]+1 {
		return e.write(ctx, op, rExpectPeer, append(peer[:], show, control))
	}
	if e.p.Caps.Has(CapExpectPeer) {
		if err := e.write(ctx, op, rExpectPeer, peer[:]); err != nil {
			return err
		}
	}
	if e.p.Caps.Has(CapFlagMirror) {
		if err := e.write(ctx, op, rDVSEC, []byte{show}); err != nil {
			return err
		}
	}
	return e.write(ctx, op, rControl, []byte{control})
}

// ClearLatches clears the latches in bits.
func (e *Engine) ClearLatches(ctx context.Context, bits uint8) error {
	return e.write(ctx, "clear latches", rLatch, []byte{bits})
}

// Prove writes the reset count at which the device was proven to be in use.
func (e *Engine) Prove(ctx context.Context, resets uint32) error {
	return e.write(ctx, "write proof", rProven, binary.LittleEndian.AppendUint32(nil, resets))
}

// ResetDevice starts the agent's own reset of the device, which passes the
// guard. It does not wait: WasReset does.
func (e *Engine) ResetDevice(ctx context.Context, control uint8) error {
	if !e.p.Caps.Has(CapDeviceReset) {
		return e.fail("device reset", ErrCapability)
	}
	return e.write(ctx, "device reset", rControl, []byte{control | CtlDeviceReset})
}

// WasReset waits, at most the profile's ResetTime, until the reset counter
// differs from before and the device is out of reset. ErrNoReset means that
// the device must be taken for not reset.
func (e *Engine) WasReset(ctx context.Context, before uint32) (Observation, error) {
	deadline := time.Now().Add(e.p.ResetTime)
	for {
		o, err := e.Observe(ctx)
		if err != nil {
			return o, err
		}
		if o.Resets != before && o.Status&StatResetting == 0 {
			return o, nil
		}
		if time.Now().After(deadline) {
			return o, e.fail("device reset", fmt.Errorf("%w: still %d after %v", ErrNoReset, o.Resets, e.p.ResetTime))
		}
		if err := sleep(ctx, resetPoll); err != nil {
			return o, err
		}
	}
}

const (
	loadPoll  = 250 * time.Microsecond
	resetPoll = 5 * time.Millisecond
)

// retries are the pauses before a failed transfer is tried again. All writes
// are of states, not of steps, so that a second one does no harm; a repeated
// device reset only counts twice.
var retries = [...]time.Duration{500 * time.Microsecond, 2 * time.Millisecond, 5 * time.Millisecond}

// tx is every access to the register file: a profile without Status has none,
// and its pointers mean nothing.
func (e *Engine) tx(ctx context.Context, op string, w, r []byte) error {
	if !e.p.Caps.Has(CapStatus) {
		return e.fail(op, fmt.Errorf("%w: profile %s has no Status", ErrCapability, e.p.Name))
	}
	if err := ctx.Err(); err != nil {
		return e.fail(op, err)
	}
	err := e.bus.Tx(e.addr, w, r)
	for _, pause := range retries {
		if err == nil {
			return nil
		}
		if s := sleep(ctx, pause); s != nil {
			break
		}
		err = e.bus.Tx(e.addr, w, r)
	}
	if err != nil {
		return e.fail(op, err)
	}
	return nil
}

func (e *Engine) out(r reg, value []byte) []byte {
	w := binary.BigEndian.AppendUint16(e.buf[:0], e.p.regs[r])
	return append(w, value...)
}

func (e *Engine) write(ctx context.Context, op string, r reg, value []byte) error {
	return e.tx(ctx, op, e.out(r, value), nil)
}

// read reads from register first to the end of register last.
func (e *Engine) read(ctx context.Context, op string, first, last reg) ([]byte, error) {
	p := e.in[:e.p.regs[last]+regSize[last]-e.p.regs[first]]
	if err := e.tx(ctx, op, e.out(first, nil), p); err != nil {
		return nil, err
	}
	return p, nil
}

func (e *Engine) fail(op string, err error) error { return &Error{op, e.Where(), err} }

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// MAC is an engine's Ethernet address; its text form is also the engine's id
// with the ExpEther manager (0x and twelve digits, there).
type MAC [6]byte

// String gives "8c:df:9d:00:02:01".
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// IsZero tells whether m names nobody.
func (m MAC) IsZero() bool { return m == MAC{} }

// ParseMAC is the inverse of String.
func ParseMAC(s string) (MAC, error) {
	var m MAC
	bad := fmt.Errorf("MAC %q: want the form 8c:df:9d:00:02:01", s)
	if len(s) != 17 {
		return m, bad
	}
	for i := range m {
		if i > 0 && s[3*i-1] != ':' {
			return MAC{}, bad
		}
		if _, err := hex.Decode(m[i:i+1], []byte(s[3*i:3*i+2])); err != nil {
			return MAC{}, bad
		}
	}
	return m, nil
}

// IdentWord is the IDENT register of an engine whose identity registers, from
// ID to the end of SERIAL, read p.
func IdentWord(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }
