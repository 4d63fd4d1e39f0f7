package gpio

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// kernel is a GPIO controller's character device, as far as a Line goes.
type kernel struct {
	t     *testing.T
	start time.Time
	log   []string
	fail  map[uintptr]error
}

func (k *kernel) ioctl(_ uintptr, request uintptr, arg unsafe.Pointer) error {
	if err := k.fail[request]; err != nil {
		return err
	}
	ne := binary.NativeEndian
	switch request {
	case 0xC250B407:
		r := unsafe.Slice((*byte)(arg), 592)
		k.log = append(k.log, fmt.Sprintf("%v request %d of %d lines for %s, flags 0x%x, attributes %d: id %d bits %d mask %d", time.Since(k.start),
			ne.Uint32(r), ne.Uint32(r[560:]), strings.TrimRight(string(r[256:288]), "\x00"), ne.Uint64(r[288:]), ne.Uint32(r[296:]), ne.Uint32(r[320:]), ne.Uint64(r[328:]), ne.Uint64(r[336:])))
		f, err := os.Open(os.DevNull)
		if err != nil {
			k.t.Fatal(err)
		}
		fd, err := syscall.Dup(int(f.Fd()))
		f.Close()
		if err != nil {
			k.t.Fatal(err)
		}
		ne.PutUint32(r[588:], uint32(fd))
	case 0xC010B40F:
		v := unsafe.Slice((*uint64)(arg), 2)
		k.log = append(k.log, fmt.Sprintf("%v set %d mask %d", time.Since(k.start), v[0], v[1]))
	default:
		return syscall.ENOTTY
	}
	return nil
}

func TestReload(t *testing.T) {
	for _, tt := range []struct {
		high  bool
		flags string
	}{{false, "0xa"}, {true, "0x8"}} {
		synctest.Test(t, func(t *testing.T) {
			k := &kernel{t: t, start: time.Now()}
			l := &Line{Chip: os.DevNull, Number: 17, ActiveHigh: tt.high, Pulse: 2 * time.Millisecond, ioctl: k.ioctl}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Millisecond, cancel) // in the middle of the pulse
			if err := l.Reload(ctx); err != nil {
				t.Errorf("Reload: %v", err)
			}
			if err := l.Reload(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("Reload after the end: %v", err)
			}
			if err := l.Reload(t.Context()); err != nil {
				t.Errorf("second Reload: %v", err)
			}
			if err := l.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			want := []string{
				"0s request 17 of 1 lines for batond, flags " + tt.flags + ", attributes 1: id 2 bits 0 mask 1",
				"0s set 1 mask 1", "2ms set 0 mask 1",
				"2ms set 1 mask 1", "4ms set 0 mask 1",
			}
			if diff := cmp.Diff(want, k.log); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	gone := &Line{Chip: filepath.Join(t.TempDir(), "gpiochip9"), Pulse: time.Millisecond}
	if err := gone.Reload(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no controller: %v", err)
	}
	noGPIO := &Line{Chip: os.DevNull, Number: 3}
	if err := noGPIO.Open(); !errors.Is(err, syscall.ENOTTY) || !strings.HasPrefix(err.Error(), "reload line /dev/null:3: request: ") {
		t.Errorf("a file that is no controller: %v", err)
	}
	for request, op := range map[uintptr]string{getLine: "request", setValues: "activate"} {
		k := &kernel{t: t, fail: map[uintptr]error{request: syscall.EBUSY}}
		l := &Line{Chip: os.DevNull, Number: 3, ioctl: k.ioctl}
		if err := l.Reload(t.Context()); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), op) {
			t.Errorf("%s fails: %v", op, err)
		}
		delete(k.fail, request)
		if err := l.Reload(t.Context()); err != nil {
			t.Errorf("after %s failed once: %v", op, err)
		}
		_ = l.Close()
	}
}
