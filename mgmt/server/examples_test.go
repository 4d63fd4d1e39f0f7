package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/server/servertest"
)

// example is a request, to a server with a Fake of its own; its answer is in
// docs/openapi.json.
type example struct {
	route string // "POST /v1/moves"
	name  string // unique within the route
	path  string // with the route's parameters filled in
	body  string
	// The state that it meets: examples that are sent before, as
	// "postMoves#planned", and what no request can bring about.
	before []string
	world  string
	accept string
}

const (
	exampleTime = "2026-05-04T10:20:30Z"
	exampleRun  = 0x4f1d2c3b
	planned     = "2f1e7c5a-6b0d-4c3e-9a51-7d8e90a1b2c3"
	drained     = "7c1d2e3f-4a5b-4c6d-8e7f-90a1b2c3d400"
	seenNow     = `{"resets":4,"epoch":472727119,"ident":2309690061}`
)

// worlds are states that no request brings about.
var worlds = map[string]func(*servertest.Fake){
	"":               func(*servertest.Fake) {},
	"parts-replaced": func(f *servertest.Fake) { f.Replace("gpu1", enclosure.Parts{Engine: "8c:df:9d:00:01:99"}) },
	"damaged": func(f *servertest.Fake) {
		f.NVM = enclosure.NVMReport{State: "formatted", Findings: []enclosure.NVMFinding{
			{Where: "store page 17", What: "a record is torn: its checksum is wrong", Grade: "damage", Repair: "erase the page", Lost: "the flag of gpu0: it becomes void"},
			{Where: "gpu2 config block at i2c-6/0x50", What: "its group is not the record's", Grade: "note", Repair: ""},
		}}
	},
	"blocked": func(f *servertest.Fake) {
		f.End, f.Reason = enclosure.MoveBlocked, "gpu1: the engine does not answer (i2c-5/0x41)"
	},
	"stuck": func(f *servertest.Fake) {
		f.FailVM, f.Reason = "train1", "gpu1: the engine does not answer (i2c-5/0x41)"
	},
}

func quoted(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // a string always encodes
	}
	return strings.TrimSpace(b.String())
}

var (
	withVM      = strings.Replace(servertest.ConfigText, `"hosts": ["server1"]`, `"hosts": ["server1", "server2"]`, 1)
	withErrors  = strings.Replace(servertest.ConfigText, `"policy": "on-move"`, `"policy": "sometimes"`, 1)
	withNetwork = strings.TrimSuffix(servertest.ConfigText, "\n}\n") + ",\n  \"network\": { \"interface\": \"eth0\", \"address\": \"192.0.2.10/24\", \"gateway\": \"192.0.2.1\", \"vlan\": 100 }\n}\n"
)

