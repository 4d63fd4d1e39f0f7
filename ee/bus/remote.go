package bus

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"periph.io/x/conn/v3/physic"
)

// Remote is a bus at the other end of a stream, served by Serve: the
// simulator's. It is safe for concurrent use.
//
// It dials at the first transfer, and again at the first one after the
// connection was lost, once for a transfer.
type Remote struct {
	network, addr string
	ctx           context.Context // ends at Close
	cancel        context.CancelFunc
	turn          chan struct{} // holds a token while somebody talks: a lock that may be held during I/O

	mu   sync.Mutex // of conn; never held during I/O
	conn net.Conn   // nil until dialled
	from *bufio.Reader
}

const (
	dialTimeout = time.Second
	// replyTimeout is far above what Own allows a transfer: it only ends a
	// connection whose other end stopped without closing it.
	replyTimeout = 30 * time.Second
)

// NewRemote returns the bus served at addr of network ("unix" or "tcp").
func NewRemote(network, addr string) *Remote {
	ctx, cancel := context.WithCancel(context.Background())
	return &Remote{network: network, addr: addr, ctx: ctx, cancel: cancel, turn: make(chan struct{}, 1)}
}

// String gives the name that Open takes.
func (b *Remote) String() string { return b.network + ":" + b.addr }

// Tx does one transfer of at most 8192 bytes each way. Its errors are *Error;
// after a temporary one the transfer may or may not have been carried out.
func (b *Remote) Tx(addr uint16, w, r []byte) error {
	if len(w) > maxTransfer || len(r) > maxTransfer {
		return Classify("transfer", b.String(), addr, final(fmt.Errorf("%d bytes to write, %d to read, at most %d", len(w), len(r), maxTransfer)))
	}
	data, err := b.do(request{op: opTransfer, addr: addr, w: w, r: len(r)})
	copy(r, data)
	return Classify("transfer", b.String(), addr, err)
}

// SetSpeed sets the clock of the bus at the other end.
func (b *Remote) SetSpeed(f physic.Frequency) error {
	_, err := b.do(request{op: opSetSpeed, w: binary.BigEndian.AppendUint64(nil, uint64(f))})
	return Classify("set speed", b.String(), 0, err)
}

// Close ends the connection, and a transfer that waits for it.
func (b *Remote) Close() error {
	b.cancel()
	b.drop()
	return nil
}

func (b *Remote) do(q request) ([]byte, error) {
	select {
	case b.turn <- struct{}{}:
	case <-b.ctx.Done():
		return nil, final(net.ErrClosed)
	}
	defer func() { <-b.turn }()
	conn, from, err := b.connect()
	if err != nil {
		return nil, b.failed(err)
	}
	a, err := exchange(conn, from, q)
	if err != nil {
		b.drop()
		return nil, b.failed(err)
	}
	if err := a.err(); err != nil {
		return nil, err // a.data is its text
	}
	return a.data, nil
}

// failed puts what happened to the connection into its class. That the other
// end is not there, or went, is temporary whatever the errno: simulators are
// restarted.
func (b *Remote) failed(err error) error {
	if b.ctx.Err() != nil {
		return final(net.ErrClosed)
	}
	return fmt.Errorf("%w: %w", ErrIO, err)
}

// exchange sends q and waits for its response.
func exchange(conn net.Conn, from *bufio.Reader, q request) (response, error) {
	if err := conn.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return response{}, err
	}
	if _, err := conn.Write(q.append(nil)); err != nil {
		return response{}, err
	}
	a, err := readResponse(from, q.r)
	if err != nil {
		return response{}, err
	}
	return a, conn.SetDeadline(time.Time{})
}

// connect returns the connection there is, or dials.
func (b *Remote) connect() (net.Conn, *bufio.Reader, error) {
	b.mu.Lock()
	conn, from := b.conn, b.from
	b.mu.Unlock()
	if conn != nil {
		if alive(conn) {
			return conn, from, nil
		}
		b.drop()
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(b.ctx, b.network, b.addr)
	if err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil { // Close came first and found nothing to close
		_ = conn.Close()
		return nil, nil, net.ErrClosed
	}
	b.conn, b.from = conn, bufio.NewReader(conn)
	return b.conn, b.from, nil
}

func (b *Remote) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		_ = b.conn.Close() // nothing is left to be flushed
		b.conn, b.from = nil, nil
	}
}

// alive tells whether the other end is still there, without waiting. A
// simulator that was restarted since the last transfer has closed the
// connection; sending into it would lose a transfer for nothing.
func alive(conn net.Conn) bool {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	var peek error
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, peek = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	})
	// No error is an end of stream, or bytes that nobody asked for.
	return err == nil && (peek == syscall.EAGAIN || peek == syscall.EINTR)
}
