package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"baton/mgmt"
	"baton/sim/control"
)

// play plays the three scenes and judges all of it by the model's record.
func (d *demo) play(ctx context.Context) error {
	for name, scene := range []func(context.Context) error{d.sceneA, d.sceneB, d.sceneC} {
		if err := scene(ctx); err != nil {
			return fmt.Errorf("scene %c: %w", 'A'+name, err)
		}
	}
	r, err := d.hw.Record(ctx)
	if err != nil {
		return err
	}
	s, err := d.hw.State(ctx)
	if err != nil {
		return err
	}
	stray := uint64(0)
	for _, v := range s.Servers {
		stray += v.Stray
	}
	d.title("What the model of the hardware recorded")
	d.say("servers that could reach %s at the same time: %d at most", slot, r.MaxOwners[slot])
	d.say("resets sent to the device: %d, of which %d reached it", len(r.Resets), r.Reached(slot))
	d.say("writes by the device into the memory of a server it had not been set up by: %d", stray)
	d.say("things no agent should do to the hardware: %d", len(r.Violations))
	switch {
	case r.MaxOwners[slot] != 1:
		return fmt.Errorf("%d servers reached %s at the same time", r.MaxOwners[slot], slot)
	case stray != 0:
		return fmt.Errorf("%d stray writes into servers' memory", stray)
	case len(r.Violations) != 0:
		return fmt.Errorf("%d violations, the first: %s %s", len(r.Violations), r.Violations[0].Name, r.Violations[0].What)
	}
	return nil
}

// sceneA: a server hangs that has armed nothing. The other one goes on from
// device memory.
func (d *demo) sceneA(ctx context.Context) error {
	d.title("A. A server dies without warning")
	victim, err := d.startServer(ctx, "server1")
	if err != nil {
		return err
	}
	d.say("server1: %s trains on %s, steps in device memory, a checkpoint every %d", vm, slot, checkpointEvery)
	if err := d.train(ctx, victim, 0); err != nil {
		return err
	}
	calm, err := d.hw.Record(ctx)
	if err != nil {
		return err
	}
	if err := d.hw.Server(ctx, "server1", "hang"); err != nil {
		return err
	}
	victim.kill()
	last, _ := victim.lastStep()
	if line, ok := victim.find("armed"); ok {
		return fmt.Errorf("server1 was to die without warning, but said %q", line)
	}
	d.say("server1 hangs after step %d; nothing was armed, nobody was told", last)
	if err := d.fence(ctx, "server1"); err != nil {
		return err
	}
	r, _, err := d.takeOver(ctx, "server2", last)
	if err != nil {
		return err
	}
	truth, err := d.hw.Record(ctx)
	if err != nil {
		return err
	}
	intact := truth.IntactSince(slot, time.Duration(calm.Now))
	d.say("the model: no reset and no loss of power reached the device: %v", intact)
	if !intact || r.preserved != "yes" || r.source != "device memory" || d.lost[0] != 0 {
		return fmt.Errorf("want memory preserved: yes, no step lost; got %s (%s), went on from step %d in %s, %d lost", r.preserved, r.reason, r.step, r.source, d.lost[0])
	}
	return nil
}

// sceneB: the same, and the enclosure loses its power in between: the agent
// dies with it, and so does what the device held.
func (d *demo) sceneB(ctx context.Context) error {
	d.title("B. A server dies, and the enclosure loses its power as well")
	if err := d.letIn(ctx, "server1"); err != nil {
		return err
	}
	victim := d.servers["server2"]
	done, _ := victim.lastStep()
	if err := d.train(ctx, victim, done); err != nil {
		return err
	}
	calm, err := d.hw.Record(ctx)
	if err != nil {
		return err
	}
	if err := d.hw.Server(ctx, "server2", "power-loss"); err != nil {
		return err
	}
	victim.kill()
	last, _ := victim.lastStep()
	d.batond.kill()
	if err := d.hw.PowerCut(ctx, control.PowerCut{}); err != nil {
		return err
	}
	// What the board keeps in RAM goes with its power.
	if err := errors.Join(os.RemoveAll(d.path("run")), os.Mkdir(d.path("run"), 0o700)); err != nil {
		return err
	}
	d.say("server2 and the enclosure lose power after step %d; batond is gone too", last)
	if err := d.hw.PowerOn(ctx); err != nil {
		return err
	}
	if err := d.startAgent(ctx); err != nil {
		return err
	}
	s, err := d.hw.State(ctx)
	if err != nil {
		return err
	}
	if l, _ := s.Slot(slot); l.Reacher != "" {
		return fmt.Errorf("after the power came back %s reaches %s before anybody asked", l.Reacher, slot)
	}
	d.say("power is back; batond has looked, nobody reaches %s", slot)
	if err := d.fence(ctx, "server2"); err != nil {
		return err
	}
	r, p, err := d.takeOver(ctx, "server1", last)
	if err != nil {
		return err
	}
	truth, err := d.hw.Record(ctx)
	if err != nil {
		return err
	}
	moved := truth.Reached(slot) - calm.Reached(slot)
	d.say("the model: power was lost, and %d resets reached the device since", moved)
	if _, zero := p.find("device memory is all zero: it was reset"); !zero || moved == 0 || truth.IntactSince(slot, time.Duration(calm.Now)) {
		return fmt.Errorf("memory was not proven to be reset: %d resets, the job says %q", moved, r.memory)
	}
	if n := d.lost[1]; r.preserved != "no" || r.source != "the checkpoint" || n == 0 || n != last%checkpointEvery {
		return fmt.Errorf("want memory preserved: no, and the checkpoint; got %s (%s), went on from step %d in %s, %d of %d lost", r.preserved, r.reason, r.step, r.source, n, last)
	}
	return nil
}

