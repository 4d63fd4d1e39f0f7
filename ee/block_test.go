package ee

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var exampleBlock = Block{
	Flags:      FlagTarget,
	Group:      102,
	From:       101,
	Generation: Generation{0x9f3c2a10, 18},
	VM:         UUID{0x6b, 0xa7, 0xb8, 0x10, 0x9d, 0xad, 0x41, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8},
	Move:       UUID{0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x47, 0x08, 0x89, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10},
}

// frozenBlock returns the bytes of layout 1. When this test fails, the code is
// wrong: engines and agents in the field read these bytes.
func frozenBlock(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/v1/block.hex")
	if err != nil {
		t.Fatal(err)
	}
	p, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBlockFrozen(t *testing.T) {
	want := frozenBlock(t)
	if got := exampleBlock.Encode(); !bytes.Equal(got, want) {
		t.Errorf("Encode() =\n% x\nwant\n% x", got, want)
	}
	got, err := DecodeBlock(want)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(exampleBlock, got); d != "" {
		t.Errorf("DecodeBlock(frozen bytes) (-want +got):\n%s", d)
	}
	if got := exampleBlock.Digest(); !bytes.Equal(got[:], want[DigestOffset:DigestOffset+DigestSize]) {
		t.Errorf("Digest() = % x", got)
	}
}

// seal puts the right CRC over a page that a test has changed.
func seal(p []byte) []byte {
	binary.LittleEndian.PutUint32(p[offCRC:], blockCRC(p))
	return p
}

func TestDecodeBlockRefuses(t *testing.T) {
	with := func(off int, bytes ...byte) []byte {
		p := exampleBlock.Encode()
		copy(p[off:], bytes)
		return seal(p)
	}
	for _, tc := range []struct {
		name string
		p    []byte
		want error
	}{
		{"nothing", nil, ErrBlockField},
		{"one byte short", exampleBlock.Encode()[:BlockSize-1], ErrBlockField},
		{"erased", bytes.Repeat([]byte{0xFF}, BlockSize), ErrBlockBlank},
		{"all zero", make([]byte, BlockSize), ErrBlockForeign},
		{"all alike, but not as erased", bytes.Repeat([]byte{0xA5}, BlockSize), ErrBlockForeign},
		{"another magic", with(0, 'E', 'E', 'I', '0'), ErrBlockForeign},
		{"magic alone", append([]byte(blockMagic), bytes.Repeat([]byte{0xFF}, BlockSize-4)...), ErrBlockCRC},
		{"first half of a write", append(exampleBlock.Encode()[:BlockSize/2], bytes.Repeat([]byte{0xFF}, BlockSize/2)...), ErrBlockCRC},
		{"layout 0", with(offVersion, 0), ErrBlockVersion},
		{"layout 2", with(offVersion, 2), ErrBlockVersion},
		{"group 0", with(offGroup, 0, 0), ErrBlockField},
		{"group 15", with(offGroup, 15, 0), ErrBlockField},
		{"group 4094", with(offGroup, 0xFE, 0x0F), ErrBlockField},
		{"from-group 15", with(offFrom, 15, 0), ErrBlockField},
		{"from-group 65535", with(offFrom, 0xFF, 0xFF), ErrBlockField},
		{"unknown flag", with(offFlags, 4), ErrBlockField},
		{"reserved byte 10", with(10, 1), ErrBlockField},
		{"reserved byte 11", with(11, 0x80), ErrBlockField},
		{"spare byte 56", with(offSpare, 1), ErrBlockField},
		{"spare byte 63", with(BlockSize-1, 1), ErrBlockField},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, err := DecodeBlock(tc.p)
			if !errors.Is(err, tc.want) {
				t.Errorf("DecodeBlock = %v; want %v", err, tc.want)
			}
			if b != (Block{}) {
				t.Errorf("DecodeBlock gave %+v beside an error", b)
			}
		})
	}
}

