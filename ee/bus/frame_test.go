package bus

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// frozen reads testdata/v1/frames.txt, "name: hex" a line. When a test of
// these bytes fails, the code is wrong.
func frozen(t *testing.T) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/v1/frames.txt")
	if err != nil {
		t.Fatal(err)
	}
	frames := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, digits, ok := strings.Cut(strings.TrimSpace(line), ":")
		p, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if !ok || err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		frames[name] = p
	}
	return frames
}

var allow = cmp.AllowUnexported(request{}, response{})

func TestFramesFrozen(t *testing.T) {
	frames := frozen(t)
	requests := map[string]request{
		"write":         {op: opTransfer, addr: 0x57, w: []byte{0x00, 0x40, 0xAA}},
		"combined read": {op: opTransfer, addr: 0x40, w: []byte{0x01, 0x08}, r: 24},
		"longest read":  {op: opTransfer, addr: 0x50, w: []byte{}, r: 8192},
		"set speed":     {op: opSetSpeed, w: []byte{0, 0, 0, 0x5D, 0x21, 0xDB, 0xA0, 0x00}}, // 400 kHz in microhertz
	}
	for name, q := range requests {
		if got := q.append(nil); !bytes.Equal(got, frames[name]) {
			t.Errorf("%s: % x; want % x", name, got, frames[name])
		}
		got, err := readRequest(bytes.NewReader(frames[name]))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(q, got, allow); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	responses := map[string]struct {
		a response
		r int
	}{
		"done, nothing read": {response{classDone, []byte{}}, 0},
		"done, two read":     {response{classDone, []byte{0x12, 0x34}}, 2},
		"no acknowledge":     {encodeError(ErrNACK), 2},
		"arbitration":        {encodeError(ErrArbitration), 2},
		"stuck":              {encodeError(ErrStuck), 2},
		"wedged":             {encodeError(ErrWedged), 2},
		"I/O error":          {encodeError(errors.New("no power")), 2},
		"final I/O error":    {encodeError(final(errors.New("no adapter"))), 2},
	}
	for name, tc := range responses {
		if got := tc.a.append(nil); !bytes.Equal(got, frames[name]) {
			t.Errorf("%s: % x; want % x", name, got, frames[name])
		}
		got, err := readResponse(bytes.NewReader(frames[name]), tc.r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(tc.a, got, allow); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	if n := len(requests) + len(responses); n != len(frames) {
		t.Errorf("%d frames are frozen, %d are tested", len(frames), n)
	}
}

// A stream of requests is read to its end, however it is cut; what is read
// encodes to the bytes it came from.
func FuzzRequests(f *testing.F) {
	f.Add(request{op: opTransfer, addr: 0x57, w: []byte{0, 1, 2}}.append(nil))
	f.Add(request{op: opSetSpeed, w: make([]byte, 8)}.append(request{op: opTransfer, addr: 0x50, r: 5}.append(nil)))
	f.Add([]byte{1, 1, 0, 0x50, 0xFF, 0xFF, 0, 0})
	f.Fuzz(func(t *testing.T, stream []byte) {
		from := bytes.NewReader(stream)
		for {
			at := len(stream) - from.Len()
			q, err := readRequest(from)
			if err != nil {
				if errors.Is(err, io.EOF) && at != len(stream) {
					t.Errorf("an end inside a request is reported as an end between two: %v", err)
				}
				return
			}
			if got, want := q.append(nil), stream[at:len(stream)-from.Len()]; !bytes.Equal(got, want) {
				t.Fatalf("read and encoded again: % x; was % x", got, want)
			}
			if len(q.w) > maxTransfer || q.r > maxTransfer {
				t.Fatalf("%d bytes to write, %d to read", len(q.w), q.r)
			}
		}
	})
}

func FuzzResponse(f *testing.F) {
	f.Add(response{classDone, []byte{1, 2}}.append(nil), 2)
	f.Add(encodeError(ErrNACK).append(nil), 0)
	f.Add([]byte{1, 6, 0xFF, 0xFF}, 3)
	f.Fuzz(func(t *testing.T, p []byte, r int) {
		a, err := readResponse(bytes.NewReader(p), r)
		if err != nil {
			return
		}
		if got := a.append(nil); !bytes.Equal(got, p[:len(got)]) {
			t.Errorf("read and encoded again: % x; was % x", got, p[:len(got)])
		}
		if e := a.err(); (e == nil) != (a.class == classDone) {
			t.Errorf("class %d gives error %v", a.class, e)
		} else if e != nil {
			if b := encodeError(e); b.class != a.class {
				t.Errorf("class %d of %v encodes as %d", a.class, e, b.class)
			}
		}
		if a.class == classDone && len(a.data) != r {
			t.Errorf("%d bytes read, asked for %d", len(a.data), r)
		}
	})
}
