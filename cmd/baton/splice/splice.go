// Package splice changes single values in a JSON text and leaves the rest of
// it as it was written: order, indentation and line ends are a person's.
//
// A key is a path: names of members with dots between, and elements of lists
// in brackets, by index, by the "name" that they have, or, of strings, by the
// string itself: vms[train1].policy, hosts[1].group, vms[train1].hosts[server2].
// What is in brackets may also be a member: buses[i2c-5] is buses.i2c-5.
package splice

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Set gives key the value, which is JSON. Objects that are missing on the way
// are made, and so is the last part of the key: a member, or an element of a
// list that goes to its end and, if it is an object, gets the name it is
// called by. Text that is not one JSON document is an error.
func Set(text []byte, key string, value []byte) ([]byte, error) {
	root, path, err := prepare(text, key)
	if err != nil {
		return nil, err
	}
	value = bytes.TrimSpace(value)
	if !json.Valid(value) {
		return nil, fmt.Errorf("%s: the value is not JSON", key)
	}
	n := root
	for i, p := range path {
		kid, err := n.find(p, path[:i])
		if err != nil {
			return nil, err
		}
		if kid != nil {
			n = kid
			continue
		}
		if n.kind == '[' && i < len(path)-1 {
			return nil, fmt.Errorf("%s: %s", key, noElement(n, p, path[:i]))
		}
		add, err := build(path[i+1:], value)
		if err != nil {
			return nil, err
		}
		return n.insert(text, p, add, path[:i])
	}
	if last := path[len(path)-1]; n.element && n.kind == '{' && n.name == last.name {
		if value, err = named(value, last.name); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return cat(text[:n.start], value, text[n.end:]), nil
}

// Delete removes a member or an element.
func Delete(text []byte, key string) ([]byte, error) {
	n, path, err := prepare(text, key)
	if err != nil {
		return nil, err
	}
	var parent *node
	for i, p := range path {
		kid, err := n.find(p, path[:i])
		if err != nil {
			return nil, err
		}
		if kid == nil {
			return nil, fmt.Errorf("%s: there is none", key)
		}
		parent, n = n, kid
	}
	i := 0
	for parent.kids[i] != n {
		i++
	}
	switch {
	case len(parent.kids) == 1:
		return cat(text[:parent.start+1], text[parent.end-1:]), nil
	case i < len(parent.kids)-1:
		return cat(text[:n.from], text[parent.kids[i+1].from:]), nil
	}
	return cat(text[:parent.kids[i-1].end], text[n.end:]), nil
}

// Get returns the bytes of the value at key.
func Get(text []byte, key string) ([]byte, error) {
	n, path, err := prepare(text, key)
	if err != nil {
		return nil, err
	}
	for i, p := range path {
		kid, err := n.find(p, path[:i])
		if err != nil {
			return nil, err
		}
		if kid == nil {
			return nil, fmt.Errorf("%s: there is none", key)
		}
		n = kid
	}
	return text[n.start:n.end], nil
}

// Value is the JSON of what a person typed: JSON as it is, else a word, which
// is a string. What looks like JSON and is none is an error.
func Value(typed string) ([]byte, error) {
	s := strings.TrimSpace(typed)
	if json.Valid([]byte(s)) {
		return []byte(s), nil
	}
	if s == "" || strings.ContainsRune(`{["`, rune(s[0])) {
		return nil, fmt.Errorf("%q is not JSON", typed)
	}
	return marshal(typed), nil
}

// part of a path.
type part struct {
	name    string
	bracket bool
}

func prepare(text []byte, key string) (*node, []part, error) {
	if !json.Valid(text) { // bounds the depth as well
		return nil, nil, errors.New("the text is not JSON")
	}
	path, err := parsePath(key)
	if err != nil {
		return nil, nil, err
	}
	return parse(text), path, nil
}

func parsePath(key string) ([]part, error) {
	bad := fmt.Errorf("%q is not a key, want the form vms[train1].policy", key)
	var out []part
	for rest := key; rest != ""; {
		if rest[0] == '[' {
			end := strings.IndexByte(rest, ']')
			if end < 2 || len(out) == 0 {
				return nil, bad
			}
			out = append(out, part{strings.Trim(rest[1:end], `"`), true})
			rest = rest[end+1:]
			continue
		}
		if len(out) > 0 {
			if rest[0] != '.' {
				return nil, bad
			}
			rest = rest[1:]
		}
		end := strings.IndexAny(rest, ".[")
		if end < 0 {
			end = len(rest)
		}
		if end == 0 {
			return nil, bad
		}
		out = append(out, part{rest[:end], false})
		rest = rest[end:]
	}
	if len(out) == 0 {
		return nil, bad
	}
	return out, nil
}

// show writes a path as it is typed.
func show(path []part) string {
	var b strings.Builder
	for i, p := range path {
		switch {
		case p.bracket:
			fmt.Fprintf(&b, "[%s]", p.name)
		case i > 0:
			b.WriteString("." + p.name)
		default:
			b.WriteString(p.name)
		}
	}
	return b.String()
}

// node is a value and where it is in the text.
type node struct {
	kind       byte // '{', '[', 's' for a string, 'v' for others
	start, end int  // of the value
	from       int  // of the member's name, or of the value
	name       string
	text       string // of a string
	element    bool   // of a list
	kids       []*node
}

// parse reads text, which is valid.
func parse(text []byte) *node {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	p := parser{d: d, text: text}
	return p.value()
}

type parser struct {
	d    *json.Decoder
	text []byte
}

// token returns the next one and where it begins.
func (p *parser) token() (json.Token, int) {
	at := int(p.d.InputOffset())
	for at < len(p.text) && strings.IndexByte(" \t\r\n,:", p.text[at]) >= 0 {
		at++
	}
	t, err := p.d.Token()
	if err != nil {
		panic("splice: token of valid JSON: " + err.Error())
	}
	return t, at
}

func (p *parser) value() *node {
	t, at := p.token()
	n := &node{kind: 'v', start: at, from: at}
	switch t := t.(type) {
	case json.Delim:
		n.kind = byte(t)
		for p.d.More() {
			var kid *node
			if n.kind == '{' {
				key, from := p.token()
				kid = p.value()
				kid.from, kid.name = from, key.(string)
			} else {
				kid = p.value()
				kid.element = true
				kid.name = kid.ownName()
			}
			n.kids = append(n.kids, kid)
		}
		p.token() // its end
	case string:
		n.kind, n.text = 's', t
	}
	n.end = int(p.d.InputOffset())
	return n
}

// ownName is what an element of a list is called.
func (n *node) ownName() string {
	if n.kind == 's' {
		return n.text
	}
	for _, kid := range n.kids {
		if n.kind == '{' && kid.name == "name" && kid.kind == 's' {
			return kid.text
		}
	}
	return ""
}

// find returns the kid that p names, nil if there is none. Above is the path
// to n.
func (n *node) find(p part, above []part) (*node, error) {
	where := show(above)
	switch {
	case n.kind == '{':
		for _, kid := range n.kids {
			if kid.name == p.name {
				return kid, nil
			}
		}
		return nil, nil
	case n.kind == '[' && p.bracket:
		for _, kid := range n.kids {
			if kid.name == p.name {
				return kid, nil
			}
		}
		i, err := strconv.Atoi(p.name)
		if err != nil {
			return nil, nil
		}
		if i < 0 || i >= len(n.kids) {
			return nil, fmt.Errorf("%s has %d elements, so there is no [%s]", where, len(n.kids), p.name)
		}
		return n.kids[i], nil
	case n.kind == '[':
		return nil, fmt.Errorf("%s is a list: name an element, as %s[%s]", where, where, p.name)
	case where == "":
		return nil, errors.New("the text is no object")
	}
	return nil, fmt.Errorf("%s is a single value: there is no %s in it", where, show(append(above[:len(above):len(above)], p)))
}

func noElement(list *node, p part, above []part) string {
	var have []string
	for _, kid := range list.kids {
		if kid.name != "" {
			have = append(have, kid.name)
		}
	}
	s := fmt.Sprintf("%s has no %q", show(above), p.name)
	if len(have) > 0 {
		s += "; it has " + strings.Join(have, ", ")
	}
	return s
}

// build wraps value into the objects and lists that path asks for.
func build(path []part, value []byte) ([]byte, error) {
	for i := len(path) - 1; i >= 0; i-- {
		p := path[i]
		if p.bracket {
			v, err := named(value, p.name)
			if err != nil {
				return nil, err
			}
			value = cat([]byte("["), v, []byte("]"))
			continue
		}
		value = cat([]byte("{"), marshal(p.name), []byte(": "), value, []byte("}"))
	}
	return value, nil
}

// named makes an element that is called name: an object without a name gets
// it, and one with another name is an error.
func named(value []byte, name string) ([]byte, error) {
	n := parse(value)
	if n.kind != '{' {
		if own := n.ownName(); own != "" && own != name {
			return nil, fmt.Errorf("the element would be called %q, not %q", own, name)
		}
		return value, nil
	}
	for _, kid := range n.kids {
		if kid.name == "name" {
			if own := n.ownName(); own != name {
				return nil, fmt.Errorf("the element would be called %q, not %q", own, name)
			}
			return value, nil
		}
	}
	if _, err := strconv.Atoi(name); err == nil {
		return value, nil // an index
	}
	comma := ", "
	if len(n.kids) == 0 {
		comma = ""
	}
	return cat(value[:n.start+1], []byte(`"name": `), marshal(name), []byte(comma), bytes.TrimLeft(value[n.start+1:], " \t\r\n")), nil
}

// insert puts a member or element to the end of n, in the manner of those
// before it.
func (n *node) insert(text []byte, p part, value []byte, above []part) ([]byte, error) {
	add := value
	switch n.kind {
	case '{':
		add = cat(marshal(p.name), []byte(": "), value)
	case '[':
		var err error
		if add, err = named(value, p.name); err != nil {
			return nil, fmt.Errorf("%s: %w", show(append(above[:len(above):len(above)], p)), err)
		}
	}
	if len(n.kids) == 0 {
		return cat(text[:n.start+1], add, text[n.end-1:]), nil
	}
	last := n.kids[len(n.kids)-1]
	// What stands between the start of a line, or the one before, and it.
	begin := n.start + 1
	if len(n.kids) > 1 {
		begin = n.kids[len(n.kids)-2].end
	}
	between := text[begin:last.from]
	space := between[bytes.LastIndexByte(between, ',')+1:]
	if len(n.kids) == 1 && bytes.IndexByte(space, '\n') < 0 {
		space = []byte(" ")
	}
	return cat(text[:last.end], []byte(","), space, add, text[last.end:]), nil
}

func marshal(s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always can be
	return bytes.TrimSpace(b.Bytes())
}

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
