package vlan

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// fake is a kernel with one bridge, as far as Switch knows one. A message is
// carried out as Linux does it: one VLAN after the other.
type fake struct {
	name string
	now  seen
	// fail is asked before each message: "look", or a change's String.
	fail func(what string) error
	// stuck is a port that acknowledges changes and does nothing.
	stuck    string
	asked    []string // changes, in order
	watch    func()   // called after each change
	open     bool
	existing []string // interfaces that are no ports of the bridge
	nics     map[string]nic
	up       []int // indices that were raised
}

func (f *fake) look(bridge string) (seen, error) {
	if f.fail != nil {
		if err := f.fail("look"); err != nil {
			return seen{}, err
		}
	}
	if bridge != f.name || !f.now.found {
		return seen{}, nil
	}
	return f.now.clone(), nil
}

func (s seen) clone() seen {
	s.self = slices.Clone(s.self)
	s.ports = slices.Clone(s.ports)
	for i := range s.ports {
		s.ports[i].members = slices.Clone(s.ports[i].members)
	}
	return s
}

func (f *fake) change(changes []change) (errs []error) {
	for _, c := range changes {
		errs = append(errs, f.one(c))
	}
	return errs
}

func (f *fake) one(c change) error {
	f.asked = append(f.asked, c.String())
	if f.fail != nil {
		if err := f.fail(c.String()); err != nil {
			return err
		}
	}
	p := f.now.port(c.port)
	if p == nil || p.index != c.index {
		return fmt.Errorf("no such device")
	}
	if f.stuck == c.port {
		return nil
	}
	for _, m := range c.members {
		p.members = slices.DeleteFunc(p.members, func(o member) bool { return o.vlan == m.vlan })
		if c.join {
			if m.pvid {
				for i := range p.members {
					p.members[i].pvid = false
				}
			}
			p.members = append(p.members, m)
		}
	}
	sortMembers(p.members)
	if f.watch != nil {
		f.watch()
	}
	return nil
}

func (f *fake) whyNot(bridge, port string) error {
	if slices.Contains(f.existing, port) {
		return fmt.Errorf("%s is no port of bridge %s", port, bridge)
	}
	return fmt.Errorf("there is no port %s", port)
}

func (f *fake) may(what string) error {
	f.asked = append(f.asked, what)
	if f.fail != nil {
		return f.fail(what)
	}
	return nil
}

func (f *fake) nic(name string) (nic, error) { return f.nics[name], nil }

func (f *fake) create(bridge string) error {
	if err := f.may("create " + bridge); err != nil {
		return err
	}
	if f.now.found {
		return unix.EEXIST
	}
	f.now = seen{found: true, kind: "bridge", filtering: true, protocol: tagProtocol, index: 10}
	return nil
}

func (f *fake) enslave(index, bridge int) error {
	for name, n := range f.nics {
		if n.index != index || !n.found {
			continue
		}
		if err := f.may("enslave " + name); err != nil {
			return err
		}
		p := seenPort{name: name, index: index}
		if v := f.now.pvid; v != 0 {
			p.members = []member{{v, true, true}}
		}
		n.master = bridge
		f.nics[name] = n
		f.now.ports = append(f.now.ports, p)
		return nil
	}
	return unix.ENODEV
}

func (f *fake) raise(index int) error {
	if err := f.may(fmt.Sprintf("raise %d", index)); err != nil {
		return err
	}
	f.up = append(f.up, index)
	return nil
}

func (f *fake) close() { f.open = false }

// shown is all ports with their VLANs, "lan0 101, up 1 untagged, 101".
func (f *fake) shown() string {
	var out []string
	for _, p := range f.now.ports {
		out = append(out, p.name+": "+list(p.members))
	}
	return strings.Join(out, "; ")
}

// bed is a Switch on a fake with the uplink "up", tagged, and the slots' ports
// lan0 and lan1, tagged, and lan2, access; groups 101 to 103, the last of which
// is VLAN 1103. All ports are in VLAN 1 at first, and nobody has asked for
// anything.
func bed(change ...func(*Config)) (*fake, *Switch) {
	first := []member{{1, true, true}}
	f := &fake{name: "br0", now: seen{found: true, kind: "bridge", filtering: true, protocol: tagProtocol, index: 10, self: slices.Clone(first)}}
	for i, n := range []string{"up", "lan0", "lan1", "lan2", "other"} {
		f.now.ports = append(f.now.ports, seenPort{n, 20 + i, slices.Clone(first)})
	}
	c := Config{
		Bridge: "br0", Uplink: Port{Name: "up"},
		Ports: []Port{{Name: "lan0"}, {Name: "lan1"}, {Name: "lan2", Mode: Access}},
		VLANs: map[uint16]uint16{103: 1103}, Groups: []uint16{101, 102, 103}, OwnUntagged: true,
	}
	for _, ch := range change {
		ch(&c)
	}
	return f, newSwitch(c, func() (kernel, error) {
		f.open = true
		return f, nil
	})
}
