package nvm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// File is a Medium in a file, for boards without an EEPROM to spare and for
// simulation. It has the page rules of the EEPROM it stands in for, and every
// page is on the disk when Program returns.
type File struct {
	f *os.File
	g Geometry
}

// OpenFile opens a file of exactly g.Size bytes (ErrSize). With create, a file
// that is missing is made, erased. g.Erase must be 0: a file is overwritten in
// place.
func OpenFile(path string, g Geometry, create bool) (*File, error) {
	if g.Size <= 0 || g.Page <= 0 || g.Erase != 0 {
		return nil, fmt.Errorf("nvm: %s: %w: %d bytes, pages of %d, erase blocks of %d", path, ErrSize, g.Size, g.Page, g.Erase)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if create && errors.Is(err, fs.ErrNotExist) {
		if err := createErased(path, g); err != nil {
			return nil, fmt.Errorf("nvm: making %s: %w", path, err)
		}
		f, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("nvm: %w", err)
	}
	st, err := f.Stat()
	if err == nil && st.Size() != g.Size {
		err = fmt.Errorf("%s: %w: found %d bytes, wanted %d", path, ErrSize, st.Size(), g.Size)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("nvm: %w", err)
	}
	return &File{f: f, g: g}, nil
}

// createErased makes the file under another name first: a power cut must not
// leave one of the wrong size.
func createErased(path string, g Geometry) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	defer f.Close()
	fill := make([]byte, min(g.Size, 64<<10))
	for i := range fill {
		fill[i] = g.Erased
	}
	for left := g.Size; left > 0; left -= int64(len(fill)) {
		if left < int64(len(fill)) {
			fill = fill[:left]
		}
		if _, err := f.Write(fill); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Close closes the file.
func (m *File) Close() error { return m.f.Close() }

// Geometry is what the file was opened with.
func (m *File) Geometry() Geometry { return m.g }

// ReadAt returns ErrRange or the system's error.
func (m *File) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if off < 0 || off+int64(len(p)) > m.g.Size {
		return fmt.Errorf("%s: read of %d bytes at %#x: %w", m.f.Name(), len(p), off, ErrRange)
	}
	_, err := m.f.ReadAt(p, off)
	return err
}

// Program writes p with one system call and waits until it is on the disk. It
// returns ErrRange, ErrPage or the system's error.
func (m *File) Program(ctx context.Context, p []byte, off int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkProgram(m.g, p, off); err != nil {
		return fmt.Errorf("%s: write of %d bytes at %#x: %w", m.f.Name(), len(p), off, err)
	}
	if _, err := m.f.WriteAt(p, off); err != nil {
		return err
	}
	return m.f.Sync()
}

// Settle has nothing to wait for.
func (m *File) Settle(ctx context.Context) error { return ctx.Err() }