// fence has a server cut off, then its power taken, in that order, and checks
// the cut by the model.
func (d *demo) fence(ctx context.Context, host string) error {
	began := time.Now()
	f, err := d.agent.Fence(ctx, host)
	if err != nil {
		return fmt.Errorf("fence %s: %w", host, err)
	}
	took := time.Since(began)
	s, err := d.hw.State(ctx)
	if err != nil {
		return err
	}
	if v, _ := s.Server(host); len(v.Reaches) != 0 {
		return fmt.Errorf("%s is fenced and reaches %v", host, v.Reaches)
	}
	if err := d.hw.Server(ctx, host, "power-loss"); err != nil {
		return err
	}
	d.say("fence %s: cut from %s in %.0f ms, confirmed; then its power is taken", host, strings.Join(f.Slots, ", "), float64(took)/1e6)
	return nil
}

// letIn gives a server its power back and unfences it.
func (d *demo) letIn(ctx context.Context, host string) error {
	if err := d.hw.Server(ctx, host, "power-on"); err != nil {
		return err
	}
	if err := d.unfence(ctx, host); err != nil {
		return fmt.Errorf("unfence %s: %w", host, err)
	}
	d.say("%s is repaired and let in again", host)
	return nil
}

// takeOver starts the other server and measures how many of the steps up to
// last are lost.
func (d *demo) takeOver(ctx context.Context, name string, last int) (resumed, *proc, error) {
	p, err := d.startServer(ctx, name)
	if err != nil {
		return resumed{}, nil, err
	}
	r, err := readResumed(p)
	if err != nil {
		return r, p, err
	}
	if err := awaitStep(ctx, p, r.step+1); err != nil {
		return r, p, err
	}
	d.say("%s: attach, memory preserved: %s - %s", name, r.preserved, r.reason)
	d.say("%s: %s", name, r.memory)
	// A server may die between writing a step and saying so.
	lost := max(0, last-r.step)
	d.say("%s: %s goes on from step %d in %s, %d steps lost", name, vm, r.step, r.source, lost)
	d.preserved = append(d.preserved, r.preserved)
	d.lost = append(d.lost, lost)
	return r, p, d.checkModel(p)
}

// checkModel compares what a server trained with a training that never stopped.
func (d *demo) checkModel(p *proc) error {
	n, got := p.lastStep()
	if want := model(n); got != want {
		return fmt.Errorf("after step %d the model begins with %s, want %s as in a training that never stopped", n, got, want)
	}
	return nil
}

// Moves in scene C: so many undisturbed, and one for each instant at which the
// agent is killed.
const cleanMoves = 4

var killAfter = []time.Duration{
	0, 2 * time.Millisecond, 5 * time.Millisecond, 8 * time.Millisecond, 11 * time.Millisecond, 14 * time.Millisecond, 18 * time.Millisecond,
}

// sceneC: planned moves, some with the agent killed in the middle.
func (d *demo) sceneC(ctx context.Context) error {
	d.title("C. Planned moves, and the agent killed in the middle of them")
	if err := d.letIn(ctx, "server2"); err != nil {
		return err
	}
	source := d.servers["server1"]
	if err := source.end(); err != nil {
		return err
	}
	last, _ := source.lastStep()
	if _, ok := source.find(slot + ": armed"); !ok {
		return fmt.Errorf("server1 did not arm before it stopped %s: %s", vm, source.tail())
	}
	d.say("server1: %s is stopped after step %d, %s armed first: the resets of its closing are swallowed", vm, last, slot)
	for range cleanMoves {
		if err := d.cleanMove(ctx); err != nil {
			return err
		}
	}
	for _, after := range killAfter {
		if err := d.killedMove(ctx, after); err != nil {
			return err
		}
	}
	p, err := d.startServer(ctx, d.at)
	if err != nil {
		return err
	}
	r, err := readResumed(p)
	if err != nil {
		return err
	}
	if err := awaitStep(ctx, p, r.step+1); err != nil {
		return err
	}
	d.say("%s: %s goes on from step %d in %s, %d steps lost in %d moves", d.at, vm, r.step, r.source, max(0, last-r.step), cleanMoves+len(killAfter))
	if r.preserved != "yes" || r.step < last {
		return fmt.Errorf("want memory preserved through all moves; got %s (%s), went on from step %d of %d in %s", r.preserved, r.reason, r.step, last, r.source)
	}
	return d.checkModel(p)
}

