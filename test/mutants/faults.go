package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"baton/enclosure/bug"
)

// runFaults puts the bugs of bug.Faults in, each of which some test of
// test/busfaults must catch, and returns how many were not.
func runFaults(ctx context.Context, dir string, out io.Writer) (missed int, err error) {
	bin := filepath.Join(dir, "busfaults.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-tags", "batonbug", "-o", bin, "./test/busfaults")
	if text, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w\n%s", err, text)
	}
	for _, b := range append([]bug.Bug{""}, bug.Faults...) {
		cmd := exec.CommandContext(ctx, bin, "-test.run", "^(TestTable|TestSetOfEight|TestUnreadIsNotDamaged)$", "-test.failfast", "-test.timeout", "5m")
		cmd.Env = append(os.Environ(), "BATON_BUG="+string(b))
		cmd.Dir = "test/busfaults"
		text, failed := cmd.CombinedOutput()
		if ctx.Err() != nil {
			return missed, ctx.Err()
		}
		first := failLine.FindSubmatch(text)
		switch {
		case b == "" && failed != nil:
			return missed, fmt.Errorf("without any bug, test/busfaults fails:\n%s", text)
		case b == "":
		case first == nil:
			missed++
			fmt.Fprintf(out, "%s\n%-15s fails nothing\n", text, b)
		default:
			fmt.Fprintf(out, "%-15s fails %s\n", b, first[1])
		}
	}
	return missed, nil
}
