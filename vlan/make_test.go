package vlan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// bare is bed's with Make, before anybody made a bridge: its interfaces are
// nobody's.
func bare() (*fake, *Switch) {
	f, s := bed(func(c *Config) { c.Make = true })
	f.now, f.nics = seen{}, map[string]nic{}
	for i, n := range []string{"up", "lan0", "lan1", "lan2"} {
		f.nics[n] = nic{found: true, index: 20 + i}
	}
	return f, s
}

// repair is Repair and what it told.
func repair(t *testing.T, s *Switch) (string, error) {
	t.Helper()
	done, err := s.Repair(t.Context())
	var out []string
	for _, r := range done {
		out = append(out, r.Text)
	}
	return strings.Join(out, "; "), err
}

func TestMake(t *testing.T) {
	f, s := bare()
	if err := s.Make(t.Context()); err != nil {
		t.Fatal(err)
	}
	const asked = "create br0; enslave up; enslave lan0; enslave lan1; enslave lan2"
	if got := strings.Join(f.asked[:5], "; "); got != asked {
		t.Errorf("asked %s; want %s", got, asked)
	}
	if slices.Sort(f.up); fmt.Sprint(f.up) != "[10 20 21 22 23]" {
		t.Errorf("raised %v; want bridge and ports", f.up)
	}
	if got, want := f.shown(), "up: none; lan0: none; lan1: none; lan2: none"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	told, err := repair(t, s)
	const want = "bridge br0 was absent and is made: it filters VLANs, and gives new ports none; port up was in no bridge and is now in br0, in no VLAN yet; port lan0 "
	if err != nil || !strings.HasPrefix(told, want) {
		t.Errorf("told %q, %v; want %q", told, err, want)
	}
	f.asked = nil
	if told, err := repair(t, s); told != "" || err != nil || len(f.asked) > 0 {
		t.Errorf("and again: %q, %v, %v", told, err, f.asked)
	}
	set(t, s, "lan0", 101)
	if got, want := f.shown(), "up: 101; lan0: 101; lan1: none; lan2: none"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	// What goes away while the agent runs comes back with what is wanted.
	f.now = seen{}
	for n, i := range f.nics {
		i.master = 0
		f.nics[n] = i
	}
	if _, err := repair(t, s); err != nil || f.shown() != "up: 101; lan0: 101; lan1: none; lan2: none" {
		t.Errorf("made again: %v, %s", err, f.shown())
	}
}

