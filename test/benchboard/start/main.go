// Start is what a board's image is started by where its start is measured. The
// kernel runs it in the place of init, under one of two names:
//
//	noop   says that it runs, and waits: what the kernel alone takes
//	watch  leaves a child behind that says when the agent's socket answers,
//	       and becomes the image's own init
//
// Both are the same program in the same image, so that only what init does
// makes the difference. It imports next to nothing: what it takes itself to
// start is counted.
package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	socket = "/run/baton/baton.sock"
	// every is how often the child tries to connect: one part in a thousand of
	// a start, at some ten microseconds each.
	every = 5 * time.Millisecond
	// patience is with the agent.
	patience = 5 * time.Minute
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "noop":
		say("started")
		for {
			time.Sleep(time.Hour)
		}
	case "watch":
		if os.Getpid() != 1 {
			wait()
			return
		}
		self := os.Args[0]
		if _, err := syscall.ForkExec(self, []string{self}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}}); err != nil {
			say("fork: " + err.Error())
		}
		say("init: " + syscall.Exec("/init", []string{"/init"}, os.Environ()).Error()) // comes here only where it fails
	default:
		say("what is " + name + "?")
	}
}

// wait says when the socket takes connections, and when a request is answered.
func wait() {
	for range patience / every {
		if fd, err := connect(); err == nil {
			say("listening")
			ask(fd)
			return
		}
		time.Sleep(every)
	}
	say("nobody listens at " + socket)
}

func connect() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func ask(fd int) {
	if _, err := unix.Write(fd, []byte("GET /v1/enclosure HTTP/1.1\r\nHost: baton\r\n\r\n")); err != nil {
		say("write: " + err.Error())
		return
	}
	p := make([]byte, 64)
	n, err := unix.Read(fd, p)
	if err != nil {
		say("read: " + err.Error())
		return
	}
	line, _, _ := bytes.Cut(p[:n], []byte("\r\n"))
	say("answers " + string(line))
}

// say writes one line to the console, with the time since the kernel's clock
// began, in microseconds.
func say(what string) {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	_, _ = os.Stderr.WriteString("\nbench " + strconv.FormatInt(t.Nano()/1000, 10) + " " + what + "\n")
}
