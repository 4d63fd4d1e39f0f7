package config

import (
	"bytes"
	"encoding/json"
	"errors"
)

// WithNetwork returns text with the network that from has, or none: all else
// stays as it is, to the byte. Both are texts that Parse has accepted.
func WithNetwork(text, from []byte) ([]byte, error) {
	have, err := findMember(text, "network")
	if err != nil {
		return nil, err
	}
	other, err := findMember(from, "network")
	if err != nil {
		return nil, err
	}
	switch {
	case other.found && have.found:
		return splice(text, have.value, from[other.value.from:other.value.to]), nil
	case other.found:
		member := `"network": ` + string(from[other.value.from:other.value.to])
		if have.members > 0 {
			member = ",\n  " + member
		}
		return splice(text, span{have.end, have.end}, []byte(member)), nil
	case have.found:
		return splice(text, have.whole, nil), nil
	}
	return bytes.Clone(text), nil
}

type span struct{ from, to int }

func splice(text []byte, at span, with []byte) []byte {
	out := make([]byte, 0, len(text)-(at.to-at.from)+len(with))
	out = append(out, text[:at.from]...)
	out = append(out, with...)
	return append(out, text[at.to:]...)
}

// place is where a member of the outermost object stands.
type place struct {
	found   bool
	value   span
	whole   span // with its key, and one comma
	members int  // of the object
	end     int  // behind the object's last member
}

var errNoObject = errors.New("the text is no JSON object")

func findMember(text []byte, key string) (place, error) {
	var p place
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return p, errors.Join(errNoObject, err)
	}
	p.end = int(dec.InputOffset())
	for dec.More() {
		before := p.end // behind the member before, or the bracket
		t, err := dec.Token()
		if err != nil {
			return p, err
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return p, err
		}
		p.end = int(dec.InputOffset())
		if t == key {
			p.found = true
			p.value = span{p.end - len(v), p.end}
			p.whole = span{before, p.end}
			if p.members == 0 && dec.More() {
				p.whole.to += bytes.IndexByte(text[p.end:], ',') + 1
			}
		}
		p.members++
	}
	_, err := dec.Token() // the closing bracket
	return p, err
}