func TestDecodeBlockAccepts(t *testing.T) {
	with := func(f func(*Block)) Block { b := exampleBlock; f(&b); return b }
	for _, tc := range []struct {
		name string
		b    Block
	}{
		{"lowest group", with(func(b *Block) { b.Group = GroupMin })},
		{"highest group", with(func(b *Block) { b.Group = GroupMax })},
		{"free", with(func(b *Block) { b.Group, b.From = GroupFree, GroupFree })},
		{"no VM, no move", with(func(b *Block) { b.VM, b.Move = UUID{}, UUID{} })},
		{"both flags", with(func(b *Block) { b.Flags = FlagTarget | FlagHeld })},
		{"no flag", with(func(b *Block) { b.Flags = 0 })},
		{"first generation of all", with(func(b *Block) { b.Generation = Generation{} })},
		{"last generation of all", with(func(b *Block) { b.Generation = Generation{1<<32 - 1, 1<<32 - 1} })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, err := DecodeBlock(tc.b.Encode()); err != nil || got != tc.b {
				t.Errorf("DecodeBlock(Encode) = %+v, %v; want %+v", got, err, tc.b)
			}
		})
	}
	page := append(exampleBlock.Encode(), 0xDE, 0xAD) // what follows in a longer page is not its business
	if got, err := DecodeBlock(page); err != nil || got != exampleBlock {
		t.Errorf("DecodeBlock of a longer page = %+v, %v", got, err)
	}
}

// No bit that changes, and no byte, makes another block of it.
func TestDecodeBlockBitFlips(t *testing.T) {
	good := exampleBlock.Encode()
	for bit := range BlockSize * 8 {
		p := bytes.Clone(good)
		p[bit/8] ^= 1 << (bit % 8)
		if b, err := DecodeBlock(p); err == nil {
			t.Errorf("bit %d of byte 0x%02x flipped: decoded as %+v", bit%8, bit/8, b)
		}
	}
	for i := range good {
		for x := 1; x < 256; x++ {
			p := bytes.Clone(good)
			p[i] ^= byte(x)
			if b, err := DecodeBlock(p); err == nil {
				t.Errorf("byte 0x%02x changed by 0x%02x: decoded as %+v", i, x, b)
			}
		}
	}
}

func drawGroup(t *rapid.T, label string) uint16 {
	if rapid.Bool().Draw(t, label+" is free") {
		return GroupFree
	}
	return rapid.Uint16Range(GroupMin, GroupMax).Draw(t, label)
}

func drawUUID(t *rapid.T, label string) UUID {
	return UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label))
}

func TestBlockRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Block{
			Flags:      BlockFlags(rapid.Uint8Range(0, 3).Draw(t, "flags")),
			Group:      drawGroup(t, "group"),
			From:       drawGroup(t, "from"),
			Generation: Generation{rapid.Uint32().Draw(t, "incarnation"), rapid.Uint32().Draw(t, "counter")},
			VM:         drawUUID(t, "vm"),
			Move:       drawUUID(t, "move"),
		}
		p := b.Encode()
		if len(p) != BlockSize {
			t.Fatalf("a block of %d bytes", len(p))
		}
		if got, err := DecodeBlock(p); err != nil || got != b {
			t.Fatalf("%+v came back as %+v, %v", b, got, err)
		}
		// Two different blocks never pass for each other by their digests where
		// one field alone differs.
		other := b
		other.Generation.Counter++
		if other.Digest() == b.Digest() {
			t.Fatalf("counters %d and %d have the same digest", b.Generation.Counter, other.Generation.Counter)
		}
	})
}

func FuzzDecodeBlock(f *testing.F) {
	f.Add(exampleBlock.Encode())
	f.Fuzz(func(t *testing.T, p []byte) {
		b, err := DecodeBlock(p)
		if err != nil {
			if b != (Block{}) {
				t.Errorf("%+v beside %v", b, err)
			}
			return
		}
		q := b.Encode()
		if !bytes.Equal(q, p[:BlockSize]) {
			t.Errorf("decoded and encoded again:\n% x\nwas\n% x", q, p[:BlockSize])
		}
		if again, err := DecodeBlock(q); err != nil || again != b {
			t.Errorf("%+v, then %+v, %v", b, again, err)
		}
	})
}
