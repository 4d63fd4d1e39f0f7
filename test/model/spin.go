package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// check is one run of the verifier: a model with definitions.
type check struct {
	name, model string
	define      []string // without -D
	live        bool     // progress under weak fairness, not assertions
	first       bool     // it is built in haste: something is found soon
}

// result is what the verifier found.
type result struct {
	states   int    // stored
	violated string // the property, "" = none
}

// What is violated that is not an assertion with a name.
const (
	reached  = "unreached"        // the assertion at the place that is looked for
	deadlock = "deadlock"         // a process stands where it may not end
	progress = "acceptance cycle" // faults are over, and it does not come to rest
)

// Bounds of one run, on one core.
const (
	memoryMax = 4096    // MiB
	depthMax  = 100_000 // about fifty times what is needed
	timeMax   = 10 * time.Minute
)

type spin struct{ dir, build string }

func tools() error {
	for _, t := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(t); err != nil {
			return fmt.Errorf("%s is missing: apt-get install --no-install-recommends spin gcc libc6-dev", t)
		}
	}
	return nil
}

// check builds and runs a verifier. It searches all that can be reached
// (partial order reduction keeps what the properties speak of), or up to the
// first violation; whatever else ends it is an error.
func (s spin) check(ctx context.Context, c check) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, timeMax)
	defer cancel()
	tmp, err := os.MkdirTemp(s.build, "model-")
	if err != nil {
		return result{}, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	args := []string{}
	for _, d := range c.define {
		args = append(args, "-D"+d)
	}
	if c.live {
		args = append(args, "-DLIVE")
	}
	if _, err := command(ctx, tmp, "spin", append(args, "-a", filepath.Join(s.dir, c.model))...); err != nil {
		return result{}, err
	}
	optimize := "-O2"
	if c.first {
		optimize = "-O0"
	}
	compile := []string{optimize, "-w", "-DCOLLAPSE", fmt.Sprintf("-DMEMLIM=%d", memoryMax), "-o", "pan", "pan.c"}
	pan := []string{fmt.Sprintf("-m%d", depthMax)}
	if c.live {
		pan = append(pan, "-a", "-f")
	} else {
		compile = append(compile, "-DSAFETY")
	}
	if _, err := command(ctx, tmp, "gcc", compile...); err != nil {
		return result{}, err
	}
	out, err := command(ctx, tmp, "./pan", pan...)
	if err != nil {
		return result{}, err
	}
	return parse(out)
}

func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s did not end: %w", name, ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return out, nil
}

var (
	storedLine   = regexp.MustCompile(`(?m)^\s*(\d+) states, stored`)
	errorsLine   = regexp.MustCompile(`(?m)^State-vector \d+ byte, depth reached \d+, errors: (\d+)`)
	violatedLine = regexp.MustCompile(`(?m)^pan:\d+: (?:assertion violated (\w+)|(invalid end state)|(acceptance cycle))`)
)

// parse reads what a verifier printed. A search that was cut short proves
// nothing, so it is an error.
func parse(out []byte) (result, error) {
	for _, cut := range []string{"max search depth too small", "reached -DMEMLIM bound", "out of memory", "Search not completed due"} {
		if bytes.Contains(out, []byte(cut)) {
			return result{}, fmt.Errorf("the search was cut short: %s", cut)
		}
	}
	stored, failed := storedLine.FindSubmatch(out), errorsLine.FindSubmatch(out)
	if stored == nil || failed == nil {
		return result{}, fmt.Errorf("the verifier's figures are missing:\n%s", out)
	}
	var r result
	var err error
	if r.states, err = strconv.Atoi(string(stored[1])); err != nil {
		return result{}, err
	}
	v := violatedLine.FindSubmatch(out)
	switch {
	case string(failed[1]) == "0" && v == nil:
		return r, nil
	case v == nil:
		return result{}, errors.New("the verifier found an error that is not known here:\n" + string(out))
	case len(v[1]) > 0:
		r.violated = string(v[1])
	case len(v[2]) > 0:
		r.violated = deadlock
	default:
		r.violated = progress
	}
	return r, nil
}
