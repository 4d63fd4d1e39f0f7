package server

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// layout writes a JSON text for people: what fits a line of 80 is on one.
func layout(t *testing.T, text []byte, indent string) string {
	t.Helper()
	line := oneLine(t, text)
	if len(indent)+len(line) <= 78 || line[0] != '{' && line[0] != '[' {
		return line
	}
	var b strings.Builder
	b.WriteString(line[:1])
	for i, m := range members(t, text) {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n" + indent + "  ")
		if m.key != "" {
			b.WriteString(m.key + ": ")
		}
		b.WriteString(layout(t, m.value.(json.RawMessage), indent+"  "))
	}
	b.WriteString("\n" + indent + line[len(line)-1:])
	return b.String()
}

func oneLine(t *testing.T, text []byte) string {
	t.Helper()
	text = bytes.TrimSpace(text)
	if text[0] != '{' && text[0] != '[' {
		return string(text)
	}
	var parts []string
	for _, m := range members(t, text) {
		s := oneLine(t, m.value.(json.RawMessage))
		if m.key != "" {
			s = m.key + ": " + s
		}
		parts = append(parts, s)
	}
	return string(text[0]) + strings.Join(parts, ", ") + string(text[len(text)-1])
}

// members of an object, their keys with quotes, or of an array, without.
func members(t *testing.T, text []byte) (out object) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	open, err := d.Token()
	for err == nil && d.More() {
		var m member
		if open == json.Delim('{') {
			var key json.Token
			key, err = d.Token()
			m.key = quoted(key.(string))
		}
		var value json.RawMessage
		if err == nil {
			err = d.Decode(&value)
		}
		m.value = value
		out = append(out, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLayout(t *testing.T) {
	long := strings.Repeat("x", 50)
	text := `{"a":1,"b":["` + long + `",{"c":{}},[]],"<é>":null}`
	want := "{\n  \"a\": 1,\n  \"b\": [\"" + long + "\", {\"c\": {}}, []],\n  \"<é>\": null\n}"
	got := layout(t, []byte(text), "")
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	var back bytes.Buffer
	if err := json.Compact(&back, []byte(got)); err != nil || back.String() != text {
		t.Errorf("back: %s, %v", &back, err)
	}
}
