package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Switch is the enclosure's switch, a Linux bridge that filters VLANs.
type Switch struct {
	Bridge string            `json:"bridge" strict:"required"`
	Uplink string            `json:"uplink" strict:"required"` // the port that the servers are behind
	Mode   string            `json:"uplink_mode"`
	VLANs  map[string]uint16 `json:"vlans"`          // group -> VLAN; a group that is not in it is its own
	Make   bool              `json:"make,omitempty"` // the bridge is made where it is absent, and ports are added to it
}

// Modes of a port.
const (
	Tagged = "tagged" // its VLANs' frames have their tags
	Access = "access" // it has one VLAN, whose frames have none
)

// highestVLAN: 0 is no VLAN, 4095 is reserved (IEEE 802.1Q table 9-2), and 1 is
// what every port of a new bridge is a member of.
const (
	lowestVLAN  = 2
	highestVLAN = 4094
)

// VLAN is the VLAN of a group; of a nil Switch, the group itself.
func (s *Switch) VLAN(group uint16) uint16 {
	if s != nil {
		if v, ok := s.VLANs[strconv.Itoa(int(group))]; ok {
			return v
		}
	}
	return group
}

func (c *Config) switchDefaults() {
	for i := range c.Slots {
		if c.Slots[i].Port != "" && c.Slots[i].Mode == "" {
			c.Slots[i].Mode = Tagged
		}
	}
	if c.Switch != nil && c.Switch.Mode == "" {
		c.Switch.Mode = Tagged
	}
}

func (v *checker) switching() {
	for i, s := range v.c.Slots {
		key := fmt.Sprintf("slots[%d].port_mode", i)
		v.mode(key, s.Mode)
		if s.Mode != "" && s.Port == "" {
			v.bad(key, "has no meaning without \"port\"")
		}
	}
	sw := v.c.Switch
	if sw == nil {
		return
	}
	bridge, uplink := v.port("switch.bridge", sw.Bridge), v.port("switch.uplink", sw.Uplink)
	if bridge && uplink && sw.Bridge == sw.Uplink {
		v.bad("switch.uplink", "%s is the bridge itself; name the port of it that the servers are behind", sw.Uplink)
	}
	if v.mode("switch.uplink_mode", sw.Mode); sw.Mode == "" {
		v.bad("switch.uplink_mode", "missing")
	}
	v.table()
	v.slotPorts()
	v.ownNetwork()
}

func (v *checker) mode(key, mode string) {
	if mode != "" && mode != Tagged && mode != Access {
		v.bad(key, "%q is neither \"tagged\" nor \"access\"", clip(mode))
	}
}

// table checks which group has which VLAN.
func (v *checker) table() {
	sw := v.c.Switch
	owner := map[uint16]string{}
	for _, name := range sortedKeys(sw.VLANs) {
		key, vlan := "switch.vlans."+name, sw.VLANs[name]
		g, err := strconv.ParseUint(name, 10, 16)
		if err != nil || strconv.FormatUint(g, 10) != name || g < groupMin || g > groupMax {
			v.bad(key, "%q is not a group, a number from %d to %d", clip(name), groupMin, groupMax)
			continue
		}
		if vlan < lowestVLAN || vlan > highestVLAN {
			v.bad(key, "VLAN %d is outside %d..%d", vlan, lowestVLAN, highestVLAN)
			continue
		}
		if other, ok := owner[vlan]; ok {
			v.bad(key, "VLAN %d is already that of group %s: two groups would hear each other", vlan, other)
			continue
		}
		owner[vlan] = name
	}
	for i, h := range v.c.Hosts {
		g := strconv.Itoa(int(h.Group))
		if _, own := sw.VLANs[g]; own {
			continue
		}
		if other, ok := owner[h.Group]; ok {
			v.bad(fmt.Sprintf("hosts[%d].group", i), "%d is its own VLAN, and switch.vlans gives that to group %s: two groups would hear each other", h.Group, other)
		}
	}
}

// slotPorts checks that no slot's port is anything else.
func (v *checker) slotPorts() {
	sw, n := v.c.Switch, v.c.Network
	for i, s := range v.c.Slots {
		key := fmt.Sprintf("slots[%d].port", i)
		if s.Port == "" || !v.port(key, s.Port) {
			continue
		}
		switch s.Port {
		case sw.Uplink:
			v.bad(key, "%s is the uplink", s.Port)
		case sw.Bridge:
			v.bad(key, "%s is the bridge itself", s.Port)
		}
		if n != nil && (n.Interface == s.Port || strings.HasPrefix(n.Interface, s.Port+".")) {
			v.bad(key, "%s has the controller's own network (network.interface), which would be cut", s.Port)
		}
	}
}

// ownNetwork checks that the controller is not cut off.
func (v *checker) ownNetwork() {
	sw := v.c.Switch
	vlan, untagged := v.c.OwnVLAN()
	if sw.Make && (vlan != 0 || untagged) {
		v.bad("switch.make", "the controller's own network (network.interface) goes through %s, and a bridge that is made here has no VLAN for it: it would be cut", sw.Bridge)
	}
	if untagged && sw.Mode == Access {
		v.bad("switch.uplink_mode", "the controller's own network goes untagged over %s, and an access port would cut it", sw.Uplink)
	} else if vlan != 0 {
		for _, h := range v.c.Hosts {
			if sw.VLAN(h.Group) == vlan && (v.c.Network.VLAN != vlan) { // else it is said there
				v.bad("network.interface", "VLAN %d is the one of %s: the controller would be among its devices", vlan, h.Name)
			}
		}
	}
}

// OwnVLAN tells how the controller's own network goes through the switch, if it
// does: vlan is its tag, or it goes untagged.
func (c *Config) OwnVLAN() (vlan uint16, untagged bool) {
	if c.Switch == nil || c.Network == nil {
		return 0, false
	}
	base, tag, _ := strings.Cut(c.Network.Interface, ".")
	if !slices.Contains([]string{c.Switch.Bridge, c.Switch.Uplink}, base) {
		return 0, false
	}
	vlan = c.Network.VLAN
	if n, err := strconv.ParseUint(tag, 10, 16); err == nil && n <= highestVLAN {
		vlan = uint16(n)
	}
	return vlan, vlan == 0
}

// String is "br0, uplink eth3 tagged, group 101 is VLAN 201"; of nil, "none".
func (s *Switch) String() string {
	if s == nil {
		return "none"
	}
	text := []string{s.Bridge, fmt.Sprintf("uplink %s %s", s.Uplink, s.Mode)}
	for _, g := range sortedKeys(s.VLANs) {
		text = append(text, fmt.Sprintf("group %s is VLAN %d", g, s.VLANs[g]))
	}
	if s.Make {
		text = append(text, "made where it is absent")
	}
	return strings.Join(text, ", ")
}
