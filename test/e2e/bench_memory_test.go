//go:build bench

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// What the agent may have in RAM, in KiB, once it has done a thousand moves.
// The board of a controller has 512 MiB or more, of which the image takes 10.
const (
	residentMost = 16 << 10
	// residentGrowth is what the second half of the moves may add: what is
	// kept of moves is bounded and full by then.
	residentGrowth = 1 << 10
)

// TestMemory moves the slot a thousand times from one client on the board, and
// looks at the agent's memory on the way.
func TestMemory(t *testing.T) {
	b := newBoardWith(t, "ast2600-evb", options{programs: []program{{name: "moves", pkg: "baton/test/benchboard/moves"}}})
	b.boot()
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Minute)
	defer cancel()
	output, status, err := b.vm.Console.Run(ctx, "/test/moves")
	if err != nil {
		t.Fatal(err)
	}
	if status != 0 {
		t.Fatalf("moves: status %d:\n%s\nbatond's log:\n%s", status, output, b.must("tail -n 20 /var/log/batond.log"))
	}
	type memory struct{ moves, rss, hwm, anon, image int }
	var seen []memory
	took := 0
	for line := range strings.Lines(output) {
		var m memory
		if _, err := fmt.Sscanf(line, "moves %d VmRSS %d VmHWM %d RssAnon %d RssShmem %d", &m.moves, &m.rss, &m.hwm, &m.anon, &m.image); err == nil {
			seen = append(seen, m)
		}
		_, _ = fmt.Sscanf(line, "took %d ms", &took)
	}
	if len(seen) != 5 || seen[0].moves != 0 || seen[4].moves != 1000 || took == 0 {
		t.Fatalf("moves printed:\n%s", output)
	}
	for _, m := range seen {
		figure(fmt.Sprintf("agent_rss_%d_moves_mib", m.moves), mib(m.rss), "MiB: %.2f of its own, %.2f of the image; %.2f at most until then", mib(m.anon), mib(m.image), mib(m.hwm))
	}
	figure("agent_move_ms", float64(took)/1000, "ms a move, mean of 1000, emulated, from a client on the board")
	if last := seen[4]; last.rss > residentMost {
		t.Errorf("after 1000 moves the agent has %.2f MiB in RAM; want at most %d", mib(last.rss), residentMost>>10)
	}
	if grown := seen[4].rss - seen[2].rss; grown > residentGrowth {
		t.Errorf("from 500 to 1000 moves the agent has grown by %d KiB; want at most %d: does it keep something of each?", grown, residentGrowth)
	}
}

func mib(kib int) float64 { return float64(kib) / 1024 }
