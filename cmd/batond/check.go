package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"baton/ee/bus"
	"baton/enclosure"
	"baton/mgmt/config"
	"baton/nvm"
)

// check looks at what is the agent's and not the enclosure's: buses, socket,
// configuration, network, clock.
type check struct {
	hw     *hardware
	config *config.Config // that this run was begun with
	keeper *keeper
	socket string
	sysfs  string // where the kernel's devices are, "/sys"
	now    func() time.Time
}

// Bounds of a check.
const (
	scanLimit = 4 * time.Second // for one bus; a scan of one that works takes some 25 ms
	dialLimit = time.Second
)

// lines are what enclosure's check is preceded by.
func (c *check) lines(ctx context.Context) []enclosure.CheckLine {
	out := []enclosure.CheckLine{c.checkSocket(ctx), c.checkClock()}
	out = append(out, c.checkConfig()...)
	out = append(out, c.checkNetwork()...)
	for _, name := range sorted(c.hw.buses) {
		if ctx.Err() != nil {
			break
		}
		out = append(out, c.checkBus(ctx, name))
	}
	return out
}

func (c *check) checkSocket(ctx context.Context) enclosure.CheckLine {
	l := enclosure.CheckLine{Area: "agent", Subject: "socket", Level: enclosure.CheckOK, Text: c.socket + " takes connections"}
	d := net.Dialer{Timeout: dialLimit}
	conn, err := d.DialContext(ctx, "unix", c.socket)
	if err != nil {
		l.Level, l.Text, l.Next = enclosure.CheckFail, fmt.Sprintf("%s, as it is configured: %v", c.socket, err), "start the agent again; no link changes"
		return l
	}
	_ = conn.Close() // it was only to see
	return l
}

func (c *check) checkClock() enclosure.CheckLine {
	l := enclosure.CheckLine{Area: "clock", Subject: "clock", Level: enclosure.CheckOK}
	now := c.now()
	l.Text = "set: " + now.UTC().Format("2006-01-02 15:04:05") + " UTC"
	if now.Year() < 2026 {
		l.Level, l.Text, l.Next = enclosure.CheckWarn, "not set: times are the uptime", "nothing waits for it; set it if logs are to be compared with others'"
	}
	return l
}

func (c *check) checkConfig() (out []enclosure.CheckLine) {
	k := c.keeper
	now := k.now()
	l := enclosure.CheckLine{Area: "config", Subject: fmt.Sprintf("version %d", now.version), Level: enclosure.CheckOK, Text: "in force, kept in " + k.where()}
	switch open := k.open(now.config); {
	case k.frozen != nil:
		l.Level, l.Text, l.Next = enclosure.CheckFail, "what is kept can not be used: every change is refused", "baton config show --text; then baton config apply FILE --restart"
	case len(open) > 0:
		l.Level, l.Text, l.Next = enclosure.CheckWarn, "not in force before the agent starts again: "+few(open), "baton config apply FILE --restart; no link changes"
	case len(now.config.Hosts) == 0:
		l.Level, l.Text, l.Next = enclosure.CheckWarn, "there are no hosts in it, so no slot can be given to anybody", "baton config apply FILE"
	}
	out = append(out, l)
	// What is not told above, or with the network.
	told := append(k.uplink.warnings(), "")
	for _, w := range k.Warnings() {
		if !slices.Contains(told, w) && !strings.HasPrefix(w, "configuration ") && !strings.HasPrefix(w, "there are no hosts") {
			l := enclosure.CheckLine{Area: "config", Subject: "note", Level: enclosure.CheckWarn, Text: w, Next: "baton config show"}
			if text, ok := strings.CutPrefix(w, "switch: "); ok {
				l.Area, l.Subject, l.Text, l.Next = "vlan", "switch", text, "docs/vlan.md"
			}
			out = append(out, l)
		}
	}
	return out
}

