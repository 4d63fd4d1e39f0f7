package config

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var update = flag.Bool("update", false, "write the golden files")

// lookup knows the embedded profiles as ee has them; cmd/batond tests the
// real ones.
func lookup(name string) (Profile, error) {
	switch name {
	case "regs-v1":
		return Profile{Registers: true, LinkControl: true}, nil
	case "nvm-only":
		return Profile{}, nil
	case "/late.json":
		return Profile{BlockOffset: 256}, nil
	}
	return Profile{}, fmt.Errorf("there is no profile %q", name)
}

func TestExample(t *testing.T) {
	data, err := os.ReadFile("testdata/example.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(data, lookup)
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	want := &Config{
		Enclosure: "rack7-io2",
		RunDir:    "/run/baton",
		Socket:    "/run/baton/baton.sock",
		Buses:     map[string]string{"i2c-5": "/dev/i2c-5", "i2c-6": "/dev/i2c-6"},
		Store:     Store{Bus: "i2c-5", Address: 0x57, Part: "24c256", FormatBlank: true},
		Slots: []Slot{
			{Name: "gpu0", Bus: "i2c-5", Address: 0x40, Profile: "regs-v1", MAC: MAC{0x8c, 0xdf, 0x9d, 0, 1, 1},
				Serial: 0x48b02d0300a1b2c3, EEPROM: EEPROM{0x50, "24c256"}, Port: "lan3", Mode: "tagged"},
			{Name: "gpu1", Bus: "i2c-5", Address: 0x41, Profile: "regs-v1", EEPROM: EEPROM{0x51, "24c256"}, Port: "lan4", Mode: "tagged"},
			{Name: "cap0", Bus: "i2c-6", Profile: "nvm-only", EEPROM: EEPROM{0x50, "24c256"},
				Reload: &Reload{GPIO: Line{"/dev/gpiochip0", 17}, Pulse: Duration(2 * time.Millisecond)}},
		},
		Hosts: []Host{
			{"server1", 101, MAC{0x8c, 0xdf, 0x9d, 0, 2, 1}},
			{"server2", 102, MAC{0x8c, 0xdf, 0x9d, 0, 2, 2}},
		},
		VMs: []VM{
			{"train1", UUID{0x6b, 0xa7, 0xb8, 0x10, 0x9d, 0xad, 0x41, 0xd1, 0x80, 0xb4, 0, 0xc0, 0x4f, 0xd4, 0x30, 0xc8},
				[]string{"server1", "server2"}, []string{"gpu0", "gpu1"}, "always"},
			{"capture1", UUID{0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x41, 0xd1, 0x80, 0xb4, 0, 0xc0, 0x4f, 0xd4, 0x30, 0xc8},
				[]string{"server1"}, []string{"cap0"}, "never"},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Config{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if e := got.Errorf("slots[2].reload.gpio", "x"); e.Line != 42 {
		t.Errorf("reload line on line %d; want 42", e.Line)
	}
}

// TestAllAtOnce pins what a person reads who got everything wrong.
func TestAllAtOnce(t *testing.T) {
	data, err := os.ReadFile("testdata/bad.json")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse(data, lookup)
	if c != nil || !errors.As(err, new(Errors)) {
		t.Fatalf("Parse = %v, %T; want no configuration and Errors", c, err)
	}
	got := err.Error() + "\n"
	if *update {
		if err := os.WriteFile("testdata/bad.txt", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/bad.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// small is a configuration of one slot; tests replace parts of it.
const small = `{
"enclosure": "e",
"buses": {"a": "/dev/i2c-0"},
"store": STORE,
"slots": [SLOT],
"hosts": [HOST],
"vms": [VM]
}`

var parts0 = map[string]string{
	"STORE": `{"file": "/var/lib/baton/store"}`,
	"SLOT":  `{"name": "s", "bus": "a", "address": "0x40", "profile": "regs-v1", "eeprom": {"address": "0x50", "part": "24c256"}}`,
	"HOST":  `{"name": "h", "group": 16, "mac": "02:00:00:00:00:01"}`,
	"VM":    ``,
}

func fill(over map[string]string) []byte {
	s := small
	for k, v := range parts0 {
		if o, ok := over[k]; ok {
			v = o
		}
		s = strings.Replace(s, k, v, 1)
	}
	return []byte(s)
}

func slot(name, bus, addr, profile, eeprom, part, more string) string {
	s := fmt.Sprintf(`{"name": %q, "bus": %q, "profile": %q, "eeprom": {"address": %q, "part": %q}`, name, bus, profile, eeprom, part)
	if addr != "" {
		s += fmt.Sprintf(`, "address": %q`, addr)
	}
	return s + more + "}"
}

func TestParse(t *testing.T) {
	many := func(n int, f string, args func(i int) []any) string {
		var l []string
		for i := range n {
			l = append(l, fmt.Sprintf(f, args(i)...))
		}
		return strings.Join(l, ",")
	}
	host := func(i int) []any { return []any{i, 16 + i, i / 256, i % 256} }
	for _, tt := range []struct {
		name string
		over map[string]string
		want string // what is wrong, one a line; "" = nothing
	}{
		{name: "small", want: ""},
		{"group 4092", map[string]string{"HOST": `{"name": "h", "group": 4092, "mac": "02:00:00:00:00:01"}`}, ""},
		{"group 15", map[string]string{"HOST": `{"name": "h", "group": 15, "mac": "02:00:00:00:00:01"}`},
			"line 6: hosts[0].group: 15 is outside 16..4092"},
		{"group 4093", map[string]string{"HOST": `{"name": "h", "group": 4093, "mac": "02:00:00:00:00:01"}`},
			"line 6: hosts[0].group: 4093 is outside 16..4092"},
		{"group 70000", map[string]string{"HOST": `{"name": "h", "group": 70000, "mac": "02:00:00:00:00:01"}`},
			"line 6: hosts[0].group: is 70000, want a whole number from 0 to 65535"},
		{"hosts", map[string]string{"STORE": `{"file": "/x", "size": 1048576}`, "HOST": many(1024, `{"name": "h%d", "group": %d, "mac": "02:00:00:00:%02x:%02x"}`, host)}, ""},
		{"too many hosts", map[string]string{"STORE": `{"file": "/x", "size": 1048576}`, "HOST": many(1025, `{"name": "h%d", "group": %d, "mac": "02:00:00:00:%02x:%02x"}`, host)},
			"line 6: hosts: 1025 hosts, at most 1024"},
		{"no hosts, as a board's seed", map[string]string{"HOST": ""}, ""},
		{"no hosts, but a VM on one", map[string]string{"HOST": "", "VM": `{"name": "v", "uuid": "6ba7b810-9dad-41d1-80b4-00c04fd430c8", "hosts": ["h"], "slots": ["s"]}`},
			`line 7: vms[0].hosts[0]: there is no host "h"`},
		{"no slots", map[string]string{"SLOT": ""}, "line 5: slots: none: an enclosure has at least one"},

		{"one-byte part beside its range", map[string]string{"SLOT": slot("s", "a", "0x58", "regs-v1", "0x50", "24c16", "")}, ""},
		{"engine in the block-bit range", map[string]string{"SLOT": slot("s", "a", "0x57", "regs-v1", "0x50", "24c16", "")},
			"line 5: slots[0].eeprom.address: the 24c16 of slot s would answer at 0x57 of bus a together with the engine of slot s"},
		{"store in the block-bit range", map[string]string{
			"STORE": `{"bus": "a", "address": "0x53", "part": "24c256"}`,
			"SLOT":  slot("s", "a", "0x40", "regs-v1", "0x50", "24c16", "")},
			"line 5: slots[0].eeprom.address: the 24c16 of slot s would answer at 0x53 of bus a together with the store's 24c256"},
		{"24c02 takes one address", map[string]string{
			"STORE": `{"bus": "a", "address": "0x51", "part": "24c256"}`,
			"SLOT":  slot("s", "a", "0x40", "regs-v1", "0x50", "24c02", "")}, ""},
		{"same address, other bus", map[string]string{
			"STORE": `{"bus": "a", "address": "0x50", "part": "24c256"}`,
			"SLOT":  slot("s", "b", "0x40", "regs-v1", "0x50", "24c256", "")},
			`line 5: slots[0].bus: there is no bus "b"; there are a`},

		{"nvm-only, none", map[string]string{"SLOT": slot("s", "a", "", "nvm-only", "0x50", "24c256", `, "reload": "none"`)}, ""},
		{"nvm-only, other word", map[string]string{"SLOT": slot("s", "a", "", "nvm-only", "0x50", "24c256", `, "reload": "no"`)},
			`line 5: slots[0].reload: "no" is neither "none" nor an object as {"gpio": "/dev/gpiochip0:17"}`},
		{"nvm-only, bad line", map[string]string{"SLOT": slot("s", "a", "", "nvm-only", "0x50", "24c256", `, "reload": {"gpio": "17", "active": "up", "pulse": "2s"}`)},
			`line 5: slots[0].reload.gpio: "17" is not a GPIO line, want the form /dev/gpiochip0:17` + "\n" +
				`line 5: slots[0].reload.active: "up" is neither "high" nor "low"` + "\n" +
				`line 5: slots[0].reload.pulse: "2s" is not a duration above 0 and up to 1s`},
		{"nvm-only with identity", map[string]string{"SLOT": slot("s", "a", "", "nvm-only", "0x50", "24c256", `, "reload": "none", "mac": "02:00:00:00:00:09", "serial": "0x1"`)},
			"line 5: slots[0].mac: profile nvm-only has no registers, so the engine's MAC can not be checked\n" +
				"line 5: slots[0].serial: profile nvm-only has no registers, so the device's serial can not be checked"},
		{"block beyond the chip", map[string]string{"SLOT": slot("s", "a", "", "/late.json", "0x50", "24c02", `, "reload": "none"`)},
			"line 5: slots[0].eeprom.part: 24c02 has 256 bytes, and the config block of profile /late.json ends at 320"},
		{"nvm-only, line is no text", map[string]string{"SLOT": slot("s", "a", "", "nvm-only", "0x50", "24c256", `, "reload": {"gpio": {}}`)},
			"line 5: slots[0].reload.gpio: is an object, want a string"},
		{"nvm-only, no line", map[string]string{"SLOT": slot("s", "a", "", "nvm-only", "0x50", "24c256", `, "reload": {"active": "low"}`)},
			"line 5: slots[0].reload.gpio: missing"},
		{"one reload line for two", map[string]string{
			"SLOT": slot("s", "a", "", "nvm-only", "0x50", "24c256", `, "reload": {"gpio": "/dev/gpiochip0:1"}`) + "," +
				slot("t", "a", "", "nvm-only", "0x51", "24c256", `, "reload": {"gpio": "/dev/gpiochip0:1"}`)},
			"line 5: slots[1].reload.gpio: line 1 of /dev/gpiochip0 already reloads slot s"},

		{"store: two kinds", map[string]string{"STORE": `{"file": "/x", "bus": "a"}`}, "line 4: store: want one of bus, file and slot, found bus, file"},
		{"store: no kind", map[string]string{"STORE": `{}`}, "line 4: store: want one of bus, file and slot, found none"},
		{"store: relative", map[string]string{"STORE": `{"file": "x"}`}, `line 4: store.file: "x" is not an absolute path`},
		{"store: half a page", map[string]string{"STORE": `{"file": "/x", "size": 32800}`}, "line 4: store.size: 32800 bytes: want 1024 to 16777216, in whole pages of 64"},
		{"store: odd page", map[string]string{"STORE": `{"file": "/x", "page": 60}`}, "line 4: store.page: 60 is not a power of two from 8 to 4096"},
		{"store: too large", map[string]string{"STORE": `{"file": "/x", "size": 33554432}`}, "line 4: store.size: 33554432 bytes: want 1024 to 16777216, in whole pages of 64"},
		{"store: too small for all", map[string]string{"HOST": many(500, `{"name": "h%d", "group": %d, "mac": "02:00:00:00:%02x:%02x"}`, host)},
			"line 4: store.size: a store of 32768 bytes has 512 pages; 1 slots, 500 hosts and 0 VMs can need 625"},
		{"store: too small a part", map[string]string{"STORE": `{"bus": "a", "address": "0x58", "part": "24c16"}`},
			"line 4: store.part: a store of 2048 bytes has 32 pages; 1 slots, 1 hosts and 0 VMs can need 126"},
		{"store: no address", map[string]string{"STORE": `{"bus": "a", "part": "24c256"}`}, "line 4: store.address: missing"},
		{"store: shared", map[string]string{"STORE": `{"slot": "s"}`}, ""},
		{"store: shared, no such slot", map[string]string{"STORE": `{"slot": "t"}`}, `line 4: store.slot: there is no slot "t"`},
		{"store: shared, torn pages", map[string]string{"STORE": `{"slot": "s", "offset": 96}`}, "line 4: store.offset: 96 is not a multiple of 64, so pages would be torn together"},
		{"store: shared, over the end", map[string]string{"STORE": `{"slot": "s", "offset": 64, "size": 32768}`}, "line 4: store.size: 32768 bytes at 64, and a 24c256 has 32768"},
		{"store: shared, overflow", map[string]string{"STORE": `{"slot": "s", "offset": 9223372036854775744, "size": 9223372036854775744}`},
			"line 4: store.size: 9223372036854775744 bytes at 9223372036854775744, and a 24c256 has 32768"},
		{"store: shared, over the block", map[string]string{
			"STORE": `{"slot": "s", "offset": 64, "size": 4096}`,
			"SLOT":  slot("s", "a", "", "/late.json", "0x50", "24c256", `, "reload": "none"`)},
			"line 4: store.offset: the config block of slot s is at 256..319"},
		{"store: shared, too small a chip", map[string]string{"STORE": `{"slot": "s"}`, "SLOT": slot("s", "a", "0x40", "regs-v1", "0x50", "24c02", "")},
			"line 4: store.size: 192 bytes: want at least 1024, in whole pages of 64"},
		{"store: shared, too few pages", map[string]string{"STORE": `{"slot": "s", "size": 4096}`},
			"line 4: store.slot: a store of 4096 bytes has 64 pages; 1 slots, 1 hosts and 0 VMs can need 126"},
		{"store: shared by one of two", map[string]string{"STORE": `{"slot": "s"}`,
			"SLOT": parts0["SLOT"] + "," + slot("t", "a", "0x41", "regs-v1", "0x51", "24c256", "")},
			"line 4: store.slot: an enclosure of 2 slots needs a store on a medium of its own: one engine's load would hold up the moves of all"},

		{"names", map[string]string{"SLOT": slot("a b", "a", "0x40", "regs-v1", "0x50", "24c256", "") + "," +
			slot("", "a", "0x41", "regs-v1", "0x51", "24c256", "") + "," +
			slot(strings.Repeat("x", 64), "a", "0x42", "regs-v1", "0x52", "24c256", "") + "," +
			slot("../x", "a", "0x43", "regs-v1", "0x53", "24c256", "")},
			`line 5: slots[0].name: "a b" is not a name: 1 to 63 of a-z A-Z 0-9 . _ -, not starting or ending with . or -` + "\n" +
				`line 5: slots[1].name: "" is not a name: 1 to 63 of a-z A-Z 0-9 . _ -, not starting or ending with . or -` + "\n" +
				`line 5: slots[2].name: "` + strings.Repeat("x", 64) + `" is not a name: 1 to 63 of a-z A-Z 0-9 . _ -, not starting or ending with . or -` + "\n" +
				`line 5: slots[3].name: "../x" is not a name: 1 to 63 of a-z A-Z 0-9 . _ -, not starting or ending with . or -`},
		{"VM without slots", map[string]string{"VM": `{"name": "v", "uuid": "6ba7b810-9dad-41d1-80b4-00c04fd430c8", "hosts": ["h"], "slots": []}`},
			"line 7: vms[0].slots: none: name at least one slot"},
		{"VM of UUID zero", map[string]string{"VM": `{"name": "v", "uuid": "00000000-0000-0000-0000-000000000000", "hosts": ["h"], "slots": ["s"]}`},
			"line 7: vms[0].uuid: the zero UUID names nothing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse(fill(tt.over), lookup)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSlotLimit(t *testing.T) {
	var buses, slots []string
	for i := range 65 {
		buses = append(buses, fmt.Sprintf(`"b%d": "/dev/i2c-%d"`, i, i))
		slots = append(slots, slot(fmt.Sprint("s", i), fmt.Sprint("b", i), "0x40", "regs-v1", "0x50", "24c256", ""))
	}
	for n, want := range map[int]string{64: "", 65: "line 5: slots: 65 slots, at most 64"} {
		data := fill(map[string]string{"SLOT": strings.Join(slots[:n], ",")})
		data = []byte(strings.Replace(string(data), `"a": "/dev/i2c-0"`, strings.Join(buses, ","), 1))
		_, err := Parse(data, lookup)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%d slots: %q; want %q", n, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	if _, err := Parse(make([]byte, maxFile+1), nil); err == nil || err.Error() != "line 1: 1048577 bytes, at most 1048576" {
		t.Errorf("Parse of 1 MiB and 1: %v", err)
	}
}

func TestSharedDefaults(t *testing.T) {
	c, err := Parse(fill(map[string]string{"STORE": `{"slot": "s"}`}), lookup)
	if err != nil {
		t.Fatal(err)
	}
	if c.Store.Offset != 64 || c.Store.Size != 32704 {
		t.Errorf("section at %d of %d bytes; want 64, 32704", c.Store.Offset, c.Store.Size)
	}
}

// FuzzParse: nothing panics, every error has a line, and what is accepted
// keeps the rules on which the agent relies.
func FuzzParse(f *testing.F) {
	for _, n := range []string{"example", "bad"} {
		data, err := os.ReadFile("testdata/" + n + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add(fill(map[string]string{"STORE": `{"slot": "s"}`}))
	f.Add(fill(map[string]string{"STORE": `{"slot": "s", "offset": 9223372036854775744, "size": 9223372036854775744}`}))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, lookup)
		if err != nil {
			var all Errors
			if !errors.As(err, &all) {
				t.Fatalf("error %T", err)
			}
			for _, e := range all {
				if e.Line < 1 || e.Text == "" {
					t.Fatalf("error without line or text: %+v", e)
				}
			}
			return
		}
		groups := map[uint16]bool{}
		for _, h := range c.Hosts {
			if h.Group < 16 || h.Group > 4092 || groups[h.Group] {
				t.Fatalf("group %d of %s", h.Group, h.Name)
			}
			groups[h.Group] = true
		}
		chips := map[string]bool{}
		for _, s := range c.Slots {
			at := fmt.Sprint(c.Buses[s.Bus], s.EEPROM.Address)
			if chips[at] {
				t.Fatalf("two EEPROMs at %s", at)
			}
			chips[at] = true
		}
		if s := c.Store; s.Slot != "" && (s.Offset < 64 || s.Size < minSize || s.Size > 65536 || s.Offset+s.Size > parts[c.Slots[0].EEPROM.Part].size) {
			t.Fatalf("section %d+%d", s.Offset, s.Size)
		}
	})
}
