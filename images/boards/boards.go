// Package boards holds what Baton knows of each controller board. A board is a
// directory of data: a new board is a directory and no code.
package boards

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
)

//go:embed */*.json
var builtin embed.FS

// Board is board.json of a board's directory.
type Board struct {
	// Name is the name of the directory.
	Name string `json:"-"`
	// About is one line for people.
	About string `json:"about"`
	// GOARCH and GOARM are what the Go compiler is told.
	GOARCH string `json:"goarch"`
	GOARM  string `json:"goarm,omitempty"`
	Kernel Kernel `json:"kernel"`
	// Console is the kernel's name of the serial port, and Baud its speed.
	Console string `json:"console"`
	Baud    int    `json:"baud"`
	// Cmdline is added to the kernel's command line after console=.
	Cmdline []string `json:"cmdline,omitempty"`
	// Modules are loaded at boot in this order. What they depend on is found
	// in the modules themselves and is loaded before them; an order between
	// modules that do not name each other has to be said here.
	Modules []Module `json:"modules"`
	// XZ are the filters given to xz(1) for the root file system. The kernel
	// must have them built in.
	XZ []string `json:"xz"`
	// Tags are build tags of the commands: goshsmall leaves out the line
	// editors of the shell that draw on the whole screen, board what baton has
	// for servers, nethttpomithttp2 the HTTP/2 that nobody speaks here.
	Tags []string `json:"tags"`
	// Commands are the Go commands of the root file system, by import path.
	Commands []string `json:"commands"`
	// Files of the board's directory that go into the root file system, by
	// their path there.
	Files map[string]string `json:"files,omitempty"`
	// Flash are the NOR flash chips that the kernel drives through its MTD
	// layer. The device tree gets their partitions from here.
	Flash []Flash `json:"flash,omitempty"`
	// QEMU says how the board is emulated.
	QEMU QEMU `json:"qemu"`

	dir fs.FS
}

// Kernel says which kernel of Debian's the board boots.
type Kernel struct {
	// Arch is Debian's name of the architecture.
	Arch string `json:"arch"`
	// Package is the package, or one without files that depends on it.
	Package string `json:"package"`
	// RAM is where the board's memory begins. It is needed for 32-bit ARM, where
	// the kernel that QEMU gets says where it wants to be loaded.
	RAM Hex `json:"ram,omitempty"`
	// Load is where a boot loader puts the kernel that it takes out of a FIT
	// image, and jumps to.
	Load Hex `json:"load,omitempty"`
	// DTB is the device tree, a file of the package. Boards whose firmware or
	// emulator brings its own description of the hardware have none.
	DTB string `json:"dtb,omitempty"`
	// DTBEdits are made to it, in this order.
	DTBEdits []DTBEdit `json:"dtb_edits,omitempty"`
}

// DTBEdit sets one property of a device tree, makes a node, or removes one.
type DTBEdit struct {
	Why      string   `json:"why"`
	Node     string   `json:"node"`
	Create   bool     `json:"create,omitempty"`
	Remove   bool     `json:"remove,omitempty"` // with all in it; nothing to do where it is absent
	Property string   `json:"property,omitempty"`
	Type     string   `json:"type,omitempty"` // as fdtput(1) -t: s, i, u, x, bx
	Values   []string `json:"values,omitempty"`
}

// Module is one kernel module.
type Module struct {
	Name   string `json:"name"`
	Params string `json:"params,omitempty"`
	// Late modules are loaded when batond has been started: what it can do
	// without at first must not keep it waiting.
	Late bool   `json:"late,omitempty"`
	Why  string `json:"why,omitempty"`
}

// QEMU says how QEMU emulates the board.
type QEMU struct {
	Command string `json:"command"`
	// DebianPackage is where Command comes from.
	DebianPackage string `json:"debian_package"`
	Machine       string `json:"machine"`
	// MachineOptions are put behind the machine's name: fmc-model=w25q256.
	MachineOptions []string `json:"machine_options,omitempty"`
	Args           []string `json:"args,omitempty"`
	EEPROMs        []EEPROM `json:"eeproms,omitempty"`
	// Flash are the chips of the board's Flash that QEMU emulates.
	Flash []FlashDrive `json:"flash,omitempty"`
}

