package ee

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Profile is what a board's engines can do and where their registers are: data,
// so that a new board is a file and no code.
type Profile struct {
	Name  string
	About string
	Caps  Caps
	// ID is what register ID of such an engine reads.
	ID uint32
	// DVSECVendor is the vendor ID of the engine's DVSEC.
	DVSECVendor uint16
	// BlockOffset is where in the engine's NVM the config block is, in bytes.
	BlockOffset int64
	// LoadTime bounds a load of the config block, ResetTime a device reset or
	// power-up.
	LoadTime, ResetTime time.Duration

	regs [numRegs]uint16 // pointer of each Reg; meaningless without CapStatus
}

// Caps is the set of things an engine can do.
type Caps uint16

// Capabilities (docs/design.md, "The engine as we assume it").
const (
	CapLinkControl Caps = 1 << iota
	CapResetGuard
	CapQuiesce
	CapDeviceReset
	CapDevicePower
	CapExpectPeer
	CapStatus
	CapLatches
	CapFlagMirror
)

var capNames = []string{"LinkControl", "ResetGuard", "Quiesce", "DeviceReset", "DevicePower", "ExpectPeer", "Status", "Latches", "FlagMirror"}

// Has tells whether every capability of want is there.
func (c Caps) Has(want Caps) bool { return c&want == want }

// Names lists the capabilities in a fixed order.
func (c Caps) Names() []string {
	var names []string
	for i, n := range capNames {
		if c&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return names
}

// Invariant is the number of an invariant of docs/design.md.
type Invariant int

// Holds tells whether hardware of this profile lets the agent hold invariant
// n, and if not, why. Invariants that the agent alone is answerable for hold
// under every profile.
func (p *Profile) Holds(n Invariant) (ok bool, why string) {
	need := map[Invariant]struct {
		caps Caps
		why  string
	}{
		1:  {CapLinkControl | CapStatus, "it may connect by itself at power-up, and a cut can not be confirmed"},
		2:  {CapLinkControl, "each engine connects as soon as it has loaded, one after the other"},
		8:  {CapStatus, "the running group and the link can not be read"},
		10: {CapDeviceReset | CapStatus, "the agent can not reset the device, nor see that a reset reached it"},
	}[n]
	if p.Caps.Has(need.caps) {
		return true, ""
	}
	return false, need.why
}

// Invariants is how many invariants docs/design.md numbers.
const Invariants = 10

// reg names a register.
type reg uint8

// Registers in the order of regs-v1.
const (
	rID reg = iota
	rMAC
	rVendor
	rDevice
	rClass
	rSerial
	rExpectPeer
	rDVSEC
	rControl
	rStatus
	rLatch
	rGroup
	rResets
	rEpoch
	rProven
	rIdent
	rSwallowed
	rLinkChanges
	rRetransmits
	rPeerMAC
	rPeerGroup
	rGeneration
	rFromGroup
	numRegs
)

var regNames = [numRegs]string{
	"ID", "MAC", "Vendor", "Device", "Class", "Serial", "ExpectPeer", "DVSEC", "Control", "Status", "Latch", "Group", "Resets",
	"Epoch", "Proven", "Ident", "Swallowed", "LinkChanges", "Retransmits", "PeerMAC", "PeerGroup", "Generation", "FromGroup",
}

var regSize = [numRegs]uint16{4, 6, 2, 2, 4, 8, 6, 1, 1, 1, 1, 2, 4, 4, 4, 4, 4, 4, 4, 6, 2, 8, 2}

// end is the pointer behind register r.
func (p *Profile) end(r reg) int { return int(p.regs[r]) + int(regSize[r]) }

// bursts are the spans that are read at once, so that their words belong
// together: in a profile, the registers of a burst are in this order.
var bursts = [][]reg{
	{rControl, rStatus, rLatch, rGroup, rResets, rEpoch, rProven, rIdent},
	{rPeerMAC, rPeerGroup},
	{rExpectPeer, rDVSEC},
	{rSwallowed, rLinkChanges, rRetransmits},
}

const burstMax = 64

//go:embed profiles/*.json
var embedded embed.FS

// LoadProfile returns the embedded profile called name, or reads the file at
// that path where name has a slash in it.
func LoadProfile(name string) (*Profile, error) {
	if strings.Contains(name, "/") {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("profile: %w", err)
		}
		p, err := ParseProfile(b)
		if err != nil {
			return nil, fmt.Errorf("profile %s: %w", name, err)
		}
		return p, nil
	}
	b, err := embedded.ReadFile("profiles/" + name + ".json")
	if err != nil {
		return nil, fmt.Errorf("profile %q: there is no such profile; embedded ones: %s; a file's path has a slash in it",
			name, strings.Join(ProfileNames(), ", "))
	}
	return ParseProfile(b)
}

