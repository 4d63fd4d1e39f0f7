package boards

import (
	"fmt"
	"slices"
	"strings"
)

// Flash is one NOR flash chip, and how it is divided.
type Flash struct {
	Name string `json:"name"`
	// Size is that of the chip, in bytes.
	Size Hex `json:"size"`
	// EraseBlock is what partitions are aligned to, in bytes. The kernel may
	// erase smaller units where the chip can.
	EraseBlock Hex `json:"erase_block"`
	// Node is the chip's node of the device tree. It needs one to be divided.
	Node string `json:"node,omitempty"`
	// Partitions lie in the order of their offsets. The kernel numbers them in
	// this order: the first of the first chip is /dev/mtd0.
	Partitions []Partition `json:"partitions,omitempty"`
}

// Partition is a named part of a flash chip.
type Partition struct {
	Name   string `json:"name"`   // as /sys/class/mtd/mtdN/name has it
	Offset Hex    `json:"offset"` // bytes from the chip's start
	Size   Hex    `json:"size"`   // bytes
}

// Names of the partitions that hold a FIT image each.
const (
	BankA = "bank-a"
	BankB = "bank-b"
)

// Partition finds the partition called name, and the chip it is on.
func (b *Board) Partition(name string) (p Partition, chip Flash, ok bool) {
	for _, f := range b.Flash {
		for _, p := range f.Partitions {
			if p.Name == name {
				return p, f, true
			}
		}
	}
	return Partition{}, Flash{}, false
}

// BankSize is what a FIT image may have at most, in bytes; 0 where the board
// has no bank for it.
func (b *Board) BankSize() int64 {
	p, _, _ := b.Partition(BankA) // checkFlash: the other is as large
	return int64(p.Size)
}

// FlashEdits are the edits of the device tree that divide the chips.
func (b *Board) FlashEdits() []DTBEdit {
	const why = "the board's own partitions, in the place of the tree's"
	var edits []DTBEdit
	for _, f := range b.Flash {
		if len(f.Partitions) == 0 {
			continue
		}
		all := f.Node + "/partitions"
		edits = append(edits,
			DTBEdit{Why: why, Node: all, Remove: true},
			DTBEdit{Why: why, Node: all, Create: true, Property: "compatible", Type: "s", Values: []string{"fixed-partitions"}},
			DTBEdit{Why: why, Node: all, Property: "#address-cells", Type: "u", Values: []string{"1"}},
			DTBEdit{Why: why, Node: all, Property: "#size-cells", Type: "u", Values: []string{"1"}})
		// fdtput(1) puts a new node before those that are there; the kernel
		// numbers partitions in the order of the nodes.
		for _, p := range slices.Backward(f.Partitions) {
			node := fmt.Sprintf("%s/partition@%x", all, uint64(p.Offset))
			edits = append(edits,
				DTBEdit{Why: why, Node: node, Create: true, Property: "label", Type: "s", Values: []string{p.Name}},
				DTBEdit{Why: why, Node: node, Property: "reg", Type: "x", Values: []string{fmt.Sprintf("%x", uint64(p.Offset)), fmt.Sprintf("%x", uint64(p.Size))}})
		}
	}
	return edits
}

// maxFlash is what two cells of 32 bits can address, in bytes.
const maxFlash = 1 << 31

func (b *Board) checkFlash(wrong func(format string, args ...any)) {
	chips := map[string]bool{}
	parts := map[string]Partition{}
	for i, f := range b.Flash {
		key := fmt.Sprintf("flash[%d]", i)
		if !word.MatchString(f.Name) {
			wrong("%s.name: %q is not a name", key, f.Name)
		}
		if chips[f.Name] {
			wrong("%s.name: %s is named twice", key, f.Name)
		}
		chips[f.Name] = true
		if f.EraseBlock == 0 || f.EraseBlock&(f.EraseBlock-1) != 0 {
			wrong("%s.erase_block: %#x is not a power of two", key, uint64(f.EraseBlock))
			continue
		}
		if f.Size == 0 || f.Size%f.EraseBlock != 0 || f.Size > maxFlash {
			wrong("%s.size: %#x is not a number of erase blocks of %#x, or over %#x", key, uint64(f.Size), uint64(f.EraseBlock), maxFlash)
			continue
		}
		if len(f.Partitions) > 0 && (!strings.HasPrefix(f.Node, "/") || b.Kernel.DTB == "") {
			wrong("%s.node: %q is not a node of a device tree, which tells the kernel the partitions", key, f.Node)
		}
		end, last := Hex(0), "the chip's start"
		for j, p := range f.Partitions {
			at := fmt.Sprintf("%s.partitions[%d]", key, j)
			if !word.MatchString(p.Name) {
				wrong("%s.name: %q is not a name", at, p.Name)
			}
			if _, ok := parts[p.Name]; ok {
				wrong("%s.name: %s is named twice", at, p.Name)
			}
			parts[p.Name] = p
			switch {
			case p.Offset%f.EraseBlock != 0:
				wrong("%s.offset: %#x is not at the start of an erase block of %#x", at, uint64(p.Offset), uint64(f.EraseBlock))
			case p.Size == 0 || p.Size%f.EraseBlock != 0:
				wrong("%s.size: %#x is not a number of erase blocks of %#x", at, uint64(p.Size), uint64(f.EraseBlock))
			case p.Offset < end:
				wrong("%s.offset: %#x lies in what is before it: %s ends at %#x", at, uint64(p.Offset), last, uint64(end))
			case p.Offset >= f.Size || p.Size > f.Size-p.Offset:
				wrong("%s.size: %s ends behind the chip's end at %#x", at, p.Name, uint64(f.Size))
			default:
				end, last = p.Offset+p.Size, p.Name
			}
		}
	}
	if a, z := parts[BankA], parts[BankB]; a.Size != z.Size {
		// What fits into one bank must fit into the other.
		wrong("flash: %s has %#x bytes and %s %#x; want both, of one size", BankA, uint64(a.Size), BankB, uint64(z.Size))
	}
	drives := map[int]bool{}
	for i, d := range b.QEMU.Flash {
		if !chips[d.Name] {
			wrong("qemu.flash[%d].name: the board has no flash %q", i, d.Name)
		}
		if drives[d.Index] || d.Index < 0 {
			wrong("qemu.flash[%d].index: %d is negative or there twice", i, d.Index)
		}
		drives[d.Index] = true
	}
}
