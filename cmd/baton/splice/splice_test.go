package splice

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const sample = `{
  "enclosure": "rack7-io2",
  "buses": { "i2c-5": "/dev/i2c-5" },

  "hosts": [
    { "name": "server1", "group": 101 },
    { "name": "server2", "group": 102 }
  ],
  "vms": [
    {
      "name": "train1",
      "hosts": ["server1", "server2"],
      "policy": "always"
    }
  ]
}
`

func TestSet(t *testing.T) {
	for _, tt := range []struct{ key, value, old, new string }{
		{"vms[train1].policy", `"never"`, `"always"`, `"never"`},
		{"vms[0].policy", `"never"`, `"always"`, `"never"`},
		{"hosts[server2].group", "109", "102", "109"},
		{"enclosure", `"x"`, `"rack7-io2"`, `"x"`},
		{"buses[i2c-5]", `"/dev/i2c-6"`, `"/dev/i2c-5"`, `"/dev/i2c-6"`},
		{"buses.i2c-6", `"/dev/i2c-6"`, `"/dev/i2c-5" }`, `"/dev/i2c-5", "i2c-6": "/dev/i2c-6" }`},
		{"vms[train1].hosts[server3]", `"server3"`, `["server1", "server2"]`, `["server1", "server2", "server3"]`},
		{"vms[train1].hosts[server2]", `"server3"`, `["server1", "server2"]`, `["server1", "server3"]`},
		{"hosts[server3]", `{"group": 103}`, "102 }\n", "102 },\n    {\"name\": \"server3\", \"group\": 103}\n"},
		{"hosts[server3]", ` {} `, "102 }\n", "102 },\n    {\"name\": \"server3\"}\n"},
		{"hosts[server1]", `{"group": 7}`, `{ "name": "server1", "group": 101 }`, `{"name": "server1", "group": 7}`},
		{"hosts[0]", `{"name": "s"}`, `{ "name": "server1", "group": 101 }`, `{"name": "s"}`},
		{"vms[train1].uuid", `"u"`, "\"always\"\n", "\"always\",\n      \"uuid\": \"u\"\n"},
		{"network.address", `"10.0.0.5/24"`, "  ]\n}", "  ],\n  \"network\": {\"address\": \"10.0.0.5/24\"}\n}"},
		{"keys[a]", `{}`, "  ]\n}", "  ],\n  \"keys\": [{\"name\": \"a\"}]\n}"},
		{"hosts[server1].slots[x]", `"x"`, "101 }", `101, "slots": ["x"] }`},
	} {
		got, err := Set([]byte(sample), tt.key, []byte(tt.value))
		if err != nil {
			t.Errorf("Set(%s): %v", tt.key, err)
			continue
		}
		if strings.Count(sample, tt.old) == 0 {
			t.Fatalf("%s: the sample has no %q", tt.key, tt.old)
		}
		i := strings.LastIndex(sample, tt.old)
		if tt.key == "vms[train1].hosts[server3]" || tt.key == "vms[0].policy" {
			i = strings.Index(sample, tt.old)
		}
		want := sample[:i] + tt.new + sample[i+len(tt.old):]
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("Set(%s) (-want +got):\n%s", tt.key, diff)
		}
	}
}

func TestDelete(t *testing.T) {
	for _, tt := range []struct{ key, old, new string }{
		{"hosts[server1]", "{ \"name\": \"server1\", \"group\": 101 },\n    ", ""},
		{"hosts[server2]", ",\n    { \"name\": \"server2\", \"group\": 102 }", ""},
		{"vms[train1].policy", ",\n      \"policy\": \"always\"", ""},
		{"vms[train1].hosts[0]", `["server1", "server2"]`, `["server2"]`},
		{"buses.i2c-5", `{ "i2c-5": "/dev/i2c-5" }`, "{}"},
	} {
		got, err := Delete([]byte(sample), tt.key)
		if want := strings.Replace(sample, tt.old, tt.new, 1); err != nil || want == sample || string(got) != want {
			t.Errorf("Delete(%s): %v\n%s", tt.key, err, cmp.Diff(want, string(got)))
		}
	}
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct{ key, value, want string }{
		{"vms[train9].policy", `"never"`, `vms has no "train9"; it has train1`},
		{"vms.policy", `"never"`, "vms is a list: name an element, as vms[policy]"},
		{"vms[7].policy", `"never"`, "vms has 1 elements"},
		{"hosts[server3]", `{"name": "server4"}`, `would be called "server4", not "server3"`},
		{"hosts[server1]", `{"name": "server4"}`, `would be called "server4", not "server1"`},
		{"vms[train1].hosts[server3]", `"server4"`, `would be called "server4", not "server3"`},
		{"enclosure.name", `"x"`, "enclosure is a single value"},
		{"enclosure", `x`, "not JSON"},
		{"", `1`, "not a key"},
		{"a..b", `1`, "not a key"},
		{"a[b", `1`, "not a key"},
		{"a[]", `1`, "not a key"},
		{"[a]", `1`, "not a key"},
		{"a[b]c", `1`, "not a key"},
		{".a", `1`, "not a key"},
	} {
		if got, err := Set([]byte(sample), tt.key, []byte(tt.value)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Set(%s): %v; want %s\n%s", tt.key, err, tt.want, got)
		}
	}
	for _, key := range []string{"hosts[server9]", "vms[train1].uuid", "store.bus"} {
		if _, err := Delete([]byte(sample), key); err == nil || !strings.Contains(err.Error(), "there is none") {
			t.Errorf("Delete(%s): %v", key, err)
		}
	}
	for _, text := range []string{"", "{", "[1] 2", "7"} {
		if _, err := Set([]byte(text), "a", []byte("1")); err == nil {
			t.Errorf("Set in %q: no error", text)
		}
	}
}

