package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"baton/ee/bus"
	"baton/enclosure"
	"baton/mgmt/config"
	"baton/mgmt/server/servertest"
	"baton/test/rig"

	"periph.io/x/conn/v3/physic"
)

// chips is a bus with chips at some addresses.
type chips struct {
	at   map[uint16]bool
	err  error // of all else
	read []uint16
}

func (c *chips) String() string                  { return "bus" }
func (c *chips) SetSpeed(physic.Frequency) error { return nil }
func (c *chips) Tx(addr uint16, _, _ []byte) error {
	c.read = append(c.read, addr)
	if c.at[addr] {
		return nil
	}
	return c.err
}

// TestCheckBus: what answers and is not configured is told; what is the
// kernel's, or is known, is not read behind its back.
func TestCheckBus(t *testing.T) {
	sysfs := t.TempDir()
	dev := filepath.Join(sysfs, "bus/i2c/devices/5-0048")
	if err := os.MkdirAll(dev, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../drivers/lm75", filepath.Join(dev, "driver")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(sysfs, "bus/i2c/devices/5-0049"), 0o700); err != nil { // without a driver
		t.Fatal(err)
	}
	conf := &config.Config{
		Buses: map[string]string{"i2c-5": "/dev/i2c-5"},
		Store: config.Store{Bus: "i2c-5", Address: 0x50, Part: "24c16"}, // 0x50..0x57
		Slots: []config.Slot{{Name: "gpu0", Bus: "i2c-5", Address: 0x40, EEPROM: config.EEPROM{Address: 0x20, Part: "24c256"}}, {Name: "else", Bus: "i2c-6", Address: 0x33}},
	}
	nack := fmt.Errorf("sysfs-i2c: %v", syscall.ENXIO)
	for _, tt := range []struct {
		name  string
		bus   *chips
		level enclosure.CheckLevel
		text  string
	}{
		{"well", &chips{err: nack}, enclosure.CheckOK, "/dev/i2c-5, 10 addresses configured; the kernel's: 0x48 lm75; nothing else answers"},
		{"strangers", &chips{err: nack, at: map[uint16]bool{0x33: true, 0x49: true}}, enclosure.CheckWarn, "answers and is not configured: 0x33 0x49"},
		{"no device", &chips{err: fmt.Errorf("sysfs-i2c: %v", syscall.ENODEV)}, enclosure.CheckFail, "no such device"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			owned := bus.Own(tt.bus, time.Second)
			defer owned.Close()
			c := &check{hw: &hardware{buses: map[string]*bus.Owned{"i2c-5": owned}}, config: conf, sysfs: sysfs}
			l := c.checkBus(t.Context(), "i2c-5")
			if l.Level != tt.level || !strings.Contains(l.Text, tt.text) || (l.Next == "") != (tt.level == enclosure.CheckOK) {
				t.Errorf("%+v; want %s, %q", l, tt.level, tt.text)
			}
			for _, a := range tt.bus.read {
				if a >= 0x50 && a <= 0x57 || a == 0x40 || a == 0x20 || a == 0x48 {
					t.Errorf("0x%02x was read", a)
				}
			}
		})
	}
}

// TestCheckLines: socket, clock, configuration and network of an agent.
func TestCheckLines(t *testing.T) {
	servertest.NoLeaks(t)
	dir := t.TempDir()
	onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
		now := time.Date(2026, 5, 4, 10, 20, 30, 0, time.UTC)
		c := &check{hw: &hardware{}, config: d.seed.config, keeper: d.k, socket: filepath.Join(dir, "none"), now: func() time.Time { return now }}
		want := func(level enclosure.CheckLevel, area, text string) {
			t.Helper()
			var all []enclosure.CheckLine
			for _, l := range append([]enclosure.CheckLine{c.checkClock()}, append(c.checkConfig(), c.checkNetwork()...)...) {
				if all = append(all, l); l.Area == area && l.Level == level && strings.Contains(l.Text, text) {
					return
				}
			}
			t.Errorf("no %s %s with %q in %+v", area, level, text, all)
		}
		want(enclosure.CheckOK, "clock", "2026-05-04 10:20:30 UTC")
		want(enclosure.CheckOK, "config", "in force, kept in store")
		want(enclosure.CheckOK, "network", "192.0.2.10/24 on eth0")
		now = time.Date(1970, 1, 1, 0, 5, 0, 0, time.UTC)
		want(enclosure.CheckWarn, "clock", "not set")
		d.applied(d.edit("192.0.2.10/24", "192.0.2.11/24"))
		want(enclosure.CheckWarn, "network", "on trial")
		d.u.revert("", "test")
		d.applied(d.edit(`"0x57"`, `"0x57"`, `"rack7-io2"`, `"rack8"`))
		want(enclosure.CheckWarn, "config", "not in force before the agent starts again")
	})
}

func TestCheckSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "bd") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c := &check{socket: filepath.Join(dir, "s")}
	if l := c.checkSocket(t.Context()); l.Level != enclosure.CheckFail || l.Next == "" {
		t.Errorf("without a socket: %+v", l)
	}
	l, err := net.Listen("unix", c.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l := c.checkSocket(t.Context()); l.Level != enclosure.CheckOK {
		t.Errorf("%+v", l)
	}
}

// TestTellConsole: the password is in the run directory as soon as it is in
// force, for its owner's eyes only, and says so when there is none.
func TestTellConsole(t *testing.T) {
	const hash = "pbkdf2-sha256$4096$c2FsdHNhbHRzYWx0$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	dir := t.TempDir()
	onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
		running := *d.k.running
		running.RunDir = dir
		d.k.running = &running
		d.k.tellConsole = tellConsole
		d.k.lockConsole(d.k.now().config)
		file := filepath.Join(dir, config.ConsoleFileName)
		read := func() (f config.ConsoleFile) {
			t.Helper()
			st, err := os.Stat(file)
			if err != nil || st.Mode().Perm() != 0o600 {
				t.Fatalf("%v, %v", st, err)
			}
			text, err := os.ReadFile(file)
			if err == nil {
				err = json.Unmarshal(text, &f)
			}
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		if !consoleTold(dir) || consoleTold(t.TempDir()) {
			t.Error("it is not seen whether an agent has said how the console is locked")
		}
		if f := read(); f.Password != "" || f.LockAfterMS != 600_000 {
			t.Errorf("without a password: %+v", f)
		}
		a := d.applied(strings.Replace(string(d.k.now().text), "{", `{"console": {"password": "`+hash+`", "lock_after": "5m"},`, 1))
		if f := read(); f.Password != hash || f.LockAfterMS != 300_000 {
			t.Errorf("%+v", f)
		}
		if strings.Contains(fmt.Sprint(a.Restart), "console") || strings.Contains(fmt.Sprint(a.Changes), "pbkdf2") {
			t.Errorf("applied as %+v", a)
		}
		for _, e := range events(d) {
			if strings.Contains(e.Text, "pbkdf2") {
				t.Errorf("an event has the hash: %s", e.Text)
			}
		}
	})
}
