package bus

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"periph.io/x/conn/v3/i2c"
	"periph.io/x/conn/v3/physic"
)

// chip is a bus with one chip whose transfers take as long as a test says.
type chip struct {
	mu      sync.Mutex
	takes   time.Duration
	release chan struct{} // if set: a transfer waits for it
	err     error
	seen    []uint16
	speed   physic.Frequency
}

func (c *chip) String() string { return "chip" }

func (c *chip) SetSpeed(f physic.Frequency) error { c.speed = f; return c.err }

// Tx answers a read with the complement of what was written.
func (c *chip) Tx(addr uint16, w, r []byte) error {
	c.mu.Lock()
	c.seen = append(c.seen, addr)
	takes, release, err := c.takes, c.release, c.err
	c.mu.Unlock()
	time.Sleep(takes)
	if release != nil {
		<-release
	}
	for i := range r {
		if i < len(w) {
			r[i] = ^w[i]
		}
	}
	return err
}

var _ i2c.Bus = (*Owned)(nil)

func TestOwnedTransfers(t *testing.T) {
	c := &chip{}
	o := Own(c, 0)
	r := make([]byte, 2)
	if err := o.Tx(0x50, []byte{1, 2}, r); err != nil || !bytes.Equal(r, []byte{0xFE, 0xFD}) {
		t.Errorf("Tx = %v, read % x; want fe fd", err, r)
	}
	c.err = errors.New("sysfs-i2c: no such device or address")
	r = []byte{7, 7}
	err := o.Tx(0x51, []byte{1}, r)
	var e *Error
	if !errors.Is(err, ErrNACK) || !errors.As(err, &e) || e.Addr != 0x51 || e.Bus != "chip" {
		t.Errorf("Tx = %v; want a NACK of 0x51 on chip", err)
	}
	if !bytes.Equal(r, []byte{7, 7}) {
		t.Errorf("a failed Tx left % x in the caller's buffer", r)
	}
	c.err = nil
	if err := o.SetSpeed(400 * physic.KiloHertz); err != nil || c.speed != 400*physic.KiloHertz {
		t.Errorf("SetSpeed = %v, bus has %s", err, c.speed)
	}
	if err := o.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if err := o.Tx(0x50, []byte{1}, nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Tx after Close = %v; want closed", err)
	}
	if err := o.Close(); err != nil {
		t.Errorf("second Close = %v", err)
	}
}

// Ask comes back where the owner does its work, also while the bus is wedged,
// and transfers nothing.
func TestOwnedAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chip{takes: 300 * time.Millisecond}
		o := Own(c, 0)
		if err := o.Ask(); err != nil || len(c.seen) != 0 {
			t.Errorf("Ask = %v, and %d transfers", err, len(c.seen))
		}
		go func() { _ = o.Tx(0x50, []byte{1}, nil) }()
		synctest.Wait()
		start := time.Now()
		if err := o.Ask(); err != nil || time.Since(start) != c.takes {
			t.Errorf("Ask behind a transfer = %v after %v", err, time.Since(start))
		}
		c.mu.Lock()
		c.release = make(chan struct{})
		c.mu.Unlock()
		go func() { _ = o.Tx(0x50, []byte{1}, nil) }()
		synctest.Wait()
		if err := o.Ask(); !errors.Is(err, ErrWedged) {
			t.Errorf("Ask of a wedged bus = %v", err)
		}
		close(c.release)
		synctest.Wait()
		if err := o.Ask(); err != nil {
			t.Errorf("Ask afterwards = %v", err)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		if err := o.Ask(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Ask after Close = %v", err)
		}
	})
}

func TestOwnedServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chip{takes: 10 * time.Millisecond}
		o := Own(c, 0)
		var callers sync.WaitGroup
		var want []uint16
		for addr := uint16(0x10); addr < 0x30; addr++ {
			want = append(want, addr)
			callers.Go(func() {
				if err := o.Tx(addr, []byte{0}, nil); err != nil {
					t.Errorf("Tx(0x%02x) = %v", addr, err)
				}
			})
			synctest.Wait() // it is queued
		}
		start := time.Now()
		callers.Wait()
		if !slices.Equal(c.seen, want) {
			t.Errorf("served in the order %x; want %x", c.seen, want)
		}
		if got := time.Since(start); got != 320*time.Millisecond {
			t.Errorf("32 transfers took %v; want 320ms, none beside another", got)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A transfer that does not come back fails its caller after the limit, those
// that wait at that moment, and later ones at once; when it comes back, the
// bus works again.
func TestOwnedWedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chip{release: make(chan struct{})}
		o := Own(c, 300*time.Millisecond)
		start := time.Now()
		var callers sync.WaitGroup
		r := []byte{0x55}
		for range 3 {
			callers.Go(func() {
				var buf []byte
				if time.Since(start) == 0 {
					buf = r
				}
				if err := o.Tx(0x50, []byte{1}, buf); !errors.Is(err, ErrWedged) {
					t.Errorf("Tx = %v; want wedged", err)
				}
				if got, limit := time.Since(start), 300*time.Millisecond+2*byteLimit; got > limit {
					t.Errorf("Tx failed after %v; want %v or less", got, limit)
				}
			})
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		callers.Wait()

		start = time.Now()
		err := o.Tx(0x51, []byte{1}, nil)
		var e *Error
		if !errors.Is(err, ErrWedged) || !errors.As(err, &e) || e.Temporary() {
			t.Errorf("Tx on a wedged bus = %v; want wedged, not temporary", err)
		}
		if err := o.SetSpeed(physic.KiloHertz); !errors.Is(err, ErrWedged) {
			t.Errorf("SetSpeed on a wedged bus = %v; want wedged", err)
		}
		if got := time.Since(start); got != 0 {
			t.Errorf("two calls on a wedged bus took %v; want 0", got)
		}

		close(c.release)
		synctest.Wait()
		if r[0] != 0x55 {
			t.Errorf("a transfer that was given up wrote 0x%02x into its caller's buffer", r[0])
		}
		if err := o.Tx(0x52, []byte{1}, r); err != nil || r[0] != 0xFE {
			t.Errorf("Tx after the wedge = %v, read 0x%02x; want 0xfe", err, r[0])
		}
		if want := []uint16{0x50, 0x52}; !slices.Equal(c.seen, want) {
			t.Errorf("the bus saw %x; want %x: who was refused must not come later", c.seen, want)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
}

// The time of its bytes is allowed to a long transfer.
func TestOwnedLimitGrowsWithBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chip{takes: 500 * time.Millisecond}
		o := Own(c, 10*time.Millisecond)
		if err := o.Tx(0x50, make([]byte, 2), make([]byte, 8192)); err != nil {
			t.Errorf("a transfer of 8194 bytes in 500 ms = %v", err)
		}
		if err := o.Tx(0x50, make([]byte, 2), make([]byte, 64)); !errors.Is(err, ErrWedged) {
			t.Errorf("a transfer of 66 bytes in 500 ms = %v; want wedged", err)
		}
		time.Sleep(time.Second)
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A transfer that ends at the very instant of the limit is either done or
// wedged for a moment, and never leaves the bus wedged.
func TestOwnedWedgeRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := 10 * time.Millisecond
		c := &chip{takes: limit + byteLimit}
		o := Own(c, limit)
		done, wedged := 0, 0
		for range 500 {
			switch err := o.Tx(0x50, []byte{1}, nil); {
			case err == nil:
				done++
			case errors.Is(err, ErrWedged):
				wedged++
			default:
				t.Fatal(err)
			}
			synctest.Wait()
		}
		c.takes = 0
		if err := o.Tx(0x50, []byte{1}, nil); err != nil {
			t.Errorf("after %d done and %d wedged: %v", done, wedged, err)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestOwnedCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chip{release: make(chan struct{})}
		o := Own(c, 100*time.Millisecond)
		var callers sync.WaitGroup
		callers.Go(func() {
			if err := o.Tx(0x50, []byte{1}, nil); !errors.Is(err, ErrWedged) {
				t.Errorf("Tx = %v; want wedged", err)
			}
		})
		synctest.Wait()
		start := time.Now()
		if err := o.Close(); !errors.Is(err, ErrWedged) || time.Since(start) != 100*time.Millisecond {
			t.Errorf("Close = %v after %v; want wedged after 100ms", err, time.Since(start))
		}
		callers.Wait()
		close(c.release)
		if err := o.Close(); err != nil {
			t.Errorf("Close once the transfer has come back = %v", err)
		}
	})
}
