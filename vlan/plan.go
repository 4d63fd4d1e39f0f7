package vlan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// desired is what the switch should look like, as far as that is ours to say.
type desired struct {
	bridge string
	uplink wish   // its VLANs follow from those of the ports
	ports  []wish // the slots'
	ours   []uint16
	own    own
}

// wish is a port and the VLAN that it should be a member of.
type wish struct {
	name    string
	mode    Mode
	decided bool   // false = nobody has said yet: the port is left as it is
	vlan    uint16 // 0 = of none
}

// own is the controller's own network, where it goes through the bridge.
type own struct {
	vlan     uint16 // its tag; 0 = none
	untagged bool   // it goes untagged
}

// seen is what the kernel says of a bridge.
type seen struct {
	found     bool // there is an interface of that name
	kind      string
	filtering bool
	protocol  uint16 // of its tags
	pvid      uint16 // that new ports get; 0 = they are in no VLAN
	index     int
	ports     []seenPort // without the bridge itself
	self      []member   // of the bridge itself
}

type seenPort struct {
	name    string
	index   int
	members []member // ascending
}

// member is one VLAN that a port is a member of.
type member struct {
	vlan     uint16
	pvid     bool // untagged frames that come in are of this VLAN
	untagged bool // frames go out without a tag
}

func (s seen) port(name string) *seenPort {
	if i := slices.IndexFunc(s.ports, func(p seenPort) bool { return p.name == name }); i >= 0 {
		return &s.ports[i]
	}
	return nil
}

// change is one message to the kernel: what a port joins or leaves.
type change struct {
	port    string
	index   int
	join    bool
	members []member // ascending
}

// span is a range of VLANs that differ in nothing else.
type span struct {
	member
	last uint16
}

// spans puts neighbours together.
func spans(members []member) []span {
	var out []span
	for _, m := range members {
		if n := len(out); n > 0 && !m.pvid && out[n-1].last+1 == m.vlan && out[n-1].untagged == m.untagged && !out[n-1].pvid {
			out[n-1].last = m.vlan
			continue
		}
		out = append(out, span{m, m.vlan})
	}
	return out
}

// String is "lan3 leaves 1,7-9" or "eth3 joins 101".
func (c change) String() string {
	verb := " leaves "
	if c.join {
		verb = " joins "
	}
	return c.port + verb + list(c.members)
}

