package main

import (
	"context"
	"log/slog"
	"time"

	"baton/enclosure"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifier tells systemd, where it started the agent, that the agent is ready,
// alive and stopping. Elsewhere it does nothing.
type notifier struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// asker is what has to answer for the agent to count as alive.
type asker interface {
	Status(ctx context.Context) enclosure.Status
}

func startNotifier(a asker, log *slog.Logger) *notifier {
	n := &notifier{done: make(chan struct{})}
	var ctx context.Context
	ctx, n.cancel = context.WithCancel(context.Background())
	// false, nil = there is nobody to tell.
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Warn("systemd does not hear", "err", err)
	}
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("watchdog", "err", err)
	}
	if timeout <= 0 {
		close(n.done)
		return n
	}
	go func() {
		defer close(n.done)
		feed(ctx, a, timeout, func() { _, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog) })
	}()
	return n
}

// feed calls fed at a third of timeout, as long as a answers. Where it does
// not, feed waits for its answer, and the watchdog bites.
func feed(ctx context.Context, a asker, timeout time.Duration, fed func()) {
	tick := time.NewTicker(timeout / 3)
	defer tick.Stop()
	for {
		_ = a.Status(ctx) // that it answers is the point
		fed()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (n *notifier) stop() {
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	n.cancel()
	<-n.done
}