var examples = []example{
	{route: "GET /v1/enclosure", name: "all", path: "/v1/enclosure"},
	{route: "GET /v1/slots", name: "all", path: "/v1/slots"},
	{route: "GET /v1/slots/{slot}", name: "gpu0", path: "/v1/slots/gpu0"},
	{route: "GET /v1/slots/{slot}", name: "unknown", path: "/v1/slots/gpu9"},
	{route: "GET /v1/slots/{slot}/verdict", name: "gpu0", path: "/v1/slots/gpu0/verdict"},
	{route: "POST /v1/slots/{slot}/attach", name: "train2", path: "/v1/slots/gpu2/attach", body: `{"vm":"train2","host":"server1"}`},
	{route: "POST /v1/slots/{slot}/arm", name: "proof", path: "/v1/slots/gpu0/arm", body: `{"id":"` + planned + `","generation":"9f3c2a10-17","seen":` + seenNow + `,"lease_ms":600000}`},
	{route: "POST /v1/slots/{slot}/arm", name: "late", path: "/v1/slots/gpu0/arm", body: `{"id":"` + planned + `","generation":"9f3c2a10-16"}`},
	{route: "POST /v1/slots/{slot}/disarm", name: "proof", path: "/v1/slots/gpu0/disarm", body: `{"id":"` + planned + `"}`, before: []string{"postSlotsBySlotArm#proof"}},
	{route: "POST /v1/slots/{slot}/ack", name: "train2", path: "/v1/slots/gpu2/ack", body: `{"nonce":"a1000000-0000-0000-0000-000000000001","generation":"9f3c2a10-4","seen":` + seenNow + `}`, before: []string{"postSlotsBySlotAttach#train2"}},
	{route: "POST /v1/slots/{slot}/alive", name: "gpu0", path: "/v1/slots/gpu0/alive", body: `{"generation":"9f3c2a10-17","seen":` + seenNow + `}`},
	{route: "POST /v1/slots/{slot}/release", name: "hold", path: "/v1/slots/gpu0/release", body: `{"vm":"train1","slots":["gpu0","gpu1","nic0"],"mode":"hold"}`},
	{route: "POST /v1/slots/{slot}/release", name: "force-free", path: "/v1/slots/gpu0/release", body: `{"mode":"force-free","typed":"gpu0"}`},
	{route: "POST /v1/slots/{slot}/release", name: "not-typed", path: "/v1/slots/gpu0/release", body: `{"mode":"force-free","typed":"gpu1"}`},
	{route: "GET /v1/slots/{slot}/adopt", name: "replaced", path: "/v1/slots/gpu1/adopt", world: "parts-replaced"},
	{route: "POST /v1/slots/{slot}/adopt", name: "replaced", path: "/v1/slots/gpu1/adopt", body: `{"token":"` + tokenOf("parts-replaced") + `"}`, world: "parts-replaced"},
	{route: "POST /v1/slots/{slot}/adopt", name: "stale", path: "/v1/slots/gpu1/adopt", body: `{"token":"00000000"}`, world: "parts-replaced"},
	{route: "POST /v1/slots/{slot}/locate", name: "on", path: "/v1/slots/gpu0/locate", body: `{"on":true}`},
	{route: "POST /v1/slots/{slot}/power", name: "cycle", path: "/v1/slots/gpu2/power", body: `{"generation":"9f3c2a10-3","state":"cycle"}`},
	{route: "POST /v1/slots/{slot}/power", name: "in-use", path: "/v1/slots/gpu0/power", body: `{"generation":"9f3c2a10-17","state":"off"}`},
	{route: "POST /v1/slots/{slot}/reset", name: "gpu2", path: "/v1/slots/gpu2/reset", body: `{"generation":"9f3c2a10-3"}`},
	{route: "GET /v1/moves", name: "planned", path: "/v1/moves", before: []string{"postMoves#planned"}},
	{route: "POST /v1/moves", name: "planned", path: "/v1/moves", body: `{"id":"` + planned + `","vm":"train1","to":"server2","expect":{"gpu0":"9f3c2a10-17"},"preserve":true,"wait_ms":5000}`},
	{route: "POST /v1/moves", name: "late", path: "/v1/moves", body: `{"id":"` + planned + `","vm":"train1","to":"server2","expect":{"gpu0":"9f3c2a10-16"},"preserve":true}`},
	{route: "POST /v1/moves", name: "fenced", path: "/v1/moves", body: `{"id":"` + planned + `","vm":"train1","to":"server3","preserve":true}`},
	{route: "POST /v1/moves", name: "blocked", path: "/v1/moves", body: `{"id":"` + planned + `","vm":"train1","to":"server2","preserve":true}`, world: "blocked"},
	{route: "GET /v1/moves/{id}", name: "planned", path: "/v1/moves/" + planned, before: []string{"postMoves#planned"}},
	{route: "POST /v1/moves/{id}/resolve", name: "blocked", path: "/v1/moves/" + planned + "/resolve", body: `{"drop":["gpu1"]}`, world: "blocked", before: []string{"postMoves#blocked"}},
	{route: "GET /v1/hosts", name: "all", path: "/v1/hosts"},
	{route: "GET /v1/hosts/{host}", name: "server3", path: "/v1/hosts/server3"},
	{route: "POST /v1/hosts/{host}/fence", name: "server1", path: "/v1/hosts/server1/fence"},
	{route: "POST /v1/hosts/{host}/unfence", name: "server3", path: "/v1/hosts/server3/unfence", body: `{"epoch":2}`},
	{route: "POST /v1/hosts/{host}/unfence", name: "late", path: "/v1/hosts/server3/unfence", body: `{"epoch":1}`},
	{route: "POST /v1/hosts/{host}/drain", name: "move", path: "/v1/hosts/server1/drain", body: `{"id":"` + drained + `","to":"server2"}`},
	{route: "POST /v1/hosts/{host}/drain", name: "stuck", path: "/v1/hosts/server1/drain", body: `{"id":"` + drained + `","release":"hold"}`, world: "stuck"},
	{route: "GET /v1/events", name: "all", path: "/v1/events", before: []string{"postMoves#planned"}},
	{route: "GET /v1/events", name: "after", path: "/v1/events?after=4f1d2c3b.4", before: []string{"postMoves#planned"}},
	{route: "GET /v1/events", name: "stream", path: "/v1/events?after=4f1d2c3b.4", before: []string{"postMoves#planned"}, accept: mgmt.MediaTypeStream},
	{route: "GET /v1/events", name: "other-run", path: "/v1/events?after=0a0b0c0d.900"},
	{route: "GET /v1/audit", name: "all", path: "/v1/audit", before: []string{"postMoves#planned", "postHostsByHostUnfence#late", "postSlotsBySlotRelease#not-typed"}},
	{route: "GET /v1/nvm/check", name: "damaged", path: "/v1/nvm/check", world: "damaged"},
	{route: "POST /v1/nvm/repair", name: "damaged", path: "/v1/nvm/repair", body: `{"token":"` + tokenOf("damaged") + `"}`, world: "damaged"},
	{route: "GET /v1/nvm/dump", name: "store", path: "/v1/nvm/dump?of=store"},
	{route: "POST /v1/check", name: "all", path: "/v1/check"},
	{route: "POST /v1/console", name: "wrong", path: "/v1/console", body: `{"what":"wrong-password"}`},
	{route: "POST /v1/console", name: "other", path: "/v1/console", body: `{"what":"hello"}`},
	{route: "GET /v1/config", name: "all", path: "/v1/config"},
	{route: "POST /v1/config", name: "vm", path: "/v1/config", body: `{"text":` + quoted(withVM) + `,"expect":3}`},
	{route: "POST /v1/config", name: "network", path: "/v1/config", body: `{"text":` + quoted(withNetwork) + `,"expect":3,"confirm_ms":60000}`},
	{route: "POST /v1/config", name: "not-json", path: "/v1/config", body: `{"text":"{\n  \"enclosure\": \"rack7-io2\",\n  \"hosts\": [}\n","dry_run":true}`},
	{route: "POST /v1/config", name: "errors", path: "/v1/config", body: `{"text":` + quoted(withErrors) + `,"dry_run":true}`},
	{route: "POST /v1/config/confirm", name: "network", path: "/v1/config/confirm", before: []string{"postConfig#network"}},
	{route: "POST /v1/config/revert", name: "network", path: "/v1/config/revert", before: []string{"postConfig#network"}},
	{route: "POST /v1/config/revert", name: "no-trial", path: "/v1/config/revert"},
	{route: "GET /v1/backup", name: "all", path: "/v1/backup"},
	{route: "POST /v1/backup", name: "newer", path: "/v1/backup", body: `{"backup":` + newerBackup() + `}`},
	{route: "POST /v1/backup", name: "changed", path: "/v1/backup", body: `{"backup":` + strings.Replace(newerBackup(), "9f3c2a10-40", "9f3c2a10-41", 1) + `,"dry_run":true}`},
}

