package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"baton/ee"
	"baton/ee/bus"
	"baton/ee/gpio"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/mgmt/config"
	"baton/nvm"
)

// hardware is all that a configuration names, opened.
type hardware struct {
	config   enclosure.Config
	warnings []string
	open     []io.Closer // in the order of opening
}

// transferLimit is how long a bus transfer may take, beside its bytes, before
// the bus counts as wedged.
const transferLimit = time.Second

// openHardware opens everything. What fails is noted where it belongs.
func openHardware(c *config.Config, log *slog.Logger) *hardware {
	h := &hardware{config: enclosure.Config{Name: c.Enclosure, Simulated: c.Simulated}}
	buses := map[string]*bus.Owned{}
	for name, target := range c.Buses {
		l := &lateBus{name: target, simulated: c.Simulated}
		if err := l.open(); err != nil {
			log.Error("bus can not be opened; it is tried again", "bus", name, "err", err)
		}
		buses[name] = bus.Own(l, transferLimit)
		h.open = append(h.open, l, buses[name]) // closed the other way round
	}
	for _, s := range c.Slots {
		h.config.Slots = append(h.config.Slots, h.slot(s, buses, log))
	}
	h.config.Store = h.store(c, buses)
	for _, host := range c.Hosts {
		h.config.Hosts = append(h.config.Hosts, enclosure.HostConfig{Name: host.Name, Group: host.Group, MAC: ee.MAC(host.MAC)})
	}
	for _, v := range c.VMs {
		h.config.VMs = append(h.config.VMs, enclosure.VMConfig{Name: v.Name, UUID: ee.UUID(v.UUID), Hosts: v.Hosts, Slots: v.Slots, Policy: plan.Policy(v.Policy)})
	}
	return h
}

func (h *hardware) close() error {
	var errs []error
	for _, c := range slices.Backward(h.open) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

func (h *hardware) slot(s config.Slot, buses map[string]*bus.Owned, log *slog.Logger) enclosure.SlotConfig {
	out := enclosure.SlotConfig{
		Name: s.Name, BusName: s.Bus, Bus: buses[s.Bus], Addr: uint16(s.Address),
		Medium: nvm.NewEEPROM(buses[s.Bus], uint16(s.EEPROM.Address), nvm.Parts[s.EEPROM.Part]),
		Part:   s.EEPROM.Part,
		Page:   fmt.Sprintf("%s/%s", s.Bus, s.EEPROM.Address),
		MAC:    ee.MAC(s.MAC), Serial: uint64(s.Serial), Port: s.Port,
	}
	out.Profile, out.Problem = ee.LoadProfile(s.Profile) // Parse found it, but a file may be gone
	if out.Profile == nil {
		out.Profile = &ee.Profile{Name: s.Profile}
	}
	if s.Port != "" {
		h.warnings = append(h.warnings, fmt.Sprintf("%s: port %s is configured, but this version sets no VLANs", s.Name, s.Port))
	}
	switch {
	case s.Reload == nil:
	case s.Reload.None:
		out.Reload = noReload{}
		h.warnings = append(h.warnings, s.Name+": there is no reload line; a new group is in force from the engine's next power-up")
	default:
		line := &gpio.Line{Chip: s.Reload.GPIO.Chip, Number: s.Reload.GPIO.Number, ActiveHigh: bool(s.Reload.Active), Pulse: time.Duration(s.Reload.Pulse)}
		if err := line.Open(); err != nil {
			log.Error("reload line can not be opened; it is tried again when it is needed", "slot", s.Name, "err", err)
		}
		out.Reload = line
		h.open = append(h.open, line)
	}
	return out
}

// noReload is for engines that nobody can make load: they do at power-up.
type noReload struct{}

// Reload does nothing; a warning in the status says so.
func (noReload) Reload(context.Context) error { return nil }

func (h *hardware) store(c *config.Config, buses map[string]*bus.Owned) enclosure.StoreConfig {
	s := c.Store
	out := enclosure.StoreConfig{FormatBlank: s.FormatBlank}
	switch {
	case s.Bus != "":
		out.Name = fmt.Sprintf("%s/%s", s.Bus, s.Address)
		out.Part = s.Part
		out.Medium = nvm.NewEEPROM(buses[s.Bus], uint16(s.Address), nvm.Parts[s.Part])
	case s.File != "":
		out.Name = s.File
		// A disk that does not answer for a second is reported, not waited for.
		g := nvm.Geometry{Size: s.Size, Page: s.Page, Erased: 0xFF, WriteMax: time.Second}
		f, err := nvm.OpenFile(s.File, g, s.FormatBlank)
		if err != nil {
			out.Problem = err
			return out
		}
		out.Medium = f
		h.open = append(h.open, f)
	default:
		i := slices.IndexFunc(c.Slots, func(sl config.Slot) bool { return sl.Name == s.Slot })
		sl := c.Slots[i]
		out.Name = fmt.Sprintf("%s/%s+%d", sl.Bus, sl.EEPROM.Address, s.Offset)
		out.Shared, out.Part, out.Offset = sl.Name, sl.EEPROM.Part, s.Offset
		m, err := nvm.Section(h.config.Slots[i].Medium, s.Offset, s.Size)
		if err != nil {
			out.Problem = err
			return out
		}
		out.Medium = m
	}
	return out
}
