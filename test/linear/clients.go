package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"baton/mgmt"
)

// clients is how many there are at the socket, each with one request at a time.
const clients = 16

// writers is how many requests may be under way that change something. One more
// at each slot and some at hosts would only wait, and each that a kill leaves
// without an answer multiplies what may have happened.
const writers = 5

// crowd is one segment under way.
type crowd struct {
	*stage
	began time.Time
	ids   *atomic.Int64 // of operations
	moves *atomic.Int64 // assignments asked for, over all segments

	mu      sync.Mutex
	known   state // what was last seen, to ask sensible things
	ops     []operation
	died    []int64       // see segment
	writing chan struct{} // full while as many change something as may at once
	atHost  [hosts]int    // requests to fence or unfence that are under way
	busy    int           // answers that say nothing but that another has the slot
}

// client is one of them.
type client struct {
	*crowd
	n    int
	c    *mgmt.Client
	rng  *rand.Rand
	last *sent
}

// sent is a move that was answered, to be sent once more.
type sent struct {
	req mgmt.MoveRequest
	got mgmt.Move
	at  int64 // of crowd.moves
}

// forgotten is less than how many moves the agent remembers (64).
const forgotten = 30

func (r *crowd) now() int64 { return time.Since(r.began).Nanoseconds() }

// work asks one thing after the other until the segment has enough.
func (c *client) work(ctx context.Context, enough func(ops int) bool) {
	for ctx.Err() == nil {
		c.mu.Lock()
		n, known := len(c.ops), c.known
		c.mu.Unlock()
		if enough(n) {
			return
		}
		c.one(ctx, known)
	}
}

func (c *client) one(ctx context.Context, known state) {
	at := c.rng.IntN(slots)
	if c.rng.IntN(4) > 0 {
		at = c.rng.IntN(slots / 2) // crowd them
	}
	sl := known.slots[at]
	in := input{set: 1 << at, vm: sl.vm, id: int(c.ids.Add(1)), preserve: c.rng.IntN(5) > 0}
	if in.vm == 0 || c.rng.IntN(12) == 0 {
		in.vm = int8(1 + c.rng.IntN(vms))
	}
	if c.rng.IntN(5) == 0 {
		in.set = 3 << (at &^ 1) // a pair
	}
	in.host = int8(1 + c.rng.IntN(hosts))
	if known.hosts[in.host-1].fenced && c.rng.IntN(4) > 0 {
		in.host = int8(1 + int(in.host)%hosts)
	}
	if c.rng.IntN(2) == 0 && !sl.above {
		in.expect = map[int]uint32{at: sl.gen}
	}
	p := c.rng.IntN(88)
	if p < 76 {
		c.writing <- struct{}{}
		defer func() { <-c.writing }()
	}
	switch {
	case p < 40:
		in.kind = move
		c.move(ctx, in)
	case p < 56:
		in.kind, in.expect = attach, nil
		c.attach(ctx, in)
	case p < 64:
		in.kind, in.mode = release, []string{"keep", "hold", "free"}[c.rng.IntN(3)]
		c.release(ctx, in)
	case p < 72:
		h := known.hosts[in.host-1]
		if !c.claim(in.host) {
			return
		}
		defer c.yield(in.host)
		in = input{id: in.id, host: in.host, kind: fenceRecord}
		switch {
		case !h.fenced && c.rng.IntN(3) == 0:
			c.fence(ctx, in)
		case h.fenced || c.rng.IntN(8) == 0:
			in.kind, in.epoch = unfence, h.epoch
			if c.rng.IntN(8) == 0 {
				in.epoch--
			}
			c.unfence(ctx, in)
		}
	case p < 76:
		c.again(ctx)
	case p < 80:
		c.verdict(ctx, at, in.id)
	case p < 86:
		c.look(ctx, at, in.id)
	default:
		c.lookAtAll(ctx, in.id)
	}
}

