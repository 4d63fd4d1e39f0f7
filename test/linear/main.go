// Command linear asks a real batond, by 16 clients at its socket at once, for
// moves, attaches, releases, fences and looks, on four slots, while transfers
// fail on its buses and it is killed and started again. Then it looks for an
// order in which all answers could have been given by one thing after the other
// (porcupine): go run ./test/linear
//
// It ends with a line "linearizable: ops=N violations=0", and exit status 1
// where there is no such order, where the checker could not tell, or where the
// load was lighter than it has to be.
//
// The whole state, hosts and slots, is one object: a fence concerns all slots, so
// the history can not be cut by slots without missing what is wrong between
// them. It is cut in time instead, where everything is at rest and all of the
// state can be read (segment).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/anishathalye/porcupine"

	"baton/mgmt"
	"baton/sim"
	"baton/test/gobuild"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "linear:", err)
		os.Exit(1)
	}
}

// Bounds that a run has to keep to show anything.
const (
	minWrites      = 40.0 // percent
	minOverlapping = 30.0
)

// segmentOps is how many operations are between two rests.
const segmentOps = 300

type options struct {
	bin, bug string
	ops      int
	seed     uint64
	log      io.Writer     // of how far it is
	keep     func(segment) // is given each, if not nil
}

func (o options) progress(format string, args ...any) { fmt.Fprintf(o.log, format+"\n", args...) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("linear", flag.ContinueOnError)
	fs.SetOutput(stderr)
	o := options{log: stderr}
	fs.StringVar(&o.bin, "bin", "", "directory that has batond already; \"\" = build it")
	fs.StringVar(&o.bug, "bug", "", "fault that batond is built with (BATON_BUG); needs a batond of its own")
	fs.IntVar(&o.ops, "ops", 1000, "operations at least")
	fs.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of what the clients and the faults choose")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	r, err := play(ctx, o)
	if err != nil {
		return err
	}
	return r.report(stdout)
}

// result is what a run was.
type result struct {
	seed       uint64
	shares     shares
	segments   int
	busy       int
	kills      int
	restarts   int
	faults     int
	violations []string
	truth      []string // what the model of the hardware saw that must not be
	took       time.Duration
}

func (r result) report(w io.Writer) error {
	n := r.shares
	writes, overlapping := percent(n.writes, n.ops), percent(n.overlapping, n.ops)
	fmt.Fprintf(w, "clients %d, slots %d, seed %d, %d segments, %.0f s\n", clients, slots, r.seed, r.segments, r.took.Seconds())
	fmt.Fprintf(w, "writes %.1f %% (want %.0f), overlapping on a slot %.1f %% (want %.0f), fences %d, refused %d, lost %d; not counted: %d answers of busy\n",
		writes, minWrites, overlapping, minOverlapping, n.fences, n.refused, n.lost, r.busy)
	fmt.Fprintf(w, "restarts %d clean, %d by SIGKILL; faults on the buses %d\n", r.restarts, r.kills, r.faults)
	for _, v := range slices.Concat(r.violations, r.truth) {
		fmt.Fprintln(w, v)
	}
	bad := len(r.violations) + len(r.truth)
	fmt.Fprintf(w, "linearizable: ops=%d violations=%d\n", n.ops, bad)
	switch {
	case bad > 0:
		return fmt.Errorf("%d violations", bad)
	case writes < minWrites || overlapping < minOverlapping:
		return fmt.Errorf("the load was too light to show anything: writes %.1f %%, overlapping %.1f %%", writes, overlapping)
	case r.kills == 0 || r.faults == 0 || n.fences == 0:
		return errors.New("nothing was killed, fenced or failed: that shows nothing")
	}
	return nil
}

