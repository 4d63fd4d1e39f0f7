// Package strict reads JSON without forgiving anything, and remembers where in
// the text each value stood.
//
// encoding/json takes the last of two equal keys, matches keys in any case and
// knows no lines. For a configuration that a person wrote, and for requests
// that move hardware, that is too kind: here a key counts once, exactly as
// spelled, and every complaint has a key path and a line.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxDepth is how deep objects and arrays may nest.
const MaxDepth = 16

// Error is one thing that is wrong with a document.
type Error struct {
	Key  string // path, as "slots[2].eeprom.address"; "" = the document as a whole
	Line int    // from 1
	Text string
}

// Error gives "line 12: slots[2].name: text".
func (e Error) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("line %d: %s", e.Line, e.Text)
	}
	return fmt.Sprintf("line %d: %s: %s", e.Line, e.Key, e.Text)
}

// Doc is a parsed document.
type Doc struct {
	root  *node
	lines map[string]int
	dups  []Error
}

// node is one value and where it stood.
type node struct {
	path string
	line int
	val  any // string, json.Number, bool, nil, []*node or []member
}

type member struct {
	key  string
	node *node
}

// Parse reads one JSON value. Equal keys are no syntax error and are reported
// by Decode with all the rest.
func Parse(data []byte) (*Doc, *Error) {
	if !utf8.Valid(data) {
		off := 0
		for off < len(data) {
			r, n := utf8.DecodeRune(data[off:])
			if r == utf8.RuneError && n <= 1 {
				break
			}
			off += n
		}
		return nil, &Error{Line: lineAt(data, off), Text: "not UTF-8"}
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, &Error{Line: 1, Text: "empty, want a JSON object"}
	}
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		e := &Error{Line: 1, Text: "not JSON: " + err.Error()}
		if syn, ok := errors.AsType[*json.SyntaxError](err); ok {
			e.Line = lineAt(data, int(syn.Offset)-1)
		}
		return nil, e
	}
	p := parser{data: data, dec: json.NewDecoder(bytes.NewReader(data)), doc: &Doc{lines: map[string]int{}}, line: 1}
	p.dec.UseNumber()
	root, bad := p.value("", 0)
	if bad != nil {
		return nil, bad
	}
	p.doc.root = root
	return p.doc, nil
}

// Line says where the value at path stood; of a key that is not there, where
// the object stood that lacks it.
func (d *Doc) Line(path string) int {
	for {
		if n, ok := d.lines[path]; ok {
			return n
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return d.root.line
		}
		path = path[:i]
	}
}

type parser struct {
	data []byte
	dec  *json.Decoder
	doc  *Doc
	off  int // up to where lines were counted
	line int // at off
}

// token reads the next one and moves line to it. No token spans lines.
func (p *parser) token() (json.Token, *Error) {
	t, err := p.dec.Token()
	if err != nil {
		return nil, &Error{Line: p.line, Text: "not JSON: " + err.Error()}
	}
	end := int(p.dec.InputOffset())
	p.line += bytes.Count(p.data[p.off:end], []byte{'\n'})
	p.off = end
	return t, nil
}

func (p *parser) value(path string, depth int) (*node, *Error) {
	t, err := p.token()
	if err != nil {
		return nil, err
	}
	n := &node{path: path, line: p.line, val: t}
	p.doc.lines[path] = p.line
	d, ok := t.(json.Delim)
	if !ok {
		return n, nil
	}
	if depth >= MaxDepth {
		return nil, &Error{Key: path, Line: p.line, Text: fmt.Sprintf("nested deeper than %d", MaxDepth)}
	}
	if d == '[' {
		kids := []*node{}
		for p.dec.More() {
			kid, err := p.value(fmt.Sprintf("%s[%d]", path, len(kids)), depth+1)
			if err != nil {
				return nil, err
			}
			kids = append(kids, kid)
		}
		n.val = kids
	} else {
		members := []member{}
		first := map[string]int{}
		for p.dec.More() {
			t, err := p.token()
			if err != nil {
				return nil, err
			}
			key, _ := t.(string) // the syntax was checked: keys are strings
			line := p.line
			kid := path + "." + key
			if path == "" {
				kid = key
			}
			at, twice := first[key]
			keep := p.doc.lines[kid]
			v, err := p.value(kid, depth+1)
			if err != nil {
				return nil, err
			}
			if twice {
				p.doc.dups = append(p.doc.dups, Error{Key: kid, Line: line, Text: fmt.Sprintf("given twice, first on line %d", at)})
				p.doc.lines[kid] = keep
				continue
			}
			first[key] = line
			members = append(members, member{key, v})
		}
		n.val = members
	}
	_, err = p.token() // the closing bracket
	return n, err
}

func lineAt(data []byte, off int) int {
	off = max(0, min(off, len(data)))
	return 1 + bytes.Count(data[:off], []byte{'\n'})
}
