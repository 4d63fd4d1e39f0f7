package nvm_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"baton/nvm"
	"baton/nvm/nvmtest"
)

// kernel plays the kernel's MTD over a flash.
type kernel struct {
	*nvmtest.NOR
	locked  bool // until Unlock
	stay    bool // Unlock fails
	unlocks int
	short   bool          // transfers are cut short
	hang    chan struct{} // transfers wait for it
	closed  bool
}

func (k *kernel) ReadAt(p []byte, off int64) (int, error) {
	if k.hang != nil {
		<-k.hang
	}
	if k.short {
		return len(p) - 1, nil
	}
	return len(p), k.NOR.ReadAt(bg, p, off)
}

func (k *kernel) WriteAt(p []byte, off int64) (int, error) {
	if k.locked {
		return 0, syscall.EROFS
	}
	n := 0
	for n < len(p) {
		// spi_nor_write in drivers/mtd/spi-nor/core.c
		at := off + int64(n)
		page := p[n:min(len(p), n+256-int(at%256))]
		if err := k.Program(bg, page, at); err != nil {
			return n, err
		}
		n += len(page)
	}
	return n, nil
}

func (k *kernel) Erase(off, n int64) error {
	if k.locked {
		return syscall.EROFS
	}
	if n != int64(k.Geometry().Erase) {
		panic("erase of more than a block")
	}
	return k.NOR.Erase(bg, off)
}

func (k *kernel) Unlock(n int64) error {
	k.unlocks++
	if n != k.Geometry().Size {
		panic("unlock of a part")
	}
	if k.stay {
		return syscall.EINVAL
	}
	k.locked = false
	return nil
}

func (k *kernel) Close() error { k.closed = true; return nil }

// The flags of a NOR partition as the kernel has them (MTD_CAP_NORFLASH).
const norFlags = 0xc00

func newKernel(size int64, erase int) *kernel {
	return &kernel{NOR: nvmtest.NewNOR(geometry(size, 256, erase), 1)}
}

