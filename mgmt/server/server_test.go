package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/server/servertest"

	"github.com/google/go-cmp/cmp"
)

const id1 = "0b5f6a52-3a55-4b0e-9d8a-1f2e3d4c5b6a"

// start serves a fake on a socket until the test ends.
func start(t *testing.T, f *servertest.Fake) (socket string, c *mgmt.Client) {
	t.Helper()
	return serveBackend(t, f, servertest.NewKeeper())
}

// serveBackend is start with any enclosure and configuration.
func serveBackend(t *testing.T, b Backend, k Keeper) (socket string, c *mgmt.Client) {
	t.Helper()
	servertest.NoLeaks(t)
	socket = filepath.Join(t.TempDir(), "s")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	s := New(b, Options{Agent: "1.2.3", AdminUID: uint32(os.Geteuid()), Keeper: k})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("socket is still there: %v", err)
		}
	})
	c = mgmt.Dial(socket)
	t.Cleanup(c.Close)
	return socket, c
}

// raw sends text as it is and returns the answer.
func raw(t *testing.T, socket, text string) (*http.Response, mgmt.Problem) {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer shut(c)
	go func() { _, _ = io.WriteString(c, text) }() // a body that is too large is not read to its end
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("answer: %v", err)
	}
	defer resp.Body.Close()
	var p mgmt.Problem
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode >= 300 {
		if err := json.Unmarshal(body, &p); err != nil {
			t.Fatalf("answer %s %q: %v", resp.Status, body, err)
		}
	}
	return resp, p
}

// shut closes what nothing is expected of any more.
func shut(c io.Closer) { c.Close() }

func request(method, path, contentType, body string) string {
	s := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: baton\r\nConnection: close\r\n", method, path)
	if contentType != "" {
		s += "Content-Type: " + contentType + "\r\n"
	}
	return s + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
}

