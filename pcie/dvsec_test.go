package pcie

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var example = DVSEC{
	Vendor:      0x1033,
	Flags:       DVSECValid | DVSECTarget | DVSECPowerKept | DVSECGuard,
	Incarnation: 0x9f3c2a10,
	Counter:     18,
	From:        101,
	Group:       102,
	Engine:      [6]byte{0x8c, 0xdf, 0x9d, 0x00, 0x01, 0x02},
	Resets:      4,
}

// frozen returns the bytes of layout 1. When this test fails, the code is
// wrong: hosts in the field read these bytes.
func frozen(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/v1/dvsec.hex")
	if err != nil {
		t.Fatal(err)
	}
	p, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDVSECFrozen(t *testing.T) {
	want := frozen(t)
	if got := example.Encode(); !bytes.Equal(got, want) {
		t.Errorf("Encode() =\n% x\nwant\n% x", got, want)
	}
	got, err := DecodeDVSEC(want)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(example, got); d != "" {
		t.Errorf("DecodeDVSEC(frozen bytes) (-want +got):\n%s", d)
	}
}

// seal puts the right CRC over a capability that a test has changed.
func seal(p []byte) []byte {
	binary.LittleEndian.PutUint32(p[dvsecCRC:], crcOfDVSEC(p))
	return p
}

func TestDecodeDVSECRefuses(t *testing.T) {
	with := func(off int, bytes ...byte) []byte {
		p := example.Encode()
		copy(p[off:], bytes)
		return seal(p)
	}
	for _, tc := range []struct {
		name string
		p    []byte
		want error
	}{
		{"nothing", nil, ErrDVSECLength},
		{"one byte short", example.Encode()[:DVSECSize-1], ErrDVSECLength},
		{"all ones", bytes.Repeat([]byte{0xFF}, DVSECSize), ErrGone},
		{"all zero", make([]byte, DVSECSize), ErrNoDVSEC},
		{"another capability", with(dvsecHeader, 0x01, 0x00), ErrNoDVSEC},
		{"another DVSEC", with(dvsecHeader2, 0xE2), ErrNoDVSEC},
		{"layout 2", with(dvsecHeader1+2, 0x82), ErrDVSECVersion},
		{"length 24", with(dvsecHeader1+2, 0x81, 0x01), ErrDVSECLength},
		{"unknown flag", with(dvsecFlags, 0x01, 0x80), ErrDVSECField},
		{"reserved bytes", with(dvsecReserved, 0x01), ErrDVSECField},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, err := DecodeDVSEC(tc.p)
			if !errors.Is(err, tc.want) {
				t.Errorf("DecodeDVSEC = %v; want %v", err, tc.want)
			}
			if d != (DVSEC{}) {
				t.Errorf("DecodeDVSEC gave %+v beside an error", d)
			}
		})
	}
}

// Any one bit that changes on the way turns the flag off, except in the first
// header, whose next pointer is not ours.
func TestDecodeDVSECBitFlips(t *testing.T) {
	good := example.Encode()
	for bit := dvsecHeader1 * 8; bit < DVSECSize*8; bit++ {
		p := bytes.Clone(good)
		p[bit/8] ^= 1 << (bit % 8)
		if d, err := DecodeDVSEC(p); err == nil {
			t.Errorf("bit %d of byte 0x%02x flipped: decoded as %+v", bit%8, bit/8, d)
		}
	}
}

func TestStable(t *testing.T) {
	change := func(f func(*DVSEC)) DVSEC { d := example; f(&d); return d }
	busy := change(func(d *DVSEC) { d.Flags |= DVSECBusy })
	invalid := change(func(d *DVSEC) { d.Flags &^= DVSECValid })
	for _, tc := range []struct {
		name string
		a, b DVSEC
		want bool
	}{
		{"same twice", example, example, true},
		{"busy", busy, busy, false},
		{"became busy", example, busy, false},
		{"not valid", invalid, invalid, false},
		{"zero", DVSEC{}, DVSEC{}, false},
		{"counter", example, change(func(d *DVSEC) { d.Counter++ }), false},
		{"incarnation", example, change(func(d *DVSEC) { d.Incarnation++ }), false},
		{"reset between", example, change(func(d *DVSEC) { d.Resets++ }), false},
		{"engine", example, change(func(d *DVSEC) { d.Engine[5]++ }), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Stable(tc.a, tc.b); got != tc.want {
				t.Errorf("Stable = %v; want %v", got, tc.want)
			}
			if got := Stable(tc.b, tc.a); got != tc.want {
				t.Errorf("Stable, the other way round = %v; want %v", got, tc.want)
			}
		})
	}
}

// configWith returns 4096 bytes of config space with these capabilities in its
// extended part, linked in the order given.
func configWith(caps map[int][]byte, order ...int) []byte {
	c := make([]byte, configSize)
	binary.LittleEndian.PutUint32(c, 0x0001<<16|0x1033)
	for i, off := range order {
		copy(c[off:], caps[off])
		next := 0
		if i+1 < len(order) {
			next = order[i+1]
		}
		PutNext(c[off:], uint16(next))
	}
	return c
}

