package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// proc is a process whose output is kept, line by line and in a file.
type proc struct {
	name  string
	cmd   *exec.Cmd
	log   *os.File
	ended chan struct{} // closed when it has ended and its output is complete

	mu    sync.Mutex
	lines []string
	err   error // of its end
}

// startProc starts a program; its output is appended to DIR/NAME.log.
func startProc(dir, name, program string, args ...string) (*proc, error) {
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p := &proc{name: name, cmd: exec.Command(program, args...), log: log, ended: make(chan struct{})}
	from, to := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = to, to
	if err := p.cmd.Start(); err != nil {
		log.Close()
		return nil, err
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(from); s.Scan(); {
			fmt.Fprintln(log, s.Text())
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.mu.Unlock()
		}
		_, _ = io.Copy(io.Discard, from) // a line too long to be kept does not stop the process
	}()
	go func() {
		err := p.cmd.Wait() // returns when the output was copied
		_ = to.Close()      // of a pipe in memory
		<-read
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		log.Close()
		close(p.ended)
	}()
	return p, nil
}

// find returns the last line that contains text.
func (p *proc) find(text string) (line string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.lines) - 1; i >= 0; i-- {
		if strings.Contains(p.lines[i], text) {
			return p.lines[i], true
		}
	}
	return "", false
}

// patience is how long the demo waits for anything to happen.
const patience = 20 * time.Second

// await waits for a line that contains text and returns it. That the process
// ends without it is an error.
func (p *proc) await(ctx context.Context, text string) (string, error) {
	var line string
	err := await(ctx, fmt.Sprintf("%s to say %q", p.name, text), func() (ok bool, err error) {
		select {
		case <-p.ended:
			if line, ok = p.find(text); !ok {
				err = fmt.Errorf("%s ended: %v; its last words: %s", p.name, p.err, p.tail())
			}
			return ok, err
		default:
			line, ok = p.find(text)
			return ok, nil
		}
	})
	return line, err
}

func (p *proc) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines[max(0, len(p.lines)-3):], " / ")
}

// await asks cond until it says yes or fails.
func await(ctx context.Context, what string, cond func() (bool, error)) error {
	deadline := time.Now().Add(patience)
	for {
		ok, err := cond()
		switch {
		case err != nil:
			return err
		case ok:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("waited %v for %s", patience, what)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", what, ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// kill is SIGKILL, and waits for the end.
func (p *proc) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.ended
}

// end is SIGTERM; the process has to end well, in time.
func (p *proc) end() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.kill()
		return fmt.Errorf("%s did not end within %v of SIGTERM", p.name, patience)
	}
	if p.err != nil {
		return fmt.Errorf("%s ended with %w; its last words: %s", p.name, p.err, p.tail())
	}
	return nil
}
