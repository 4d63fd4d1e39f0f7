package main

import (
	"net"
	"sync/atomic"
	"time"
)

// door is a listener that outlives the servers that use it, one after the
// other: while there is none, clients wait in the kernel's queue.
type door struct{ net.Listener }

// open is the listener for one server. Closing it leaves d open.
func (d door) open() net.Listener {
	d.deadline(time.Time{})
	return &visit{door: d}
}

func (d door) deadline(t time.Time) {
	if l, ok := d.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		_ = l.SetDeadline(t) // fails on a closed one, whose Accept does not wait
	}
}

type visit struct {
	door
	over atomic.Bool
}

// Accept is that of net.Listener.
func (v *visit) Accept() (net.Conn, error) {
	if v.over.Load() {
		return nil, net.ErrClosed
	}
	c, err := v.Listener.Accept()
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
