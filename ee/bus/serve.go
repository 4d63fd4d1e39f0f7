package bus

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"

	"periph.io/x/conn/v3/i2c"
	"periph.io/x/conn/v3/physic"
)

// Serve gives bus to whoever connects to l, until ctx ends; then it closes l
// and every connection, waits for the transfers under way and returns nil.
// Each connection has its own goroutine: bus must be safe for concurrent use.
func Serve(ctx context.Context, l net.Listener, bus i2c.Bus) error {
	ctx, cancel := context.WithCancel(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("serve %s: %w", bus, err)
		}
		conns.Go(func() { serveConn(ctx, conn, bus) })
	}
}

// serveConn answers one client until it leaves, breaks a rule of the protocol
// or ctx ends. A client that does is no error of the server.
func serveConn(ctx context.Context, conn net.Conn, bus i2c.Bus) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	from := bufio.NewReader(conn)
	for {
		q, err := readRequest(from)
		if err != nil {
			return
		}
		if _, err := conn.Write(answer(bus, q).append(nil)); err != nil {
			return
		}
	}
}

func answer(bus i2c.Bus, q request) response {
	var err error
	r := make([]byte, q.r)
	if q.op == opSetSpeed {
		err = bus.SetSpeed(physic.Frequency(binary.BigEndian.Uint64(q.w)))
	} else {
		err = bus.Tx(q.addr, q.w, r)
	}
	if err != nil {
		return encodeError(err)
	}
	return response{class: classDone, data: r}
}
