package config

import (
	"strings"
	"testing"
)

// TestSwitch: what is wrong with a switch, each with its key and line.
func TestSwitch(t *testing.T) {
	const (
		good    = `"switch": {"bridge": "br0", "uplink": "eth3"}`
		port0   = `"port": "lan0"`
		line    = "line 12: switch."
		slot    = "line 6: slots[0]."
		network = `"network": {"interface": "eth0", "address": "192.0.2.10/24"}`
	)
	for _, tt := range []struct{ name, sw, slot, network, want string }{
		{name: "good", sw: good},
		{name: "all of it", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "uplink_mode": "access", "vlans": {"16": 2, "17": 4094, "300": 17}}`, slot: `"port": "lan0", "port_mode": "access"`},
		{name: "no bridge", sw: `"switch": {"uplink": "eth3"}`, want: line[:len(line)-1] + ".bridge: missing"},
		{name: "names", sw: `"switch": {"bridge": "a b", "uplink": "abcdefghijklmnopq"}`, want: line + "bridge: \"a b\" is not the name of a network interface\n" + line + `uplink: "abcdefghijklmnopq" is not the name of a network interface`},
		{name: "one for both", sw: `"switch": {"bridge": "br0", "uplink": "br0"}`, want: line + "uplink: br0 is the bridge itself; name the port of it that the servers are behind"},
		{name: "uplink's mode", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "uplink_mode": "trunk"}`, want: line + `uplink_mode: "trunk" is neither "tagged" nor "access"`},
		{name: "port's mode", sw: good, slot: `"port": "lan0", "port_mode": "trunk"`, want: slot + `port_mode: "trunk" is neither "tagged" nor "access"`},
		{name: "mode without port", sw: good, slot: `"port_mode": "access"`, want: slot + `port_mode: has no meaning without "port"`},
		{name: "VLAN 0", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "vlans": {"16": 0}}`, want: line + "vlans.16: VLAN 0 is outside 2..4094"},
		{name: "VLAN 1", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "vlans": {"16": 1}}`, want: line + "vlans.16: VLAN 1 is outside 2..4094"},
		{name: "VLAN 4095", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "vlans": {"16": 4095}}`, want: line + "vlans.16: VLAN 4095 is outside 2..4094"},
		{name: "VLAN 70000", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "vlans": {"16": 70000}}`, want: line + "vlans.16: is 70000, want a whole number from 0 to 65535"},
		{name: "no group", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "vlans": {"15": 100, "016": 101, "x": 102, "4093": 103}}`,
			want: line + "vlans.016: \"016\" is not a group, a number from 16 to 4092\n" + line + "vlans.15: \"15\" is not a group, a number from 16 to 4092\n" +
				line + "vlans.4093: \"4093\" is not a group, a number from 16 to 4092\n" + line + `vlans.x: "x" is not a group, a number from 16 to 4092`},
		{name: "one VLAN twice", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "vlans": {"300": 200, "400": 200}}`, want: line + "vlans.400: VLAN 200 is already that of group 300: two groups would hear each other"},
		{name: "one VLAN of a group without entry", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "vlans": {"16": 17}}`,
			want: "line 9: hosts[1].group: 17 is its own VLAN, and switch.vlans gives that to group 16: two groups would hear each other"},
		{name: "port is uplink", sw: good, slot: `"port": "eth3"`, want: slot + "port: eth3 is the uplink"},
		{name: "port is bridge", sw: good, slot: `"port": "br0"`, want: slot + "port: br0 is the bridge itself"},
		{name: "port is no interface", sw: good, slot: `"port": "lan/0"`, want: slot + `port: "lan/0" is not the name of a network interface`},
		{name: "port is taken", sw: good, slot: `"port": "lan1"`, want: `line 7: slots[1].port: port "lan1" was already given on line 6`},
		{name: "port is the controller's", sw: good, slot: `"port": "eth0"`, want: slot + "port: eth0 has the controller's own network (network.interface), which would be cut"},
		{name: "port is below the controller's", sw: good, slot: `"port": "eth0"`, network: `"network": {"interface": "eth0.5", "address": "192.0.2.10/24"}`,
			want: slot + "port: eth0 has the controller's own network (network.interface), which would be cut"},
		{name: "made", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "make": true}`},
		{name: "make is no word", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "make": "yes"}`, want: line + `make: is a string, want true or false`},
		{name: "made, controller over the uplink", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "make": true}`, network: `"network": {"interface": "eth3", "address": "192.0.2.10/24"}`,
			want: line + "make: the controller's own network (network.interface) goes through br0, and a bridge that is made here has no VLAN for it: it would be cut"},
		{name: "made, controller over the bridge, tagged", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "make": true}`, network: `"network": {"interface": "br0.9", "address": "192.0.2.10/24"}`,
			want: line + "make: the controller's own network (network.interface) goes through br0, and a bridge that is made here has no VLAN for it: it would be cut"},
		{name: "controller over the bridge, untagged", sw: good, network: `"network": {"interface": "br0", "address": "192.0.2.10/24"}`},
		{name: "controller over an access uplink", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "uplink_mode": "access"}`, network: `"network": {"interface": "br0", "address": "192.0.2.10/24"}`,
			want: line + "uplink_mode: the controller's own network goes untagged over eth3, and an access port would cut it"},
		{name: "controller over an access uplink, tagged", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "uplink_mode": "access"}`, network: `"network": {"interface": "br0", "address": "192.0.2.10/24", "vlan": 9}`},
		{name: "controller in a host's VLAN", sw: `"switch": {"bridge": "br0", "uplink": "eth3", "vlans": {"16": 216}}`, network: `"network": {"interface": "br0", "address": "192.0.2.10/24", "vlan": 216}`,
			want: "line 11: network.vlan: 216 is the VLAN of h1: the controller would be among its devices"},
		{name: "the same, by name", sw: good, network: `"network": {"interface": "br0.17", "address": "192.0.2.10/24"}`,
			want: "line 11: network.interface: VLAN 17 is the one of h2: the controller would be among its devices"},
	} {
		text := base
		if tt.slot == "" {
			tt.slot = port0
		}
		if tt.network == "" {
			tt.network = network
		}
		text = strings.Replace(text, `"eeprom": {"address": "0x50", "part": "24c256"}`, `"eeprom": {"address": "0x50", "part": "24c256"}, `+tt.slot, 1)
		text = strings.Replace(text, `"eeprom": {"address": "0x51", "part": "24c256"}`, `"eeprom": {"address": "0x51", "part": "24c256"}, "port": "lan1"`, 1)
		text = text[:strings.Index(text, `"network": `)] + tt.network + ",\n" + tt.sw + "\n}"
		got := ""
		c, err := Parse([]byte(text), lookup)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
		if tt.name == "made" && err == nil {
			if got, want := c.Switch.String(), "br0, uplink eth3 tagged, made where it is absent"; got != want || !c.Switch.Make {
				t.Errorf("String = %q; want %q", got, want)
			}
		}
		if tt.name == "all of it" && err == nil {
			if v := []uint16{c.Switch.VLAN(16), c.Switch.VLAN(17), c.Switch.VLAN(18)}; v[0] != 2 || v[1] != 4094 || v[2] != 18 {
				t.Errorf("VLANs of 16, 17, 18: %v", v)
			}
			if got, want := c.Switch.String(), "br0, uplink eth3 access, group 16 is VLAN 2, group 17 is VLAN 4094, group 300 is VLAN 17"; got != want {
				t.Errorf("String = %q; want %q", got, want)
			}
			if got := Texts(Diff(parse(t, base), c), Restart); len(got) != 3 || !strings.Contains(strings.Join(got, "\n"), "switch: none -> br0, uplink eth3 access") {
				t.Errorf("Diff = %q", got)
			}
		}
	}
}