// add keeps an operation and learns from it.
func (c *client) add(op operation) {
	op.client = c.n
	c.mu.Lock()
	defer c.mu.Unlock()
	if !op.out.lost || op.in.isWrite() {
		c.ops = append(c.ops, op)
	}
	for i, sl := range op.out.slots {
		c.known.slots[i] = sl
	}
	for i, h := range op.out.hosts {
		c.known.hosts[i] = h
	}
	if op.out.lost || op.out.code != "" && op.out.code != "generation-changed" {
		return
	}
	switch op.in.kind {
	case move, attach:
		for i := range slots {
			if op.in.set.has(i) && op.out.gen != 0 {
				c.known.slots[i] = slotState{host: op.in.host, vm: op.in.vm, gen: op.out.gen, above: op.out.state != "done"}
			}
		}
		if op.out.code != "" {
			c.known.slots[op.out.slot].gen = op.out.gen
		}
	case fenceRecord:
		c.known.hosts[op.in.host-1] = hostState{true, op.out.epoch}
	case unfence:
		c.known.hosts[op.in.host-1].fenced = false
	}
}

// telling are the refusals that say something of the state. Others say that it
// can not be done now, or that something went wrong on the way.
var telling = []string{"fenced", "generation-changed", "held-for-other", "in-use", "wrong-state", "split-set", "stale-unfence"}

// harmless are refusals by which nothing was changed and nothing is told.
var harmless = []string{"busy", "overloaded"}

type answer int

const (
	answered answer = iota
	unsent          // never reached the agent
	nothing         // was refused, and tells nothing
	unknown         // may have happened
)

// understand sorts an error.
func understand(err error) (out output, a answer) {
	if err == nil {
		return output{}, answered
	}
	var p *mgmt.Problem
	if !errors.As(err, &p) {
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			return output{}, unsent
		}
		return output{lost: true}, unknown
	}
	switch {
	case slices.Contains(harmless, p.Code):
		return output{}, nothing
	case p.Code == "blocked" || p.Code == "identity" || p.State == "nothing was changed" && !slices.Contains(telling, p.Code):
		return output{}, nothing
	case slices.Contains(telling, p.Code) && !strings.Contains(p.State, "the move is"):
		out = output{code: p.Code, gen: counter(p.Current)}
		if n, ok := strings.CutPrefix(p.Slot, "gpu"); ok {
			out.slot, _ = strconv.Atoi(n)
		}
		return out, answered
	}
	return output{lost: true}, unknown
}

// do asks once, and keeps what came of it.
func (c *client) do(ctx context.Context, in input, ask func(context.Context) (output, error)) {
	call := c.now()
	got, err := ask(ctx)
	ret := c.now()
	out, a := understand(err)
	switch a {
	case answered:
		if err == nil {
			out = got
		}
		c.add(operation{in: in, out: out, call: call, ret: ret})
	case unknown:
		c.add(operation{in: in, out: output{lost: true}, call: call, ret: ret})
	case nothing:
		c.tooBusy()
	case unsent:
		time.Sleep(5 * time.Millisecond)
	}
}

func (c *client) tooBusy() {
	c.mu.Lock()
	c.busy++
	c.mu.Unlock()
	time.Sleep(time.Duration(1+c.rng.IntN(8)) * time.Millisecond)
}

const waitPeer = 300 // ms

