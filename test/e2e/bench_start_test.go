//go:build bench

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"baton/images/qemu"
)

// startLimit is what the start of the agent may take, as a multiple of what the
// kernel alone takes until its first program runs. Servers find their devices
// only when the agent has looked: its start is part of the power-on time.
const startLimit = 1.15

// start is how far a board has come, counted from when QEMU was started.
type start struct {
	instructions float64 // executed by all processors; 0 = not counted
	wall         float64 // seconds
	clock        float64 // seconds of the board's own clock, which starts with its kernel
	cpu          float64 // seconds of processor time QEMU took, for all processors of the board
}

// TestStart compares the start of the image up to the agent's first answer with
// that of the same image started by a program that does nothing. Both have the
// same files, and differ by one word on the kernel's command line. Starts of
// both alternate, so that what else this machine does meets both.
//
// What is limited is what the board's processors execute. QEMU's seconds are
// shown beside it, from starts that are not counted: they are mostly its own
// (docs/board.md has where they go).
func TestStart(t *testing.T) {
	const pkg = "baton/test/benchboard/start"
	b := newBoardWith(t, "ast2600-evb", options{programs: []program{
		{name: "noop", pkg: pkg},
		{name: "watch", pkg: pkg},
	}})
	// The board is one in use: store formatted, slot with a host.
	b.boot()
	b.must("baton unfence server1 --yes")
	b.must("baton move train1 --to server1 --json")
	b.vm.Kill()

	counter, err := qemu.NewCounter(t.Context(), b.machine.State)
	if err != nil {
		t.Fatal(err)
	}
	const pairs = 5
	noop, accepts, ready := b.starts(pairs, counter)
	instructions := func(s start) float64 { return s.instructions }
	million := func(s start) float64 { return s.instructions / 1e6 }
	base := median(each(noop, instructions))
	ratio := median(each(ready, instructions)) / base
	figure("boot_to_socket_over_noop", ratio, "ratio of instructions, %s over %s, %d starts of each; until the socket accepts %.3f",
		spread(each(ready, million), "M"), spread(each(noop, million), "M"), pairs, median(each(accepts, instructions))/base)
	if ratio > startLimit {
		t.Errorf("boot to socket: %.3f times the instructions of a start that does nothing (%s over %s); want at most %.2f",
			ratio, spread(each(ready, million), "M"), spread(each(noop, million), "M"), startLimit)
	}

	noop, _, ready = b.starts(pairs, nil)
	wall := func(s start) float64 { return s.wall }
	cpu := func(s start) float64 { return s.cpu }
	clock := func(s start) float64 { return s.clock }
	figure("boot_to_socket_over_noop_wall", median(each(ready, wall))/median(each(noop, wall)), "ratio of QEMU's seconds, %s over %s", spread(each(ready, wall), "s"), spread(each(noop, wall), "s"))
	figure("boot_to_socket_over_noop_cpu", median(each(ready, cpu))/median(each(noop, cpu)), "ratio of QEMU's processor time, %s over %s", spread(each(ready, cpu), "s"), spread(each(noop, cpu), "s"))
	figure("boot_init_to_socket_ms", 1000*(median(each(ready, clock))-median(each(noop, clock))), "ms of the board's clock, from its first program to the agent's first answer")
}

// starts starts the board n times with each program, in turn, and tells how far
// it had come when the one that does nothing ran, when the agent's socket
// accepted, and when the agent answered. A counter of nil counts nothing.
func (b *board) starts(n int, counter *qemu.Counter) (noop, accepts, ready []start) {
	b.t.Helper()
	for range n {
		noop = append(noop, b.startOf("noop", counter, `started`)[0])
		s := b.startOf("watch", counter, `listening`, `answers HTTP/1\.1 200 OK`)
		accepts, ready = append(accepts, s[0]), append(ready, s[1])
	}
	return noop, accepts, ready
}

// startOf starts the board with one of the programs in the place of init, waits
// until it has said all that is expected, and ends the board.
func (b *board) startOf(name string, counter *qemu.Counter, says ...string) []start {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, bootMax)
	defer cancel()
	b.machine.Append = []string{"rdinit=/test/" + name}
	args := b.machine.Args
	if counter != nil {
		b.machine.Args = slices.Concat(args, counter.Args())
		defer func() { b.machine.Args = args }()
	}
	begin := time.Now()
	b.power(ctx)
	defer b.vm.Kill()
	var all []start
	for _, what := range says {
		found, err := b.vm.Console.Expect(ctx, regexp.MustCompile(`bench (\d+) `+what))
		if err != nil {
			b.t.Fatalf("%s: %v", name, err)
		}
		s := start{wall: time.Since(begin).Seconds()}
		if counter != nil {
			n, err := counter.Executed()
			if err != nil {
				b.t.Fatal(err)
			}
			s.instructions = float64(n)
		}
		cpu, err := b.vm.CPUTime()
		if err != nil {
			b.t.Fatal(err)
		}
		micro, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			b.t.Fatal(err)
		}
		s.cpu, s.clock = cpu.Seconds(), micro/1e6
		all = append(all, s)
	}
	fmt.Fprintf(b.console, "\n=== %s: %+v\n", name, all)
	b.t.Logf("%s: %+v", name, all)
	return all
}

func each(s []start, of func(start) float64) []float64 {
	var v []float64
	for _, s := range s {
		v = append(v, of(s))
	}
	return v
}
