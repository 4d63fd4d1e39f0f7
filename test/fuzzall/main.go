// Command fuzzall runs every fuzz target of the module for a given time each
// and ends each with a line "fuzz: decoder=NAME execs=N crashes=M".
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"
)

var (
	target = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	execs  = regexp.MustCompile(`execs: (\d+)`)
)

func main() {
	each := flag.Duration("time", 20*time.Second, "for each target")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *each); err != nil {
		fmt.Fprintln(os.Stderr, "fuzzall:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, each time.Duration) error {
	files, err := filepath.Glob("*/*_test.go")
	if err != nil {
		return err
	}
	for _, deeper := range []string{"*/*/*_test.go", "*/*/*/*_test.go"} {
		more, err := filepath.Glob(deeper)
		if err != nil {
			return err
		}
		files = append(files, more...)
	}
	crashes := 0
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		for _, m := range target.FindAllSubmatch(src, -1) {
			name, dir := string(m[1]), "./"+filepath.Dir(f)
			cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+name+"$", "-fuzztime", each.String(), dir)
			out, err := cmd.CombinedOutput()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			n, crashed := "0", 0
			if all := execs.FindAllSubmatch(out, -1); all != nil {
				n = string(all[len(all)-1][1])
			}
			if err != nil {
				crashed = 1
				crashes++
				os.Stdout.Write(out)
			}
			fmt.Printf("fuzz: decoder=%s/%s execs=%s crashes=%d\n", filepath.Dir(f), name, n, crashed)
		}
	}
	if crashes > 0 {
		return fmt.Errorf("%d targets crashed", crashes)
	}
	return nil
}
