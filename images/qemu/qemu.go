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
	"strings"

	"baton/images/boards"
	"baton/images/kernel"
	"baton/images/rootfs"
)

// Machine is one board, with what it keeps when it is off.
type Machine struct {
	Board *boards.Board
	// Image is the folder that mkimage has filled.
	Image string
	// State is the folder of the contents of EEPROMs and flash. Two machines
	// may not run in one at the same time; QEMU locks the files.
	State string
	// Args are added to QEMU's.
	Args []string

	// Kernel, DTB and Initrd are files that are booted in the place of those
	// in Image; "" = those.
	Kernel, DTB, Initrd string
	// Append is added to the kernel's command line.
	Append []string
	// Overlay are files, cpio archives compressed or not, whose content is
	// added to the root file system; the last one wins.
	Overlay []string
}

// EEPROM is the file with the content of the EEPROM called name in the board's
// description. QEMU writes to it when the chip has accepted a write, so that
// it can be read at any time.
func (m *Machine) EEPROM(name string) string {
	return filepath.Join(m.State, name+".eeprom")
}

// Flash is the file with the content of the flash chip called name in the
// board's description. It may be read at any time, as an EEPROM's may.
func (m *Machine) Flash(name string) string {
	return filepath.Join(m.State, name+".flash")
}

// chip is one that keeps its content in a file.
type chip struct {
	file string
	size int64 // bytes
}

func (m *Machine) chips() []chip {
	var chips []chip
	for _, e := range m.Board.QEMU.EEPROMs {
		chips = append(chips, chip{m.EEPROM(e.Name), int64(e.Size)})
	}
	for _, d := range m.Board.QEMU.Flash {
		for _, f := range m.Board.Flash {
			if f.Name == d.Name {
				chips = append(chips, chip{m.Flash(f.Name), int64(f.Size)})
			}
		}
	}
	return chips
}

// Erase takes the content of all chips away: Prepare gives them that of new
// ones.
func (m *Machine) Erase() error {
	var errs []error
	for _, c := range m.chips() {
		if err := os.Remove(c.file); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// boot are the files that are booted; dtb is "" where the board has none.
func (m *Machine) boot() (kernel, dtb, initrd string) {
	or := func(file, name string) string {
		if file != "" {
			return file
		}
		return filepath.Join(m.Image, name)
	}
	if m.Board.Kernel.DTB != "" {
		dtb = or(m.DTB, boards.DTBFile)
	}
	return or(m.Kernel, m.Board.KernelFile()), dtb, or(m.Initrd, boards.InitrdFile)
}

// Prepare checks that the machine can be started, and gives EEPROMs and flash
// chips that are missing the content of new ones. It reports everything that
// is wrong.
func (m *Machine) Prepare() error {
	var errs []error
	q := m.Board.QEMU
	if _, err := exec.LookPath(q.Command); err != nil {
		errs = append(errs, fmt.Errorf("%s not found; on Debian: apt-get install --no-install-recommends %s", q.Command, q.DebianPackage))
	}
	kernel, dtb, initrd := m.boot()
	if dtb != "" {
		if _, err := exec.LookPath("fdtput"); err != nil {
			errs = append(errs, errors.New("fdtput not found; on Debian: apt-get install device-tree-compiler"))
		}
	}
	for _, f := range append([]string{kernel, dtb, initrd}, m.Overlay...) {
		if f == "" {
			continue
		}
		if _, err := os.Stat(f); err != nil {
			if filepath.Dir(f) == filepath.Clean(m.Image) {
				err = fmt.Errorf("%w; make image BOARD=%s builds it", err, m.Board.Name)
			}
			errs = append(errs, err)
			break
		}
	}
	if err := os.MkdirAll(m.State, 0o755); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, c := range m.chips() {
		info, err := os.Stat(c.file)
		switch {
		case errors.Is(err, os.ErrNotExist):
			err = os.WriteFile(c.file, bytes.Repeat([]byte{0xff}, int(c.size)), 0o644)
		case err == nil && info.Size() != c.size:
			err = fmt.Errorf("%s has %d bytes, the chip has %d", c.file, info.Size(), c.size)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// arguments are QEMU's, without those of the console. It writes the files that
// are new at each start.
func (m *Machine) arguments(ctx context.Context) ([]string, error) {
	kernel, dtb, initrd := m.boot()
	if dtb != "" {
		seeded := filepath.Join(m.State, "board.dtb")
		if err := m.seed(ctx, dtb, seeded); err != nil {
			return nil, err
		}
		dtb = seeded
	}
	if len(m.Overlay) > 0 {
		joined := filepath.Join(m.State, "initramfs")
		if err := join(joined, append([]string{initrd}, m.Overlay...)); err != nil {
			return nil, err
		}
		initrd = joined
	}
	return m.commandLine(kernel, dtb, initrd), nil
}

// join writes archives behind each other into one file.
func join(file string, archives []string) error {
	var contents [][]byte
	for _, a := range archives {
		data, err := os.ReadFile(a)
		if err != nil {
			return err
		}
		contents = append(contents, data)
	}
	var b bytes.Buffer
	if err := rootfs.Concat(&b, contents...); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// commandLine are QEMU's arguments, without those of the console.
func (m *Machine) commandLine(kernel, dtb, initrd string) []string {
	q := m.Board.QEMU
	args := []string{
		// Hardware acceleration of one machine does not boot what that of
		// another does; what is emulated is the same everywhere.
		"-accel", "tcg",
		"-machine", strings.Join(append([]string{q.Machine}, q.MachineOptions...), ","),
		"-display", "none",
		"-no-reboot",
		"-kernel", kernel,
		"-initrd", initrd,
		"-append", strings.Join(append([]string{m.Board.KernelCmdline()}, m.Append...), " "),
	}
	if dtb != "" {
		args = append(args, "-dtb", dtb)
	}
	for _, e := range q.EEPROMs {
		args = append(args,
			"-drive", fmt.Sprintf("if=none,id=%s,format=raw,file=%s", e.Name, m.EEPROM(e.Name)),
			"-device", fmt.Sprintf("at24c-eeprom,bus=%s,address=%#x,rom-size=%d,drive=%s", e.Bus, uint64(e.Address), e.Size, e.Name))
	}
	for _, d := range q.Flash {
		args = append(args, "-drive", fmt.Sprintf("if=mtd,format=raw,index=%d,file=%s", d.Index, m.Flash(d.Name)))
	}
	return append(append(args, q.Args...), m.Args...)
}

// seed writes the device tree dtb to file with fresh random bytes for the kernel's
// generator, as a boot loader does. Without them the first program that asks
// for random numbers waits a second. They are not in the image: a kernel
// trusts them, so each start needs new ones.
func (m *Machine) seed(ctx context.Context, dtb, file string) error {
	data, err := os.ReadFile(dtb)
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
