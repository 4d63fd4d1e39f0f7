package qemu

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed count/count.c
var countSource []byte

// Counter counts the instructions that a machine executes: the same on a busy
// machine and on an idle one, and without what emulation itself takes, which is
// most of the time where code runs for the first time. It knows no waiting.
type Counter struct{ plugin, file string }

// NewCounter builds the plugin that counts, with the machine's C compiler, into
// the folder dir.
func NewCounter(ctx context.Context, dir string) (*Counter, error) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		return nil, fmt.Errorf("%w; on Debian: apt-get install --no-install-recommends gcc libc6-dev", err)
	}
	c := &Counter{plugin: filepath.Join(dir, "count.so"), file: filepath.Join(dir, "instructions")}
	source := filepath.Join(dir, "count.c")
	if err := os.WriteFile(source, countSource, 0o644); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, cc, "-std=c99", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-o", c.plugin, source).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("building %s: %w\n%s", c.plugin, err, out)
	}
	return c, nil
}

// Args are QEMU's arguments that make it count. One machine at a time does.
func (c *Counter) Args() []string {
	return []string{"-plugin", c.plugin + ",counters=" + c.file}
}

// Executed is how many instructions all processors of the machine that runs, or
// ran last, have executed since QEMU was started.
func (c *Counter) Executed() (uint64, error) {
	text, err := os.ReadFile(c.file)
	if err != nil {
		return 0, err
	}
	var n uint64
	for len(text) >= 8 {
		n += binary.LittleEndian.Uint64(text)
		text = text[8:]
	}
	if n == 0 {
		return 0, fmt.Errorf("%s: nothing was counted", c.file)
	}
	return n, nil
}
