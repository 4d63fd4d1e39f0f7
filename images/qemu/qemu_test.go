package qemu

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"baton/images/boards"

	"github.com/google/go-cmp/cmp"
)

// machine returns a machine of a board whose files are empty.
func machine(t *testing.T, board string) *Machine {
	t.Helper()
	b, err := boards.Load(board)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m := &Machine{Board: b, Image: filepath.Join(dir, "image"), State: filepath.Join(dir, "state")}
	if err := os.Mkdir(m.Image, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range b.BootFiles() {
		if err := os.WriteFile(filepath.Join(m.Image, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestCommandLine(t *testing.T) {
	m := machine(t, "ast2600-evb")
	m.Args = []string{"-S"}
	m.Append = []string{"baton.x=1", "quiet"}
	got := m.commandLine("k", "d", "i")
	want := []string{
		"-accel", "tcg", "-machine", "ast2600-evb,fmc-model=mx25l25655e", "-display", "none", "-no-reboot",
		"-kernel", "k", "-initrd", "i",
		"-append", "console=ttyS4,115200n8 loglevel=4 panic=10 baton.x=1 quiet",
		"-dtb", "d",
		"-drive", "if=none,id=slot0,format=raw,file=" + m.EEPROM("slot0"),
		"-device", "at24c-eeprom,bus=aspeed.i2c.bus.5,address=0x50,rom-size=32768,drive=slot0",
		"-drive", "if=none,id=store,format=raw,file=" + m.EEPROM("store"),
		"-device", "at24c-eeprom,bus=aspeed.i2c.bus.6,address=0x50,rom-size=32768,drive=store",
		"-drive", "if=mtd,format=raw,index=0,file=" + m.Flash("fmc"),
		"-nic", "user", "-S",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arguments, -want +got:\n%s", diff)
	}
	if got := strings.Join(machine(t, "arm64-virt").commandLine("k", "", "i"), " "); strings.Contains(got, "-dtb") || strings.Contains(got, "-drive") {
		t.Errorf("arm64-virt: %s; want no device tree and no drive", got)
	}
}

// TestBoot: what is given goes before what is in the image's folder.
func TestBoot(t *testing.T) {
	type files struct{ Kernel, DTB, Initrd string }
	boot := func(m *Machine) (f files) {
		f.Kernel, f.DTB, f.Initrd = m.boot()
		return f
	}
	m := machine(t, "ast2600-evb")
	in := func(name string) string { return filepath.Join(m.Image, name) } // of the present m
	if diff := cmp.Diff(files{in("uImage"), in("board.dtb"), in("initramfs.cpio.xz")}, boot(m)); diff != "" {
		t.Errorf("files of the image, -want +got:\n%s", diff)
	}
	m.Kernel, m.DTB, m.Initrd = "k", "d", "i"
	if diff := cmp.Diff(files{"k", "d", "i"}, boot(m)); diff != "" {
		t.Errorf("files given, -want +got:\n%s", diff)
	}
	m = machine(t, "amd64-q35")
	if diff := cmp.Diff(files{in("vmlinuz"), "", in("initramfs.cpio.xz")}, boot(m)); diff != "" {
		t.Errorf("files without a device tree, -want +got:\n%s", diff)
	}
}

// TestChips: new chips are blank, what they hold is kept, and a file that is
// no content of the chip is refused and left as it is.
func TestChips(t *testing.T) {
	m := machine(t, "ast2600-evb")
	if err := m.Prepare(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(m.Flash("fmc"))
	if err != nil || len(data) != 32<<20 || bytes.Count(data, []byte{0xff}) != len(data) {
		t.Errorf("new flash: %d bytes, %v; want 32 MiB of 0xff", len(data), err)
	}
	data[5] = 0
	if err := os.WriteFile(m.Flash("fmc"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.Prepare(); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(m.Flash("fmc")); err != nil || again[5] != 0 {
		t.Errorf("the second Prepare: byte 5 is %#x, %v; want what was there", again[5], err)
	}
	if err := os.Truncate(m.Flash("fmc"), 1000); err != nil {
		t.Fatal(err)
	}
	if err := m.Prepare(); err == nil || !strings.Contains(err.Error(), "fmc.flash has 1000 bytes, the chip has 33554432") {
		t.Errorf("Prepare with a short flash: %v", err)
	}
	if err := m.Erase(); err != nil {
		t.Fatal(err)
	}
	if err := m.Prepare(); err != nil {
		t.Error(err)
	}
}

func TestPrepareNamesWhatIsMissing(t *testing.T) {
	m := machine(t, "arm64-virt")
	m.Overlay = []string{filepath.Join(t.TempDir(), "test.cpio")}
	if err := m.Prepare(); err == nil || !strings.Contains(err.Error(), "test.cpio") {
		t.Errorf("Prepare without the overlay: %v; want it named", err)
	}
	m.Overlay = nil
	if err := os.Remove(filepath.Join(m.Image, "vmlinuz")); err != nil {
		t.Fatal(err)
	}
	if err := m.Prepare(); err == nil || !strings.Contains(err.Error(), "make image BOARD=arm64-virt") {
		t.Errorf("Prepare without a kernel: %v; want the command that builds it", err)
	}
}
