package qemu

import (
	"context"
	"io"
	"os"
)

// RunTerminal runs the machine with the terminal as its console, until it ends
// or ctx does, and says how it ended. Ctrl-A X ends it.
func (m *Machine) RunTerminal(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (Ending, error) {
	c, err := m.Terminal(ctx)
	if err != nil {
		return EndKilled, err
	}
	monitor, err := newQMP()
	if err != nil {
		return EndKilled, err
	}
	c.Args = append(c.Args, "-chardev", "socket,id=qmp,fd=3", "-mon", "chardev=qmp,mode=control")
	c.ExtraFiles = []*os.File{monitor.theirs} // number 3 there
	c.Stdin, c.Stdout, c.Stderr = stdin, stdout, stderr
	err = c.Start()
	monitor.theirs.Close()
	if err == nil {
		err = c.Wait()
	}
	<-monitor.ended // all that QEMU told has been heard
	return monitor.how(), err
}
