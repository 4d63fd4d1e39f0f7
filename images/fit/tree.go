package fit

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Tags of the structure block (Devicetree Specification 0.4, 5.4.1).
const (
	tagBegin    = 1
	tagEnd      = 2
	tagProperty = 3
	tagNop      = 4
	tagStop     = 9
)

const (
	treeMagic  = 0xd00dfeed
	headerSize = 40 // bytes (5.2)

	// mkimage makes FITs far below these.
	maxDepth      = 8
	maxNodes      = 128
	maxProperties = 1024
	maxName       = 64  // bytes
	maxText       = 256 // bytes, of a property that is a text
)

// tree is a flattened device tree.
type tree struct {
	root    *node
	size    int    // bytes
	block   []byte // the structure block
	strings []byte // the strings block
	tags    []tag
}

// tag is a tag of the structure block with what belongs to it.
type tag struct {
	kind       uint32
	start, end int // in the block
	node       *node
	property   property
}

type node struct {
	path, name string
	properties map[string]property
	children   []*node
}

type property struct {
	name    string
	nameOff uint32 // in the strings block
	value   []byte
}

// Size is the size in bytes of the FIT whose first 8 bytes or more are head. The
// error holds ErrNotFIT.
func Size(head []byte) (int, error) {
	if len(head) < 8 || binary.BigEndian.Uint32(head) != treeMagic {
		return 0, fmt.Errorf("%w: no device tree", ErrNotFIT)
	}
	size := binary.BigEndian.Uint32(head[4:])
	if size < headerSize || size > MaxSize {
		return 0, fmt.Errorf("%w: a size of %d bytes, want %d to %d", ErrNotFIT, size, headerSize, MaxSize)
	}
	return int(size), nil
}

func parseTree(data []byte) (*tree, error) {
	size, err := Size(data)
	if err != nil {
		return nil, err
	}
	if len(data) < size {
		return nil, fmt.Errorf("%w: %d bytes of %d", ErrTruncated, len(data), size)
	}
	data = data[:size:size]
	word := func(at int) uint32 { return binary.BigEndian.Uint32(data[at:]) }
	if version, compatible := word(20), word(24); version < 17 || compatible > 17 {
		return nil, malformed("version %d of the format, readable as %d; want 17", version, compatible)
	}
	part := func(what string, at, length uint32) ([]byte, error) {
		if at < headerSize || uint64(at)+uint64(length) > uint64(size) {
			return nil, malformed("%s of %d bytes at %d lies outside of %d bytes", what, length, at, size)
		}
		return data[at : at+length], nil
	}
	t := &tree{size: size}
	if t.block, err = part("structure", word(8), word(36)); err != nil {
		return nil, err
	}
	if t.strings, err = part("strings", word(12), word(32)); err != nil {
		return nil, err
	}
	if word(8)%4 != 0 || len(t.block)%4 != 0 {
		return nil, malformed("structure of %d bytes at %d: not aligned", len(t.block), word(8))
	}
	return t, t.walk()
}

