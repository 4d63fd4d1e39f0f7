// Command batond is the agent of an I/O enclosure: it moves the enclosure's
// slots between servers, and answers on a Unix socket (docs/configuration.md).
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

	"baton/ee"
	"baton/mgmt"
	"baton/mgmt/config"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "batond:", err)
	if errors.Is(err, errUsage) {
		os.Exit(2)
	}
	os.Exit(1)
}

var errUsage = errors.New("see batond -h")

const usage = `usage: batond [-config FILE] [-check]
       batond -version

Runs the agent until it gets SIGTERM.

`

func run(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("batond", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, usage)
		fs.PrintDefaults()
	}
	file := fs.String("config", "/etc/baton/batond.json", "configuration `file` (docs/configuration.md)")
	check := fs.Bool("check", false, "say what is wrong with the configuration, and end")
	version := fs.Bool("version", false, "print the version, and end")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w: %w", err, errUsage)
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("what is %q? %w", fs.Arg(0), errUsage)
	}
	if *version {
		fmt.Fprintln(stdout, "batond", mgmt.Version)
		return nil
	}
	seed, err := readSeed(*file)
	if err != nil {
		return err
	}
	if *check {
		c := seed.config
		fmt.Fprintf(stdout, "%s: ok: enclosure %s, slots: %d, hosts: %d, VMs: %d\n", *file, c.Enclosure, len(c.Slots), len(c.Hosts), len(c.VMs))
		return nil
	}
	a := newAgent(seed, newLog(stderr))
	defer a.close()
	return a.serve(ctx)
}

func findProfile(name string) (config.Profile, error) {
	p, err := ee.LoadProfile(name)
	if err != nil {
		return config.Profile{}, err
	}
	return config.Profile{Registers: p.Caps.Has(ee.CapStatus), LinkControl: p.Caps.Has(ee.CapLinkControl), BlockOffset: p.BlockOffset}, nil
}
