package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"baton/mgmt"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// The tests here read docs/openapi.json as a stranger would, and know nothing
// of how it was made.

// document is what is in it, as far as the tests look.
type document struct {
	OpenAPI    string `json:"openapi"`
	Paths      map[string]map[string]*described
	Components struct {
		Schemas map[string]struct {
			Type                 string
			Description          string
			Properties           map[string]property
			Required             []string
			AdditionalProperties *bool
		}
	}

	raw any
}

type property struct {
	Ref         string `json:"$ref"`
	Type        any
	Description string
	Codes       map[string]struct {
		Status int
		Title  string
	} `json:"x-codes"`
}

type described struct {
	Summary     string
	OperationID string
	Roles       []string `json:"x-roles"`
	MaxBody     int64    `json:"x-max-body"`
	Parameters  []struct {
		Name, In string
		Required bool
		Examples map[string]struct{ Value string }
	}
	RequestBody *struct {
		Required bool
		Content  map[string]media
	}
	Responses map[string]struct {
		Description string
		Content     map[string]media
		Bodiless    map[string]answered `json:"x-examples"`
	}
}

type media struct {
	Schema   json.RawMessage
	Examples map[string]answered
}

type answered struct {
	Before []string `json:"x-before"`
	World  string   `json:"x-world"`
	Value  json.RawMessage
}

