package vlan

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// world draws a bridge and what is wanted of it.
func world(t *rapid.T) (desired, *fake) {
	f, _ := bed()
	vlans := []uint16{1, 7, 100, 101, 102, 103, 104, 205, 4094}
	for i := range f.now.ports {
		p := &f.now.ports[i]
		p.members = nil
		pvid := rapid.SampledFrom(append(slices.Clone(vlans), 0)).Draw(t, "pvid")
		for _, v := range vlans {
			if rapid.Bool().Draw(t, "member") {
				p.members = append(p.members, member{v, v == pvid, rapid.Bool().Draw(t, "untagged")})
			}
		}
	}
	d := desired{bridge: "br0", ours: []uint16{101, 102, 103, 104}}
	mode := rapid.SampledFrom([]Mode{Tagged, Access})
	d.uplink = wish{name: "up", mode: mode.Draw(t, "uplink")}
	for _, n := range []string{"lan0", "lan1", "lan2"} {
		d.ports = append(d.ports, wish{name: n, mode: mode.Draw(t, n), decided: rapid.Bool().Draw(t, "decided"), vlan: rapid.SampledFrom([]uint16{0, 101, 102, 103}).Draw(t, "vlan")})
	}
	d.own = rapid.SampledFrom([]own{{}, {untagged: true}, {vlan: 100}}).Draw(t, "own")
	return d, f
}

// TestPlan: what is planned is enough and not more, touches nothing that is not
// ours, and lets no port hear two groups on the way.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, f := world(t)
		before := f.now.clone()
		changes, problems := plan(d, f.now)
		joined := false
		for _, c := range changes {
			if joined = joined || c.join; joined && !c.join {
				t.Fatalf("%v leaves after another has joined", c)
			}
			if len(c.members) == 0 || !slices.IsSortedFunc(c.members, func(a, b member) int { return int(a.vlan) - int(b.vlan) }) {
				t.Fatalf("%v", c)
			}
			if err := f.one(c); err != nil {
				t.Fatalf("%v: %v", c, err)
			}
		}
		if len(changes) > 2*4 {
			t.Fatalf("%d messages for 4 ports", len(changes))
		}
		if again, _ := plan(d, f.now); len(again) > 0 {
			t.Fatalf("and then again %v", again)
		}
		if got, want := list(f.now.port("other").members), list(before.port("other").members); got != want {
			t.Fatalf("other: %s; want %s", got, want)
		}
		used := map[uint16]bool{}
		for _, w := range d.ports {
			got, was := f.now.port(w.name).members, before.port(w.name).members
			switch {
			case !w.decided && !slices.Equal(got, was):
				t.Fatalf("%s is undecided, and %s; was %s", w.name, list(got), list(was))
			case w.decided && !slices.Equal(got, w.wanted()):
				t.Fatalf("%s is %s; want %s", w.name, list(got), list(w.wanted()))
			}
			for _, m := range got {
				used[m.vlan] = true
			}
		}
		up, was := f.now.port("up").members, before.port("up").members
		for _, m := range was {
			i := slices.IndexFunc(up, func(o member) bool { return o.vlan == m.vlan })
			if slices.Contains(d.ours, m.vlan) {
				if i >= 0 && !used[m.vlan] && !(m.pvid && d.own.untagged) {
					t.Fatalf("nobody uses %d on the uplink: %s", m.vlan, list(up))
				}
				continue
			}
			// An access port has one PVID: that is what the mode asks for.
			displaced := d.uplink.mode == Access && i >= 0 && m.pvid && !up[i].pvid
			if i < 0 || up[i] != m && !displaced {
				t.Fatalf("%d on the uplink is not ours: %s; was %s", m.vlan, list(up), list(was))
			}
			if displaced && d.own.untagged {
				t.Fatalf("the controller's own network is cut: %s; was %s", list(up), list(was))
			}
		}
		for v := range used {
			has := slices.Contains(up, d.uplink.mode.as(v))
			if slices.Contains(d.ours, v) && !has && len(problems) == 0 {
				t.Fatalf("%d is used, and the uplink is %s", v, list(up))
			}
		}
	})
}

func TestSpans(t *testing.T) {
	for _, tt := range []struct {
		in   []member
		want string
		n    int
	}{
		{nil, "none", 0},
		{[]member{{vlan: 5}}, "5", 1},
		{[]member{{vlan: 5}, {vlan: 6}, {vlan: 7}, {vlan: 9}}, "5-7, 9", 2},
		{[]member{{vlan: 5}, {6, false, true}, {7, false, true}}, "5, 6-7 untagged only out", 2},
		{[]member{{1, true, true}, {2, false, true}, {3, true, false}, {vlan: 4}}, "1 untagged, 2 untagged only out, 3 untagged only in, 4", 4},
		{[]member{{vlan: 4093}, {vlan: 4094}}, "4093-4094", 1},
	} {
		if got := list(tt.in); got != tt.want || len(spans(tt.in)) != tt.n {
			t.Errorf("list(%v) = %q, %d spans; want %q, %d", tt.in, got, len(spans(tt.in)), tt.want, tt.n)
		}
	}
}
