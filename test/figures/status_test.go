//go:build figures

package figures

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/server"
	"baton/mgmt/server/servertest"
	"baton/test/rig"
)

// serving serves a real enclosure of eight slots in use, whose agent polls them
// on one simulated bus, in real time.
func serving(t *testing.T) (r *rig.Rig, socket string) {
	t.Helper()
	r = rig.New(t, rig.Options{Slots: 8})
	r.StartVM(rig.VM1, rig.A)
	r.Run()
	t.Cleanup(r.Stop)
	socket = filepath.Join(t.TempDir(), "s")
	l, err := server.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := server.New(r.E, server.Options{Agent: mgmt.Version, Keeper: servertest.NewKeeper()})
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return r, socket
}

// asker is a client that does little beside asking, on one connection that is
// kept: what it costs itself would bring any two servers closer together.
type asker struct {
	conn net.Conn
	in   *bufio.Reader
}

func newAsker(t *testing.T, socket string) *asker {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &asker{c, bufio.NewReaderSize(c, 64<<10)}
}

var askStatus = []byte("GET /v1/enclosure HTTP/1.1\r\nHost: baton\r\n\r\n")

// ask returns how many bytes the body has, and the body if keep.
func (a *asker) ask(keep bool) (n int, body []byte, err error) {
	if _, err := a.conn.Write(askStatus); err != nil {
		return 0, nil, err
	}
	line, err := a.in.ReadSlice('\n')
	if err != nil || !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
		return 0, nil, fmt.Errorf("answer %q, %v", line, err)
	}
	n = -1
	for {
		line, err := a.in.ReadSlice('\n')
		if err != nil {
			return 0, nil, err
		}
		if len(line) <= 2 {
			break
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if n, err = strconv.Atoi(string(bytes.TrimSpace(v))); err != nil {
				return 0, nil, err
			}
		}
	}
	if n < 0 {
		return 0, nil, fmt.Errorf("an answer without Content-Length")
	}
	if keep {
		body = make([]byte, n)
		_, err = io.ReadFull(a.in, body)
	} else {
		_, err = a.in.Discard(n)
	}
	return n, body, err
}

// rate is how many requests a second the askers get answered in d.
func rate(t *testing.T, askers []*asker, d time.Duration) float64 {
	t.Helper()
	var count atomic.Int64
	errs := make(chan error, len(askers))
	begin := time.Now()
	for _, a := range askers {
		go func() {
			for time.Since(begin) < d {
				if _, _, err := a.ask(false); err != nil {
					errs <- err
					return
				}
				count.Add(1)
			}
			errs <- nil
		}()
	}
	for range askers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	return float64(count.Load()) / time.Since(begin).Seconds()
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// TestStatusRate compares how often the agent tells the state of eight slots
// with how often net/http alone hands out the same bytes. Rounds of both
// alternate, so that what else the machine does meets both.
func TestStatusRate(t *testing.T) {
	_, socket := serving(t)
	n, body, err := newAsker(t, socket).ask(true)
	if err != nil {
		t.Fatal(err)
	}

	bare := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", bare)
	if err != nil {
		t.Fatal(err)
	}
	length := strconv.Itoa(n)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", length)
		_, _ = w.Write(body)
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })

	const rounds, round = 21, 150 * time.Millisecond
	for _, clients := range []int{1, 8} {
		var ours, theirs []*asker
		for range clients {
			ours, theirs = append(ours, newAsker(t, socket)), append(theirs, newAsker(t, bare))
		}
		rate(t, ours, round) // warm up
		rate(t, theirs, round)
		var ratios, rates []float64
		for range rounds {
			a, b := rate(t, ours, round), rate(t, theirs, round)
			ratios, rates = append(ratios, a/b), append(rates, a)
		}
		got := median(ratios)
		name := "status_over_bare_http"
		if clients > 1 {
			name = fmt.Sprintf("%s_%dclients", name, clients)
		}
		figure(name, got, fmt.Sprintf("ratio of requests/s, median of %d rounds; %d bytes, %.0f requests/s", rounds, n, median(rates)))
		if got < 0.8 {
			t.Errorf("%d clients: %.3f of what net/http alone does; want at least 0.8", clients, got)
		}
	}
}

// TestWatcherBytes measures what a client that watches events costs the agent:
// one that was sent some and waits for more, and one that does not read while
// there is more for it than the socket takes.
func TestWatcherBytes(t *testing.T) {
	const watchers = 32
	r, socket := serving(t)
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // pools keep what is unused for one more
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	long := strings.Repeat("x", 400)
	note := func(n int) {
		for i := range n {
			r.E.Note(enclosure.Event{Kind: "step", Slot: "gpu0", VM: rig.VM1, Text: fmt.Sprintf("%d: group 102, generation 18, read back; %s", i, long)})
		}
	}
	const last = "the last one"
	buf := make([]byte, 64<<10)
	for _, tt := range []struct {
		name, what string
		watch      func([]net.Conn)
	}{
		{"watcher_bytes", "that wait", func(conns []net.Conn) {
			note(100)
			r.E.Note(enclosure.Event{Kind: "step", Text: last})
			for i, c := range conns {
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
				tail := ""
				for !strings.Contains(tail, last) {
					n, err := c.Read(buf)
					if err != nil {
						t.Fatalf("watcher %d: %v", i, err)
					}
					tail = tail[max(0, len(tail)-100):] + string(buf[:n])
				}
			}
		}},
		{"watcher_bytes_stalled", "that do not read", func([]net.Conn) {
			note(2000)
			time.Sleep(time.Second) // for all to fill their sockets
		}},
	} {
		note(2000) // the enclosure's own ring is full before and after
		conns := make([]net.Conn, 0, watchers)
		before := used()
		for range watchers {
			c, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
			if _, err := io.WriteString(c, "GET /v1/events HTTP/1.1\r\nHost: baton\r\nAccept: text/event-stream\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		tt.watch(conns)
		each := (float64(used()) - float64(before)) / watchers
		if each < 1<<10 || each > 64<<10 {
			t.Errorf("%d watchers %s cost %.0f bytes each; want at most %d, and they can not be for nothing", watchers, tt.what, each, 64<<10)
		}
		figure(tt.name, int(each), fmt.Sprintf("bytes of heap and stacks each, mean of %d %s", watchers, tt.what))
		for _, c := range conns {
			_ = c.Close()
		}
		time.Sleep(200 * time.Millisecond) // for the server to see that they are gone
	}
}