func readDocument(t *testing.T) *document {
	t.Helper()
	text, err := os.ReadFile(openapiFile)
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.raw, err = jsonschema.UnmarshalJSON(bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	return &d
}

// TestOpenAPIRoutes: the document has the routes of the server, what they take
// and who may use them, and no others.
func TestOpenAPIRoutes(t *testing.T) {
	d := readDocument(t)
	var want, got []string
	for _, rt := range routes {
		params := slices.Clone(rt.takes.query)
		for seg := range strings.SplitSeq(rt.path, "/") {
			if strings.HasPrefix(seg, "{") {
				params = append(params, strings.Trim(seg, "{}"))
			}
		}
		slices.Sort(params)
		want = append(want, fmt.Sprint(rt.method, " ", rt.path, " ", rt.roles, " ", params, " ", cmp.Or(rt.takes.body, mgmt.MaxBody)))
	}
	ids := map[string]bool{}
	for path, ops := range d.Paths {
		for method, op := range ops {
			var params []string
			for _, p := range op.Parameters {
				if p.In != "header" {
					params = append(params, p.Name)
				}
				if p.Required != (p.In == "path" || p.Name == "of") {
					t.Errorf("%s %s: %s required: %v", method, path, p.Name, p.Required)
				}
			}
			slices.Sort(params)
			got = append(got, fmt.Sprint(strings.ToUpper(method), " ", path, " ", strings.Join(op.Roles, ", "), " ", params, " ", cmp.Or(op.MaxBody, mgmt.MaxBody)))
			if op.Summary == "" || op.OperationID == "" || ids[op.OperationID] {
				t.Errorf("%s %s: %q, %q", method, path, op.Summary, op.OperationID)
			}
			ids[op.OperationID] = true
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("routes\n%s\ndocument\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}

// TestOpenAPITypes: the document has every type on the wire with every key, and
// no others; a key is required where it always has to be there.
func TestOpenAPITypes(t *testing.T) {
	d := readDocument(t)
	files, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	types := 0
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			ts, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			st, ok := ts.Type.(*ast.StructType)
			if !ok || !slices.ContainsFunc(st.Fields.List, func(f *ast.Field) bool { return f.Tag != nil }) {
				return true
			}
			types++
			schema, ok := d.Components.Schemas[ts.Name.Name]
			if !ok {
				t.Errorf("there is no schema %s", ts.Name.Name)
				return false
			}
			asked := schema.AdditionalProperties != nil && !*schema.AdditionalProperties
			var keys, required []string
			for _, f := range st.Fields.List {
				tag, err := strconv.Unquote(f.Tag.Value)
				if err != nil {
					t.Fatal(err)
				}
				key, omit, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
				strict := reflect.StructTag(tag).Get("strict") == "required"
				keys = append(keys, key)
				if strict || !asked && omit != "omitempty" {
					required = append(required, key)
				}
				if strict && omit == "omitempty" {
					t.Errorf("%s.%s is required of a request, and the client may leave it out", ts.Name.Name, key)
				}
			}
			slices.Sort(keys)
			slices.Sort(required)
			if got := slices.Sorted(maps.Keys(schema.Properties)); !slices.Equal(got, keys) {
				t.Errorf("%s has %q; its schema %q", ts.Name.Name, keys, got)
			}
			if got := slices.Sorted(slices.Values(schema.Required)); !slices.Equal(got, required) {
				t.Errorf("%s: always there are %q; its schema requires %q", ts.Name.Name, required, got)
			}
			if schema.Type != "object" || schema.Description == "" {
				t.Errorf("%s: type %q, description %q", ts.Name.Name, schema.Type, schema.Description)
			}
			return false
		})
	}
	if types < 40 || types != len(d.Components.Schemas) {
		t.Errorf("%d types, %d schemas", types, len(d.Components.Schemas))
	}
	codes := d.Components.Schemas["Problem"].Properties["code"].Codes
	if len(codes) != len(meanings) {
		t.Errorf("%d codes; want %d", len(codes), len(meanings))
	}
	for c, m := range meanings {
		if codes[c].Status != m.status || codes[c].Title != m.title {
			t.Errorf("code %s: %+v; want %+v", c, codes[c], m)
		}
	}
}

// closeSchemas makes schemas refuse keys that they do not name, so that a key that is
// answered and not described shows.
func closeSchemas(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v["properties"]; ok && v["type"] == "object" {
			v["additionalProperties"] = false
		}
		for _, e := range v {
			closeSchemas(e)
		}
	case []any:
		for _, e := range v {
			closeSchemas(e)
		}
	}
}

// validator compiles the schemas of a document; draft 2020-12 is that of
// OpenAPI 3.1, and each schema is checked against it.
func validator(t *testing.T, d *document) func(t *testing.T, ref string, text []byte) {
	t.Helper()
	doc := d.raw.(map[string]any)
	closeSchemas(doc["components"])
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	c.AssertContent()
	if err := c.AddResource("mem:openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	compiled := map[string]*jsonschema.Schema{}
	for name := range d.Components.Schemas {
		s, err := c.Compile("mem:openapi.json#/components/schemas/" + name)
		if err != nil {
			t.Fatalf("schema %s: %v", name, err)
		}
		compiled["#/components/schemas/"+name] = s
	}
	return func(t *testing.T, ref string, text []byte) {
		t.Helper()
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if s := compiled[ref]; s == nil {
			t.Errorf("no schema %q", ref)
		} else if err := s.Validate(v); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func (m media) ref(t *testing.T) string {
	t.Helper()
	var p property
	if err := json.Unmarshal(m.Schema, &p); err != nil {
		t.Fatal(err)
	}
	return p.Ref
}

// TestOpenAPIExamples sends every example, and wants the answer that is written
// there; requests and answers are what their schemas say.
func TestOpenAPIExamples(t *testing.T) {
	d := readDocument(t)
	valid := validator(t, d)
	byID := map[string]*described{}
	where := map[string][2]string{}
	for path, ops := range d.Paths {
		for method, op := range ops {
			byID[op.OperationID] = op
			where[op.OperationID] = [2]string{strings.ToUpper(method), path}
		}
	}
	// send sends the example OPERATION#NAME.
	send := func(t *testing.T, s *Server, id, accept string) (int, string, any) {
		t.Helper()
		operation, name, _ := strings.Cut(id, "#")
		op := byID[operation]
		if op == nil {
			t.Fatalf("no operation %s", operation)
		}
		method, path := where[operation][0], where[operation][1]
		query := url.Values{}
		for _, p := range op.Parameters {
			ex, ok := p.Examples[name]
			switch {
			case p.In == "path" && ok:
				path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(ex.Value))
			case p.In == "query" && ok:
				query.Set(p.Name, ex.Value)
			case p.Required:
				t.Errorf("%s: no value for %s", id, p.Name)
			}
		}
		if len(query) > 0 {
			path += "?" + query.Encode()
		}
		body := ""
		if op.RequestBody != nil {
			m := op.RequestBody.Content[mgmt.MediaTypeJSON]
			body = string(m.Examples[name].Value)
			valid(t, m.ref(t), []byte(body))
		}
		return ask(t, s, method, path, body, accept)
	}
	sent := 0
	for _, op := range byID {
		good := op.OperationID == "getMetrics" // is described in docs/metrics.md
		for status, r := range op.Responses {
			good = good || status == "204" && len(r.Bodiless) > 0
			all := map[string]map[string]answered{"": r.Bodiless}
			for mediaType, m := range r.Content {
				all[mediaType] = m.Examples
			}
			for mediaType, exs := range all {
				for name, want := range exs {
					sent++
					good = good || status == "200"
					t.Run(op.OperationID+"#"+name, func(t *testing.T) {
						s := exampleServer(t, want.World)
						for _, b := range want.Before {
							send(t, s, b, "")
						}
						accept := ""
						if mediaType == mgmt.MediaTypeStream {
							accept = mediaType
						}
						code, gotType, answer := send(t, s, op.OperationID+"#"+name, accept)
						if gotType != mediaType || status != "default" && fmt.Sprint(code) != status || (status == "default") != (code >= 400) {
							t.Errorf("answer %d %s; want %s %s", code, gotType, status, mediaType)
						}
						var got, compact bytes.Buffer
						switch answer := answer.(type) {
						case string:
							got.WriteString(quoted(answer))
						case json.RawMessage:
							if mediaType == "" {
								break // 204
							}
							if err := json.Compact(&got, answer); err != nil {
								t.Fatal(err)
							}
							valid(t, r.Content[mediaType].ref(t), answer)
						}
						if mediaType != "" {
							if err := json.Compact(&compact, want.Value); err != nil {
								t.Fatal(err)
							}
						}
						if got.String() != compact.String() {
							t.Errorf("answered\n%s\nwant\n%s", &got, &compact)
						}
						if status == "default" {
							var p mgmt.Problem
							if err := json.Unmarshal(want.Value, &p); err != nil || p.Status != code || meanings[p.Code].status != code {
								t.Errorf("status %d, problem %+v, %v", code, p, err)
							}
						}
					})
				}
			}
		}
		if !good {
			t.Errorf("%s has no example that succeeds", op.OperationID)
		}
	}
	if sent != len(examples) {
		t.Errorf("%d examples sent; there are %d", sent, len(examples))
	}
}

// TestOpenAPIStructure checks what OpenAPI 3.1 wants of a document beside its
// schemas: objects have the keys that their kind may have, references lead
// somewhere, path parameters are those of the path.
func TestOpenAPIStructure(t *testing.T) {
	d := readDocument(t)
	if d.OpenAPI != "3.1.0" {
		t.Errorf("openapi %q", d.OpenAPI)
	}
	root := d.raw.(map[string]any)
	may := func(where string, v any, keys string) map[string]any {
		o, ok := v.(map[string]any)
		if !ok {
			t.Errorf("%s is %T", where, v)
		}
		for k := range o {
			if !strings.HasPrefix(k, "x-") && !slices.Contains(strings.Fields(keys), k) {
				t.Errorf("%s: what is %s?", where, k)
			}
		}
		return o
	}
	content := func(where string, v any) {
		for mediaType, m := range v.(map[string]any) {
			m := may(where+" "+mediaType, m, "schema examples")
			if ex, ok := m["examples"]; ok {
				for name, e := range ex.(map[string]any) {
					may(where+" "+name, e, "summary description value")
				}
			}
		}
	}
	may("document", root, "openapi info servers paths components")
	may("info", root["info"], "title summary description version")
	may("components", root["components"], "schemas")
	for path, item := range root["paths"].(map[string]any) {
		for method, op := range may(path, item, "get post") {
			where := method + " " + path
			o := may(where, op, "summary operationId parameters requestBody responses")
			var inPath []string
			if list, ok := o["parameters"]; ok {
				for _, p := range list.([]any) {
					p := may(where+" parameter", p, "name in required description schema examples")
					if p["in"] == "path" {
						inPath = append(inPath, "{"+p["name"].(string)+"}")
					}
				}
			}
			for seg := range strings.SplitSeq(path, "/") {
				if strings.HasPrefix(seg, "{") != slices.Contains(inPath, seg) {
					t.Errorf("%s: path parameters %q", where, inPath)
				}
			}
			if b, ok := o["requestBody"]; ok {
				content(where, may(where+" body", b, "description required content")["content"])
			}
			for status, r := range o["responses"].(map[string]any) {
				r := may(where+" "+status, r, "description content")
				if r["description"] == "" {
					t.Errorf("%s %s has no description", where, status)
				}
				if c, ok := r["content"]; ok {
					content(where+" "+status, c)
				}
			}
		}
	}
	var refs func(v any)
	refs = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				if _, ok := d.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")]; !ok {
					t.Errorf("%s leads nowhere", ref)
				}
			}
			for _, e := range v {
				refs(e)
			}
		case []any:
			for _, e := range v {
				refs(e)
			}
		}
	}
	refs(root)
}
