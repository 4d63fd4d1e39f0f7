// Package gpio makes an engine load its config block by a line of a GPIO
// controller.
//
// It uses the kernel's character device (linux/gpio.h, GPIO v2, Linux 5.10).
// periph's two ways were not taken: sysfs GPIO is not in every kernel and its
// numbers depend on the order in which drivers load; gpioioctl opens every
// chip of the board and makes a line an output at low level before it is
// given its own, which reloads an engine whose line is active low.
package gpio

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Line is an output that is inactive but for a pulse at each Reload. It is an
// ee.Reloader. One goroutine may use it at a time.
type Line struct {
	Chip       string // path, "/dev/gpiochip0"
	Number     uint32 // on that chip
	ActiveHigh bool   // level of the pulse
	Pulse      time.Duration

	handle *os.File // of the line; nil = not requested yet
	ioctl  func(fd uintptr, request uintptr, arg unsafe.Pointer) error
}

// Open takes the line and drives it inactive. It fails where another process
// has it. Reload opens by itself.
func (l *Line) Open() error {
	if l.handle != nil {
		return nil
	}
	if l.ioctl == nil {
		l.ioctl = ioctl
	}
	chip, err := os.OpenFile(l.Chip, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("reload line: %w", err)
	}
	defer chip.Close() // the line has a file of its own
	r := l.request()
	if err := l.ioctl(chip.Fd(), getLine, unsafe.Pointer(&r)); err != nil {
		return l.fail("request", err)
	}
	l.handle = os.NewFile(uintptr(binary.NativeEndian.Uint32(r[offFD:])), l.String())
	return nil
}

// Close lets the line go; the controller decides what level it has then.
func (l *Line) Close() error {
	if l.handle == nil {
		return nil
	}
	h := l.handle
	l.handle = nil
	return h.Close()
}

// String is as in the configuration: "/dev/gpiochip0:17".
func (l *Line) String() string { return fmt.Sprintf("%s:%d", l.Chip, l.Number) }

// Reload gives one pulse. It blocks for Pulse, also when ctx ends meanwhile: a
// line that stays active would hold the engine.
func (l *Line) Reload(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.Open(); err != nil {
		return err
	}
	if err := l.set(1); err != nil {
		return l.fail("activate", err)
	}
	time.Sleep(l.Pulse)
	if err := l.set(0); err != nil {
		return l.fail("release", err)
	}
	return nil
}

func (l *Line) fail(op string, err error) error {
	return fmt.Errorf("reload line %s: %s: %w", l, op, err)
}

// Numbers of linux/gpio.h. The structures are laid out as bytes: Go aligns 64
// bits to 4 on 32-bit ARM, the kernel to 8.
const (
	getLine   = 0xC250B407 // GPIO_V2_GET_LINE_IOCTL: _IOWR(0xB4, 0x07, struct gpio_v2_line_request)
	setValues = 0xC010B40F // GPIO_V2_LINE_SET_VALUES_IOCTL: _IOWR(0xB4, 0x0F, struct gpio_v2_line_values)

	requestSize = 592
	offOffsets  = 0 // of the lines, 64 * 4
	offConsumer = 256
	offFlags    = 288 // of struct gpio_v2_line_config
	offNumAttrs = 296
	offAttrID   = 320 // of the first gpio_v2_line_config_attribute
	offAttrBits = 328
	offAttrMask = 336
	offNumLines = 560
	offFD       = 588

	flagActiveLow    = 1 << 1
	flagOutput       = 1 << 3
	attrOutputValues = 2
)

// request asks for one output, inactive from the start.
func (l *Line) request() [requestSize]byte {
	var r [requestSize]byte
	ne := binary.NativeEndian
	ne.PutUint32(r[offOffsets:], l.Number)
	copy(r[offConsumer:], "batond")
	flags := uint64(flagOutput)
	if !l.ActiveHigh {
		flags |= flagActiveLow
	}
	ne.PutUint64(r[offFlags:], flags)
	ne.PutUint32(r[offNumAttrs:], 1)
	ne.PutUint32(r[offAttrID:], attrOutputValues)
	ne.PutUint64(r[offAttrBits:], 0)
	ne.PutUint64(r[offAttrMask:], 1)
	ne.PutUint32(r[offNumLines:], 1)
	return r
}

// set drives the line: 1 = active, whatever level that is.
func (l *Line) set(active uint64) error {
	v := [2]uint64{active, 1} // struct gpio_v2_line_values: bits, mask
	return l.ioctl(l.handle.Fd(), setValues, unsafe.Pointer(&v))
}

func ioctl(fd, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
