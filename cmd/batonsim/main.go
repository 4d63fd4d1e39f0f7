// Command batonsim is an I/O enclosure and its servers, simulated.
//
// Without a subcommand it runs the world of a file in real time: each I2C bus
// on a Unix socket that batond can open, and a control socket for all that
// hands, mains switches and servers do. "batonsim server" plays the software
// of one of the servers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "batonsim:", err)
		var u *usageError
		if errors.As(err, &u) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// usageError is a command line that makes no sense: exit code 2.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

const usage = `usage: batonsim [-world FILE] [-state DIR] -dir DIR
       batonsim -example
       batonsim server -name NAME -control SOCKET -agent SOCKET -job FILE

Runs a simulated enclosure until it gets SIGTERM. Each I2C bus of the world is
served at DIR/BUS.sock (unix:DIR/BUS.sock for batond), the control socket is
DIR/control.sock. A restart is a loss of power for all but the EEPROMs, and
for those too without -state.

"batonsim server" plays the software of one server: it attaches the slot of
the job's VM, starts the VM and trains, in device memory, until it is killed.

`

func run(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "server" {
		return runServer(ctx, args[1:], stdout, stderr)
	}
	return runWorld(ctx, args, stdout, stderr)
}

// parse reads flags that need values; flag's own message goes to stderr.
func parse(fs *flag.FlagSet, args []string, stderr io.Writer, required ...string) error {
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, usage)
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return &usageError{err.Error()}
	}
	if fs.NArg() > 0 {
		return &usageError{fmt.Sprintf("what is %q? (batonsim -h)", fs.Arg(0))}
	}
	for _, name := range required {
		if fs.Lookup(name).Value.String() == "" {
			return &usageError{fmt.Sprintf("-%s is missing (batonsim -h)", name)}
		}
	}
	return nil
}
