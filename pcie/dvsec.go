package pcie

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
)

// DVSEC is what an engine shows to hosts in its Designated Vendor-Specific
// Extended Capability: whether the device behind it still holds what it held
// (docs/dvsec.md).
//
// A host reads it twice from config space and believes it only if Stable says
// so. It names no VM: a DVSEC is readable by whoever has the port.
type DVSEC struct {
	Vendor      uint16 // PCI vendor ID that the capability is defined under; from the profile
	Flags       DVSECFlags
	Incarnation uint32  // generation: random since the agent's store was formatted
	Counter     uint32  // generation: raised by every change of assignment
	From        uint16  // group the slot came from, 4093 = none
	Group       uint16  // group the slot is in, 4093 = none
	Engine      [6]byte // the engine's MAC, wire order
	Resets      uint32  // resets that reached the device since the engine started
}

// DVSECFlags are the flag bits of a DVSEC.
type DVSECFlags uint16

// Flags of a DVSEC. Of the last group the engine alone is the author.
const (
	DVSECValid     DVSECFlags = 1 << iota // the agent has looked at the slot; without it no other flag counts
	DVSECTarget                           // migration target: the host must not reset the device
	DVSECPowerKept                        // device power was kept since the memory was last known good
	DVSECBusy                             // the agent is changing the slot: read again later

	DVSECGuard     // the engine swallows resets from the host side
	DVSECQuiesced  // Bus Master Enable is held clear
	DVSECResetSeen // a reset has reached the device and nobody has acknowledged it

	dvsecAllFlags = 1<<iota - 1
)

var dvsecFlagNames = []string{"valid", "target", "power-kept", "busy", "guard", "quiesced", "reset-seen"}

