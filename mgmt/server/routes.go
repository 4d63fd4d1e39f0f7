package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"baton/mgmt"
	"baton/mgmt/internal/strict"
)

// Roles is a set of roles. A caller has one, a route admits some.
type Roles uint8

// Roles on the Unix socket. Others come with keys.
const (
	Viewer Roles = 1 << iota // sees, changes nothing
	Admin                    // may do everything
)

func (r Roles) String() string {
	var names []string
	for i, n := range []string{"viewer", "admin"} {
		if r&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, ", ")
}

// route is one method on one path. A route without roles admits nobody.
type route struct {
	method, path string
	roles        Roles
	limit        time.Duration // for the operation; a move's Wait comes on top
	serve        func(*Server, *call) (any, error)
	takes        takes
}

// takes is what a route takes beside its path.
type takes struct {
	query []string // parameters
	body  int64    // bytes of a POST's body at most; 0 = mgmt.MaxBody

	// quick, if set, answers from what is at hand, without the timers that
	// anything else is bounded by; nil = there is nothing at hand.
	quick func(*Server) []byte
}

const (
	all    = Viewer | Admin
	read   = 10 * time.Second
	change = 30 * time.Second
	// A fence waits for the slots of its host, and a move for its engines;
	// both are bounded by the enclosure. This is the bound behind that.
	long = 2 * time.Minute
	// A drain is one move after another.
	drain = 30 * time.Minute
)

// routes is the whole interface.
var routes = []route{
	{"GET", "/v1/enclosure", all, read, (*Server).enclosure, takes{quick: (*Server).lately}},
	{"GET", "/v1/slots", all, read, (*Server).slots, takes{}},
	{"GET", "/v1/slots/{slot}", all, read, (*Server).slot, takes{}},
	{"GET", "/v1/slots/{slot}/verdict", all, read, (*Server).verdict, takes{}},
	{"POST", "/v1/slots/{slot}/attach", Admin, long, (*Server).attach, takes{}},
	{"POST", "/v1/slots/{slot}/arm", Admin, change, (*Server).arm, takes{}},
	{"POST", "/v1/slots/{slot}/disarm", Admin, change, (*Server).disarm, takes{}},
	{"POST", "/v1/slots/{slot}/ack", Admin, change, (*Server).ack, takes{}},
	{"POST", "/v1/slots/{slot}/alive", Admin, change, (*Server).alive, takes{}},
	{"POST", "/v1/slots/{slot}/release", Admin, long, (*Server).release, takes{}},
	{"GET", "/v1/slots/{slot}/adopt", Admin, change, (*Server).adoption, takes{}},
	{"POST", "/v1/slots/{slot}/adopt", Admin, long, (*Server).adopt, takes{}},
	{"POST", "/v1/slots/{slot}/locate", Admin, change, (*Server).locate, takes{}},
	{"POST", "/v1/slots/{slot}/power", Admin, change, (*Server).power, takes{}},
	{"POST", "/v1/slots/{slot}/reset", Admin, change, (*Server).reset, takes{}},
	{"GET", "/v1/moves", all, read, (*Server).moves, takes{}},
	{"POST", "/v1/moves", Admin, long, (*Server).move, takes{}},
	{"GET", "/v1/moves/{id}", all, read, (*Server).moveByID, takes{}},
	{"POST", "/v1/moves/{id}/resolve", Admin, long, (*Server).resolve, takes{}},
	{"GET", "/v1/hosts", all, read, (*Server).hosts, takes{}},
	{"GET", "/v1/hosts/{host}", all, read, (*Server).host, takes{}},
	{"POST", "/v1/hosts/{host}/fence", Admin, long, (*Server).fence, takes{}},
	{"POST", "/v1/hosts/{host}/unfence", Admin, change, (*Server).unfence, takes{}},
	{"POST", "/v1/hosts/{host}/drain", Admin, drain, (*Server).drain, takes{}},
	{"GET", "/v1/events", all, read, (*Server).events, takes{query: []string{"after"}}},
	{"GET", "/v1/audit", all, read, (*Server).audit, takes{}},
	{"GET", "/v1/nvm/check", Admin, change, (*Server).checkNVM, takes{}},
	{"POST", "/v1/nvm/repair", Admin, long, (*Server).repairNVM, takes{}},
	// Whole media, also with what a person might not want everybody to see.
	{"GET", "/v1/nvm/dump", Admin, change, (*Server).dumpNVM, takes{query: []string{"of"}}},
	// It keeps buses and slots busy, as a check of the NVM does.
	{"POST", "/v1/check", Admin, change, (*Server).check, takes{}},
	{"POST", "/v1/console", Admin, read, (*Server).console, takes{}},
	{"GET", "/v1/config", all, read, (*Server).config, takes{}},
	{"POST", "/v1/config", Admin, long, (*Server).applyConfig, takes{body: mgmt.MaxConfig}},
	{"POST", "/v1/config/confirm", Admin, change, (*Server).confirmConfig, takes{}},
	{"POST", "/v1/config/revert", Admin, long, (*Server).revertConfig, takes{}},
	{"GET", "/v1/backup", Admin, read, (*Server).backup, takes{}},
	{"POST", "/v1/backup", Admin, long, (*Server).restore, takes{body: mgmt.MaxConfig}},
	{"GET", "/v1/metrics", all, read, (*Server).metrics, takes{}},
}

