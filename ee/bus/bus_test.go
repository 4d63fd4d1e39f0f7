package bus

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestOpenNames(t *testing.T) {
	for _, tc := range []struct {
		name      string
		simulated bool
		want      error  // nil = opens
		text      string // in the error
	}{
		{"unix:/run/sim/bus0.sock", true, nil, ""},
		{"unix:rel/bus0.sock", true, nil, ""},
		{"tcp:127.0.0.1:7000", true, nil, ""},
		{"tcp:[::1]:7000", true, nil, ""},
		{"unix:/run/sim/bus0.sock", false, ErrSimulated, "simulated = true"},
		{"tcp:127.0.0.1:7000", false, ErrSimulated, "simulated = true"},
		{"unix:", true, ErrIO, "unix:PATH"},
		{"tcp:", true, ErrIO, "tcp:HOST:PORT"},
		{"tcp:host", true, ErrIO, "tcp:HOST:PORT"},
		{"tcp:host:", true, ErrIO, "tcp:HOST:PORT"},
		{"udp:host:1", true, ErrIO, "want /dev/i2c-N"},
		{"", true, ErrIO, "want /dev/i2c-N"},
		{"i2c-5", true, ErrIO, "want /dev/i2c-N"},
		{"/dev/i2c-", true, ErrIO, "want /dev/i2c-N"},
		{"/dev/i2c-05", true, ErrIO, "want /dev/i2c-N"},
		{"/dev/i2c-+5", true, ErrIO, "want /dev/i2c-N"},
		{"/dev/i2c--1", true, ErrIO, "want /dev/i2c-N"},
		{"/dev/i2c-5x", true, ErrIO, "want /dev/i2c-N"},
		{"/dev/i2c-99999999", true, ErrIO, "want /dev/i2c-N"},
		{"/dev/i2c-65000", false, ErrIO, "no such file"}, // no machine has so many
	} {
		t.Run(fmt.Sprintf("%s simulated=%v", tc.name, tc.simulated), func(t *testing.T) {
			b, err := Open(tc.name, tc.simulated)
			if tc.want == nil {
				if err != nil {
					t.Fatalf("Open(%q) = %v", tc.name, err)
				}
				if got := b.String(); got != tc.name {
					t.Errorf("String() = %q; want %q", got, tc.name)
				}
				if err := b.Close(); err != nil {
					t.Errorf("Close() = %v", err)
				}
				return
			}
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("Open(%q) = %v; want %v with %q", tc.name, err, tc.want, tc.text)
			}
			var e *Error
			if !errors.As(err, &e) || e.Op != "open" || e.Bus != tc.name || e.Temporary() {
				t.Errorf("Open(%q) = %#v; want a final *Error that names it", tc.name, err)
			}
		})
	}
}

func TestClassify(t *testing.T) {
	// As periph's sysfs package hands it on: the text only.
	periph := func(n syscall.Errno) error { return fmt.Errorf("sysfs-i2c: %v", n) }
	for _, tc := range []struct {
		name      string
		err       error
		want      error
		temporary bool
	}{
		{"ENXIO", periph(syscall.ENXIO), ErrNACK, true},
		{"EREMOTEIO", periph(syscall.EREMOTEIO), ErrNACK, true},
		{"EAGAIN", periph(syscall.EAGAIN), ErrArbitration, true},
		{"EBUSY", periph(syscall.EBUSY), ErrStuck, true},
		{"ETIMEDOUT", periph(syscall.ETIMEDOUT), ErrStuck, true},
		{"EIO", periph(syscall.EIO), ErrIO, true},
		{"EPROTO", periph(syscall.EPROTO), ErrIO, true},
		{"EINVAL", periph(syscall.EINVAL), ErrIO, false},
		{"EOPNOTSUPP", periph(syscall.EOPNOTSUPP), ErrIO, false},
		{"ENODEV", periph(syscall.ENODEV), ErrIO, false},
		{"wrapped errno", fmt.Errorf("adapter: %w", syscall.ENXIO), ErrNACK, true},
		{"errno beside another text", fmt.Errorf("%w (gave up)", syscall.EBUSY), ErrStuck, true},
		{"errno nobody listed", fmt.Errorf("adapter: %w", syscall.ENOMEM), ErrIO, true},
		{"no errno", errors.New("sysfs-i2c: something else"), ErrIO, true},
		{"class given", fmt.Errorf("model: %w", ErrNACK), ErrNACK, true},
		{"wedged", ErrWedged, ErrWedged, false},
		{"closed", final(os.ErrClosed), os.ErrClosed, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Classify("transfer", "bus5", 0x50, tc.err)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("Classify(%v) = %v, no *Error", tc.err, err)
			}
			if !errors.Is(err, tc.want) || e.Temporary() != tc.temporary {
				t.Errorf("Classify(%v) = %v, temporary %v; want %v, %v", tc.err, err, e.Temporary(), tc.want, tc.temporary)
			}
			n := 0
			for _, c := range []error{ErrNACK, ErrArbitration, ErrStuck, ErrWedged, ErrIO} {
				if errors.Is(err, c) {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%v is of %d classes; want 1", err, n)
			}
			if again := Classify("open", "other", 1, err); again != err {
				t.Errorf("classified twice: %v; want %v", again, err)
			}
		})
	}
	if err := Classify("transfer", "bus5", 0x50, nil); err != nil {
		t.Errorf("Classify(nil) = %v", err)
	}
}

func TestErrorText(t *testing.T) {
	for want, err := range map[string]error{
		"bus5: transfer with 0x57: no acknowledge: absent or busy: sysfs-i2c: no such device or address":  Classify("transfer", "bus5", 0x57, errors.New("sysfs-i2c: no such device or address")),
		"unix:x: open: a bus of the simulator, and the configuration does not say simulated = true":       &Error{Op: "open", Bus: "unix:x", Err: final(ErrSimulated)},
		"bus5: transfer with 0x40: bus is wedged: a transfer has not come back":                           Classify("transfer", "bus5", 0x40, ErrWedged),
		"bus5: set speed: bus I/O error: sysfs-i2c: the frequency of this adapter is fixed by its driver": Classify("set speed", "bus5", 0, errors.New("sysfs-i2c: the frequency of this adapter is fixed by its driver")),
	} {
		if err.Error() != want {
			t.Errorf("got  %s\nwant %s", err, want)
		}
	}
}