// ProfileNames lists the embedded profiles.
func ProfileNames() []string {
	files, _ := fs.Glob(embedded, "profiles/*.json") // the pattern is a constant
	for i, f := range files {
		files[i] = strings.TrimSuffix(strings.TrimPrefix(f, "profiles/"), ".json")
	}
	return files
}

// ParseProfile reads the JSON of a profile (docs/profiles.md). All that is
// wrong with it is reported at once.
func ParseProfile(data []byte) (*Profile, error) {
	var in struct {
		Name         string            `json:"name"`
		About        string            `json:"about"`
		Capabilities []string          `json:"capabilities"`
		ID           string            `json:"id"`
		DVSECVendor  string            `json:"dvsec_vendor"`
		BlockOffset  int64             `json:"block_offset"`
		LoadTime     string            `json:"load_time"`
		ResetTime    string            `json:"reset_time"`
		Registers    map[string]string `json:"registers"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("something follows the profile at byte %d", d.InputOffset())
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	number := func(key, s string, bits int) uint64 {
		n, err := strconv.ParseUint(s, 0, bits)
		if err != nil {
			bad("%s: %q is not a number of %d bits", key, s, bits)
		}
		return n
	}
	span := func(key, s string) time.Duration {
		t, err := time.ParseDuration(s)
		if err != nil || t <= 0 || t > time.Minute {
			bad("%s: %q is not a duration above 0 and up to 1m", key, s)
		}
		return t
	}

	p := &Profile{Name: in.Name, About: in.About, BlockOffset: in.BlockOffset}
	if in.Name == "" {
		bad("name: missing")
	}
	if in.BlockOffset < 0 || in.BlockOffset%BlockSize != 0 {
		bad("block_offset: %d is not a multiple of %d: the block would cross a page", in.BlockOffset, BlockSize)
	}
	for _, n := range in.Capabilities {
		i := slices.Index(capNames, n)
		if i < 0 {
			bad("capabilities: %q is unknown; known: %s", n, strings.Join(capNames, ", "))
			continue
		}
		p.Caps |= 1 << i
	}
	p.LoadTime = span("load_time", in.LoadTime)
	if p.Caps != 0 && !p.Caps.Has(CapStatus) {
		bad("capabilities: %s without Status: what can not be read back can not be trusted", strings.Join(in.Capabilities, ", "))
	}
	if p.Caps.Has(CapStatus) {
		p.ID = uint32(number("id", in.ID, 32))
		p.DVSECVendor = uint16(number("dvsec_vendor", in.DVSECVendor, 16))
		p.ResetTime = span("reset_time", in.ResetTime)
		var placed [numRegs]bool
		for r := range numRegs {
			s, ok := in.Registers[regNames[r]]
			if !ok {
				bad("registers: %s is missing", regNames[r])
				continue
			}
			before := len(errs)
			p.regs[r] = uint16(number("registers: "+regNames[r], s, 16))
			placed[r] = len(errs) == before
			if placed[r] && p.end(r) > 1<<16 {
				bad("registers: %s at 0x%04x has %d bytes: it goes beyond 0xffff", regNames[r], p.regs[r], regSize[r])
			}
		}
		for a := range numRegs {
			for b := range a {
				if placed[a] && placed[b] && int(p.regs[a]) < p.end(b) && int(p.regs[b]) < p.end(a) {
					bad("registers: %s at 0x%04x overlaps %s at 0x%04x", regNames[a], p.regs[a], regNames[b], p.regs[b])
				}
			}
		}
	}
	if len(errs) == 0 && p.Caps.Has(CapStatus) {
		for _, b := range bursts {
			first, last := b[0], b[len(b)-1]
			ordered := slices.IsSortedFunc(b, func(x, y reg) int { return int(p.regs[x]) - int(p.regs[y]) })
			if !ordered || p.end(last)-int(p.regs[first]) > burstMax {
				bad("registers: %s to %s are read as one burst: they must lie in the order of regs-v1 within %d bytes", regNames[first], regNames[last], burstMax)
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(in.Registers)) {
		if !slices.Contains(regNames[:], n) {
			bad("registers: %q is unknown", n)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return p, nil
}
