package kernel

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// module makes the smallest ELF file that has a section .modinfo.
func module(info string) []byte {
	names := "\x00.modinfo\x00.shstrtab\x00"
	h := elf.Header32{
		Ident:     [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS32), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:      uint16(elf.ET_REL),
		Machine:   uint16(elf.EM_ARM),
		Version:   uint32(elf.EV_CURRENT),
		Ehsize:    52,
		Shentsize: 40,
		Shnum:     3,
		Shstrndx:  2,
	}
	h.Shoff = uint32(52 + len(info) + len(names))
	var b bytes.Buffer
	write := func(v any) {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic(err) // the types are fixed
		}
	}
	write(h)
	b.WriteString(info + names)
	write(elf.Section32{})
	write(elf.Section32{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: 52, Size: uint32(len(info))})
	write(elf.Section32{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint32(52 + len(info)), Size: uint32(len(names))})
	return b.Bytes()
}

func testPackage(t *testing.T, modules map[string]string) *Package {
	t.Helper()
	p := &Package{Name: "linux-image-1", Release: "1", Dir: t.TempDir()}
	dir := filepath.Join(p.Dir, "lib", "modules", "1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, depends := range modules {
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, module("license=GPL\x00depends="+depends+"\x00name=x\x00"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte("kernel/drivers/mtd/mtd.ko\nkernel/a/spi-dev.ko\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestModules(t *testing.T) {
	p := testPackage(t, map[string]string{
		"kernel/net/mac.ko":      "libphy,of_mdio",
		"kernel/net/mdio.ko":     "libphy",
		"kernel/net/libphy.ko":   "",
		"kernel/of/of-mdio.ko":   "libphy,fixed_phy",
		"kernel/of/fixed_phy.ko": "libphy",
		"kernel/i2c/i2c-dev.ko":  "mtd",
		"kernel/x/hen.ko":        "egg",
		"kernel/x/egg.ko":        "hen",
	})
	for _, tt := range []struct {
		name  string
		names []string
		want  []string
	}{
		{"order given", []string{"mdio", "mac"}, []string{"libphy", "mdio", "fixed_phy", "of-mdio", "mac"}},
		{"other order", []string{"mac", "mdio"}, []string{"libphy", "fixed_phy", "of-mdio", "mac", "mdio"}},
		{"spelled with _", []string{"i2c_dev"}, []string{"i2c-dev"}},
		{"built in", []string{"mtd", "spi_dev", "i2c-dev"}, []string{"i2c-dev"}},
		{"a circle ends", []string{"hen"}, []string{"egg", "hen"}},
		{"none", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			modules, err := p.Modules(context.Background(), tt.names)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range modules {
				got = append(got, m.Name)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Modules(%v), -want +got:\n%s", tt.names, diff)
			}
		})
	}
}

func TestModulesMissing(t *testing.T) {
	p := testPackage(t, map[string]string{"kernel/a.ko": "gone", "kernel/b.ko.lz5": ""})
	_, err := p.Modules(context.Background(), []string{"a", "b", "c"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"no module gone, which a depends on", "b.ko.lz5", "no module c"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q; want %q in it", err, want)
		}
	}
}

func TestModulesForeign(t *testing.T) {
	p := testPackage(t, nil)
	if err := os.WriteFile(filepath.Join(p.Dir, "lib/modules/1/x.ko"), []byte("not ELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Modules(context.Background(), []string{"x"}); err == nil {
		t.Error("a file that is no module was accepted")
	}
}
