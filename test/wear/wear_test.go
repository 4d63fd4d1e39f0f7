package wear

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"

	"baton/enclosure"
	"baton/sim"
	"baton/test/rig"
)

// limit is what the hottest page may have been written more often than the
// mean of all.
const limit = 1.10

// short is how many moves a run of all tests makes: some 20 times round the
// store's pages.
const short = 10_000

// TestWear moves one slot to and fro, BATON_WEAR times, and compares how often
// each page of the store was written. Its line goes to the file BATON_WEAR_OUT.
func TestWear(t *testing.T) {
	moves := short
	if s := os.Getenv("BATON_WEAR"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("BATON_WEAR=%q: want a number of moves", s)
		}
		moves = n
	}
	wear := lifetime(t, moves, nil)
	r := ratio(wear)
	line := fmt.Sprintf("wear: moves=%d hottest_over_mean=%.3f", moves, r)
	t.Logf("%s (%d pages, %d to %d writes each, %d in all)", line, len(wear), slices.Min(wear), slices.Max(wear), sum(wear))
	if path := os.Getenv("BATON_WEAR_OUT"); path != "" {
		if err := os.WriteFile(path, []byte(line+"\n"), 0o644); err != nil {
			t.Error(err)
		}
	}
	if r > limit {
		t.Errorf("the hottest page was written %.3f times as often as the mean; want at most %.2f", r, limit)
	}
	if got := sum(wear); got < uint64(moves) {
		t.Errorf("%d moves wrote %d pages of the store: the count does not see its chip", moves, got)
	}
}

// TestUnevenWearIsSeen shows that the figure catches a page that is written out
// of turn: one of the store's pages is rewritten at every eighth move.
func TestUnevenWearIsSeen(t *testing.T) {
	const moves = 1_000
	wear := lifetime(t, moves, func(r *rig.Rig, i int) {
		if i%8 == 0 {
			rewrite(t, r, 100)
		}
	})
	if r := ratio(wear); r <= limit {
		t.Errorf("hottest over mean is %.3f with a page that was written %d times more; want above %.2f", r, moves/8, limit)
	}
}

// rewrite writes a page of the store's chip with what it has.
func rewrite(t *testing.T, r *rig.Rig, page int) {
	t.Helper()
	var spec sim.ChipSpec
	for _, c := range r.W.Spec().Chips {
		if c.Name == "store" {
			spec = c
		}
	}
	m := r.Chip(spec)
	size := int64(m.Geometry().Page)
	p := make([]byte, size)
	if err := m.ReadAt(r.Ctx(), p, int64(page)*size); err != nil {
		t.Fatal(err)
	}
	if err := m.Program(r.Ctx(), p, int64(page)*size); err != nil {
		t.Fatal(err)
	}
	if err := m.Settle(r.Ctx()); err != nil {
		t.Fatal(err)
	}
}

// lifetime returns how often each page of the store was written by the moves,
// format and start of the agent included. also, if not nil, is called before
// each move.
func lifetime(t *testing.T, moves int, also func(*rig.Rig, int)) (wear []uint32) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, rig.Options{})
		defer r.Stop()
		r.StartVM(rig.VM1, rig.A)
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.Run()
		for i := range moves {
			if also != nil {
				also(r, i)
			}
			q := r.Request(rig.VM1, []string{rig.B, rig.A}[i%2])
			q.ID[0], q.ID[1], q.ID[2], q.ID[3] = 1, byte(i>>16), byte(i>>8), byte(i)
			if m, err := r.E.Move(r.Ctx(), q); err != nil || m.State != enclosure.MoveDone {
				t.Fatalf("move %d: %s %s, %v", i, m.State, m.Reason, err)
			}
			if i%1000 == 999 {
				r.Check()
				r.W.ClearRecord()
			}
		}
		wear = r.W.Chip("store").Wear()
	})
	return wear
}

func sum(wear []uint32) (n uint64) {
	for _, w := range wear {
		n += uint64(w)
	}
	return n
}

func ratio(wear []uint32) float64 {
	return float64(slices.Max(wear)) * float64(len(wear)) / float64(sum(wear))
}
