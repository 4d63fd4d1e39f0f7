package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"baton/enclosure"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifier tells systemd, where it started the agent, that the agent is ready,
// alive and stopping, and in a line how the enclosure is. Elsewhere it does
// nothing.
type notifier struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// asker is what has to answer for the agent to count as alive.
type asker interface {
	Status(ctx context.Context) enclosure.Status
}

// statusEvery is how old the line that systemd shows may be.
const statusEvery = 5 * time.Second

func startNotifier(a asker, log *slog.Logger) *notifier {
	n := &notifier{done: make(chan struct{})}
	var ctx context.Context
	ctx, n.cancel = context.WithCancel(context.Background())
	line := "STATUS=" + statusLine(a.Status(ctx))
	// false, nil = there is nobody to tell.
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady+"\n"+line); err != nil {
		log.Warn("systemd does not hear", "err", err)
	}
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("watchdog", "err", err)
	}
	if os.Getenv("NOTIFY_SOCKET") == "" {
		close(n.done)
		return n
	}
	tell := func(watchdog bool, s enclosure.Status) {
		var say []string
		if watchdog {
			say = append(say, daemon.SdNotifyWatchdog)
		}
		if now := "STATUS=" + statusLine(s); now != line {
			line = now
			say = append(say, line)
		}
		if len(say) > 0 {
			_, _ = daemon.SdNotify(false, strings.Join(say, "\n")) // it was said above if nobody hears
		}
	}
	go func() {
		defer close(n.done)
		if timeout > 0 {
			feed(ctx, a, timeout/3, func(s enclosure.Status) { tell(true, s) })
		} else {
			feed(ctx, a, statusEvery, func(s enclosure.Status) { tell(false, s) })
		}
	}()
	return n
}

// feed calls fed at once and then every so often, as long as a answers. Where
// it does not, feed waits for its answer, and the watchdog bites.
func feed(ctx context.Context, a asker, every time.Duration, fed func(enclosure.Status)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		fed(a.Status(ctx)) // that it answers is the point
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (n *notifier) stop() {
	n.cancel()
	<-n.done // nothing is said after the last word
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
