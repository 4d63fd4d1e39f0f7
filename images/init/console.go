package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// console keeps a shell on the console, for ever.
func console(kids *children) {
	for {
		if err := consoleOnce(kids); err != nil {
			say("console: %v", err)
		}
		time.Sleep(time.Second)
	}
}

func consoleOnce(kids *children) error {
	// Opened again for each shell: the end of a session hangs up its terminal
	// for everyone who has it open.
	tty, err := os.OpenFile("/dev/console", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer tty.Close()
	board, _ := os.ReadFile("/etc/board")
	fmt.Fprintf(tty, "\nBaton on %s. Try: baton status\n", strings.TrimSpace(string(board)))
	_, end, err := kids.start(shell, nil, [3]*os.File{tty, tty, tty}, true)
	if err != nil {
		return err
	}
	<-end
	return nil
}
