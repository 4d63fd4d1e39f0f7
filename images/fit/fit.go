// Package fit reads FIT images: a kernel, a device tree and a root file system
// in one file, with hashes and a signature, as U-Boot boots them. It is pure:
// it opens nothing.
//
// A FIT is a flattened device tree (Devicetree Specification 0.4, chapter 5)
// with the nodes /images and /configurations (U-Boot 2023.01, doc/uImage.FIT/
// source_file_format.txt and signature.txt).
//
// It is stricter than U-Boot where a FIT leaves room for tricks: one
// configuration, data inside of the tree, SHA-256, no name twice, and a
// signature that covers exactly the nodes that are used.
package fit

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
)

// Image is a FIT whose hashes are right. Whether it may be used, Verify and
// CheckBoard say.
type Image struct {
	// Description, Board and Version are those of the configuration. Board is
	// the name of what it was built for.
	Description, Board, Version string
	// Size is that of the FIT, in bytes; what follows it is not part of it.
	Size int
	// Kernel, FDT (the device tree) and Ramdisk are what is booted; FDT is nil
	// where the board needs none.
	Kernel, FDT, Ramdisk *Part

	tree   *tree
	config *node
	used   []string // paths of the nodes that a signature has to cover
}

// Part is one file of an Image.
type Part struct {
	Name        string
	Type        string // kernel, flat_dt, ramdisk
	Arch        string // arm, arm64, x86_64
	Compression string // of what U-Boot unpacks: none, gzip
	Load, Entry uint32 // addresses; 0 = the boot loader chooses
	Data        []byte // of the FIT that was parsed: not a copy
}

// Errors that are found in what the functions here return.
var (
	ErrNotFIT    = errors.New("not a FIT image")
	ErrTruncated = errors.New("image is truncated")
	ErrMalformed = errors.New("malformed FIT image")
	ErrHash      = errors.New("hash does not match: the image is damaged")
	ErrUnsigned  = errors.New("image is not signed")
	ErrSignature = errors.New("signature is not by a known key, or the image was changed after it was signed")
	ErrBoard     = errors.New("image is for another board")
)

// MaxSize is what a FIT may have at most, in bytes.
const MaxSize = 64 << 20

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// Parse reads a FIT at the start of data and checks the hashes of all that it
// boots. Bytes behind the FIT, as a flash bank has them, are ignored. The error
// holds ErrNotFIT, ErrTruncated, ErrMalformed or ErrHash.
func Parse(data []byte) (*Image, error) {
	t, err := parseTree(data)
	if err != nil {
		return nil, err
	}
	images, configs := t.root.child("images"), t.root.child("configurations")
	if images == nil || configs == nil {
		return nil, fmt.Errorf("%w: a device tree without /images and /configurations", ErrNotFIT)
	}
	if n := len(configs.children); n != 1 {
		return nil, malformed("%d configurations, want 1", n)
	}
	i := &Image{Size: t.size, tree: t, config: configs.children[0]}
	i.used = []string{t.root.path, i.config.path}
	for _, s := range []struct {
		property string
		to       *string
	}{{"description", &i.Description}, {"baton,board", &i.Board}, {"baton,version", &i.Version}} {
		if *s.to, err = i.config.text(s.property); err != nil {
			return nil, err
		}
	}
	for _, p := range []struct {
		property, kind string
		to             **Part
		need           bool
	}{{"kernel", "kernel", &i.Kernel, true}, {"fdt", "flat_dt", &i.FDT, false}, {"ramdisk", "ramdisk", &i.Ramdisk, true}} {
		name, err := i.config.text(p.property)
		if err != nil {
			return nil, err
		}
		if name == "" && !p.need {
			continue
		}
		n := images.child(name)
		if n == nil {
			return nil, malformed("%s: %s %q is not in /images", i.config.path, p.property, name)
		}
		if *p.to, err = i.part(n, p.kind); err != nil {
			return nil, err
		}
	}
	// What else a configuration can name, U-Boot would load too.
	for _, p := range []string{"loadables", "firmware", "fpga", "script", "standalone", "setup"} {
		if _, ok := i.config.properties[p]; ok {
			return nil, malformed("%s: %s is not supported", i.config.path, p)
		}
	}
	return i, nil
}

// part reads an image node and checks its hash.
func (i *Image) part(n *node, kind string) (*Part, error) {
	p := &Part{Name: n.name}
	var err error
	for _, s := range []struct {
		property string
		to       *string
	}{{"type", &p.Type}, {"arch", &p.Arch}, {"compression", &p.Compression}} {
		if *s.to, err = n.text(s.property); err != nil {
			return nil, err
		}
	}
	if p.Type != kind {
		return nil, malformed("%s: type %q, want %s", n.path, p.Type, kind)
	}
	for _, w := range []struct {
		property string
		to       *uint32
	}{{"load", &p.Load}, {"entry", &p.Entry}} {
		if *w.to, err = n.word(w.property); err != nil {
			return nil, err
		}
	}
	data, ok := n.properties["data"]
	if !ok {
		return nil, malformed("%s: no data in it; data outside of the tree is not supported", n.path)
	}
	p.Data = data.value
	i.used = append(i.used, n.path)
	hashed := false
	for _, h := range n.children {
		if !isNamed(h.name, "hash") {
			continue
		}
		i.used = append(i.used, h.path)
		algo, err := h.text("algo")
		if err != nil {
			return nil, err
		}
		if algo != "sha256" {
			continue // its value is covered by the signature, and no proof of ours
		}
		sum := sha256.Sum256(p.Data)
		if !bytes.Equal(h.properties["value"].value, sum[:]) {
			return nil, fmt.Errorf("%s, %d bytes: %w", n.path, len(p.Data), ErrHash)
		}
		hashed = true
	}
	if !hashed {
		return nil, malformed("%s: no hash with algo sha256", n.path)
	}
	return p, nil
}

// CheckBoard tells whether the image was built for board. Only of an image that
// Verify has accepted the name can be believed. The error holds ErrBoard.
func (i *Image) CheckBoard(board string) error {
	if i.Board == board {
		return nil
	}
	name := i.Board
	if name == "" {
		name = "one that it does not name"
	}
	return fmt.Errorf("%w: it was built for %s, this is %s", ErrBoard, name, board)
}

// isNamed tells whether name is kind or kind-SOMETHING, as U-Boot numbers nodes.
func isNamed(name, kind string) bool {
	return name == kind || len(name) > len(kind) && name[:len(kind)] == kind && name[len(kind)] == '-'
}
