// Mkimage builds what a board boots: kernel, device tree and root file system.
//
//	go run ./images/mkimage -board ast2600-evb
//
// It leaves them in build/images/BOARD and prints their sizes. The same source,
// tool chain and kernel package give the same bytes. All three are in image.fit
// as well, a FIT image as U-Boot boots it, signed with the RSA key that the file
// BATON_SIGN_KEY holds.
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
	"baton/images/fit/mkfit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("mkimage", flag.ContinueOnError)
	f.SetOutput(stderr)
	name := f.String("board", "ast2600-evb", "`board`: one of "+strings.Join(boards.Names(), ", ")+", or a directory such as ./myboard")
	build := f.String("build", "build", "`folder` for the results (images/BOARD in it) and for what was downloaded (kernels in it)")
	update := f.Bool("update", false, "ask the Debian mirror for a newer kernel than the one in the build folder")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	board, err := boards.Load(*name)
	if err != nil {
		return err
	}
	if err := checkTools(); err != nil {
		return err
	}
	b := builder{
		board:   board,
		kernels: filepath.Join(*build, "kernels"),
		update:  *update,
	}
	if file := os.Getenv("BATON_SIGN_KEY"); file != "" {
		if b.key, err = mkfit.ReadKey(file); err != nil {
			return err
		}
	}
	return b.build(ctx, filepath.Join(*build, "images", board.Name), stdout)
}
