package mgmt

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"baton/mgmt/internal/strict"
)

// testdata/v1 has the bytes of version 1 of the interface: of each request and
// answer, one with every key and one with as few as may be.
//
// A test here that fails means: take the change back. Clients that are out
// there send and read these bytes. A key that is new has omitempty and gets a
// file of its own, NAME.2.json and so on; what there is stays as it is.
//
// -freeze writes the files that are missing, and never touches one that is
// there.
var freeze = flag.Bool("freeze", false, "write those files of testdata/v1 that are missing")

// requests are what clients send, answers what the agent sends.
var (
	requests = []any{
		MoveRequest{}, AttachRequest{}, ArmRequest{}, DisarmRequest{}, AckRequest{}, AliveRequest{}, ReleaseRequest{}, UnfenceRequest{}, DrainRequest{},
		AdoptRequest{}, LocateRequest{}, PowerRequest{}, ResetRequest{}, ResolveRequest{}, ConfigRequest{}, RestoreRequest{}, RepairRequest{}, ConsoleNote{},
	}
	answers = []any{
		Enclosure{}, Slots{}, Slot{}, Verdict{}, Hosts{}, Host{}, Moves{}, Move{}, Attached{}, Arming{}, Fenced{}, Events{}, Event{}, Audit{}, Drained{},
		Adoption{}, Config{}, ConfigApplied{}, Backup{}, Restored{}, NVMReport{}, NVMDump{}, Check{}, Problem{},
	}
)

const frozenDir = "testdata/v1"

// encoded is v as its sender encodes it.
func encoded(t *testing.T, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestFrozen: what was sent and read once, is still.
func TestFrozen(t *testing.T) {
	keys := map[string]bool{} // "Type.key": in some file it has a value
	files := map[string]bool{}
	check := func(v any, decode func([]byte, any) error) {
		typ := reflect.TypeOf(v)
		for kind, value := range map[string]reflect.Value{"full": full(typ, ""), "min": least(typ)} {
			path := filepath.Join(frozenDir, typ.Name()+"."+kind+".json")
			if _, err := os.Stat(path); *freeze && errors.Is(err, fs.ErrNotExist) {
				if err := os.WriteFile(path, encoded(t, value.Interface()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		names, err := filepath.Glob(filepath.Join(frozenDir, typ.Name()+".*.json"))
		if err != nil || len(names) < 2 {
			t.Errorf("%s: %d files, %v; go test ./mgmt -freeze writes them", typ.Name(), len(names), err)
		}
		for _, name := range names {
			files[name] = true
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			p := reflect.New(typ)
			if err := decode(text, p.Interface()); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if got := encoded(t, p.Elem().Interface()); !bytes.Equal(got, text) {
				t.Errorf("%s: %s comes back as\n%s", name, text, got)
			}
			used(p.Elem(), keys)
		}
	}
	for _, r := range requests {
		check(r, func(text []byte, v any) error { // as the agent does
			if errs := strict.Unmarshal(text, v); len(errs) > 0 {
				return errs[0]
			}
			return nil
		})
	}
	for _, a := range answers {
		check(a, json.Unmarshal)
	}
	for key := range wireKeys(t) {
		if !keys[key] {
			t.Errorf("no file of %s has a value for %s", frozenDir, key)
		}
	}
	all, err := filepath.Glob(filepath.Join(frozenDir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if !files[name] {
			t.Errorf("%s is of no type", name)
		}
	}
}

// TestNewKeys: an older client reads an answer with keys that it does not know;
// an older agent refuses a request with one.
func TestNewKeys(t *testing.T) {
	text := []byte(`{"host":"server1","epoch":2,"slots":[],"new_key":{"a":[1]}}`)
	var f Fenced
	if err := json.Unmarshal(text, &f); err != nil || f.Epoch != 2 {
		t.Errorf("%+v, %v", f, err)
	}
	var u UnfenceRequest
	if errs := strict.Unmarshal([]byte(`{"epoch":2,"new_key":1}`), &u); len(errs) != 1 {
		t.Errorf("%v", errs)
	}
}

// wireKeys are the keys of all types of this package that have some.
func wireKeys(t *testing.T) map[string]bool {
	t.Helper()
	keys := map[string]bool{}
	for _, name := range []string{"wire.go", "problem.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			ts, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if st, ok := ts.Type.(*ast.StructType); ok {
				for _, f := range st.Fields.List {
					if f.Tag != nil {
						key, _ := keyOf(reflect.StructTag(strings.Trim(f.Tag.Value, "`")))
						keys[ts.Name.Name+"."+key] = true
					}
				}
			}
			return false
		})
	}
	if len(keys) < 200 {
		t.Fatalf("found only %d keys", len(keys))
	}
	return keys
}

func keyOf(tag reflect.StructTag) (key string, omit bool) {
	key, rest, _ := strings.Cut(tag.Get("json"), ",")
	return key, rest == "omitempty"
}

// used notes which keys have a value.
func used(v reflect.Value, keys map[string]bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			used(v.Elem(), keys)
		}
	case reflect.Slice:
		for i := range v.Len() {
			used(v.Index(i), keys)
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			used(v.MapIndex(k), keys)
		}
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(v.Type()) {
			if key, _ := keyOf(f.Tag); key != "" {
				if x := v.FieldByIndex(f.Index); !x.IsZero() {
					keys[v.Type().Name()+"."+key] = true
					used(x, keys)
				}
			}
		}
	}
}

// full has a value everywhere. Texts are of all kinds that JSON may write in
// more than one way.
func full(t reflect.Type, key string) reflect.Value {
	v := reflect.New(t).Elem()
	switch {
	case t == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Date(2026, 5, 4, 10, 20, 30, 120_000_000, time.UTC)))
		return v
	case t == reflect.TypeFor[[]byte]():
		v.SetBytes([]byte{0x00, 0x7F, 0xFF, 0x42})
		return v
	}
	switch t.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		v.Elem().Set(full(t.Elem(), key))
	case reflect.String:
		v.SetString(key)
		if slices.Contains([]string{"text", "reason", "detail"}, key) {
			v.SetString(key + " \"a\\b\" <é> & \t->")
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(len(key))*1000 + 7)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1<<t.Bits() - 1)
	case reflect.Slice:
		for range 2 {
			v.Set(reflect.Append(v, full(t.Elem(), key)))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(t))
		for _, k := range []string{"gpu0", "nic0"} {
			v.SetMapIndex(reflect.ValueOf(k), full(t.Elem(), key))
		}
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			k, _ := keyOf(f.Tag)
			v.FieldByIndex(f.Index).Set(full(f.Type, k))
		}
	}
	return v
}

// least has nothing that may be left out; lists and maps are empty.
func least(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	for _, f := range reflect.VisibleFields(t) {
		x := v.FieldByIndex(f.Index)
		_, omit := keyOf(f.Tag)
		switch {
		case omit:
		case f.Type.Kind() == reflect.Slice:
			x.Set(reflect.MakeSlice(f.Type, 0, 0))
		case f.Type.Kind() == reflect.Map:
			x.Set(reflect.MakeMap(f.Type))
		case f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[time.Time]():
			x.Set(least(f.Type))
		}
	}
	return v
}
