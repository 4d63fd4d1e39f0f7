package station

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// seen is what the kernel says.
type seen struct {
	links  []link
	routes []route
}

type link struct {
	name      string
	index     int
	up        bool
	parent    int    // of a VLAN: index of the interface below
	vlan      uint16 // 0 = it is none
	addresses []netip.Prefix
}

// route is a default route of the main table.
type route struct {
	index   int // of the link
	gateway netip.Addr
}

func (s seen) link(name string) *link {
	i := slices.IndexFunc(s.links, func(l link) bool { return l.name == name })
	if i < 0 {
		return nil
	}
	return &s.links[i]
}

func (s seen) nameOf(index int) string {
	for _, l := range s.links {
		if l.index == index {
			return l.name
		}
	}
	return fmt.Sprintf("interface %d", index)
}

// step is one request to the kernel.
type step struct {
	op      op
	name    string // of the link
	index   int    // of the link; of the parent where the link is made
	vlan    uint16
	address netip.Prefix
	gateway netip.Addr
}

type op int

const (
	makeLink op = iota
	raiseLink
	addAddress
	dropRoute // before the new one is added: there is room for one
	addRoute
	dropAddress
	dropLink
)

// takes tells whether a step takes away what was set before.
func (s step) takes() bool { return s.op == dropRoute || s.op == dropAddress || s.op == dropLink }

func (s step) String() string {
	switch s.op {
	case makeLink:
		return fmt.Sprintf("make %s for VLAN %d", s.name, s.vlan)
	case raiseLink:
		return "switch " + s.name + " on"
	case addAddress:
		return fmt.Sprintf("add %s to %s", s.address, s.name)
	case dropRoute:
		return fmt.Sprintf("take away the default route by %s on %s", s.gateway, s.name)
	case addRoute:
		return fmt.Sprintf("add a default route by %s on %s", s.gateway, s.name)
	case dropAddress:
		return fmt.Sprintf("take %s away from %s", s.address, s.name)
	}
	return "take away " + s.name
}

// plan says what to do next so that of all that was ever set only want is
// there. Some steps make others possible; plan is asked again until it has
// none. The error is what it can not plan for.
func plan(want *Network, set []setting, now seen) ([]step, error) {
	var steps []step
	var errs []error
	if want != nil {
		build, err := planFor(*want, set, now)
		if err == nil && now.link(want.Link()) == nil {
			return build, nil // the rest when it is made
		}
		steps, errs = build, append(errs, err)
	}
	for _, o := range set {
		l := now.link(o.Link())
		if l == nil {
			continue
		}
		stays := want != nil && want.Link() == o.Link()
		if o.Made && !stays {
			if last := (step{op: dropLink, name: l.name, index: l.index}); !slices.Contains(steps, last) {
				steps = append(steps, last)
			}
			continue // its addresses and routes go with it
		}
		if o.Gateway.IsValid() && (!stays || want.Gateway != o.Gateway) && slices.Contains(now.routes, route{l.index, o.Gateway}) {
			steps = append(steps, step{op: dropRoute, name: l.name, index: l.index, gateway: o.Gateway})
		}
		if (!stays || want.Address != o.Address) && slices.Contains(l.addresses, o.Address) {
			steps = append(steps, step{op: dropAddress, name: l.name, index: l.index, address: o.Address})
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.op - b.op) })
	return slices.Compact(steps), errors.Join(errs...)
}

func noInterface(n Network) error { return fmt.Errorf("%w %s", ErrAbsent, n.Interface) }

func planFor(want Network, set []setting, now seen) ([]step, error) {
	base := now.link(want.Interface)
	if base == nil {
		return nil, noInterface(want)
	}
	var steps []step
	if !base.up {
		steps = append(steps, step{op: raiseLink, name: base.name, index: base.index})
	}
	l := now.link(want.Link())
	switch {
	case l == nil:
		return append(steps, step{op: makeLink, name: want.Link(), index: base.index, vlan: want.VLAN}), nil
	case want.VLAN != 0 && (l.vlan != want.VLAN || l.parent != base.index):
		return nil, fmt.Errorf("there is an interface %s, and it is not VLAN %d of %s", l.name, want.VLAN, base.name)
	case l != base && !l.up:
		steps = append(steps, step{op: raiseLink, name: l.name, index: l.index})
	}
	if !slices.Contains(l.addresses, want.Address) {
		steps = append(steps, step{op: addAddress, name: l.name, index: l.index, address: want.Address})
	}
	if !want.Gateway.IsValid() || slices.Contains(now.routes, route{l.index, want.Gateway}) {
		return steps, nil
	}
	for _, r := range now.routes {
		ours := slices.ContainsFunc(set, func(o setting) bool { return o.Gateway == r.gateway && o.Link() == now.nameOf(r.index) })
		if !ours && r.gateway.Is4() == want.Gateway.Is4() {
			return steps, fmt.Errorf("there is a default route by %s on %s that was not set by this agent", r.gateway, now.nameOf(r.index))
		}
	}
	return append(steps, step{op: addRoute, name: l.name, index: l.index, gateway: want.Gateway}), nil
}
