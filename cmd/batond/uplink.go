package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/config"
	"baton/vlan/station"
)

// Network sets the controller's own address. That of package station is the
// real one.
type Network interface {
	// Apply makes n the controller's network in place of the one that was
	// applied before; nil only takes that away. It reads back what it did.
	Apply(ctx context.Context, n *station.Network) error
}

// Bounds of what is done to the controller's own network.
const (
	networkTime    = 5 * time.Second  // for one change
	networkRetry   = 5 * time.Second  // its interface may come later than the agent
	networkWait    = 10 * time.Second // of the socket for that
	networkLook    = 50 * time.Millisecond
	defaultConfirm = 2 * time.Minute
	maxConfirm     = 30 * time.Minute
	confirmTimeout = 30 * time.Second // for keeping what was confirmed
)

// uplink keeps the controller's own network, and what is on trial. A trial is
// in RAM only: whoever starts the agent anew, or cuts its power, gets the
// network of before, which is the one that is kept. A start in place goes on
// with the trial.
type uplink struct {
	net  Network
	log  *slog.Logger
	note func(enclosure.Event) // into the present run's events

	lock chan struct{} // held while the network is changed

	mu    sync.Mutex
	begun bool // kept is known
	kept  *config.Network
	trial *trial
	err   error // why kept, or what is on trial, is not in force
}

// trial is a network that is put back unless somebody says that it works.
type trial struct {
	text []byte // of the configuration that it came with
	net  *config.Network
	ends time.Time // monotonic
	over *time.Timer
}

func newUplink(n Network, log *slog.Logger) *uplink {
	return &uplink{net: n, log: log, note: func(enclosure.Event) {}, lock: make(chan struct{}, 1)}
}

// start brings up the network of a configuration that was kept. It does not
// wait long: an interface that is not there yet is looked for by look. Where it
// is unsure that n is the network that was kept, one that is there stays.
func (u *uplink) start(ctx context.Context, n *config.Network, unsure bool) {
	u.lock <- struct{}{}
	defer func() { <-u.lock }()
	u.mu.Lock()
	stays := unsure && (u.begun || n == nil)
	if !stays {
		u.begun, u.kept = true, n
	}
	on := u.trial != nil
	u.mu.Unlock()
	if !on && !stays {
		_ = u.apply(ctx, n) // a warning says it, and look tries again
	}
}

// await waits, no longer than networkWait, for a network whose driver is not
// loaded yet: who finds the agent on its socket finds it in its network too.
// Anything else that is wrong with a network does not keep the socket closed.
func (u *uplink) await(ctx context.Context) {
	begin := time.Now()
	tick := time.NewTicker(networkLook)
	defer tick.Stop()
	for said := false; station.NotYet(u.problem()); said = true {
		if !said {
			u.log.Info("the socket waits for the controller's own network", "network", u.wanted().String(), "most", networkWait)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if time.Since(begin) >= networkWait {
			u.log.Warn("the socket waits no longer for the network, which is tried again", "network", u.wanted().String(), "err", u.problem())
			return
		}
		u.lock <- struct{}{}
		if station.NotYet(u.problem()) {
			_ = u.apply(ctx, u.wanted()) // said when it changes
		}
		<-u.lock
	}
	if n := u.wanted(); n != nil && u.problem() == nil {
		u.log.Info("the controller's own network is set", "network", n.String(), "waited", time.Since(begin).Round(time.Millisecond))
	}
}

// look tries again until ctx ends where a network could not be set.
func (u *uplink) look(ctx context.Context) {
	tick := time.NewTicker(networkRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if u.problem() == nil {
			continue
		}
		u.lock <- struct{}{}
		n := u.wanted()
		if u.problem() != nil && u.apply(ctx, n) == nil {
			u.tell("", "network: %s, at last", n)
		}
		<-u.lock
	}
}

// wanted is the network that should be in force now.
func (u *uplink) wanted() *config.Network {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.trial != nil {
		return u.trial.net
	}
	return u.kept
}

func (u *uplink) problem() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// apply changes the network. The lock is held.
func (u *uplink) apply(ctx context.Context, n *config.Network) error {
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), networkTime)
	defer cancel()
	err := u.net.Apply(short, stationOf(n))
	u.mu.Lock()
	was := u.err
	u.err = err
	u.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) { // it is tried again every few seconds
		u.log.Warn("the controller's own network could not be set", "network", n.String(), "err", err)
	}
	return err
}

