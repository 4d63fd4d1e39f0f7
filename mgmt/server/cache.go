package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// lookAge is how long one look at the enclosure serves those who ask for all
// of it.
const lookAge = 50 * time.Millisecond

// look is one look at the enclosure, encoded. Everybody who asks while it is
// made or fresh gets the same bytes.
//
// That is no less true than a look of their own: nothing was changed since, as
// far as anybody can know (key), and what can change without the agent, the
// hardware, was read at the ages that the answer states (read_age_ms, before
// the answer's own time and uptime_ms).
type look struct {
	key  lookKey
	at   time.Time     // when it began
	done chan struct{} // closed when text is there
	text []byte        // nil = it was not finished
}

// lookKey changes whenever the enclosure may be another than before. It is read
// before the look, so that one during which something changed is not used
// after.
type lookKey struct {
	seq     uint64 // of the newest event: what changes without one, does not change what a caller sees
	changes uint64 // requests that were granted and may have changed something
}

// looks keeps the latest look.
type looks struct {
	changes atomic.Uint64 // see lookKey

	mu   sync.Mutex
	last *look
}

// fresh returns the text of a look that is there and fresh, or nil.
func (l *looks) fresh(seq uint64) []byte {
	key := lookKey{seq, l.changes.Load()}
	l.mu.Lock()
	k := l.last
	l.mu.Unlock()
	if k == nil || k.key != key || !k.isDone() || k.old() {
		return nil
	}
	return k.text
}

// get returns the text of a look that is fresh for who asks now; if there is
// none, take makes one. It is nil where ctx ended before one was there.
func (l *looks) get(ctx context.Context, seq uint64, take func() []byte) []byte {
	for {
		key := lookKey{seq, l.changes.Load()}
		l.mu.Lock()
		k := l.last
		if k == nil || k.key != key || k.old() {
			k = &look{key: key, at: time.Now(), done: make(chan struct{})}
			l.last = k
			l.mu.Unlock()
			k.take(take)
			return k.text
		}
		l.mu.Unlock()
		select {
		case <-k.done:
			if k.text != nil {
				return k.text
			}
			// Who made it did not get it done: the next one tries.
			l.mu.Lock()
			if l.last == k {
				l.last = nil
			}
			l.mu.Unlock()
		case <-ctx.Done():
			return nil
		}
	}
}

// old tells whether a look that is done is too old. One that is being made is
// younger than who waits for it can tell.
func (k *look) old() bool { return k.isDone() && time.Since(k.at) > lookAge }

func (k *look) isDone() bool {
	select {
	case <-k.done:
		return true
	default:
		return false
	}
}

func (k *look) take(take func() []byte) {
	defer close(k.done) // also where take panics
	k.text = take()
}