// TestMakeNot: without the key nothing is made.
func TestMakeNot(t *testing.T) {
	f, s := bare()
	s.c.Make = false
	if err := s.Make(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := repair(t, s); err == nil || len(f.asked) > 0 {
		t.Errorf("%v, asked %v", err, f.asked)
	}
}

// TestMakeLate: drivers come one after the other, as on the board.
func TestMakeLate(t *testing.T) {
	f, s := bare()
	all := f.nics
	f.nics = map[string]nic{}
	f.fail = func(what string) error {
		if strings.HasPrefix(what, "create") {
			return unix.EOPNOTSUPP
		}
		return nil
	}
	unseen := func(port string, group uint16, want string) {
		t.Helper()
		if err := s.Set(t.Context(), port, group); !errors.Is(err, ErrUnseen) || !strings.Contains(err.Error(), want) {
			t.Errorf("Set(%s, %d) = %v; want %q, ErrUnseen", port, group, err, want)
		}
	}
	if err := s.Make(t.Context()); !errors.Is(err, ErrUnseen) {
		t.Errorf("Make = %v; want ErrUnseen", err)
	}
	unseen("lan0", 101, "there is no bridge br0, and it could not be made: operation not supported")
	if w := s.Warnings(); len(w) != 1 || !strings.Contains(w[0], "could not be made") {
		t.Errorf("warnings %q", w)
	}
	f.fail = nil
	const absent = "there is no port lan0; it is added to bridge br0 when its driver is there"
	if _, err := repair(t, s); err == nil || !strings.Contains(err.Error(), absent) {
		t.Errorf("Repair = %v; want %q", err, absent)
	}
	unseen("lan0", 101, absent)
	unseen("lan0", 0, absent)
	f.nics = all
	told, err := repair(t, s)
	if err != nil || !strings.Contains(told, "port lan0 was in no bridge and is now in br0") {
		t.Errorf("%q, %v", told, err)
	}
	set(t, s, "lan0", 101)
}

// TestMakeRefused: what is another's is named and left.
func TestMakeRefused(t *testing.T) {
	there := func(f *fake) {
		f.now = seen{found: true, kind: "bridge", filtering: true, protocol: tagProtocol, index: 10}
	}
	for _, tt := range []struct {
		name  string
		f     func(*fake)
		want  string
		asked string
	}{
		{"other master", func(f *fake) { there(f); f.nics["lan0"] = nic{true, 21, 7, ""} }, "lan0 is a port of another interface (number 7)", "lan0"},
		{"address", func(f *fake) { there(f); f.nics["up"] = nic{true, 20, 0, "192.0.2.1/24"} }, "up has the address 192.0.2.1/24", "up"},
		{"absent", func(f *fake) { there(f); delete(f.nics, "lan1") }, "there is no port lan1", "lan1"},
		{"PVID", func(f *fake) { there(f); f.now.pvid = 1 }, "would put it into VLAN 1 at once", ""},
		{"no filtering", func(f *fake) { there(f); f.now.filtering = false }, "does not filter VLANs", ""},
		{"no bridge", func(f *fake) { there(f); f.now.kind = "bond" }, "br0 is no bridge", ""},
		{"not allowed", func(f *fake) { f.fail = func(string) error { return unix.EPERM } }, "operation not permitted", ""},
		{"port refused", func(f *fake) {
			f.fail = func(what string) error {
				if what == "enslave lan1" {
					return unix.EBUSY
				}
				return nil
			}
		}, "lan1 could not be added to bridge br0: device or resource busy", "lan1"},
	} {
		f, s := bare()
		tt.f(f)
		_ = s.Make(t.Context())
		_, err := repair(t, s)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
		if w := strings.Join(s.Warnings(), "\n"); !strings.Contains(w, tt.want) {
			t.Errorf("%s: warnings %q; want %q", tt.name, w, tt.want)
		}
		want := 0
		if tt.asked != "" {
			want = 3 // all but that one
		}
		if len(f.now.ports) != want || tt.asked != "" && f.now.port(tt.asked) != nil {
			t.Errorf("%s: ports %s; want %d, without %s", tt.name, f.shown(), want, tt.asked)
		}
	}
	// What was made and does not come up is tried again.
	f, s := bare()
	f.fail = func(what string) error {
		if what == "raise 21" {
			return unix.EIO
		}
		return nil
	}
	_ = s.Make(t.Context())
	if w := strings.Join(s.Warnings(), "\n"); !strings.Contains(w, "lan0 is not up: input/output error") {
		t.Errorf("warnings %q", w)
	}
	f.fail, f.up = nil, nil
	if _, err := repair(t, s); err != nil || !slices.Equal(f.up, []int{21}) || len(s.Warnings()) > 0 {
		t.Errorf("%v, raised %v, warnings %q", err, f.up, s.Warnings())
	}
}

// TestMakeAny: whatever is there, nothing of another's changes, no port is in a
// VLAN that nobody asked for, and the second time nothing is done.
func TestMakeAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, s := bare()
		if rapid.Bool().Draw(t, "there") {
			f.now = seen{found: true, kind: rapid.SampledFrom([]string{"bridge", "bond"}).Draw(t, "kind"), filtering: rapid.Bool().Draw(t, "filtering"),
				protocol: tagProtocol, index: 10, pvid: rapid.SampledFrom([]uint16{0, 1, 7}).Draw(t, "pvid")}
		}
		for _, name := range slices.Sorted(maps.Keys(f.nics)) {
			n := f.nics[name]
			n.found = rapid.Bool().Draw(t, name)
			n.address = rapid.SampledFrom([]string{"", "", "192.0.2.1/24"}).Draw(t, "address")
			n.master = rapid.SampledFrom([]int{0, 0, 7, 10}).Draw(t, "master")
			if n.master == 10 && !(n.found && f.now.found && f.now.kind == "bridge") {
				n.master = 0
			}
			if n.master == 10 {
				f.now.ports = append(f.now.ports, seenPort{name: name, index: n.index, members: []member{{vlan: 7}}})
			}
			f.nics[name] = n
		}
		was, nics := f.now.clone(), maps.Clone(f.nics)
		_ = s.Make(t.Context())
		ours := !was.found || was.kind == "bridge" && was.filtering
		for name, n := range nics {
			free := n.found && n.master == 0 && n.address == "" && ours && was.pvid == 0
			if took := slices.Contains(f.asked, "enslave "+name); took != free {
				t.Fatalf("%s %+v of %+v: taken %v", name, n, was, took)
			}
			if p := f.now.port(name); free && len(p.members) > 0 {
				t.Fatalf("%s is a member of %s", name, list(p.members))
			}
		}
		if was.found && (f.now.filtering != was.filtering || f.now.pvid != was.pvid || slices.Contains(f.asked, "create br0")) {
			t.Fatalf("%+v has become %+v", was, f.now)
		}
		for _, p := range was.ports {
			if got := f.now.port(p.name); got == nil || !slices.Equal(got.members, p.members) {
				t.Fatalf("%s was %s, and is %v", p.name, list(p.members), got)
			}
		}
		f.asked = nil
		if _ = s.Make(t.Context()); len(f.asked) > 0 {
			t.Fatalf("the second time: %v", f.asked)
		}
	})
}
