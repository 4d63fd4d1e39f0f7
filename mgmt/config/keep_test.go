package config

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func parse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse([]byte(text), lookup)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// base is a configuration that the tests below change by replacing words.
const base = `{
"enclosure": "e",
"buses": {"a": "/dev/i2c-0", "b": "/dev/i2c-1"},
"store": {"bus": "a", "address": "0x57", "part": "24c256", "config": true},
"slots": [
 {"name": "gpu0", "bus": "a", "address": "0x40", "profile": "regs-v1", "eeprom": {"address": "0x50", "part": "24c256"}},
 {"name": "gpu1", "bus": "a", "address": "0x41", "profile": "regs-v1", "eeprom": {"address": "0x51", "part": "24c256"}}
],
"hosts": [{"name": "h1", "group": 16, "mac": "02:00:00:00:00:01"}, {"name": "h2", "group": 17, "mac": "02:00:00:00:00:02"}],
"vms": [{"name": "v", "uuid": "6ba7b810-9dad-41d1-80b4-00c04fd430c8", "hosts": ["h1", "h2"], "slots": ["gpu0"], "policy": "always"}],
"network": {"interface": "eth0", "address": "192.0.2.10/24", "gateway": "192.0.2.1"}
}`

func TestDiff(t *testing.T) {
	slot1 := `,
 {"name": "gpu1", "bus": "a", "address": "0x41", "profile": "regs-v1", "eeprom": {"address": "0x51", "part": "24c256"}}`
	network := `,
"network": {"interface": "eth0", "address": "192.0.2.10/24", "gateway": "192.0.2.1"}`
	for _, tt := range []struct {
		name     string
		from, to string // words replaced; "" = from the start
		want     []Change
	}{
		{"nothing", "", "", nil},
		{"white space", "\n", "\n\n", nil},
		{"order of hosts", `{"name": "h1", "group": 16, "mac": "02:00:00:00:00:01"}, {"name": "h2", "group": 17, "mac": "02:00:00:00:00:02"}`,
			`{"name": "h2", "group": 17, "mac": "02:00:00:00:00:02"}, {"name": "h1", "group": 16, "mac": "02:00:00:00:00:01"}`, nil},
		{"enclosure", `"e"`, `"f"`, []Change{{Class: Restart, Text: "enclosure: e -> f"}}},
		{"bus", `"/dev/i2c-1"`, `"/dev/i2c-2"`, []Change{{Class: Restart, Text: "bus b: /dev/i2c-1 -> /dev/i2c-2"}}},
		{"bus added", `"b": "/dev/i2c-1"`, `"b": "/dev/i2c-1", "c": "/dev/i2c-2"`, []Change{{Class: Restart, Text: "bus c: none -> /dev/i2c-2"}}},
		{"bus removed", `, "b": "/dev/i2c-1"`, ``, []Change{{Class: Restart, Text: "bus b: /dev/i2c-1 -> none"}}},
		{"store", `"0x57"`, `"0x56"`, []Change{{Class: Restart, Text: "store: address 0x57 -> 0x56"}}},
		{"store's configuration", `, "config": true`, ``, []Change{{Class: Restart, Text: "store: config true -> false"}}},
		{"socket", `"enclosure"`, `"socket": "/run/s", "enclosure"`, []Change{{Class: Restart, Text: "socket: /run/baton/baton.sock -> /run/s"}}},
		{"run directory", `"enclosure"`, `"run_dir": "/run/x", "enclosure"`, []Change{
			{Class: Restart, Text: "run_dir: /run/baton -> /run/x"}, {Class: Restart, Text: "socket: /run/baton/baton.sock -> /run/x/baton.sock"}}},
		{"slot", `"0x41", "profile": "regs-v1"`, `"0x42", "profile": "regs-v1", "serial": "0x7"`, []Change{
			{Class: Restart, Text: "slot gpu1: address 0x41 -> 0x42, serial none -> 0x0000000000000007", Slot: "gpu1"}}},
		{"slot's chip", `{"address": "0x51", "part": "24c256"}`, `{"address": "0x52", "part": "24c512"}`, []Change{
			{Class: Restart, Text: "slot gpu1: eeprom 24c256 at 0x51 -> 24c512 at 0x52", Slot: "gpu1"}}},
		{"slot removed", slot1, "", []Change{{Class: Restart, Text: "slot gpu1 removed", Slot: "gpu1", Gone: true}}},
		{"slot renamed", `"gpu1"`, `"gpu2"`, []Change{
			{Class: Restart, Text: "slot gpu1 removed", Slot: "gpu1", Gone: true},
			{Class: Restart, Text: "slot gpu2 added: profile regs-v1, bus a, address 0x41, eeprom 24c256 at 0x51"}}},
		{"slot added", slot1, slot1 + `, {"name": "cap0", "bus": "b", "profile": "nvm-only", "reload": {"gpio": "/dev/gpiochip0:17"}, "eeprom": {"address": "0x51", "part": "24c256"}}`,
			[]Change{{Class: Restart, Text: "slot cap0 added: profile nvm-only, bus b, eeprom 24c256 at 0x51"}}},
		{"host's group", `17`, `18`, []Change{{Class: Live, Text: "host h2: group 17 -> 18"}}},
		{"host's MAC", `02:00:00:00:00:02`, `02:00:00:00:00:03`, []Change{{Class: Live, Text: "host h2: mac 02:00:00:00:00:02 -> 02:00:00:00:00:03"}}},
		{"host added", `"hosts": [{`, `"hosts": [{"name": "h3", "group": 18, "mac": "02:00:00:00:00:03"}, {`, []Change{{Class: Live, Text: "host h3 added: group 18, 02:00:00:00:00:03"}}},
		{"host renamed", `"h2"`, `"h3"`, []Change{
			{Class: Live, Text: "host h2 removed"}, {Class: Live, Text: "host h3 added: group 17, 02:00:00:00:00:02"},
			{Class: Live, Text: "VM v: hosts h1 h2 -> h1 h3"}}},
		{"policy", `"always"`, `"never"`, []Change{{Class: Live, Text: "VM v: policy always -> never"}}},
		{"VM's slots", `["gpu0"]`, `["gpu0", "gpu1"]`, []Change{{Class: Live, Text: "VM v: slots gpu0 -> gpu0 gpu1"}}},
		{"VM renamed", `"v"`, `"w"`, []Change{
			{Class: Live, Text: "VM v removed"}, {Class: Live, Text: "VM w added: hosts h1 h2; slots gpu0; policy always"}}},
		{"network", `192.0.2.10/24`, `192.0.2.11/24`, []Change{
			{Class: NetworkChange, Text: "network: 192.0.2.10/24 on eth0, gateway 192.0.2.1 -> 192.0.2.11/24 on eth0, gateway 192.0.2.1"}}},
		{"VLAN", `"eth0"`, `"eth0", "vlan": 100`, []Change{
			{Class: NetworkChange, Text: "network: 192.0.2.10/24 on eth0, gateway 192.0.2.1 -> 192.0.2.10/24 on eth0, VLAN 100, gateway 192.0.2.1"}}},
		{"no network", network, "", []Change{{Class: NetworkChange, Text: "network: 192.0.2.10/24 on eth0, gateway 192.0.2.1 -> none"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			was := parse(t, base)
			text := strings.ReplaceAll(base, tt.from, tt.to)
			if tt.from == "" {
				text = base
			} else if text == base {
				t.Fatalf("%q is not in the text", tt.from)
			}
			now := parse(t, text)
			if diff := cmp.Diff(tt.want, Diff(was, now)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if back := Diff(now, was); len(back) != len(tt.want) {
				t.Errorf("and back: %q", Texts(back))
			}
		})
	}
}

// TestDiffSeesEveryKey: a key that is added to the configuration later, and not
// to Diff, would change without anybody being told.
func TestDiffSeesEveryKey(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	c := parse(t, base)
	c.Switch = &Switch{Bridge: "br0"}
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		other := *c
		set := reflect.ValueOf(&other).Elem().Field(i)
		switch set.Kind() {
		case reflect.String:
			set.SetString(fmt.Sprint(random.Int()))
		case reflect.Bool:
			set.SetBool(!set.Bool())
		default:
			set.SetZero()
		}
		if len(Diff(c, &other)) == 0 {
			t.Errorf("a change of %s is none for Diff", f.Name)
		}
	}
}

func TestPack(t *testing.T) {
	example, err := os.ReadFile("testdata/example.json")
	if err != nil {
		t.Fatal(err)
	}
	packed := Pack(example)
	got, err := Unpack(packed)
	if err != nil || !bytes.Equal(got, example) {
		t.Errorf("Unpack(Pack(x)) = %d bytes, %v", len(got), err)
	}
	if n := pagesOf(len(packed), 64); n < 5 || n > 16 {
		t.Errorf("the example of %d bytes takes %d pages of 64 bytes", len(example), n)
	}
	t.Logf("%d bytes, packed %d: %d pages", len(example), len(packed), pagesOf(len(packed), 64))
	for name, p := range map[string][]byte{
		"nothing": {}, "noise": []byte("no deflate stream"), "cut short": packed[:len(packed)-3], "followed by more": append(bytes.Clone(packed), 0),
		"a bomb": Pack(make([]byte, maxFile+1)),
	} {
		if text, err := Unpack(p); err == nil {
			t.Errorf("%s: unpacked to %d bytes", name, len(text))
		}
	}
	if text, err := Unpack(Pack(make([]byte, maxFile))); err != nil || len(text) != maxFile {
		t.Errorf("the largest there can be: %d bytes, %v", len(text), err)
	}
}

// TestRoom: what the store must have room for counts the configuration twice,
// as it is there while it is replaced.
func TestRoom(t *testing.T) {
	with := func(hosts int, part string) string {
		var more strings.Builder
		random := rand.New(rand.NewPCG(1, 2))
		for i := range hosts - 2 {
			fmt.Fprintf(&more, `{"name": "h%d", "group": %d, "mac": "02:%02x:%02x:%02x:%02x:%02x"}, `, i+3, 18+i, random.IntN(256), random.IntN(256), random.IntN(256), i/256, i%256)
		}
		text := strings.Replace(base, `"hosts": [{`, `"hosts": [`+more.String()+"{", 1)
		return strings.Replace(text, `"24c256", "config"`, `"`+part+`", "config"`, 1)
	}
	pages := func(text string) int { return int(pagesOf(len(Pack([]byte(text))), 64)) }
	if c := parse(t, strings.Replace(base, `, "config": true`, "", 1)); c.size != 0 {
		t.Errorf("a configuration that is in a file takes %d bytes of the store", c.size)
	}
	tight := strings.Replace(with(4, "24c64"), `{"bus": "a", "address": "0x57", "part": "24c64", "config": true}`, `{"file": "/x", "size": 9216, "config": true}`, 1)
	few := with(120, "24c256")
	many := strings.Replace(with(1024, "24c512"), `{"bus": "a", "address": "0x57", "part": "24c512", "config": true}`, `{"file": "/x", "size": 1048576, "config": true}`, 1)
	for _, tt := range []struct{ name, text, want string }{
		{"enough", few, ""},
		{"too little with two copies", tight, fmt.Sprintf("line 4: store.size: a store of 9216 bytes has 144 pages; 2 slots, 4 hosts and 1 VMs can need %d", 64+3*2+4+1+16+40+2+2*pages(tight))},
		{"too much for one batch", many, fmt.Sprintf("line 4: store.size: the configuration takes %d pages when packed, and a store of 1048576 bytes takes at most 255 at a time", pages(many))},
	} {
		got := ""
		if _, err := Parse([]byte(tt.text), lookup); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %s; want %s", tt.name, got, tt.want)
		}
	}
	if n := 64 + 3*2 + 4 + 1 + 16 + 40 + 2; n > 9216/64 {
		t.Errorf("without the configuration it needs %d pages: the case shows nothing", n)
	}
}

