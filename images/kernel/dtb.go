package kernel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// DTB returns the device tree called name.
func (p *Package) DTB(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(p.Dir, "usr", "lib", p.Name, name))
}

// Kernel returns the kernel as Debian packs it: a zImage for 32-bit ARM, a
// bzImage for x86, an Image that is not compressed for arm64.
func (p *Package) Kernel() ([]byte, error) {
	return os.ReadFile(filepath.Join(p.Dir, "boot", "vmlinuz-"+p.Release))
}

// CreateNode makes a node, and its parents, in the device tree in file.
func CreateNode(ctx context.Context, file, node string) error {
	if _, err := run(ctx, "", "fdtput", "-c", "-p", file, node); err != nil {
		return fmt.Errorf("node %s: %w", node, err)
	}
	return nil
}

// RemoveNode removes a node with all that is in it from the device tree in
// file. A node that is not there is no error.
func RemoveNode(ctx context.Context, file, node string) error {
	// fdtget(1) cannot ask for a node as such, but lists what it has.
	if _, err := run(ctx, "", "fdtget", "-p", file, node); err != nil {
		if strings.Contains(err.Error(), "FDT_ERR_NOTFOUND") {
			return nil
		}
		return fmt.Errorf("node %s: %w", node, err)
	}
	if _, err := run(ctx, "", "fdtput", "-r", file, node); err != nil {
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
