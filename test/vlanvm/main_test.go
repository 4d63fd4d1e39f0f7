//go:build vm

package vlanvm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain is the first process: it makes the machine usable, runs the tests,
// and switches the machine off. What it says last is how they ended.
func TestMain(m *testing.M) {
	if os.Getpid() != 1 {
		fmt.Println("this is the first process of a VM: go test -tags e2e -run VLAN ./test/e2e runs it")
		os.Exit(1)
	}
	code := 1
	if err := prepare(); err != nil {
		fmt.Println("prepare:", err)
	} else {
		code = m.Run()
	}
	fmt.Printf("vlanvm ended with %d\n", code)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

func prepare() error {
	for _, fs := range []struct{ kind, on string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}} {
		if err := os.MkdirAll(fs.on, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(fs.kind, fs.on, fs.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", fs.on, err)
		}
	}
	modules, err := filepath.Glob("/test/modules/*.ko")
	if err != nil {
		return err
	}
	slices.Sort(modules) // each after what it needs
	for _, name := range modules {
		data, err := os.ReadFile(name)
		if err == nil {
			err = unix.InitModule(data, "")
		}
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("module %s: %w", name, err)
		}
	}
	// What the kernel sends by itself is not what is counted here.
	return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1\n"), 0o644)
}
