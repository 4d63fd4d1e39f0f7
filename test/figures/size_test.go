//go:build figures

package figures

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// imageLimit is what a board's flash has room for beside the kernel, in bytes.
const imageLimit = 2_900_000

// TestSizes builds what is flashed, as it is flashed.
func TestSizes(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	run := func(env []string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = root
		cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	size := func(path string) int64 {
		t.Helper()
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	dir := t.TempDir()
	for _, b := range []struct {
		name string
		tags string
	}{{"batond", ""}, {"baton", "board"}} {
		out := filepath.Join(dir, b.name)
		run([]string{"GOOS=linux", "GOARCH=arm", "GOARM=7"}, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-tags", b.tags, "-o", out, "./cmd/"+b.name)
		figure(b.name+"_armv7_bytes", size(out), "bytes, stripped")
	}
	run([]string{"BATON_SIGN_KEY="}, "run", "./images/mkimage", "-board", "ast2600-evb")
	n := size(filepath.Join(root, "build/images/ast2600-evb/initramfs.cpio.xz"))
	figure("initramfs_xz_bytes", n, "bytes, board ast2600-evb")
	if n > imageLimit {
		t.Errorf("the image takes %d bytes; want at most %d", n, imageLimit)
	}
	figure("image_fit_bytes", size(filepath.Join(root, "build/images/ast2600-evb/image.fit")), "bytes, board ast2600-evb: kernel, device tree and initramfs")

	same := 1
	again := buildElsewhere(t, root)
	for _, f := range []string{"uImage", "board.dtb", "initramfs.cpio.xz", "image.fit", "manifest.json"} {
		one, err := os.ReadFile(filepath.Join(root, "build/images/ast2600-evb", f))
		if err != nil {
			t.Fatal(err)
		}
		two, err := os.ReadFile(filepath.Join(again, f))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(one, two) {
			t.Errorf("%s, built again in another folder, differs: %d and %d bytes", f, len(one), len(two))
			same = 0
		}
	}
	figure("image_reproducible", same, "1 = built again from a copy of the source elsewhere, the same bytes")
}

// buildElsewhere builds the image from a copy of the source in another folder,
// with other folders for what is temporary, and returns where it is.
func buildElsewhere(t *testing.T, root string) string {
	t.Helper()
	dir := t.TempDir()
	source, tmp := filepath.Join(dir, "another", "source"), filepath.Join(dir, "tmp")
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(dir, stdin, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "BATON_SIGN_KEY=", "CGO_ENABLED=0")
		cmd.Stdin = strings.NewReader(stdin)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, stderr.Bytes())
		}
		return string(out)
	}
	// The commit and whether the source differs from it are in the image.
	run(root, "", "git", "clone", "--quiet", "--shared", root, source)
	tracked := run(root, "", "git", "ls-files", "-z", "--cached")
	other := run(root, "", "git", "ls-files", "-z", "--others", "--exclude-standard")
	for f := range strings.SplitSeq(strings.Trim(tracked+other, "\x00"), "\x00") {
		to := filepath.Join(source, f)
		info, err := os.Stat(filepath.Join(root, f))
		if errors.Is(err, os.ErrNotExist) {
			if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	run(source, tracked, "git", "add", "--pathspec-from-file=-", "--pathspec-file-nul")
	if err := os.Mkdir(filepath.Join(source, "build"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "build/kernels"), filepath.Join(source, "build/kernels")); err != nil {
		t.Fatal(err)
	}
	run(source, "", "go", "run", "./images/mkimage", "-board", "ast2600-evb")
	return filepath.Join(source, "build/images/ast2600-evb")
}