// walk reads the structure block. A node and a property of a node exist once.
func (t *tree) walk() error {
	var stack []*node
	nodes, properties := 0, 0
	for at := 0; ; {
		g := tag{start: at}
		rest := t.block[at:]
		if len(rest) < 4 {
			return malformed("structure ends without an end tag")
		}
		g.kind = binary.BigEndian.Uint32(rest)
		rest = rest[4:]
		at += 4
		switch g.kind {
		case tagBegin:
			name, ok := cString(rest, maxName)
			if !ok {
				return malformed("structure at %d: a name without an end", at)
			}
			at += align(len(name) + 1)
			if nodes++; nodes > maxNodes || len(stack) == maxDepth {
				return malformed("over %d nodes, or more than %d deep", maxNodes, maxDepth)
			}
			n := &node{name: name, properties: map[string]property{}}
			switch {
			case len(stack) > 0:
				up := stack[len(stack)-1]
				if name == "" || bytes.ContainsAny([]byte(name), "/@") {
					// U-Boot has taken a name with an @ for the one before it
					// (CVE-2021-27138).
					return malformed("%s: a node called %q in it", up.path, name)
				}
				if up.child(name) != nil {
					return malformed("%s: two nodes %s", up.path, name)
				}
				up.children = append(up.children, n)
				n.path = up.path + "/" + name
				if up == t.root {
					n.path = "/" + name
				}
			case t.root != nil || name != "":
				return malformed("two roots, or one with a name")
			default:
				t.root = n
				n.path = "/"
			}
			stack = append(stack, n)
			g.node = n
		case tagEnd:
			if len(stack) == 0 {
				return malformed("structure at %d: the end of no node", at)
			}
			g.node = stack[len(stack)-1]
			stack = stack[:len(stack)-1]
		case tagProperty:
			if properties++; properties > maxProperties || len(stack) == 0 {
				return malformed("over %d properties, or one outside of a node", maxProperties)
			}
			if len(rest) < 8 {
				return malformed("structure at %d: a property cut off", at)
			}
			length, off := binary.BigEndian.Uint32(rest), binary.BigEndian.Uint32(rest[4:])
			if uint64(length) > uint64(len(rest)-8) {
				return malformed("structure at %d: a property of %d bytes, %d are left", at, length, len(rest)-8)
			}
			if uint64(off) >= uint64(len(t.strings)) {
				return malformed("structure at %d: a property whose name is at %d of %d bytes", at, off, len(t.strings))
			}
			name, ok := cString(t.strings[off:], maxName)
			if !ok || name == "" {
				return malformed("strings at %d: a name that is empty or has no end", off)
			}
			g.node = stack[len(stack)-1]
			g.property = property{name, off, rest[8 : 8+length]}
			if _, twice := g.node.properties[name]; twice {
				return malformed("%s: two properties %s", g.node.path, name)
			}
			g.node.properties[name] = g.property
			at += 8 + align(int(length))
		case tagNop:
			if len(stack) > 0 {
				g.node = stack[len(stack)-1]
			}
		case tagStop:
			if len(stack) > 0 || t.root == nil || at != len(t.block) {
				return malformed("structure at %d: an end tag before the end", at)
			}
		default:
			return malformed("structure at %d: tag %#x", g.start, g.kind)
		}
		if at > len(t.block) {
			return malformed("structure ends in the middle of a tag")
		}
		g.end = at
		t.tags = append(t.tags, g)
		if len(t.tags) > 4*maxProperties {
			return malformed("over %d tags", 4*maxProperties)
		}
		if g.kind == tagStop {
			return nil
		}
	}
}

func (n *node) child(name string) *node {
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	return nil
}

// text is a property that is one text; "" where it is absent.
func (n *node) text(name string) (string, error) {
	p, ok := n.properties[name]
	if !ok {
		return "", nil
	}
	s, ok := cString(p.value, maxText)
	if !ok || len(s)+1 != len(p.value) {
		return "", malformed("%s: %s is not one text of at most %d bytes", n.path, name, maxText)
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return "", malformed("%s: %s is not printable", n.path, name)
		}
	}
	return s, nil
}

// word is a property that is one cell; 0 where it is absent.
func (n *node) word(name string) (uint32, error) {
	p, ok := n.properties[name]
	if !ok {
		return 0, nil
	}
	if len(p.value) != 4 {
		return 0, malformed("%s: %s has %d bytes, want 4", n.path, name, len(p.value))
	}
	return binary.BigEndian.Uint32(p.value), nil
}

// cString is the text before the first zero byte of p, of at most most bytes.
func cString(p []byte, most int) (string, bool) {
	i := bytes.IndexByte(p[:min(len(p), most+1)], 0)
	if i < 0 {
		return "", false
	}
	return string(p[:i]), true
}

func align(n int) int { return (n + 3) &^ 3 }
