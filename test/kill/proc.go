package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// proc is a process that runs; what it prints is appended to a file.
type proc struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
}

func startProc(dir, name string, env []string, program string, args ...string) (*proc, error) {
	p := &proc{name: name, log: filepath.Join(dir, name+".log"), cmd: exec.Command(program, args...), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), env...)
	// It does not outlive this process, however that ends.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // its state says how it ended
		close(p.ended)
	}()
	return p, nil
}

// kill is SIGKILL, and waits for the end.
func (p *proc) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.ended
}

// gone is an error once the process has ended.
func (p *proc) gone() error {
	select {
	case <-p.ended:
		text, _ := os.ReadFile(p.log)
		lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		return fmt.Errorf("%s ended by itself: %v; its last words: %s", p.name, p.cmd.ProcessState, bytes.Join(lines[max(0, len(lines)-3):], []byte(" / ")))
	default:
		return nil
	}
}

// signal sends SIGSTOP or SIGCONT.
func (p *proc) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// patience is how long anything may take to happen.
const patience = 20 * time.Second
