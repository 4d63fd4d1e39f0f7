package strict

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type hexByte uint8

func (h *hexByte) UnmarshalText(p []byte) error {
	_, err := fmt.Sscanf(string(p), "0x%02x", (*uint8)(h))
	if err != nil {
		return fmt.Errorf("%q is not a hex byte", p)
	}
	return nil
}

type inner struct {
	Addr hexByte  `json:"addr"`
	Tags []string `json:"tags"`
}

type outer struct {
	Name  string            `json:"name" strict:"required"`
	On    bool              `json:"on"`
	Small uint8             `json:"small"`
	Big   int64             `json:"big"`
	One   *inner            `json:"one"`
	Many  []inner           `json:"many"`
	Map   map[string]uint16 `json:"map"`
}

func TestUnmarshal(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     outer
		errs     []string
	}{
		{name: "all kinds",
			in:   `{"name":"a","on":true,"small":255,"big":-9,"one":{"addr":"0x50","tags":["x"]},"many":[{"addr":"0x51"},{}],"map":{"k":65535}}`,
			want: outer{"a", true, 255, -9, &inner{0x50, []string{"x"}}, []inner{{Addr: 0x51}, {}}, map[string]uint16{"k": 65535}}},
		{name: "empty", in: " \n", errs: []string{"line 1: empty, want a JSON object"}},
		{name: "not an object", in: `[1]`, errs: []string{"line 1: is an array, want an object"}},
		{name: "trailing", in: `{"name":"a"}` + "\n{}", errs: []string{"line 2: not JSON: invalid character '{' after top-level value"}},
		{name: "cut off", in: "{\n\"name\": ", errs: []string{"line 2: not JSON: unexpected end of JSON input"}},
		{name: "comma", in: "{\n\"name\": \"a\",\n}", errs: []string{"line 3: not JSON: invalid character '}' looking for beginning of object key string"}},
		{name: "not UTF-8", in: "{\n\"name\": \"\xff\"}", errs: []string{"line 2: not UTF-8"}},
		{name: "case matters", in: `{"Name":"a"}`, errs: []string{
			"line 1: Name: unknown key; known here: big, many, map, name, on, one, small",
			"line 1: name: missing"}},
		{name: "twice", in: "{\"name\":\"a\",\n\"name\":\"b\",\n\"one\":{\"addr\":\"0x01\",\n\"addr\":\"0x02\"}}",
			want: outer{Name: "a", One: &inner{Addr: 1}},
			errs: []string{
				"line 2: name: given twice, first on line 1",
				"line 4: one.addr: given twice, first on line 3"}},
		{name: "twice, escaped", in: `{"name":"a","\u006eame":"b"}`, want: outer{Name: "a"},
			errs: []string{"line 1: name: given twice, first on line 1"}},
		{name: "null", in: `{"name":null}`, errs: []string{"line 1: name: is null: give a value or leave the key out"}},
		{name: "all at once", in: "{\n\"on\": 1,\n\"small\": 256,\n\"big\": 1.5,\n\"one\": {\"addr\": \"zz\"},\n\"many\": {},\n\"map\": {\"k\": \"v\"},\n\"what\": 0}",
			want: outer{One: &inner{}, Map: map[string]uint16{"k": 0}},
			errs: []string{
				"line 1: name: missing",
				"line 2: on: is a number, want true or false",
				"line 3: small: is 256, want a whole number from 0 to 255",
				"line 4: big: is 1.5, want a whole number of at most 64 bits",
				`line 5: one.addr: "zz" is not a hex byte`,
				"line 6: many: is an object, want an array",
				"line 7: map.k: is a string, want a whole number from 0 to 65535",
				"line 8: what: unknown key; known here: big, many, map, name, on, one, small"}},
		{name: "text as number", in: `{"name":"a","one":{"addr":80}}`, want: outer{Name: "a", One: &inner{}},
			errs: []string{"line 1: one.addr: is a number, want a string"}},
		{name: "text as object", in: `{"name":"a","one":{"addr":{}}}`, want: outer{Name: "a", One: &inner{}},
			errs: []string{"line 1: one.addr: is an object, want a string"}},
		{name: "too deep", in: strings.Repeat("[", 40) + strings.Repeat("]", 40),
			errs: []string{"line 1: " + strings.Repeat("[0]", MaxDepth) + ": nested deeper than 16"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got outer
			var errs []string
			for _, e := range Unmarshal([]byte(tt.in), &got) {
				errs = append(errs, e.Error())
			}
			if diff := cmp.Diff(tt.errs, errs); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("value (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLine(t *testing.T) {
	d, err := Parse([]byte("{\n\"a\": [\n  {\"b\": 1},\n  {\n\"c\": {}}\n]}"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"": 1, "a": 2, "a[0]": 3, "a[0].b": 3, "a[1]": 4, "a[1].c": 5,
		"a[1].c.gone": 5, "a[7].x": 2, "gone": 1,
	} {
		if got := d.Line(path); got != want {
			t.Errorf("Line(%q) = %d; want %d", path, got, want)
		}
	}
}

// FuzzUnmarshal: what is accepted without complaint is what encoding/json
// reads, survives encode and decode, and nothing panics.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"name":"a","one":{"addr":"0x50","tags":[]},"map":{"k":1}}`))
	f.Add([]byte(`{"name":"a","name":"b"}`))
	f.Add([]byte(`{"name":"a","big":-9223372036854775808,"small":1e2}`))
	f.Add([]byte("[[[[[[[[[[[[[[[[[[[[[[[[["))
	f.Add([]byte("{\"\x80\":0}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var v, std, again outer
		if errs := Unmarshal(data, &v); len(errs) > 0 {
			for _, e := range errs {
				if e.Line < 1 {
					t.Fatalf("line %d of %v", e.Line, e)
				}
			}
			return
		}
		v.One, v.Many = nil, nil // hexByte has no MarshalText
		if err := json.Unmarshal(data, &std); err != nil {
			t.Fatalf("encoding/json: %v", err)
		}
		std.One, std.Many = nil, nil
		if !reflect.DeepEqual(v, std) {
			t.Fatalf("got %+v; encoding/json %+v", v, std)
		}
		p, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if errs := Unmarshal(bytesWithoutNull(p), &again); len(errs) > 0 {
			t.Fatalf("%s: %v", p, errs)
		}
	})
}

// bytesWithoutNull drops the nulls that encoding/json writes for nil.
func bytesWithoutNull(p []byte) []byte {
	for _, k := range []string{"one", "many", "map"} {
		p = []byte(strings.Replace(string(p), `,"`+k+`":null`, "", 1))
	}
	return p
}