func (c *check) checkNetwork() []enclosure.CheckLine {
	l := enclosure.CheckLine{Area: "network", Subject: "own", Level: enclosure.CheckOK}
	n := c.keeper.uplink.wanted()
	switch w := c.keeper.uplink.warnings(); {
	case len(w) > 0:
		l.Level, l.Text, l.Next = enclosure.CheckFail, strings.Join(w, "; "), "is the interface there? baton config show"
		if c.keeper.uplink.problem() == nil {
			l.Level, l.Next = enclosure.CheckWarn, "baton config confirm, or baton config revert"
		}
	case n == nil:
		return nil // not ours to set
	default:
		l.Text = n.String() + ", read back"
	}
	return []enclosure.CheckLine{l}
}

// checkBus scans a bus for what the configuration does not name. What it names
// is read by its own rules, and told by its slot.
func (c *check) checkBus(ctx context.Context, name string) enclosure.CheckLine {
	target := c.config.Buses[name]
	l := enclosure.CheckLine{Area: "bus", Subject: name, Level: enclosure.CheckOK}
	known := c.addresses(name)
	drivers := c.drivers(target)
	ctx, cancel := context.WithTimeout(ctx, scanLimit)
	defer cancel()
	found, err := bus.Scan(ctx, c.hw.buses[name], func(a uint16) bool { return known[a] || drivers[a] != "" })
	text := fmt.Sprintf("%s, %d addresses configured", target, len(known))
	if len(drivers) > 0 {
		var all []string
		for _, a := range sortedAddresses(drivers) {
			all = append(all, fmt.Sprintf("0x%02x %s", a, drivers[a]))
		}
		text += "; the kernel's: " + strings.Join(all, ", ")
	}
	switch {
	case err != nil:
		l.Level, l.Next = enclosure.CheckFail, "is its driver loaded, and does no chip hold the bus? Unseat its cards one by one"
		l.Text = fmt.Sprintf("%s: %v", target, err)
	case len(found) > 0:
		var all []string
		for _, a := range found {
			all = append(all, fmt.Sprintf("0x%02x", a))
		}
		l.Level, l.Next = enclosure.CheckWarn, "add it to the configuration if it is a slot's; else it does no harm"
		l.Text = text + "; answers and is not configured: " + strings.Join(all, " ")
	default:
		l.Text = text + "; nothing else answers"
	}
	return l
}

// addresses are those of a bus that the configuration names.
func (c *check) addresses(name string) map[uint16]bool {
	known := map[uint16]bool{}
	chip := func(at config.Address, part string) {
		n := uint16(1)
		if p, ok := nvm.Parts[part]; ok && p.AddrBytes == 1 { // its upper address bits are in the device's
			n = uint16(max(1, p.Size/256))
		}
		for i := range n {
			known[uint16(at)+i] = true
		}
	}
	if s := c.config.Store; s.Bus == name {
		chip(s.Address, s.Part)
	}
	for _, s := range c.config.Slots {
		if s.Bus != name {
			continue
		}
		if s.Address != 0 {
			known[uint16(s.Address)] = true
		}
		chip(s.EEPROM.Address, s.EEPROM.Part)
	}
	return known
}

// drivers are the kernel's drivers of chips on a bus, by address: what they own
// is not to be read behind their backs.
func (c *check) drivers(target string) map[uint16]string {
	number, ok := strings.CutPrefix(target, "/dev/i2c-")
	if !ok {
		return nil
	}
	out := map[uint16]string{}
	dirs, _ := filepath.Glob(filepath.Join(c.sysfs, "bus/i2c/devices", number+"-*")) // the pattern is well formed
	for _, d := range dirs {
		var n int
		var a uint16
		if _, err := fmt.Sscanf(filepath.Base(d), "%d-%x", &n, &a); err != nil || a > 0x7F {
			continue
		}
		if driver, err := os.Readlink(filepath.Join(d, "driver")); err == nil {
			out[a] = filepath.Base(driver)
		}
	}
	return out
}

func sortedAddresses(m map[uint16]string) []uint16 {
	var out []uint16
	for a := range m {
		out = append(out, a)
	}
	slices.Sort(out)
	return out
}
