package nvm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/bits"
	"testing"
)

// TestPageBytes freezes version 1 of the format: what is on media in the field.
// If it fails, the change must go, or be a new version. The CRCs were computed
// apart from this code, bit by bit.
func TestPageBytes(t *testing.T) {
	page := make([]byte, 64)
	records := appendRecord(appendRecord(nil, Record{"gpu0", []byte{17, 0}}), Record{"old", nil})
	encodePage(page, pageHead{kind: kindData, seq: 0x01020304, part: 0, parts: 1, next: 0x0123}, records, dataSeed(0xba70))
	const data = "2d" + "04030201" + "00" + "01" + "2301" +
		"0402" + "67707530" + "1100" + "03fe" + "6f6c64" +
		"0000000000000000000000000000000000000000000000000000000000000000000000000000" + "7e406582"
	if got := hex.EncodeToString(page); got != data {
		t.Errorf("data page\n got %s\nwant %s", got, data)
	}
	encodeFormat(page, formatRecord{kind: kindFormed, version: 1, page: 64, pages: 512, incarnation: 0xba70})
	const formed = "b2" + "4261746f6e4e564d" + "01" + "00" + "4000" + "00020000" + "00000000" + "70ba0000" +
		"00000000" + "00000000" + "000000000000000000000000000000000000000000000000000000" + "40698709"
	if got := hex.EncodeToString(page); got != formed {
		t.Errorf("format record\n got %s\nwant %s", got, formed)
	}
	encodeFormat(page, formatRecord{kind: kindSector, version: 1, formed: true, page: 64, pages: 72, erase: 512, incarnation: 1, erases: 3, turn: 20})
	const block = "8e" + "4261746f6e4e564d" + "01" + "01" + "4000" + "48000000" + "00020000" + "01000000" +
		"03000000" + "14000000" + "000000000000000000000000000000000000000000000000000000" + "121d9169"
	if got := hex.EncodeToString(page); got != block {
		t.Errorf("block's record\n got %s\nwant %s", got, block)
	}
}

func TestKindsAreFarApart(t *testing.T) {
	kinds := []byte{0x00, 0xff, kindData, kindSpare, kindFormed, kindForming, kindSector}
	for i, a := range kinds {
		for _, b := range kinds[:i] {
			if n := bits.OnesCount8(a ^ b); n < 4 {
				t.Errorf("%#02x and %#02x differ in %d bits", a, b, n)
			}
		}
	}
}

// TestIncarnations checks what keeps stores apart: no page of one verifies in
// another.
func TestIncarnations(t *testing.T) {
	page := make([]byte, 64)
	for _, a := range []uint32{0, 1, 2, 0xba70, 0xffffffff} {
		encodePage(page, pageHead{kind: kindData, seq: 1, parts: 1}, []byte("payload"), dataSeed(a))
		for _, b := range []uint32{0, 1, 2, 0xba70, 0xffffffff} {
			if _, ok := decodePage(page, dataSeed(b)); ok != (a == b) {
				t.Errorf("page of %#x decoded with %#x: %v", a, b, ok)
			}
		}
		if _, ok := decodeFormat(page); ok {
			t.Error("a data page passes for a format record")
		}
	}
}

func TestOnePageRecord(t *testing.T) {
	// What the design counts on: key of 5 bytes, value of 44, one page of 64.
	if n := len(appendRecord(nil, Record{"abcde", make([]byte, 44)})); n != 64-overhead {
		t.Errorf("%d bytes; a page of 64 has %d", n, 64-overhead)
	}
}

func TestRecordErrors(t *testing.T) {
	for name, b := range map[string][]byte{
		"no value length":        {3},
		"key beyond the end":     {3, 0, 'k'},
		"value beyond the end":   {1, 9, 'k', 1, 2},
		"long without length":    {1, 0xff, 1},
		"long beyond the end":    {1, 0xff, 0xff, 0, 'k'},
		"long that is not":       append([]byte{1, 0xff, 3, 0, 'k'}, 1, 2, 3),
		"something after it all": {1, 0, 'k', 0, 0, 7},
	} {
		var err error
		for off, more := 0, true; more && err == nil; {
			var r recordSpan
			r, more, err = nextRecord(b, off)
			off = r.end
		}
		if !errors.Is(err, errRecords) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzPage decodes anything, and encodes again what decodes: it must be the
// same bytes.
func FuzzPage(f *testing.F) {
	page := make([]byte, 64)
	encodePage(page, pageHead{kind: kindData, seq: 7, part: 1, parts: 3, next: 9}, []byte("\x01\x02kvv"), dataSeed(0))
	f.Add(bytes.Clone(page))
	encodePage(page, pageHead{kind: kindSpare, parts: 1, next: noPage}, nil, dataSeed(0))
	f.Add(bytes.Clone(page))
	encodeFormat(page, formatRecord{kind: kindFormed, version: 1, page: 64, pages: 512, incarnation: 1})
	f.Add(bytes.Clone(page))
	encodeFormat(page, formatRecord{kind: kindSector, version: 1, formed: true, page: 64, pages: 72, erase: 512, erases: 3, turn: 20})
	f.Add(bytes.Clone(page))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) < minPage {
			return
		}
		// As it is, and with the CRC made right, or hardly anything decodes.
		for _, seed := range []uint32{0, dataSeed(0), crcSeed} {
			p := bytes.Clone(p)
			if seed != 0 {
				sealPage(p, seed)
			}
			got := make([]byte, len(p))
			if h, ok := decodePage(p, dataSeed(0)); ok {
				encodePage(got, h, pagePayload(p), dataSeed(0))
				if !bytes.Equal(got, p) {
					t.Errorf("page % x\nbecomes % x", p, got)
				}
			}
			if r, ok := decodeFormat(p); ok && r.version == formatVersion {
				encodeFormat(got, r)
				if !bytes.Equal(got, p) {
					t.Errorf("format record % x\nbecomes % x", p, got)
				}
			}
			var again []byte
			b := pagePayload(p)
			off := 0
			for {
				r, more, err := nextRecord(b, off)
				if err != nil {
					return
				}
				if !more {
					break
				}
				rec := Record{Key: string(b[r.key:r.value])}
				if !r.deleted {
					rec.Value = append([]byte{}, b[r.value:r.end]...)
				}
				again = appendRecord(again, rec)
				off = r.end
			}
			if !bytes.Equal(again, b[:off]) || !allZero(b[off:]) {
				t.Errorf("records % x\nbecome % x", b, again)
			}
		}
	})
}
