package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
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
		useShell := f.next()
		failed, err := consoleOnce(kids, useShell)
		if err != nil {
			say("console: %v", err)
			time.Sleep(time.Second)
		}
		if !useShell {
			f.ended(time.Now(), failed || err != nil)
		} else {
			time.Sleep(time.Second) // a shell that ends at once must not fill the line
		}
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
	status := <-end
	return !status.Exited() || status.ExitStatus() != 0, nil
}
