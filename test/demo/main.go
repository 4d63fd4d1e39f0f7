// Command demo shows what Baton does, on a simulated enclosure and without
// root: go run ./test/demo
//
// It builds batonsim and batond, runs them and two servers as processes in a
// temporary directory, and lets the servers die, the enclosure lose its power
// and the agent be killed in the middle of moves. Every figure in its last line
// was measured: page writes by the simulator's chips, steps by what the
// servers said was done, resets and reach by the model's record.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

// limit is more than the demo needs on a slow machine.
const limit = 3 * time.Minute

func run(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(stderr)
	bin := fs.String("bin", "", "directory that has batonsim and batond already; \"\" = build them")
	keep := fs.Bool("keep", false, "leave the temporary directory, with all logs")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	d, err := newDemo(ctx, stdout, *bin)
	if err == nil {
		err = d.play(ctx)
	}
	if d != nil {
		d.stop()
		switch {
		case *keep || err != nil:
			fmt.Fprintf(stdout, "\nlogs and state: %s\n", d.dir)
		default:
			if e := os.RemoveAll(d.dir); e != nil {
				err = e
			}
		}
	}
	if err != nil {
		fmt.Fprintf(stdout, "demo: FAILED %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		return err
	}
	fmt.Fprintln(stdout, d.summary())
	return nil
}
