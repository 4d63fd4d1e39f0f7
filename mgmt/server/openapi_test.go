package server

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"baton/mgmt"
)

// docs/openapi.json describes the interface for programs. It is made here, from
// the routes, the types of package mgmt with their comments, and the examples.

//go:generate go test -count=1 -run ^(TestOpenAPI|TestPageExamples)$ -update .

var update = flag.Bool("update", false, "write docs/openapi.json, and the examples of docs/api.md, anew")

const openapiFile = "../../docs/openapi.json"

// about says of a route what its handler's code says.
type about struct {
	summary  string
	request  any // nil = no body
	answer   any // nil = 204
	answerIs string
}

var abouts = map[string]about{
	"GET /v1/enclosure":             {"All of the enclosure, from one look that is at most 50 ms old.", nil, mgmt.Enclosure{}, "The enclosure."},
	"GET /v1/slots":                 {"All slots.", nil, mgmt.Slots{}, "The slots."},
	"GET /v1/slots/{slot}":          {"One slot.", nil, mgmt.Slot{}, "The slot."},
	"GET /v1/slots/{slot}/verdict":  {"Whether the slot's memory was preserved, judged from a reading that is made now.", nil, mgmt.Verdict{}, "The verdict."},
	"POST /v1/slots/{slot}/attach":  {"Asks for slots for a VM on its host, before the VM starts.", mgmt.AttachRequest{}, mgmt.Attached{}, "The slots are with the host, or State says why not."},
	"POST /v1/slots/{slot}/arm":     {"Prepares a slot for a move, while its VM still holds the device.", mgmt.ArmRequest{}, mgmt.Arming{}, "The arming that stands."},
	"POST /v1/slots/{slot}/disarm":  {"Takes an arming back.", mgmt.DisarmRequest{}, nil, "It is taken back."},
	"POST /v1/slots/{slot}/ack":     {"Says that the VM runs and that the verdict was acted on.", mgmt.AckRequest{}, nil, "It is recorded."},
	"POST /v1/slots/{slot}/alive":   {"A proof of life: the VM held the device after the values were read.", mgmt.AliveRequest{}, nil, "It is recorded."},
	"POST /v1/slots/{slot}/release": {"Ends a VM's use of slots.", mgmt.ReleaseRequest{}, nil, "They are released."},
	"GET /v1/slots/{slot}/adopt":    {"Who is in a slot, and what adopting them would do.", nil, mgmt.Adoption{}, "The parts that are known and those that are there."},
	"POST /v1/slots/{slot}/adopt":   {"Takes the parts that are there as the slot's.", mgmt.AdoptRequest{}, mgmt.Adoption{}, "They are adopted."},
	"POST /v1/slots/{slot}/locate":  {"Switches the slot's locate LED.", mgmt.LocateRequest{}, nil, "It is switched."},
	"POST /v1/slots/{slot}/power":   {"Switches the power of the device in a slot that is cut.", mgmt.PowerRequest{}, nil, "It is switched."},
	"POST /v1/slots/{slot}/reset":   {"Has the engine reset the device; what is in its memory is lost.", mgmt.ResetRequest{}, nil, "The device was reset."},
	"GET /v1/moves":                 {"The moves that are remembered.", nil, mgmt.Moves{}, "The moves."},
	"POST /v1/moves":                {"Passes slots of a VM to a host, and answers when that has ended. A repeat with the same ID has the effect of one.", mgmt.MoveRequest{}, mgmt.Move{}, "How the move ended; one that was undone, held or blocked is no problem."},
	"GET /v1/moves/{id}":            {"One move, also while it runs.", nil, mgmt.Move{}, "The move."},
	"POST /v1/moves/{id}/resolve":   {"Lets the blocked set of a move go on without some of its slots.", mgmt.ResolveRequest{}, mgmt.Move{}, "How the move ended."},
	"GET /v1/hosts":                 {"All hosts.", nil, mgmt.Hosts{}, "The hosts."},
	"GET /v1/hosts/{host}":          {"One host.", nil, mgmt.Host{}, "The host."},
	"POST /v1/hosts/{host}/fence":   {"Cuts a host from all its slots, and answers when each cut is confirmed.", nil, mgmt.Fenced{}, "The host reaches none of them."},
	"POST /v1/hosts/{host}/unfence": {"Lifts the fence with this epoch.", mgmt.UnfenceRequest{}, nil, "It is lifted."},
	"POST /v1/hosts/{host}/drain":   {"Moves or releases all slots of a host, set by set, and stops at the first that fails. A repeat with the same ID goes on with what is left.", mgmt.DrainRequest{}, mgmt.Drained{}, "What became of the sets; one that failed is no problem."},
	"GET /v1/events":                {"The events that are kept; with Accept: text/event-stream, and then those that come.", nil, mgmt.Events{}, "The events."},
	"GET /v1/audit":                 {"The records that the store keeps of what changed or was refused.", nil, mgmt.Audit{}, "The records."},
	"GET /v1/nvm/check":             {"What is wrong with the store and the config blocks. It writes nothing.", nil, mgmt.NVMReport{}, "What was found."},
	"POST /v1/nvm/repair":           {"Does what the report that the token stands for says.", mgmt.RepairRequest{}, mgmt.NVMReport{}, "It is done; the agent reads everything anew."},
	"GET /v1/nvm/dump":              {"The content of a medium.", nil, mgmt.NVMDump{}, "The content."},
	"POST /v1/check":                {"Looks at all that can be looked at without changing it: buses, engines, config blocks, store, VLANs, socket, clock.", nil, mgmt.Check{}, "A line for each thing."},
	"POST /v1/console":              {"Tells what happened at the serial console, for the events and the audit.", mgmt.ConsoleNote{}, nil, "It is noted."},
	"GET /v1/config":                {"The configuration that is in force.", nil, mgmt.Config{}, "The configuration."},
	"POST /v1/config":               {"Replaces the configuration. What is wrong with it is in the problem's errors.", mgmt.ConfigRequest{}, mgmt.ConfigApplied{}, "What changed, and what needs a start of the agent."},
	"POST /v1/config/confirm":       {"Keeps the network that is on trial.", nil, mgmt.Config{}, "The configuration, without a trial."},
	"POST /v1/config/revert":        {"Puts the configuration before the trial back at once.", nil, mgmt.Config{}, "The configuration that is back."},
	"GET /v1/backup":                {"What is needed to set up a new controller.", nil, mgmt.Backup{}, "The backup."},
	"POST /v1/backup":               {"Takes a backup over. It raises generations and epochs and never lowers one.", mgmt.RestoreRequest{}, mgmt.Restored{}, "What changed."},
	"GET /v1/metrics":               {"Metrics in the Prometheus text format (docs/metrics.md).", nil, mgmt.MediaMetrics, "The metrics."},
}

