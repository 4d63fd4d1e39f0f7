package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
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
	chips    map[string]*nvm.SPI25 // by chip select
	open     []io.Closer           // in the order of opening
	ports    *ports                // nil = the configuration has no switch
	log      *slog.Logger
}

// transferLimit is how long a bus transfer may take, beside its bytes, before
// the bus counts as wedged.
const transferLimit = time.Second

// openHardware opens buses and store, which the seed alone says: what slots
// there are may be in the store. What fails is noted where it belongs.
func openHardware(seed *config.Config, log *slog.Logger) *hardware {
	h := &hardware{buses: map[string]*bus.Owned{}, chips: map[string]*nvm.SPI25{}, log: log}
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

// awaitDevices waits until the devices of the configuration are there: their
// drivers may be loaded while the agent starts. For the store's it waits up to
// storeWait, for others up to deviceWait. What is absent then is said in the
// status, and looked for by awaitMedium, or when it is used. waits is told what
// is waited for.
func awaitDevices(ctx context.Context, c *config.Config, log *slog.Logger, waits func(what string)) {
	begin := time.Now()
	tick := time.NewTicker(deviceLook)
	defer tick.Stop()
	for said := false; ; said = true {
		most, what := storeWait, storeAbsent(c)
		if what == nil {
			most, what = deviceWait, deviceAbsent(c)
		}
		if what == nil {
			if said {
				log.Info("the devices are there", "waited", time.Since(begin).Round(time.Millisecond))
			}
			return
		}
		if !said {
			log.Info("waits for a device", "err", what, "most", most)
			waits(what.Error())
		}
		if time.Since(begin) >= most {
			log.Error("a device has not come; the agent starts without it", "err", what)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Bounds of the wait for devices.
const (
	storeWait  = 10 * time.Second
	deviceWait = 2 * time.Second
	deviceLook = 10 * time.Millisecond
	mediumLook = 5 * time.Second
)

// deviceAbsent is an error where a device of this machine's that slots need is
// not there.
func deviceAbsent(c *config.Config) error {
	var paths []string
	for _, s := range c.Slots {
		paths = append(paths, c.Buses[s.Bus], s.EEPROM.SPI)
		if s.Reload != nil && !s.Reload.None {
			paths = append(paths, s.Reload.GPIO.Chip)
		}
	}
	for _, path := range paths {
		if err := absent(path); err != nil {
			return err
		}
	}
	return nil
}

// absent is an error where path is a device's and there is none.
func absent(path string) error {
	if !strings.HasPrefix(path, "/dev/") {
		return nil // a socket of the simulator's, or a file, which is made
	}
	_, err := os.Stat(path)
	return notThere(err)
}

// storeAbsent is an error where the store's device is one of this machine's
// and there is none.
func storeAbsent(c *config.Config) error {
	path := ""
	switch s := c.Store; {
	case s.Bus != "":
		path = c.Buses[s.Bus]
	case s.SPI != "":
		path = s.SPI
	case s.MTD != "":
		path = s.MTD
		if !strings.HasPrefix(path, "/") {
			_, err := nvm.FindMTD(path)
			return notThere(err)
		}
	case s.Slot != "":
		if i := slices.IndexFunc(c.Slots, func(sl config.Slot) bool { return sl.Name == s.Slot }); i >= 0 {
			path = cmp.Or(c.Slots[i].EEPROM.SPI, c.Buses[c.Slots[i].Bus])
		}
	}
	return absent(path)
}

// notThere is err where that may change: a driver may be loaded late.
func notThere(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// unread tells whether a store could not be used because its medium was not
// there or did not answer, and not for what is in it or what part it is.
func unread(err error) bool {
	if err == nil {
		return false
	}
	for _, known := range []error{nvm.ErrUnformatted, nvm.ErrVersion, nvm.ErrSize, nvm.ErrAddressing, nvm.ErrStore, nvm.ErrWorn} {
		if errors.Is(err, known) {
			return false
		}
	}
	return true
}

// mediumPause is the pause before the medium is asked for in the n-th run in a
// row that could not read it: one that answers, and can not be read for all
// that, is not read for ever.
func mediumPause(n int) time.Duration { return min(mediumLook<<min(n, 6), 5*time.Minute) }

// awaitMedium waits until the store's medium answers, and has the agent start
// again in place, which reads it.
func (h *hardware) awaitMedium(ctx context.Context, seed *config.Config, every time.Duration, again func(why string)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if h.askMedium(ctx, seed) == nil && ctx.Err() == nil {
			again("the store's medium answers now")
			return
		}
	}
}

// askMedium reads a byte of the store's medium.
func (h *hardware) askMedium(ctx context.Context, seed *config.Config) error {
	sc := h.config.Store
	if sc.Medium == nil {
		anew := &hardware{buses: h.buses, chips: map[string]*nvm.SPI25{}, log: h.log}
		sc = anew.store(seed)
		defer func() { _ = anew.close() }() // nothing was written
	}
	if sc.Medium == nil {
		return sc.Problem
	}
	ctx, cancel := context.WithTimeout(ctx, mediumLook)
	defer cancel()
	return sc.Medium.ReadAt(ctx, make([]byte, 1), 0)
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
		Part: s.EEPROM.Part,
		MAC:  ee.MAC(s.MAC), Serial: uint64(s.Serial), Port: s.Port,
	}
	out.Medium, out.Page = h.eeprom(s)
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
	case s.SPI != "":
		out.Name, out.Part = s.SPI, s.Part
		out.Medium = h.spi(s.SPI, s.Part, s.Speed)
	case s.MTD != "":
		out.Name = "mtd " + s.MTD
		out.Medium, out.Problem = h.mtd(c)
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
		out.Shared, out.Part, out.Offset = sl.Name, sl.EEPROM.Part, s.Offset
		if p, err := ee.LoadProfile(sl.Profile); err == nil {
			out.LoadTime = p.LoadTime
		}
		chip, at := h.eeprom(sl)
		out.Name = fmt.Sprintf("%s+%d", at, s.Offset)
		m, err := nvm.Section(chip, s.Offset, s.Size)
		if err != nil {
			out.Problem = err
			return out
		}
		out.Medium = m
	}
	return out
}