// move asks for a move. Where the answer is lost it asks again with the same
// ID: that is one operation.
func (c *client) move(ctx context.Context, in input) {
	c.moves.Add(1)
	req := mgmt.MoveRequest{ID: c.uuid(), VM: vmName(int(in.vm - 1)), To: hostName(int(in.host - 1)), Slots: names(in.set), Preserve: in.preserve, Expect: c.generations(in), WaitMS: waitPeer}
	call, maybe, lost := c.now(), false, int64(0)
	for range 200 {
		once, cancel := ctx, context.CancelFunc(func() {})
		if c.rng.IntN(12) == 0 { // who goes away does not learn how it ended
			once, cancel = context.WithTimeout(ctx, time.Duration(1+c.rng.IntN(20))*time.Millisecond)
		}
		m, err := c.c.Move(once, req)
		cancel()
		out, a := understand(err)
		switch {
		case a == unsent, err == nil && m.State == "running":
			if err == nil {
				maybe, lost = true, c.now()
			}
			time.Sleep(5 * time.Millisecond)
			if !maybe {
				call = c.now()
			}
			continue
		case a == unknown:
			maybe, lost = true, c.now()
			time.Sleep(2 * time.Millisecond)
			continue
		case a == nothing && maybe:
			time.Sleep(5 * time.Millisecond)
			continue
		case a == nothing:
			c.tooBusy()
			return
		case err == nil && m.State == "blocked": // it is tried again by itself
			out = output{lost: true}
		case err != nil && maybe:
			// It was refused now, whatever came of it the first time.
			c.add(operation{in: in, out: output{lost: true}, call: call, ret: lost})
			return
		case err == nil:
			out = output{state: m.State, gen: counter(m.Generation)}
			c.last = &sent{req, m, c.moves.Load()}
		}
		c.add(operation{in: in, out: out, call: call, ret: c.now()})
		return
	}
	c.add(operation{in: in, out: output{lost: true}, call: call, ret: c.now()})
}

// again repeats the last move, which must have no effect: what it does is in no
// operation. Its answer is that of the first time.
func (c *client) again(ctx context.Context) {
	l := c.last
	if l == nil || c.moves.Load()-l.at > forgotten {
		return
	}
	c.last = nil
	m, err := c.c.Move(ctx, l.req)
	if err != nil || l.got.State != "done" {
		return // whether it had an effect, the others see
	}
	if m.State != l.got.State || m.Generation != l.got.Generation {
		c.add(operation{in: input{kind: readVerdict}, out: output{code: fmt.Sprintf("repeat of move %s: %s under %s, was %s under %s", m.ID, m.State, m.Generation, l.got.State, l.got.Generation)}, call: c.now(), ret: c.now() + 1})
	}
}

func (c *client) attach(ctx context.Context, in input) {
	in.preserve = true // policy always
	c.moves.Add(1)
	var a mgmt.Attached
	first := slotName(in.first())
	ok := false
	c.do(ctx, in, func(ctx context.Context) (output, error) {
		var err error
		a, err = c.c.Attach(ctx, first, mgmt.AttachRequest{VM: vmName(int(in.vm - 1)), Host: hostName(int(in.host - 1)), Slots: names(in.set), WaitMS: waitPeer})
		ok = err == nil
		return output{state: a.State, moved: a.Moved, gen: counter(a.Generation[first])}, err
	})
	if !ok || c.rng.IntN(3) > 0 {
		return
	}
	v, err := c.c.Verdict(ctx, first)
	if err != nil || v.Generation != a.Generation[first] {
		return
	}
	c.do(ctx, input{kind: ack, id: int(c.ids.Add(1)), set: 1 << in.first(), vm: in.vm, host: in.host, expect: map[int]uint32{in.first(): counter(v.Generation)}}, func(ctx context.Context) (output, error) {
		err := c.c.Ack(ctx, first, mgmt.AckRequest{Nonce: a.Nonce, Generation: v.Generation, Seen: v.Now})
		if p := (*mgmt.Problem)(nil); errors.As(err, &p) && p.Code == "wrong-state" {
			p.Code = "busy" // of the flag, which the model does not know
		}
		return output{}, err
	})
}

func (c *client) release(ctx context.Context, in input) {
	first := slotName(in.first())
	c.do(ctx, in, func(ctx context.Context) (output, error) {
		return output{}, c.c.Release(ctx, first, mgmt.ReleaseRequest{VM: vmName(int(in.vm - 1)), Slots: names(in.set), Mode: in.mode, Expect: c.generations(in)})
	})
}

func (c *client) fence(ctx context.Context, in input) {
	c.do(ctx, in, func(ctx context.Context) (output, error) {
		f, err := c.c.Fence(ctx, hostName(int(in.host-1)))
		out := output{epoch: f.Epoch}
		for _, n := range f.Slots {
			for i := range slots {
				if slotName(i) == n {
					out.cut |= 1 << i
				}
			}
		}
		return out, err
	})
}

