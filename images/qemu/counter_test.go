package qemu

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestCounter(t *testing.T) {
	dir := t.TempDir()
	c, err := NewCounter(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	plugin, file := filepath.Join(dir, "count.so"), filepath.Join(dir, "instructions")
	if got, want := c.Args(), []string{"-plugin", plugin + ",counters=" + file}; !slices.Equal(got, want) {
		t.Errorf("Args = %q, want %q", got, want)
	}
	if info, err := os.Stat(plugin); err != nil || info.Size() == 0 {
		t.Errorf("plugin: %v", err)
	}
	if n, err := c.Executed(); err == nil {
		t.Errorf("%d instructions before a machine ran", n)
	}
	counters := make([]byte, 64*8)
	if err := os.WriteFile(file, counters, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Executed(); err == nil {
		t.Error("a machine that executed nothing was counted")
	}
	binary.LittleEndian.PutUint64(counters, 1<<40)
	binary.LittleEndian.PutUint64(counters[63*8:], 7)
	if err := os.WriteFile(file, counters, 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Executed(); err != nil || n != 1<<40+7 {
		t.Errorf("Executed = %d, %v; want %d", n, err, 1<<40+7)
	}
}
