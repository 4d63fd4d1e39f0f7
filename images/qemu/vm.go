package qemu

import (
	"context"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// VM is a running machine.
type VM struct {
	// Console is the board's serial console.
	Console *Console

	process *os.Process
	done    chan struct{}
	err     error // of Wait, once done is closed
}

// Start starts the machine. Everything that QEMU and the board print goes to
// log as well. The VM has to be ended: by Kill, or by the board itself and
// Wait. It does not outlive this process.
func (m *Machine) Start(ctx context.Context, log io.Writer) (*VM, error) {
	args, err := m.arguments(ctx)
	if err != nil {
		return nil, err
	}
	c := exec.Command(m.Board.QEMU.Command, append(args, "-monitor", "none", "-serial", "stdio")...)
	c.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		Setpgid:   true, // an interrupt at the terminal is for the test
	}
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.Stdout, c.Stderr = w, w

	vm := &VM{Console: newConsole(in, r, log), done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// To Linux a parent is a thread: were this one to end, QEMU would.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.Start()
		w.Close()
		started <- err
		if err == nil {
			vm.err = c.Wait()
		}
		<-vm.Console.ended
		close(vm.done)
	}()
	if err := <-started; err != nil {
		<-vm.done
		return nil, err
	}
	vm.process = c.Process
	return vm, nil
}

// Kill ends QEMU as a power cut would end the board, at once, and waits until
// it has ended. What QEMU has written to the EEPROMs' files stays written.
func (v *VM) Kill() {
	_ = v.process.Kill() // fails only where it has ended already
	<-v.done
}

// Wait waits until the board has ended QEMU, by a restart, and returns an
// error if it ended in another way or not before ctx did.
func (v *VM) Wait(ctx context.Context) error {
	select {
	case <-v.done:
		return v.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
