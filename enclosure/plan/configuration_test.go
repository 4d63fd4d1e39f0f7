package plan

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConfiguration(t *testing.T) {
	for _, tt := range []struct {
		c    Configuration
		size int
	}{
		{Configuration{Version: 7, Packed: []byte("packed text")}, 16},
		{Configuration{Version: 1<<32 - 1, Packed: bytes.Repeat([]byte{0}, 5000)}, 5005},
		// Key and value fit one page of 64 bytes.
		{Configuration{Version: 3, Sum: sha256.Sum256([]byte("file"))}, 37},
		{Configuration{}, 37},
	} {
		p := tt.c.Encode()
		if len(p) != tt.size {
			t.Errorf("%d bytes; want %d", len(p), tt.size)
		}
		got, err := DecodeConfiguration(p)
		if diff := cmp.Diff(tt.c, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	for _, p := range [][]byte{nil, {1}, {1, 0, 0, 0, 0}, {2, 1, 0, 0, 0}, append([]byte{2, 1, 0, 0, 0}, make([]byte, 33)...), {0, 1, 0, 0, 0, 1}, {3, 1, 0, 0, 0, 1}} {
		if c, err := DecodeConfiguration(p); !errors.Is(err, ErrRecord) || c.Packed != nil {
			t.Errorf("%x: %+v, %v", p, c, err)
		}
	}
}

// TestFindConfiguration: what was there and is not, or is not that, is no
// reason to begin with the seed.
func TestFindConfiguration(t *testing.T) {
	text := func(version uint32) []byte { return Configuration{Version: version, Packed: []byte("x")}.Encode() }
	for _, tt := range []struct {
		name        string
		value, mark []byte
		version     uint32
		found       bool
		err         string
	}{
		{"nothing", nil, nil, 0, false, ""},
		{"both", text(4), EncodeConfigMark(4), 4, true, ""},
		{"power went before the mark", text(5), EncodeConfigMark(4), 5, true, ""},
		{"the first, and power went before the mark", text(1), nil, 1, true, ""},
		{"the record is lost", nil, EncodeConfigMark(4), 4, false, "version 4 was lost: its record is not in the store any more"},
		{"an older one is back", text(3), EncodeConfigMark(4), 4, false, "version 4 was lost: the store has an older one, 3"},
		{"a form of the future", append([]byte{9}, text(6)[1:]...), EncodeConfigMark(6), 6, false, "record of an unknown form: configuration of form 9, 6 bytes"},
		{"a bad mark", text(6), []byte{1}, 0, false, "record of an unknown form: mark of a configuration of 1 bytes"},
	} {
		c, found, err := FindConfiguration(tt.value, tt.mark)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if c.Version != tt.version || found != tt.found || text != tt.err || found != (c.Packed != nil) {
			t.Errorf("%s: version %d, found %v, %q, packed %v; want %d, %v, %q", tt.name, c.Version, found, text, c.Packed, tt.version, tt.found, tt.err)
		}
	}
}

func FuzzConfiguration(f *testing.F) {
	f.Add(Configuration{Version: 7, Packed: []byte("packed text")}.Encode())
	f.Add(Configuration{Version: 3}.Encode())
	f.Fuzz(func(t *testing.T, p []byte) {
		c, err := DecodeConfiguration(p)
		if err == nil && !bytes.Equal(c.Encode(), p) {
			t.Errorf("%x encodes as %x", p, c.Encode())
		}
	})
}
