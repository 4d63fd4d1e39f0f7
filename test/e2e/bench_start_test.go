//go:build bench

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// startLimit is what the start of the agent may take, as a multiple of what the
// kernel alone takes until its first program runs. Servers find their devices
// only when the agent has looked: its start is part of the power-on time.
const startLimit = 1.15

// start is how far a board has come, counted from when QEMU was started.
type start struct {
	wall  float64 // seconds
	clock float64 // seconds of the board's own clock, which starts with its kernel
	cpu   float64 // seconds of processor time QEMU took, for all processors of the board
}

// TestStart compares the start of the image up to the agent's first answer with
// that of the same image started by a program that does nothing. Both have the
// same files, and differ by one word on the kernel's command line. Starts of
// both alternate, so that what else this machine does meets both.
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

	const pairs = 5
	var noop, ready, accepts []start
	ratio := func() float64 { return median(walls(ready)) / median(walls(noop)) }
	// Where the machine is busy with other things, more starts tell more.
	for len(ready) == 0 || ratio() > startLimit && len(ready) < 2*pairs {
		for range pairs {
			noop = append(noop, b.startOf("noop", `started`)[0])
			s := b.startOf("watch", `listening`, `answers HTTP/1\.1 200 OK`)
			accepts, ready = append(accepts, s[0]), append(ready, s[1])
		}
	}
	figure("boot_noop_s", median(walls(noop)), "s until the image's first program runs, %s, %d starts", spread(walls(noop), "s"), len(noop))
	figure("boot_to_socket_s", median(walls(ready)), "s until the agent answers, %s, %d starts", spread(walls(ready), "s"), len(ready))
	figure("boot_to_socket_over_noop", ratio(), "ratio of medians; until the socket accepts %.3f", median(walls(accepts))/median(walls(noop)))
	cpu := func(s start) float64 { return s.cpu }
	clock := func(s start) float64 { return s.clock }
	figure("boot_to_socket_over_noop_cpu", median(each(ready, cpu))/median(each(noop, cpu)), "ratio of QEMU's processor time, %s over %s", spread(each(ready, cpu), "s"), spread(each(noop, cpu), "s"))
	figure("boot_init_to_socket_ms", 1000*(median(each(ready, clock))-median(each(noop, clock))), "ms of the board's clock, from its first program to the agent's first answer")
	if got := ratio(); got > startLimit {
		t.Errorf("boot to socket: %.3f of a start that does nothing (%s over %s); want at most %.2f", got, spread(walls(ready), "s"), spread(walls(noop), "s"), startLimit)
	}
}

// startOf starts the board with one of the programs in the place of init, waits
// until it has said all that is expected, and ends the board.
func (b *board) startOf(name string, says ...string) []start {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, bootMax)
	defer cancel()
	b.machine.Append = []string{"rdinit=/test/" + name}
	begin := time.Now()
	b.power(ctx)
	defer b.vm.Kill()
	var all []start
	for _, what := range says {
		found, err := b.vm.Console.Expect(ctx, regexp.MustCompile(`bench (\d+) `+what))
		if err != nil {
			b.t.Fatalf("%s: %v", name, err)
		}
		wall := time.Since(begin)
		cpu, err := b.vm.CPUTime()
		if err != nil {
			b.t.Fatal(err)
		}
		micro, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			b.t.Fatal(err)
		}
		all = append(all, start{wall.Seconds(), micro / 1e6, cpu.Seconds()})
	}
	fmt.Fprintf(b.console, "\n=== %s: %+v\n", name, all)
	b.t.Logf("%s: %+v", name, all)
	return all
}

func walls(s []start) []float64 { return each(s, func(s start) float64 { return s.wall }) }

func each(s []start, of func(start) float64) []float64 {
	var v []float64
	for _, s := range s {
		v = append(v, of(s))
	}
	return v
}
