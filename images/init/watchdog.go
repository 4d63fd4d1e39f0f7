package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	watchdogDevice = "/dev/watchdog0"
	// watchdogTime is what the watchdog is asked for, unless the kernel's
	// command line says another with watchdogWord.
	watchdogTime  = time.Minute
	watchdogWord  = "baton.watchdog="
	watchdogLeast = 5 * time.Second
	watchdogMost  = 10 * time.Minute
)

// askedTime is the time-out that a kernel's command line asks for; off = the
// watchdog is to be left alone. With an error it is the default.
func askedTime(cmdline string) (d time.Duration, off bool, err error) {
	for word := range strings.FieldsSeq(cmdline) {
		value, ok := strings.CutPrefix(word, watchdogWord)
		switch {
		case !ok:
			continue
		case value == "off":
			return 0, true, nil
		}
		d, err := time.ParseDuration(value)
		if err != nil || d < watchdogLeast || d > watchdogMost {
			return watchdogTime, false, fmt.Errorf("%s%s: want off, or %v to %v, as in %s30s", watchdogWord, value, watchdogLeast, watchdogMost, watchdogWord)
		}
		return d.Round(time.Second), false, nil
	}
	return watchdogTime, false, nil
}

// watchdog is the kernel's (Documentation/watchdog/watchdog-api.rst). It runs
// from the moment it is opened.
type watchdog struct {
	f        *os.File
	identity string
	time     time.Duration // by the driver
	bitten   bool          // it was what restarted the board
	status   int           // WDIOC_GETBOOTSTATUS
	closes   bool          // the driver knows the magic close
}

// openWatchdog arms a watchdog. Where there is none the error is
// fs.ErrNotExist.
func openWatchdog(device string, asked time.Duration) (*watchdog, error) {
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
			err = fs.ErrNotExist // the node of a driver that has no device
		}
		return nil, err
	}
	w := &watchdog{f: f}
	fd := int(f.Fd())
	info, err := unix.IoctlGetWatchdogInfo(fd)
	if err != nil {
		// Not one to be trusted, and it may run by now: it is disarmed as far
		// as that goes.
		_ = w.disarm()
		return nil, fmt.Errorf("WDIOC_GETSUPPORT: %w", err)
	}
	w.identity = string(bytes.TrimRight(info.Identity[:], "\x00"))
	w.closes = info.Options&unix.WDIOF_MAGICCLOSE != 0
	if w.status, err = unix.IoctlGetInt(fd, unix.WDIOC_GETBOOTSTATUS); err == nil {
		w.bitten = w.status&unix.WDIOF_CARDRESET != 0
	}
	// The driver says what it takes, which may be less.
	seconds := int32(asked / time.Second)
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.WDIOC_SETTIMEOUT, uintptr(unsafe.Pointer(&seconds)))
	if e != 0 {
		n, err := unix.IoctlGetInt(fd, unix.WDIOC_GETTIMEOUT)
		if err != nil {
			_ = w.disarm()
			return nil, fmt.Errorf("WDIOC_SETTIMEOUT: %w", e)
		}
		seconds = int32(n)
	}
	if seconds <= 0 {
		_ = w.disarm()
		return nil, fmt.Errorf("its time-out is %d s", seconds)
	}
	w.time = time.Duration(seconds) * time.Second
	return w, w.feed()
}

func (w *watchdog) timeout() time.Duration { return w.time }

func (w *watchdog) feed() error { return unix.IoctlWatchdogKeepalive(int(w.f.Fd())) }

// disarm stops the watchdog: on a board whose power is not switched the end is
// a halt, from which it must not be woken. A driver may refuse (nowayout).
func (w *watchdog) disarm() error {
	_, err := w.f.WriteString("V") // the magic character
	if cerr := w.f.Close(); err == nil {
		err = cerr
	}
	if err == nil && !w.closes {
		err = errors.New("its driver does not let it be stopped")
	}
	return err
}
