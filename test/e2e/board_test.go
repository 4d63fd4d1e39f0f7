//go:build e2e

package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"baton/ee"
	"baton/mgmt"
)

const (
	theVM   = "train1"
	theSlot = "gpu0"
)

var groups = map[string]uint16{"server1": 101, "server2": 102}

// TestBoard boots the board, moves its slot through the kernel's I2C driver,
// and cuts the power in the middle of moves: 5 times, or 20 with
// BATON_E2E_FULL=1. BATON_E2E_SEED repeats the instants of an earlier run as
// far as the machine lets it.
//
// One boot serves as much as it can: the one that follows a power cut shows
// what the cut has done, and is where the next move is cut.
func TestBoard(t *testing.T) {
	cuts := 5
	if os.Getenv("BATON_E2E_FULL") == "1" {
		cuts = 20
	}
	rng := random(t)
	b := newBoard(t, "ast2600-evb")

	b.boot()
	s := b.slot()
	b.generation = s.Generation
	for host := range groups {
		// After a format every host starts fenced.
		b.must("baton unfence " + host + " --yes")
	}
	t.Run("MoveThroughTheKernel", func(t *testing.T) {
		b.t = t
		for _, host := range []string{"server1", "server2"} {
			start := time.Now()
			b.must("baton move " + theVM + " --to " + host + " --json")
			b.moveTime = time.Since(start)
			b.arrived(host)
		}
	})
	if t.Failed() {
		return
	}
	for i := range cuts {
		t.Run(fmt.Sprintf("PowerCut%02d", i+1), func(t *testing.T) {
			b.t = t
			b.cut(rng)
		})
		if t.Failed() {
			return
		}
	}
	b.t = t
	t.Logf("boots: %d, in %v; power cuts that found the block: %v", len(b.boots), b.boots, b.found)

	t.Run("NetworkTrial", func(t *testing.T) {
		b.t = t
		b.trial()
	})
	if t.Failed() {
		return
	}
	t.Run("RepairTornStore", func(t *testing.T) {
		b.t = t
		b.repair(rng)
	})
	if t.Failed() {
		return
	}
	t.Run("Reboot", func(t *testing.T) {
		b.t = t
		b.reboot()
	})
}

// cut moves the slot to the other host, cuts the power at a random instant
// of that, and boots again.
func (b *board) cut(rng *rand.Rand) {
	b.t.Helper()
	from := b.slot().Host
	to := "server1"
	if from == to {
		to = "server2"
	}
	before := b.block()
	page := b.content("store")

	// Half of the cuts come at any time from the command on, so also before
	// anything is written and after all is. The others come shortly after the
	// first write to the store: the intent.
	instant := time.Duration(rng.Int64N(int64(b.moveTime * 5 / 4)))
	if rng.IntN(2) == 0 {
		instant = time.Duration(rng.Int64N(int64(120 * time.Millisecond)))
		if err := b.vm.Console.Send("baton move " + theVM + " --to " + to); err != nil {
			b.t.Fatal(err)
		}
		for deadline := time.Now().Add(10*b.moveTime + 10*time.Second); slices.Equal(page, b.content("store")); {
			if time.Now().After(deadline) {
				b.t.Fatal("the move wrote nothing to the store")
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(instant)
		b.t.Logf("%s -> %s, power cut %v after the intent", from, to, instant)
	} else {
		if err := b.vm.Console.Send("baton move " + theVM + " --to " + to); err != nil {
			b.t.Fatal(err)
		}
		time.Sleep(instant)
		b.t.Logf("%s -> %s, power cut %v after the command", from, to, instant)
	}
	b.vm.Kill()

	found := "unreadable"
	if after, err := ee.DecodeBlock(b.content("slot0")); err == nil {
		switch after.Group {
		case before.Group:
			found = "before"
		case groups[to]:
			found = "after"
		case ee.GroupFree:
			found = "free"
		default:
			b.t.Errorf("the block has group %d; want %d, %d or %d", after.Group, before.Group, groups[to], ee.GroupFree)
		}
	}
	b.found[found]++

	b.boot()
	switch s := b.slot(); s.Host {
	case from, to:
		b.t.Logf("block found %s, then with %s, generation %s", found, s.Host, s.Generation)
		b.arrived(s.Host)
	default:
		b.t.Errorf("after the power cut %s is with %q, group %d; want %s or %s", theSlot, s.Host, s.Group, from, to)
	}
}

// arrived checks that the slot is with host: by what batond says, and by what
// is in the EEPROM.
func (b *board) arrived(host string) {
	b.t.Helper()
	s := b.slot()
	if s.Host != host || s.Group != groups[host] || s.VM != theVM {
		b.t.Errorf("batond says host %q, group %d, VM %q; want %s, %d, %s", s.Host, s.Group, s.VM, host, groups[host], theVM)
	}
	block := b.block()
	if block.Group != groups[host] {
		b.t.Errorf("group in the EEPROM is %d; want %d", block.Group, groups[host])
	}
	if got := block.Generation.String(); got != s.Generation {
		b.t.Errorf("generation in the EEPROM is %s, batond says %s", got, s.Generation)
	}
	b.noOlder(s.Generation)
}

// noOlder checks that a generation is not behind the last one seen, and
// remembers it.
func (b *board) noOlder(now string) {
	b.t.Helper()
	g, err := ee.ParseGeneration(now)
	if err != nil {
		b.t.Fatal(err)
	}
	if last, err := ee.ParseGeneration(b.generation); err == nil {
		if g.Incarnation != last.Incarnation {
			b.t.Errorf("generation %s has another incarnation than %s: the store was formatted", now, b.generation)
		} else if g.Counter < last.Counter {
			b.t.Errorf("generation went back from %s to %s", b.generation, now)
		}
	}
	b.generation = now
}

// slot asks batond for the state of the slot, and checks the store's.
func (b *board) slot() mgmt.Slot {
	b.t.Helper()
	e := b.enclosure()
	if !e.Store.OK {
		b.t.Fatalf("store: %s", e.Store.Problem)
	}
	if e.Store.Damaged != 0 {
		// QEMU's EEPROM tears no page, so there is nothing to find.
		b.t.Errorf("%d pages of the store are damaged", e.Store.Damaged)
	}
	if e.Simulated {
		b.t.Error("batond takes the board for a simulation")
	}
	for _, s := range e.Slots {
		if s.Name == theSlot {
			return s
		}
	}
	b.t.Fatalf("batond has no slot %s", theSlot)
	panic("not reached")
}

// block is the config block in the EEPROM of the slot's engine, read from
// outside.
func (b *board) block() ee.Block {
	b.t.Helper()
	block, err := ee.DecodeBlock(b.content("slot0"))
	if err != nil {
		b.t.Fatalf("EEPROM of %s: %v", theSlot, err)
	}
	return block
}

// random is seeded by BATON_E2E_SEED, or by chance, and says by what.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("BATON_E2E_SEED"); s != "" {
		n, err := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 64)
		if err != nil {
			t.Fatalf("BATON_E2E_SEED=%s: want a number in hex", s)
		}
		seed = n
	}
	t.Logf("BATON_E2E_SEED=%016x", seed)
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return rand.New(rand.NewChaCha8(key))
}

// reboot takes the board down as its operator would.
func (b *board) reboot() {
	b.t.Helper()
	if err := b.vm.Console.Send("reboot"); err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.ctx, bootMax)
	defer cancel()
	if err := b.vm.Wait(ctx); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			b.t.Fatal("the board did not restart")
		}
		b.t.Errorf("QEMU ended with %v", err)
	}
}