// TestBadInput: each is one clear error with a code, nothing happens, and the
// agent goes on serving.
func TestBadInput(t *testing.T) {
	f := servertest.New()
	socket, c := start(t, f)
	const move = "/v1/moves"
	good := func(more string) string {
		return `{"id":"` + id1 + `","vm":"train1","to":"server2","preserve":true` + more + `}`
	}
	for _, tt := range []struct {
		name, method, path, contentType, body string
		status                                int
		code, detail                          string
	}{
		{"unknown route", "GET", "/v1/slot", "", "", 404, "no-such-route", "there is no /v1/slot"},
		{"other version", "GET", "/v2/slots", "", "", 404, "no-such-route", "there is no /v2/slots"},
		{"root", "GET", "/", "", "", 404, "no-such-route", "there is no /"},
		{"slash at the end", "GET", "/v1/slots/", "", "", 404, "no-such-route", "there is no /v1/slots/"},
		{"dots", "POST", "/v1/slots/../moves", "", "", 404, "no-such-route", "there is no /v1/slots/../moves"},
		{"unknown method", "DELETE", "/v1/moves", "", "", 405, "method-not-allowed", "/v1/moves has no DELETE, only GET, POST"},
		{"PUT", "PUT", "/v1/enclosure", "", "", 405, "method-not-allowed", "/v1/enclosure has no PUT, only GET"},
		{"query", "GET", "/v1/slots?all=1", "", "", 400, "bad-request", `query parameter "all" is unknown here or given twice`},
		{"query twice", "GET", "/v1/events?after=1&after=2", "", "", 400, "bad-request", `query parameter "after" is unknown here or given twice`},
		{"query garbled", "GET", "/v1/slots?%zz", "", "", 400, "bad-request", `the query "%zz" can not be read`},
		{"event of no form", "GET", "/v1/events?after=x", "", "", 400, "bad-request", `"x" is not an event's id, want RUN.NUMBER or NUMBER`},
		{"unknown slot", "GET", "/v1/slots/gpu9", "", "", 404, "unknown-slot", `there is no slot "gpu9"; there are gpu0, gpu1, nic0, gpu2`},
		{"slot that is a path", "GET", "/v1/slots/..%2f..%2fetc", "", "", 404, "no-such-route", "there is no /v1/slots/../../etc"},
		{"unknown host", "GET", "/v1/hosts/server9", "", "", 404, "unknown-host", `there is no host "server9"; there are server1, server2, server3`},
		{"unknown host, fence", "POST", "/v1/hosts/server9/fence", "", "", 404, "unknown-host", `there is no host "server9"`},
		{"unknown move", "GET", "/v1/moves/" + id1, "", "", 404, "unknown-move", "no move " + id1 + " is remembered"},
		{"move of no form", "GET", "/v1/moves/7", "", "", 400, "bad-request", `id: UUID "7": want the form 6ba7b810-9dad-41d1-80b4-00c04fd430c8`},

		{"not JSON", "POST", move, "application/json", "move it!", 400, "bad-request", "not JSON: invalid character 'm' looking for beginning of value"},
		{"no JSON type", "POST", move, "text/plain", good(""), 415, "not-json", `the body is "text/plain", want application/json`},
		{"no type", "POST", move, "", good(""), 415, "not-json", `the body is "", want application/json`},
		{"no body", "POST", move, "", "", 400, "bad-request", "id: missing; vm: missing; to: missing; preserve: missing"},
		{"array", "POST", move, "application/json", "[]", 400, "bad-request", "is an array, want an object"},
		{"cut off", "POST", move, "application/json", good("")[:40], 400, "bad-request", "not JSON: unexpected end of JSON input"},
		{"trailing data", "POST", move, "application/json", good("") + "{}", 400, "bad-request", "not JSON: invalid character '{' after top-level value"},
		{"unknown field", "POST", move, "application/json", good(`,"force":true`), 400, "bad-request", "force: unknown key; known here: expect, id, preserve, slots, to, vm, wait_ms"},
		{"field in other case", "POST", move, "application/json", good(`,"VM":"train2"`), 400, "bad-request", "VM: unknown key; known here: expect, id, preserve, slots, to, vm, wait_ms"},
		{"duplicate field", "POST", move, "application/json", good(`,"to":"server1"`), 400, "bad-request", "to: given twice, first on line 1"},
		{"null", "POST", move, "application/json", good(`,"slots":null`), 400, "bad-request", "slots: is null: give a value or leave the key out"},
		{"not UTF-8", "POST", move, "application/json", good(",\"wait_ms\":\"\xff\""), 400, "bad-request", "not UTF-8"},
		{"deep", "POST", move, "application/json", strings.Repeat("[", 5000) + strings.Repeat("]", 5000), 400, "bad-request", strings.Repeat("[0]", 16) + ": nested deeper than 16"},
		{"body too large", "POST", move, "application/json", good(`,"slots":["` + strings.Repeat("x", mgmt.MaxBody) + `"]`), 413, "body-too-large",
			fmt.Sprintf("the body has %d bytes, at most 65536", mgmt.MaxBody+len(good(`,"slots":[""]`)))},
		{"fence with a body", "POST", "/v1/hosts/server1/fence", "application/json", `{"epoch":1}`, 400, "bad-request", "epoch: unknown key; known here: "},

		{"bad values", "POST", move, "application/json", `{"id":"1","vm":"train1","to":"server2","preserve":true,"wait_ms":120001,"slots":["a","a"],"expect":{"gpu1":"17","gpu0":"x"}}`, 400, "bad-request",
			`expect.gpu0: generation "x": want eight hex digits, a dash and a decimal counter, as in 9f3c2a10-17; ` +
				`expect.gpu1: generation "17": want eight hex digits, a dash and a decimal counter, as in 9f3c2a10-17; ` +
				`id: UUID "1": want the form 6ba7b810-9dad-41d1-80b4-00c04fd430c8; wait_ms: 120001 is outside 0..120000; slots: "a" is there twice`},
		{"zero ID", "POST", move, "application/json", `{"id":"00000000-0000-0000-0000-000000000000","vm":"train1","to":"server2","preserve":true}`, 400, "bad-request", "id: the zero UUID names nothing"},
		{"unknown VM", "POST", move, "application/json", strings.Replace(good(""), "train1", "train9", 1), 404, "unknown-vm", `there is no VM "train9"`},
		{"unknown target", "POST", move, "application/json", strings.Replace(good(""), "server2", "server9", 1), 404, "unknown-host", `there is no host "server9"`},
		{"fenced target", "POST", move, "application/json", strings.Replace(good(""), "server2", "server3", 1), 409, "host-fenced", "host server3 is fenced: never unfenced since the store was formatted"},
		{"foreign slot", "POST", move, "application/json", good(`,"slots":["gpu2"]`), 422, "slot-not-of-vm", "it is not a slot of train1"},
		{"other generation", "POST", move, "application/json", good(`,"expect":{"gpu0":"9f3c2a10-16"}`), 409, "generation-changed", "generation is 17, not 16: someone moved it since you looked"},
		{"attach without the slot", "POST", "/v1/slots/gpu2/attach", "application/json", `{"vm":"train1","host":"server2","slots":["gpu0"]}`, 400, "bad-request", `slots: "gpu2", of the path, is not among them`},
		{"arm without generation", "POST", "/v1/slots/gpu0/arm", "application/json", `{"id":"` + id1 + `"}`, 400, "bad-request", "generation: missing"},
		{"arm with half a proof", "POST", "/v1/slots/gpu0/arm", "application/json", `{"id":"` + id1 + `","generation":"9f3c2a10-17","seen":{"resets":4}}`, 400, "bad-request", "seen.epoch: missing; seen.ident: missing"},
		{"lease", "POST", "/v1/slots/gpu0/arm", "application/json", `{"id":"` + id1 + `","generation":"9f3c2a10-17","lease_ms":-1}`, 400, "bad-request", "lease_ms: -1 is outside 0..86400000"},
		{"alive, number too large", "POST", "/v1/slots/gpu0/alive", "application/json", `{"generation":"9f3c2a10-17","seen":{"resets":4294967296,"epoch":1,"ident":1}}`, 400, "bad-request", "seen.resets: is 4294967296, want a whole number from 0 to 4294967295"},
		{"release, other mode", "POST", "/v1/slots/gpu0/release", "application/json", `{"vm":"train1","mode":"drop"}`, 400, "bad-request", `mode: "drop" is none of keep, hold, free, force-free`},
		{"unfence without epoch", "POST", "/v1/hosts/server3/unfence", "application/json", `{}`, 400, "bad-request", "epoch: missing"},
		{"unfence, late", "POST", "/v1/hosts/server3/unfence", "application/json", `{"epoch":1}`, 409, "stale-unfence", "host server3 was fenced again: epoch 2, not 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp, p := raw(t, socket, request(tt.method, tt.path, tt.contentType, tt.body))
			if resp.StatusCode != tt.status || p.Status != tt.status || p.Code != tt.code || p.Detail != tt.detail {
				t.Errorf("%d %d %s\n%s\nwant %d %s\n%s", resp.StatusCode, p.Status, p.Code, p.Detail, tt.status, tt.code, tt.detail)
			}
			if got := resp.Header.Get("Content-Type"); got != mgmt.MediaProblem {
				t.Errorf("Content-Type %q", got)
			}
			if p.Title == "" || p.Type != "docs/errors.md#"+tt.code || p.State != "nothing was changed" {
				t.Errorf("title %q, type %q, state %q", p.Title, p.Type, p.State)
			}
		})
	}
	if calls := f.Calls(); len(calls) > 0 {
		t.Errorf("operations got through: %q", calls)
	}
	if _, err := c.Enclosure(t.Context()); err != nil {
		t.Errorf("not serving any more: %v", err)
	}
}

