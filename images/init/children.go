package main

import (
	"os"
	"slices"
	"sync"
	"syscall"
)

// children starts processes and waits for them, and for the orphans that PID 1
// inherits. Nothing else in this program may wait for a process: os/exec and
// the one reaper would take each other's.
type children struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
	started chan struct{} // has room for one
}

func newChildren() *children {
	return &children{
		waiting: map[int]chan syscall.WaitStatus{},
		started: make(chan struct{}, 1),
	}
}

// program is what start runs, in a session of its own.
type program struct {
	path string
	args []string
	// files become its descriptors 0, 1, 2 and so on.
	files []*os.File
	// terminal makes descriptor 0 the session's terminal.
	terminal bool
	env      []string // beside that of all children
}

// start runs a program. The channel gives its end, once.
func (c *children) start(p program) (pid int, end <-chan syscall.WaitStatus, err error) {
	attr := &syscall.ProcAttr{
		Dir: "/",
		Env: slices.Concat(environment, p.env),
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: p.terminal},
	}
	for _, f := range p.files {
		attr.Files = append(attr.Files, f.Fd())
	}
	// The reaper may see the child's end at once, and must find it here.
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, err = syscall.ForkExec(p.path, append([]string{p.path}, p.args...), attr)
	if err != nil {
		return 0, nil, err
	}
	ch := make(chan syscall.WaitStatus, 1)
	c.waiting[pid] = ch
	select {
	case c.started <- struct{}{}:
	default:
	}
	return pid, ch, nil
}

// reap runs for ever.
func (c *children) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch err {
		case nil:
			c.mu.Lock()
			if ch, ok := c.waiting[pid]; ok {
				ch <- status
				delete(c.waiting, pid)
			}
			c.mu.Unlock()
		case syscall.ECHILD:
			<-c.started
		}
	}
}
