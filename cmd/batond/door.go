package main

import (
	"net"
	"sync/atomic"
	"time"
)

// door is a listener that outlives the servers that use it, one after the
// other: while there is none, clients wait in the kernel's queue.
type door struct {
	net.Listener
	waits atomic.Bool // somebody waits at it
	left  *beat       // when somebody last did
}

func newDoor(l net.Listener) *door { return &door{Listener: l, left: newBeat()} }

// open is the listener for one server. Closing it leaves d open.
func (d *door) open() net.Listener {
	d.left.now()
	d.deadline(time.Time{})
	return &visit{door: d}
}

// quiet is how long nobody has waited at the door.
func (d *door) quiet() time.Duration {
	if d.waits.Load() {
		return 0
	}
	return d.left.quiet()
}

func (d *door) deadline(t time.Time) {
	if l, ok := d.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		_ = l.SetDeadline(t) // fails on a closed one, whose Accept does not wait
	}
}

type visit struct {
	*door
	over atomic.Bool
}

// Accept is that of net.Listener.
func (v *visit) Accept() (net.Conn, error) {
	if v.over.Load() {
		return nil, net.ErrClosed
	}
	v.waits.Store(true)
	c, err := v.Listener.Accept()
	v.left.now()
	v.waits.Store(false)
	if err != nil && v.over.Load() {
		return nil, net.ErrClosed
	}
	return c, err
}

// Close ends Accept, and nothing else.
func (v *visit) Close() error {
	v.over.Store(true)
	v.deadline(time.Unix(1, 0))
	return nil
}
