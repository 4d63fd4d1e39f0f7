// Package qemu runs a board's image under QEMU: on the user's terminal, or
// driven through its console by a test.
package qemu

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"baton/images/boards"
	"baton/images/kernel"
)

// Machine is one board, with what it keeps when it is off.
type Machine struct {
	Board *boards.Board
	// Image is the folder that mkimage has filled.
	Image string
	// State is the folder of the EEPROMs' contents. Two machines may not run
	// in one at the same time; QEMU locks the files.
	State string
	// Args are added to QEMU's.
	Args []string
}

// EEPROM is the file with the content of the EEPROM called name in the board's
// description. QEMU writes to it when the chip has accepted a write, so that
// it can be read at any time.
func (m *Machine) EEPROM(name string) string {
	return filepath.Join(m.State, name+".eeprom")
}

// Prepare checks that the machine can be started, and gives EEPROMs that are
// missing the content of a new chip. It reports everything that is wrong.
func (m *Machine) Prepare() error {
	var errs []error
	q := m.Board.QEMU
	if _, err := exec.LookPath(q.Command); err != nil {
		errs = append(errs, fmt.Errorf("%s not found; on Debian: apt-get install --no-install-recommends %s", q.Command, q.DebianPackage))
	}
	if _, err := exec.LookPath("fdtput"); err != nil {
		errs = append(errs, errors.New("fdtput not found; on Debian: apt-get install device-tree-compiler"))
	}
	for _, f := range []string{"uImage", "board.dtb", "initramfs.cpio.xz"} {
		if _, err := os.Stat(filepath.Join(m.Image, f)); err != nil {
			errs = append(errs, fmt.Errorf("%w; make image BOARD=%s builds it", err, m.Board.Name))
			break
		}
	}
	if err := os.MkdirAll(m.State, 0o755); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, e := range q.EEPROMs {
		name := m.EEPROM(e.Name)
		info, err := os.Stat(name)
		switch {
		case errors.Is(err, os.ErrNotExist):
			err = os.WriteFile(name, bytes.Repeat([]byte{0xff}, e.Size), 0o644)
		case err == nil && info.Size() != int64(e.Size):
			err = fmt.Errorf("%s has %d bytes, the chip has %d", name, info.Size(), e.Size)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// arguments are QEMU's, without those of the console.
func (m *Machine) arguments(ctx context.Context) ([]string, error) {
	dtb := filepath.Join(m.State, "board.dtb")
	if err := m.seed(ctx, dtb); err != nil {
		return nil, err
	}
	args := []string{
		// Hardware acceleration of one machine does not boot what that of
		// another does; what is emulated is the same everywhere.
		"-accel", "tcg",
		"-machine", m.Board.QEMU.Machine,
		"-display", "none",
		"-no-reboot",
		"-kernel", filepath.Join(m.Image, "uImage"),
		"-dtb", dtb,
		"-initrd", filepath.Join(m.Image, "initramfs.cpio.xz"),
		"-append", m.Board.KernelCmdline(),
	}
	for _, e := range m.Board.QEMU.EEPROMs {
		args = append(args,
			"-drive", fmt.Sprintf("if=none,id=%s,format=raw,file=%s", e.Name, m.EEPROM(e.Name)),
			"-device", fmt.Sprintf("at24c-eeprom,bus=%s,address=%#x,rom-size=%d,drive=%s", e.Bus, uint64(e.Address), e.Size, e.Name))
	}
	args = append(args, m.Board.QEMU.Args...)
	return append(args, m.Args...), nil
}

// seed writes the board's device tree with fresh random bytes for the kernel's
// generator, as a boot loader does. Without them the first program that asks
// for random numbers waits a second. They are not in the image: a kernel
// trusts them, so each start needs new ones.
func (m *Machine) seed(ctx context.Context, file string) error {
	data, err := os.ReadFile(filepath.Join(m.Image, "board.dtb"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return err
	}
	random := make([]byte, 64)
	_, _ = rand.Read(random) // never fails
	var values []string
	for _, b := range random {
		values = append(values, fmt.Sprintf("%x", b))
	}
	return kernel.SetProperty(ctx, file, "/chosen", "rng-seed", "bx", values...)
}

// Terminal is the command that runs the machine on a terminal, which is the
// board's console. Ctrl-A X ends it.
func (m *Machine) Terminal(ctx context.Context) (*exec.Cmd, error) {
	args, err := m.arguments(ctx)
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, m.Board.QEMU.Command, append(args, "-serial", "mon:stdio")...), nil
}
