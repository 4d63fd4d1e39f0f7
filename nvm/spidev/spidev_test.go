package spidev

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"periph.io/x/conn/v3/conntest"
	"periph.io/x/conn/v3/physic"
	"periph.io/x/conn/v3/spi"
	"periph.io/x/conn/v3/spi/spitest"
)

// kernel is a port whose transfers all fail, as sysfs tells it.
type kernel struct {
	spi.PortCloser
	spi.Conn
	err error
}

func (k kernel) String() string                                            { return "kernel" }
func (k kernel) Close() error                                              { return nil }
func (k kernel) Connect(physic.Frequency, spi.Mode, int) (spi.Conn, error) { return k, nil }
func (k kernel) Tx(_, _ []byte) error                                      { return k.err }

func TestPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		playback := &spitest.Playback{Playback: conntest.Playback{Ops: []conntest.IO{{W: []byte{5, 0}, R: []byte{0, 2}}}, DontPanic: true}}
		absent := errors.New("no such file or directory")
		opens := 0
		p := New("/dev/spidev3.1", physic.MegaHertz)
		p.open = func(bus, sel int) (spi.PortCloser, error) {
			opens++
			if bus != 3 || sel != 1 {
				t.Errorf("opens bus %d, select %d; want 3, 1", bus, sel)
			}
			if opens == 1 {
				return nil, absent
			}
			return playback, nil
		}
		r := make([]byte, 2)
		for range 3 { // asked again only after a while
			if err := p.Tx([]byte{5, 0}, r); !errors.Is(err, absent) || !strings.Contains(err.Error(), "/dev/spidev3.1") || opens != 1 {
				t.Errorf("Tx = %v after %d opens; want where and why, after one", err, opens)
			}
		}
		time.Sleep(openEvery)
		if err := p.Tx([]byte{5, 0}, r); err != nil || !bytes.Equal(r, []byte{0, 2}) {
			t.Errorf("Tx = % x, %v", r, err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
		if err := p.Tx([]byte{5, 0}, r); err == nil {
			t.Error("a closed port transfers")
		}
		if err := p.Close(); err != nil {
			t.Errorf("Close again = %v", err)
		}
	})
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("sysfs-spi: Tx() failed: %v", syscall.Errno(524)), true},
		{fmt.Errorf("sysfs-spi: Tx() failed: %v", syscall.EIO), false},
		{fmt.Errorf("sysfs-spi: Tx() failed: %v", syscall.ETIMEDOUT), false},
	} {
		p := New("/dev/spidev0.0", physic.MegaHertz)
		p.open = func(int, int) (spi.PortCloser, error) { return kernel{err: tt.err}, nil }
		err := p.Tx([]byte{1}, nil)
		if got := errors.Is(err, ErrMemOnly); got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%v: %v; ErrMemOnly %v, want %v", tt.err, err, got, tt.want)
		}
	}
	for _, path := range []string{"/dev/spidev0", "/dev/spidev", "/dev/spidev-1.0", "/dev/spidevx.0", "/dev/mtd0", ""} {
		if err := New(path, physic.MegaHertz).Tx([]byte{1}, nil); err == nil || !strings.Contains(err.Error(), "/dev/spidevB.C") {
			t.Errorf("%q: %v; want the form", path, err)
		}
	}
}