// tokenOf is what a Fake in a world says stands for what is in it.
func tokenOf(world string) string {
	f := servertest.New()
	worlds[world](f)
	if world == "damaged" {
		r, err := f.CheckNVM(context.Background())
		if err != nil {
			panic(err) // a Fake without Err has none
		}
		return r.Token
	}
	a, err := f.AdoptionOf(context.Background(), "gpu1")
	if err != nil {
		panic(err)
	}
	return a.Token
}

// newerBackup is one with a generation above that of a Fake.
func newerBackup() string {
	b, err := servertest.NewKeeper().Backup(context.Background())
	if err != nil {
		panic(err) // it has none
	}
	b.Slots[0].Generation = "9f3c2a10-40"
	b.Sum = b.Checksum()
	p, err := json.Marshal(b)
	if err != nil {
		panic(err)
	}
	return string(p)
}

// params are the values that the example's path gives the route's parameters.
func (e example) params() map[string]string {
	out := map[string]string{}
	path, query, _ := strings.Cut(e.path, "?")
	_, route, _ := strings.Cut(e.route, " ")
	segs := strings.Split(path, "/")
	for i, seg := range strings.Split(route, "/") {
		if strings.HasPrefix(seg, "{") {
			out[seg[1:len(seg)-1]] = segs[i]
		}
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		panic(err) // examples are well formed
	}
	for k := range q {
		out[k] = q.Get(k)
	}
	return out
}

