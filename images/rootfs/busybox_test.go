package rootfs

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestBusybox builds a command that imports packages of ours, one of them with
// embedded files, for this machine and runs it.
func TestBusybox(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a binary")
	}
	b := Busybox{
		GOARCH:   runtime.GOARCH,
		Commands: []string{"baton/images/runboard", "baton/images/cmds/reboot"},
	}
	file := filepath.Join(t.TempDir(), "bb")
	if err := b.Build(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), b.Names()[0])
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(link, "-board", "commodore64").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "ast2600-evb, ") {
		t.Errorf("runboard in the busybox: %v, %q; want the boards it has embedded named", err, out)
	}
}

func TestBusyboxUnknownCommand(t *testing.T) {
	b := Busybox{GOARCH: runtime.GOARCH, Commands: []string{"baton/images/nosuch"}}
	err := b.Build(t.Context(), filepath.Join(t.TempDir(), "bb"))
	if err == nil || !strings.Contains(err.Error(), "nosuch") {
		t.Errorf("error %v; want the command named", err)
	}
}
