package bootloader

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"baton/images/bank"
	"baton/images/boards"
	"baton/images/fit"
	"baton/images/qemu"
	"baton/nvm"
)

// TestStartFallsBack: a bank that is not whole is passed over, and without any
// nothing is booted.
func TestStartFallsBack(t *testing.T) {
	c := provisioned(t, 1)
	c.flash.EraseHook, c.flash.ProgramHook = nil, nil
	var said []string
	l := Loader{
		Env: c.part("u-boot-env"), Banks: map[string]nvm.Medium{"a": c.part("bank-a"), "b": c.part("bank-b")},
		Defaults: c.defaults, Check: checkSum, Say: func(format string, _ ...any) { said = append(said, format) },
	}
	b := c.part("bank-b")
	if err := bank.Write(bg, b, picture(2, 2000), quiet); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Start(bg); err != nil || got.Bank != "a" || got.Trial {
		t.Errorf("Start = %v, %v", got.Attempt, err)
	}
	// A bit of bank a.
	c.flash.Flip((envSize + 1000) * 8)
	got, err := l.Start(bg)
	if err != nil || got.Bank != "b" || got.Trial || !bytes.Equal(got.Image, picture(2, 2000)) {
		t.Errorf("with bank a damaged: Start = %v, %v", got.Attempt, err)
	}
	if err := bank.Erase(bg, b, 0, 1024, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Start(bg); !errors.Is(err, ErrNoImage) || !errors.Is(err, errSum) || !errors.Is(err, bank.ErrEmpty) {
		t.Errorf("with both damaged: Start = %v", err)
	}
}

// TestStartLost: without an environment the built-in one is used, said, and
// saved.
func TestStartLost(t *testing.T) {
	c := provisioned(t, 1)
	c.flash.EraseHook, c.flash.ProgramHook = nil, nil
	env := c.part("u-boot-env")
	if err := bank.Erase(bg, env, 0, envSize, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.start(); err != nil || c.lost != 1 {
		t.Errorf("start: %v, %d warnings", err, c.lost)
	}
	if err := c.start(); err != nil || c.lost != 1 {
		t.Errorf("second start: %v, %d warnings; want the built-in one saved", err, c.lost)
	}
	vars, err := bank.LoadEnv(bg, env)
	if err != nil || vars["bootcmd"] != c.defaults["bootcmd"] {
		t.Errorf("saved %v, %v", vars, err)
	}
}

// TestBoardProvision writes a real image to the flash of the emulated board,
// and takes it out again.
func TestBoardProvision(t *testing.T) {
	hardware, err := boards.Load("ast2600-evb")
	if err != nil {
		t.Fatal(err)
	}
	m := &qemu.Machine{Board: hardware, State: t.TempDir()}
	_, chip, _ := hardware.Partition("bank-a")
	if err := os.WriteFile(m.Flash(chip.Name), bytes.Repeat([]byte{0xff}, int(chip.Size)), 0o600); err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile("../fit/testdata/signed.fit")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../fit/testdata/public.pem")
	if err != nil {
		t.Fatal(err)
	}
	b := &Board{Machine: m, Say: t.Logf, Words: []string{"quiet"}}
	if b.Key, err = fit.ParseKey(text); err != nil {
		t.Fatal(err)
	}
	if blank, err := b.Blank(bg); err != nil || !blank {
		t.Errorf("Blank = %v, %v; want a new chip to be", blank, err)
	}
	damaged := bytes.Clone(image)
	damaged[len(damaged)/3] ^= 1
	if err := b.Provision(bg, damaged); err == nil {
		t.Error("a damaged image was taken")
	}
	if err := b.Provision(bg, image); err != nil {
		t.Fatal(err)
	}
	if blank, err := b.Blank(bg); err != nil || blank {
		t.Errorf("Blank = %v, %v; want it provisioned", blank, err)
	}
	// What is in testdata has no kernel that could be unpacked.
	if _, err := b.Load(bg); err == nil || !strings.Contains(err.Error(), "zImage") {
		t.Errorf("Load = %v; want the image found, and its kernel refused", err)
	}
	if _, err := os.Stat(filepath.Join(m.State, "booted-kernel")); err == nil {
		t.Error("a kernel was left")
	}
}

// TestFile: the flash in a file keeps a NOR's rules.
func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.flash")
	if err := os.WriteFile(name, bytes.Repeat([]byte{0xff}, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(name, 3000); !errors.Is(err, nvm.ErrSize) {
		t.Errorf("OpenFile with another block = %v", err)
	}
	f, err := OpenFile(name, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := Partition{f, 4096, 4096}
	if err := errors.Join(p.Program(bg, []byte{0xf0}, 10), p.Program(bg, []byte{0x3f}, 10)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1)
	if err := p.ReadAt(bg, got, 10); err != nil || got[0] != 0x30 {
		t.Errorf("ReadAt = %#x, %v; want bits only cleared", got[0], err)
	}
	if err := f.ReadAt(bg, got, 4096+10); err != nil || got[0] != 0x30 {
		t.Errorf("at its place in the flash: %#x, %v", got[0], err)
	}
	if err := p.Erase(bg, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.ReadAt(bg, got, 10); err != nil || got[0] != 0xff {
		t.Errorf("erased: %#x, %v", got[0], err)
	}
	for _, err := range []error{p.ReadAt(bg, got, 4096), p.Program(bg, got, -1), p.Erase(bg, 4096)} {
		if !errors.Is(err, nvm.ErrRange) {
			t.Errorf("outside: %v", err)
		}
	}
}
