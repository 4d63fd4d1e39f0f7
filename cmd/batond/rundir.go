package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"baton/mgmt/config"
)

// runDir is the directory that an agent has to itself while it runs.
type runDir struct {
	lock *os.File
	path string // of the marker
	id   string // what the marker has to say
	// sameBoot tells that an agent with this store has already run since the
	// controller had power, so that no write cycle can have been cut short.
	sameBoot bool
}

// openRunDir makes the directory if it is missing, and takes it. It fails
// where another agent has it.
func openRunDir(c *config.Config) (*runDir, error) {
	if err := os.MkdirAll(c.RunDir, 0o755); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(c.RunDir, "batond.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another batond runs in %s", c.RunDir)
		}
		return nil, fmt.Errorf("run directory: lock: %w", err)
	}
	d := &runDir{lock: lock, path: filepath.Join(c.RunDir, "batond.started"), id: markerOf(c)}
	was, err := os.ReadFile(d.path)
	d.sameBoot = err == nil && string(was) == d.id
	return d, nil
}

// markerOf names this boot and this store. The boot ID is there in case that
// the directory is not on a file system which power loss empties.
func markerOf(c *config.Config) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		boot = []byte("unknown") // the directory has to do
	}
	s := c.Store
	return fmt.Sprintf("boot %s\nstore %s %s %s%s%s %s+%d\n", strings.TrimSpace(string(boot)), c.Buses[s.Bus], s.Address, s.SPI, s.MTD, s.File, s.Slot, s.Offset)
}

// mark says, to the next agent, that one has run: the store was mounted, and
// what was torn in it has been rewritten.
func (d *runDir) mark() error {
	tmp := d.path + ".new"
	if err := os.WriteFile(tmp, []byte(d.id), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, d.path)
}

// close lets the directory go; the marker stays.
func (d *runDir) close() { d.lock.Close() }