func (e example) id() string {
	method, path, _ := strings.Cut(e.route, " ")
	return operation(route{method: method, path: path}) + "#" + e.name
}

func findExample(t *testing.T, id string) example {
	t.Helper()
	i := slices.IndexFunc(examples, func(e example) bool { return e.id() == id })
	if i < 0 {
		t.Fatalf("no example %s", id)
	}
	return examples[i]
}

// run sends the example, and those before it, to a server of its own, and
// returns the answer with its times put to exampleTime.
func (e example) run(t *testing.T) (status int, mediaType string, answer any) {
	t.Helper()
	s := exampleServer(t, e.world)
	for _, id := range e.before {
		b := findExample(t, id)
		method, _, _ := strings.Cut(b.route, " ")
		ask(t, s, method, b.path, b.body, "")
	}
	method, _, _ := strings.Cut(e.route, " ")
	return ask(t, s, method, e.path, e.body, e.accept)
}

func exampleServer(t *testing.T, world string) *Server {
	t.Helper()
	f := servertest.New()
	setup, ok := worlds[world]
	if !ok {
		t.Fatalf("no world %q", world)
	}
	setup(f)
	s := New(f, Options{Agent: mgmt.Version, Keeper: servertest.NewKeeper()})
	s.ops, s.streams = t.Context(), t.Context()
	s.run = exampleRun
	return s
}

// firstEvent ends a stream after its first event.
type firstEvent struct {
	*httptest.ResponseRecorder
	end func()
}

func (f firstEvent) Flush() {
	if strings.Contains(f.Body.String(), "data: ") {
		f.end()
	}
}

var timeValue = regexp.MustCompile(`"time":"[^"]*"`)

// ask sends a request as root.
func ask(t *testing.T, s *Server, method, path, body, accept string) (status int, mediaType string, answer any) {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body == "" {
		r = httptest.NewRequest(method, path, nil)
	} else {
		r.Header.Set("Content-Type", mgmt.MediaTypeJSON)
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	ctx, end := context.WithCancel(context.WithValue(r.Context(), peerKey{}, Peer{Known: true}))
	defer end()
	w := firstEvent{httptest.NewRecorder(), end}
	s.ServeHTTP(w, r.WithContext(ctx))
	if w.Code == http.StatusInternalServerError {
		t.Fatalf("%s %s: %s", method, path, w.Body)
	}
	text := timeValue.ReplaceAllString(w.Body.String(), fmt.Sprintf(`"time":"%s"`, exampleTime))
	mediaType = w.Header().Get("Content-Type")
	if mediaType == mgmt.MediaTypeStream {
		return w.Code, mediaType, text
	}
	return w.Code, mediaType, json.RawMessage(text)
}
