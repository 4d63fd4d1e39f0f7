package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"baton/sim"
)

// chips keeps what the EEPROMs of a world hold in files, DIR/CHIP.bin, the
// bytes of the part from offset 0. Bytes that read differently each time are
// kept as one of their readings.
type chips struct {
	dir string // "" = nowhere
	w   *sim.World

	mu     sync.Mutex
	saved  map[string][]byte
	writes map[string]uint64
}

// load puts the files that are there into s, which has its defaults.
func (c *chips) load(s *sim.Spec) error {
	c.saved, c.writes = map[string][]byte{}, map[string]uint64{}
	if c.dir == "" {
		return nil
	}
	for i := range s.Chips {
		chip := &s.Chips[i]
		image, err := os.ReadFile(c.path(chip.Name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if size := sim.Parts[chip.Part].Size; int64(len(image)) != size {
			return fmt.Errorf("%s has %d bytes, a %s has %d", c.path(chip.Name), len(image), chip.Part, size)
		}
		chip.Image = image
		for k := range s.Slots {
			if s.Slots[k].Chip == chip.Name {
				s.Slots[k].Block = nil // only for a chip that is new
			}
		}
	}
	return nil
}

func (c *chips) path(name string) string { return filepath.Join(c.dir, name+".bin") }

// save writes the files of the chips that have changed.
func (c *chips) save() error {
	if c.dir == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.w.Spec().Chips {
		if err := c.saveOne(s.Name); err != nil {
			return err
		}
	}
	return nil
}

// saveWritten is save for the chips that began a write cycle since.
func (c *chips) saveWritten() error {
	if c.dir == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.w.Spec().Chips {
		if n := c.w.PageWrites(s.Name); n != c.writes[s.Name] {
			c.writes[s.Name] = n
			if err := c.saveOne(s.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// saveOne replaces the file as a whole: tearing is for the model to do, not
// for who kills the simulator.
func (c *chips) saveOne(name string) error {
	image := c.w.Chip(name).Image()
	if bytes.Equal(image, c.saved[name]) {
		return nil
	}
	tmp := c.path(name) + ".new"
	if err := os.WriteFile(tmp, image, 0o600); err != nil {
		return err
	}
	if err := os.Rename(tmp, c.path(name)); err != nil {
		return err
	}
	c.saved[name] = image
	return nil
}