// call is one request on its way through a route.
type call struct {
	ctx  context.Context // of the operation
	http *http.Request
	w    http.ResponseWriter
	peer Peer
	body []byte // of a POST

	why string // the agent starts anew when the answer has been written; "" = it does not
}

// restart has the agent start anew when the answer has been written.
func (c *call) restart(why string) { c.why = why + ", by " + c.by() }

// by names the caller for events.
func (c *call) by() string { return c.peer.String() }

// streamed is what a route returns that has answered by itself.
type streamed struct{}

func (s *Server) mount() {
	methods := map[string][]route{}
	for _, rt := range routes {
		methods[rt.path] = append(methods[rt.path], rt)
	}
	for p, rts := range methods {
		s.mux.HandleFunc(p, func(w http.ResponseWriter, r *http.Request) {
			i := slices.IndexFunc(rts, func(rt route) bool { return rt.method == r.Method })
			if i < 0 {
				var allow []string
				for _, rt := range rts {
					allow = append(allow, rt.method)
				}
				w.Header().Set("Allow", strings.Join(allow, ", "))
				s.fail(w, r, problem(mgmt.CodeMethod, "%s has no %s, only %s", r.URL.Path, r.Method, strings.Join(allow, ", ")))
				return
			}
			s.dispatch(rts[i], w, r)
		})
	}
	s.mux.HandleFunc("/", s.noRoute)
}

func (s *Server) noRoute(w http.ResponseWriter, r *http.Request) {
	s.fail(w, r, problem(mgmt.CodeNoRoute, "there is no %s", clip(r.URL.Path)))
}

// dispatch is where every request of every client passes.
func (s *Server) dispatch(rt route, w http.ResponseWriter, r *http.Request) {
	peer, _ := r.Context().Value(peerKey{}).(Peer)
	role := s.role(peer)
	if rt.roles&role == 0 {
		s.fail(w, r, problem(mgmt.CodePermission, "%s is %s, and %s %s is for %s", peer, orNobody(role), rt.method, clip(r.URL.Path), rt.roles))
		return
	}
	if err := checkQuery(rt, r); err != nil {
		s.fail(w, r, err)
		return
	}
	if rt.takes.quick != nil {
		if text := rt.takes.quick(s); text != nil {
			s.write(w, http.StatusOK, mgmt.MediaTypeJSON, text)
			return
		}
	}
	c := &call{http: r, w: w, peer: peer}
	if rt.method == http.MethodPost {
		var err error
		if c.body, err = readBody(w, r, cmp.Or(rt.takes.body, mgmt.MaxBody)); err != nil {
			s.fail(w, r, err)
			return
		}
	}
	if r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // see ServeHTTP
	}
	ctx, cancel := context.WithTimeout(s.ops, rt.limit+waitOf(c.body))
	defer cancel()
	c.ctx = ctx
	answer, err := rt.serve(s, c)
	if rt.method != http.MethodGet {
		s.looks.changes.Add(1) // before the answer: who has it sees what it says
	}
	switch {
	case err != nil:
		s.fail(w, r, err)
	case answer == nil:
		s.answer(w, http.StatusNoContent, "", nil)
	case answer == streamed{}:
	default:
		s.answer(w, http.StatusOK, mgmt.MediaTypeJSON, answer)
	}
	if c.why != "" && err == nil {
		_ = http.NewResponseController(w).Flush() // a client that is gone does not keep it from being done
		s.opt.Keeper.Restart(c.why)
	}
}