// TestNotHTTP: what is no HTTP at all ends its own connection only.
func TestNotHTTP(t *testing.T) {
	socket, c := start(t, servertest.New())
	for _, text := range []string{"\x16\x03\x01\x02\x00\n\n", "GET\r\n\r\n", strings.Repeat("A", 1<<20), "GET / HTTP/1.1\r\n" + strings.Repeat("X: y\r\n", 1<<16) + "\r\n", "POST /v1/moves HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"} {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.WriteString(conn, text) }()
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%.20q: connection stays open", text)
		}
		_ = conn.Close()
	}
	if _, err := c.Enclosure(t.Context()); err != nil {
		t.Errorf("not serving any more: %v", err)
	}
}

func TestReads(t *testing.T) {
	_, c := start(t, servertest.New())
	ctx := t.Context()
	e, err := c.Enclosure(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if e.Name != "rack7-io2" || e.Agent != "1.2.3" || e.Store.Incarnation != "9f3c2a10" || len(e.Slots) != 4 || len(e.Hosts) != 3 || len(e.VMs) != 2 || e.VMs[1].Policy != "on-move" || len(e.Warnings) != 0 {
		t.Errorf("Enclosure = %+v", e)
	}
	s, err := c.Slot(ctx, "gpu0")
	if diff := cmp.Diff(e.Slots[0], s); err != nil || diff != "" {
		t.Errorf("Slot: %v\n%s", err, diff)
	}
	all, err := c.Slots(ctx)
	if diff := cmp.Diff(e.Slots, all); err != nil || diff != "" {
		t.Errorf("Slots: %v\n%s", err, diff)
	}
	h, err := c.Host(ctx, "server3")
	if diff := cmp.Diff(e.Hosts[2], h); err != nil || diff != "" {
		t.Errorf("Host: %v\n%s", err, diff)
	}
	hs, err := c.Hosts(ctx)
	if diff := cmp.Diff(e.Hosts, hs); err != nil || diff != "" {
		t.Errorf("Hosts: %v\n%s", err, diff)
	}
	v, err := c.Verdict(ctx, "gpu0")
	if err != nil || v.Preserved != "yes" || v.Seen().String() != "9f3c2a10-17/4/0x1c2d3e4f/0x89ab12cd" {
		t.Errorf("Verdict = %+v, %v", v, err)
	}
}

// TestOperations: what is asked arrives, and its answer comes back.
func TestOperations(t *testing.T) {
	f := servertest.New()
	_, c := start(t, f)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	seen := mgmt.Values{Resets: 4, Epoch: 5, Ident: 6}
	m, err := c.Move(ctx, mgmt.MoveRequest{ID: id1, VM: "train1", To: "server2", Preserve: true, WaitMS: 2000, Expect: map[string]string{"gpu0": "9f3c2a10-17"}})
	must(err)
	if m.State != "done" || m.Generation != "9f3c2a10-18" || len(m.Steps) != 5 || m.Memory["gpu1"].Preserved != "yes" || m.From != "server1" {
		t.Errorf("Move = %+v", m)
	}
	again, err := c.MoveByID(ctx, id1)
	must(err)
	if diff := cmp.Diff(m, again); diff != "" {
		t.Errorf("MoveByID:\n%s", diff)
	}
	ms, err := c.Moves(ctx)
	must(err)
	if diff := cmp.Diff([]mgmt.Move{m}, ms); diff != "" {
		t.Errorf("Moves:\n%s", diff)
	}
	a, err := c.Attach(ctx, "gpu2", mgmt.AttachRequest{VM: "train2", Host: "server1"})
	must(err)
	if a.Nonce == "" || a.Generation["gpu2"] != "9f3c2a10-4" || a.Memory["gpu2"].Seen().Generation != "9f3c2a10-4" {
		t.Errorf("Attach = %+v", a)
	}
	arm, err := c.Arm(ctx, "gpu0", mgmt.ArmRequest{ID: id1, Generation: "9f3c2a10-18", Seen: &seen, LeaseMS: 60000})
	must(err)
	if diff := cmp.Diff(mgmt.Arming{ID: id1, Proof: true, Flag: "armed", Base: seen}, arm); diff != "" {
		t.Errorf("Arm:\n%s", diff)
	}
	must(c.Disarm(ctx, "gpu0", mgmt.DisarmRequest{ID: id1}))
	must(c.Ack(ctx, "gpu0", mgmt.AckRequest{Nonce: id1, Generation: "9f3c2a10-18", Seen: seen}))
	must(c.Alive(ctx, "gpu0", mgmt.AliveRequest{Generation: "9f3c2a10-18", Seen: seen}))
	must(c.Release(ctx, "gpu0", mgmt.ReleaseRequest{VM: "train1", Slots: []string{"gpu0", "gpu1"}, Mode: "hold"}))
	fd, err := c.Fence(ctx, "server1")
	must(err)
	if diff := cmp.Diff(mgmt.Fenced{Host: "server1", Epoch: 2, Slots: []string{"gpu2"}}, fd); diff != "" {
		t.Errorf("Fence:\n%s", diff)
	}
	must(c.Unfence(ctx, "server1", 2))
	by := fmt.Sprintf("uid %d", os.Geteuid())
	want := []string{
		"move train1 [gpu0 gpu1 nic0] to server2 preserve true",
		"move train2 [gpu2] to server1 preserve true",
		"arm gpu0 proof true lease 1m0s",
		"disarm gpu0 " + id1 + " by " + by,
		"ack gpu0 " + id1 + " {4 5 6}",
		"alive gpu0 {4 5 6}",
		"release train1 [gpu0 gpu1] hold",
		"fence server1 by " + by,
		"unfence server1 2 by " + by,
	}
	if diff := cmp.Diff(want, f.Calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestOnce: a repeated move ID has one effect; with another body it is refused.
func TestOnce(t *testing.T) {
	f := servertest.New()
	_, c := start(t, f)
	r := mgmt.MoveRequest{ID: id1, VM: "train1", To: "server2", Preserve: true}
	first, err := c.Move(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Move(t.Context(), r)
	if diff := cmp.Diff(first, second); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if n := len(f.Calls()); n != 1 {
		t.Errorf("%d moves; want 1", n)
	}
	r.To = "server1"
	var p *mgmt.Problem
	if _, err := c.Move(t.Context(), r); !errors.As(err, &p) || p.Code != "move-id-reused" || p.Retry {
		t.Errorf("Move with another body: %v", err)
	}
}

// TestErrors: what an error of the enclosure becomes.
func TestErrors(t *testing.T) {
	f := servertest.New()
	_, c := start(t, f)
	gen := ee.Generation{Incarnation: 0x9f3c2a10, Counter: 19}
	for _, tt := range []struct {
		err  error
		want mgmt.Problem
	}{
		{&enclosure.Error{Code: enclosure.CodeHardware, Slot: "gpu0", Where: "i2c-5/0x40", What: "the engine does not answer", State: "undone", Next: "check the cable", Retry: true, Current: gen, Err: errors.New("no acknowledge")},
			mgmt.Problem{Type: "docs/errors.md#hardware", Title: "the hardware does not answer as it should", Status: 503, Detail: "the engine does not answer (i2c-5/0x40): no acknowledge",
				Code: "hardware", Retry: true, Slot: "gpu0", State: "undone", Next: "check the cable", Current: "9f3c2a10-19"}},
		{fmt.Errorf("wrapped: %w", &enclosure.Error{Code: enclosure.CodeCapability, What: "no"}),
			mgmt.Problem{Type: "docs/errors.md#capability", Title: "the hardware can not do that", Status: 422, Detail: "no", Code: "capability"}},
		{errors.New("what is this"), mgmt.Problem{Type: "docs/errors.md#internal", Title: "a bug in the agent", Status: 500, Detail: "what is this", Code: "internal"}},
		{context.DeadlineExceeded, mgmt.Problem{Type: "docs/errors.md#timeout", Title: "it took too long", Status: 503, Detail: "it took longer than is allowed, or the agent is stopping",
			Code: "timeout", Retry: true, State: "what was begun is carried on or undone", Next: "look with 'baton status'"}},
	} {
		f.Set(func(s *servertest.Settings) { s.Err = tt.err })
		_, err := c.Fence(t.Context(), "server1")
		var p *mgmt.Problem
		if !errors.As(err, &p) {
			t.Fatalf("%v: %v", tt.err, err)
		}
		if diff := cmp.Diff(tt.want, *p); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tt.err, diff)
		}
	}
}

// TestClientGoes: a client that goes away does not end its move.
func TestClientGoes(t *testing.T) {
	f := servertest.New()
	begun, goOn := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	f.Gate = func(ctx context.Context) error {
		close(begun)
		<-goOn
		ended <- ctx.Err()
		return nil
	}
	_, c := start(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Move(ctx, mgmt.MoveRequest{ID: id1, VM: "train1", To: "server2", Preserve: true})
		done <- err
	}()
	<-begun
	cancel()
	var u *mgmt.UnreachableError
	if err := <-done; !errors.As(err, &u) || !errors.Is(err, context.Canceled) {
		t.Errorf("Move with its context ended: %v", err)
	}
	if m, err := c.MoveByID(t.Context(), id1); err != nil || m.State != "running" {
		t.Errorf("while it runs: %q, %v", m.State, err)
	}
	time.Sleep(50 * time.Millisecond) // for the server to see that the client is gone
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("the move's context ended: %v", err)
	}
	for range 100 {
		m, err := c.MoveByID(t.Context(), id1)
		if err != nil {
			t.Fatal(err)
		}
		if m.State == "done" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the move did not end")
}

// TestSlowClients: clients that send half a request, or never read, hold up
// nobody else.
func TestSlowClients(t *testing.T) {
	socket, c := start(t, servertest.New())
	for i := range 20 {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer shut(conn)
		text := "POST /v1/moves HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
		switch i % 3 {
		case 1:
			text = "GET /v1/encl"
		case 2:
			text = strings.Repeat("GET /v1/enclosure HTTP/1.1\r\nHost: b\r\n\r\n", 50)
		}
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	if _, err := c.Move(t.Context(), mgmt.MoveRequest{ID: id1, VM: "train1", To: "server2", Preserve: true}); err != nil {
		t.Error(err)
	}
	if d := time.Since(begin); d > time.Second {
		t.Errorf("the move took %v", d)
	}
}

// TestTooManyConnections: one user has a bounded number, and gets places back.
func TestTooManyConnections(t *testing.T) {
	socket, c := start(t, servertest.New())
	limit := maxConns
	if os.Geteuid() == 0 {
		limit *= 4
	}
	var conns []net.Conn
	for range limit {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != 503 {
		t.Errorf("one too many: %v, %v", resp, err)
	} else {
		var p mgmt.Problem
		if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || p.Code != "overloaded" || !p.Retry {
			t.Errorf("one too many: %+v, %v", p, err)
		}
	}
	_ = conn.Close()
	for _, conn := range conns {
		_ = conn.Close()
	}
	for range 100 {
		if _, err = c.Enclosure(t.Context()); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("places did not come back: %v", err)
}

// TestPanic: after a bug in an operation the server answers, and ends.
func TestPanic(t *testing.T) {
	servertest.NoLeaks(t)
	f := servertest.New()
	f.Gate = func(context.Context) error { panic("a bug") }
	socket := filepath.Join(t.TempDir(), "s")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	s := New(f, Options{AdminUID: uint32(os.Geteuid()), Keeper: servertest.NewKeeper()})
	done := make(chan error, 1)
	go func() { done <- s.Serve(t.Context(), l) }()
	c := mgmt.Dial(socket)
	defer c.Close()
	_, err = c.Fence(t.Context(), "server1")
	var p *mgmt.Problem
	if !errors.As(err, &p) || p.Code != "internal" {
		t.Errorf("Fence: %v", err)
	}
	if err := <-done; err == nil || err.Error() != "panic while serving POST /v1/hosts/server1/fence: a bug" {
		t.Errorf("Serve: %v", err)
	}
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("socket: %v, %v", fi.Mode(), err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another agent answers there") {
		t.Errorf("second agent: %v", err)
	}
	// An agent that was killed leaves its socket.
	l.(*listener).SetUnlinkOnClose(false)
	_ = l.Close()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	l, err = Listen(path)
	if err != nil {
		t.Errorf("after a crash: %v", err)
	} else {
		_ = l.Close()
	}
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file); err == nil || !strings.Contains(err.Error(), "a file that is no socket") {
		t.Errorf("on a file: %v", err)
	}
	if _, err := Listen(filepath.Join(dir, "no", "s")); err == nil {
		t.Error("in no directory: no error")
	}
}

// eventually waits for what comes after an answer.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 500 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%s did not come", what)
}
