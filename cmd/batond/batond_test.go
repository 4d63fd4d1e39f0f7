package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"periph.io/x/conn/v3/physic"

	"baton/ee"
	"baton/ee/bus"
	"baton/mgmt/config"
	"baton/nvm"
)

// TestParts: the configuration knows the parts that nvm has, and no others.
func TestParts(t *testing.T) {
	for name, p := range nvm.Parts {
		size, page, ok := config.Part(name)
		if !ok || p.Size != size || int64(p.Page) != page {
			t.Errorf("%s: configuration has %d bytes, pages of %d; nvm %d, %d", name, size, page, p.Size, p.Page)
		}
		if blockBits := p.AddrBytes == 1 && p.Size > 256; blockBits != (size > 256 && size <= 2048) {
			t.Errorf("%s: block bits %v", name, blockBits)
		}
	}
	for name, p := range nvm.Parts25 {
		size, page, ok := config.Part(name)
		if !ok || p.Size != size || int64(p.Page) != page {
			t.Errorf("%s: configuration has %d bytes, pages of %d; nvm %d, %d", name, size, page, p.Size, p.Page)
		}
		store := `"store": {"spi": "/dev/spidev0.0", "part": "` + name + `", "speed": "%s"}`
		for hz, want := range map[config.Frequency]bool{config.Frequency(p.SpeedMax / physic.Hertz): true, config.Frequency(p.SpeedMax/physic.Hertz) + 1e6: false} {
			_, err := config.Parse(fmt.Appendf(nil, `{"enclosure": "e", "buses": {"a": "/dev/i2c-0"}, "slots": [], `+store+`}`, hz), nil)
			if got := !strings.Contains(err.Error(), "store.speed"); got != want {
				t.Errorf("%s at %s: allowed %v; want %v (%v)", name, hz, got, want, err)
			}
		}
	}
	if _, _, ok := config.Part("24c04"); ok { // so ok means something
		t.Error("the configuration knows a part that nvm does not")
	}
}

