// Package config reads the agent's configuration (docs/configuration.md), says
// what differs between two of them, and packs its text for the store.
//
// All of it is pure: it opens nothing and asks nobody. All that is wrong is
// reported at once, each with its key and line.
package config

import (
	"fmt"
	"strings"
	"time"

	"baton/mgmt/internal/strict"
)

// Config is a configuration that has been validated.
type Config struct {
	Enclosure string            `json:"enclosure" strict:"required"`
	Simulated bool              `json:"simulated"` // buses may be those of the simulator; shown in every status
	RunDir    string            `json:"run_dir"`   // on a file system that power loss empties
	Socket    string            `json:"socket"`
	Buses     map[string]string `json:"buses"` // name -> /dev/i2c-N, unix:PATH, tcp:HOST:PORT
	Store     Store             `json:"store" strict:"required"`
	Slots     []Slot            `json:"slots" strict:"required"`
	Hosts     []Host            `json:"hosts"` // none: a board's seed, which knows its slots only
	VMs       []VM              `json:"vms"`
	Network   *Network          `json:"network"` // the controller's own; nil = not ours to set
	Switch    *Switch           `json:"switch"`  // that the slots' ports are of; nil = not ours to set

	doc  *strict.Doc
	size int // bytes of the text, packed
}

// Store is where the agent keeps what must survive a power cut. One of Bus,
// File and Slot is set.
type Store struct {
	// An EEPROM of its own.
	Bus     string  `json:"bus"`
	Address Address `json:"address"`
	Part    string  `json:"part"`

	// A file, for boards that have a partition, and for the simulator.
	File string `json:"file"`
	Page int    `json:"page"` // bytes

	// A section of the EEPROM of this slot's engine.
	Slot   string `json:"slot"`
	Offset int64  `json:"offset"` // bytes

	Size        int64 `json:"size"`         // bytes, of the file or the section
	FormatBlank bool  `json:"format_blank"` // format a medium that is all 0xFF or all 0x00, or a file that does not exist
	Config      bool  `json:"config"`       // changes of the configuration are kept here, the file is only what the agent begins with
}

// Slot is one device position.
type Slot struct {
	Name    string  `json:"name" strict:"required"`
	Bus     string  `json:"bus" strict:"required"`
	Address Address `json:"address"` // of the engine's registers; 0 = the profile has none
	Profile string  `json:"profile" strict:"required"`
	MAC     MAC     `json:"mac"`    // that the engine must have; zero = any
	Serial  Serial  `json:"serial"` // that the device must have; 0 = any
	EEPROM  EEPROM  `json:"eeprom" strict:"required"`
	Port    string  `json:"port"` // of the switch
	Mode    string  `json:"port_mode"`
	Reload  *Reload `json:"reload"` // for engines without LinkControl
}

// EEPROM is the chip an engine loads its config block from, on the slot's bus.
type EEPROM struct {
	Address Address `json:"address" strict:"required"`
	Part    string  `json:"part" strict:"required"`
}

// Host is one server.
type Host struct {
	Name  string `json:"name" strict:"required"`
	Group uint16 `json:"group" strict:"required"`
	MAC   MAC    `json:"mac" strict:"required"` // of its EE(Server)
}

// VM is a virtual machine that may be given slots.
type VM struct {
	Name   string   `json:"name" strict:"required"`
	UUID   UUID     `json:"uuid" strict:"required"`
	Hosts  []string `json:"hosts" strict:"required"` // that it may run on
	Slots  []string `json:"slots" strict:"required"` // that it may have
	Policy string   `json:"policy"`
}

// Defaults of keys that may be left out.
const (
	DefaultRunDir    = "/run/baton"
	DefaultPolicy    = "always"
	DefaultFileSize  = 32 << 10
	DefaultFilePage  = 64
	DefaultSocket    = "baton.sock" // in the run directory
	DefaultPulse     = time.Millisecond
	blockSize        = 64      // bytes of a config block, at the profile's offset
	maxFile          = 1 << 20 // bytes of a configuration file
	minSize, maxSize = 1 << 10, 16 << 20
	maxSlots         = 64
	maxHosts, maxVMs = 1024, 1024
	groupMin         = 16
	groupMax         = 4092
)

// Profile is what Parse must know of an engine profile.
type Profile struct {
	Registers   bool // it has registers, so the slot needs their address
	LinkControl bool // it reloads by register, so the slot needs no reload line
	BlockOffset int64
}

// Parse reads and validates a configuration. lookup finds engine profiles; if
// it is nil, what depends on them is not checked. The error is Errors.
func Parse(data []byte, lookup func(name string) (Profile, error)) (*Config, error) {
	if len(data) > maxFile {
		return nil, Errors{{Line: 1, Text: fmt.Sprintf("%d bytes, at most %d", len(data), maxFile)}}
	}
	doc, bad := strict.Parse(data)
	if bad != nil {
		return nil, Errors{Error(*bad)}
	}
	c := &Config{doc: doc}
	v := checker{c: c, lookup: lookup, unread: map[string]bool{}}
	for _, e := range doc.Decode(c) {
		v.errs = append(v.errs, Error(e))
		v.unread[e.Key] = true
	}
	c.defaults()
	if c.Store.Config {
		c.size = len(Pack(data))
	}
	v.all()
	if len(v.errs) > 0 {
		return nil, v.sorted()
	}
	return c, nil
}

func (c *Config) defaults() {
	if c.RunDir == "" {
		c.RunDir = DefaultRunDir
	}
	if c.Socket == "" {
		c.Socket = c.RunDir + "/" + DefaultSocket
	}
	if c.Store.File != "" {
		if c.Store.Size == 0 {
			c.Store.Size = DefaultFileSize
		}
		if c.Store.Page == 0 {
			c.Store.Page = DefaultFilePage
		}
	}
	for _, s := range c.Slots {
		if s.Reload != nil && s.Reload.Pulse == 0 {
			s.Reload.Pulse = Duration(DefaultPulse)
		}
	}
	c.switchDefaults()
	for i := range c.VMs {
		if c.VMs[i].Policy == "" {
			c.VMs[i].Policy = DefaultPolicy
		}
	}
}

// Errorf is an error at key, for what only the user of the configuration can
// find out.
func (c *Config) Errorf(key, format string, args ...any) Error {
	return Error{Key: key, Line: c.doc.Line(key), Text: fmt.Sprintf(format, args...)}
}

// Error is one thing that is wrong, with its key and line.
type Error strict.Error

func (e Error) Error() string { return strict.Error(e).Error() }

// Errors is all that is wrong, in the order of the file.
type Errors []Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}
