// Package image works on the content of a chip in a file, as a programmer reads
// it: the raw bytes of the part from offset 0, nothing else. It finds what is in
// there and repairs a copy of it in memory; the file is only written when told.
//
// What can be in an image:
//
//   - the agent's store, from offset 0 (a chip of its own, or the store's file);
//   - an engine's config block, at BlockOffset, and nothing else;
//   - both: a store that shares an engine's chip, behind the block.
//
// How a tool uses it, with enclosure/plan, which knows what the records mean:
//
//	im, err := image.Open(path, image.Options{})
//	if err != nil { ... } // errors.Is: fs.ErrNotExist, nvm.ErrSize
//	in := plan.CheckInput{StoreWhere: im.Name()}
//	in.Store, in.StoreErr = im.Store(ctx)
//	if in.Store != nil && in.Store.Err != nil {
//		in.Salvage = im.Salvageable(ctx, incarnations...) // of blocks, of a backup; may be none
//	}
//	in.Blocks = ... // of this image (im.Block), of other images, or none
//	c := plan.Check(in)
//	... print c.Findings ...
//	todo := c.Repair
//	if c.Format && format { // all is lost, and the user has said so
//		todo = c.Anew(incarnation) // random, not 0
//	}
//	if !todo.None() {
//		err = im.Repair(ctx, todo)
//		err = im.Save(newPath, false)
//	}
//
// An Image is used by one goroutine at a time.
package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"baton/nvm"
)

// Options say what an image is of. The zero value finds out by itself.
type Options struct {
	// Part names one of nvm.Parts or nvm.Parts25; "" = a flash, if a format
	// record in the image says so, or the 24xx with as many bytes as it has.
	Part string
	// Page is bytes of a page, for an image that is of no known part, such as a
	// store's file; 0 = the part's, or 64 where there is none.
	Page int
	// Offset is where the store begins; below 0 = there is none. 0 = where a
	// format record says that it is, else at 0.
	Offset int64
	// Size is how many bytes the store has; 0 = as a format record says, else
	// all to the end of the image.
	Size int64
}

// Image is the content of a chip.
type Image struct {
	name  string
	part  string
	g     nvm.Geometry
	cells *memory
	off   int64 // of the store; -1 = none
	size  int64
}

