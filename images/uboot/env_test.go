package uboot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestDecode(t *testing.T) {
	whole, err := Encode(Env{"a": "1", "b": ""}, Active, 16)
	if err != nil {
		t.Fatal(err)
	}
	if want := []byte("\x01a=1\x00b=\x00\x00\xff\xff\xff"); !bytes.Equal(whole[4:], want) {
		t.Errorf("Encode = %q; want %q behind the CRC", whole, want)
	}
	sealed := func(vars string) []byte {
		p, _ := Encode(Env{}, 0, HeaderSize+len(vars))
		copy(p[HeaderSize:], vars)
		return reseal(p)
	}
	for _, tt := range []struct {
		name string
		copy []byte
		want Env
		err  error
	}{
		{"whole", whole, Env{"a": "1", "b": ""}, nil},
		{"last counts", sealed("a=1\x00a=2\x00\x00"), Env{"a": "2"}, nil},
		{"no equals sign", sealed("a\x00b=2\x00\x00"), Env{"b": "2"}, nil},
		{"no name", sealed("=a\x00b=2\x00\x00"), Env{"b": "2"}, nil},
		{"backslashes stay", sealed("a=\\\\x\x00\x00"), Env{"a": "\\\\x"}, nil},
		{"equals sign in a value", sealed("a=b=c\x00\x00"), Env{"a": "b=c"}, nil},
		{"behind the end", sealed("a=1\x00\x00b=2\x00"), Env{"a": "1"}, nil},
		{"without an end", sealed("a=1"), Env{"a": "1"}, nil},
		{"empty", sealed("\x00"), Env{}, nil},
		{"erased", bytes.Repeat([]byte{0xff}, 64), nil, ErrCRC},
		{"zeros", make([]byte, 64), nil, ErrCRC},
		{"short", make([]byte, HeaderSize), nil, ErrCRC},
		{"nothing", nil, nil, ErrCRC},
	} {
		got, _, err := Decode(tt.copy)
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: Decode = %v; want %v", tt.name, err, tt.err)
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: Decode: -want +got\n%s", tt.name, d)
		}
	}
}

// TestGolden has bytes that mkenvimage(1) of u-boot-tools 2023.01 has made:
//
//	printf 'baton_bank=a\nbootlimit=1\n' | mkenvimage -r -s 48 -o - -
func TestGolden(t *testing.T) {
	want := "\xc2\xaf\xeb\x15\x01baton_bank=a\x00bootlimit=1\x00\x00" + strings.Repeat("\xff", 17)
	got, err := Encode(Env{"baton_bank": "a", "bootlimit": "1"}, Active, 48)
	if err != nil || string(got) != want {
		t.Errorf("Encode = %q, %v; want %q", got, err, want)
	}
}

func TestEncodeErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  Env
		want error
	}{
		{"fits", Env{"a": strings.Repeat("x", 7)}, nil},
		{"one too many", Env{"a": strings.Repeat("x", 8)}, ErrFull},
		{"no name", Env{"": "x"}, ErrName},
		{"equals sign in a name", Env{"a=": "x"}, ErrName},
		{"zero in a value", Env{"a": "\x00"}, ErrName},
		{"zero in a name", Env{"\x00": "a"}, ErrName},
	} {
		if _, err := Encode(tt.env, Active, 16); !errors.Is(err, tt.want) {
			t.Errorf("%s: Encode = %v; want %v", tt.name, err, tt.want)
		}
	}
}

func TestChoose(t *testing.T) {
	both, none := [2]bool{true, true}, [2]bool{}
	for _, tt := range []struct {
		ok    [2]bool
		flags [2]byte
		want  int
	}{
		{none, [2]byte{Active, Active}, -1},
		{[2]bool{true, false}, [2]byte{Obsolete, Active}, 0},
		{[2]bool{false, true}, [2]byte{Active, Obsolete}, 1},
		{both, [2]byte{Active, Obsolete}, 0},
		{both, [2]byte{Obsolete, Active}, 1},
		{both, [2]byte{Active, Active}, 0},
		{both, [2]byte{Obsolete, Obsolete}, 0},
		{both, [2]byte{255, 0}, 1},
		{both, [2]byte{0, 255}, 0},
		{both, [2]byte{255, Active}, 0},
		{both, [2]byte{Active, 255}, 1},
	} {
		if got := Choose(tt.ok, tt.flags); got != tt.want {
			t.Errorf("Choose(%v, %v) = %d; want %d", tt.ok, tt.flags, got, tt.want)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z_.#]{1,8}`)
		value := rapid.StringMatching(`[ -~=\\]{0,12}`)
		want := Env(rapid.MapOfN(name, value, 0, 10).Draw(t, "vars"))
		flag := rapid.Byte().Draw(t, "flag")
		p, err := Encode(want, flag, 512)
		if err != nil {
			t.Fatal(err)
		}
		got, f, err := Decode(p)
		if err != nil || f != flag || !cmp.Equal(want, got) {
			t.Fatalf("Decode(Encode(%v, %d)) = %v, %d, %v", want, flag, got, f, err)
		}
		// Every flipped bit but those of the flag shows.
		bit := rapid.IntRange(0, len(p)*8-1).Draw(t, "bit")
		p[bit/8] ^= 1 << (bit % 8)
		if _, _, err := Decode(p); (err == nil) != (bit/8 == FlagOffset) {
			t.Fatalf("bit %d flipped: Decode = %v", bit, err)
		}
	})
}

// reseal gives a copy the CRC of what is in it.
func reseal(p []byte) []byte {
	q := bytes.Clone(p)
	binary.LittleEndian.PutUint32(q, crc32.ChecksumIEEE(q[HeaderSize:]))
	return q
}

func FuzzDecode(f *testing.F) {
	p, _ := Encode(Env{"a": "1", "b": "2"}, Active, 32)
	f.Add(p)
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 20))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) < HeaderSize+1 {
			if _, _, err := Decode(p); err == nil {
				t.Fatalf("Decode of %d bytes: no error", len(p))
			}
			return
		}
		// The fuzzer does not find CRCs.
		p = reseal(p)
		e, flag, err := Decode(p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := Encode(e, flag, len(p)+2) // ends that were missing
		if err != nil {
			t.Fatal(err)
		}
		again, flag2, err := Decode(q)
		if err != nil || flag2 != flag || !cmp.Equal(e, again) {
			t.Fatalf("%v became %v, %v", e, again, err)
		}
	})
}
