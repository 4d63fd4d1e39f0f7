package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func mounts() {
	for _, m := range []struct {
		fs, dir string
		flags   uintptr
		options string
	}{
		{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"devtmpfs", "/dev", unix.MS_NOSUID, "mode=0755"},
		{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755,size=8m"},
		{"tmpfs", "/tmp", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777,size=32m"},
	} {
		if err := unix.Mount(m.fs, m.dir, m.fs, m.flags, m.options); err != nil {
			say("mount %s: %v", m.dir, err)
		}
	}
}

// raiseClock sets the clock to the time in the file where it is earlier, and
// tells whether it was. A board without a battery starts in 1970.
func raiseClock(file string) bool {
	text, err := os.ReadFile(file)
	if err != nil {
		say("clock: %v", err)
		return false
	}
	sec, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		say("clock: %s: %v", file, err)
		return false
	}
	floor := time.Unix(sec, 0)
	now := time.Now()
	if !now.Before(floor) {
		return false
	}
	tv := unix.NsecToTimeval(floor.UnixNano())
	if err := unix.Settimeofday(&tv); err != nil {
		say("clock: %v", err)
		return false
	}
	say("clock was %s, set to %s", now.UTC().Format(time.DateOnly), floor.UTC().Format(time.DateOnly))
	return true
}

// loadModules loads what the file list names, one module a line with its
// parameters behind it, in that order. What fails is told to failed, and the
// others are loaded all the same.
func loadModules(list, dir string, load func(file, params string) error, failed func(what string)) {
	f, err := os.Open(list)
	if err != nil {
		failed(fmt.Sprintf("none of %s: %v", list, err))
		return
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		name, params, _ := strings.Cut(strings.TrimSpace(s.Text()), " ")
		if name == "" {
			continue
		}
		if err := load(dir+"/"+name+".ko", params); err != nil {
			failed(fmt.Sprintf("%s: %v", name, err))
		}
	}
	if err := s.Err(); err != nil {
		failed(fmt.Sprintf("the rest of %s: %v", list, err))
	}
}

func loadModule(file, params string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), params, 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

func loopbackUp() {
	if err := interfaceUp("lo"); err != nil {
		say("lo: %v", err)
	}
}

func interfaceUp(name string) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(s) }()
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, r); err != nil {
		return err
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r)
}

func nameHost() {
	board, err := os.ReadFile("/etc/board")
	if err == nil {
		err = unix.Sethostname([]byte(strings.TrimSpace(string(board))))
	}
	if err != nil {
		say("host name: %v", err)
	}
}