func TestValue(t *testing.T) {
	for typed, want := range map[string]string{
		"never": `"never"`, `"never"`: `"never"`, "101": "101", "true": "true", "0x57": `"0x57"`,
		"10.0.0.5/24": `"10.0.0.5/24"`, ` {"a": 1}`: `{"a": 1}`, "a<b": `"a<b"`, "8c:df:9d:00:02:01": `"8c:df:9d:00:02:01"`,
	} {
		if got, err := Value(typed); err != nil || string(got) != want {
			t.Errorf("Value(%s) = %s, %v; want %s", typed, got, err, want)
		}
	}
	for _, typed := range []string{"", `{"a": }`, "[1", `"x`} {
		if got, err := Value(typed); err == nil {
			t.Errorf("Value(%s) = %s; want an error", typed, got)
		}
	}
}

// TestSetAnything: in any document, at any place, a value that is set can be
// got, what is deleted is gone, and all the rest is byte for byte in order.
func TestSetAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := map[string]any{"top": document(t, 3)}
		text, _ := json.Marshal(doc)
		if rapid.Bool().Draw(t, "indented") {
			text, _ = json.MarshalIndent(doc, "", rapid.SampledFrom([]string{" ", "\t", "    "}).Draw(t, "indent"))
		}
		keys := paths(parse(text), "")
		if len(keys) == 0 {
			return
		}
		key := rapid.SampledFrom(keys).Draw(t, "key")
		got, err := Set(text, key, []byte(`"new value"`))
		if err != nil {
			t.Fatalf("Set(%s): %v\n%s", key, err, text)
		}
		if v, err := Get(got, key); err != nil || string(v) != `"new value"` {
			t.Fatalf("Get(%s) = %s, %v\n%s", key, v, err, got)
		}
		old, _ := Get(text, key)
		before, after, _ := bytes.Cut(got, []byte(`"new value"`))
		if back := cat(before, old, after); !bytes.Equal(back, text) {
			t.Fatalf("Set(%s) changed more:\n%s\n%s", key, text, got)
		}
		less, err := Delete(text, key)
		if err != nil || !json.Valid(less) {
			t.Fatalf("Delete(%s): %v\n%s", key, err, less)
		}
		if n := len(paths(parse(less), "")) + len(paths(at(text, key), "")) + 1; n != len(keys) {
			t.Fatalf("Delete(%s): %d keys of %d are accounted for\n%s\n%s", key, n, len(keys), text, less)
		}
		more, err := Set(text, "added", []byte("1"))
		if err != nil || !json.Valid(more) {
			t.Fatalf("Set(added): %v\n%s", err, more)
		}
		if back, err := Delete(more, "added"); err != nil || !bytes.Equal(back, text) {
			t.Fatalf("added and deleted: %v\n%s\n%s", err, text, back)
		}
	})
}

// document draws a value whose members and elements have different names.
func document(t *rapid.T, depth int) any {
	kinds := []string{"word", "number", "null"}
	if depth > 0 {
		kinds = append(kinds, "object", "list", "object", "list")
	}
	switch rapid.SampledFrom(kinds).Draw(t, "kind") {
	case "object":
		m := map[string]any{}
		for i := range rapid.IntRange(0, 4).Draw(t, "members") {
			m[fmt.Sprintf("m%d", i)] = document(t, depth-1)
		}
		return m
	case "list":
		l := []any{}
		for range rapid.IntRange(0, 4).Draw(t, "elements") {
			l = append(l, document(t, depth-1))
		}
		return l
	case "number":
		return rapid.Float64Range(-1e9, 1e9).Draw(t, "number")
	case "null":
		return nil
	}
	return "word: {[,]} \"\u00f6\\" + rapid.StringMatching(`[a-z]{0,3}`).Draw(t, "word")
}

// paths lists the keys of all that is in n.
func paths(n *node, above string) []string {
	var out []string
	for i, kid := range n.kids {
		key := strings.TrimPrefix(above+"."+kid.name, ".")
		if n.kind == '[' {
			key = fmt.Sprintf("%s[%d]", above, i)
		}
		out = append(out, key)
		out = append(out, paths(kid, key)...)
	}
	return out
}

// at finds the value whose bytes are those at key.
func at(text []byte, key string) *node {
	v, _ := Get(text, key)
	return parse(v)
}

func FuzzSet(f *testing.F) {
	f.Add([]byte(sample), "vms[train1].policy", `"x"`)
	f.Add([]byte(`{"a":[{"name":"x"}]}`), "a[y]", `{}`)
	f.Fuzz(func(t *testing.T, text []byte, key, value string) {
		got, err := Set(text, key, []byte(value))
		if err == nil && !json.Valid(got) {
			t.Fatalf("Set(%q, %s, %s) = %q", text, key, value, got)
		}
		if got, err = Delete(text, key); err == nil && !json.Valid(got) {
			t.Fatalf("Delete(%q, %s) = %q", text, key, got)
		}
	})
}