// TestExamples: what the documentation shows, and the board's configuration,
// are valid with the real profiles.
func TestExamples(t *testing.T) {
	for _, file := range []string{"../../mgmt/config/testdata/example.json", "../../images/boards/ast2600-evb/batond.json"} {
		if _, err := readSeed(file); err != nil {
			t.Errorf("%v", err)
		}
	}
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../../mgmt/config/testdata/example.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(page, example) {
		t.Error("docs/configuration.md does not show mgmt/config/testdata/example.json as it is")
	}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.json"), filepath.Join(dir, "bad.json")
	text := `{"enclosure": "e", "buses": {"a": "/dev/i2c-0"}, "store": {"file": "/s"},
"slots": [{"name": "s", "bus": "a", "address": "0x40", "profile": "PROFILE", "eeprom": {"address": "0x50", "part": "24c256"}}],
"hosts": [{"name": "h", "group": GROUP, "mac": "02:00:00:00:00:01"}]}`
	for file, r := range map[string]*strings.Replacer{
		good: strings.NewReplacer("PROFILE", "regs-v1", "GROUP", "16"),
		bad:  strings.NewReplacer("PROFILE", "regs-v9", "GROUP", "15"),
	} {
		if err := os.WriteFile(file, []byte(r.Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		args      []string
		out, fail string
		is        error
	}{
		{[]string{"-version"}, "batond 0.1.0\n", "", nil},
		{[]string{"-check", "-config", good}, good + ": ok: enclosure e, slots: 1, hosts: 1, VMs: 0\n", "", nil},
		{[]string{"-check", "-config", bad}, "", "configuration " + bad + " can not be used:\n" +
			`line 2: slots[0].profile: profile "regs-v9": there is no such profile; embedded ones: nvm-only, regs-v1; a file's path has a slash in it` + "\n" +
			"line 3: hosts[0].group: 15 is outside 16..4092", nil},
		{[]string{"-config", bad}, "", "line 3", nil},
		{[]string{"-config", filepath.Join(dir, "none")}, "", "no such file", os.ErrNotExist},
		{[]string{"now"}, "", `what is "now"?`, errUsage},
		{[]string{"-force"}, "", "flag provided but not defined", errUsage},
		{[]string{"-h"}, "", "help requested", flag.ErrHelp},
	} {
		var out bytes.Buffer
		err := run(t.Context(), tt.args, nil, &out, io.Discard)
		if out.String() != tt.out {
			t.Errorf("%q says %q; want %q", tt.args, out.String(), tt.out)
		}
		switch {
		case tt.fail == "" && err != nil, tt.fail != "" && (err == nil || !strings.Contains(err.Error(), tt.fail)):
			t.Errorf("%q: error %v; want %q", tt.args, err, tt.fail)
		case tt.is != nil && !errors.Is(err, tt.is):
			t.Errorf("%q: error %v is no %v", tt.args, err, tt.is)
		}
	}
}

func TestRunDir(t *testing.T) {
	c := &config.Config{RunDir: filepath.Join(t.TempDir(), "run"), Buses: map[string]string{"a": "/dev/i2c-0"}, Store: config.Store{Bus: "a", Address: 0x57}}
	open := func() *runDir {
		t.Helper()
		d, err := openRunDir(c)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := open()
	if first.sameBoot {
		t.Error("first start: another agent is said to have run")
	}
	if _, err := openRunDir(c); err == nil || !strings.Contains(err.Error(), "another batond runs in") {
		t.Errorf("a second agent beside it: %v", err)
	}
	first.close() // as if it was killed before its store was mounted
	second := open()
	if second.sameBoot {
		t.Error("the first one marked nothing, and yet counts")
	}
	if err := second.mark(); err != nil {
		t.Fatal(err)
	}
	second.close()
	third := open()
	if !third.sameBoot {
		t.Error("the second one marked, and does not count")
	}
	third.close()

	// Another store is not the one that was mounted.
	c.Store.Address = 0x56
	if d := open(); d.sameBoot {
		t.Error("with another store the marker counts")
	} else {
		d.close()
	}
	// Nor does the marker of another boot count.
	c.Store.Address = 0x57
	if err := os.WriteFile(third.path, []byte(strings.Replace(third.id, "boot ", "boot 0", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := open(); d.sameBoot {
		t.Error("the marker of another boot counts")
	} else {
		d.close()
	}
}

// TestLateBus: a bus that is not there yet is opened when it comes, and asked
// for once a second.
func TestLateBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &lateBus{name: "/dev/i2c-300"}
		if err := b.open(); err == nil {
			t.Fatal("there is a /dev/i2c-300")
		}
		first, tried := b.err, b.tried
		if err := b.Tx(0x50, nil, nil); !errors.Is(err, first) || !b.tried.Equal(tried) {
			t.Errorf("within the second: %v", err)
		}
		time.Sleep(openEvery)
		if err := b.Tx(0x50, nil, nil); err == nil || b.tried.Equal(tried) {
			t.Errorf("a second later it was not tried again: %v", err)
		}
		if b.String() != "/dev/i2c-300" {
			t.Errorf("String() = %q", b)
		}
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	simulated := &lateBus{name: "unix:/nowhere"}
	if err := simulated.Tx(0x50, nil, nil); !errors.Is(err, bus.ErrSimulated) {
		t.Errorf("a simulated bus without leave: %v", err)
	}
}

func TestLogHasUptime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := newLog(&out)
		time.Sleep(1500 * time.Millisecond)
		log.With("slot", "gpu0").Info("one")
		log.Info("two", slog.Duration("uptime", time.Minute))
		want := "time=2000-01-01T00:00:01.500Z level=INFO msg=one slot=gpu0 uptime=1.5s\n" +
			"time=2000-01-01T00:00:01.500Z level=INFO msg=two uptime=1m0s\n"
		if got := strings.ReplaceAll(out.String(), "+00:00", "Z"); got != want {
			t.Errorf("log\n%swant\n%s", got, want)
		}
	})
}

// TestHardware: what can not be opened is noted where it belongs, and the rest
// is there.
func TestHardware(t *testing.T) {
	dir := t.TempDir()
	small := filepath.Join(dir, "small")
	if err := os.WriteFile(small, make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &config.Config{
		Enclosure: "e", Simulated: true,
		Buses: map[string]string{"a": "unix:" + filepath.Join(dir, "none"), "b": "/dev/i2c-300"},
		Store: config.Store{File: small, Size: 32768, Page: 64},
		Slots: []config.Slot{
			{Name: "gpu0", Bus: "a", Address: 0x40, Profile: "regs-v1", MAC: config.MAC{2, 5: 1}, Serial: 7, EEPROM: config.EEPROM{Address: 0x50, Part: "24c256"}, Port: "lan3"},
			{Name: "cap0", Bus: "b", Profile: "nvm-only", EEPROM: config.EEPROM{Address: 0x51, Part: "24c256"},
				Reload: &config.Reload{GPIO: config.Line{Chip: filepath.Join(dir, "gpiochip0"), Number: 1}, Pulse: 1}},
			{Name: "cap1", Bus: "b", Profile: "nvm-only", EEPROM: config.EEPROM{Address: 0x52, Part: "24c256"}, Reload: &config.Reload{None: true}},
		},
		Hosts: []config.Host{{Name: "h", Group: 101, MAC: config.MAC{2, 5: 9}}},
		VMs:   []config.VM{{Name: "v", UUID: config.UUID{15: 1}, Hosts: []string{"h"}, Slots: []string{"gpu0"}, Policy: "always"}},
	}
	var log bytes.Buffer
	h := openHardware(c, newLog(&log))
	h.use(c)
	if err := errors.Unwrap(h.config.Store.Problem); !errors.Is(h.config.Store.Problem, nvm.ErrSize) || h.config.Store.Medium != nil {
		t.Errorf("store: %v, %v", h.config.Store.Problem, err)
	}
	s := h.config.Slots[0]
	if s.Name != "gpu0" || s.BusName != "a" || s.Addr != 0x40 || s.Page != "a/0x50" || s.MAC != (ee.MAC{2, 5: 1}) || s.Serial != 7 || s.Port != "lan3" || s.Profile.Name != "regs-v1" || s.Reload != nil {
		t.Errorf("gpu0: %+v", s)
	}
	if err := h.config.Slots[1].Reload.Reload(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("cap0: reload: %v", err)
	}
	if err := h.config.Slots[2].Reload.Reload(t.Context()); err != nil {
		t.Errorf("cap1: reload: %v", err)
	}
	if !slices.ContainsFunc(h.warnings, func(w string) bool { return strings.HasPrefix(w, "cap1: there is no reload line") }) {
		t.Errorf("warnings %q", h.warnings)
	}
	for _, want := range []string{"bus can not be opened", "reload line can not be opened"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log has no %q:\n%s", want, log.String())
		}
	}
	if err := h.close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// TestSharedStore: the section of a slot's chip, behind the config block.
func TestSharedStore(t *testing.T) {
	text := `{"enclosure": "e", "buses": {"a": "/dev/i2c-300"}, "store": {"slot": "s"},
"slots": [{"name": "s", "bus": "a", "address": "0x40", "profile": "regs-v1", "eeprom": {"address": "0x50", "part": "24c256"}}],
"hosts": [{"name": "h", "group": 16, "mac": "02:00:00:00:00:01"}]}`
	c, err := config.Parse([]byte(text), findProfile)
	if err != nil {
		t.Fatal(err)
	}
	h := openHardware(c, slog.New(slog.DiscardHandler))
	h.use(c)
	defer func() { _ = h.close() }() // there is nothing to close
	s := h.config.Store
	if s.Problem != nil || s.Shared != "s" || s.Name != "a/0x50+64" || s.Medium.Geometry().Size != 32704 {
		t.Errorf("store: %+v, %v", s, s.Problem)
	}
	if fmt.Sprint(h.config.Slots[0].Medium.Geometry().Size) != "32768" {
		t.Errorf("slot's medium: %+v", h.config.Slots[0].Medium.Geometry())
	}
}
