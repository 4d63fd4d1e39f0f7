package main

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// A program that fails is started again after restartFirst, then after twice as
// long each time up to restartLongest; one that has run for restartCalm is taken
// to be well again.
const (
	restartFirst   = 500 * time.Millisecond
	restartLongest = 30 * time.Second
	restartCalm    = time.Minute
)

// daemon keeps a program running.
type daemon struct {
	kids *children
	path string
	args []string
	log  string // file for what it prints
	stop chan struct{}
	done chan struct{}

	mu  sync.Mutex
	now process
}

// process is a run of a daemon's program.
type process struct {
	pid      int   // 0 = it is not running
	line     *line // on which it is asked how it is; nil = it can not be asked
	started  time.Time
	restarts int
}

// look returns the present process.
func (d *daemon) look() process {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

// supervise returns after end.
func (d *daemon) supervise() {
	defer close(d.done)
	wait := restartFirst
	for {
		start := time.Now()
		how := d.once()
		select {
		case <-d.stop:
			return
		default:
		}
		if time.Since(start) >= restartCalm {
			wait = restartFirst
		}
		say("%s %s; again in %v; see %s", d.path, how, wait, d.log)
		select {
		case <-d.stop:
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, restartLongest)
		d.mu.Lock()
		d.now.restarts++
		d.mu.Unlock()
	}
}

// once runs the program to its end and says what that was.
func (d *daemon) once() string {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err.Error()
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err.Error()
	}
	// The log ends when the last process that can write to it has.
	go keepLog(d.log, r)
	l, theirs, err := newLine()
	if err != nil {
		w.Close()
		return "cannot start: " + err.Error()
	}

	d.mu.Lock()
	pid, end, err := d.kids.start(program{path: d.path, args: d.args, files: []*os.File{null, w, w, theirs}, env: []string{healthFD}})
	if err == nil {
		d.now.pid, d.now.line, d.now.started = pid, l, time.Now()
	}
	d.mu.Unlock()
	w.Close()
	theirs.Close()
	defer l.close() // who asks at this moment hears that it has ended
	if err != nil {
		return "cannot start: " + err.Error()
	}
	status := <-end
	d.mu.Lock()
	d.now.pid, d.now.line = 0, nil
	d.mu.Unlock()
	if sig := status.Signal(); sig != -1 {
		return fmt.Sprintf("was ended by signal %d (%v)", sig, sig)
	}
	return fmt.Sprintf("ended with status %d", status.ExitStatus())
}

// end asks the program to end and does not start it again. It waits for the
// time given at most.
func (d *daemon) end(patience time.Duration) {
	close(d.stop)
	if pid := d.look().pid; pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
	select {
	case <-d.done:
	case <-time.After(patience):
		say("%s did not end in %v", d.path, patience)
	}
}