func TestFindDVSEC(t *testing.T) {
	aer := []byte{0x01, 0x00, 0x02, 0x00, 1, 2, 3, 4}
	foreign := example
	foreign.Vendor = 0x8086
	caps := map[int][]byte{0x100: aer, 0x140: foreign.Encode(), 0x200: example.Encode(), configSize - DVSECSize: example.Encode()}

	loop := configWith(caps, 0x100, 0x140)
	PutNext(loop[0x140:], 0x100)
	self := configWith(caps, 0x100)
	PutNext(self[0x100:], 0x100)
	low := configWith(caps, 0x100)
	PutNext(low[0x100:], 0x0FC)
	gone := bytes.Repeat([]byte{0xFF}, configSize)
	goneBehind := configWith(caps, 0x100)
	PutNext(goneBehind[0x100:], 0x300)
	copy(goneBehind[0x300:], []byte{0xFF, 0xFF, 0xFF, 0xFF})
	hanging := configWith(map[int][]byte{configSize - 12: example.Encode()[:12]}, configSize-12)
	copy(hanging[0x100:], aer)
	PutNext(hanging[0x100:], configSize-12)
	short := configWith(caps, 0x200)
	copy(short[0x100:], aer)
	PutNext(short[0x100:], 0x200)
	binary.LittleEndian.PutUint32(short[0x204:], 0x1033|1<<16|8<<20)

	for _, tc := range []struct {
		name   string
		config []byte
		off    int
		err    error
	}{
		{"last of three", configWith(caps, 0x100, 0x140, 0x200), 0x200, nil},
		{"backwards", configWith(caps, 0x100, 0x200, 0x140), 0x200, nil},
		{"first", configWith(map[int][]byte{0x100: example.Encode()}, 0x100), 0x100, nil},
		{"at the very end", configWith(caps, 0x100, configSize-DVSECSize), configSize - DVSECSize, nil},
		{"only others", configWith(caps, 0x100, 0x140), 0, ErrNoDVSEC},
		{"empty list", configWith(nil), 0, ErrNoDVSEC},
		{"unprivileged read", configWith(caps, 0x100)[:64], 0, ErrShortConfig},
		{"conventional function", configWith(caps, 0x100)[:256], 0, ErrShortConfig},
		{"cut before the entry", configWith(caps, 0x100, 0x200)[:0x200], 0, ErrShortConfig},
		{"cut inside its header", configWith(caps, 0x100, 0x200)[:0x206], 0, ErrShortConfig},
		{"nothing read", nil, 0, ErrShortConfig},
		{"device gone", gone, 0, ErrGone},
		{"device went while it was read", goneBehind, 0, ErrGone},
		{"loop", loop, 0, ErrConfigLoop},
		{"points to itself", self, 0, ErrConfigLoop},
		{"points below 0x100", low, 0, ErrConfigLoop},
		{"over the end", hanging, 0, ErrConfigLoop},
		{"length below its headers", short, 0, ErrConfigLoop},
	} {
		t.Run(tc.name, func(t *testing.T) {
			off, err := FindDVSEC(tc.config, 0x1033, DVSECID)
			if off != tc.off || !errors.Is(err, tc.err) {
				t.Errorf("FindDVSEC = 0x%03x, %v; want 0x%03x, %v", off, err, tc.off, tc.err)
			}
		})
	}
}

func TestDVSECFlagsString(t *testing.T) {
	for f, want := range map[DVSECFlags]string{
		0:                                 "none",
		DVSECValid | DVSECTarget:          "valid|target",
		DVSECBusy | DVSECResetSeen | 1<<9: "busy|reset-seen|0x0200",
		dvsecAllFlags:                     "valid|target|power-kept|busy|guard|quiesced|reset-seen",
	} {
		if got := f.String(); got != want {
			t.Errorf("DVSECFlags(0x%04x).String() = %q; want %q", uint16(f), got, want)
		}
	}
}

// Every decoder of other parties' bytes: no panic, and what decodes encodes
// to the same bytes (but for the next pointer, which is not ours).
func FuzzDVSEC(f *testing.F) {
	f.Add(example.Encode())
	f.Add(DVSEC{}.Encode())
	f.Add([]byte("not a capability at all, though long enough for one"))
	f.Fuzz(func(t *testing.T, p []byte) {
		d, err := DecodeDVSEC(p)
		if err != nil {
			return
		}
		q := d.Encode()
		PutNext(q, uint16(binary.LittleEndian.Uint32(p)>>20))
		if !bytes.Equal(q[dvsecHeader1:], p[dvsecHeader1:DVSECSize]) {
			t.Errorf("decoded and encoded again:\n% x\nfrom\n% x", q, p)
		}
		if again, err := DecodeDVSEC(q); err != nil || again != d {
			t.Errorf("decode(encode(%+v)) = %+v, %v", d, again, err)
		}
	})
}

func FuzzFindDVSEC(f *testing.F) {
	f.Add(configWith(map[int][]byte{0x100: example.Encode()}, 0x100)[:0x180])
	f.Add(bytes.Repeat([]byte{0xFF}, 0x110))
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, config []byte) {
		off, err := FindDVSEC(config, 0x1033, DVSECID)
		if err != nil {
			return
		}
		le := binary.LittleEndian
		if off < extendedConfig || off+int(le.Uint16(config[off+6:])>>4) > len(config) {
			t.Fatalf("FindDVSEC = 0x%x in %d bytes", off, len(config))
		}
		if le.Uint16(config[off:]) != dvsecExtID || le.Uint16(config[off+4:]) != 0x1033 || le.Uint16(config[off+8:]) != DVSECID {
			t.Fatalf("FindDVSEC = 0x%x, where there is % x", off, config[off:off+10])
		}
	})
}
