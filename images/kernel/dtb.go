package kernel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// DTB returns the device tree called name.
func (p *Package) DTB(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(p.Dir, "usr", "lib", p.Name, name))
}

// ZImage returns the kernel as Debian packs it.
func (p *Package) ZImage() ([]byte, error) {
	return os.ReadFile(filepath.Join(p.Dir, "boot", "vmlinuz-"+p.Release))
}

// CreateNode makes a node, and its parents, in the device tree in file.
func CreateNode(ctx context.Context, file, node string) error {
	if _, err := run(ctx, "", "fdtput", "-c", "-p", file, node); err != nil {
		return fmt.Errorf("node %s: %w", node, err)
	}
	return nil
}

// SetProperty sets a property of a node that exists in the device tree in
// file. The kind of the values is as in fdtput(1), -t.
func SetProperty(ctx context.Context, file, node, property, kind string, values ...string) error {
	args := append([]string{"-t", kind, file, node, property}, values...)
	if _, err := run(ctx, "", "fdtput", args...); err != nil {
		return fmt.Errorf("property %s of %s: %w", property, node, err)
	}
	return nil
}
