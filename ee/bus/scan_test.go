package bus

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"periph.io/x/conn/v3/physic"
)

// chips is a bus with a chip at some addresses, that fails at others.
type chips struct {
	at    map[uint16]error // nil = answers
	asked []uint16
}

func (c *chips) String() string                  { return "bus5" }
func (c *chips) SetSpeed(physic.Frequency) error { return nil }
func (c *chips) Tx(addr uint16, w, r []byte) error {
	c.asked = append(c.asked, addr)
	if len(w) != 0 || len(r) != 1 {
		return fmt.Errorf("a scan writes %d bytes and reads %d", len(w), len(r))
	}
	if err, there := c.at[addr]; there {
		return err
	}
	return fmt.Errorf("sysfs-i2c: %v", syscall.ENXIO)
}

func TestScan(t *testing.T) {
	known := func(a uint16) bool { return a == 0x50 }
	c := &chips{at: map[uint16]error{0x07: nil, 0x08: nil, 0x50: nil, 0x57: nil, 0x60: syscall.EAGAIN, 0x77: nil, 0x78: nil}}
	got, err := Scan(t.Context(), c, known)
	if diff := cmp.Diff([]uint16{0x08, 0x57, 0x77}, got); diff != "" || err != nil {
		t.Errorf("Scan: %v (-want +got):\n%s", err, diff)
	}
	if len(c.asked) != 0x77-0x08 {
		t.Errorf("%d addresses were read; want all of 0x08..0x77 but the known one", len(c.asked))
	}

	c = &chips{at: map[uint16]error{0x08: nil, 0x10: syscall.ETIMEDOUT}}
	if got, err = Scan(t.Context(), c, known); !errors.Is(err, ErrStuck) || len(got) != 1 || len(c.asked) != 9 {
		t.Errorf("a stuck bus: found %v, %v after %d reads; want it to end at the first", got, err, len(c.asked))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c = &chips{}
	if _, err := Scan(ctx, c, known); !errors.Is(err, context.Canceled) || len(c.asked) != 0 {
		t.Errorf("cancelled: %v after %d reads", err, len(c.asked))
	}
}
