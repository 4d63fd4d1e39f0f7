package nvm

import (
	"context"
	"sync"
)

// Class says who may wait for whom.
type Class int

const (
	// Normal is for audit, configuration and the store's own housekeeping.
	Normal Class = iota
	// Urgent is for intents, aborts and fences. It overtakes every Normal that
	// is still queued, and may use the reserved pages.
	Urgent
)

// String is the class in lower case.
func (c Class) String() string {
	if c == Urgent {
		return "urgent"
	}
	return "normal"
}

// classLock is the store's I/O lock: one holder, and two queues in which
// Urgent goes first and each class is served in order of arrival.
//
// Its holder sleeps through write cycles, so waiters wait on channels: a
// goroutine that waits on a sync.Mutex would stop virtual time. The mutex
// inside is held for a few instructions only.
type classLock struct {
	mu     sync.Mutex
	held   bool
	queues [2][]chan struct{} // indexed by Class; a waiter is woken holding the lock
}

// lock takes the lock, or returns ctx's error if that ends first.
func (l *classLock) lock(ctx context.Context, c Class) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	if !l.held {
		l.held = true
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	l.queues[c] = append(l.queues[c], turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	for i, w := range l.queues[c] {
		if w == turn {
			l.queues[c] = append(l.queues[c][:i], l.queues[c][i+1:]...)
			l.mu.Unlock()
			return ctx.Err()
		}
	}
	l.mu.Unlock()
	l.unlock() // the turn came together with the end of ctx: pass it on
	return ctx.Err()
}

// unlock hands the lock to the first in the first queue that has one.
func (l *classLock) unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range []Class{Urgent, Normal} {
		if q := l.queues[c]; len(q) > 0 {
			l.queues[c] = q[1:]
			close(q[0])
			return
		}
	}
	l.held = false
}

// waiting is how many of a class are queued.
func (l *classLock) waiting(c Class) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queues[c])
}
