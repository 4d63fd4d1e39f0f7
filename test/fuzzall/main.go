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
	all, err := targets()
	if err != nil {
		return err
	}
	bad := 0
	for _, t := range all {
		// A minute of minimising each input that is new, which is the default,
		// leaves no time to run any.
		cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+filepath.Base(t)+"$", "-fuzztime", each.String(),
			"-fuzzminimizetime", "10x", "-parallel", "2", "./"+filepath.Dir(t))
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
			os.Stdout.Write(out)
		}
		if err != nil || n == "0" {
			bad++
		}
		fmt.Printf("fuzz: decoder=%s execs=%s crashes=%d\n", t, n, crashed)
	}
	if bad > 0 {
		return fmt.Errorf("%d targets crashed or did not run", bad)
	}
	return nil
}

// targets are all fuzz targets of the module, as "ee/FuzzDecodeBlock".
func targets() (all []string, err error) {
	for _, pattern := range []string{"*/*_test.go", "*/*/*_test.go", "*/*/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			src, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			for _, m := range target.FindAllSubmatch(src, -1) {
				all = append(all, filepath.Join(filepath.Dir(f), string(m[1])))
			}
		}
	}
	return all, nil
}