func TestNetwork(t *testing.T) {
	line := "line 11: network."
	for _, tt := range []struct{ network, want string }{
		{`{"interface": "eth0", "address": "192.0.2.10/24"}`, ""},
		{`{"interface": "eth0", "address": "2001:db8::10/64", "gateway": "fe80::1", "vlan": 4094}`, ""},
		{`{"interface": "eth0", "address": "192.0.2.10/31", "gateway": "192.0.2.11"}`, ""},
		{`{"interface": "eth0", "address": "192.0.2.10/32"}`, ""},
		{`{"address": "192.0.2.10/24"}`, line + "interface: missing"},
		{`{"interface": "eth0"}`, line + "address: missing"},
		{`{"interface": "eth 0", "address": "192.0.2.10/24"}`, line + `interface: "eth 0" is not the name of a network interface`},
		{`{"interface": "../x", "address": "192.0.2.10/24"}`, line + `interface: "../x" is not the name of a network interface`},
		{`{"interface": "lo", "address": "192.0.2.10/24"}`, line + `interface: "lo" is not the name of a network interface`},
		{`{"interface": "ethernet0123456", "address": "192.0.2.10/24", "vlan": 5}`, line + `interface: "ethernet0123456.5", as the VLAN's interface would be called, has more than 15 bytes`},
		{`{"interface": "eth0", "address": "192.0.2.10"}`, line + `address: "192.0.2.10" is not an address, want the form 192.0.2.10/24`},
		{`{"interface": "eth0", "address": "192.0.2.0/24"}`, line + `address: 192.0.2.0/24 is the network itself, want the address of one station in it`},
		{`{"interface": "eth0", "address": "192.0.2.255/24"}`, line + `address: 192.0.2.255/24 is the network's broadcast address`},
		{`{"interface": "eth0", "address": "127.0.0.1/8"}`, line + `address: 127.0.0.1 is not the address of one station`},
		{`{"interface": "eth0", "address": "224.0.0.1/24"}`, line + `address: 224.0.0.1 is not the address of one station`},
		{`{"interface": "eth0", "address": "0.0.0.0/0"}`, line + `address: 0.0.0.0 is not the address of one station`},
		{`{"interface": "eth0", "address": "10.0.0.1/0"}`, line + `address: 10.0.0.1/0: the network is all addresses`},
		{`{"interface": "eth0", "address": "192.0.2.10/24", "gateway": "192.0.3.1"}`, line + `gateway: 192.0.3.1 is not in 192.0.2.0/24, so it can not be reached`},
		{`{"interface": "eth0", "address": "192.0.2.10/24", "gateway": "192.0.2.10"}`, line + `gateway: 192.0.2.10 is the controller's own address`},
		{`{"interface": "eth0", "address": "192.0.2.10/24", "gateway": "router"}`, line + `gateway: "router" is not an address, want the form 192.0.2.1`},
		{`{"interface": "eth0", "address": "192.0.2.10/24", "vlan": 4095}`, line + `vlan: 4095 is outside 1..4094`},
		{`{"interface": "eth0", "address": "192.0.2.10/24", "vlan": 17}`, line + `vlan: 17 is the group of h2: the controller would be among its devices`},
		{`{"interface": "eth0", "address": 5}`, line + `address: is a number, want a string`},
		{`"eth0"`, `line 11: network: is a string, want an object`},
	} {
		text := base[:strings.Index(base, `"network": `)] + `"network": ` + tt.network + "\n}"
		got := ""
		if _, err := Parse([]byte(text), lookup); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q; want %q", tt.network, got, tt.want)
		}
	}
}

