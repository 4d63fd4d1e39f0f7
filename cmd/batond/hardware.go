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
	buses    map[string]*bus.Owned
	open     []io.Closer // in the order of opening
	ports    *ports      // nil = the configuration has no switch
	log      *slog.Logger
}

// transferLimit is how long a bus transfer may take, beside its bytes, before
// the bus counts as wedged.
const transferLimit = time.Second

// openHardware opens buses and store, which the seed alone says: what slots
// there are may be in the store. What fails is noted where it belongs.
func openHardware(seed *config.Config, log *slog.Logger) *hardware {
	h := &hardware{buses: map[string]*bus.Owned{}, log: log}
	for name, target := range seed.Buses {
		l := &lateBus{name: target, simulated: seed.Simulated}
		if err := l.open(); err != nil {
			log.Error("bus can not be opened; it is tried again", "bus", name, "err", err)
		}
		h.buses[name] = bus.Own(l, transferLimit)
		h.open = append(h.open, l, h.buses[name]) // closed the other way round
	}
	h.config.Store = h.store(seed)
	return h
}

// use opens what else c names, and takes over hosts and VMs.
func (h *hardware) use(c *config.Config) {
	h.config.Name, h.config.Simulated = c.Enclosure, c.Simulated
	for _, s := range c.Slots {
		h.config.Slots = append(h.config.Slots, h.slot(s))
	}
	h.config.Hosts, h.config.VMs = rosterOf(c, c.Slots)
	h.useSwitch(c)
}

// rosterOf is who may have slots by c, as far as the slots are there.
func rosterOf(c *config.Config, there []config.Slot) (hosts []enclosure.HostConfig, vms []enclosure.VMConfig) {
	for _, h := range c.Hosts {
		hosts = append(hosts, enclosure.HostConfig{Name: h.Name, Group: h.Group, MAC: ee.MAC(h.MAC)})
	}
	for _, v := range c.VMs {
		slots := slices.DeleteFunc(slices.Clone(v.Slots), func(name string) bool {
			return !slices.ContainsFunc(there, func(s config.Slot) bool { return s.Name == name })
		})
		if len(slots) > 0 {
			vms = append(vms, enclosure.VMConfig{Name: v.Name, UUID: ee.UUID(v.UUID), Hosts: v.Hosts, Slots: slots, Policy: plan.Policy(v.Policy)})
		}
	}
	return hosts, vms
}

func (h *hardware) close() error {
	var errs []error
	for _, c := range slices.Backward(h.open) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

func (h *hardware) slot(s config.Slot) enclosure.SlotConfig {
	buses, log := h.buses, h.log
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

func (h *hardware) store(c *config.Config) enclosure.StoreConfig {
	s := c.Store
	out := enclosure.StoreConfig{FormatBlank: s.FormatBlank}
	switch {
	case s.Bus != "":
		out.Name = fmt.Sprintf("%s/%s", s.Bus, s.Address)
		out.Part = s.Part
		out.Medium = nvm.NewEEPROM(h.buses[s.Bus], uint16(s.Address), nvm.Parts[s.Part])
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
		if p, err := ee.LoadProfile(sl.Profile); err == nil {
			out.LoadTime = p.LoadTime
		}
		chip := nvm.NewEEPROM(h.buses[sl.Bus], uint16(sl.EEPROM.Address), nvm.Parts[sl.EEPROM.Part])
		m, err := nvm.Section(chip, s.Offset, s.Size)
		if err != nil {
			out.Problem = err
			return out
		}
		out.Medium = m
	}
	return out
}
