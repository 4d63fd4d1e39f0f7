package ee

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// BlockSize is the length of a config block in bytes: one page of a 24C256, so
// that one write cycle replaces it whole.
const BlockSize = 64

// Block is the config block, the page of the engine's NVM that the engine
// loads (docs/nvm-format.md). It is a copy: the truth about a slot is in the
// agent's store, and recovery rebuilds a block from there.
type Block struct {
	Flags      BlockFlags
	Group      uint16 // 16..4092, or GroupFree
	From       uint16 // the group it came from, or GroupFree
	Generation Generation
	VM         UUID // the VM it belongs to or is held for; zero = none
	Move       UUID // the change that wrote it
}

// BlockFlags are the flags byte of a config block.
type BlockFlags uint8

const (
	FlagTarget BlockFlags = 1 << iota // migration target: the destination must not reset the device
	FlagHeld                          // cut from every host, waiting for VM
)

const (
	blockMagic   = "EEIO"
	blockVersion = 1

	offVersion     = 4
	offFlags       = 5
	offGroup       = 6
	offFrom        = 8
	offIncarnation = 12
	offCounter     = 16
	offCRC         = 20
	offVM          = 24
	offMove        = 40
	offSpare       = 56 // zero
)

// DigestOffset and DigestSize are where a block's CRC is: it stands for the
// whole page where the bytes under it have been checked by the engine.
const (
	DigestOffset = offCRC
	DigestSize   = 4
)

