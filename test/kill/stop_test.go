package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"baton/mgmt"
	"baton/sim/control"
)

// stopped is longer than what a client waits here, and than any wait of a move
// that is asked for.
const (
	clientWait = 1500 * time.Millisecond
	stopped    = 6 * time.Second // and the agent's own default wait of 5 s
)

// stopIn sends SIGSTOP to the agent once f has written n pages or bytes of
// registers. What f returned is there when its context has ended. It returns nil
// where f was over before the agent could be stopped, which then runs on.
func (s *stage) stopIn(t *testing.T, n uint64, f func(ctx context.Context) error) <-chan error {
	t.Helper()
	base, err := s.hw.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), clientWait)
	go func() {
		defer cancel()
		answered <- f(ctx)
	}()
	for {
		now, err := s.hw.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if writes(now)-writes(base) >= n {
			break
		}
		select {
		case err := <-answered:
			t.Logf("it was over before %d writes were seen: %v", n, err)
			return nil
		default:
		}
	}
	if err := s.batond.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // an answer that was sent has come by then
	if len(answered) > 0 {
		if err := s.batond.signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		t.Logf("it was over before the agent was stopped: %v", <-answered)
		return nil
	}
	return answered
}

// unanswered is a client that has to be told, in its time, that no answer came.
func unanswered(t *testing.T, began time.Time, err error) {
	t.Helper()
	away, ok := errors.AsType[*mgmt.UnreachableError](err)
	if took := time.Since(began); !ok || !errors.Is(away, context.DeadlineExceeded) || took > clientWait+time.Second {
		t.Errorf("after %v the client has %v; want that no answer came within %v", took, err, clientWait)
	}
}

// An agent that is stopped for longer than anybody waits: clients are told in
// time that no answer came. When it goes on it does not do what has been
// superseded: it meets the fence that was asked for meanwhile.
func TestStoppedInMove(t *testing.T) {
	for _, writes := range []uint64{1, 5} { // the intent is written; the set is cut
		t.Run(fmt.Sprint(writes), func(t *testing.T) {
			t.Parallel()
			for range 5 {
				if stoppedInMove(t, writes) {
					return
				}
			}
			t.Error("the agent was never stopped in time")
		})
	}
}

// stoppedInMove tells whether the agent was stopped before the move was over.
func stoppedInMove(t *testing.T, writes uint64) bool {
	dir, o := setting(t)
	s, err := newStage(t.Context(), filepath.Join(dir, "w"), o, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	ctx, v := t.Context(), s.vms[1]
	from, to := v.at, v.other()
	before, err := s.hw.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.hw.VM(ctx, from, v.name, "stop"); err != nil {
		t.Fatal(err)
	}
	r := mgmt.MoveRequest{ID: s.id(), VM: v.name, To: to, Preserve: true, WaitMS: 1000}
	began := time.Now()
	answered := s.stopIn(t, writes, func(ctx context.Context) error { _, err := s.agent.Move(ctx, r); return err })
	if answered == nil {
		return false
	}
	unanswered(t, began, <-answered)
	// Somebody who only looks, and a cluster that fences, have no answer either.
	short, cancel := context.WithTimeout(ctx, clientWait)
	began = time.Now()
	_, err = s.agent.Enclosure(short)
	unanswered(t, began, err)
	cancel()
	short, cancel = context.WithTimeout(ctx, clientWait)
	began = time.Now()
	_, err = s.agent.Fence(short, to)
	unanswered(t, began, err)
	cancel()
	time.Sleep(stopped - 2*clientWait)
	if err := s.batond.signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}

	// The cluster asks again, and is told the truth.
	if _, err := s.fence(v, to).do(ctx); err != nil {
		t.Fatalf("fence, asked again: %v", err)
	}
	time.Sleep(1500 * time.Millisecond) // longer than the move waits
	if err := s.barred(ctx); err != nil {
		t.Errorf("stopped after %d writes: %v", writes, err)
	}
	// The client of the move asks again: it is told what became of it.
	m, err := s.agent.Move(ctx, r)
	p, refused := errors.AsType[*mgmt.Problem](err)
	t.Logf("stopped after %d writes: move %s %q, %v", writes, m.State, m.Reason, err)
	if err == nil && m.ID != r.ID || err != nil && (!refused || p.Code != "host-fenced") {
		t.Errorf("the move, asked again: %+v, %v", m, err)
	}
	if err := s.barred(ctx); err != nil {
		t.Error(err)
	}
	if err := s.settled(ctx); err != nil {
		t.Error(err)
	}
	for _, w := range s.check(ctx, v, before) {
		t.Errorf("stopped after %d writes: %s", writes, w)
	}
	// And all goes on.
	if err := s.unfence(ctx, to); err != nil {
		t.Error(err)
	}
	if err := s.attach(ctx, v, to); err != nil {
		t.Error(err)
	}
	if owner, err := s.together(ctx, v); err != nil || owner != to {
		t.Errorf("in the end it is with %q, %v; want %s", owner, err, to)
	}
	return true
}

// A fence that is stopped: no answer is no confirmation. Asked again it is
// confirmed once all is cut, and not where an engine can not be cut.
func TestStoppedInFence(t *testing.T) {
	t.Parallel()
	dir, o := setting(t)
	s, err := newStage(t.Context(), filepath.Join(dir, "w"), o, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	ctx, v := t.Context(), s.vms[1]
	began := time.Now()
	answered := s.stopIn(t, 1, func(ctx context.Context) error { _, err := s.agent.Fence(ctx, v.at); return err })
	if answered == nil {
		t.Fatal("the fence was over before the agent was stopped")
	}
	unanswered(t, began, <-answered)
	time.Sleep(stopped)
	// Its engine does not take writes when the agent wakes up.
	fault := control.Fault{Kind: "nack-address", Addr: control.Hex[uint16]{N: 0x61}, Only: "write"}
	if err := s.hw.Inject(ctx, "bus1", fault); err != nil {
		t.Fatal(err)
	}
	if err := s.batond.signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	_, err = s.agent.Fence(ctx, v.at)
	now, stateErr := s.hw.State(ctx)
	if stateErr != nil {
		t.Fatal(stateErr)
	}
	for _, name := range v.slots {
		if l, _ := now.Slot(name); err == nil && l.Reacher != "" {
			t.Errorf("the fence is confirmed, and %s reaches %s", l.Reacher, name)
		} else if err != nil {
			t.Logf("unconfirmed: %v; by the model %s is with %q", err, name, l.Reacher)
		}
	}
	if err := s.hw.ClearFaults(ctx, "bus1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.fence(v, v.at).do(ctx); err != nil {
		t.Fatalf("fence, asked again: %v", err)
	}
	if err := s.barred(ctx); err != nil {
		t.Error(err)
	}
}
