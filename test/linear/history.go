package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// operation is what a client asked and what it was answered.
type operation struct {
	client    int
	in        input
	out       output
	call, ret int64 // ns
}

// segment is a history between two instants at which nothing was under way, so
// that all of the state could be read. Segments are checked one by one: an
// operation without an answer that took effect only in a later one would be a
// violation there.
type segment struct {
	from state
	ops  []operation
	end  output // the read at its end; the next one begins with it
}

// shares are how hard a history was on the agent.
type shares struct {
	ops, writes, overlapping, refused, lost, fences int
}

func (in input) isWrite() bool { return in.kind < lateUndo }

// measure counts. A write is an operation that changed something, or may have;
// overlapping is one with another, of another client, on the same slot at the
// same time.
func measure(segments []segment) (n shares) {
	for _, g := range segments {
		for i, op := range g.ops {
			n.ops++
			switch {
			case op.out.code != "":
				n.refused++
			case op.in.isWrite():
				n.writes++
			}
			if op.out.lost {
				n.lost++
			}
			if op.in.kind == fenceRecord {
				n.fences++
			}
			if slices.ContainsFunc(g.ops, func(o operation) bool {
				return o.client != op.client && o.touches()&op.touches() != 0 && o.call < op.ret && op.call < o.ret
			}) {
				n.overlapping++
			}
			_ = i
		}
	}
	return n
}

// touches are the slots that an operation is about. A fence that was answered
// is about those that it cut.
func (op operation) touches() set {
	if op.in.kind == fenceRecord {
		return op.out.cut
	}
	return op.in.set
}

func percent(n, of int) float64 { return 100 * float64(n) / float64(max(of, 1)) }

// patience is how long the checker may look for an order of one segment.
const patience = 5 * time.Second

// check looks for an order in which each operation could have been done at one
// instant of its own.
func check(g segment, patience time.Duration) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model(g.from), g.history(), patience)
}

// history is what porcupine checks. An operation without an answer may have its
// effect at any time until the end, or after the last read, which is never.
func (g segment) history() []porcupine.Operation {
	end := int64(0)
	for _, op := range g.ops {
		end = max(end, op.ret)
	}
	var all []porcupine.Operation
	add := func(op operation, in input) {
		ret := op.ret
		if op.out.lost {
			ret = end + 3
		}
		all = append(all, porcupine.Operation{ClientId: op.client, Input: in, Output: op.out, Call: op.call, Return: ret})
	}
	for _, op := range g.ops {
		add(op, op.in)
		more := op.in
		switch {
		case op.in.kind == fenceRecord && op.out.code == "":
			more.kind = fenceCut
			add(op, more)
		case op.out.lost && (op.in.kind == move || op.in.kind == attach):
			more.kind = lateUndo
			add(op, more)
		}
	}
	if g.end.slots != nil {
		all = append(all, porcupine.Operation{ClientId: clients, Input: input{kind: readSlots}, Output: g.end, Call: end + 1, Return: end + 2})
	}
	return all
}

// culprit is the first operation without which everything before it could be
// put into an order: the history up to its answer has none.
func culprit(g segment) string {
	ops := slices.SortedFunc(slices.Values(g.ops), func(a, b operation) int { return int(a.ret - b.ret) })
	low, high := 0, len(ops) // the first low are fine, the first high are not
	for high-low > 1 {
		mid := (low + high) / 2
		part := segment{from: g.from}
		for i, op := range ops {
			if i >= mid {
				if op.call >= ops[mid-1].ret {
					continue
				}
				op.out = output{lost: true} // it had begun
			}
			if op.out.lost && !op.in.isWrite() {
				continue
			}
			part.ops = append(part.ops, op)
		}
		if check(part, 2*time.Second) == porcupine.Ok {
			low = mid
		} else {
			high = mid
		}
	}
	return story(ops, high-1)
}

// story shows an operation and those that ended before it on its slots.
func story(ops []operation, at int) string {
	var b strings.Builder
	for i, op := range ops[:at+1] {
		if i == at || i > at-40 && (op.touches()&ops[at].touches() != 0 || op.in.kind == fenceRecord || op.in.kind == unfence) {
			fmt.Fprintf(&b, "  client %2d  %8.3f..%8.3f ms  %s\n", op.client, float64(op.call)/1e6, float64(op.ret)/1e6, op)
		}
	}
	return b.String()
}

func (op operation) String() string {
	in, out := op.in, op.out
	s := fmt.Sprintf("%s set=%04b vm=%d host=%d", kindText[in.kind], in.set, in.vm, in.host)
	if len(in.expect) > 0 {
		s += fmt.Sprintf(" expect=%v", in.expect)
	}
	if in.mode != "" {
		s += " " + in.mode
	}
	if in.kind == unfence {
		s += fmt.Sprintf(" epoch=%d", in.epoch)
	}
	switch {
	case out.lost:
		return s + " -> lost"
	case out.code != "":
		return s + fmt.Sprintf(" -> refused %s slot %d gen %d", out.code, out.slot, out.gen)
	case in.kind == readSlots, in.kind == readHosts:
		return s + fmt.Sprintf(" -> %+v %+v", out.slots, out.hosts)
	}
	return s + fmt.Sprintf(" -> %s gen=%d epoch=%d cut=%04b moved=%v yes=%v", out.state, out.gen, out.epoch, out.cut, out.moved, out.yes)
}
