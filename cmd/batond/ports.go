package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"baton/enclosure"
	"baton/mgmt/config"
	"baton/vlan"
)

// Bounds of looking after the switch's ports.
const (
	portsEvery = 10 * time.Second
	portsTime  = 10 * time.Second // for one look, and what it puts back
)

// ports looks after the switch that the slots' ports are of. A nil one does
// nothing: there is no switch.
type ports struct {
	sw  *vlan.Switch
	log *slog.Logger
}

// useSwitch gives the enclosure the switch of a configuration. Nothing is
// opened before it is used.
func (h *hardware) useSwitch(c *config.Config) {
	if c.Switch == nil {
		for _, s := range c.Slots {
			if s.Port != "" {
				h.warnings = append(h.warnings, fmt.Sprintf("%s: port %s is configured, but no switch, so its VLANs are not set", s.Name, s.Port))
			}
		}
		return
	}
	sw := vlan.New(switchOf(c))
	h.config.Switch, h.ports = sw, &ports{sw, h.log}
	h.open = append(h.open, sw)
}

// switchOf is a configuration's switch as vlan has it.
func switchOf(c *config.Config) vlan.Config {
	out := vlan.Config{
		Bridge: c.Switch.Bridge,
		Uplink: vlan.Port{Name: c.Switch.Uplink, Mode: modeOf(c.Switch.Mode)},
		VLANs:  map[uint16]uint16{},
		Groups: groupsOf(c),
		Make:   c.Switch.Make,
	}
	out.OwnVLAN, out.OwnUntagged = c.OwnVLAN()
	for _, s := range c.Slots {
		if s.Port != "" {
			out.Ports = append(out.Ports, vlan.Port{Name: s.Port, Mode: modeOf(s.Mode)})
		}
	}
	for group, v := range c.Switch.VLANs {
		if g, err := strconv.ParseUint(group, 10, 16); err == nil { // Parse has seen to it
			out.VLANs[uint16(g)] = v
		}
	}
	return out
}

func modeOf(name string) vlan.Mode {
	if name == config.Access {
		return vlan.Access
	}
	return vlan.Tagged
}

func groupsOf(c *config.Config) []uint16 {
	var groups []uint16
	for _, h := range c.Hosts {
		groups = append(groups, h.Group)
	}
	return groups
}

// use takes over the hosts of a configuration that is in force from now on.
func (p *ports) use(c *config.Config) {
	if p != nil {
		p.sw.Use(groupsOf(c))
	}
}

func (p *ports) warnings() []string {
	if p == nil {
		return nil
	}
	return p.sw.Warnings()
}

// make makes what is absent, before slots are looked at. What it made look tells;
// what it could not is a warning, and tried again.
func (p *ports) make(ctx context.Context) {
	if p == nil {
		return
	}
	short, cancel := context.WithTimeout(ctx, portsTime)
	defer cancel()
	_ = p.sw.Make(short)
}

// look makes what is absent and puts back what something else has changed, until ctx ends.
func (p *ports) look(ctx context.Context, note func(enclosure.Event)) {
	if p == nil {
		return
	}
	said := ""
	tick := time.NewTicker(portsEvery)
	defer tick.Stop()
	for {
		short, cancel := context.WithTimeout(ctx, portsTime)
		done, err := p.sw.Repair(short)
		cancel()
		for _, r := range done {
			note(enclosure.Event{Kind: "vlan", Text: r.Text})
		}
		if ctx.Err() != nil {
			return // which is all that err may be about
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != said && text != "" {
			note(enclosure.Event{Kind: "vlan", Code: string(enclosure.CodeHardware), Text: "switch: " + text})
		} else if text != said {
			note(enclosure.Event{Kind: "vlan", Text: "switch: all ports are as they should be again"})
		}
		said = text
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