// FlashDrive says which of QEMU's MTD drives is a flash chip of the board.
type FlashDrive struct {
	Name  string `json:"name"`  // of the Flash, and of the file: Name.flash
	Index int    `json:"index"` // of -drive if=mtd
}

// EEPROM is a 24xx that QEMU emulates, and that keeps its content in a file.
type EEPROM struct {
	Name    string `json:"name"`    // of the file: Name.eeprom
	Bus     string `json:"bus"`     // as QEMU calls it
	Address Hex    `json:"address"` // on the bus, 7 bits
	Size    int    `json:"size"`    // bytes, a multiple of 512
}

// Hex is a number that JSON holds as "0x50".
type Hex uint64

// UnmarshalJSON reads "0x50".
func (h *Hex) UnmarshalJSON(p []byte) error {
	var s string
	if err := json.Unmarshal(p, &s); err != nil {
		return err
	}
	if _, err := fmt.Sscanf(s, "0x%x", (*uint64)(h)); err != nil || fmt.Sprintf("%#x", uint64(*h)) != strings.ToLower(s) {
		return fmt.Errorf("%q is not a number like \"0x50\"", s)
	}
	return nil
}

// Names lists the boards that come with Baton.
func Names() []string {
	var names []string
	dirs, err := builtin.ReadDir(".")
	if err != nil {
		return nil // an embedded directory is always readable
	}
	for _, d := range dirs {
		names = append(names, d.Name())
	}
	sort.Strings(names)
	return names
}

// Load reads a board by its name, or by the path of its directory where name
// has a slash. It reports everything that is wrong with it.
func Load(name string) (*Board, error) {
	var dir fs.FS
	if strings.Contains(name, "/") {
		dir = os.DirFS(name)
		name = filepath.Base(filepath.Clean(name))
	} else {
		sub, err := fs.Sub(builtin, name)
		if err == nil {
			_, err = fs.Stat(sub, "board.json")
		}
		if err != nil {
			return nil, fmt.Errorf("board %q is not known: want one of %s, or a directory such as ./%s",
				name, strings.Join(Names(), ", "), name)
		}
		dir = sub
	}
	return load(name, dir)
}

func load(name string, dir fs.FS) (*Board, error) {
	text, err := fs.ReadFile(dir, "board.json")
	if err != nil {
		return nil, fmt.Errorf("board %q: %w", name, err)
	}
	b := &Board{Name: name, dir: dir}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(b); err != nil {
		return nil, fmt.Errorf("board %q: board.json: %w", name, err)
	}
	if err := b.check(); err != nil {
		return nil, fmt.Errorf("board %q: board.json: %w", name, err)
	}
	return b, nil
}

// KernelFile is the name that the kernel as QEMU takes it has in the image's
// folder. QEMU unpacks no zImage, and starts an unpacked kernel sooner.
func (b *Board) KernelFile() string {
	if b.GOARCH == "arm" {
		return "uImage"
	}
	return "vmlinuz"
}

// DTBFile and InitrdFile are the names that the device tree, where the board
// has one, and the root file system have there.
const (
	DTBFile    = "board.dtb"
	InitrdFile = "initramfs.cpio.xz"
)

// BootFiles are the files that a start of the board needs.
func (b *Board) BootFiles() []string {
	if b.Kernel.DTB == "" {
		return []string{b.KernelFile(), InitrdFile}
	}
	return []string{b.KernelFile(), DTBFile, InitrdFile}
}

// ReadFile reads a file of the board's directory.
func (b *Board) ReadFile(name string) ([]byte, error) {
	return fs.ReadFile(b.dir, name)
}

