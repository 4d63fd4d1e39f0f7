package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"periph.io/x/conn/v3/i2c"
	"periph.io/x/conn/v3/physic"
)

var _ i2c.BusCloser = (*Remote)(nil)

// served starts a server of b on a Unix socket at path; stop ends it and fails
// the test if it did not end well.
func served(t *testing.T, path string, b i2c.Bus) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, b) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
}

func open(t *testing.T, path string) i2c.BusCloser {
	t.Helper()
	b, err := Open("unix:"+path, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func TestRemote(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus0.sock")
	c := &chip{}
	defer served(t, path, c)()
	b := open(t, path)

	r := make([]byte, 3)
	if err := b.Tx(0x50, []byte{1, 2, 3}, r); err != nil || !bytes.Equal(r, []byte{0xFE, 0xFD, 0xFC}) {
		t.Errorf("Tx = %v, read % x; want fe fd fc", err, r)
	}
	if err := b.Tx(0x51, nil, nil); err != nil {
		t.Errorf("empty Tx = %v", err)
	}
	long := bytes.Repeat([]byte{0xA5}, maxTransfer)
	r = make([]byte, maxTransfer)
	if err := b.Tx(0x52, long, r); err != nil || !bytes.Equal(r, bytes.Repeat([]byte{0x5A}, maxTransfer)) {
		t.Errorf("longest Tx = %v", err)
	}
	err := b.Tx(0x53, append(long, 0), nil)
	var e *Error
	if !errors.As(err, &e) || e.Temporary() {
		t.Errorf("Tx of %d bytes = %v; want a final error", maxTransfer+1, err)
	}
	if err := b.SetSpeed(400 * physic.KiloHertz); err != nil || c.speed != 400*physic.KiloHertz {
		t.Errorf("SetSpeed = %v, the other end has %s", err, c.speed)
	}
	if got, want := fmt.Sprintf("%x", c.seen), "[50 51 52]"; got != want {
		t.Errorf("the other end saw %s; want %s", got, want)
	}
}

// What goes wrong at the other end is of the same class here.
func TestRemoteErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus0.sock")
	c := &chip{}
	defer served(t, path, c)()
	b := open(t, path)
	for _, tc := range []struct {
		err       error
		want      error
		temporary bool
	}{
		{fmt.Errorf("model: %w", ErrNACK), ErrNACK, true},
		{fmt.Errorf("model: %w", ErrArbitration), ErrArbitration, true},
		{fmt.Errorf("model: %w", ErrStuck), ErrStuck, true},
		{fmt.Errorf("model: %w", ErrWedged), ErrWedged, false},
		{fmt.Errorf("model: %w", ErrIO), ErrIO, true},
		{Classify("transfer", "inner", 0x57, syscall.ENXIO), ErrNACK, true},
		{fmt.Errorf("adapter: %w", syscall.EINVAL), ErrIO, false},
		{errors.New("enclosure has no power"), ErrIO, true},
		{errors.New(strings.Repeat("long ", 10_000)), ErrIO, true},
	} {
		c.err = tc.err
		r := []byte{7}
		err := b.Tx(0x50, []byte{1}, r)
		var e *Error
		if !errors.Is(err, tc.want) || !errors.As(err, &e) || e.Temporary() != tc.temporary || e.Addr != 0x50 || e.Bus != "unix:"+path {
			t.Errorf("other end fails with %.60v: here %.100v; want %v, temporary %v", tc.err, err, tc.want, tc.temporary)
		}
		if text := tc.err.Error(); !strings.Contains(err.Error(), text[:min(len(text), 500)]) {
			t.Errorf("%.100v does not say what the other end said, %.100v", err, tc.err)
		}
		if strings.Count(err.Error(), tc.want.Error()) > 1 {
			t.Errorf("%.200v names its class twice", err)
		}
		if r[0] != 7 {
			t.Errorf("a failed Tx wrote 0x%02x into the caller's buffer", r[0])
		}
	}
	c.err = nil
	if err := b.Tx(0x50, []byte{1}, nil); err != nil {
		t.Errorf("Tx after errors of the bus = %v", err)
	}
}

// A simulator that is restarted between two transfers is not noticed; one that
// is away fails transfers until it is back.
func TestRemoteReconnects(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus0.sock")
	c := &chip{}
	b := open(t, path)
	tx := func() error { return b.Tx(0x50, []byte{1}, nil) }

	down := func(when string) {
		t.Helper()
		err := tx()
		var e *Error
		if !errors.Is(err, ErrIO) || !errors.As(err, &e) || !e.Temporary() {
			t.Errorf("Tx %s = %v; want a temporary I/O error", when, err)
		}
	}
	down("before the first start")
	for range 3 {
		stop := served(t, path, c)
		if err := tx(); err != nil {
			t.Errorf("Tx after a start = %v", err)
		}
		stop()
	}
	down("after the last stop")
	if len(c.seen) != 3 {
		t.Errorf("the other end saw %d transfers; want 3", len(c.seen))
	}
}

// A connection that is lost in the middle of a transfer fails it, and it is not
// sent again: nobody knows whether it was carried out.
func TestRemoteLostInTransfer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus0.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := open(t, path)
	requests := make(chan request, 10)
	var server sync.WaitGroup
	server.Go(func() {
		for range 2 {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if q, err := readRequest(conn); err == nil {
				requests <- q
			}
			conn.Close()
		}
	})
	for range 2 {
		if err := b.Tx(0x50, []byte{1}, nil); !errors.Is(err, ErrIO) {
			t.Errorf("Tx = %v; want an I/O error", err)
		}
	}
	server.Wait()
	if len(requests) != 2 {
		t.Errorf("two transfers were sent as %d requests", len(requests))
	}
}