func stationOf(n *config.Network) *station.Network {
	if n == nil {
		return nil
	}
	return &station.Network{Interface: n.Interface, Address: n.Address.Prefix, Gateway: n.Gateway.Addr, VLAN: n.VLAN}
}

// try puts n on trial. text is the configuration that has it.
func (u *uplink) try(ctx context.Context, text []byte, n *config.Network, d time.Duration, by string) error {
	u.lock <- struct{}{}
	defer func() { <-u.lock }()
	if err := u.apply(ctx, n); err != nil {
		state := "the network is as before; all else of the configuration is in force"
		if back := u.apply(ctx, u.kept); back != nil {
			state = "the network of before could not be put back either, and is tried again; all else of the configuration is in force"
		}
		return &enclosure.Error{Code: enclosure.CodeHardware, What: fmt.Sprintf("the network could not be set: %s", n), Err: err, State: state, Next: "correct 'network', then apply again"}
	}
	t := &trial{text: text, net: n, ends: time.Now().Add(d)}
	u.mu.Lock()
	before := u.kept
	u.trial = t
	t.over = time.AfterFunc(d, func() {
		u.lock <- struct{}{}
		defer func() { <-u.lock }()
		u.back(t, "", "nobody confirmed it in time")
	})
	u.mu.Unlock()
	u.tell(by, "network on trial: %s; in %v it is %s again, unless confirmed", n, d, before)
	return nil
}

// back ends a trial and puts the kept network back. The lock is held. It
// returns false where the trial was over already.
func (u *uplink) back(t *trial, by, why string) bool {
	u.mu.Lock()
	if t == nil || u.trial != t {
		u.mu.Unlock()
		return false
	}
	u.trial = nil
	kept := u.kept
	u.mu.Unlock()
	t.over.Stop()
	if err := u.apply(context.Background(), kept); err != nil {
		u.tell(by, "network: %s; %s could not be put back, and is tried again: %v", why, kept, err)
		return true
	}
	u.tell(by, "network: %s; it is %s again", why, kept)
	return true
}

// revert ends the trial, if there is one.
func (u *uplink) revert(by, why string) bool {
	u.lock <- struct{}{}
	defer func() { <-u.lock }()
	u.mu.Lock()
	t := u.trial
	u.mu.Unlock()
	return u.back(t, by, why)
}

// confirm ends the trial, if there is one and keep keeps its configuration, and
// its network stays.
func (u *uplink) confirm(by string, keep func(text []byte) error) (bool, error) {
	u.lock <- struct{}{}
	defer func() { <-u.lock }()
	u.mu.Lock()
	t := u.trial
	u.mu.Unlock()
	if t == nil {
		return false, nil
	}
	if err := keep(t.text); err != nil {
		return true, err
	}
	u.mu.Lock()
	u.kept, u.trial = t.net, nil
	u.mu.Unlock()
	t.over.Stop()
	u.tell(by, "network confirmed: %s", t.net)
	return true, nil
}

// wire is the trial as clients see it, nil where there is none.
func (u *uplink) wire() *mgmt.Trial {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.trial == nil {
		return nil
	}
	return &mgmt.Trial{Network: u.trial.net.String(), Before: u.kept.String(), LeftMS: max(0, time.Until(u.trial.ends).Milliseconds())}
}

// warnings are what a person should do something about.
func (u *uplink) warnings() []string {
	var w []string
	if err := u.problem(); err != nil {
		w = append(w, fmt.Sprintf("network: %s could not be set, and is tried again: %v", u.wanted(), err))
	}
	if t := u.wire(); t != nil {
		w = append(w, fmt.Sprintf("network: %s is on trial; in %v it is %s again, unless you keep it: baton config confirm", t.Network, (time.Duration(t.LeftMS)*time.Millisecond).Round(time.Second), t.Before))
	}
	return w
}

func (u *uplink) tell(by, format string, args ...any) {
	u.mu.Lock()
	note := u.note
	u.mu.Unlock()
	note(enclosure.Event{Kind: "config", Text: fmt.Sprintf(format, args...), By: by})
}

// tellTo says whose events the uplink's are from now on.
func (u *uplink) tellTo(note func(enclosure.Event)) {
	u.mu.Lock()
	u.note = note
	u.mu.Unlock()
}
