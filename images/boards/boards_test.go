package boards

import (
	"strings"
	"testing"
	"testing/fstest"
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
	"qemu": {"command": "qemu-system-arm", "debian_package": "qemu-system-arm", "machine": "m",
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