// KernelCmdline is the kernel's command line.
func (b *Board) KernelCmdline() string {
	return strings.Join(append([]string{fmt.Sprintf("console=%s,%dn8", b.Console, b.Baud)}, b.Cmdline...), " ")
}

var word = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func (b *Board) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, f := range []struct{ key, value string }{
		{"(directory)", b.Name},
		{"goarch", b.GOARCH},
		{"kernel.arch", b.Kernel.Arch},
		{"kernel.package", b.Kernel.Package},
		{"console", b.Console},
		{"qemu.command", b.QEMU.Command},
		{"qemu.debian_package", b.QEMU.DebianPackage},
		{"qemu.machine", b.QEMU.Machine},
	} {
		if !word.MatchString(f.value) {
			wrong("%s: %q is not a name", f.key, f.value)
		}
	}
	if b.Kernel.DTB != "" && !fs.ValidPath(b.Kernel.DTB) {
		wrong("kernel.dtb: %q is not a relative path", b.Kernel.DTB)
	}
	if b.Kernel.DTB == "" && len(b.Kernel.DTBEdits) > 0 {
		wrong("kernel.dtb_edits: there is no kernel.dtb to edit")
	}
	if b.GOARCH == "arm" && b.Kernel.RAM == 0 {
		wrong("kernel.ram: missing, goarch arm needs it")
	}
	if b.Baud <= 0 {
		wrong("baud: %d is not a speed", b.Baud)
	}
	if len(b.XZ) == 0 {
		wrong("xz: no filter given")
	}
	if len(b.Commands) == 0 {
		wrong("commands: none given")
	}
	seen := map[string]bool{}
	for i, m := range b.Modules {
		if !word.MatchString(m.Name) {
			wrong("modules[%d].name: %q is not a name", i, m.Name)
		}
		if seen[m.Name] {
			wrong("modules[%d].name: %s is named twice", i, m.Name)
		}
		seen[m.Name] = true
	}
	for i, e := range b.Kernel.DTBEdits {
		switch {
		case !strings.HasPrefix(e.Node, "/"):
			wrong("kernel.dtb_edits[%d].node: %q is not a path", i, e.Node)
		case e.Remove && (e.Create || e.Property != ""):
			wrong("kernel.dtb_edits[%d]: removes a node and does something else to it", i)
		case e.Property == "" && !e.Create && !e.Remove:
			wrong("kernel.dtb_edits[%d]: neither creates or removes a node nor sets a property", i)
		case e.Property != "" && e.Type == "":
			wrong("kernel.dtb_edits[%d].type: missing", i)
		}
	}
	for to, from := range b.Files {
		if !fs.ValidPath(to) || !fs.ValidPath(from) {
			wrong("files: %q: %q is not a pair of relative paths", to, from)
		} else if _, err := fs.Stat(b.dir, from); err != nil {
			wrong("files: %w", err)
		}
	}
	for i, e := range b.QEMU.EEPROMs {
		if !word.MatchString(e.Name) {
			wrong("qemu.eeproms[%d].name: %q is not a name", i, e.Name)
		}
		if seen["eeprom "+e.Name] {
			wrong("qemu.eeproms[%d].name: %s is named twice", i, e.Name)
		}
		seen["eeprom "+e.Name] = true
		if e.Address < 0x08 || e.Address > 0x77 {
			wrong("qemu.eeproms[%d].address: %#x is not between 0x8 and 0x77", i, uint64(e.Address))
		}
		if e.Size <= 0 || e.Size%512 != 0 {
			// QEMU's block layer counts sectors of 512 bytes.
			wrong("qemu.eeproms[%d].size: %d is not a multiple of 512", i, e.Size)
		}
	}
	b.checkFlash(wrong)
	for i, o := range b.QEMU.MachineOptions {
		if k, v, ok := strings.Cut(o, "="); !ok || !word.MatchString(k) || !word.MatchString(v) {
			wrong("qemu.machine_options[%d]: %q is not KEY=VALUE", i, o)
		}
	}
	return errors.Join(errs...)
}
