package nvm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// MTD is a partition of a NOR flash that the kernel drives (/dev/mtdN): the
// only way to a flash behind a controller that does spi-mem alone, as Aspeed's.
//
// The kernel returns from a write and from an erase when the chip has ended
// it, so that Settle has nothing to wait for.
type MTD struct {
	name  string
	dev   mtdDevice
	g     Geometry
	owner *owner
	asked bool // whether the chip is locked: once, before the first change
}

// mtdDevice is the character device of a partition.
type mtdDevice interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	// Erase is MEMERASE.
	Erase(off, n int64) error
	// Unlock makes all of the partition writable, if it is locked
	// (MEMISLOCKED, MEMUNLOCK). Chips that know no locks are no error.
	Unlock(n int64) error
	Close() error
}

// mtdInfo is what MEMGETINFO tells.
type mtdInfo struct {
	kind  uint8 // MTD_NORFLASH, ...
	flags uint32
	size  int64
	erase int // bytes of an erase block
	write int // bytes of the smallest write
}

// Of include/uapi/mtd/mtd-abi.h.
const (
	mtdRAM          = 1     // MTD_RAM
	mtdNOR          = 3     // MTD_NORFLASH
	mtdWriteable    = 0x400 // MTD_WRITEABLE
	mtdBitWriteable = 0x800 // MTD_BIT_WRITEABLE
	mtdNoErase      = 0x1000
)

const (
	// norPage is what a serial NOR programs in one cycle; the kernel cuts
	// writes there (spi_nor_write in drivers/mtd/spi-nor/core.c), but does
	// not tell through MEMGETINFO. All of 64 KiB and less per sector have it
	// (JESD216, BFPT DWORD 11).
	norPage = 256
	// norWriteMax is the longest page program of common serial NORs: 5 ms
	// (Micron N25Q256A, AC characteristics, tPP); most say 3 ms or less.
	norWriteMax = 5 * time.Millisecond
	// driverSlack is what the kernel may take beside the chip's own time:
	// other partitions' accesses come first, one erase of theirs at most.
	driverSlack = 3 * time.Second
)

// norEraseMax is the longest erase of a block: 400 ms of a 4 KiB sector, 2 s of
// 64 KiB (Winbond W25Q256JV, section 9.6, tSE and tBE2), 3 s of larger ones
// (2.6 s, Cypress S25FL512S, table 45, tSE of 256 KiB).
func norEraseMax(block int) time.Duration {
	switch {
	case block <= 4<<10:
		return 400 * time.Millisecond
	case block <= 64<<10:
		return 2 * time.Second
	}
	return 3 * time.Second
}

// Errors of MTD partitions and SPI chips.
var (
	// ErrReadOnly is returned when a medium can not be written: what stands in
	// it has not been touched.
	ErrReadOnly = errors.New("medium is read-only")
	// ErrInUse is returned when another process has the medium open.
	ErrInUse = errors.New("medium is in use by another process")
	// ErrKind is returned for a device that is no memory of the wanted kind.
	ErrKind = errors.New("not a memory of this kind")
)

// OpenMTD opens the partition at path, /dev/mtdN, for this process alone
// until Close. It returns ErrInUse when another has it still open after 1 s,
// ErrReadOnly for a partition that may not be written, and ErrKind for what is
// no NOR flash whose pages can be programmed more than once.
func OpenMTD(path string) (*MTD, error) {
	dev, info, err := openMTD(path)
	if err != nil {
		return nil, fmt.Errorf("nvm: %s: %w", path, err)
	}
	m, err := newMTD(path, dev, info)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nvm: %s: %w", path, err), dev.Close())
	}
	return m, nil
}

func newMTD(name string, dev mtdDevice, info mtdInfo) (*MTD, error) {
	g, err := info.geometry()
	if err != nil {
		return nil, err
	}
	return &MTD{name: name, dev: dev, g: g, owner: newOwner()}, nil
}

func (i mtdInfo) geometry() (Geometry, error) {
	page := max(norPage, i.write)
	switch {
	case i.kind != mtdNOR && i.kind != mtdRAM:
		return Geometry{}, fmt.Errorf("%w: MTD type %d, and a NOR flash (%d) is wanted", ErrKind, i.kind, mtdNOR)
	case i.flags&mtdWriteable == 0:
		return Geometry{}, fmt.Errorf("%w: the kernel says so of the partition (read-only in the device tree?)", ErrReadOnly)
	case i.flags&mtdNoErase != 0:
		return Geometry{}, fmt.Errorf("%w: it can not be erased", ErrKind)
	case i.flags&mtdBitWriteable == 0:
		// Flashes with ECC of their own: a page is programmed once an erase.
		return Geometry{}, fmt.Errorf("%w: its pages can not be programmed twice (a flash with ECC)", ErrKind)
	case i.erase <= 0 || i.size <= 0 || i.size%int64(i.erase) != 0 || page&(page-1) != 0 || i.erase%page != 0:
		return Geometry{}, fmt.Errorf("%w: %d bytes in erase blocks of %d and writes of %d", ErrSize, i.size, i.erase, i.write)
	}
	return Geometry{
		Size: i.size, Page: page, Erase: i.erase, Erased: 0xff,
		WriteMax: norWriteMax, EraseMax: norEraseMax(i.erase),
	}, nil
}

