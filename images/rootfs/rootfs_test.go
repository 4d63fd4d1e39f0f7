package rootfs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/u-root/mkuimage/cpio"
)

func write(t *testing.T, a *Archive) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := a.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("WriteTo = %d, %v; wrote %d bytes", n, err, b.Len())
	}
	return b.Bytes()
}

func TestArchive(t *testing.T) {
	a := New()
	a.AddFile("lib/modules/a.ko", []byte("module"), 0o644)
	a.AddFile("bbin/bb", []byte("binary"), 0o755)
	a.AddSymlink("init", "bbin/init")

	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(write(t, a))))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, r := range records {
		if dir, _, ok := bytes.Cut([]byte(r.Name), []byte("/")); ok && seen[string(dir)] == "" {
			t.Errorf("%s comes before its folder", r.Name)
		}
		if r.MTime != 0 || r.UID != 0 || r.GID != 0 {
			t.Errorf("%s has the builder's time or owner: %v", r.Name, r.Info)
		}
		text := os.FileMode(r.Mode & 0o777).String()
		if r.Mode&cpio.S_IFMT != cpio.S_IFDIR && r.Mode&cpio.S_IFMT != cpio.S_IFCHR {
			data, err := io.ReadAll(io.NewSectionReader(r, 0, int64(r.FileSize)))
			if err != nil {
				t.Fatal(err)
			}
			text += " " + string(data)
		}
		seen[r.Name] = text
	}
	want := map[string]string{
		"bbin":             "-rwxr-xr-x",
		"bbin/bb":          "-rwxr-xr-x binary",
		"dev":              "-rwxr-xr-x",
		"dev/console":      "-rw-------",
		"dev/null":         "-rw-rw-rw-",
		"etc":              "-rwxr-xr-x",
		"init":             "-rwxrwxrwx bbin/init",
		"lib":              "-rwxr-xr-x",
		"lib/modules":      "-rwxr-xr-x",
		"lib/modules/a.ko": "-rw-r--r-- module",
		"proc":             "-rwxr-xr-x",
		"root":             "-rwxr-xr-x",
		"run":              "-rwxr-xr-x",
		"sys":              "-rwxr-xr-x",
		"tmp":              "-rwxr-xr-x",
		"var":              "-rwxr-xr-x",
		"var/lib":          "-rwxr-xr-x",
		"var/lib/baton":    "-rwxr-xr-x",
		"var/log":          "-rwxr-xr-x",
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("archive, -want +got:\n%s", diff)
	}
}

func TestArchiveReproducible(t *testing.T) {
	a, b := New(), New()
	a.AddFile("x/1", []byte("one"), 0o644)
	a.AddFile("y/2", []byte("two"), 0o644)
	b.AddFile("y/2", []byte("two"), 0o644)
	b.AddFile("x/1", []byte("one"), 0o644)
	if !bytes.Equal(write(t, a), write(t, b)) {
		t.Error("the order of adding shows in the archive")
	}
}

// TestOverlay: what is concatenated can be taken apart again, and the files of
// the later archive come after those of the first.
func TestOverlay(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("odd"), 0o644); err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.cpio")
	if err := WriteOverlay(overlay, map[string]string{"/bbin/test": program}); err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(overlay)
	if err != nil {
		t.Fatal(err)
	}
	a := New()
	a.AddFile("bbin/test", []byte("one"), 0o644)
	first := write(t, a)
	var joined bytes.Buffer
	for _, cut := range []int{0, 1, 2, 3} {
		joined.Reset()
		// A compressed archive may have any length.
		if err := Concat(&joined, bytes.Repeat([]byte("x"), 4-cut), first, second); err != nil {
			t.Fatal(err)
		}
		at := bytes.LastIndex(joined.Bytes(), second)
		if at < 0 || at%4 != 0 || bytes.Index(joined.Bytes(), first)%4 != 0 {
			t.Fatalf("the second archive is at %d; want a multiple of 4", at)
		}
		records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(joined.Bytes()[at:])))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range records {
			got = append(got, fmt.Sprintf("%s %o %d", r.Name, r.Mode&0o777, r.FileSize))
		}
		if diff := cmp.Diff([]string{"bbin 755 0", "bbin/test 755 3"}, got); diff != "" {
			t.Errorf("overlay, -want +got:\n%s", diff)
		}
	}
	if err := WriteOverlay(overlay, map[string]string{"x": filepath.Join(dir, "absent")}); err == nil {
		t.Error("WriteOverlay of a file that is absent: no error")
	}
}