// request is a move of the slot to the server that has it not.
func (d *demo) request() mgmt.MoveRequest {
	to := "server2"
	if d.at == to {
		to = "server1"
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	id[6], id[8] = id[6]&0x0F|0x40, id[8]&0x3F|0x80
	return mgmt.MoveRequest{ID: fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]), VM: vm, To: to, Preserve: true}
}

// cleanMove moves the slot and measures what that costs.
func (d *demo) cleanMove(ctx context.Context) error {
	before, err := d.pageWrites(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	r := d.request()
	m, err := d.agent.Move(ctx, r)
	if err != nil {
		return fmt.Errorf("move to %s: %w", r.To, err)
	}
	took := time.Since(began)
	after, err := d.pageWrites(ctx)
	if err != nil {
		return err
	}
	d.say("move to %s: %s in %.0f ms, memory preserved: %s, %d page writes", r.To, m.State, float64(took)/1e6, m.Memory[slot].Preserved, after-before)
	if m.State != "done" || m.Memory[slot].Preserved != "yes" || after-before != 2 {
		return fmt.Errorf("move to %s: %s %s, memory preserved: %s, %d page writes; want done, yes, 2", r.To, m.State, m.Reason, m.Memory[slot].Preserved, after-before)
	}
	d.writes = append(d.writes, after-before)
	return d.arrived(ctx, r.To)
}

// arrived checks, by the model, that the slot is with a server.
func (d *demo) arrived(ctx context.Context, host string) error {
	if err := d.countMove(ctx); err != nil {
		return err
	}
	s, err := d.hw.State(ctx)
	if err != nil {
		return err
	}
	if l, _ := s.Slot(slot); d.at != host || l.Reacher != host {
		return fmt.Errorf("%s is with %s and reached by %q; want %s", slot, d.at, l.Reacher, host)
	}
	return nil
}

// killedMove kills the agent in the middle of a move, restarts it, and repeats
// the request: it has the effect of one.
func (d *demo) killedMove(ctx context.Context, after time.Duration) error {
	before, err := d.hw.State(ctx)
	if err != nil {
		return err
	}
	old, _ := before.Slot(slot)
	from, r := d.at, d.request()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = d.agent.Move(ctx, r) // its answer is lost, or comes just before the kill
	}()
	time.Sleep(after)
	d.batond.kill()
	<-answered
	if err := d.startAgent(ctx); err != nil {
		return err
	}
	l, err := d.agent.Slot(ctx, slot)
	if err != nil {
		return err
	}
	word, ok := map[string]string{from: "before", r.To: "after"}[l.Host]
	if !ok {
		return fmt.Errorf("batond killed after %v of a move from %s to %s: %s is with %q", after, from, r.To, slot, l.Host)
	}
	again, err := d.agent.Move(ctx, r)
	if err != nil {
		return fmt.Errorf("repeated move to %s: %w", r.To, err)
	}
	if again.State != "done" {
		return fmt.Errorf("repeated move to %s: %s %s; want done", r.To, again.State, again.Reason)
	}
	if err := d.arrived(ctx, r.To); err != nil {
		return err
	}
	idle, err := d.hw.State(ctx)
	if err != nil {
		return err
	}
	once, _ := idle.Slot(slot)
	if _, err := d.agent.Move(ctx, r); err != nil {
		return fmt.Errorf("move to %s, repeated twice: %w", r.To, err)
	}
	end, err := d.hw.State(ctx)
	if err != nil {
		return err
	}
	twice, _ := end.Slot(slot)
	steps, err := generations(old, twice)
	if err != nil {
		return err
	}
	d.say("move to %s, batond killed after %.0f ms: restarted, the assignment is that of %s; repeated, the effect is one (%d new generation)",
		r.To, float64(after)/1e6, word, steps)
	if n := writes(end) - writes(idle); steps != 1 || n != 0 || twice.Writes != once.Writes {
		return fmt.Errorf("move to %s repeated: %d new generations, then %d page writes and %d register bytes; want 1, 0, 0", r.To, steps, n, twice.Writes-once.Writes)
	}
	return nil
}

// generations is how many changes of assignment lie between two states.
func generations(a, b control.SlotState) (int, error) {
	var inc [2]string
	var n [2]int
	for i, s := range []string{a.Generation, b.Generation} {
		if len(s) < 10 {
			return 0, fmt.Errorf("generation %q", s)
		}
		inc[i] = s[:8]
		if _, err := fmt.Sscanf(s[9:], "%d", &n[i]); err != nil {
			return 0, fmt.Errorf("generation %q: %w", s, err)
		}
	}
	if inc[0] != inc[1] {
		return 0, fmt.Errorf("incarnation was %s and is %s", inc[0], inc[1])
	}
	return n[1] - n[0], nil
}

func writes(s control.State) (n int) {
	for _, c := range s.Chips {
		n += int(c.PageWrites)
	}
	return n
}