// Errors that errors.Is finds in what DecodeBlock returns. A blank or foreign
// page and a damaged one are told apart because what to do differs.
var (
	ErrBlockBlank   = errors.New("no config block: the page is blank")
	ErrBlockForeign = errors.New("no config block: the magic is not EEIO")
	ErrBlockVersion = errors.New("config block of a layout this agent does not know")
	ErrBlockCRC     = errors.New("config block is damaged: CRC-32C differs")
	ErrBlockField   = errors.New("config block has a field out of range")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// blockCRC is taken over the whole page with the CRC field as zero.
func blockCRC(p []byte) uint32 {
	var zero [4]byte
	c := crc32.Update(0, castagnoli, p[:offCRC])
	c = crc32.Update(c, castagnoli, zero[:])
	return crc32.Update(c, castagnoli, p[offCRC+4:BlockSize])
}

// Encode returns the BlockSize bytes of b.
func (b Block) Encode() []byte {
	p := make([]byte, BlockSize)
	copy(p, blockMagic)
	p[offVersion] = blockVersion
	p[offFlags] = byte(b.Flags)
	binary.LittleEndian.PutUint16(p[offGroup:], b.Group)
	binary.LittleEndian.PutUint16(p[offFrom:], b.From)
	binary.LittleEndian.PutUint32(p[offIncarnation:], b.Generation.Incarnation)
	binary.LittleEndian.PutUint32(p[offCounter:], b.Generation.Counter)
	copy(p[offVM:], b.VM[:])
	copy(p[offMove:], b.Move[:])
	binary.LittleEndian.PutUint32(p[offCRC:], blockCRC(p))
	return p
}

// DecodeBlock reads a config block from the first BlockSize bytes of p.
// Everything an engine would refuse is refused, with one of the ErrBlock
// errors.
func DecodeBlock(p []byte) (Block, error) {
	if len(p) < BlockSize {
		return Block{}, fmt.Errorf("%w: %d bytes, want %d", ErrBlockField, len(p), BlockSize)
	}
	p = p[:BlockSize]
	if blank(p) {
		return Block{}, ErrBlockBlank
	}
	if string(p[:len(blockMagic)]) != blockMagic {
		return Block{}, fmt.Errorf("%w: found %x", ErrBlockForeign, p[:len(blockMagic)])
	}
	if got, want := binary.LittleEndian.Uint32(p[offCRC:]), blockCRC(p); got != want {
		return Block{}, fmt.Errorf("%w: 0x%08x in the page, 0x%08x over it", ErrBlockCRC, got, want)
	}
	if p[offVersion] != blockVersion {
		return Block{}, fmt.Errorf("%w: %d, want %d", ErrBlockVersion, p[offVersion], blockVersion)
	}
	b := Block{
		Flags: BlockFlags(p[offFlags]),
		Group: binary.LittleEndian.Uint16(p[offGroup:]),
		From:  binary.LittleEndian.Uint16(p[offFrom:]),
		Generation: Generation{
			Incarnation: binary.LittleEndian.Uint32(p[offIncarnation:]),
			Counter:     binary.LittleEndian.Uint32(p[offCounter:]),
		},
		VM:   UUID(p[offVM : offVM+16]),
		Move: UUID(p[offMove : offMove+16]),
	}
	switch {
	case !ValidGroup(b.Group) && b.Group != GroupFree:
		return Block{}, fmt.Errorf("%w: group %d, want %d..%d or %d", ErrBlockField, b.Group, GroupMin, GroupMax, GroupFree)
	case !ValidGroup(b.From) && b.From != GroupFree:
		return Block{}, fmt.Errorf("%w: from-group %d, want %d..%d or %d", ErrBlockField, b.From, GroupMin, GroupMax, GroupFree)
	case b.Flags&^(FlagTarget|FlagHeld) != 0:
		return Block{}, fmt.Errorf("%w: flags 0x%02x", ErrBlockField, byte(b.Flags))
	case !zero(p[10:12]) || !zero(p[offSpare:]):
		return Block{}, fmt.Errorf("%w: reserved bytes are not zero", ErrBlockField)
	}
	return b, nil
}

// Digest returns the DigestSize bytes at DigestOffset of b's page.
func (b Block) Digest() [DigestSize]byte {
	return [DigestSize]byte(b.Encode()[DigestOffset:])
}

// ValidGroup tells whether g can be assigned: 16..4092.
func ValidGroup(g uint16) bool { return GroupMin <= g && g <= GroupMax }

// Generation is the fencing token of a slot: a random incarnation made when
// the store was formatted, and a counter that every change of assignment
// raises. Tokens are compared by equality.
type Generation struct {
	Incarnation uint32
	Counter     uint32
}

// String gives "9f3c2a10-17": the incarnation in hex, the counter in decimal.
func (g Generation) String() string { return fmt.Sprintf("%08x-%d", g.Incarnation, g.Counter) }

// ParseGeneration is the inverse of String.
func ParseGeneration(s string) (Generation, error) {
	inc, ctr, ok := strings.Cut(s, "-")
	i, err1 := strconv.ParseUint(inc, 16, 32)
	c, err2 := strconv.ParseUint(ctr, 10, 32)
	if !ok || len(inc) != 8 || err1 != nil || err2 != nil {
		return Generation{}, fmt.Errorf("generation %q: want eight hex digits, a dash and a decimal counter, as in 9f3c2a10-17", s)
	}
	return Generation{uint32(i), uint32(c)}, nil
}

// UUID is a 128-bit identifier as of RFC 9562; the zero UUID means none.
type UUID [16]byte

// String gives the 36-character form in lower case.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// IsZero tells whether u names nothing.
func (u UUID) IsZero() bool { return u == UUID{} }

// ParseUUID reads the 36-character form, in either case.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return u, fmt.Errorf("UUID %q: want the form 6ba7b810-9dad-41d1-80b4-00c04fd430c8", s)
	}
	if _, err := hex.Decode(u[:], []byte(s[:8]+s[9:13]+s[14:18]+s[19:23]+s[24:])); err != nil {
		return UUID{}, fmt.Errorf("UUID %q: %w", s, err)
	}
	return u, nil
}

// blank tells whether p is as erased. A page of zeros is somebody's.
func blank(p []byte) bool {
	for _, c := range p {
		if c != 0xFF {
			return false
		}
	}
	return true
}

func zero(p []byte) bool {
	for _, c := range p {
		if c != 0 {
			return false
		}
	}
	return true
}
