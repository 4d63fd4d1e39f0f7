// Command kill sends SIGKILL to the agent in the middle of what it does, over
// and over, and asks the model what became of the enclosure: make kill
//
// batonsim and batond are processes of their own. What each run does, and when
// its kill strikes, is drawn from the seed and the number of the run, so that
// -seed and -run repeat them; processes run in real time, so an instant is hit
// again about, not exactly. Of the instants half are anywhere in the time that
// the operation takes, half shortly after a write that was seen.
//
// Its last line is "kill: runs=N violations=N". docs/kill.md is its page.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"baton/test/gobuild"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

// options say what is run.
type options struct {
	seed    uint64
	runs    int
	first   int            // number of the first run
	workers int            // worlds at the same time
	each    int            // runs before a world is made anew
	bin     string         // directory of batond and batonsim
	env     []string       // of the agent, beside that of this process
	wait    time.Duration  // for anything to happen
	most    int            // violations after which no run is begun; 0 = any number
	store   map[string]any // of the agent's configuration; nil = a chip
	wrap    []string       // program that starts the agent, with its arguments
	forget  bool           // tests: the store is put back as it was before what the agent was killed in
	wide    bool           // each phase has to be hit
	say     func(format string, args ...any)
}

func run(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) (err error) {
	fs := flag.NewFlagSet("kill", flag.ContinueOnError)
	fs.SetOutput(stderr)
	o := options{each: 50, wait: patience}
	fs.Uint64Var(&o.seed, "seed", 0, "repeats a campaign; 0 = another each time")
	fs.IntVar(&o.runs, "runs", 1000, "how many kills")
	fs.IntVar(&o.first, "run", 0, "number of the first run; with -runs 1 it is the only one")
	fs.IntVar(&o.workers, "workers", 2, "worlds at the same time")
	fs.IntVar(&o.most, "most", 20, "violations after which no run is begun")
	fs.StringVar(&o.bin, "bin", "", "directory that has batonsim and batond already; \"\" = build them")
	keep := fs.Bool("keep", false, "leave the temporary directory, with all logs")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	o.wide = o.runs >= 300
	dir, err := os.MkdirTemp("", "bkill") // short: a socket's path has 108 bytes
	if err != nil {
		return err
	}
	if o.bin == "" {
		o.bin = filepath.Join(dir, "bin")
		if err := build(ctx, o.bin); err != nil {
			return err
		}
	}
	o.say = func(format string, args ...any) { fmt.Fprintf(stdout, format+"\n", args...) }
	o.say("kill: seed %d, %d runs from %d, %d workers", o.seed, o.runs, o.first, o.workers)
	began := time.Now()
	r, err := campaign(ctx, dir, o)
	if err != nil {
		fmt.Fprintf(stderr, "kill: %v\nlogs: %s\n", err, dir)
		return err
	}
	fmt.Fprint(stdout, r.table())
	o.say("kill: %.0f seconds, recovered after %s", time.Since(began).Seconds(), r.recovery())
	if !*keep && len(r.wrong) == 0 {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	} else {
		o.say("kill: logs are in %s", dir)
	}
	var missed []string
	if o.wide {
		missed = r.missed()
		for _, m := range missed {
			o.say("kill: never hit: %s", m)
		}
	}
	if r.stalled > 0 {
		o.say("kill: %d more runs were void, because the machine stood still", r.stalled)
	}
	o.say("kill: runs=%d violations=%d", r.runs, len(r.wrong))
	if len(r.wrong) > 0 || len(missed) > 0 || r.runs < o.runs {
		return errors.New("the campaign has failed")
	}
	return nil
}

// campaign runs all of o's runs, each worker in worlds of its own.
func campaign(ctx context.Context, dir string, o options) (*result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := newResult()
	numbers := make(chan int)
	var workers sync.WaitGroup
	for w := range o.workers {
		workers.Go(func() {
			if err := work(ctx, filepath.Join(dir, fmt.Sprint("w", w)), o, numbers, r); err != nil {
				cancel(fmt.Errorf("worker %d: %w", w, err))
			}
		})
	}
deal:
	for i := range o.runs {
		if o.most > 0 && r.bad() >= o.most {
			o.say("kill: %d violations are enough", r.bad())
			break
		}
		select {
		case numbers <- o.first + i:
		case <-ctx.Done():
			break deal
		}
	}
	close(numbers)
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// wedged is what the agent says of a bus that did not answer for seconds. No
// fault is injected on buses here, so it is this machine that stood still, the
// simulator with it, and the run shows nothing.
const wedged = "a transfer has not come back"

// work does the runs whose numbers it gets.
func work(ctx context.Context, dir string, o options, numbers <-chan int, r *result) (err error) {
	var s *stage
	defer func() {
		if s != nil {
			s.close()
		}
	}()
	n, left := 0, 0
	typical := map[string]effort{}
	for number := range numbers {
		for again := true; again; {
			if ctx.Err() != nil || o.most > 0 && r.bad() >= o.most {
				break // the rest of the numbers is taken all the same
			}
			if left == 0 {
				if s != nil {
					s.close()
				}
				n++
				if s, err = newStage(ctx, fmt.Sprintf("%s.%d", dir, n), o, uint64(number)); err != nil {
					return err
				}
				s.typical = typical
				left = o.each
			}
			left--
			said := len(s.said())
			k, err := s.run(ctx, number)
			if ctx.Err() != nil {
				break
			}
			if again = strings.Contains(s.said()[said:], wedged); again {
				left = 0
				o.say("void: seed %d run %d: %s: the machine stood still: %v %q", o.seed, number, k, err, k.wrong)
				if r.void() > o.runs/50+1 {
					return errors.New("the machine stands still too often")
				}
				continue
			}
			if err != nil {
				k.wrong = append(k.wrong, err.Error())
			}
			if len(k.wrong) > 0 {
				left = 0 // what is wrong with this world is no news in the next run
				o.say("violation: seed %d run %d: %s\n  %s", o.seed, number, k, strings.Join(k.wrong, "\n  "))
				o.say("  logs: %s", s.dir)
			}
			r.add(k)
		}
	}
	return nil
}

// build builds the programs into dir, with more flags of go build.
func build(ctx context.Context, dir string, flags ...string) error {
	return gobuild.Programs(ctx, dir, append(flags, "./cmd/batonsim", "./cmd/batond")...)
}
