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
		for i := range 200 {
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
			if i%2 == 0 {
				cancel()
				l.unlock()
			} else {
				l.unlock()
				cancel()
			}
			err := <-done
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if err == nil {
				l.unlock()
			}
			if l.held || l.waiting(Urgent) != 0 {
				t.Fatalf("%d: after lock = %v: held %v, waiting %d", i, err, l.held, l.waiting(Urgent))
			}
		}
	})
}
