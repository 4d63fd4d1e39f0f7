package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"baton/mgmt/config"

	"golang.org/x/sys/unix"
)

// lock is how the console is locked, by the file that the agent leaves in its
// run directory. Where there is none, no agent has started since power-up: then
// the console is open, as whoever has to mend that must get in.
type lock struct {
	dir string

	encoded string // password; "" = none
	after   time.Duration
	known   bool // the file was there
}

const (
	// agentWait is how long the agent may take to say that there is a password:
	// some seconds on a board, ten times that on an emulated one under load.
	agentWait = 45 * time.Second
	// startTime is how long after power-up an agent may still be starting.
	startTime = 2 * time.Minute
	agentPoll = 100 * time.Millisecond
)

// idle is the time without a key after which the console locks; 0 = never.
func (l *lock) idle() time.Duration {
	if l.encoded == "" {
		return 0
	}
	return l.after
}

// read takes over what the file says; it returns whether there is one. One that
// can not be read is no reason to let anybody in.
func (l *lock) read() (bool, error) {
	name := filepath.Join(l.dir, config.ConsoleFileName)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	var f config.ConsoleFile
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return true, fmt.Errorf("the console's password can not be read: %w; the agent writes it anew when it starts", err)
	}
	l.known = true
	l.encoded, l.after = f.Password, time.Duration(f.LockAfterMS)*time.Millisecond
	if l.after <= 0 {
		l.after = config.DefaultLockAfter
	}
	return true, nil
}

// first reads the file, and waits for it where the controller has run for no
// longer than uptime: a console that opens before its agent has started would be
// open for all.
//
// hopeless says that there is nothing to wait for.
func (l *lock) first(ctx context.Context, uptime time.Duration, hopeless func() bool, waiting func()) (found bool, err error) {
	found, err = l.read()
	if found || err != nil || uptime > startTime {
		return found, err
	}
	waiting()
	end := time.NewTimer(agentWait)
	defer end.Stop()
	tick := time.NewTicker(agentPoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-end.C:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
		if found, err := l.read(); found || err != nil {
			return found, err
		}
		if hopeless() {
			return false, nil
		}
	}
}

// learn reads the file again. It returns true where the console was open
// because there was no file, and now has a password.
func (l *lock) learn() (surprise bool) {
	was := l.known
	if _, err := l.read(); err != nil {
		return false // it is as it was
	}
	return !was && l.known && l.encoded != ""
}

// sinceBoot is how long the kernel runs, suspended times included.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // doubt: it waits
	}
	return time.Duration(ts.Nano())
}

// notifyInterrupt ends a wait for a line at Ctrl-C.
func notifyInterrupt(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt)
}