func openKernel(t *testing.T, k *kernel) *nvm.MTD {
	t.Helper()
	g := k.Geometry()
	m, err := nvm.NewMTD("/dev/mtd5", k, 3, norFlags, g.Size, g.Erase, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestMTD(t *testing.T) {
	k := newKernel(8*4096, 4096)
	k.locked = true
	m := openKernel(t, k)
	if g := m.Geometry(); g.Size != 8*4096 || g.Page != 256 || g.Erase != 4096 || g.Erased != 0xff || g.EraseMax != 400*time.Millisecond {
		t.Errorf("Geometry = %+v", g)
	}
	p := make([]byte, 8)
	if err := m.ReadAt(bg, p, 8); err != nil || k.unlocks != 0 {
		t.Errorf("ReadAt = %v, after %d unlocks; want none: reading changes nothing", err, k.unlocks)
	}
	if err := m.Program(bg, []byte("page"), 256); err != nil {
		t.Error(err)
	}
	if err := m.Program(bg, []byte{0}, 256); err != nil {
		t.Error(err)
	}
	if err := m.Settle(bg); err != nil {
		t.Error(err)
	}
	if err := m.ReadAt(bg, p[:4], 256); err != nil || !bytes.Equal(p[:4], []byte("\x00age")) {
		t.Errorf("ReadAt = %q, %v", p[:4], err)
	}
	if err := m.Erase(bg, 0); err != nil || k.Image()[256] != 0xff || k.unlocks != 1 {
		t.Errorf("Erase = %v, leaves %#x; unlocked %d times, want 1", err, k.Image()[256], k.unlocks)
	}
	long := make([]byte, 8*4096)
	if err := m.ReadAt(bg, long, 0); err != nil || !bytes.Equal(long, k.Image()) {
		t.Errorf("ReadAt of all = %v", err)
	}
	ended, cancel := context.WithCancel(bg)
	cancel()
	for _, tt := range []struct {
		name string
		err  error
		want error
	}{
		{"write across a page", m.Program(bg, p[:2], 255), nvm.ErrPage},
		{"write beyond the end", m.Program(bg, p[:1], 8*4096), nvm.ErrRange},
		{"read beyond the end", m.ReadAt(bg, p[:2], 8*4096-1), nvm.ErrRange},
		{"read before the start", m.ReadAt(bg, p[:2], -1), nvm.ErrRange},
		{"erase beyond the end", m.Erase(bg, 8*4096), nvm.ErrRange},
		{"erase before the start", m.Erase(bg, -4096), nvm.ErrRange},
		{"erase within a block", m.Erase(bg, 256), nvm.ErrPage},
		{"write, ended", m.Program(ended, p[:1], 0), context.Canceled},
		{"settle, ended", m.Settle(ended), context.Canceled},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: %v; want %v", tt.name, tt.err, tt.want)
		}
	}
	k.short = true
	if err := m.ReadAt(bg, p, 0); err == nil || !strings.Contains(err.Error(), "7 of 8 bytes") {
		t.Errorf("a read cut short: %v", err)
	}
	if err := m.Close(); err != nil || !k.closed {
		t.Errorf("Close = %v, closed %v", err, k.closed)
	}
	if err := m.ReadAt(bg, p, 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("ReadAt after Close = %v; want ErrClosed", err)
	}
}

func TestMTDWrite(t *testing.T) {
	k := newKernel(16*4096, 4096)
	m := openKernel(t, k)
	long := make([]byte, 40000)
	for i := range long {
		long[i] = byte(i * 7)
	}
	want := append(append(bytes.Repeat([]byte{0xff}, 100), long...), bytes.Repeat([]byte{0xff}, 16*4096-40100)...)
	if err := m.Write(bg, long, 100); err != nil || !bytes.Equal(k.Image(), want) {
		t.Errorf("Write = %v", err)
	}
	for _, off := range []int64{-1, 16*4096 - 39999} {
		if err := m.Write(bg, long, off); !errors.Is(err, nvm.ErrRange) {
			t.Errorf("Write at %d = %v; want ErrRange", off, err)
		}
	}
	if !bytes.Equal(k.Image(), want) {
		t.Error("a write out of range has written")
	}
	no := errors.New("no")
	k.ProgramHook = func(int) error { return no }
	if err := m.Write(bg, long[:10], 0); !errors.Is(err, no) {
		t.Errorf("Write = %v; want the driver's error", err)
	}
}

// TestMTDStaysLocked has a chip that does not let itself be unlocked: nothing
// is changed, and no page is taken for bad.
func TestMTDStaysLocked(t *testing.T) {
	k := newKernel(8*4096, 4096)
	k.locked, k.stay = true, true
	m := openKernel(t, k)
	for name, err := range map[string]error{"Program": m.Program(bg, []byte{0}, 0), "Erase": m.Erase(bg, 0)} {
		if !errors.Is(err, nvm.ErrReadOnly) || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s = %v; want ErrReadOnly and why", name, err)
		}
	}
	if _, err := nvm.Format(bg, m, 1, nvm.Options{}); !errors.Is(err, nvm.ErrReadOnly) {
		t.Errorf("Format = %v; want ErrReadOnly", err)
	}
	if k.Ops() != 0 {
		t.Errorf("%d writes reached the chip", k.Ops())
	}
}

func TestMTDKinds(t *testing.T) {
	for _, tt := range []struct {
		name         string
		kind         uint8
		flags        uint32
		size         int64
		erase, write int
		want         error
		page         int
	}{
		{"nor", 3, 0xc00, 1 << 20, 65536, 1, nil, 256},
		{"nor with pages of 512", 3, 0xc00, 1 << 20, 65536, 512, nil, 512},
		{"mtdram", 1, 0xc00, 1 << 20, 65536, 1, nil, 256},
		{"nand", 4, 0x400, 1 << 20, 131072, 2048, nvm.ErrKind, 0},
		{"read-only", 3, 0x800, 1 << 20, 65536, 1, nvm.ErrReadOnly, 0},
		{"nor with ecc", 3, 0x400, 1 << 20, 65536, 16, nvm.ErrKind, 0},
		{"cannot erase", 3, 0x1c00, 1 << 20, 65536, 1, nvm.ErrKind, 0},
		{"no block", 3, 0xc00, 1 << 20, 0, 1, nvm.ErrSize, 0},
		{"no bytes", 3, 0xc00, 0, 65536, 1, nvm.ErrSize, 0},
		{"half a block", 3, 0xc00, 65536 + 256, 65536, 1, nvm.ErrSize, 0},
		{"odd writes", 3, 0xc00, 1 << 20, 65536, 528, nvm.ErrSize, 0},
		{"blocks below a page", 3, 0xc00, 1 << 20, 128, 1, nvm.ErrSize, 0},
	} {
		m, err := nvm.NewMTD("x", newKernel(8*4096, 4096), tt.kind, tt.flags, tt.size, tt.erase, tt.write)
		if !errors.Is(err, tt.want) || err == nil && tt.want != nil {
			t.Errorf("%s: %v; want %v", tt.name, err, tt.want)
		}
		if m == nil {
			continue
		}
		if got := m.Geometry().Page; got != tt.page {
			t.Errorf("%s: pages of %d; want %d", tt.name, got, tt.page)
		}
		if err := m.Close(); err != nil {
			t.Errorf("%s: Close = %v", tt.name, err)
		}
	}
}

