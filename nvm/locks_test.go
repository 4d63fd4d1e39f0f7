package nvm

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestLockCancelled has the turn come and ctx end at the same time: the lock
// must not be lost, whichever is seen first.
func TestLockCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l classLock
		got := map[bool]int{}
		for range 500 {
			if err := l.lock(t.Context(), Normal); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- l.lock(ctx, Urgent) }()
			synctest.Wait()
			if n := l.waiting(Urgent); n != 1 {
				t.Fatalf("%d waiting; want 1", n)
			}
			cancel()
			l.unlock()
			err := <-done
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if got[err == nil]++; err == nil {
				l.unlock()
			}
			if l.held || l.waiting(Urgent) != 0 {
				t.Fatalf("after lock = %v: held %v, waiting %d", err, l.held, l.waiting(Urgent))
			}
		}
		if len(got) != 2 {
			t.Logf("only one of the two outcomes: %v", got)
		}
	})
}
