package config

import (
	"fmt"
	"net/netip"
	"strings"
)

// Network is the controller's own address.
type Network struct {
	Interface string  `json:"interface" strict:"required"`
	Address   Prefix  `json:"address" strict:"required"`
	Gateway   Gateway `json:"gateway"` // of the default route; zero = none
	VLAN      uint16  `json:"vlan"`    // tag; 0 = none
}

// Prefix is an address with the length of its network, "192.0.2.10/24".
type Prefix struct{ netip.Prefix }

// UnmarshalText reads an address that one station can have.
func (p *Prefix) UnmarshalText(text []byte) error {
	n, err := netip.ParsePrefix(string(text))
	if err != nil {
		return fmt.Errorf("%q is not an address, want the form 192.0.2.10/24", clip(string(text)))
	}
	a := n.Addr()
	host := n.Bits() < a.BitLen()-1 // else there is no address of the network itself
	switch {
	case !ofOne(a):
		return fmt.Errorf("%s is not the address of one station", a)
	case n.Bits() == 0:
		return fmt.Errorf("%s: the network is all addresses", n)
	case host && n.Masked().Addr() == a:
		return fmt.Errorf("%s is the network itself, want the address of one station in it", n)
	case host && a.Is4() && last(n) == a:
		return fmt.Errorf("%s is the network's broadcast address", n)
	}
	p.Prefix = n
	return nil
}

// last is the highest address of an IPv4 network.
func last(n netip.Prefix) netip.Addr {
	b := n.Addr().As4()
	for i := n.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// Gateway is an address, "192.0.2.1".
type Gateway struct{ netip.Addr }

// UnmarshalText reads the address of one station.
func (g *Gateway) UnmarshalText(text []byte) error {
	a, err := netip.ParseAddr(string(text))
	if err != nil {
		return fmt.Errorf("%q is not an address, want the form 192.0.2.1", clip(string(text)))
	}
	if !ofOne(a) {
		return fmt.Errorf("%s is not the address of one station", a)
	}
	g.Addr = a
	return nil
}

func ofOne(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a.Zone() == "" && !a.Is4In6() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// String is "192.0.2.10/24 on eth0, VLAN 100, gateway 192.0.2.1"; of nil,
// "none".
func (n *Network) String() string {
	if n == nil {
		return "none"
	}
	s := fmt.Sprintf("%s on %s", n.Address, n.Interface)
	if n.VLAN != 0 {
		s += fmt.Sprintf(", VLAN %d", n.VLAN)
	}
	if n.Gateway.IsValid() {
		s += fmt.Sprintf(", gateway %s", n.Gateway)
	}
	return s
}

// longestInterface is what the kernel has room for (IFNAMSIZ, with its zero).
const longestInterface = 15

// port checks the name of an interface.
func (v *checker) port(key, name string) bool {
	bad := name == "" || len(name) > longestInterface || name == "." || name == ".." || name == "lo" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' || r == ':' || r == '%' })
	if bad {
		v.bad(key, "%q is not the name of a network interface", clip(name))
	}
	return !bad
}

func (v *checker) network() {
	n := v.c.Network
	if n == nil {
		return
	}
	name := n.Interface
	if !v.port("network.interface", name) {
		// Said.
	} else if full := fmt.Sprintf("%s.%d", name, n.VLAN); n.VLAN != 0 && len(full) > longestInterface {
		v.bad("network.interface", "%q, as the VLAN's interface would be called, has more than %d bytes", full, longestInterface)
	}
	if n.VLAN > 4094 {
		v.bad("network.vlan", "%d is outside 1..4094", n.VLAN)
	}
	for _, h := range v.c.Hosts {
		what := "group"
		if v.c.Switch != nil {
			what = "VLAN"
		}
		if n.VLAN != 0 && n.VLAN == v.c.Switch.VLAN(h.Group) {
			v.bad("network.vlan", "%d is the %s of %s: the controller would be among its devices", n.VLAN, what, h.Name)
		}
	}
	g := n.Gateway
	switch {
	case !g.IsValid() || !n.Address.IsValid():
	case g.Addr == n.Address.Addr():
		v.bad("network.gateway", "%s is the controller's own address", g)
	case !n.Address.Contains(g.Addr) && !g.IsLinkLocalUnicast():
		v.bad("network.gateway", "%s is not in %s, so it can not be reached", g, n.Address.Masked())
	}
}
