package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"baton/enclosure"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifier tells systemd, where it started the agent, that the agent is ready,
// alive and stopping, and in a line how the enclosure is. Elsewhere it does
// nothing.
type notifier struct {
	a      asker
	log    *slog.Logger
	cancel context.CancelFunc
	done   sync.WaitGroup
	once   sync.Once

	mu        sync.Mutex
	serves    bool   // ready was called
	line      string // as systemd has it
	watchdog  bool   // systemd has one for the agent
	listening bool   // there is a systemd
}

// asker knows how the enclosure is. It waits where the agent is between two
// runs.
type asker interface {
	Status(ctx context.Context) enclosure.Status
}

const (
	// statusEvery is how old the line that systemd shows may be.
	statusEvery = 5 * time.Second
	// extendEvery is how often systemd is asked for more time for a start, and
	// extendBy how much each time.
	extendEvery = 10 * time.Second
	extendBy    = 3 * extendEvery
)

// startNotifier watches the agent by how, from before it is ready.
func startNotifier(a asker, how func() condition, log *slog.Logger) *notifier {
	n := &notifier{a: a, log: log, listening: os.Getenv("NOTIFY_SOCKET") != ""}
	var ctx context.Context
	ctx, n.cancel = context.WithCancel(context.Background())
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("watchdog", "err", err)
	}
	if !n.listening {
		return n
	}
	n.watchdog = timeout > 0
	every := statusEvery
	if n.watchdog {
		every = timeout / 3
	}
	n.done.Go(func() { feed(ctx, how, every, n.living, n.stuck) })
	n.done.Go(func() { feed(ctx, how, extendEvery, n.starting, func(string) {}) })
	n.done.Go(func() { n.describe(ctx, every) })
	return n
}

// ready says that the agent serves, once.
func (n *notifier) ready() {
	n.once.Do(func() {
		line := statusLine(n.a.Status(context.Background()))
		n.mu.Lock()
		defer n.mu.Unlock()
		n.serves, n.line = true, line
		// false, nil = there is nobody to tell.
		if _, err := daemon.SdNotify(false, daemon.SdNotifyReady+"\nSTATUS="+line); err != nil {
			n.log.Warn("systemd does not hear", "err", err)
		}
	})
}

// feed calls fed every so often as long as the agent is alive by how, of which a
// start is part, and stuck when it is no more.
func feed(ctx context.Context, how func() condition, every time.Duration, fed func(), stuck func(where string)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for was := true; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		c := how()
		switch {
		case c.alive():
			fed()
		case was:
			stuck(c.text)
		}
		was = c.alive()
	}
}

func (n *notifier) stuck(where string) {
	n.log.Error("the agent is stuck, and no longer says that it is alive", "where", where)
}

// living feeds the watchdog.
func (n *notifier) living() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.serves && n.watchdog {
		_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog) // it was said above if nobody hears
	}
}

// starting asks for more time: engines on dead buses take theirs.
func (n *notifier) starting() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.serves {
		_, _ = daemon.SdNotify(false, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extendBy.Microseconds()))
	}
}

// describe keeps the line that systemd shows. It may have to wait for the
// enclosure, and nothing waits for it.
func (n *notifier) describe(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		line := statusLine(n.a.Status(ctx))
		n.mu.Lock()
		if n.serves && line != n.line && ctx.Err() == nil {
			n.line = line
			_, _ = daemon.SdNotify(false, "STATUS="+line)
		}
		n.mu.Unlock()
	}
}

func (n *notifier) stop() {
	n.cancel()
	n.done.Wait() // nothing is said after the last word
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
}

// statusLine is what 'systemctl status batond' shows.
func statusLine(s enclosure.Status) string {
	var used, blocked, wrong, fenced int
	for _, l := range s.Slots {
		if l.Host != "" {
			used++
		}
		if l.Blocked != "" {
			blocked++
		}
		if l.Problem != "" {
			wrong++
		}
	}
	for _, h := range s.Hosts {
		if h.Fenced {
			fenced++
		}
	}
	parts := []string{fmt.Sprintf("%s: %d of %d slots with a host", s.Name, used, len(s.Slots))}
	for _, c := range []struct {
		n    int
		what string
	}{{blocked, "blocked"}, {wrong, "with a problem"}, {fenced, "hosts fenced"}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if !s.Store.OK {
		parts = append(parts, "store NOT USABLE")
	}
	if s.Simulated {
		parts = append(parts, "SIMULATED")
	}
	return strings.Join(parts, ", ")
}
