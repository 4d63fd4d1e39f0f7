package server

import (
	"bytes"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/server/servertest"
)

// What is tested here is frozen as the types are (mgmt/frozen_test.go): a test
// that fails means that the change is taken back.

// TestFrozenCodes: a code keeps its name and its status. New ones are added to
// the file, with the first version that has them.
func TestFrozenCodes(t *testing.T) {
	text, err := os.ReadFile("../testdata/v1/codes.txt")
	if err != nil {
		t.Fatal(err)
	}
	frozen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		code, status, ok := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(status)
		if !ok || err != nil {
			t.Fatalf("line %q", line)
		}
		frozen[code] = true
		p := toProblem(&enclosure.Error{Code: enclosure.Code(code), What: "what"})
		if p.Code != code || p.Status != n || p.Type != "docs/errors.md#"+code || meanings[code].status != n {
			t.Errorf("%s had status %d; now %+v", code, n, p)
		}
	}
	for code := range meanings {
		if !frozen[code] {
			t.Errorf("%s is not in the file", code)
		}
	}
}

// TestFrozenProblem: the bytes of an error of the enclosure, and of one of the
// interface.
func TestFrozenProblem(t *testing.T) {
	s := New(servertest.New(), Options{Keeper: servertest.NewKeeper()})
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&enclosure.Error{Code: enclosure.CodeGenerationChanged, Slot: "gpu0", Where: "i2c-5/0x40", What: "generation is 19, not 17", State: "nothing was changed", Next: "look again", Retry: true},
			`{"type":"docs/errors.md#generation-changed","title":"someone changed it since you looked","status":409,"detail":"generation is 19, not 17 (i2c-5/0x40)","code":"generation-changed","retry":true,"slot":"gpu0","state":"nothing was changed","next":"look again"}` + "\n"},
		{problem(mgmt.CodeNoRoute, "there is no %s", "/v1/<x>"),
			`{"type":"docs/errors.md#no-such-route","title":"no such route","status":404,"detail":"there is no /v1/<x>","code":"no-such-route","retry":false,"state":"nothing was changed"}` + "\n"},
	} {
		w := httptest.NewRecorder()
		s.fail(w, httptest.NewRequest("GET", "/", nil), tt.err)
		if got := w.Body.String(); got != tt.want {
			t.Errorf("%s\nwant\n%s", got, tt.want)
		}
	}
}

// TestFrozenStream: the bytes of an event in a stream, and of a gap.
func TestFrozenStream(t *testing.T) {
	s := &Server{run: exampleRun}
	var got bytes.Buffer
	writeEvent(&got, s.wireEvent(enclosure.Event{Seq: 7, Uptime: 1500 * time.Millisecond, Wall: time.Date(2026, 5, 4, 10, 20, 30, 0, time.UTC), Kind: "fence", Host: "server1", Text: "two\nlines", By: "uid 0"}))
	writeEvent(&got, mgmt.Event{Kind: mgmt.KindGap, Text: "events before this are lost"})
	want := "id: 4f1d2c3b.7\nevent: fence\n" + `data: {"id":"4f1d2c3b.7","uptime_ms":1500,"time":"2026-05-04T10:20:30Z","kind":"fence","host":"server1","text":"two\nlines","by":"uid 0"}` + "\n\n" +
		"event: gap\n" + `data: {"uptime_ms":0,"time":"0001-01-01T00:00:00Z","kind":"gap","text":"events before this are lost"}` + "\n\n"
	if got.String() != want {
		t.Errorf("%s\nwant\n%s", &got, want)
	}
}