// TestMTDWedged has a driver that does not come back: who waits is told within
// the bound, others at once, and all goes on when it has.
func TestMTDWedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel(8*4096, 4096)
		k.hang = make(chan struct{})
		m := openKernel(t, k)
		p := make([]byte, 4)
		start := time.Now()
		if err := m.ReadAt(bg, p, 0); !errors.Is(err, nvm.ErrWedged) {
			t.Errorf("ReadAt = %v; want ErrWedged", err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("told after %v", d)
		}
		start = time.Now()
		if err := m.Program(bg, p, 0); !errors.Is(err, nvm.ErrWedged) || time.Since(start) != 0 {
			t.Errorf("Program = %v after %v; want ErrWedged at once", err, time.Since(start))
		}
		if err := m.Close(); !errors.Is(err, nvm.ErrWedged) || k.closed {
			t.Errorf("Close = %v, closed %v; want ErrWedged, and the device left", err, k.closed)
		}
		close(k.hang)
		synctest.Wait()
		if err := m.Close(); err != nil || !k.closed {
			t.Errorf("Close when it has come back = %v, closed %v", err, k.closed)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		k := newKernel(8*4096, 4096)
		k.hang = make(chan struct{})
		m := openKernel(t, k)
		p := make([]byte, 4)
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		if err := m.ReadAt(ctx, p, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ReadAt = %v; want the end of ctx", err)
		}
		close(k.hang)
		synctest.Wait()
		if err := m.ReadAt(bg, p, 0); err != nil {
			t.Errorf("ReadAt after it came back = %v", err)
		}
	})
}

func TestFindMTD(t *testing.T) {
	const table = `dev:    size   erasesize  name
mtd0: 04000000 00001000 "bmc"
mtd1: 00100000 00001000 "u-boot"
mtd2: 00020000 00001000 "u-boot env"
mtd3: 00100000 00001000 "store"
mtd4: 00100000 00001000 "twice"
mtd11: 00100000 00001000 "twice"
`
	root := fstest.MapFS{"proc/mtd": {Data: []byte(table)}}
	for name, want := range map[string]string{"store": "/dev/mtd3", "u-boot env": "/dev/mtd2", "bmc": "/dev/mtd0"} {
		if got, err := nvm.FindMTDIn(root, name); got != want || err != nil {
			t.Errorf("FindMTD(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
	_, err := nvm.FindMTDIn(root, "stor")
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "there are bmc, u-boot, u-boot env, store") {
		t.Errorf("FindMTD of none = %v; want ErrNotExist and the names", err)
	}
	_, err = nvm.FindMTDIn(root, "twice")
	if err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/dev/mtd4 and /dev/mtd11") {
		t.Errorf("FindMTD of two = %v; want both devices", err)
	}
	if _, err = nvm.FindMTDIn(fstest.MapFS{}, "store"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "no MTD") {
		t.Errorf("FindMTD without MTD = %v", err)
	}
}

// TestOpenMTD is about files that are no partitions; real ones are in
// test/e2e.
func TestOpenMTD(t *testing.T) {
	if _, err := nvm.OpenMTD("/dev/null"); !errors.Is(err, nvm.ErrKind) || !strings.Contains(err.Error(), "/dev/mtdN") {
		t.Errorf("OpenMTD(/dev/null) = %v; want ErrKind", err)
	}
	file := filepath.Join(t.TempDir(), "nor.bin")
	if _, err := nvm.OpenMTD(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenMTD of nothing = %v; want ErrNotExist", err)
	}
	if err := os.WriteFile(file, make([]byte, 65536), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := nvm.OpenMTD(file); !errors.Is(err, nvm.ErrKind) {
		t.Errorf("OpenMTD of a file = %v; want ErrKind", err)
	}
}