// list is "1 untagged, 7-9"; of nothing, "none".
func list(members []member) string {
	var out []string
	for _, s := range spans(members) {
		text := fmt.Sprint(s.vlan)
		if s.last != s.vlan {
			text += fmt.Sprintf("-%d", s.last)
		}
		switch {
		case s.pvid && s.untagged:
			text += " untagged"
		case s.pvid:
			text += " untagged only in"
		case s.untagged:
			text += " untagged only out"
		}
		out = append(out, text)
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

// as is the membership of a port of mode m.
func (m Mode) as(vlan uint16) member {
	return member{vlan, m == Access, m == Access}
}

// wanted is what a port that is decided should be a member of.
func (w wish) wanted() []member {
	if w.vlan == 0 {
		return nil
	}
	return []member{w.mode.as(w.vlan)}
}

// usable says why nothing can be set on the bridge; nil = it can.
func usable(name string, now seen) error {
	switch {
	case !now.found:
		return fmt.Errorf("there is no bridge %s; make it: ip link add %s type bridge && echo 1 >/sys/class/net/%s/bridge/vlan_filtering", name, name, name)
	case now.kind != "bridge":
		return fmt.Errorf("%s is no bridge", name)
	case !now.filtering:
		return fmt.Errorf("bridge %s does not filter VLANs, so all its ports hear each other; this is not switched on by itself, since it changes the traffic of others: echo 1 >/sys/class/net/%s/bridge/vlan_filtering (a kernel that refuses that was built without CONFIG_BRIDGE_VLAN_FILTERING)", name, name)
	case now.protocol != 0 && now.protocol != tagProtocol:
		return fmt.Errorf("bridge %s uses tags of protocol 0x%04x, want 0x%04x (802.1Q)", name, now.protocol, tagProtocol)
	}
	return nil
}

// tagProtocol is that of 802.1Q tags (IEEE 802.1Q table 9-1).
const tagProtocol = 0x8100

// plan says what has to change so that the bridge is as wanted, in an order in
// which at no instant a port hears two groups: all that leaves, then all that
// joins. Where all agrees there is nothing.
//
// A slot's port is wholly ours: it is made a member of its VLAN and of no other.
// Of the uplink's VLANs only those of hosts are; it has those that ports use.
// What is undecided is left as it is, and what it uses with it. Problems are
// what can not be had.
func plan(want desired, now seen) (changes []change, problems []problem) {
	var leave, join []change
	for _, w := range want.ports {
		p := now.port(w.name)
		if p == nil || !w.decided {
			if p == nil {
				problems = append(problems, problem{port: w.name, missing: true})
			}
			continue
		}
		l, j := differ(*p, p.members, w.wanted())
		leave, join = append(leave, l...), append(join, j...)
	}
	up := now.port(want.uplink.name)
	if up == nil {
		return slices.Concat(leave, join), append(problems, problem{port: want.uplink.name, missing: true})
	}
	l, j, bad := uplink(want, now, *up)
	problems = append(problems, bad...)
	return slices.Concat(leave, l, j, join), problems
}

// problem is why a port can not be as wanted.
type problem struct {
	port    string
	vlan    uint16 // of which; 0 = of any
	missing bool   // it is no port of the bridge
	text    string
}

// uplink plans the uplink's VLANs.
func uplink(want desired, now seen, up seenPort) (leave, join []change, problems []problem) {
	used := want.used(now)
	mode := want.uplink.mode
	var have, should []member
	for _, m := range up.members {
		ours := slices.Contains(want.ours, m.vlan) && m.vlan != want.own.vlan
		if !ours {
			continue
		}
		switch {
		case m.pvid && want.own.untagged && mode == Tagged:
			// Whoever made it so has the controller's own network there.
			if slices.Contains(used, m.vlan) {
				problems = append(problems, problem{port: up.name, vlan: m.vlan, text: fmt.Sprintf("VLAN %d is the one of untagged frames on %s, and the controller's own network goes untagged: that is not cut", m.vlan, up.name)})
			}
		default:
			have = append(have, m)
		}
	}
	if mode == Access && len(used) > 1 {
		problems = append(problems, problem{port: up.name, text: fmt.Sprintf("%s is an access port and carries one group at a time, and VLANs %s are used; make it tagged (switch.uplink_mode)", up.name, numbers(used))})
		used = slices.DeleteFunc(used, func(v uint16) bool { return !slices.Contains(have, mode.as(v)) })
		used = used[:min(1, len(used))]
	}
	for _, v := range used {
		switch {
		case slices.ContainsFunc(problems, func(p problem) bool { return p.vlan == v }):
		case v == want.own.vlan:
			problems = append(problems, problem{port: up.name, vlan: v, text: fmt.Sprintf("VLAN %d is the controller's own network's, and not a host's to have", v)})
		case mode == Access && want.own.untagged:
			problems = append(problems, problem{port: up.name, vlan: v, text: fmt.Sprintf("the controller's own network goes untagged over %s: an access port would cut it", up.name)})
		default:
			should = append(should, mode.as(v))
		}
	}
	leave, join = differ(up, have, should)
	return leave, join, problems
}

// used are the VLANs that ports should be, or where that is not decided are,
// members of.
func (want desired) used(now seen) (used []uint16) {
	for _, w := range want.ports {
		switch p := now.port(w.name); {
		case w.decided && w.vlan != 0:
			used = append(used, w.vlan)
		case w.decided || p == nil:
		default:
			for _, m := range p.members {
				if slices.Contains(want.ours, m.vlan) {
					used = append(used, m.vlan)
				}
			}
		}
	}
	slices.Sort(used)
	return slices.Compact(used)
}

// settled tells whether it is decided of all ports what they should be members
// of.
func (want desired) settled() bool {
	return !slices.ContainsFunc(want.ports, func(w wish) bool { return !w.decided })
}

// differ says what turns have into want, both ascending.
func differ(p seenPort, have, want []member) (leave, join []change) {
	gone := slices.DeleteFunc(slices.Clone(have), func(m member) bool {
		return slices.ContainsFunc(want, func(w member) bool { return w.vlan == m.vlan })
	})
	missing := slices.DeleteFunc(slices.Clone(want), func(m member) bool { return slices.Contains(have, m) })
	if len(gone) > 0 {
		leave = append(leave, change{p.name, p.index, false, gone})
	}
	if len(missing) > 0 {
		join = append(join, change{p.name, p.index, true, missing})
	}
	return leave, join
}

// foreign says what is not as one would expect and is left alone: it is not
// ours.
func foreign(want desired, now seen) []string {
	var out []string
	ofHosts := func(members []member) []member {
		return slices.DeleteFunc(slices.Clone(members), func(m member) bool { return !slices.Contains(want.ours, m.vlan) })
	}
	if up := now.port(want.uplink.name); up != nil {
		others := slices.DeleteFunc(slices.Clone(up.members), func(m member) bool {
			return slices.Contains(want.ours, m.vlan) || m.vlan == want.own.vlan || m.pvid
		})
		if len(others) > 0 {
			out = append(out, fmt.Sprintf("%s on uplink %s %s not ours and left alone", vlans(others), up.name, isAre(others)))
		}
	}
	for _, p := range now.ports {
		if p.name == want.uplink.name || slices.ContainsFunc(want.ports, func(w wish) bool { return w.name == p.name }) {
			continue
		}
		if m := ofHosts(p.members); len(m) > 0 {
			out = append(out, fmt.Sprintf("port %s is a member of %s, which hosts have, and is neither a slot's port nor the uplink: it hears their devices, and is left alone", p.name, vlans(m)))
		}
	}
	if m := ofHosts(now.self); len(m) > 0 {
		out = append(out, fmt.Sprintf("the controller itself is a member of %s on bridge %s, which hosts have: it hears their devices, and is left so", vlans(m), want.bridge))
	}
	return out
}

func vlans(members []member) string {
	plain := slices.Clone(members)
	for i := range plain {
		plain[i].pvid, plain[i].untagged = false, false
	}
	if len(plain) == 1 {
		return "VLAN " + list(plain)
	}
	return "VLANs " + list(plain)
}

func isAre(members []member) string {
	if len(members) == 1 {
		return "is"
	}
	return "are"
}

func numbers(vlans []uint16) string {
	members := make([]member, len(vlans))
	for i, v := range vlans {
		members[i].vlan = v
	}
	return list(members)
}

// sortMembers puts them into the order of their VLANs.
func sortMembers(m []member) {
	slices.SortFunc(m, func(a, b member) int { return cmp.Compare(a.vlan, b.vlan) })
}