// object is a JSON object whose keys keep their order.
type object []member

type member struct {
	key   string
	value any
}

// MarshalJSON is that of json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		for _, v := range []any{m.key, m.value} {
			var text bytes.Buffer
			e := json.NewEncoder(&text)
			e.SetEscapeHTML(false)
			if err := e.Encode(v); err != nil {
				return nil, err
			}
			b.Write(bytes.TrimSpace(text.Bytes()))
			b.WriteByte(':')
		}
		b.Truncate(b.Len() - 1)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func (o *object) add(key string, value any) { *o = append(*o, member{key, value}) }

// comments of package mgmt: of types by name, of fields by "Type.Field".
func comments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			d, ok := n.(*ast.GenDecl)
			if !ok || d.Tok != token.TYPE {
				return true
			}
			for _, sp := range d.Specs {
				ts := sp.(*ast.TypeSpec)
				out[ts.Name.Name] = strings.Join(strings.Fields(d.Doc.Text()), " ")
				st, ok := ts.Type.(*ast.StructType)
				if !ok {
					continue
				}
				for _, f := range st.Fields.List {
					for _, n := range f.Names {
						out[ts.Name.Name+"."+n.Name] = strings.Join(strings.Fields(f.Comment.Text()), " ")
					}
				}
			}
			return true
		})
	}
	return out
}

// enums are the values that requests take.
var enums = map[string][]string{
	"ReleaseRequest.mode":  {"keep", "hold", "free", "force-free"},
	"PowerRequest.state":   {"on", "off", "cycle"},
	"DrainRequest.release": {"hold", "free"},
}

// schemas makes those of the types that routes take and give.
type schemas struct {
	comments map[string]string
	asked    map[string]bool // types that requests have in them
	done     map[string]object
}

func (s *schemas) ref(t reflect.Type, asked bool) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{{"type", "string"}, {"format", "date-time"}}
	case t == reflect.TypeFor[[]byte]():
		return object{{"type", "string"}, {"contentEncoding", "base64"}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.ref(t.Elem(), asked)
	case reflect.String:
		return object{{"type", "string"}}
	case reflect.Bool:
		return object{{"type", "boolean"}}
	case reflect.Int, reflect.Int64:
		return object{{"type", "integer"}}
	case reflect.Uint64:
		return object{{"type", "integer"}, {"minimum", 0}}
	case reflect.Uint16, reflect.Uint32:
		return object{{"type", "integer"}, {"minimum", 0}, {"maximum", uint64(1)<<t.Bits() - 1}}
	case reflect.Slice:
		return object{{"type", "array"}, {"items", s.ref(t.Elem(), asked)}}
	case reflect.Map:
		return object{{"type", "object"}, {"additionalProperties", s.ref(t.Elem(), asked)}}
	case reflect.Struct:
		s.add(t, asked)
		return object{{"$ref", "#/components/schemas/" + t.Name()}}
	}
	panic(fmt.Sprintf("no schema for %s", t))
}