func TestWithNetwork(t *testing.T) {
	const (
		one   = `{"interface": "eth0", "address": "192.0.2.10/24"}`
		other = `{"interface": "eth1",  "address": "192.0.2.11/24"}`
	)
	for _, tt := range []struct{ name, text, from, want string }{
		{"replaced", `{"a": 1, "network": ` + one + `, "b": 2}`, `{"network": ` + other + `}`, `{"a": 1, "network": ` + other + `, "b": 2}`},
		{"the same", `{"network":` + one + `}`, `{"x": 1, "network": ` + one + `}`, `{"network":` + one + `}`},
		{"taken away, first", `{ "network": ` + one + ` , "b": 2 }`, `{}`, `{ "b": 2 }`},
		{"taken away, in the middle", `{"a": 1, "network": ` + one + `, "b": 2}`, `{"b": 3}`, `{"a": 1, "b": 2}`},
		{"taken away, last", "{\"a\": 1,\n \"network\": " + one + "\n}", `{"b": 3}`, "{\"a\": 1\n}"},
		{"taken away, only", `{"network": ` + one + `}`, `{}`, `{}`},
		{"added", "{\"a\": 1\n}\n", `{"network": ` + other + `}`, "{\"a\": 1,\n  \"network\": " + other + "\n}\n"},
		{"added to nothing", `{ }`, `{"network": ` + other + `}`, `{"network": ` + other + ` }`},
		{"neither", `{"a": {"network": 1}}`, `{"b": [{"network": 2}]}`, `{"a": {"network": 1}}`},
		{"a key in a string", `{"a": "\"network\": 5, ", "network": ` + one + `}`, `{}`, `{"a": "\"network\": 5, "}`},
	} {
		got, err := WithNetwork([]byte(tt.text), []byte(tt.from))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
	for _, bad := range []string{"", "[]", "{", `{"a"}`, "5"} {
		if got, err := WithNetwork([]byte(bad), []byte("{}")); err == nil {
			t.Errorf("%q: %q", bad, got)
		}
	}
}

// FuzzWithNetwork: what comes out parses, has the one's network, and all else
// of the other.
func FuzzWithNetwork(f *testing.F) {
	f.Add([]byte(base), []byte(strings.Replace(base, "192.0.2.10", "192.0.2.77", 1)))
	f.Add([]byte(base), fill(nil))
	f.Add(fill(nil), []byte(base))
	f.Fuzz(func(t *testing.T, text, from []byte) {
		a, err := Parse(text, lookup)
		if err != nil {
			return
		}
		b, err := Parse(from, lookup)
		if err != nil {
			return
		}
		got, err := WithNetwork(text, from)
		if err != nil {
			t.Fatal(err)
		}
		want := *a
		want.Network = b.Network
		c, err := Parse(got, lookup)
		if err != nil {
			// Only what the two have to do with each other can be wrong.
			for _, e := range err.(Errors) {
				if !strings.HasPrefix(e.Key, "network") && !strings.HasPrefix(e.Key, "store") {
					t.Fatalf("%v\n%s", err, got)
				}
			}
			return
		}
		if diff := cmp.Diff(&want, c, cmpopts.IgnoreUnexported(Config{}), cmp.Comparer(func(a, b *Network) bool { return reflect.DeepEqual(a, b) })); diff != "" {
			t.Fatalf("(-want +got):\n%s\n%s", diff, got)
		}
	})
}

func TestSeed(t *testing.T) {
	seed := parse(t, strings.Replace(base, `,
"network": {"interface": "eth0", "address": "192.0.2.10/24", "gateway": "192.0.2.1"}`, "", 1))
	for _, tt := range []struct{ from, to, want string }{
		{`"h2"`, `"h3"`, ""},
		{`"gpu1"`, `"gpu7"`, ""},
		{`"/dev/i2c-1"`, `"/dev/i2c-2"`, "line 3: buses.b: " + seedSays},
		{`, "b": "/dev/i2c-1"`, ``, "line 3: buses: b is missing, and the seed, the file that the agent was started with, has it"},
		{`"b": "/dev/i2c-1"`, `"b": "/dev/i2c-1", "c": "/dev/i2c-2"`, "line 3: buses.c: " + seedSays},
		{`"0x57"`, `"0x56"`, "line 4: store: " + seedSays},
		{`, "config": true`, ``, "line 4: store: " + seedSays},
		{`"enclosure": "e"`, `"enclosure": "e", "run_dir": "/x", "simulated": true`, "line 2: simulated: " + seedSays + "\nline 2: run_dir: " + seedSays + "\nline 1: socket: " + seedSays},
	} {
		text := strings.ReplaceAll(base, tt.from, tt.to)
		got := ""
		if errs := parse(t, text).SeedErrors(seed); len(errs) > 0 {
			got = errs.Error()
		}
		if !sameLines(got, tt.want) {
			t.Errorf("%s for %s: %q; want %q", tt.to, tt.from, got, tt.want)
		}
	}

	// At a start the seed counts, if what is kept can live with that.
	kept := parse(t, strings.ReplaceAll(base, `"/dev/i2c-1"`, `"/dev/i2c-9"`))
	c, err := kept.WithSeed(seed, lookup)
	if err != nil || c.Buses["b"] != "/dev/i2c-1" || c.Network == nil {
		t.Errorf("WithSeed = %+v, %v", c, err)
	}
	if kept.Buses["b"] != "/dev/i2c-9" {
		t.Error("WithSeed changed what it was called on")
	}
	kept = parse(t, strings.ReplaceAll(base, `"a"`, `"x"`))
	_, err = kept.WithSeed(seed, lookup)
	if !errors.As(err, new(Errors)) || !strings.Contains(err.Error(), `line 6: slots[0].bus: there is no bus "x"`) {
		t.Errorf("WithSeed without the slots' bus: %v", err)
	}
}

const seedSays = "differs from the seed, the file that the agent was started with, and only the seed says what it is"

func sameLines(a, b string) bool {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	less := func(x, y string) bool { return x < y }
	return cmp.Equal(x, y, cmpopts.SortSlices(less))
}

// TestSharedSeed: the store is on a slot's chip, so that chip is the seed's.
func TestSharedSeed(t *testing.T) {
	shared := func(eeprom string) *Config {
		return parse(t, string(fill(map[string]string{"STORE": `{"slot": "s", "config": true}`, "SLOT": slot("s", "a", "0x40", "regs-v1", eeprom, "24c256", "")})))
	}
	if errs := shared("0x50").SeedErrors(shared("0x50")); len(errs) > 0 {
		t.Errorf("the same: %v", errs)
	}
	if errs := shared("0x51").SeedErrors(shared("0x50")); len(errs) != 1 || !strings.Contains(errs.Error(), "bus and EEPROM of slot s differ") {
		t.Errorf("another chip: %v", errs)
	}
}
