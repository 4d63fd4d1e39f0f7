// Command mutants puts one bug after the other into the agent and expects the
// test of the invariant that it breaks, and no other, to fail; and the bugs of
// recovery and store, which the power-cut campaign must notice. It ends with a
// line "mutants: run=N missed=M" and exit status 1 if M is not 0.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"baton/enclosure/bug"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// the invariant that each bug breaks is its place in bug.All, from 1.
func wants(i int) string { return fmt.Sprintf("TestInvariant%02d", i+1) }

func run(ctx context.Context, out io.Writer) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin := filepath.Join(dir, "enclosure.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-tags", "batonbug", "-o", bin, "./enclosure")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	if failed, text := failures(ctx, bin, ""); len(failed) > 0 {
		return fmt.Errorf("without any bug, %v fail:\n%s", failed, text)
	}
	missed := 0
	for i, b := range bug.All {
		failed, text := failures(ctx, bin, b)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		ok := len(failed) == 1 && strings.HasPrefix(failed[0], wants(i))
		if !ok {
			missed++
			fmt.Fprintln(out, text)
		}
		fmt.Fprintf(out, "%-15s fails %s\n", b, strings.Join(failed, " "))
	}
	for _, more := range []func(context.Context, string, io.Writer) (int, error){runFaults, campaign} {
		n, err := more(ctx, dir, out)
		if err != nil {
			return err
		}
		missed += n
	}
	fmt.Fprintf(out, "mutants: run=%d missed=%d\n", len(bug.All)+len(bug.Faults)+len(bug.Campaign), missed)
	if missed > 0 {
		return fmt.Errorf("%d bugs were not caught by their test alone", missed)
	}
	return nil
}

// campaign runs the power-cut campaign's slice with each of its bugs. A run that
// ends in any other way than by a violation has noticed nothing.
func campaign(ctx context.Context, dir string, out io.Writer) (missed int, err error) {
	bin := filepath.Join(dir, "powercut.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-tags", "batonbug", "-o", bin, "./test/powercut")
	if text, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w\n%s", err, text)
	}
	slice := func(b bug.Bug) ([]byte, error) {
		cmd := exec.CommandContext(ctx, bin, "-test.run", "^TestCampaign$", "-test.timeout", "5m", "-powercut.first")
		cmd.Env = append(os.Environ(), "BATON_BUG="+string(b))
		cmd.Dir = filepath.Join("test", "powercut")
		return cmd.CombinedOutput()
	}
	if text, err := slice(""); err != nil {
		return 0, fmt.Errorf("without any bug, the campaign fails: %w\n%s", err, text)
	}
	for _, b := range bug.Campaign {
		text, err := slice(b)
		if ctx.Err() != nil {
			return missed, ctx.Err()
		}
		found := violation.FindSubmatch(text)
		if err == nil || found == nil {
			missed++
			fmt.Fprintf(out, "%s\n%-15s not noticed by the campaign\n", text, b)
			continue
		}
		fmt.Fprintf(out, "%-15s cut: %s\n", b, found[1])
	}
	return missed, nil
}

var violation = regexp.MustCompile(`(?m)^violation: (.{1,150})`)

var failLine = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// failures runs the invariants' tests with a bug and returns which failed. A
// panic ends a whole test binary, so each test has a run of its own.
func failures(ctx context.Context, bin string, b bug.Bug) (failed []string, text string) {
	for i := range bug.All {
		cmd := exec.CommandContext(ctx, bin, "-test.run", wants(i), "-test.timeout", "2m")
		cmd.Env = append(os.Environ(), "BATON_BUG="+string(b))
		cmd.Dir = "enclosure"
		out, err := cmd.CombinedOutput()
		if err == nil {
			continue
		}
		text += string(out)
		name := wants(i) + " (no result)"
		if m := failLine.FindSubmatch(out); m != nil {
			name = string(m[1])
		}
		if !slices.Contains(failed, name) {
			failed = append(failed, name)
		}
	}
	return failed, text
}
