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

	monitor *qmp
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
	monitor, err := newQMP()
	if err != nil {
		return nil, err
	}
	c := exec.Command(m.Board.QEMU.Command, append(args, "-monitor", "none", "-serial", "stdio",
		"-chardev", "socket,id=qmp,fd=3", "-mon", "chardev=qmp,mode=control")...)
	c.ExtraFiles = []*os.File{monitor.theirs} // number 3 there
	c.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		Setpgid:   true, // an interrupt at the terminal is for the test
	}
	in, err := c.StdinPipe()
	if err != nil {
		monitor.theirs.Close()
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		monitor.theirs.Close()
		return nil, err
	}
	c.Stdout, c.Stderr = w, w

	vm := &VM{Console: newConsole(in, r, log), monitor: monitor, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// To Linux a parent is a thread: were this one to end, QEMU would.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.Start()
		w.Close()
		monitor.theirs.Close()
		started <- err
		if err == nil {
			vm.err = c.Wait()
		}
		<-vm.Console.ended
		<-monitor.ended
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

// Ending says how the machine ended. It may be asked once Wait or Kill has
// returned because of that.
func (v *VM) Ending() Ending { return v.monitor.how() }

// Wait waits until the board has ended QEMU, by a restart or by switching
// itself off (Ending tells), and returns an error if QEMU failed or did not end
// before ctx did.
func (v *VM) Wait(ctx context.Context) error {
	select {
	case <-v.done:
		return v.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