// claim lets two at a time fence or unfence a host: a crowd of them would say
// the same.
func (c *client) claim(host int8) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.atHost[host-1] == 2 {
		return false
	}
	c.atHost[host-1]++
	return true
}

func (c *client) yield(host int8) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.atHost[host-1]--
}

func (c *client) unfence(ctx context.Context, in input) {
	c.do(ctx, in, func(ctx context.Context) (output, error) {
		return output{}, c.c.Unfence(ctx, hostName(int(in.host-1)), in.epoch)
	})
}

var errNothing = &mgmt.Problem{Code: "busy"}

func (c *client) verdict(ctx context.Context, at, id int) {
	c.do(ctx, input{kind: readVerdict, id: id, set: 1 << at}, func(ctx context.Context) (output, error) {
		v, err := c.c.Verdict(ctx, slotName(at))
		if err == nil && v.Preserved == "unknown" {
			err = errNothing // it may not have waited for an operation to end
		}
		return output{slot: at, gen: counter(v.Generation), yes: v.Preserved == "yes"}, err
	})
}

// look reads a slot, and sometimes a host.
func (c *client) look(ctx context.Context, at, id int) {
	if c.rng.IntN(4) == 0 {
		i := c.rng.IntN(hosts)
		c.do(ctx, input{kind: readHosts, id: id}, func(ctx context.Context) (output, error) {
			h, err := c.c.Host(ctx, hostName(i))
			return output{hosts: map[int]hostState{i: {h.Fenced, h.Epoch}}}, err
		})
		return
	}
	c.do(ctx, input{kind: readSlots, id: id, set: 1 << at}, func(ctx context.Context) (output, error) {
		sl, err := c.c.Slot(ctx, slotName(at))
		out := outputOf([]mgmt.Slot{sl}, nil)
		if err == nil && len(out.slots) == 0 {
			err = errNothing
		}
		return out, err
	})
}

// lookAtAll reads everything at once, by the answer that is kept for a moment.
func (c *client) lookAtAll(ctx context.Context, id int) {
	c.do(ctx, input{kind: readSlots, id: id, set: 1<<slots - 1}, func(ctx context.Context) (output, error) {
		e, err := c.c.Enclosure(ctx)
		return outputOf(e.Slots, e.Hosts), err
	})
}

// outputOf is what was read. A slot on which something is under way, or that is
// blocked, says so; what else it says may be undone.
func outputOf(sl []mgmt.Slot, ho []mgmt.Host) output {
	out := output{slots: map[int]slotState{}, hosts: map[int]hostState{}}
	for _, s := range sl {
		for i := range slots {
			if s.Name == slotName(i) && !s.Busy && s.Blocked == "" {
				out.slots[i] = slotState{host: index(s.Host, hostName), vm: index(s.VM, vmName), released: s.Released, gen: counter(s.Generation), acked: s.Flag != "none"}
			}
		}
	}
	for _, h := range ho {
		out.hosts[int(index(h.Name, hostName))-1] = hostState{h.Fenced, h.Epoch}
	}
	return out
}

// index is the number of a name, from 1; 0 for none.
func index(name string, of func(int) string) int8 {
	for i := range 8 {
		if of(i) == name {
			return int8(i + 1)
		}
	}
	return 0
}

func names(s set) (all []string) {
	for i := range slots {
		if s.has(i) {
			all = append(all, slotName(i))
		}
	}
	return all
}

// counter is that of a generation "9f3c2a10-17".
func counter(gen string) uint32 {
	_, n, _ := strings.Cut(gen, "-")
	v, _ := strconv.ParseUint(n, 10, 32) // 0 where there is none
	return uint32(v)
}

func (c *client) generations(in input) map[string]string {
	if len(in.expect) == 0 {
		return nil
	}
	out := map[string]string{}
	for i, g := range in.expect {
		out[slotName(i)] = fmt.Sprintf("%s-%d", c.incarnation, g)
	}
	return out
}

func (c *client) uuid() string {
	return fmt.Sprintf("%08x-0000-4000-8000-%012x", c.rng.Uint32(), c.rng.Uint64()>>16)
}
