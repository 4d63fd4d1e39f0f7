package bus

import (
	"os"
	"sync"
	"time"

	"periph.io/x/conn/v3/i2c"
	"periph.io/x/conn/v3/physic"
)

// Owned is a bus that one goroutine owns. A transfer on a kernel bus has no
// context and may sit in an ioctl for ever; whoever waits for it here waits a
// bounded time.
//
// It is safe for concurrent use. Callers are served in the order they came.
type Owned struct {
	bus   i2c.Bus
	name  string
	limit time.Duration
	calls chan *call
	stop  chan struct{} // closed by Close
	ended chan struct{} // closed when the owner has returned

	mu     sync.Mutex
	wedged chan struct{} // closed while a transfer is overdue
	over   *call         // the transfer that is overdue
	closed bool
}

const (
	// defaultLimit bounds a transfer beside the time its bytes take.
	defaultLimit = time.Second
	// byteLimit is the time allowed for one byte: nine bits at the 100 kHz
	// that is the slowest of common buses, and as much again for stretching.
	byteLimit = 200 * time.Microsecond
)

// call is one transfer. Its buffers are its own and on the heap: a transfer
// that is given up goes on reading and writing them.
type call struct {
	addr  uint16
	w, r  []byte
	speed physic.Frequency // above 0: set it, and no transfer
	ask   bool             // nothing is done at all
	done  chan struct{}
	err   error // valid once done is closed
}

// Own starts the goroutine that owns bus until Close. A transfer that takes
// longer than limit (0 = 1 s) and the time of its bytes fails with ErrWedged;
// until it comes back, every other call fails with ErrWedged at once.
//
// Close does not close bus: its opener does, after Close, which also ends a
// transfer of a Remote that has not come back.
func Own(bus i2c.Bus, limit time.Duration) *Owned {
	if limit <= 0 {
		limit = defaultLimit
	}
	o := &Owned{
		bus:    bus,
		name:   bus.String(),
		limit:  limit,
		calls:  make(chan *call), // unbuffered: senders queue in order
		stop:   make(chan struct{}),
		ended:  make(chan struct{}),
		wedged: make(chan struct{}),
	}
	go o.own()
	return o
}

// String names the bus.
func (o *Owned) String() string { return o.name }

// Tx does one transfer. Its errors are *Error.
func (o *Owned) Tx(addr uint16, w, r []byte) error {
	buf := make([]byte, len(w)+len(r))
	copy(buf, w)
	c := &call{addr: addr, w: buf[:len(w):len(w)], r: buf[len(w):], done: make(chan struct{})}
	if err := o.do(c); err != nil {
		return Classify("transfer", o.name, addr, err)
	}
	copy(r, c.r)
	return nil
}

// SetSpeed sets the clock of the bus, where the bus can.
func (o *Owned) SetSpeed(f physic.Frequency) error {
	return Classify("set speed", o.name, 0, o.do(&call{speed: f, done: make(chan struct{})}))
}

// Ask returns when the owner has come to it, as to a transfer, without one: nil,
// or why it can not. It takes as long as the transfers that came before.
func (o *Owned) Ask() error {
	return Classify("ask", o.name, 0, o.do(&call{ask: true, done: make(chan struct{})}))
}

// Close waits, no longer than limit, until the transfer under way has come
// back, and ends the owner. ErrWedged says that it has not ended
// yet; it will once the transfer comes back.
func (o *Owned) Close() error {
	o.mu.Lock()
	if !o.closed {
		o.closed = true
		close(o.stop)
	}
	o.mu.Unlock()
	t := time.NewTimer(o.limit)
	defer t.Stop()
	select {
	case <-o.ended:
		return nil
	case <-t.C:
		return &Error{Op: "close", Bus: o.name, Err: ErrWedged}
	}
}

func (o *Owned) do(c *call) error {
	// Of several ready cases select takes any, so a wedge is asked for first.
	overdue := o.overdue()
	select {
	case <-overdue:
		return ErrWedged
	case <-o.stop:
		return final(os.ErrClosed)
	default:
	}
	select {
	case o.calls <- c:
	case <-overdue:
		return ErrWedged
	case <-o.stop:
		return final(os.ErrClosed)
	}
	t := time.NewTimer(o.limit + time.Duration(len(c.w)+len(c.r))*byteLimit)
	defer t.Stop()
	select {
	case <-c.done:
		return c.err
	case <-t.C:
		return o.giveUp(c)
	}
}

// own carries out one call after the other.
func (o *Owned) own() {
	defer close(o.ended)
	for {
		select {
		case <-o.stop:
			return
		case c := <-o.calls:
			switch {
			case c.ask:
			case c.speed > 0:
				c.err = o.bus.SetSpeed(c.speed)
			default:
				c.err = o.bus.Tx(c.addr, c.w, c.r)
			}
			o.finish(c)
		}
	}
}

func (o *Owned) overdue() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wedged
}

// finish ends c, and the wedge if c was what wedged the bus.
func (o *Owned) finish(c *call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(c.done)
	if o.over == c {
		o.over = nil
		o.wedged = make(chan struct{})
	}
}

// giveUp declares the bus wedged by c, unless c has just come back.
func (o *Owned) giveUp(c *call) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	default:
	}
	o.over = c
	close(o.wedged)
	return ErrWedged
}
