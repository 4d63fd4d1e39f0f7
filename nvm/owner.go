package nvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// ErrWedged is returned when a driver has not come back in time, and to all
// others that want it until it does.
var ErrWedged = errors.New("the driver has not come back")

// owner is the goroutine that makes a device's system calls, which have no
// context and may sit in a driver for ever: whoever waits for one waits a
// bounded time. A call that was given up goes on, so what it reads and writes
// must be its own.
type owner struct {
	jobs  chan *job     // unbuffered: senders queue in order
	stop  chan struct{} // closed by close
	ended chan struct{} // closed when the goroutine has returned

	mu     sync.Mutex
	wedged chan struct{} // closed while a job is overdue
	closed bool
}

type job struct {
	f     func() error
	limit time.Duration
	done  chan struct{}
	err   error // valid once done is closed
}

func newOwner() *owner {
	o := &owner{
		jobs:   make(chan *job),
		stop:   make(chan struct{}),
		ended:  make(chan struct{}),
		wedged: make(chan struct{}),
	}
	go o.run()
	return o
}

// do has f called and returns its error. It returns ErrWedged when f takes
// longer than limit, or while one before it does; and ctx's error if that ends
// first, which does not end f.
func (o *owner) do(ctx context.Context, limit time.Duration, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// Of several ready cases select takes any, so what is over is asked first.
	wedged := o.overdue()
	select {
	case <-wedged:
		return ErrWedged
	case <-o.stop:
		return os.ErrClosed
	default:
	}
	j := &job{f: f, limit: limit, done: make(chan struct{})}
	select {
	case o.jobs <- j:
	case <-wedged:
		return ErrWedged
	case <-o.stop:
		return os.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	gaveUp := ErrWedged
	select {
	case <-j.done:
		return j.err
	case <-wedged:
	case <-ctx.Done():
		gaveUp = ctx.Err()
	}
	select {
	case <-j.done:
		return j.err
	default:
		return gaveUp
	}
}

// close ends the goroutine when the job under way has come back, and waits
// for that until the job is overdue: then it returns ErrWedged.
func (o *owner) close() error {
	o.mu.Lock()
	if !o.closed {
		o.closed = true
		close(o.stop)
	}
	wedged := o.wedged
	o.mu.Unlock()
	select {
	case <-o.ended:
		return nil
	case <-wedged:
		return fmt.Errorf("close: %w", ErrWedged)
	}
}

func (o *owner) overdue() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wedged
}

func (o *owner) run() {
	defer close(o.ended)
	for {
		select {
		case <-o.stop:
			return
		case j := <-o.jobs:
			o.one(j)
		}
	}
}

func (o *owner) one(j *job) {
	var over bool
	late := time.AfterFunc(j.limit, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		select {
		case <-j.done:
		default:
			over = true
			close(o.wedged)
		}
	})
	j.err = j.f()
	late.Stop()
	o.mu.Lock()
	defer o.mu.Unlock()
	close(j.done)
	if over {
		o.wedged = make(chan struct{})
	}
}
