package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"baton/ee/bus"
	"baton/sim"
	"baton/sim/control"
)

// runWorld runs a world until ctx ends.
func runWorld(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("batonsim", flag.ContinueOnError)
	file := fs.String("world", "", "file of the world; without it, the one that -example prints")
	example := fs.Bool("example", false, "print an example of such a file")
	dir := fs.String("dir", "", "directory of the sockets")
	state := fs.String("state", "", "directory where the EEPROMs keep their content; without it they start blank")
	if err := parse(fs, args, stderr); err != nil {
		return err
	}
	if *example {
		_, err := stdout.Write(control.FormatWorld(control.ExampleWorld()))
		return err
	}
	if *dir == "" {
		return &usageError{"-dir is missing (batonsim -h)"}
	}
	spec := control.ExampleWorld()
	if *file != "" {
		text, err := os.ReadFile(*file)
		if err != nil {
			return err
		}
		if spec, err = control.ParseWorld(text); err != nil {
			return fmt.Errorf("%s: %w", *file, err)
		}
	}
	// A world without power, for the names that defaults give.
	off := spec
	off.Off = true
	filled := *sim.New(off).Spec()
	filled.Off = spec.Off

	chips := &chips{dir: *state}
	if err := chips.load(&filled); err != nil {
		return err
	}
	w := sim.New(filled)
	chips.w = w
	if err := chips.save(); err != nil {
		return err
	}
	return serve(ctx, w, chips, *dir, stdout)
}

// saveEvery is how often the chips are saved without a reason: what a power
// cut tore is no write that anybody made.
const saveEvery = 200 * time.Millisecond

// serve opens all sockets, says so, and serves them until ctx ends or one of
// them fails.
func serve(ctx context.Context, w *sim.World, chips *chips, dir string, stdout io.Writer) (err error) {
	ctx, fail := context.WithCancelCause(ctx)
	var servers sync.WaitGroup
	defer func() {
		fail(nil)
		servers.Wait()
		if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
			err = cause
		}
		err = errors.Join(err, chips.save())
	}()
	start := func(f func() error) {
		servers.Go(func() {
			if err := f(); err != nil {
				fail(err)
			}
		})
	}
	for _, b := range w.Spec().Buses {
		path := filepath.Join(dir, b.Name+".sock")
		l, err := listen(path)
		if err != nil {
			return err
		}
		start(func() error { return bus.Serve(ctx, l, &savedBus{w.Bus(b.Name), chips, fail}) })
		fmt.Fprintf(stdout, "batonsim: %s is unix:%s\n", b.Name, path)
	}
	path := filepath.Join(dir, "control.sock")
	l, err := listen(path)
	if err != nil {
		return err
	}
	changed := func() {
		if err := chips.save(); err != nil {
			fail(err)
		}
	}
	start(func() error { return control.Serve(ctx, l, control.Handler(w, changed)) })
	fmt.Fprintf(stdout, "batonsim: control is %s\nbatonsim: ready\n", path)

	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			changed()
		}
	}
}

// listen opens the Unix socket at path, and takes away what a killed simulator
// left there.
func listen(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("%s: another simulator serves it", path)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("%s: is there and is no socket", path)
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}

// savedBus is a bus whose chips are saved as soon as a write cycle has begun:
// a simulator that is killed loses none that it acknowledged.
type savedBus struct {
	*sim.Bus
	chips *chips
	fail  context.CancelCauseFunc
}

func (b *savedBus) Tx(addr uint16, w, r []byte) error {
	err := b.Bus.Tx(addr, w, r)
	if len(w) > 1 {
		if err := b.chips.saveWritten(); err != nil {
			b.fail(err)
		}
	}
	return err
}
