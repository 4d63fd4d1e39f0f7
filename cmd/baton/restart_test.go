package main

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/server/servertest"
)

// screen is what a command prints while it runs.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) wait(t *testing.T, want string) {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		text := s.text.String()
		s.mu.Unlock()
		if strings.Contains(text, want) {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Fatalf("20 s without %q:\n%s", want, s.text.String())
}

// TestResume: watch goes on when the agent was restarted, and says what it may
// have missed.
func TestResume(t *testing.T) {
	servertest.NoLeaks(t)
	a := agent{servertest.New(), servertest.NewKeeper()}
	socket := filepath.Join(t.TempDir(), "s")
	if len(socket) > 100 {
		t.Skipf("%s is too long for a socket", socket)
	}
	stop, err := serveAt(a, socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var s screen
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"watch", "--socket", socket}, nil, &s, &s) }()
	s.wait(t, "4 slots read back")
	a.fake.Note(enclosure.Event{Kind: "fence", Text: "before"})
	s.wait(t, "before")
	stop()
	s.wait(t, "the agent went away")
	a = agent{servertest.New(), servertest.NewKeeper()}
	if stop, err = serveAt(a, socket); err != nil {
		t.Fatal(err)
	}
	defer stop()
	s.wait(t, "the agent is back")
	s.wait(t, "gap")
	a.fake.Note(enclosure.Event{Kind: "fence", Text: "afterwards"})
	s.wait(t, "afterwards")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("interrupted: %v", err)
	}
}

// TestRestarted: the run of before does not count as the one after, and an
// agent that does not come back is not waited for for ever.
func TestRestarted(t *testing.T) {
	f := servertest.New()
	began := time.Now().Add(-time.Hour)
	var mu sync.Mutex
	setUptime := func() {
		mu.Lock()
		defer mu.Unlock()
		f.Edit(func(s *enclosure.Status) { s.Uptime = time.Since(began) })
	}
	setUptime()
	socket, stop, err := serve(agent{f, servertest.NewKeeper()})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	tl := &tool{live: newLive(io.Discard), agent: mgmt.Dial(socket), socket: socket}
	defer tl.agent.Close()
	ticking, end := context.WithCancel(t.Context())
	var clock sync.WaitGroup
	clock.Go(func() {
		for ticking.Err() == nil {
			setUptime()
			time.Sleep(time.Millisecond)
		}
	})
	defer clock.Wait()
	defer end()

	m := tl.mark(t.Context())
	short, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	if err := tl.restarted(short, m); !errors.As(err, new(*mgmt.UnreachableError)) || !strings.Contains(err.Error(), "has not started again") {
		t.Errorf("the same run: %v; want that it has not started again", err)
	}
	mu.Lock()
	began = time.Now()
	mu.Unlock()
	if err := tl.restarted(t.Context(), m); err != nil {
		t.Errorf("another run: %v", err)
	}
}
