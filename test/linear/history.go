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
	died []int64 // when a new agent answered, after one was killed
	end  output  // the read at its end; the next one begins with it
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
		for _, op := range g.ops {
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
const patience = 30 * time.Second

// check looks for an order in which each operation could have been done at one
// instant of its own.
func check(g segment, patience time.Duration) porcupine.CheckResult {
	ops, late := g.history()
	if len(late) > 64 {
		return porcupine.Unknown
	}
	return porcupine.CheckOperationsTimeout(model(g.from, late), ops, patience)
}

// history is what porcupine checks, and the effects of operations without an
// answer. Those are not put in order by porcupine, which would try all orders of
// what nobody saw: from when they began they are part of the state, as what may
// come.
func (g segment) history() (all []porcupine.Operation, late []input) {
	end := int64(0)
	deaths := make([]uint64, len(g.died))
	for _, op := range g.ops {
		end = max(end, op.ret)
		effects := []input{op.in}
		more := op.in
		switch op.in.kind {
		case fenceRecord:
			more.kind = fenceCut
			effects = append(effects, more)
		case move, attach:
			more.kind = lateUndo
			effects = append(effects, more)
		}
		if op.out.lost {
			b := input{kind: begin}
			for _, in := range effects {
				// Of the same unfence the second has no effect.
				if k := slices.IndexFunc(late, func(o input) bool {
					return in.kind == unfence && o.kind == unfence && o.host == in.host && o.epoch == in.epoch
				}); k >= 0 {
					b.late |= 1 << k
					continue
				}
				b.late |= 1 << len(late)
				// What recovery still may do is done by the next agent.
				if i := slices.IndexFunc(g.died, func(t int64) bool { return op.ret <= t }); i >= 0 && in.kind != lateUndo && in.kind != fenceCut {
					deaths[i] |= 1 << len(late)
				}
				late = append(late, in)
			}
			all = append(all, porcupine.Operation{ClientId: op.client, Input: b, Output: output{}, Call: op.call, Return: op.call})
			continue
		}
		all = append(all, porcupine.Operation{ClientId: op.client, Input: op.in, Output: op.out, Call: op.call, Return: op.ret})
		if op.in.kind == fenceRecord && op.out.code == "" {
			all = append(all, porcupine.Operation{ClientId: op.client, Input: more, Output: op.out, Call: op.call, Return: op.ret})
		}
	}
	for i, t := range g.died {
		all = append(all, porcupine.Operation{ClientId: clients, Input: input{kind: died, late: deaths[i]}, Output: output{}, Call: t, Return: t})
	}
	if g.end.slots != nil {
		all = append(all, porcupine.Operation{ClientId: clients, Input: input{kind: readSlots}, Output: g.end, Call: end + 1, Return: end + 2})
	}
	return all, late
}

// culprit is the first operation without which everything before it could be
// put into an order: the history up to its answer has none.
func culprit(g segment) string {
	ops := slices.SortedFunc(slices.Values(g.ops), func(a, b operation) int { return int(a.ret - b.ret) })
	low, high := 0, len(ops) // the first low are fine, the first high are not
	for high-low > 1 {
		mid := (low + high) / 2
		part := segment{from: g.from, died: g.died}
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
