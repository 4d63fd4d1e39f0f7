package bus

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Classes of error, one of which errors.Is finds in every *Error.
var (
	// ErrNACK is returned when the chip did not acknowledge: it is absent, or
	// busy with a write cycle.
	ErrNACK = errors.New("no acknowledge: absent or busy")
	// ErrArbitration is returned when another master won the bus.
	ErrArbitration = errors.New("arbitration lost")
	// ErrStuck is returned when SDA or SCL stays low: a chip holds the bus.
	ErrStuck = errors.New("bus is stuck: SDA or SCL stays low")
	// ErrWedged is returned when a transfer has not come back in time, and to
	// all others until it does.
	ErrWedged = errors.New("bus is wedged: a transfer has not come back")
	// ErrIO is returned for everything else.
	ErrIO = errors.New("bus I/O error")
)

// Error says which transfer failed, and how.
type Error struct {
	Op   string // "open", "transfer" or "set speed"
	Bus  string
	Addr uint16 // of the chip; 0 where Op concerns none
	Err  error  // wraps one of the classes
}

func (e *Error) Error() string {
	if e.Op == "transfer" {
		return fmt.Sprintf("%s: transfer with 0x%02x: %v", e.Bus, e.Addr, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.Bus, e.Op, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Temporary tells whether the same transfer may go through if it is repeated
// soon. A wedged bus, a missing adapter and a refused argument do not heal by
// repeating.
func (e *Error) Temporary() bool { return temporary(e.Err) }

func temporary(err error) bool {
	var f *finalError
	return !errors.Is(err, ErrWedged) && !errors.As(err, &f)
}

// finalError marks an error of class ErrIO that a retry can not help.
type finalError struct{ err error }

func (f *finalError) Error() string   { return f.err.Error() }
func (f *finalError) Unwrap() []error { return []error{ErrIO, f.err} }

func final(err error) error { return &finalError{err} }

// Classify wraps what a bus returned into an *Error; nil stays nil, and an
// *Error stays what it is. This is the only place that looks at errnos.
func Classify(op, bus string, addr uint16, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return err
	}
	return &Error{Op: op, Bus: bus, Addr: addr, Err: class(err)}
}

// class returns err wrapped into its class.
func class(err error) error {
	for _, c := range []error{ErrNACK, ErrArbitration, ErrStuck, ErrWedged, ErrIO} {
		if errors.Is(err, c) {
			return err
		}
	}
	errno, ok := errnoOf(err)
	if !ok {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	c, ok := classOfErrno[errno]
	switch {
	case !ok:
		return fmt.Errorf("%w: %w", ErrIO, err)
	case c == nil:
		return final(err)
	}
	return fmt.Errorf("%w: %w", c, err)
}

// classOfErrno follows Documentation/i2c/fault-codes.rst of Linux and
// drivers/i2c/busses/i2c-aspeed.c (both of Linux 6.1); nil is an I/O error
// that a retry can not help.
//
// EIO is what i2c-aspeed gives when a chip does not acknowledge a data byte,
// but also what any driver gives for anything: it stays ErrIO.
var classOfErrno = map[syscall.Errno]error{
	syscall.ENXIO:     ErrNACK,        // address not acknowledged
	syscall.EREMOTEIO: ErrNACK,        // the same, from drivers that do not tell address and data apart
	syscall.EAGAIN:    ErrArbitration, // i2c-aspeed: ARBIT_LOSS
	syscall.EBUSY:     ErrStuck,       // i2c-aspeed: SDA_DL_TIMEOUT or SCL_TIMEOUT
	syscall.ETIMEDOUT: ErrStuck,       // a clock stretched too far, or the controller gave up and reset itself
	syscall.EIO:       ErrIO,
	syscall.EPROTO:    ErrIO, // i2c-aspeed: ABNORMAL, a START or STOP where none belongs

	syscall.EINVAL:     nil,
	syscall.EOPNOTSUPP: nil, // SMBus-only adapters, as i801 and i2c-stub
	syscall.ENODEV:     nil,
	syscall.ENOENT:     nil,
	syscall.EACCES:     nil,
	syscall.EPERM:      nil,
	syscall.EBADF:      nil,
}

// errnoOf finds the errno in err, or in its text: periph's sysfs package
// formats it with %v (v3.8.5, sysfs/i2c.go).
func errnoOf(err error) (syscall.Errno, bool) {
	var n syscall.Errno
	if errors.As(err, &n) {
		return n, true
	}
	text := err.Error()
	for n := range classOfErrno {
		if strings.HasSuffix(text, n.Error()) {
			return n, true
		}
	}
	return 0, false
}
