//go:build figures

package figures

import (
	"os"
	"os/exec"
	"path/filepath"
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
	run(nil, "run", "./images/mkimage", "-board", "ast2600-evb")
	n := size(filepath.Join(root, "build/images/ast2600-evb/initramfs.cpio.xz"))
	figure("initramfs_xz_bytes", n, "bytes, board ast2600-evb")
	if n > imageLimit {
		t.Errorf("the image takes %d bytes; want at most %d", n, imageLimit)
	}
}
