//go:build linear

// What plays against a real agent takes a minute, and on a busy machine the
// search may not end in its time: make linearizable runs it, make test does not.

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestLinearizable is a slice of make linearizable.
func TestLinearizable(t *testing.T) {
	var out bytes.Buffer
	r, err := play(t.Context(), options{ops: 300, seed: 1, log: &out})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	// What it has to be heavy for is measured over a whole run.
	if bad := slices.Concat(r.violations, r.truth); len(bad) > 0 {
		t.Errorf("%s", strings.Join(bad, "\n"))
	}
	if r.shares.ops < 300 || r.kills == 0 || r.shares.writes == 0 || r.shares.overlapping == 0 {
		t.Errorf("%+v, %d kills", r.shares, r.kills)
	}
}

// TestBugIsFound: an agent that takes a move ID that it knows as a new move is
// found out by the answers that its clients get.
func TestBugIsFound(t *testing.T) {
	if testing.Short() {
		t.Skip("plays several segments")
	}
	var out bytes.Buffer
	for seed := range uint64(3) {
		r, err := play(t.Context(), options{bug: "once", ops: 600, seed: seed, log: &out})
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		if len(r.violations) > 0 {
			return
		}
	}
	t.Error("an agent with BATON_BUG=once was not found out")
}

// TestStaleReadInARealHistory plants what a cache that is too old would answer
// into a history that a real agent gave.
func TestStaleReadInARealHistory(t *testing.T) {
	var out bytes.Buffer
	var segments []segment
	_, err := play(t.Context(), options{ops: 150, seed: 2, log: &out, keep: func(g segment) { segments = append(segments, g) }})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	g := segments[0]
	if got := check(g, patience); got != porcupine.Ok {
		t.Fatalf("the history as it was: %s", got)
	}
	last := int64(0)
	for _, op := range g.ops {
		last = max(last, op.ret)
	}
	now, stale := g.end.slots[0], g.end.slots[0]
	stale.gen--
	for i, sl := range []slotState{now, stale} {
		at := last + 1 + 2*int64(i)
		g.ops = append(g.ops, operation{client: i, in: input{kind: readSlots, set: 1}, out: output{slots: map[int]slotState{0: sl}}, call: at, ret: at + 1})
	}
	if got := check(g, patience); got != porcupine.Illegal {
		t.Errorf("with a stale read: %s", got)
	}
}
