package bootloader

import (
	"bytes"
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"baton/images/bank"
	"baton/images/boards"
	"baton/images/fit"
	"baton/images/kernel"
	"baton/images/qemu"
	"baton/images/uboot"
	"baton/nvm"
)

// Board is an emulated board that boots from its flash.
type Board struct {
	Machine *qemu.Machine
	// Key has to have signed what is booted; nil = hashes are enough.
	Key *rsa.PublicKey
	// Words are added to the kernel's command line, beside the bank's.
	Words []string
	Say   func(format string, args ...any)
}

// ScriptOf is the script of a board: Script with what its description says.
func ScriptOf(b *boards.Board) (uboot.Env, error) {
	spans := map[string]Span{}
	for _, name := range bank.Names {
		p, _, ok := b.Partition("bank-" + name)
		if !ok {
			return nil, fmt.Errorf("board %s has no partition bank-%s", b.Name, name)
		}
		spans[name] = Span{int64(p.Offset), int64(p.Size)}
	}
	// Behind the kernel, before where U-Boot itself is.
	const behind = 0x3000000
	return Script(b.KernelCmdline(), uint64(b.Kernel.RAM)+behind, spans), nil
}

// parts opens the flash. No emulator may run on it.
func (b *Board) parts() (env, a, z Partition, f *File, err error) {
	part := func(name string) (p boards.Partition, chip boards.Flash) {
		p, chip, ok := b.Machine.Board.Partition(name)
		if !ok && err == nil {
			err = fmt.Errorf("board %s has no partition %s", b.Machine.Board.Name, name)
		}
		return p, chip
	}
	e, chip := part("u-boot-env")
	pa, _ := part("bank-a")
	pb, _ := part("bank-b")
	if err != nil {
		return
	}
	if f, err = OpenFile(b.Machine.Flash(chip.Name), int(chip.EraseBlock)); err != nil {
		return
	}
	in := func(p boards.Partition) Partition { return Partition{f, int64(p.Offset), int64(p.Size)} }
	return in(e), in(pa), in(pb), f, nil
}

// Blank tells whether nobody has provisioned the flash.
func (b *Board) Blank(ctx context.Context) (bool, error) {
	env, _, _, f, err := b.parts()
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }() // nothing is left to be written
	p := make([]byte, env.Size)
	if err := env.ReadAt(ctx, p, 0); err != nil {
		return false, err
	}
	return bytes.Equal(p, bytes.Repeat([]byte{0xff}, len(p))), nil
}

// Provision gives the flash its first image and environment, as whoever makes
// the board does. What was in bank b stays.
func (b *Board) Provision(ctx context.Context, image []byte) error {
	env, a, _, f, err := b.parts()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // nothing is left to be written
	script, err := ScriptOf(b.Machine.Board)
	if err != nil {
		return err
	}
	if err := b.check(image); err != nil {
		return err
	}
	if int64(len(image)) > a.Size {
		return fmt.Errorf("%w: it has %d bytes, a bank has room for %d", bank.ErrTooLarge, len(image), a.Size)
	}
	return bank.Provision(ctx, env, a, script, image, func(string, int64, int64) {})
}

func (b *Board) check(image []byte) error {
	i, err := fit.Parse(image)
	if err != nil || b.Key == nil {
		return err
	}
	return i.Verify(b.Key)
}

// Load decides which bank is booted, and has the machine boot it at its next
// start.
func (b *Board) Load(ctx context.Context) (Choice, error) {
	env, pa, pb, f, err := b.parts()
	if err != nil {
		return Choice{}, err
	}
	script, err := ScriptOf(b.Machine.Board)
	if err != nil {
		return Choice{}, errors.Join(err, f.Close())
	}
	l := Loader{Env: env, Banks: map[string]nvm.Medium{"a": pa, "b": pb}, Defaults: script, Check: b.check, Say: b.Say}
	c, err := l.Start(ctx)
	if err := errors.Join(err, f.Close()); err != nil {
		return Choice{}, err
	}
	return c, b.unpack(ctx, c)
}

// unpack puts what is in an image where QEMU finds it.
func (b *Board) unpack(ctx context.Context, c Choice) error {
	i, err := fit.Parse(c.Image)
	if err != nil {
		return err
	}
	m := b.Machine
	in := func(name string) string { return filepath.Join(m.State, "booted-"+name) }
	m.Kernel, m.Initrd, m.Append = in("kernel"), in("initramfs"), slices.Concat(b.Words, c.Words())
	if m.Board.GOARCH == "arm" {
		unpacked, err := kernel.UnpackZImage(ctx, i.Kernel.Data)
		if err != nil {
			return err
		}
		if err := unpacked.WriteUImage(m.Kernel, uint32(m.Board.Kernel.RAM)); err != nil {
			return err
		}
	} else if err := os.WriteFile(m.Kernel, i.Kernel.Data, 0o644); err != nil {
		return err
	}
	if i.FDT != nil {
		m.DTB = in("dtb")
		if err := os.WriteFile(m.DTB, i.FDT.Data, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(m.Initrd, i.Ramdisk.Data, 0o644)
}