// Open reads the file at path. It returns the system's error, or nvm.ErrSize
// where the file is of no known part and no page size is given, or not of the
// part that is given.
func Open(path string, opt Options) (*Image, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	if st.Size() > maxImage {
		return nil, fmt.Errorf("image: %s: %w: %d bytes, at most %d", path, nvm.ErrSize, st.Size(), int64(maxImage))
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	return New(path, content, opt)
}

// maxImage is more than any medium that a store uses all of: 65,534 pages of
// 256 bytes.
const maxImage = 16 << 20

// New is Open for content that is in memory already. It is copied.
func New(name string, content []byte, opt Options) (*Image, error) {
	g, part, err := geometry(int64(len(content)), opt)
	// A flash is known by what is in it: parts and sizes tell nothing.
	if nor, ok := nvm.LocateErasable(content); ok && opt.Part == "" && int64(len(content))%int64(nor.Erase) == 0 {
		if opt.Size == 0 && opt.Offset >= 0 {
			opt.Size = min(nor.Size, int64(len(content))-opt.Offset)
		}
		g, part, err = nor, "", nil
		g.Size = int64(len(content))
	}
	if err != nil {
		return nil, fmt.Errorf("image: %s: %w", name, err)
	}
	im := &Image{name: name, part: part, g: g, cells: &memory{g: g, data: slices.Clone(content)}}
	if err := im.place(opt); err != nil {
		return nil, fmt.Errorf("image: %s: %w", name, err)
	}
	return im, nil
}

func geometry(size int64, opt Options) (g nvm.Geometry, part string, err error) {
	g = nvm.Geometry{Size: size, Page: opt.Page, Erased: 0xFF, WriteMax: time.Second}
	if opt.Part != "" {
		p, ok := nvm.Parts[opt.Part]
		if s, spi := nvm.Parts25[opt.Part]; spi {
			p, ok = nvm.Part{Name: s.Name, Size: s.Size, Page: s.Page}, true
		}
		if !ok {
			return g, "", fmt.Errorf("there is no part %q", opt.Part)
		}
		if p.Size != size {
			return g, "", fmt.Errorf("%w: %d bytes, a %s has %d", nvm.ErrSize, size, p.Name, p.Size)
		}
		g.Page = p.Page
		return g, p.Name, nil
	}
	for name, p := range nvm.Parts {
		if p.Size == size && (opt.Page == 0 || opt.Page == p.Page) {
			g.Page = p.Page
			return g, name, nil
		}
	}
	if g.Page == 0 {
		g.Page = 64
	}
	if size <= 0 || size%int64(g.Page) != 0 {
		return g, "", fmt.Errorf("%w: %d bytes is no known part, and not a number of pages of %d", nvm.ErrSize, size, g.Page)
	}
	return g, "", nil
}

// place finds out where the store is.
func (im *Image) place(opt Options) error {
	if opt.Offset < 0 {
		im.off = -1
		return nil
	}
	im.off, im.size = opt.Offset, opt.Size
	if opt.Offset == 0 && opt.Size == 0 {
		if at := nvm.Locate(im.cells.data, im.g); len(at) > 0 {
			im.off, im.size = at[0].Offset, at[0].Size
		}
	}
	if im.size == 0 {
		im.size = im.g.Size - im.off
	}
	_, err := im.section()
	return err
}

func (im *Image) section() (nvm.Medium, error) {
	return nvm.Section(im.cells, im.off, im.size)
}

// Name is the path that the image was opened by.
func (im *Image) Name() string { return im.name }

// Part is the name of the part that it is of, "" where that is not known.
func (im *Image) Part() string { return im.part }

// Geometry is that of the whole image.
func (im *Image) Geometry() nvm.Geometry { return im.g }

// StoreAt is where in the image the store is looked for; size 0 = nowhere.
func (im *Image) StoreAt() (off, size int64) {
	if im.off < 0 {
		return 0, 0
	}
	return im.off, im.size
}

// Store inspects the store. What is wrong with it is in Inspection.Err; the
// error is ErrNoStore, or nvm.ErrSize where no store could ever be there.
func (im *Image) Store(ctx context.Context) (*nvm.Inspection, error) {
	if im.off < 0 {
		return nil, ErrNoStore
	}
	m, err := im.section()
	if err != nil {
		return nil, err
	}
	return nvm.Inspect(ctx, m)
}

// ErrNoStore is returned where an image was opened as one without a store.
var ErrNoStore = errors.New("the image is not looked at for a store")

// Salvageable tells which store is there, although its format records are all
// lost: the one of whose incarnation most pages verify. known are incarnations
// to try, as config blocks or a backup have them; beside them those are tried
// that the pages themselves give away. nil = there is none.
func (im *Image) Salvageable(ctx context.Context, known ...uint32) *nvm.Inspection {
	m, err := im.section()
	if im.off < 0 || err != nil {
		return nil
	}
	in, err := nvm.FindLost(ctx, m, known...)
	if err != nil {
		return nil
	}
	return in
}

// Block returns the n bytes at off, where an engine's config block may be; nil
// where that is not all in the image.
func (im *Image) Block(off int64, n int) []byte {
	if off < 0 || n < 0 || off > im.g.Size-int64(n) {
		return nil
	}
	return slices.Clone(im.cells.data[off : off+int64(n)])
}

// Bytes returns a copy of the whole content, repaired or not.
func (im *Image) Bytes() []byte { return slices.Clone(im.cells.data) }

// Repair does r to the store in memory. With an error the image is as it was.
func (im *Image) Repair(ctx context.Context, r nvm.Repair) error {
	if im.off < 0 {
		return fmt.Errorf("image: %s: %w", im.name, ErrNoStore)
	}
	before := im.Bytes()
	m, err := im.section()
	if err == nil {
		_, _, err = nvm.Mend(ctx, m, r, nvm.Options{ReservePages: -1})
	}
	if err != nil {
		im.cells.data = before
		return fmt.Errorf("image: %s: %w", im.name, err)
	}
	return nil
}

// Save writes the content to path, whole or not at all: to another name in the
// same directory first, which is renamed once it is on the disk. With replace a
// file that is there already is replaced, without it is refused (fs.ErrExist).
func (im *Image) Save(path string, replace bool) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("image: %w", err)
		}
	}()
	if !replace {
		if _, err := os.Lstat(path); err == nil {
			return &os.PathError{Op: "save", Path: path, Err: os.ErrExist}
		}
	}
	var was os.FileInfo // what is replaced; whoever opens it must still be able to
	if replace {
		if to, err := filepath.EvalSymlinks(path); err == nil {
			path = to
		}
		if was, err = os.Stat(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone after the rename
	defer f.Close()
	if _, err := f.Write(im.cells.data); err != nil {
		return err
	}
	if was != nil {
		if err := keepAccess(f, was); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if replace {
		err = os.Rename(f.Name(), path)
	} else {
		err = os.Link(f.Name(), path) // unlike Rename it does not replace what came meanwhile
	}
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// keepAccess gives f the owner and the mode of the file whose place it takes.
func keepAccess(f *os.File, was os.FileInfo) error {
	if st, ok := was.Sys().(*syscall.Stat_t); ok {
		if now, err := f.Stat(); err != nil {
			return err
		} else if mine, ok := now.Sys().(*syscall.Stat_t); !ok || mine.Uid != st.Uid || mine.Gid != st.Gid {
			if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil {
				return err
			}
		}
	}
	return f.Chmod(was.Mode().Perm())
}

// memory is a medium in RAM.
type memory struct {
	g    nvm.Geometry
	data []byte
}

func (m *memory) Geometry() nvm.Geometry { return m.g }

func (m *memory) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off > m.g.Size-int64(len(p)) {
		return nvm.ErrRange
	}
	copy(p, m.data[off:])
	return ctx.Err()
}

func (m *memory) Program(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off > m.g.Size-int64(len(p)) {
		return nvm.ErrRange
	}
	if m.g.Erase == 0 {
		copy(m.data[off:], p)
		return ctx.Err()
	}
	for i, b := range p {
		m.data[off+int64(i)] &= b
	}
	return ctx.Err()
}

// Erase is for an image of a flash.
func (m *memory) Erase(ctx context.Context, off int64) error {
	block := int64(m.g.Erase)
	if block == 0 || off < 0 || off > m.g.Size-block || off%block != 0 {
		return nvm.ErrRange
	}
	for i := range block {
		m.data[off+i] = m.g.Erased
	}
	return ctx.Err()
}

func (m *memory) Settle(ctx context.Context) error { return ctx.Err() }