// A response that is none ends the connection: what follows on it could be
// taken for the answer to another transfer.
func TestRemoteHangsUpOnNonsense(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus0.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := open(t, path)
	var server sync.WaitGroup
	server.Go(func() {
		// The first response is of another version, on a connection that
		// stays open and would give a good one to the second transfer.
		for _, version := range []byte{2, protocolVersion} {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			server.Go(func() {
				defer conn.Close()
				asked := false
				for {
					q, err := readRequest(conn)
					if err != nil {
						return
					}
					p := response{classDone, bytes.Repeat([]byte{version}, q.r)}.append(nil)
					if p[0] = version; asked {
						p[0] = protocolVersion
					}
					asked = true
					if _, err := conn.Write(p); err != nil {
						return
					}
				}
			})
		}
	})
	r := []byte{0}
	if err := b.Tx(0x50, []byte{1}, r); !errors.Is(err, ErrIO) || r[0] != 0 {
		t.Errorf("response of version 2: %v, read %d; want an I/O error", err, r[0])
	}
	if err := b.Tx(0x50, []byte{1}, r); err != nil || r[0] != protocolVersion {
		t.Errorf("next transfer: %v, read %d; want it on a new connection", err, r[0])
	}
	b.Close()
	server.Wait()
}

func TestRemoteClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus0.sock")
	c := &chip{release: make(chan struct{})}
	defer served(t, path, c)()
	defer close(c.release)
	b := open(t, path)
	failed := make(chan error, 1)
	go func() { failed <- b.Tx(0x50, []byte{1}, nil) }()
	for {
		c.mu.Lock()
		n := len(c.seen)
		c.mu.Unlock()
		if n > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if err := <-failed; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Tx under way at Close = %v; want closed", err)
	}
	err := b.Tx(0x50, []byte{1}, nil)
	var e *Error
	if !errors.Is(err, net.ErrClosed) || !errors.As(err, &e) || e.Temporary() {
		t.Errorf("Tx after Close = %v; want closed, final", err)
	}
}

// The server hangs up on whoever breaks the protocol, and serves the others.
func TestServeBadClients(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus0.sock")
	c := &chip{}
	defer served(t, path, c)()
	for name, p := range map[string][]byte{
		"version 2":        {2, 1, 0, 0x50, 0, 0, 0, 1},
		"operation 9":      {1, 9, 0, 0x50, 0, 0, 0, 1},
		"write too long":   {1, 1, 0, 0x50, 0x20, 0x01, 0, 1},
		"read too long":    {1, 1, 0, 0x50, 0, 0, 0xFF, 0xFF},
		"speed of 4 bytes": {1, 2, 0, 0, 0, 4, 0, 0, 1, 2, 3, 4},
		"an HTTP client":   []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
	} {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: read %d bytes, %v; want the connection closed", name, n, err)
		}
		conn.Close()
	}
	if len(c.seen) != 0 {
		t.Errorf("bad clients reached chips %x", c.seen)
	}
	if err := open(t, path).Tx(0x50, []byte{1}, nil); err != nil {
		t.Errorf("a good client beside them: %v", err)
	}
}

// Several clients, one slow: the others do not wait for it, and the server
// waits for its transfer before it ends.
func TestServeSeveral(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus0.sock")
	slow := &chip{takes: 50 * time.Millisecond}
	stop := served(t, path, slow)
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() {
			b := open(t, path)
			for range 3 {
				if err := b.Tx(uint16(0x50+i), []byte{1}, nil); err != nil {
					t.Errorf("client %d: %v", i, err)
				}
			}
		})
	}
	clients.Wait()
	stop()
	if len(slow.seen) != 12 {
		t.Errorf("the bus saw %d transfers; want 12", len(slow.seen))
	}
	if _, err := net.Dial("unix", path); err == nil {
		t.Error("the socket still accepts after Serve returned")
	}
}

func TestReadResponseRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		p    []byte
		want error
	}{
		{"nothing", nil, io.ErrUnexpectedEOF},
		{"half a header", []byte{1, 0}, io.ErrUnexpectedEOF},
		{"version 2", []byte{2, 0, 0, 1, 9}, errProtocol},
		{"class 7", []byte{1, 7, 0, 0}, errProtocol},
		{"fewer bytes than asked for", []byte{1, 0, 0, 0}, errProtocol},
		{"more bytes than asked for", []byte{1, 0, 0, 2, 9, 9}, errProtocol},
		{"data cut", []byte{1, 0, 0, 1}, io.ErrUnexpectedEOF},
		{"text too long", []byte{1, 1, 0x04, 0x01}, errProtocol},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if a, err := readResponse(bytes.NewReader(tc.p), 1); !errors.Is(err, tc.want) {
				t.Errorf("readResponse = %+v, %v; want %v", a, err, tc.want)
			}
		})
	}
}
