package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	consoleProgram = "/bbin/baton" // with the argument "console"
	shell          = "/bbin/gosh"
)

// A console program that fails this often within failTime is not tried again at
// once: whoever sits at the line gets the shell.
const (
	failMost = 3
	failTime = 10 * time.Second
)

// fallback decides what runs on the console.
type fallback struct{ failed []time.Time }

// next tells whether it is the shell's turn.
func (f *fallback) next() (useShell bool) {
	if len(f.failed) < failMost {
		return false
	}
	f.failed = nil // when the shell ends, the console program gets another chance
	return true
}

// ended notes how a run of the console program has ended.
func (f *fallback) ended(now time.Time, failed bool) {
	if !failed {
		f.failed = nil
		return
	}
	var recent []time.Time
	for _, t := range append(f.failed, now) {
		if now.Sub(t) < failTime {
			recent = append(recent, t)
		}
	}
	f.failed = recent
}

// console keeps something to talk to on the console, for ever.
func console(kids *children) {
	var f fallback
	for {
		begin := time.Now()
		useShell := f.next()
		failed, err := consoleOnce(kids, useShell)
		if err != nil {
			say("console: %v", err)
		}
		if !useShell {
			f.ended(time.Now(), failed || err != nil)
		}
		// What ends at once, as on a line that is hung up, must not take all of
		// the processor nor fill the line.
		time.Sleep(time.Second - time.Since(begin))
	}
}

// consoleOnce is one session.
func consoleOnce(kids *children, useShell bool) (failed bool, err error) {
	// Opened again for each session: the end of one hangs up its terminal for
	// everyone who has it open.
	tty, err := os.OpenFile("/dev/console", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return false, err
	}
	defer tty.Close()
	if err := sane(int(tty.Fd())); err != nil {
		say("console: %v", err)
	}
	p := program{path: consoleProgram, args: []string{"console"}, files: []*os.File{tty, tty, tty}, terminal: true}
	if useShell {
		p.path, p.args = shell, nil
		board, _ := os.ReadFile("/etc/board")
		fmt.Fprintf(tty, "\nBaton on %s. Try: baton status\n", strings.TrimSpace(string(board)))
	}
	_, end, err := kids.start(p)
	if err != nil {
		return false, err
	}
	return isFailure(<-end), nil
}

// isFailure is false where Ctrl-C has ended a program that had not begun to
// catch it: three of those must not give anybody a shell without a password.
func isFailure(s syscall.WaitStatus) bool {
	return s != 0 && s.Signal() != syscall.SIGINT
}

// sane makes a terminal what a session may expect, whatever the one before has
// left it as: a program that was killed may have left it raw. Speed and format
// stay. There is no flow control: a Ctrl-S, typed or of noise, would stop
// whoever prints, PID 1 included. And there is no key that kills (Ctrl-\):
// after three the console would be a shell without a password.
func sane(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return os.NewSyscallError("TCGETS", err)
	}
	t.Iflag = unix.ICRNL
	t.Oflag = unix.OPOST | unix.ONLCR
	t.Lflag = unix.ISIG | unix.ICANON | unix.IEXTEN | unix.ECHO | unix.ECHOE | unix.ECHOK | unix.ECHOCTL | unix.ECHOKE
	// INIT_C_CC of include/asm-generic/termios.h, but for VQUIT; 0 = no key.
	t.Cc = [len(t.Cc)]uint8{
		unix.VINTR: 'c' & 0x1f, unix.VERASE: 0x7f, unix.VKILL: 'u' & 0x1f, unix.VEOF: 'd' & 0x1f,
		unix.VMIN: 1, unix.VSTART: 'q' & 0x1f, unix.VSTOP: 's' & 0x1f, unix.VSUSP: 'z' & 0x1f,
		unix.VREPRINT: 'r' & 0x1f, unix.VWERASE: 'w' & 0x1f, unix.VLNEXT: 'v' & 0x1f, unix.VDISCARD: 'o' & 0x1f,
	}
	return os.NewSyscallError("TCSETS", unix.IoctlSetTermios(fd, unix.TCSETS, t))
}
