package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/goleak"
)

// TestMain fails where a goroutine is left after all tests.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestLightLoadFails: a run that shows nothing is no success.
func TestLightLoadFails(t *testing.T) {
	full := result{shares: shares{ops: 100, writes: 40, overlapping: 30, fences: 1}, kills: 1, faults: 1}
	for _, tt := range []struct {
		name   string
		change func(*result)
		ok     bool
	}{
		{"enough", func(*result) {}, true},
		{"few writes", func(r *result) { r.shares.writes = 39 }, false},
		{"little overlap", func(r *result) { r.shares.overlapping = 29 }, false},
		{"no kill", func(r *result) { r.kills = 0 }, false},
		{"no fault", func(r *result) { r.faults = 0 }, false},
		{"no fence", func(r *result) { r.shares.fences = 0 }, false},
		{"a violation", func(r *result) { r.violations = []string{"x"} }, false},
		{"two owners", func(r *result) { r.truth = []string{"x"} }, false},
	} {
		r := full
		tt.change(&r)
		if err := r.report(&bytes.Buffer{}); (err == nil) != tt.ok {
			t.Errorf("%s: report = %v", tt.name, err)
		}
	}
}

// tale builds histories by hand; op i is from 10 i to 10 i + 9 unless said.
type tale struct {
	ops []operation
}

func (s *tale) add(in input, out output, span ...int64) *tale {
	at := int64(10 * len(s.ops))
	op := operation{client: len(s.ops), in: in, out: out, call: at, ret: at + 9}
	if len(span) == 2 {
		op.call, op.ret = span[0], span[1]
	}
	op.in.id = len(s.ops) + 1
	s.ops = append(s.ops, op)
	return s
}

func moveTo(host int8, expect ...uint32) input {
	in := input{kind: move, set: 1, vm: 1, host: host, preserve: true}
	if len(expect) > 0 {
		in.expect = map[int]uint32{0: expect[0]}
	}
	return in
}

func saw(host int8, gen uint32) output {
	return output{slots: map[int]slotState{0: {host: host, vm: 1, gen: gen}}}
}

// TestModel: what the checker takes, and what it does not.
func TestModel(t *testing.T) {
	done := func(gen uint32) output { return output{state: "done", gen: gen} }
	look := input{kind: readSlots, set: 1}
	for _, tt := range []struct {
		name  string
		story *tale
		died  []int64
		want  porcupine.CheckResult
	}{
		{"one after the other", new(tale).add(moveTo(1), done(5)).add(look, saw(1, 5)).add(moveTo(2, 5), done(6)).add(look, saw(2, 6)), nil, porcupine.Ok},
		{"a stale read", new(tale).add(moveTo(1), done(5)).add(moveTo(2, 5), done(6)).add(look, saw(1, 5)), nil, porcupine.Illegal},
		{"a read beside the move", new(tale).add(moveTo(1), done(5)).add(moveTo(2), done(6), 10, 30).add(look, saw(1, 5), 15, 20), nil, porcupine.Ok},
		{"a generation that comes again", new(tale).add(moveTo(1), done(5)).add(moveTo(2), done(5)), nil, porcupine.Illegal},
		{"both moves of one generation", new(tale).add(moveTo(1), done(5)).add(moveTo(2, 5), done(6), 10, 30).add(moveTo(3, 5), done(7), 10, 30), nil, porcupine.Illegal},
		{"a move to a fenced host", new(tale).add(input{kind: fenceRecord, host: 2}, output{epoch: 1}).add(moveTo(2), done(5)), nil, porcupine.Illegal},
		{"a fence that leaves a slot", new(tale).add(moveTo(2), done(5)).add(input{kind: fenceRecord, host: 2}, output{epoch: 1, cut: 1}).add(look, saw(2, 5)), nil, porcupine.Illegal},
		{"seen fenced before the cut", new(tale).add(moveTo(2), done(5)).add(input{kind: fenceRecord, host: 2}, output{epoch: 1, cut: 1}, 10, 60).
			add(input{kind: readHosts}, output{hosts: map[int]hostState{1: {true, 1}}}, 20, 25).add(look, saw(2, 5), 30, 35), nil, porcupine.Ok},
		{"an old unfence", new(tale).add(input{kind: fenceRecord, host: 2}, output{epoch: 1}).add(input{kind: fenceRecord, host: 2}, output{epoch: 2}).
			add(input{kind: unfence, host: 2, epoch: 1}, output{}), nil, porcupine.Illegal},
		{"no answer, and it happened late", new(tale).add(moveTo(1), done(5)).add(moveTo(2), output{lost: true}).add(look, saw(1, 5)).add(look, saw(2, 6)), nil, porcupine.Ok},
		{"no answer, and it never happened", new(tale).add(moveTo(1), done(5)).add(moveTo(2), output{lost: true}).add(look, saw(1, 5)), nil, porcupine.Ok},
		{"no answer, seen and undone", new(tale).add(moveTo(1), done(5)).add(moveTo(2), output{lost: true}).add(look, saw(2, 6)).add(look, saw(1, 7)), nil, porcupine.Ok},
		{"it happened twice", new(tale).add(moveTo(1), done(5)).add(moveTo(2), output{lost: true}).add(look, saw(2, 6)).add(moveTo(1, 6), done(7)).add(look, saw(2, 8)), nil, porcupine.Illegal},
		{"it happened after the agent had died", new(tale).add(moveTo(1), done(5)).add(moveTo(2), output{lost: true}).add(look, saw(1, 5), 20, 22).add(look, saw(2, 6), 30, 35), []int64{25}, porcupine.Ok},
		{"it happened after the next agent had answered", new(tale).add(moveTo(1), done(5)).add(moveTo(2), output{lost: true}).add(look, saw(1, 5), 30, 35).add(look, saw(2, 6), 40, 45), []int64{25}, porcupine.Illegal},
		{"yes without an ack", new(tale).add(moveTo(1), done(5)).add(input{kind: readVerdict, set: 1}, output{gen: 5, yes: true}), nil, porcupine.Illegal},
		{"a repeat that is answered otherwise", new(tale).add(input{kind: readVerdict}, output{code: "repeat of move x: held"}), nil, porcupine.Illegal},
	} {
		if got := check(segment{ops: tt.story.ops, died: tt.died}, time.Minute); got != tt.want {
			t.Errorf("%s: %s; want %s", tt.name, got, tt.want)
		}
	}
}