// answer writes v as JSON.
func (s *Server) answer(w http.ResponseWriter, status int, mediaType string, v any) {
	s.write(w, status, mediaType, encode(v))
}

// encode gives the JSON text of an answer; of nil, none.
func encode(v any) []byte {
	if v == nil {
		return nil
	}
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err)) // wire types always encode
	}
	return buf.Bytes()
}

// noStore is shared: nobody changes it.
var noStore = []string{"no-store"}

// write writes the answer within writeTimeout. A client that does not take it
// by then loses its connection.
func (s *Server) write(w http.ResponseWriter, status int, mediaType string, body []byte) {
	h := w.Header()
	if len(body) > 0 {
		h["Content-Type"] = []string{mediaType}
		h["Content-Length"] = []string{strconv.Itoa(len(body))} // else net/http cuts it in chunks
	}
	h["Cache-Control"] = noStore
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil && len(body) > 0 {
		s.opt.Log.Debug("answer not taken", "err", err)
	}
}

func checkQuery(rt route, r *http.Request) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	q := r.URL.Query()
	if len(q) == 0 {
		return problem(codeBad, "the query %q can not be read", clip(r.URL.RawQuery))
	}
	for k, vals := range q {
		if !slices.Contains(rt.takes.query, k) || len(vals) != 1 {
			return problem(codeBad, "query parameter %q is unknown here or given twice", clip(k))
		}
	}
	return nil
}

// readBody reads at most most bytes of a JSON body, or none.
func readBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	if r.ContentLength > most {
		return nil, problem(mgmt.CodeTooLarge, "the body has %d bytes, at most %d", r.ContentLength, most)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, problem(mgmt.CodeTooLarge, "the body has more than %d bytes", most)
	}
	if err != nil {
		return nil, problem(codeBad, "the body did not arrive whole: %v", err)
	}
	if len(body) == 0 {
		return nil, nil
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != mgmt.MediaTypeJSON {
		return nil, problem(mgmt.CodeMediaType, "the body is %q, want %s", clip(r.Header.Get("Content-Type")), mgmt.MediaTypeJSON)
	}
	return body, nil
}

// decode reads the body into a T; everything that is wrong with it is told.
func decode[T any](c *call) (T, error) {
	var v T
	body := c.body
	if len(body) == 0 {
		body = []byte("{}")
	}
	errs := strict.Unmarshal(body, &v)
	if len(errs) == 0 {
		return v, nil
	}
	const most = 8
	lines := make([]string, 0, most)
	for _, e := range errs[:min(len(errs), most)] {
		t := e.Text
		if e.Key != "" {
			t = clip(e.Key) + ": " + t
		}
		lines = append(lines, t)
	}
	if len(errs) > most {
		lines = append(lines, fmt.Sprintf("and %d more", len(errs)-most))
	}
	return v, problem(codeBad, "%s", strings.Join(lines, "; "))
}

// waitOf finds how long a request allows its move to wait, so that the bound
// on the operation comes on top. What is wrong with it, decode tells.
func waitOf(body []byte) time.Duration {
	var w struct {
		WaitMS int64 `json:"wait_ms"`
	}
	if len(body) == 0 || json.Unmarshal(body, &w) != nil {
		return 0
	}
	return min(max(0, time.Duration(w.WaitMS)*time.Millisecond), maxWait)
}

// clip shortens what a client sent before it is sent back or logged.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

func orNobody(r Roles) string {
	if r == 0 {
		return "nobody"
	}
	return r.String()
}