func (s *schemas) add(t reflect.Type, asked bool) {
	if _, ok := s.done[t.Name()]; ok && s.asked[t.Name()] == (s.asked[t.Name()] || asked) {
		return
	}
	s.asked[t.Name()] = s.asked[t.Name()] || asked
	s.done[t.Name()] = nil
	asked = s.asked[t.Name()]
	var props object
	required := []string{}
	for _, f := range reflect.VisibleFields(t) {
		key, omit := jsonKey(f)
		sub := s.ref(f.Type, asked)
		if e := enums[t.Name()+"."+key]; e != nil {
			sub.add("enum", e)
		}
		if t == reflect.TypeFor[mgmt.Problem]() && key == "code" {
			sub.add("x-codes", codes())
		}
		if c := s.comments[t.Name()+"."+f.Name]; c != "" {
			sub.add("description", c)
		}
		props.add(key, sub)
		if f.Tag.Get("strict") == "required" || !asked && !omit {
			required = append(required, key)
		}
	}
	o := object{{"type", "object"}, {"description", s.comments[t.Name()]}, {"properties", props}}
	if len(required) > 0 {
		o.add("required", required)
	}
	if asked {
		o.add("additionalProperties", false) // the agent refuses keys that it does not know
	}
	s.done[t.Name()] = o
}

func jsonKey(f reflect.StructField) (key string, omit bool) {
	key, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key, rest == "omitempty"
}

// codes lists what problems there are.
func codes() (o object) {
	for _, c := range slices.Sorted(maps.Keys(meanings)) {
		o.add(c, object{{"status", meanings[c].status}, {"title", meanings[c].title}})
	}
	return o
}

var paramAbout = map[string]string{
	"slot": "The slot's name.", "host": "The host's name.", "id": "The move's ID, a UUID.",
	"after": "ID of an event, or its number in this run: only later ones are wanted.", "of": "store, or a slot's name.",
	"Last-Event-ID": "As after, where a stream is taken up again.",
}

func jsonOf(o any) object { return object{{mgmt.MediaTypeJSON, o}} }

