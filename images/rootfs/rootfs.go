// Package rootfs builds the root file system of a board: a cpio archive that
// the kernel unpacks into RAM (an initramfs).
package rootfs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"

	"github.com/u-root/mkuimage/cpio"
)

// Archive collects the files of a root file system.
type Archive struct {
	records map[string]cpio.Record
}

// New returns an archive with the folders and devices that a kernel and an
// init need before anything is mounted.
func New() *Archive {
	a := &Archive{records: map[string]cpio.Record{}}
	for _, d := range []string{"dev", "etc", "proc", "root", "run", "sys", "tmp", "var/lib/baton", "var/log"} {
		a.dir(d)
	}
	// The kernel opens the console for PID 1 before devtmpfs is mounted.
	a.put(cpio.CharDev("dev/console", 0o600, 5, 1))
	a.put(cpio.CharDev("dev/null", 0o666, 1, 3))
	return a
}

// AddFile adds a file, and the folders on the way to it.
func (a *Archive) AddFile(name string, data []byte, perm fs.FileMode) {
	a.dir(path.Dir(name))
	a.put(cpio.StaticFile(name, string(data), uint64(perm.Perm())))
}

// AddSymlink adds a symbolic link, and the folders on the way to it.
func (a *Archive) AddSymlink(name, target string) {
	a.dir(path.Dir(name))
	a.put(cpio.Symlink(name, target))
}

func (a *Archive) dir(name string) {
	if name == "." {
		return
	}
	a.dir(path.Dir(name))
	a.put(cpio.Directory(name, 0o755))
}

func (a *Archive) put(r cpio.Record) { a.records[r.Name] = cpio.MakeReproducible(r) }

// WriteTo writes the archive in the format the kernel reads. The same files
// give the same bytes.
func (a *Archive) WriteTo(w io.Writer) (int64, error) {
	var names []string
	for n := range a.records {
		names = append(names, n)
	}
	slices.Sort(names) // a folder comes before what is in it
	n := &counter{w: w}
	cw := cpio.Newc.Writer(n)
	for _, name := range names {
		if err := cw.WriteRecord(a.records[name]); err != nil {
			return n.n, fmt.Errorf("%s: %w", name, err)
		}
	}
	return n.n, cpio.WriteTrailer(cw)
}

// Concat writes archives, compressed or not, behind each other, as the kernel
// takes them. It finds a plain one only at a multiple of four bytes, and takes
// any number of zeros between two.
func Concat(w io.Writer, archives ...[]byte) error {
	for _, a := range archives {
		if _, err := w.Write(append(a, make([]byte, -len(a)&3)...)); err != nil {
			return err
		}
	}
	return nil
}

// WriteOverlay writes an archive to name that a root file system can be
// followed by: the files, by their path in it and on this machine. Each may be
// run by everyone.
func WriteOverlay(name string, files map[string]string) error {
	a := &Archive{records: map[string]cpio.Record{}}
	for to, from := range files {
		data, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("overlay %s: %w", to, err)
		}
		a.AddFile(strings.TrimPrefix(to, "/"), data, 0o755)
	}
	var b bytes.Buffer
	if _, err := a.WriteTo(&b); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// Compress compresses a file to name.xz with xz(1), by the filters given, in
// the only way the kernel can read: it knows no check but CRC-32.
func Compress(ctx context.Context, name string, filters []string) error {
	args := append([]string{"--check=crc32", "--threads=1", "--stdout"}, filters...)
	c := exec.CommandContext(ctx, "xz", append(args, name)...)
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("xz %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return os.WriteFile(name+".xz", stdout.Bytes(), 0o644)
}
