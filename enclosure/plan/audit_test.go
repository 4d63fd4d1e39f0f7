package plan

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"baton/ee"
)

func anAudit() Audit {
	return Audit{
		Seq: 17, Run: 3, Uptime: 262155900 * time.Millisecond, Wall: time.Date(2026, 11, 30, 19, 12, 8, 0, time.UTC),
		Kind: "move", Slots: 0b101, Host: "server2", VM: "train1", Move: ee.UUID{15: 7}, By: "root", Text: "train1: [gpu0 gpu2] to server2: done",
	}
}

func TestAuditBytes(t *testing.T) {
	// Head, then wall time, slots and move, then the words.
	const want = "010b" + "11000000" + "03000000" + "7c2ea00f00" + "88ca0d6b" + "0500000000000000" + "00000000000000000000000000000007" +
		"046d6f7665" + "00" + "0773657276657232" + "06747261696e31" + "04726f6f74" +
		"24" + "747261696e313a205b6770753020677075325d20746f20736572766572323a20646f6e65"
	a := anAudit()
	got := hex.EncodeToString(a.Encode())
	if got != want {
		t.Errorf("an audit record is\n%s; frozen as\n%s", got, want)
	}
	if back, err := DecodeAudit(a.Encode()); err != nil || back != a {
		t.Errorf("came back as %+v, %v", back, err)
	}
}

func TestAuditFits(t *testing.T) {
	long := strings.Repeat("€", 300)
	for name, a := range map[string]Audit{
		"long":           {Seq: 1, Kind: long, Code: long, Host: long, VM: long, By: long, Text: long, Slots: 1, Count: 2, Move: ee.UUID{1}, Wall: time.Now()},
		"control":        {Seq: 1, Text: "a\x00b\nc\x7f\xff"},
		"clock not set":  {Seq: 1, Wall: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"another zone":   {Seq: 1, Wall: time.Date(2027, 1, 1, 0, 0, 0, 7, time.FixedZone("x", 3600))},
		"after its time": {Seq: 1, Wall: time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)},
		"for ever":       {Seq: 1, Uptime: 1<<63 - 1},
		"negative":       {Seq: 1, Uptime: -1},
	} {
		f := a.Fit()
		p := f.Encode()
		if back, err := DecodeAudit(p); err != nil || back != f || len(p) > AuditSize {
			t.Errorf("%s: %d bytes came back as %+v, %v; want %+v", name, len(p), back, err, f)
		}
	}
	for _, tt := range []struct{ text, want string }{
		{"short", "short"},
		{strings.Repeat("x", AuditText), strings.Repeat("x", AuditText)},
		{strings.Repeat("x", AuditText+1), strings.Repeat("x", AuditText-3) + "..."},
		{"gpu0 \u2192 server2", "gpu0 ? server2"},
		{"line\nline", "line?line"},
	} {
		if got := (Audit{Text: tt.text}).Fit().Text; got != tt.want {
			t.Errorf("text %q fits as %q; want %q", tt.text, got, tt.want)
		}
	}
	if got := (Audit{Wall: time.Date(1970, 1, 1, 0, 0, 3, 0, time.UTC)}).Fit().Wall; !got.IsZero() {
		t.Errorf("a clock that was not set is kept as %v", got)
	}
}

func TestAuditRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := Audit{
			Seq: rapid.Uint32Min(1).Draw(t, "seq"), Run: rapid.Uint32().Draw(t, "run"), Uptime: time.Duration(rapid.Int64().Draw(t, "uptime")),
			Kind: rapid.String().Draw(t, "kind"), Code: rapid.String().Draw(t, "code"), Slots: SlotSet(rapid.Uint64().Draw(t, "slots")),
			Host: rapid.String().Draw(t, "host"), VM: rapid.String().Draw(t, "vm"), Move: uuid(t, "move"), By: rapid.String().Draw(t, "by"),
			Count: rapid.Uint32().Draw(t, "count"), Text: rapid.String().Draw(t, "text"),
		}
		if rapid.Bool().Draw(t, "clock") {
			a.Wall = time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "wall"), 0)
		}
		f := a.Fit()
		p := f.Encode()
		if back, err := DecodeAudit(p); err != nil || back != f || len(p) > AuditSize {
			t.Fatalf("%d bytes came back as %+v, %v; want %+v", len(p), back, err, f)
		}
	})
}

func FuzzDecodeAudit(f *testing.F) {
	a := anAudit()
	f.Add(a.Encode())
	f.Add(Audit{Seq: 1, Kind: "refused", Code: "busy", Count: 9}.Encode())
	f.Add(a.Encode()[:30])
	f.Add(append(a.Encode(), 0))
	f.Add([]byte{auditForm})
	f.Fuzz(func(t *testing.T, p []byte) {
		a, err := DecodeAudit(p)
		if err != nil {
			return
		}
		if again := a.Encode(); !bytes.Equal(again, p) {
			t.Fatalf("%x decodes to %+v, which encodes as %x", p, a, again)
		}
	})
}
