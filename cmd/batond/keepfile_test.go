package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReplaceFile: through a symbolic link, with mode and the text before; on a
// file system that is full nothing changes and nothing is left.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	real, link := filepath.Join(dir, "real.json"), filepath.Join(dir, "link.json")
	if err := os.WriteFile(real, []byte("one"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real.json", link); err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{"two", "three", "three"} {
		before := read(real)
		if err := replaceFile(link, []byte(text)); err != nil {
			t.Fatal(err)
		}
		st, err := os.Lstat(real)
		if err != nil || st.Mode() != 0o640 || read(real) != text || read(real+".previous") != before {
			t.Errorf("%d: %v, %q after %q, %v", i, st.Mode(), read(real), read(real+".previous"), err)
		}
	}
	if names, _ := os.ReadDir(dir); len(names) != 3 {
		t.Errorf("left behind: %v", names)
	}

	full := filepath.Join(dir, "full")
	if err := os.Mkdir(full, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", full, "tmpfs", 0, "size=16k"); err != nil {
		t.Skip(err)
	}
	defer func() { _ = syscall.Unmount(full, syscall.MNT_DETACH) }()
	file := filepath.Join(full, "batond.json")
	if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := replaceFile(file, []byte(strings.Repeat("x", 64<<10))); err == nil {
			t.Error("there was room")
		}
	}
	if names, _ := os.ReadDir(full); len(names) != 1 || read(file) != "one" {
		t.Errorf("left behind: %v, %q", names, read(file))
	}
}
