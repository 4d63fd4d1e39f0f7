// Runboard boots a board's image under QEMU, with its console on this
// terminal. Ctrl-A X ends it.
//
//	go run ./images/runboard -board ast2600-evb
//
// With -flash it plays the bootloader, and boots from the board's flash.
//
// EEPROMs and flash chips keep their content in build/run/BOARD from one run to the next.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"baton/images/boards"
	"baton/images/bootloader"
	"baton/images/fit"
	"baton/images/qemu"
)

func main() {
	// An interrupt at the terminal is for the board's shell: QEMU takes the
	// terminal over and passes it on.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "runboard:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("runboard", flag.ContinueOnError)
	f.SetOutput(stderr)
	name := f.String("board", "ast2600-evb", "`board`: one of "+strings.Join(boards.Names(), ", ")+", or a directory such as ./myboard")
	build := f.String("build", "build", "`folder` of what was built; the chips' contents are in run/BOARD in it")
	fresh := f.Bool("fresh", false, "start with empty EEPROMs and flash chips")
	flash := f.Bool("flash", false, "boot from the banks in the board's flash, and again when the board restarts (docs/update.md)")
	key := f.String("key", "", "with -flash: `file` of the public key that images have to be signed with")
	f.Usage = func() {
		fmt.Fprintln(stderr, "usage: runboard [flags] [-- arguments for QEMU]")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	board, err := boards.Load(*name)
	if err != nil {
		return err
	}
	m := &qemu.Machine{
		Board: board,
		Image: filepath.Join(*build, "images", board.Name),
		State: filepath.Join(*build, "run", board.Name),
		Args:  f.Args(),
	}
	if *fresh {
		if err := m.Erase(); err != nil {
			return err
		}
	}
	if err := m.Prepare(); err != nil {
		return err
	}
	for _, e := range board.QEMU.EEPROMs {
		fmt.Fprintf(stderr, "runboard: %s at %#x on %s is %s\n", e.Name, uint64(e.Address), e.Bus, m.EEPROM(e.Name))
	}
	for _, f := range board.QEMU.Flash {
		fmt.Fprintf(stderr, "runboard: flash %s is %s\n", f.Name, m.Flash(f.Name))
	}
	fmt.Fprintln(stderr, "runboard: the console follows in some seconds; Ctrl-A X ends it")
	if *flash {
		return runFlash(ctx, m, *key, stdin, stdout, stderr)
	}
	_, err = m.RunTerminal(ctx, stdin, stdout, stderr)
	return err
}

// runFlash boots from the banks of the board's flash, as U-Boot does, again
// each time the board restarts. A flash that is blank gets image.fit first.
func runFlash(ctx context.Context, m *qemu.Machine, keyFile string, stdin io.Reader, stdout, stderr io.Writer) error {
	b := &bootloader.Board{Machine: m, Say: func(format string, args ...any) {
		fmt.Fprintf(stderr, "bootloader: "+format+"\n", args...)
	}}
	if keyFile != "" {
		text, err := os.ReadFile(keyFile)
		if err != nil {
			return err
		}
		if b.Key, err = fit.ParseKey(text); err != nil {
			return fmt.Errorf("%s: %w", keyFile, err)
		}
	}
	blank, err := b.Blank(ctx)
	if err != nil {
		return err
	}
	if blank {
		image, err := os.ReadFile(filepath.Join(m.Image, "image.fit"))
		if err != nil {
			return err
		}
		fmt.Fprintln(stderr, "runboard: the flash is blank: image.fit goes to bank a")
		if err := b.Provision(ctx, image); err != nil {
			return err
		}
	}
	for {
		if _, err := b.Load(ctx); err != nil {
			return err
		}
		how, err := m.RunTerminal(ctx, stdin, stdout, stderr)
		if err != nil || how != qemu.EndReset && how != qemu.EndWatchdog {
			return err
		}
		fmt.Fprintln(stderr, "runboard: the board restarts")
	}
}
