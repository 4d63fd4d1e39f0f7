package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"baton/enclosure"
	"baton/mgmt/config"
	"baton/vlan"

	"github.com/google/go-cmp/cmp"
)

const withSwitch = `{"enclosure": "e", "buses": {"a": "/dev/i2c-300"}, "store": {"file": "/x"},
"slots": [
 {"name": "s", "bus": "a", "address": "0x40", "profile": "regs-v1", "eeprom": {"address": "0x50", "part": "24c256"}, "port": "lan0"},
 {"name": "t", "bus": "a", "address": "0x41", "profile": "regs-v1", "eeprom": {"address": "0x51", "part": "24c256"}, "port": "lan1", "port_mode": "access"},
 {"name": "u", "bus": "a", "address": "0x42", "profile": "regs-v1", "eeprom": {"address": "0x52", "part": "24c256"}}],
"hosts": [{"name": "h", "group": 101, "mac": "02:00:00:00:00:01"}, {"name": "i", "group": 102, "mac": "02:00:00:00:00:02"}],
"network": {"interface": "nosuch0", "address": "192.0.2.10/24", "vlan": 9}SWITCH}`

func TestSwitch(t *testing.T) {
	parsed := func(sw string) *config.Config {
		t.Helper()
		c, err := config.Parse([]byte(strings.ReplaceAll(withSwitch, "SWITCH", sw)), findProfile)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := parsed(`, "switch": {"bridge": "nosuch0", "uplink": "up", "vlans": {"102": 1102, "500": 1500}}`)
	want := vlan.Config{
		Bridge: "nosuch0", Uplink: vlan.Port{Name: "up"}, Ports: []vlan.Port{{Name: "lan0"}, {Name: "lan1", Mode: vlan.Access}},
		VLANs: map[uint16]uint16{102: 1102, 500: 1500}, Groups: []uint16{101, 102}, OwnVLAN: 9,
	}
	if diff := cmp.Diff(want, switchOf(c)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !switchOf(parsed(`, "switch": {"bridge": "nosuch1", "uplink": "up", "make": true}`)).Make || want.Make {
		t.Error("the key make is not passed on")
	}
	log := slog.New(slog.DiscardHandler)

	none := &hardware{log: log}
	none.useSwitch(parsed(""))
	if want := []string{"s: port lan0 is configured, but no switch, so its VLANs are not set", "t: port lan1 is configured, but no switch, so its VLANs are not set"}; !slices.Equal(none.warnings, want) {
		t.Errorf("without a switch: warnings %q; want %q", none.warnings, want)
	}
	if none.config.Switch != nil || none.ports != nil || none.ports.warnings() != nil {
		t.Error("without a switch there is one")
	}
	none.ports.use(c)
	none.ports.look(t.Context(), nil)

	// One that is not there: said once, and in the status, and looked for.
	synctest.Test(t, func(t *testing.T) {
		h := &hardware{log: log}
		h.useSwitch(c)
		if len(h.warnings) != 0 || h.config.Switch == nil {
			t.Errorf("warnings %q, switch %v", h.warnings, h.config.Switch)
		}
		var mu sync.Mutex
		var said []string
		ctx, cancel := context.WithCancel(t.Context())
		var looking sync.WaitGroup
		looking.Go(func() {
			h.ports.look(ctx, func(ev enclosure.Event) {
				mu.Lock()
				said = append(said, ev.Kind+": "+ev.Text)
				mu.Unlock()
			})
		})
		time.Sleep(time.Minute)
		cancel()
		looking.Wait()
		const text = "switch: there is no bridge nosuch0; make it: ip link add nosuch0 type bridge && echo 1 >/sys/class/net/nosuch0/bridge/vlan_filtering"
		if want := []string{"vlan: " + text}; !slices.Equal(said, want) {
			t.Errorf("events %q; want %q", said, want)
		}
		if _, err := h.ports.sw.Repair(t.Context()); err == nil {
			t.Error("there is such a bridge")
		}
		if got := h.ports.warnings(); !slices.Equal(got, []string{text}) {
			t.Errorf("warnings %q; want %q", got, text)
		}
		if err := h.close(); err != nil {
			t.Error(err)
		}
	})
}
