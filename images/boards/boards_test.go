package boards

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestBuiltin(t *testing.T) {
	if len(Names()) == 0 {
		t.Fatal("no board is built in")
	}
	for _, name := range Names() {
		b, err := Load(name)
		if err != nil {
			t.Errorf("Load(%q): %v", name, err)
			continue
		}
		if !strings.HasPrefix(b.KernelCmdline(), "console="+b.Console+",") {
			t.Errorf("%s: kernel command line %q does not start with the console", name, b.KernelCmdline())
		}
	}
}

func TestLoadDirectory(t *testing.T) {
	b, err := Load("./ast2600-evb/")
	if err != nil {
		t.Fatal(err)
	}
	if b.Name != "ast2600-evb" {
		t.Errorf("name = %q; want that of the directory", b.Name)
	}
}

const good = `{
	"about": "a board", "goarch": "arm", "goarm": "7", "console": "ttyS0", "baud": 115200,
	"kernel": {"arch": "armhf", "package": "linux-image-armmp", "ram": "0x80000000", "dtb": "a/b.dtb"},
	"modules": [{"name": "i2c-dev"}], "xz": ["-9e"], "commands": ["baton/images/init"],
	"files": {"etc/motd": "motd"},
	"flash": [{"name": "f", "size": "0x100000", "erase_block": "0x10000", "node": "/spi/flash@0", "partitions": [
		{"name": "u-boot", "offset": "0x0", "size": "0x20000"},
		{"name": "bank-a", "offset": "0x20000", "size": "0x70000"},
		{"name": "bank-b", "offset": "0x90000", "size": "0x70000"}]}],
	"qemu": {"command": "qemu-system-arm", "debian_package": "qemu-system-arm", "machine": "m", "machine_options": ["fmc-model=x"],
		"flash": [{"name": "f", "index": 0}],
		"eeproms": [{"name": "e", "bus": "b", "address": "0x50", "size": 512}]}
}`

func TestLoad(t *testing.T) {
	for _, tt := range []struct {
		name     string
		old, new string // what is changed in good
		want     []string
	}{
		{name: "good"},
		{name: "unknown key", old: `"baud"`, new: `"speed": 1, "baud"`, want: []string{`unknown field "speed"`}},
		{name: "not JSON", old: `{`, new: `[`, want: []string{"board.json"}},
		{name: "number without 0x", old: `"0x50"`, new: `"50"`, want: []string{`"50" is not a number like "0x50"`}},
		{name: "number with a tail", old: `"0x50"`, new: `"0x50x"`, want: []string{`"0x50x"`}},
		{name: "reserved address", old: `"0x50"`, new: `"0x78"`, want: []string{"eeproms[0].address: 0x78"}},
		{name: "size QEMU refuses", old: `512`, new: `500`, want: []string{"eeproms[0].size: 500"}},
		{name: "module twice", old: `{"name": "i2c-dev"}`, new: `{"name": "i2c-dev"}, {"name": "i2c-dev"}`, want: []string{"modules[1].name: i2c-dev is named twice"}},
		{name: "file outside", old: `"motd"`, new: `"../motd"`, want: []string{"files:"}},
		{name: "file absent", old: `"motd"`, new: `"motto"`, want: []string{"files:"}},
		{name: "device tree, none", old: `, "dtb": "a/b.dtb"`, new: ``, want: []string{`flash[0].node: "/spi/flash@0" is not a node of a device tree`}},
		{name: "edits of no device tree", old: `"dtb": "a/b.dtb"`, new: `"dtb_edits": [{"node": "/x", "create": true}]`, want: []string{"kernel.dtb_edits: there is no kernel.dtb"}},
		{name: "edit that does two things", old: `"dtb": "a/b.dtb"`, new: `"dtb": "a", "dtb_edits": [{"node": "/x", "create": true, "remove": true}]`, want: []string{"dtb_edits[0]: removes a node and"}},
		{name: "no RAM", old: `"ram": "0x80000000", `, new: ``, want: []string{"kernel.ram: missing"}},
		{name: "machine option", old: `fmc-model=x`, new: `fmc-model`, want: []string{`machine_options[0]: "fmc-model" is not KEY=VALUE`}},
		{name: "flash without a node", old: `"node": "/spi/flash@0", `, new: ``, want: []string{`flash[0].node: ""`}},
		{name: "flash of half a block", old: `"0x100000"`, new: `"0x108000"`, want: []string{"flash[0].size: 0x108000"}},
		{name: "erase block", old: `"0x10000"`, new: `"0x30000"`, want: []string{"flash[0].erase_block: 0x30000 is not a power of two"}},
		{name: "partitions overlap", old: `"offset": "0x20000"`, new: `"offset": "0x10000"`, want: []string{"partitions[1].offset: 0x10000 lies in what is before it: u-boot ends at 0x20000"}},
		{name: "partition not aligned", old: `"offset": "0x20000"`, new: `"offset": "0x21000"`, want: []string{"partitions[1].offset: 0x21000 is not at the start"}},
		{name: "partition of half a block", old: `"size": "0x20000"`, new: `"size": "0x18000"`, want: []string{"partitions[0].size: 0x18000"}},
		{name: "partition behind the end", old: `"0x90000"`, new: `"0xa0000"`, want: []string{"partitions[2].size: bank-b ends behind the chip's end at 0x100000"}},
		{name: "partition far behind the end", old: `"0x90000"`, new: `"0xffffffffffff0000"`, want: []string{"partitions[2].size: bank-b ends behind"}},
		{name: "partition twice", old: `"u-boot"`, new: `"bank-a"`, want: []string{"partitions[1].name: bank-a is named twice"}},
		{name: "banks of two sizes", old: `"offset": "0x20000", "size": "0x70000"`, new: `"offset": "0x20000", "size": "0x60000"`, want: []string{"bank-a has 0x60000 bytes and bank-b 0x70000"}},
		{name: "one bank", old: `"bank-b"`, new: `"bank-c"`, want: []string{"bank-b 0x0"}},
		{name: "emulated flash that is not there", old: `"flash": [{"name": "f", "index": 0}]`, new: `"flash": [{"name": "g", "index": 0}]`, want: []string{`qemu.flash[0].name: the board has no flash "g"`}},
		{name: "drive twice", old: `{"name": "f", "index": 0}`, new: `{"name": "f", "index": 0}, {"name": "f", "index": 0}`, want: []string{"qemu.flash[1].index: 0"}},
		{name: "console with a blank", old: `ttyS0`, new: `ttyS0 quiet`, want: []string{"console:"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(good, tt.old, tt.new, 1)
			_, err := load("x", fstest.MapFS{
				"board.json": {Data: []byte(text)},
				"motd":       {Data: []byte("hello")},
			})
			if err == nil && tt.want != nil {
				t.Fatalf("no error; want %q", tt.want)
			}
			if err != nil && tt.want == nil {
				t.Fatal(err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q; want %q in it", err, w)
				}
			}
		})
	}
}