// openapi makes the document. run answers an example.
func openapi(t *testing.T, run func(example) (int, string, any)) []byte {
	t.Helper()
	s := &schemas{comments: comments(t), asked: map[string]bool{}, done: map[string]object{}}
	for _, a := range abouts { // requests first: what they need is stricter
		if a.request != nil {
			s.ref(reflect.TypeOf(a.request), true)
		}
	}
	problemRef := s.ref(reflect.TypeFor[mgmt.Problem](), false)

	var paths object
	for _, rt := range routes {
		key := rt.method + " " + rt.path
		a := abouts[key]
		op := object{{"summary", a.summary}, {"operationId", operation(rt)}, {"x-roles", strings.Split(rt.roles.String(), ", ")}}
		var mine []example
		for _, e := range examples {
			if e.route == key {
				mine = append(mine, e)
			}
		}
		if p := parameters(rt, mine); len(p) > 0 {
			op.add("parameters", p)
		}
		if a.request != nil {
			media := object{{"schema", s.ref(reflect.TypeOf(a.request), true)}}
			var ex object
			for _, e := range mine {
				ex.add(e.name, object{{"value", json.RawMessage(e.body)}})
			}
			if len(ex) > 0 {
				media.add("examples", ex)
			}
			op.add("requestBody", object{{"required", true}, {"content", jsonOf(media)}})
			if rt.takes.body > 0 {
				op.add("x-max-body", rt.takes.body)
			}
		}
		var good, bad, stream, none object
		for _, e := range mine {
			status, mediaType, answer := run(e)
			o := object{}
			if e.world != "" {
				o.add("x-world", e.world)
			}
			if len(e.before) > 0 {
				o.add("x-before", e.before)
			}
			switch {
			case status >= 300:
				bad.add(e.name, append(o, member{"value", answer}))
			case status == 204:
				none.add(e.name, o)
			case mediaType == mgmt.MediaTypeStream:
				stream.add(e.name, append(o, member{"value", answer}))
			default:
				good.add(e.name, append(o, member{"value", answer}))
			}
		}
		responses := object{}
		switch answer := a.answer.(type) {
		case nil:
			r := object{{"description", a.answerIs}}
			if len(none) > 0 {
				r.add("x-examples", none)
			}
			responses.add("204", r)
		case string:
			responses.add("200", object{{"description", a.answerIs}, {"content", object{{answer, object{{"schema", object{{"type", "string"}}}}}}}})
		default:
			media := object{{"schema", s.ref(reflect.TypeOf(answer), false)}}
			if len(good) > 0 {
				media.add("examples", good)
			}
			content := jsonOf(media)
			if len(stream) > 0 {
				content.add(mgmt.MediaTypeStream, object{{"schema", object{{"type", "string"}}}, {"examples", stream}})
			}
			responses.add("200", object{{"description", a.answerIs}, {"content", content}})
		}
		media := object{{"schema", problemRef}}
		if len(bad) > 0 {
			media.add("examples", bad)
		}
		responses.add("default", object{{"description", "It was refused or failed; docs/errors.md has the codes."}, {"content", object{{mgmt.MediaProblem, media}}}})
		op.add("responses", responses)
		method := strings.ToLower(rt.method)
		if i := slices.IndexFunc(paths, func(m member) bool { return m.key == rt.path }); i >= 0 {
			paths[i].value = append(paths[i].value.(object), member{method, op})
		} else {
			paths.add(rt.path, object{{method, op}})
		}
	}

	var all object
	for _, name := range slices.Sorted(maps.Keys(s.done)) {
		all.add(name, s.done[name])
	}
	doc := object{
		{"openapi", "3.1.0"},
		{"info", object{
			{"title", "Baton, the management interface of an I/O enclosure"},
			{"version", "v1"},
			{"description", "HTTP/1.1 on the agent's Unix socket, /run/baton/baton.sock unless configured otherwise; docs/api.md. Within v1 answers may get new keys and problems new codes; a request with a key that the agent does not know is refused.\n\n" +
				"An operation's x-roles may use it: root and the agent's user are admin, others who can open the socket are viewer. x-max-body is how many bytes its body may have, where that is not 65536.\n\n" +
				"Every example is sent by a test and answered as written, by an agent on an enclosure without hardware (baton/mgmt/server/servertest). Examples of one name belong together: parameters, body and answer. x-before are the examples that were sent before, as OPERATION#NAME; x-world what is special: parts-replaced (another engine is in gpu1), damaged (a check finds something), blocked (moves end blocked), stuck (train1 can not be moved). Whatever a time is, it is shown as " + exampleTime + "; an event's run is 4f1d2c3b."},
		}},
		{"servers", []object{{{"url", "http://baton"}, {"description", "The name is not looked up: connect to the socket."}}}},
		{"paths", paths},
		{"components", object{{"schemas", all}}},
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(doc); err != nil {
		t.Fatal(err)
	}
	return []byte(layout(t, out.Bytes(), "") + "\n")
}

// operation names a route, as "getSlotsVerdict".
func operation(rt route) string {
	var name strings.Builder
	name.WriteString(strings.ToLower(rt.method))
	for seg := range strings.SplitSeq(strings.TrimPrefix(rt.path, "/v1/"), "/") {
		if strings.HasPrefix(seg, "{") {
			seg = "by" + strings.ToUpper(seg[1:2]) + seg[2:len(seg)-1]
		}
		name.WriteString(strings.ToUpper(seg[:1]) + seg[1:])
	}
	return name.String()
}

func parameters(rt route, mine []example) (list []object) {
	add := func(in, name string, required bool) {
		p := object{{"name", name}, {"in", in}, {"required", required}, {"description", paramAbout[name]}, {"schema", object{{"type", "string"}}}}
		var ex object
		for _, e := range mine {
			if v, ok := e.params()[name]; ok {
				ex.add(e.name, object{{"value", v}})
			}
		}
		if len(ex) > 0 {
			p.add("examples", ex)
		}
		list = append(list, p)
	}
	for seg := range strings.SplitSeq(rt.path, "/") {
		if strings.HasPrefix(seg, "{") {
			add("path", seg[1:len(seg)-1], true)
		}
	}
	for _, q := range rt.takes.query {
		add("query", q, q == "of")
	}
	if rt.path == "/v1/events" {
		add("header", "Last-Event-ID", false)
	}
	return list
}

// TestOpenAPI: docs/openapi.json is what the code makes of itself.
func TestOpenAPI(t *testing.T) {
	want := openapi(t, func(e example) (int, string, any) { return e.run(t) })
	if *update {
		if err := os.WriteFile(openapiFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(openapiFile)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not up to date: go generate ./mgmt/server (%v)", openapiFile, err)
	}
}