// play runs segments until there are enough operations, and checks each.
func play(ctx context.Context, o options) (r result, err error) {
	began := time.Now()
	r.seed = o.seed
	if o.bin == "" {
		dir, err := os.MkdirTemp("", "linear-bin")
		if err != nil {
			return r, err
		}
		defer os.RemoveAll(dir)
		if err := build(ctx, dir, o.bug != ""); err != nil {
			return r, err
		}
		o.bin = dir
	}
	s, err := newStage(ctx, o.bin, o.bug)
	if s != nil {
		defer func() { err = errors.Join(err, s.close()) }()
	}
	if err != nil {
		return r, err
	}
	if err := s.unfence(ctx); err != nil { // a new store has every host fenced
		return r, err
	}
	from, err := s.settle(ctx)
	if err != nil {
		return r, err
	}
	var ids, moves atomic.Int64
	var segments []segment
	for total := 0; total < o.ops && len(r.violations) == 0; {
		seed := rand.New(rand.NewPCG(o.seed, uint64(len(segments))))
		c := &crowd{stage: s, began: time.Now(), ids: &ids, moves: &moves, known: from, writing: make(chan struct{}, writers)}
		if err := c.segment(ctx, seed, &r); err != nil {
			return r, err
		}
		g := segment{from: from, ops: c.ops, died: c.died}
		// Operations that nobody waits for any more are finished before the end
		// of the agent; what they left is found by its start.
		if err := s.end(syscall.SIGTERM); err != nil {
			return r, err
		}
		r.restarts++
		if err := s.start(ctx); err != nil {
			return r, err
		}
		if from, err = s.settle(ctx); err != nil {
			return r, err
		}
		g.end = output{slots: map[int]slotState{}, hosts: map[int]hostState{}}
		for i, sl := range from.slots {
			g.end.slots[i] = sl
		}
		for i, h := range from.hosts {
			g.end.hosts[i] = h
		}
		r.busy += c.busy
		segments = append(segments, g)
		if o.keep != nil {
			o.keep(g)
		}
		total += len(g.ops)
		o.progress("segment %d: %d operations, %.0f s", len(segments), total, time.Since(began).Seconds())
		switch check(g, patience) {
		case porcupine.Illegal:
			r.violations = append(r.violations, fmt.Sprintf("segment %d: no order explains these answers; the last one cannot be:\n%s", len(segments), culprit(g)))
		case porcupine.Unknown:
			r.violations = append(r.violations, fmt.Sprintf("segment %d: no order was found within %v; up to here there is one:\n%s", len(segments), patience, culprit(g)))
		}
		r.truth = append(r.truth, s.truth()...)
	}
	r.segments, r.shares = len(segments), measure(segments)
	r.took = time.Since(began)
	return r, nil
}

// truth is what the model of the hardware saw since the last rest that no agent
// may do.
func (s *stage) truth() (bad []string) {
	for _, sl := range s.w.Spec().Slots {
		if n := s.w.MaxOwners(sl.Name); n > 1 {
			bad = append(bad, fmt.Sprintf("%s: %d servers could reach the device at the same instant", sl.Name, n))
		}
	}
	for _, v := range s.w.Violations() {
		bad = append(bad, fmt.Sprintf("%v: %s: %s", v.At, v.Name, v.What))
	}
	s.w.ClearRecord()
	return bad
}

// segment has all clients work, and disturbs them, until there are enough
// operations.
func (r *crowd) segment(ctx context.Context, seed *rand.Rand, sum *result) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	for i := range clients {
		c := &client{crowd: r, n: i, c: mgmt.Dial(r.path("baton.sock")), rng: rand.New(rand.NewPCG(seed.Uint64(), uint64(i)))}
		all.Go(func() {
			defer c.c.Close()
			c.work(working, func(ops int) bool { return ops >= segmentOps })
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		all.Wait()
	}()
	err := r.disturb(working, seed, done, sum)
	if err != nil {
		stop() // nobody waits for an agent that is gone
	}
	<-done
	return err
}

// faults that a bus can have, each for a few transfers.
var faults = []sim.Fault{
	{Kind: sim.NACKAddr}, {Kind: sim.NACKData, Only: sim.WriteOp, Byte: 3}, {Kind: sim.ArbitrationLost},
	{Kind: sim.StuckSDA, Pulses: 27}, {Kind: sim.Stretch, Hold: 2 * time.Millisecond},
}

// disturb makes transfers fail, and kills the agent in the middle of the
// segment, until done.
func (r *crowd) disturb(ctx context.Context, seed *rand.Rand, done <-chan struct{}, sum *result) error {
	buses := r.w.Spec().Buses
	kill := time.After(time.Duration(100+seed.IntN(400)) * time.Millisecond)
	for {
		select {
		case <-done:
			for _, b := range buses {
				r.w.Bus(b.Name).ClearFaults()
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-kill:
			if err := r.end(syscall.SIGKILL); err != nil {
				return err
			}
			sum.kills++
			if err := r.start(ctx); err != nil {
				return err
			}
			r.died = append(r.died, r.now())
			kill = time.After(time.Duration(1500+seed.IntN(1500)) * time.Millisecond)
		case <-time.After(time.Duration(20+seed.IntN(100)) * time.Millisecond):
			f := faults[seed.IntN(len(faults))]
			f.Count, f.Skip, f.For = 1+seed.IntN(4), seed.IntN(20), 200*time.Millisecond
			r.w.Bus(buses[seed.IntN(len(buses))].Name).Inject(f)
			sum.faults++
		}
	}
}

// build builds batond into dir, with the faults that tests put into it where
// that is asked.
func build(ctx context.Context, dir string, bugs bool) error {
	args := []string{"./cmd/batond"}
	if bugs {
		args = []string{"-tags", "batonbug", "./cmd/batond"}
	}
	return gobuild.Programs(ctx, dir, args...)
}