// String gives the names of the flags that are set, as in "valid|target".
func (f DVSECFlags) String() string {
	var names []string
	for i, n := range dvsecFlagNames {
		if f&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	if rest := f &^ dvsecAllFlags; rest != 0 {
		names = append(names, fmt.Sprintf("0x%04x", uint16(rest)))
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, "|")
}

const (
	// DVSECSize is the length of the capability in bytes, headers included.
	DVSECSize = 40
	// DVSECID is the DVSEC ID of this layout under the profile's vendor ID.
	DVSECID = 0x0EE1

	// Extended capability ID and version of a DVSEC, PCI Express Base
	// Specification 4.0 and later, "Designated Vendor-Specific Extended
	// Capability".
	dvsecExtID      = 0x0023
	dvsecExtVersion = 1

	// dvsecLayout is the layout version, in the DVSEC Revision field.
	dvsecLayout = 1
)

// Offsets in the capability (docs/dvsec.md).
const (
	dvsecHeader      = 0x00 // 4: capability ID, its version, offset of the next
	dvsecHeader1     = 0x04 // 4: vendor, revision, length
	dvsecHeader2     = 0x08 // 2: DVSEC ID
	dvsecFlags       = 0x0A // 2
	dvsecIncarnation = 0x0C // 4
	dvsecCounter     = 0x10 // 4
	dvsecFrom        = 0x14 // 2
	dvsecGroup       = 0x16 // 2
	dvsecEngine      = 0x18 // 6
	dvsecReserved    = 0x1E // 2: zero
	dvsecResets      = 0x20 // 4
	dvsecCRC         = 0x24 // 4
)

// Errors that errors.Is finds in what DecodeDVSEC and FindDVSEC return. Under
// any of them the flag counts as not set.
var (
	ErrNoDVSEC      = errors.New("no such DVSEC in config space")
	ErrGone         = errors.New("config space reads all ones: nothing answers")
	ErrShortConfig  = errors.New("extended config space can not be read: it needs 4096 bytes (CAP_SYS_ADMIN, and a platform that has them)")
	ErrConfigLoop   = errors.New("list of extended capabilities is broken")
	ErrDVSECLength  = errors.New("DVSEC is shorter than this layout")
	ErrDVSECVersion = errors.New("DVSEC of a layout this program does not know")
	ErrDVSECCRC     = errors.New("DVSEC is damaged or was read while it changed: CRC-32C differs")
	ErrDVSECField   = errors.New("DVSEC has a field out of range")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crcOfDVSEC leaves out the first header: the offset of the next capability
// depends on what else the port has.
func crcOfDVSEC(p []byte) uint32 {
	return crc32.Checksum(p[dvsecHeader1:dvsecCRC], castagnoli)
}

// Encode returns the DVSECSize bytes of the capability, last in its list (next
// = 0). PutNext links it to another.
func (d DVSEC) Encode() []byte {
	le := binary.LittleEndian
	p := make([]byte, DVSECSize)
	le.PutUint32(p[dvsecHeader:], dvsecExtID|dvsecExtVersion<<16)
	le.PutUint32(p[dvsecHeader1:], uint32(d.Vendor)|dvsecLayout<<16|DVSECSize<<20)
	le.PutUint16(p[dvsecHeader2:], DVSECID)
	le.PutUint16(p[dvsecFlags:], uint16(d.Flags))
	le.PutUint32(p[dvsecIncarnation:], d.Incarnation)
	le.PutUint32(p[dvsecCounter:], d.Counter)
	le.PutUint16(p[dvsecFrom:], d.From)
	le.PutUint16(p[dvsecGroup:], d.Group)
	copy(p[dvsecEngine:], d.Engine[:])
	le.PutUint32(p[dvsecResets:], d.Resets)
	le.PutUint32(p[dvsecCRC:], crcOfDVSEC(p))
	return p
}

// PutNext writes the offset of the next extended capability, a multiple of 4
// in 0x100..0xFFC or 0 for none, into an encoded capability.
func PutNext(capability []byte, next uint16) {
	h := binary.LittleEndian.Uint32(capability)
	binary.LittleEndian.PutUint32(capability, h&0xFFFFF|uint32(next&0xFFC)<<20)
}

// DecodeDVSEC reads the capability that p begins with. A DVSEC without the
// flag DVSECValid decodes: Stable refuses it.
func DecodeDVSEC(p []byte) (DVSEC, error) {
	if len(p) < DVSECSize {
		return DVSEC{}, fmt.Errorf("%w: %d bytes, want %d", ErrDVSECLength, len(p), DVSECSize)
	}
	p = p[:DVSECSize]
	le := binary.LittleEndian
	h, h1 := le.Uint32(p[dvsecHeader:]), le.Uint32(p[dvsecHeader1:])
	if h == 0xFFFFFFFF && h1 == 0xFFFFFFFF {
		return DVSEC{}, ErrGone
	}
	if id := uint16(h); id != dvsecExtID {
		return DVSEC{}, fmt.Errorf("%w: extended capability 0x%04x, want 0x%04x", ErrNoDVSEC, id, dvsecExtID)
	}
	if id := le.Uint16(p[dvsecHeader2:]); id != DVSECID {
		return DVSEC{}, fmt.Errorf("%w: DVSEC ID 0x%04x, want 0x%04x", ErrNoDVSEC, id, DVSECID)
	}
	if rev := h1 >> 16 & 0xF; rev != dvsecLayout {
		return DVSEC{}, fmt.Errorf("%w: revision %d, want %d", ErrDVSECVersion, rev, dvsecLayout)
	}
	if n := h1 >> 20; n != DVSECSize {
		return DVSEC{}, fmt.Errorf("%w: length field %d, want %d", ErrDVSECLength, n, DVSECSize)
	}
	if got, want := le.Uint32(p[dvsecCRC:]), crcOfDVSEC(p); got != want {
		return DVSEC{}, fmt.Errorf("%w: 0x%08x in it, 0x%08x over it", ErrDVSECCRC, got, want)
	}
	d := DVSEC{
		Vendor:      uint16(h1),
		Flags:       DVSECFlags(le.Uint16(p[dvsecFlags:])),
		Incarnation: le.Uint32(p[dvsecIncarnation:]),
		Counter:     le.Uint32(p[dvsecCounter:]),
		From:        le.Uint16(p[dvsecFrom:]),
		Group:       le.Uint16(p[dvsecGroup:]),
		Engine:      [6]byte(p[dvsecEngine:]),
		Resets:      le.Uint32(p[dvsecResets:]),
	}
	if d.Flags&^dvsecAllFlags != 0 {
		return DVSEC{}, fmt.Errorf("%w: flags 0x%04x", ErrDVSECField, uint16(d.Flags))
	}
	if r := le.Uint16(p[dvsecReserved:]); r != 0 {
		return DVSEC{}, fmt.Errorf("%w: reserved bytes 0x%04x are not zero", ErrDVSECField, r)
	}
	return d, nil
}

// Stable tells whether two readings, one after the other, may be believed:
// the same in every field, valid, not busy. Anything else counts as flag not
// set; the reader may try again.
func Stable(a, b DVSEC) bool {
	return a == b && a.Flags&DVSECValid != 0 && a.Flags&DVSECBusy == 0
}

const (
	configSize     = 4096  // bytes of config space of a PCI Express function
	extendedConfig = 0x100 // where its extended part starts
)

// FindDVSEC returns the offset of the DVSEC with this vendor ID and DVSEC ID
// in a function's config space, as sysfs gives it (4096 bytes where the reader
// may see them all). The capability's own length is checked to lie inside
// config; its content is not looked at.
//
// The list is another party's: it is walked with a bound, and an entry outside
// the extended part, or one seen before, ends with ErrConfigLoop.
func FindDVSEC(config []byte, vendor, id uint16) (off int, err error) {
	le := binary.LittleEndian
	if len(config) >= 4 && le.Uint32(config) == 0xFFFFFFFF {
		return 0, ErrGone
	}
	if len(config) < extendedConfig+4 {
		return 0, fmt.Errorf("%w: %d bytes were readable", ErrShortConfig, len(config))
	}
	config = config[:min(len(config), configSize)]
	// Each capability takes 4 bytes at least, so a list that is longer than
	// this has come back to where it was.
	left := (configSize - extendedConfig) / 4
	for at := extendedConfig; at != 0; left-- {
		switch {
		case left == 0:
			return 0, fmt.Errorf("%w: it loops through 0x%03x", ErrConfigLoop, at)
		case at < extendedConfig:
			return 0, fmt.Errorf("%w: an entry points to 0x%03x", ErrConfigLoop, at)
		case at+4 > len(config):
			return 0, fmt.Errorf("%w: entry at 0x%03x, %d bytes were readable", ErrShortConfig, at, len(config))
		}
		h := le.Uint32(config[at:])
		if h == 0xFFFFFFFF {
			return 0, fmt.Errorf("%w: at 0x%03x", ErrGone, at)
		}
		if h == 0 { // an empty list is a zero first header
			break
		}
		if uint16(h) == dvsecExtID {
			if at+dvsecFlags > len(config) {
				return 0, fmt.Errorf("%w: DVSEC at 0x%03x, %d bytes were readable", ErrShortConfig, at, len(config))
			}
			h1 := le.Uint32(config[at+dvsecHeader1:])
			if uint16(h1) == vendor && le.Uint16(config[at+dvsecHeader2:]) == id {
				if n := int(h1 >> 20); n < dvsecFlags || at+n > len(config) {
					return 0, fmt.Errorf("%w: DVSEC at 0x%03x says it has %d bytes", ErrConfigLoop, at, n)
				}
				return at, nil
			}
		}
		at = int(h >> 20 & 0xFFC) // the low two bits are reserved
	}
	return 0, fmt.Errorf("%w: vendor 0x%04x, ID 0x%04x", ErrNoDVSEC, vendor, id)
}
