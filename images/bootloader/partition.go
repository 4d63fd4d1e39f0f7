package bootloader

import (
	"context"
	"fmt"
	"os"
	"time"

	"baton/nvm"
)

// Partition is a part of a flash, as the kernel's MTD layer has it.
type Partition struct {
	Flash     nvm.Eraser
	Off, Size int64
}

// Geometry is the flash's, with the partition's size.
func (p Partition) Geometry() nvm.Geometry {
	g := p.Flash.Geometry()
	g.Size = p.Size
	return g
}

func (p Partition) check(n int, off int64) error {
	if off < 0 || off+int64(n) > p.Size {
		return fmt.Errorf("%d bytes at %#x of %#x: %w", n, off, p.Size, nvm.ErrRange)
	}
	return nil
}

// ReadAt reads; ErrRange where that is not in the partition.
func (p Partition) ReadAt(ctx context.Context, b []byte, off int64) error {
	if err := p.check(len(b), off); err != nil {
		return err
	}
	return p.Flash.ReadAt(ctx, b, p.Off+off)
}

// Program writes; ErrRange where that is not in the partition.
func (p Partition) Program(ctx context.Context, b []byte, off int64) error {
	if err := p.check(len(b), off); err != nil {
		return err
	}
	return p.Flash.Program(ctx, b, p.Off+off)
}

// Erase erases; ErrRange where that is not in the partition.
func (p Partition) Erase(ctx context.Context, off int64) error {
	if err := p.check(p.Flash.Geometry().Erase, off); err != nil {
		return err
	}
	return p.Flash.Erase(ctx, p.Off+off)
}

// Settle is the flash's.
func (p Partition) Settle(ctx context.Context) error { return p.Flash.Settle(ctx) }

// File is the content of a NOR flash in a file, as QEMU keeps it.
type File struct {
	f     *os.File
	size  int64
	block int
}

// OpenFile opens the content of a flash with erase blocks of block bytes. No
// emulator may run on it.
func OpenFile(name string, block int) (*File, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (block <= 0 || info.Size()%int64(block) != 0) {
		err = fmt.Errorf("%s: %d bytes are no erase blocks of %d: %w", name, info.Size(), block, nvm.ErrSize)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &File{f, info.Size(), block}, nil
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// Geometry is that of a serial NOR flash. The times are without meaning.
func (f *File) Geometry() nvm.Geometry {
	return nvm.Geometry{Size: f.size, Page: 256, Erase: f.block, Erased: 0xff, WriteMax: time.Millisecond, EraseMax: time.Millisecond}
}

// ReadAt reads.
func (f *File) ReadAt(_ context.Context, p []byte, off int64) error {
	_, err := f.f.ReadAt(p, off)
	return err
}

// Program turns bits to 0, as the chip does.
func (f *File) Program(ctx context.Context, p []byte, off int64) error {
	have := make([]byte, len(p))
	if err := f.ReadAt(ctx, have, off); err != nil {
		return err
	}
	for i := range have {
		have[i] &= p[i]
	}
	_, err := f.f.WriteAt(have, off)
	return err
}

// Erase turns all bits of a block to 1.
func (f *File) Erase(_ context.Context, off int64) error {
	p := make([]byte, f.block)
	for i := range p {
		p[i] = 0xff
	}
	_, err := f.f.WriteAt(p, off)
	return err
}

// Settle has nothing to wait for.
func (f *File) Settle(ctx context.Context) error { return ctx.Err() }
