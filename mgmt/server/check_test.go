package server

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/server/servertest"
)

// asked is what a caller is answered.
func asked(t *testing.T, s *Server, peer Peer, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	s.ops, s.streams = t.Context(), t.Context()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", mgmt.MediaTypeJSON)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), peerKey{}, peer)))
	return w
}

// TestConfigHidesPassword: who may not change the configuration sees all of it
// but what a password could be guessed from.
func TestConfigHidesPassword(t *testing.T) {
	const hash = "pbkdf2-sha256$4096$c2FsdHNhbHRzYWx0$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	k := servertest.NewKeeper()
	text := strings.Replace(servertest.ConfigText, "{", `{ "console": {"password": "`+hash+`", "lock_after": "5m"},`, 1)
	if _, err := k.Apply(t.Context(), mgmt.ConfigRequest{Text: text}, ""); err != nil {
		t.Fatal(err)
	}
	s := New(servertest.New(), Options{AdminUID: 990, Keeper: k})
	for uid, shown := range map[uint32]bool{0: true, 990: true, 1000: false} {
		w := asked(t, s, Peer{Known: true, UID: uid}, "GET", "/v1/config", "")
		var c mgmt.Config
		if err := json.Unmarshal(w.Body.Bytes(), &c); err != nil || w.Code != 200 {
			t.Fatalf("uid %d: %d %s", uid, w.Code, w.Body)
		}
		if got := strings.Contains(c.Text, "AAAA"); got != shown || !strings.Contains(c.Text, `"lock_after": "5m"`) || !strings.Contains(c.Text, "train1") {
			t.Errorf("uid %d: the hash is shown: %v, want %v\n%s", uid, got, shown, c.Text)
		}
	}
}

// TestCheckLines: the agent's own come first, and others wait for their turn.
func TestCheckLines(t *testing.T) {
	f := servertest.New()
	f.Checks = []enclosure.CheckLine{{Area: "engine", Subject: "gpu0", Level: enclosure.CheckFail, Text: "dead", Next: "seat it"}}
	s := New(f, Options{Keeper: servertest.NewKeeper(), Check: func(context.Context) []enclosure.CheckLine {
		return []enclosure.CheckLine{{Area: "clock", Subject: "clock", Level: enclosure.CheckWarn, Text: "not set"}}
	}})
	w := asked(t, s, Peer{Known: true}, "POST", "/v1/check", "")
	const want = `{"lines":[{"area":"clock","subject":"clock","level":"warn","text":"not set"},` +
		`{"area":"engine","subject":"gpu0","level":"fail","text":"dead","next":"seat it"}]}`
	if got := strings.TrimSpace(w.Body.String()); w.Code != 200 || got != want {
		t.Errorf("%d %s; want %s", w.Code, got, want)
	}
}

// TestConsoleNotes: what happens at the console is heard; passwords that are
// wrong are refusals, of which many are one record.
func TestConsoleNotes(t *testing.T) {
	f := servertest.New()
	s := New(f, Options{Keeper: servertest.NewKeeper()})
	for range 3 {
		if w := asked(t, s, Peer{Known: true}, "POST", "/v1/console", `{"what":"wrong-password"}`); w.Code != 204 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if w := asked(t, s, Peer{Known: true}, "POST", "/v1/console", `{"what":"unlocked"}`); w.Code != 204 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	records, _ := f.Audit()
	last := records[len(records)-1]
	if last.Kind != "refused" || last.By != "console" || last.Code != "forbidden" || last.Count != 3 {
		t.Errorf("three wrong passwords are recorded as %+v", last)
	}
	events, _ := f.Events(0)
	if e := events[len(events)-1]; e.Kind != "console" || !strings.Contains(e.Text, "unlocked") || e.By != "console" {
		t.Errorf("the last event is %+v", e)
	}
	if w := asked(t, s, Peer{Known: true}, "POST", "/v1/console", `{"what":"rm -rf"}`); w.Code != 400 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
