// Command model checks the protocol of docs/design.md as it is written in
// Promela (move.pml, flag.pml) with spin: every configuration in full, then
// that each mutant is noticed by the property that it is against, then that
// each trace can be reached. It ends in one line, "model: states=N errors=0
// mutants=N missed=0", and with exit 1 where that is not so.
//
// docs/protocol.md says what of the code each step of the model is.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"
)

func main() {
	dir := flag.String("dir", "test/model", "where the models are")
	build := flag.String("build", "build", "where verifiers are built, each in a folder of its own that is removed")
	only := flag.String("only", "", "what has this regular expression in its name, and no more")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *dir, *build, *only, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, build, only string, w io.Writer) error {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	if err := tools(); err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(build, 0o755); err != nil {
		return err
	}
	s := spin{dir: dir, build: build}
	var states, errors, tried, missed, looked, unreached int
	say := func(began time.Time, what, how string) {
		fmt.Fprintf(w, "%-40s %-52s %5.1f s\n", what, how, time.Since(began).Seconds())
	}
	for _, c := range configurations {
		if !chosen.MatchString(c.name) {
			continue
		}
		began := time.Now()
		r, err := s.check(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		states += r.states
		how := fmt.Sprintf("%d states, no error", r.states)
		if r.violated != "" {
			errors++
			how = "VIOLATED: " + r.violated
		}
		say(began, c.name, how)
	}
	for _, m := range mutants {
		if !chosen.MatchString(m.name) {
			continue
		}
		tried++
		began := time.Now()
		r, err := s.check(ctx, m.check())
		if err != nil {
			return fmt.Errorf("mutant %s: %w", m.name, err)
		}
		how := "noticed by " + r.violated
		if r.violated != m.property {
			missed++
			how = fmt.Sprintf("MISSED: %q, not by %s", r.violated, m.property)
		}
		say(began, "mutant "+m.name, how)
	}
	for _, t := range traces {
		if !chosen.MatchString(t.name) {
			continue
		}
		looked++
		began := time.Now()
		r, err := s.check(ctx, t.check())
		if err != nil {
			return fmt.Errorf("trace %s: %w", t.name, err)
		}
		how := "reached"
		if r.violated != reached {
			unreached++
			how = fmt.Sprintf("NOT REACHED (%q)", r.violated)
		}
		say(began, "trace "+t.name, how)
	}
	fmt.Fprintf(w, "traces: reached=%d unreached=%d\n", looked-unreached, unreached)
	fmt.Fprintf(w, "model: states=%d errors=%d mutants=%d missed=%d\n", states, errors, tried, missed)
	if errors+missed+unreached > 0 {
		return fmt.Errorf("%d errors, %d mutants missed, %d traces not reached", errors, missed, unreached)
	}
	return nil
}
