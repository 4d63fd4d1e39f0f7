package nvmtest

import (
	"bytes"
	"errors"
	"testing"

	"baton/nvm"
)

func chip() *Chip { return NewChip(nvm.Geometry{Size: 1024, Page: 64, Erased: 0xff}, 1) }

func nor() *NOR { return NewNOR(nvm.Geometry{Size: 1024, Page: 64, Erase: 256, Erased: 0xff}, 1) }

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func TestRules(t *testing.T) {
	c, n := chip(), nor()
	if err := n.Program(bg(), []byte{0x0f}, 0); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(){
		"write across a page":   func() { c.Program(bg(), make([]byte, 2), 63) },
		"write beyond the end":  func() { c.Program(bg(), make([]byte, 1), 1024) },
		"read beyond the end":   func() { c.ReadAt(bg(), make([]byte, 2), 1023) },
		"NOR bit back to 1":     func() { n.Program(bg(), []byte{0x1f}, 0) },
		"erase within a block":  func() { n.Erase(bg(), 64) },
		"a chip with blocks":    func() { NewChip(n.Geometry(), 1) },
		"an image that is off":  func() { c.Load(make([]byte, 5)) },
		"a NOR without a block": func() { NewNOR(c.Geometry(), 1) },
	} {
		if !panics(f) {
			t.Errorf("%s: no panic", name)
		}
	}
	if err := n.Program(bg(), []byte{0x0e}, 0); err != nil || n.Image()[0] != 0x0e {
		t.Errorf("NOR bits to 0: %v, %#02x", err, n.Image()[0])
	}
	if err := n.Erase(bg(), 0); err != nil || n.Image()[0] != 0xff {
		t.Errorf("erase: %v, %#02x", err, n.Image()[0])
	}
	if n.Writes()[0] != 3 || n.Erases()[0] != 1 || n.Ops() != 4 {
		t.Errorf("writes %v, erases %v, ops %d", n.Writes(), n.Erases(), n.Ops())
	}
}

// TestTear checks that a torn page flickers until it is written again, and that
// nothing else changes.
func TestTear(t *testing.T) {
	for _, tear := range Tears {
		c := chip()
		old, new := bytes.Repeat([]byte{0x11}, 64), bytes.Repeat([]byte{0xe2}, 64)
		for p := range int64(16) {
			c.Program(bg(), old, p*64)
		}
		c.Cut(1, tear.Tear)
		c.Program(bg(), old, 0)
		err := c.Program(bg(), new, 5*64)
		if err != nil && !errors.Is(err, ErrPower) || !c.Off() {
			t.Fatalf("%s: no cut: %v", tear.Name, err)
		}
		if err := c.ReadAt(bg(), new, 0); !errors.Is(err, ErrPower) {
			t.Errorf("%s: read without power: %v", tear.Name, err)
		}
		c.PowerOn()
		seen := map[string]bool{}
		img := make([]byte, 1024)
		for range 50 {
			c.ReadAt(bg(), img, 0)
			seen[string(img[5*64:6*64])] = true
			if !bytes.Equal(img[:5*64], bytes.Repeat([]byte{0x11}, 5*64)) || !bytes.Equal(img[6*64:], bytes.Repeat([]byte{0x11}, 10*64)) {
				t.Fatalf("%s: another page has changed", tear.Name)
			}
		}
		if stable := c.Torn() == 0; stable != (len(seen) == 1) {
			t.Errorf("%s: %d readings of a page, torn %d", tear.Name, len(seen), c.Torn())
		}
		c.Program(bg(), old, 5*64)
		if c.Torn() != 0 {
			t.Errorf("%s: still torn after a write", tear.Name)
		}
	}
}

func TestFailures(t *testing.T) {
	n := nor()
	no := errors.New("no")
	n.ProgramHook = func(page int) error {
		if page == 3 {
			return no
		}
		return nil
	}
	n.EraseHook = func(block int) error { return no }
	if err := n.Program(bg(), []byte{0}, 3*64); !errors.Is(err, no) || n.Image()[3*64] != 0xff {
		t.Errorf("Program = %v", err)
	}
	n.Stick(4, true)
	if err := n.Program(bg(), []byte{0}, 4*64); err != nil || n.Image()[4*64] != 0xff {
		t.Errorf("stuck page: %v, %#02x", err, n.Image()[4*64])
	}
	if err := n.Erase(bg(), 0); !errors.Is(err, no) {
		t.Errorf("Erase = %v", err)
	}
}
