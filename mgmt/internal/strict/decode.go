package strict

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Unmarshal parses data and decodes it into the struct that v points to.
func Unmarshal(data []byte, v any) []Error {
	d, bad := Parse(data)
	if bad != nil {
		return []Error{*bad}
	}
	return d.Decode(v)
}

// Decode fills the struct that v points to and returns all that is wrong, in
// the order of the text: keys given twice, unknown keys, values of another
// type or out of range, null, and missing keys whose field has the tag
// `strict:"required"`. Field names come from the json tag and match exactly.
//
// It knows strings, booleans, integers, slices, maps with string keys, structs
// and pointers to these. A type with UnmarshalText takes a JSON string, and if
// it is a struct with keys, an object as well.
func (d *Doc) Decode(v any) []Error {
	dec := decoder{errs: slices.Clone(d.dups)}
	dec.value(d.root, reflect.ValueOf(v).Elem())
	slices.SortStableFunc(dec.errs, func(a, b Error) int { return a.Line - b.Line })
	return dec.errs
}

type decoder struct{ errs []Error }

func (d *decoder) bad(n *node, format string, args ...any) {
	d.errs = append(d.errs, Error{Key: n.path, Line: n.line, Text: fmt.Sprintf(format, args...)})
}

func (d *decoder) value(n *node, v reflect.Value) {
	if n.val == nil {
		d.bad(n, "is null: give a value or leave the key out")
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		s, isText := n.val.(string)
		_, isObject := n.val.([]member)
		switch {
		case isText:
			if err := u.UnmarshalText([]byte(s)); err != nil {
				d.bad(n, "%v", err)
			}
			return
		case !isObject || len(keys(v.Type())) == 0:
			d.bad(n, "is %s, want a string", kind(n.val))
			return
		}
	}
	switch v.Kind() {
	case reflect.Struct:
		d.object(n, v)
	case reflect.Map:
		members, ok := n.val.([]member)
		if !ok {
			d.bad(n, "is %s, want an object", kind(n.val))
			return
		}
		v.Set(reflect.MakeMap(v.Type()))
		for _, m := range members {
			e := reflect.New(v.Type().Elem()).Elem()
			d.value(m.node, e)
			v.SetMapIndex(reflect.ValueOf(m.key).Convert(v.Type().Key()), e)
		}
	case reflect.Slice:
		kids, ok := n.val.([]*node)
		if !ok {
			d.bad(n, "is %s, want an array", kind(n.val))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(kids), len(kids)))
		for i, k := range kids {
			d.value(k, v.Index(i))
		}
	case reflect.String:
		s, ok := n.val.(string)
		if !ok {
			d.bad(n, "is %s, want a string", kind(n.val))
			return
		}
		v.SetString(s)
	case reflect.Bool:
		b, ok := n.val.(bool)
		if !ok {
			d.bad(n, "is %s, want true or false", kind(n.val))
			return
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		num, ok := n.val.(json.Number)
		i, err := strconv.ParseInt(string(num), 10, v.Type().Bits())
		if !ok || err != nil {
			d.bad(n, "is %s, want a whole number of at most %d bits", shown(n.val), v.Type().Bits())
			return
		}
		v.SetInt(i)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		num, ok := n.val.(json.Number)
		u, err := strconv.ParseUint(string(num), 10, v.Type().Bits())
		if !ok || err != nil {
			d.bad(n, "is %s, want a whole number from 0 to %d", shown(n.val), uint64(1)<<v.Type().Bits()-1)
			return
		}
		v.SetUint(u)
	default:
		panic(fmt.Sprintf("strict: %s: no rule for %s", n.path, v.Type()))
	}
}

func (d *decoder) object(n *node, v reflect.Value) {
	members, ok := n.val.([]member)
	if !ok {
		d.bad(n, "is %s, want an object", kind(n.val))
		return
	}
	t := v.Type()
	fields := keys(t)
	for _, m := range members {
		i, ok := fields[m.key]
		if !ok {
			names := make([]string, 0, len(fields))
			for f := range fields {
				names = append(names, f)
			}
			slices.Sort(names)
			d.bad(m.node, "unknown key; known here: %s", strings.Join(names, ", "))
			continue
		}
		d.value(m.node, v.Field(i))
	}
	for f := range t.Fields() {
		if f.Tag.Get("strict") != "required" {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !slices.ContainsFunc(members, func(m member) bool { return m.key == name }) {
			key := name
			if n.path != "" {
				key = n.path + "." + name
			}
			d.errs = append(d.errs, Error{Key: key, Line: n.line, Text: "missing"})
		}
	}
}

// keys maps the keys of a struct to its fields; other types have none.
func keys(t reflect.Type) map[string]int {
	fields := map[string]int{}
	if t.Kind() != reflect.Struct {
		return fields
	}
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = i
		}
	}
	return fields
}

func kind(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case json.Number:
		return "a number"
	case bool:
		return "true or false"
	case []*node:
		return "an array"
	default:
		return "an object"
	}
}

// shown is the value where it is short, else its kind.
func shown(v any) string {
	if n, ok := v.(json.Number); ok && len(n) <= 24 {
		return string(n)
	}
	return kind(v)
}
