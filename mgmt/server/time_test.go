package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"baton/enclosure"
	"baton/mgmt/server/servertest"
)

// pipes is a listener in memory, for tests in virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

type pipeConn struct{ net.Conn }

func (pipeConn) Peer() Peer { return Peer{Known: true} }

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return pipeConn{c}, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial() net.Conn {
	a, b := net.Pipe()
	p.conns <- b
	return a
}

// inBubble runs fn against a server in virtual time, whose operations call
// gate. stop ends the server and returns what Serve did.
func inBubble(t *testing.T, gate func(context.Context) error, fn func(t *testing.T, f *servertest.Fake, p *pipes, stop func() error)) {
	synctest.Test(t, func(t *testing.T) {
		f := servertest.New()
		f.Gate = gate
		p := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- New(f, Options{Keeper: servertest.NewKeeper()}).Serve(ctx, p) }()
		// Not sync.Once: in a bubble, time stands still for who waits for a
		// Mutex.
		stop := func() error {
			cancel()
			err := <-done
			done <- err
			return err
		}
		fn(t, f, p, stop)
		if err := stop(); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

const fenceReq = "POST /v1/hosts/server1/fence HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n"

// TestStalledRequest: half a request is given up after 10 s.
func TestStalledRequest(t *testing.T) {
	for name, text := range map[string]string{
		"headers": "GET /v1/encl",
		"body":    "POST /v1/moves HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
		// Not read by its route, but it has to be got rid of.
		"body of a refused one": "POST /v1/nowhere HTTP/1.1\r\nHost: b\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, _ *servertest.Fake, p *pipes, _ func() error) {
				c := p.dial()
				defer shut(c)
				begin := time.Now()
				if _, err := io.WriteString(c, text); err != nil {
					t.Fatal(err)
				}
				answer, err := io.ReadAll(c)
				if err != nil {
					t.Errorf("read: %v", err)
				}
				if d := time.Since(begin); d < readTimeout/2 || d > 2*readTimeout {
					t.Errorf("given up after %v", d)
				}
				if name == "body" && !strings.Contains(string(answer), "the body did not arrive whole") {
					t.Errorf("answer %q", answer)
				}
			})
		})
	}
}

// TestLongOperation: the bounds on reading do not end what takes longer.
func TestLongOperation(t *testing.T) {
	gate := func(ctx context.Context) error {
		select {
		case <-time.After(readTimeout * 3):
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	inBubble(t, gate, func(t *testing.T, _ *servertest.Fake, p *pipes, _ func() error) {
		c := p.dial()
		defer shut(c)
		_, _ = io.WriteString(c, fenceReq)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("fence: %v, %v", resp, err)
		}
	})
}

// TestOperationBound: an operation that does not end is told to.
func TestOperationBound(t *testing.T) {
	gate := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	inBubble(t, gate, func(t *testing.T, _ *servertest.Fake, p *pipes, _ func() error) {
		c := p.dial()
		defer shut(c)
		begin := time.Now()
		_, _ = io.WriteString(c, fenceReq)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 503 {
			t.Fatalf("fence: %v, %v", resp, err)
		}
		if d := time.Since(begin); d != long {
			t.Errorf("after %v; want %v", d, long)
		}
	})
}

// TestStop: what is under way ends first, if it does within the grace; then
// its context ends.
func TestStop(t *testing.T) {
	for _, tt := range []struct {
		name  string
		takes time.Duration
		ends  time.Duration
		want  int
	}{
		{"short", 3 * time.Second, 3 * time.Second, 200},
		{"long", time.Minute, grace, 503},
	} {
		t.Run(tt.name, func(t *testing.T) {
			gate := func(ctx context.Context) error {
				select {
				case <-time.After(tt.takes):
				case <-ctx.Done():
				}
				return ctx.Err()
			}
			inBubble(t, gate, func(t *testing.T, _ *servertest.Fake, p *pipes, stop func() error) {
				c := p.dial()
				defer shut(c)
				_, _ = io.WriteString(c, fenceReq)
				synctest.Wait()
				stopped := make(chan error, 1)
				begin := time.Now()
				go func() { stopped <- stop() }()
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil || resp.StatusCode != tt.want {
					t.Errorf("fence: %v, %v", resp, err)
				}
				if d := time.Since(begin); d != tt.ends {
					t.Errorf("ended after %v; want %v", d, tt.ends)
				}
				if err := <-stopped; err != nil {
					t.Errorf("Serve: %v", err)
				}
			})
		})
	}
}

// TestStuckOperation: one that does not heed its context does not keep the
// agent from ending.
func TestStuckOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := servertest.New()
		goOn := make(chan struct{})
		f.Gate = func(context.Context) error { <-goOn; return nil }
		p := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- New(f, Options{Keeper: servertest.NewKeeper()}).Serve(ctx, p) }()
		c := p.dial()
		_, _ = io.WriteString(c, fenceReq)
		synctest.Wait()
		cancel()
		err := <-done
		if err == nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Serve: %v", err)
		}
		close(goOn)
		_ = c.Close()
	})
}

// TestStreamEnds: streams end at once when the agent stops.
func TestStreamEnds(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *servertest.Fake, p *pipes, stop func() error) {
		c := p.dial()
		defer shut(c)
		_, _ = io.WriteString(c, "GET /v1/events HTTP/1.1\r\nHost: b\r\nAccept: text/event-stream\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		begin := time.Now()
		go func() { _ = stop() }()
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Errorf("end of the stream: %v", err)
		}
		if d := time.Since(begin); d > time.Second {
			t.Errorf("after %v", d)
		}
	})
}

// TestStreamStaysAlive: a stream without events has a comment every 15 s.
func TestStreamStaysAlive(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *servertest.Fake, p *pipes, _ func() error) {
		c := p.dial()
		_, _ = io.WriteString(c, "GET /v1/events HTTP/1.1\r\nHost: b\r\nAccept: text/event-stream\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		comments := 0
		go func() {
			lines := bufio.NewScanner(resp.Body)
			for lines.Scan() {
				if lines.Text() == ":" {
					comments++
				}
			}
		}()
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if comments != 4 {
			t.Errorf("%d comments in a minute; want 4", comments)
		}
		_ = c.Close()
	})
}

// TestSlowWatcher: a watcher that does not read is dropped after 10 s, and
// moves do not wait for it meanwhile.
func TestSlowWatcher(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *servertest.Fake, p *pipes, _ func() error) {
		slow := p.dial()
		_, _ = io.WriteString(slow, "GET /v1/events HTTP/1.1\r\nHost: b\r\nAccept: text/event-stream\r\n\r\n")
		if _, err := bufio.NewReaderSize(slow, 16).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for range 1000 {
			f.Note(enclosure.Event{Kind: "step", Text: strings.Repeat("x", 1000)})
		}
		c := p.dial()
		defer shut(c)
		_, _ = io.WriteString(c, fenceReq)
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 200 {
			t.Errorf("fence: %v, %v", resp, err)
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("the fence took %v", d)
		}
		time.Sleep(writeTimeout + keepAlive)
		_ = slow.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := io.ReadAll(slow); err != nil {
			t.Errorf("the slow watcher still has its connection: %v", err)
		}
	})
}
