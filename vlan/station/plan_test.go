package station

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func network(iface, address, gateway string, vlan uint16) Network {
	n := Network{Interface: iface, Address: netip.MustParsePrefix(address), VLAN: vlan}
	if gateway != "" {
		n.Gateway = netip.MustParseAddr(gateway)
	}
	return n
}

func prefixes(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestPlan(t *testing.T) {
	a := network("eth0", "192.0.2.10/24", "192.0.2.1", 0)
	b := network("eth0", "192.0.2.11/24", "192.0.2.2", 0)
	tagged := network("eth0", "192.0.2.10/24", "192.0.2.1", 100)
	gw := func(i int, s string) route { return route{i, netip.MustParseAddr(s)} }
	lo := link{name: "lo", index: 1, up: true, addresses: prefixes("127.0.0.1/8", "::1/128")}
	eth := func(up bool, addresses ...string) link {
		return link{name: "eth0", index: 2, up: up, addresses: prefixes(addresses...)}
	}
	above := func(addresses ...string) link {
		return link{name: "eth0.100", index: 3, up: true, parent: 2, vlan: 100, addresses: prefixes(addresses...)}
	}
	for _, tt := range []struct {
		name string
		want *Network
		set  []setting
		now  seen
		do   string // steps, joined
		err  string
	}{
		{"from nothing", &a, []setting{{a, false}}, seen{links: []link{lo, eth(false)}},
			"switch eth0 on; add 192.0.2.10/24 to eth0; add a default route by 192.0.2.1 on eth0", ""},
		{"all there", &a, []setting{{a, false}}, seen{[]link{lo, eth(true, "192.0.2.10/24", "fe80::1/64")}, []route{gw(2, "192.0.2.1")}}, "", ""},
		{"link is down", &a, []setting{{a, false}}, seen{[]link{eth(false, "192.0.2.10/24")}, []route{gw(2, "192.0.2.1")}}, "switch eth0 on", ""},
		{"another's address stays", &a, []setting{{a, false}}, seen{links: []link{eth(true, "198.51.100.5/24")}},
			"add 192.0.2.10/24 to eth0; add a default route by 192.0.2.1 on eth0", ""},
		{"replaced", &b, []setting{{a, false}, {b, false}}, seen{[]link{eth(true, "192.0.2.10/24", "198.51.100.5/24")}, []route{gw(2, "192.0.2.1")}},
			"add 192.0.2.11/24 to eth0; take away the default route by 192.0.2.1 on eth0; add a default route by 192.0.2.2 on eth0; take 192.0.2.10/24 away from eth0", ""},
		{"same address, no gateway any more", new(network("eth0", "192.0.2.10/24", "", 0)), []setting{{a, false}, {network("eth0", "192.0.2.10/24", "", 0), false}},
			seen{[]link{eth(true, "192.0.2.10/24")}, []route{gw(2, "192.0.2.1")}}, "take away the default route by 192.0.2.1 on eth0", ""},
		{"taken away", nil, []setting{{a, false}}, seen{[]link{eth(true, "192.0.2.10/24", "198.51.100.5/24")}, []route{gw(2, "192.0.2.1"), gw(2, "198.51.100.1")}},
			"take away the default route by 192.0.2.1 on eth0; take 192.0.2.10/24 away from eth0", ""},
		{"taken away, and gone already", nil, []setting{{a, false}}, seen{links: []link{lo}}, "", ""},
		{"VLAN made first", &tagged, []setting{{tagged, true}}, seen{links: []link{eth(false)}}, "switch eth0 on; make eth0.100 for VLAN 100", ""},
		{"then its address", &tagged, []setting{{tagged, true}}, seen{links: []link{eth(true), above()}},
			"add 192.0.2.10/24 to eth0.100; add a default route by 192.0.2.1 on eth0.100", ""},
		{"from untagged to VLAN", &tagged, []setting{{a, false}, {tagged, true}}, seen{[]link{eth(true, "192.0.2.10/24"), above("192.0.2.10/24")}, []route{gw(2, "192.0.2.1")}},
			"take away the default route by 192.0.2.1 on eth0; add a default route by 192.0.2.1 on eth0.100; take 192.0.2.10/24 away from eth0", ""},
		{"from VLAN to untagged, made by us", &a, []setting{{tagged, true}, {a, false}}, seen{links: []link{eth(true, "192.0.2.10/24"), above("192.0.2.10/24")}},
			"add a default route by 192.0.2.1 on eth0; take away eth0.100", ""},
		{"from VLAN to untagged, there before", &a, []setting{{tagged, false}, {a, false}}, seen{[]link{eth(true, "192.0.2.10/24"), above("192.0.2.10/24", "203.0.113.1/24")}, []route{gw(2, "192.0.2.1")}},
			"take 192.0.2.10/24 away from eth0.100", ""},
		{"no such interface", &a, []setting{{a, false}}, seen{links: []link{lo}}, "", "there is no interface eth0"},
		{"a VLAN's name that is something else", &tagged, []setting{{tagged, false}}, seen{links: []link{eth(true), {name: "eth0.100", index: 3}}}, "", "there is an interface eth0.100, and it is not VLAN 100 of eth0"},
		{"another VLAN under that name", &tagged, []setting{{tagged, false}}, seen{links: []link{eth(true), {name: "eth0.100", index: 3, parent: 2, vlan: 7}}}, "", "there is an interface eth0.100, and it is not VLAN 100 of eth0"},
		{"another's default route", &a, []setting{{a, false}}, seen{[]link{eth(true, "192.0.2.10/24"), {name: "eth1", index: 5, up: true}}, []route{gw(5, "203.0.113.1")}},
			"", "there is a default route by 203.0.113.1 on eth1 that was not set by this agent"},
		{"another's default route of the other family", &a, []setting{{a, false}}, seen{[]link{eth(true, "192.0.2.10/24")}, []route{gw(2, "fe80::1")}},
			"add a default route by 192.0.2.1 on eth0", ""},
	} {
		steps, err := plan(tt.want, tt.set, tt.now)
		var do []string
		for _, s := range steps {
			do = append(do, s.String())
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if got := strings.Join(do, "; "); got != tt.do || text != tt.err {
			t.Errorf("%s:\n got %q, %q\nwant %q, %q", tt.name, got, text, tt.do, tt.err)
		}
	}
}

func TestString(t *testing.T) {
	for want, n := range map[string]Network{
		"192.0.2.10/24 on eth0":                              network("eth0", "192.0.2.10/24", "", 0),
		"192.0.2.10/24 on eth0, VLAN 100, gateway 192.0.2.1": network("eth0", "192.0.2.10/24", "192.0.2.1", 100),
	} {
		if got := n.String(); got != want {
			t.Errorf("%q; want %q", got, want)
		}
	}
}

// fake is a kernel as far as plan knows one, with the oddity that counts: with
// the first address of a network the others of it go, and the routes with them.
type fake struct {
	now   seen
	fails map[op]error
	done  []step
	next  int
}

func (f *fake) look() (seen, error) {
	out := seen{routes: slices.Clone(f.now.routes)}
	for _, l := range f.now.links {
		l.addresses = slices.Clone(l.addresses)
		out.links = append(out.links, l)
	}
	return out, nil
}

func (f *fake) do(s step) error {
	f.done = append(f.done, s)
	if err := f.fails[s.op]; err != nil {
		return err
	}
	i := slices.IndexFunc(f.now.links, func(l link) bool { return l.index == s.index })
	l := &f.now.links[i]
	switch s.op {
	case makeLink:
		f.next++
		f.now.links = append(f.now.links, link{name: s.name, index: 100 + f.next, parent: s.index, vlan: s.vlan})
	case raiseLink:
		l.up = true
	case addAddress:
		l.addresses = append(l.addresses, s.address)
	case dropAddress:
		first := slices.IndexFunc(l.addresses, func(p netip.Prefix) bool { return p.Masked() == s.address.Masked() })
		all := l.addresses[first] == s.address
		l.addresses = slices.DeleteFunc(l.addresses, func(p netip.Prefix) bool { return p == s.address || all && p.Masked() == s.address.Masked() })
		f.now.routes = slices.DeleteFunc(f.now.routes, func(r route) bool {
			return r.index == l.index && !slices.ContainsFunc(l.addresses, func(p netip.Prefix) bool { return p.Contains(r.gateway) })
		})
	case addRoute:
		if !slices.ContainsFunc(l.addresses, func(p netip.Prefix) bool { return p.Contains(s.gateway) }) || !l.up {
			return errors.New("network is unreachable")
		}
		f.now.routes = append(f.now.routes, route{s.index, s.gateway})
	case dropRoute:
		f.now.routes = slices.DeleteFunc(f.now.routes, func(r route) bool { return r == route{s.index, s.gateway} })
	case dropLink:
		f.now.routes = slices.DeleteFunc(f.now.routes, func(r route) bool { return r.index == s.index })
		f.now.links = slices.Delete(f.now.links, i, i+1)
	}
	return nil
}

// shown is what there is, in words.
func (f *fake) shown() string {
	var out []string
	for _, l := range f.now.links {
		out = append(out, fmt.Sprintf("%s %v", l.name, l.addresses))
	}
	for _, r := range f.now.routes {
		out = append(out, fmt.Sprintf("default %s %s", r.gateway, f.now.nameOf(r.index)))
	}
	return strings.Join(out, ", ")
}

func newFake() *fake {
	return &fake{now: seen{links: []link{
		{name: "lo", index: 1, up: true, addresses: prefixes("127.0.0.1/8")},
		{name: "eth0", index: 2, addresses: prefixes("198.51.100.5/24")},
		{name: "eth1", index: 3, up: true, addresses: prefixes("203.0.113.9/24")},
	}}}
}

const others = "lo [127.0.0.1/8], eth0 [198.51.100.5/24], eth1 [203.0.113.9/24]"

func TestApply(t *testing.T) {
	file := filepath.Join(t.TempDir(), "network")
	f := newFake()
	open := func() *Station { return &Station{file: file, kernel: f} }
	s := open()
	apply := func(want *Network, shown string) {
		t.Helper()
		if err := s.Apply(t.Context(), want); err != nil {
			t.Fatalf("%v: %v", want, err)
		}
		if got := f.shown(); got != shown {
			t.Errorf("%v:\n got %s\nwant %s", want, got, shown)
		}
		f.done = nil
		if err := s.Apply(t.Context(), want); err != nil || len(f.done) > 0 {
			t.Errorf("%v, again: %v, %v", want, f.done, err)
		}
	}
	a, b := network("eth0", "192.0.2.10/24", "192.0.2.1", 0), network("eth0", "192.0.2.11/24", "192.0.2.1", 0)
	tagged := network("eth0", "192.0.2.10/24", "192.0.2.1", 100)
	apply(nil, others)
	if _, err := os.Stat(file); err == nil {
		t.Error("nothing was set, and noted")
	}
	apply(&a, "lo [127.0.0.1/8], eth0 [198.51.100.5/24 192.0.2.10/24], eth1 [203.0.113.9/24], default 192.0.2.1 eth0")
	// b's address is gone with a's, and set again.
	apply(&b, "lo [127.0.0.1/8], eth0 [198.51.100.5/24 192.0.2.11/24], eth1 [203.0.113.9/24], default 192.0.2.1 eth0")
	apply(&tagged, others+", eth0.100 [192.0.2.10/24], default 192.0.2.1 eth0.100")
	// Another process takes away what this one has set.
	s = open()
	apply(&a, "lo [127.0.0.1/8], eth0 [198.51.100.5/24 192.0.2.10/24], eth1 [203.0.113.9/24], default 192.0.2.1 eth0")
	s = open()
	apply(nil, others)
}

// TestApplyKilled: whatever step a process comes to, the next one leaves only
// what it was asked for, and what was others'.
func TestApplyKilled(t *testing.T) {
	a, tagged := network("eth0", "192.0.2.10/24", "192.0.2.1", 0), network("eth0", "192.0.2.20/24", "192.0.2.2", 7)
	const want = "lo [127.0.0.1/8], eth0 [198.51.100.5/24 192.0.2.10/24], eth1 [203.0.113.9/24], default 192.0.2.1 eth0"
	kills := 0
	for at := 1; ; at++ {
		file := filepath.Join(t.TempDir(), "network")
		f := newFake()
		if err := (&Station{file: file, kernel: f}).Apply(t.Context(), &a); err != nil {
			t.Fatal(err)
		}
		ctx, kill := context.WithCancel(t.Context())
		k := &killed{fake: f, at: at, kill: kill}
		err := (&Station{file: file, kernel: k}).Apply(ctx, &tagged)
		kill()
		if err := (&Station{file: file, kernel: f}).Apply(t.Context(), &a); err != nil {
			t.Fatalf("step %d: %v", at, err)
		}
		if got := f.shown(); got != want {
			t.Errorf("killed at step %d:\n got %s\nwant %s", at, got, want)
		}
		if err == nil {
			break
		}
		kills++
	}
	if kills < 5 {
		t.Errorf("%d kills; want one at each step", kills)
	}
}

// killed does nothing any more from a step on.
type killed struct {
	*fake
	at   int
	kill func()
}

func (k *killed) do(s step) error {
	if k.at--; k.at == 0 {
		k.kill()
	}
	if k.at <= 0 {
		return errors.New("killed")
	}
	return k.fake.do(s)
}

func TestApplyFails(t *testing.T) {
	a, b := network("eth0", "192.0.2.10/24", "192.0.2.1", 0), network("eth0", "198.51.100.77/24", "198.51.100.1", 0)
	f := newFake()
	s := &Station{file: filepath.Join(t.TempDir(), "network"), kernel: f}
	if err := s.Apply(t.Context(), &a); err != nil {
		t.Fatal(err)
	}
	f.fails = map[op]error{addAddress: errors.New("no memory"), addRoute: errors.New("no such process")}
	err := s.Apply(t.Context(), &b)
	for _, want := range []string{"add 198.51.100.77/24 to eth0: no memory", "add a default route by 198.51.100.1 on eth0: no such process"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v; want %q", err, want)
		}
	}
	if l := f.now.link("eth0"); !slices.Contains(l.addresses, a.Address) {
		t.Error("the address of before was taken away, and the new one is not there")
	}
	// Back to a: nothing of b is left.
	f.fails = nil
	if err := s.Apply(t.Context(), &a); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("lo [127.0.0.1/8], eth0 [198.51.100.5/24 192.0.2.10/24], eth1 [203.0.113.9/24], default 192.0.2.1 eth0", f.shown()); diff != "" {
		t.Error(diff)
	}

	missing := network("eth9", "192.0.2.10/24", "", 0)
	if err := s.Apply(t.Context(), &missing); err == nil || err.Error() != "there is no interface eth9" {
		t.Errorf("an interface that is not there: %v", err)
	}
	// Something else takes the address away as often as it is set.
	s = &Station{file: filepath.Join(t.TempDir(), "network"), kernel: &contrary{newFake()}}
	if err := s.Apply(t.Context(), &a); err == nil || !strings.Contains(err.Error(), "does not stay set") {
		t.Errorf("a kernel that forgets: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Apply(ended, &a); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

type contrary struct{ *fake }

func (c *contrary) do(s step) error {
	if s.op == addAddress {
		return nil
	}
	if s.op == addRoute {
		return nil
	}
	return c.fake.do(s)
}

func TestNote(t *testing.T) {
	file := filepath.Join(t.TempDir(), "network")
	if err := os.WriteFile(file, []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFake()
	s := &Station{file: file, kernel: f}
	a := network("eth0", "192.0.2.10/24", "", 0)
	if err := s.Apply(t.Context(), &a); err == nil || !strings.Contains(err.Error(), "what was set before is not known") || len(f.done) > 0 {
		t.Errorf("an unreadable note: %v, %v", err, f.done)
	}
	if err := s.Apply(t.Context(), &a); err != nil {
		t.Errorf("once it was said: %v", err)
	}
	s = &Station{file: filepath.Join(t.TempDir(), "nowhere", "network"), kernel: newFake()}
	if err := s.Apply(t.Context(), &a); err == nil || !strings.Contains(err.Error(), "noting what is set") {
		t.Errorf("a note that can not be written: %v", err)
	}
}

func TestDump(t *testing.T) {
	interrupted := errors.New("interrupted")
	for _, tt := range []struct{ times, asked, want int }{{0, 1, 3}, {2, 3, 3}, {9, dumpTries, 1}} {
		asked := 0
		got, err := dump(func() ([]int, error) {
			if asked++; asked <= tt.times {
				return []int{1}, interrupted
			}
			return []int{1, 2, 3}, nil
		}, interrupted)
		if asked != tt.asked || len(got) != tt.want || (err != nil) != (tt.times >= dumpTries) {
			t.Errorf("interrupted %d times: asked %d times, %v, %v", tt.times, asked, got, err)
		}
	}
}

// TestOthersVLAN: an interface that somebody else made before the port's driver
// let this agent do it is not this agent's.
func TestOthersVLAN(t *testing.T) {
	f := newFake()
	eth0 := f.now.links[1]
	f.now.links = append(f.now.links[:1:1], f.now.links[2])
	s := &Station{file: filepath.Join(t.TempDir(), "network"), kernel: f}
	want := network("eth0", "192.0.2.10/24", "", 100)
	if err := s.Apply(t.Context(), &want); err == nil || err.Error() != "there is no interface eth0" {
		t.Errorf("without eth0: %v", err)
	}
	f.now.links = append(f.now.links, eth0, link{name: "eth0.100", index: 9, up: true, parent: eth0.index, vlan: 100})
	before := "lo [127.0.0.1/8], eth1 [203.0.113.9/24], eth0 [198.51.100.5/24], eth0.100 ["
	if err := s.Apply(t.Context(), &want); err != nil || f.shown() != before+"192.0.2.10/24]" {
		t.Errorf("%v, %s", err, f.shown())
	}
	if err := s.Apply(t.Context(), nil); err != nil || f.shown() != before+"]" {
		t.Errorf("taken away: %v, %s", err, f.shown())
	}
}
