package boards_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"baton/ee"
	"baton/images/boards"
	"baton/mgmt/config"
	"baton/nvm"
)

const agentConfig = "etc/baton/batond.json"

// profile is how batond finds what the configuration must know of a profile.
func profile(name string) (config.Profile, error) {
	p, err := ee.LoadProfile(name)
	if err != nil {
		return config.Profile{}, err
	}
	return config.Profile{
		Registers:   p.Caps.Has(ee.CapStatus),
		LinkControl: p.Caps.Has(ee.CapLinkControl),
		BlockOffset: p.BlockOffset,
	}, nil
}

// TestAgentConfig holds a board's configuration of batond against batond's own
// rules, and against the chips that QEMU emulates.
func TestAgentConfig(t *testing.T) {
	for _, name := range boards.Names() {
		t.Run(name, func(t *testing.T) {
			b, err := boards.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			text, err := b.ReadFile(b.Files[agentConfig])
			if err != nil {
				t.Fatal(err)
			}
			c, err := config.Parse(text, profile)
			if err != nil {
				t.Fatal(err)
			}

			emulated := map[string]bool{}
			number := regexp.MustCompile(`\d+$`)
			for _, e := range b.QEMU.EEPROMs {
				emulated[fmt.Sprintf("/dev/i2c-%s 0x%02x %d", number.FindString(e.Bus), uint64(e.Address), e.Size)] = true
			}
			check := func(what, bus string, a config.Address, part string) {
				if !strings.HasPrefix(c.Buses[bus], "/dev/") {
					return // of the simulator: config.Parse wants simulated to be said
				}
				if chip := fmt.Sprintf("%s %s %d", c.Buses[bus], a, nvm.Parts[part].Size); !emulated[chip] {
					t.Errorf("%s: QEMU emulates no chip %s", what, chip)
				}
			}
			if c.Store.Bus != "" {
				check("store", c.Store.Bus, c.Store.Address, c.Store.Part)
			}
			for _, s := range c.Slots {
				check("slot "+s.Name, s.Bus, s.EEPROM.Address, s.EEPROM.Part)
				if r := s.Reload; r != nil && !r.None && !strings.HasPrefix(r.GPIO.Chip, "/dev/gpiochip") {
					t.Errorf("slot %s: %s is no GPIO controller of the kernel's", s.Name, r.GPIO.Chip)
				}
			}
		})
	}
}