// String names the partition for messages.
func (m *MTD) String() string { return m.name }

// Geometry is that of the partition, with the times of common serial NORs.
func (m *MTD) Geometry() Geometry { return m.g }

// Close lets the partition go. ErrWedged says that a call to the driver has
// not come back: the partition is let go when this process ends.
func (m *MTD) Close() error {
	if err := m.owner.close(); err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	return m.dev.Close()
}

// ReadAt returns ErrRange, ErrWedged, or the kernel's error.
func (m *MTD) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > m.g.Size {
		return m.wrap("read", len(p), off, ErrRange)
	}
	const chunk = 64 << 10 // so that nobody waits long behind a long read
	for len(p) > 0 {
		buf := make([]byte, min(len(p), chunk))
		err := m.owner.do(ctx, time.Second+driverSlack, func() error { return whole(m.dev.ReadAt, buf, off) })
		if err != nil {
			return m.wrap("read", len(buf), off, err)
		}
		n := copy(p, buf)
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// Program returns ErrRange, ErrPage, ErrReadOnly for a chip that stays locked,
// ErrWedged, or the kernel's error.
func (m *MTD) Program(ctx context.Context, p []byte, off int64) error {
	if err := checkProgram(m.g, p, off); err != nil {
		return m.wrap("write", len(p), off, err)
	}
	buf := slices.Clone(p)
	err := m.change(ctx, m.g.WriteMax, func() error { return whole(m.dev.WriteAt, buf, off) })
	return m.wrap("write", len(p), off, err)
}

// Erase returns ErrRange, ErrPage, ErrReadOnly for a chip that stays locked,
// ErrWedged, or the kernel's error.
func (m *MTD) Erase(ctx context.Context, off int64) error {
	block := int64(m.g.Erase)
	switch {
	case off < 0 || off > m.g.Size-block:
		return m.wrap("erase", m.g.Erase, off, ErrRange)
	case off%block != 0:
		return m.wrap("erase", m.g.Erase, off, ErrPage)
	}
	err := m.change(ctx, m.g.EraseMax, func() error { return m.dev.Erase(off, block) })
	return m.wrap("erase", m.g.Erase, off, err)
}

// Settle has nothing to wait for.
func (m *MTD) Settle(ctx context.Context) error { return ctx.Err() }

// change does what writes. Before the first time a chip that is locked is
// unlocked; some are at power-up.
func (m *MTD) change(ctx context.Context, limit time.Duration, f func() error) error {
	return m.owner.do(ctx, limit+driverSlack, func() error {
		if !m.asked {
			if err := m.dev.Unlock(m.g.Size); err != nil {
				return fmt.Errorf("%w: it is locked and can not be unlocked: %w", ErrReadOnly, err)
			}
			m.asked = true
		}
		return f()
	})
}

func (m *MTD) wrap(op string, n int, off int64, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s of %d bytes at %#x: %w", m.name, op, n, off, err)
}

// whole fails where a transfer is cut short.
func whole(f func([]byte, int64) (int, error), p []byte, off int64) error {
	n, err := f(p, off)
	if err == nil && n != len(p) {
		err = fmt.Errorf("%d of %d bytes", n, len(p))
	}
	return err
}

// FindMTD finds the device of the partition called name, as the device tree or
// the kernel's command line names it. It returns fs.ErrNotExist, with the names
// there are, where there is none, and another error where there are several.
func FindMTD(name string) (path string, err error) { return findMTD(os.DirFS("/"), name) }

func findMTD(root fs.FS, name string) (string, error) {
	table, err := fs.ReadFile(root, "proc/mtd")
	if err != nil {
		return "", fmt.Errorf("nvm: partition %q: this kernel has no MTD: %w", name, err)
	}
	var found, names []string
	for line := range strings.Lines(string(table)) {
		// mtd0: 00080000 00010000 "u-boot"
		dev, rest, ok := strings.Cut(strings.TrimSpace(line), ": ")
		_, quoted, ok2 := strings.Cut(rest, `"`)
		got, ok3 := strings.CutSuffix(quoted, `"`)
		if !ok || !ok2 || !ok3 {
			continue // the heading
		}
		names = append(names, got)
		if got == name {
			found = append(found, "/dev/"+dev)
		}
	}
	switch len(found) {
	case 0:
		there := "there are none"
		if len(names) > 0 {
			there = "there are " + strings.Join(names, ", ")
		}
		return "", fmt.Errorf("nvm: no MTD partition %q: %w; %s", name, fs.ErrNotExist, there)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("nvm: partition %q: %s are called so: say which, by its device", name, strings.Join(found, " and "))
}