func TestLoadReportsAll(t *testing.T) {
	text := strings.NewReplacer(`"baud": 115200`, `"baud": -1`, `"0x50"`, `"0x3"`, `"ttyS0"`, `""`).Replace(good)
	_, err := load("x", fstest.MapFS{"board.json": {Data: []byte(text)}, "motd": {}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, key := range []string{"baud:", "address:", "console:"} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("error %q does not name %s", err, key)
		}
	}
}

func TestLoadUnknown(t *testing.T) {
	_, err := Load("commodore64")
	if err == nil || !strings.Contains(err.Error(), "ast2600-evb") {
		t.Errorf("Load of an unknown board: %v; want the known ones named", err)
	}
}

// TestFlashEdits: the kernel numbers partitions in the order of the tree's
// nodes, and fdtput puts each new one first.
func TestFlashEdits(t *testing.T) {
	b, err := load("x", fstest.MapFS{"board.json": {Data: []byte(good)}, "motd": {}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range b.FlashEdits() {
		if e.Why == "" {
			t.Errorf("%s %s: no reason given", e.Node, e.Property)
		}
		got = append(got, fmt.Sprint(e.Node, " remove=", e.Remove, " create=", e.Create, " ", e.Property, " ", e.Type, e.Values))
	}
	want := []string{
		"/spi/flash@0/partitions remove=true create=false  []",
		"/spi/flash@0/partitions remove=false create=true compatible s[fixed-partitions]",
		"/spi/flash@0/partitions remove=false create=false #address-cells u[1]",
		"/spi/flash@0/partitions remove=false create=false #size-cells u[1]",
		"/spi/flash@0/partitions/partition@90000 remove=false create=true label s[bank-b]",
		"/spi/flash@0/partitions/partition@90000 remove=false create=false reg x[90000 70000]",
		"/spi/flash@0/partitions/partition@20000 remove=false create=true label s[bank-a]",
		"/spi/flash@0/partitions/partition@20000 remove=false create=false reg x[20000 70000]",
		"/spi/flash@0/partitions/partition@0 remove=false create=true label s[u-boot]",
		"/spi/flash@0/partitions/partition@0 remove=false create=false reg x[0 20000]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("FlashEdits, -want +got:\n%s", diff)
	}
	if got := b.BankSize(); got != 0x70000 {
		t.Errorf("BankSize = %#x; want 0x70000", got)
	}
}

// TestPage: docs/board.md names every board, and has the flash as it is.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/board.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Names() {
		if !strings.Contains(string(page), "\n| `"+name+"` | ") {
			t.Errorf("docs/board.md has no row for board %s", name)
		}
		b, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range b.Flash {
			for _, p := range f.Partitions {
				row := fmt.Sprintf("\n| `%s` | %#x | %#x | ", p.Name, uint64(p.Offset), uint64(p.Size))
				if !strings.Contains(string(page), row) {
					t.Errorf("docs/board.md has no row %q", row)
				}
			}
		}
	}
}
