package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/config"
	"baton/mgmt/server"
	"baton/nvm"
	"baton/vlan/station"
)

// agent is one process: what lasts from one run to the next. A run reads store
// and configuration and serves; another begins in place where one has ended
// because the configuration, or what the store holds, is to be read anew. That
// touches no link, and clients wait meanwhile.
type agent struct {
	log    *slog.Logger
	seed   *seed // as last read
	uplink *uplink
	health *health

	socket  string
	door    *door  // nil = not listening yet
	unread  int    // runs in a row that could not read the store's medium
	mounted string // the store that was mounted: no power was lost since

	mu      sync.Mutex
	present *session      // nil between two runs
	changed chan struct{} // closed when present changes
}

// session is what the agent is between two starts in place.
type session struct {
	enc    *enclosure.Enclosure
	keeper *keeper
}

func newAgent(s *seed, log *slog.Logger) *agent {
	u := newUplink(station.New(filepath.Join(s.config.RunDir, "batond.network")), log)
	return &agent{log: log, seed: s, uplink: u, health: newHealth(), changed: make(chan struct{})}
}

func (a *agent) close() {
	if a.door != nil {
		_ = a.door.Close() // nobody waits there any more
	}
}

// A run that ends by itself is followed by another after a while, unless that
// happens again and again: then whoever started the process may know better.
const (
	mostFailures = 3 // in failuresIn
	failuresIn   = time.Minute
	firstPause   = 200 * time.Millisecond
)

// serve runs the agent until ctx ends. A bus, a chip or a store that can not
// be used does not end it: its status says so.
func (a *agent) serve(ctx context.Context) error {
	defer a.uplink.revert("", "the agent stops")
	defer a.answerHealth()()
	notifier := startNotifier(a, a.health.now, a.log)
	defer notifier.stop()
	return again(ctx, a.log, func() ending {
		end := a.run(ctx, notifier.ready)
		if end.again {
			a.readSeedAgain()
		}
		return end
	})
}

// answerHealth answers on the private channel, where there is one, until the
// function that it returns is called.
func (a *agent) answerHealth() (end func()) {
	c, err := openHealth()
	if err != nil {
		a.log.Error("nobody can ask how the agent is", "err", err)
	}
	if c == nil {
		return func() {}
	}
	var answering sync.WaitGroup
	answering.Go(func() { a.health.answer(c) })
	return func() {
		_ = c.Close() // what is under way is not waited for
		answering.Wait()
	}
}

// again runs one run after the other, until one ends that no other follows.
func again(ctx context.Context, log *slog.Logger, run func() ending) error {
	var failed []time.Time
	for {
		end := run()
		if !end.again || ctx.Err() != nil {
			return end.err
		}
		if end.err == nil {
			continue
		}
		now := time.Now()
		failed = append(slices.DeleteFunc(failed, func(t time.Time) bool { return now.Sub(t) > failuresIn }), now)
		if len(failed) > mostFailures {
			return fmt.Errorf("%d runs in %v have ended by themselves, the last one: %w", len(failed), failuresIn, end.err)
		}
		log.Error("the agent starts again in place", "err", end.err)
		select {
		case <-time.After(firstPause << (len(failed) - 1)):
		case <-ctx.Done():
			return end.err
		}
	}
}

// readSeedAgain takes over a file that was changed, if it can be used.
func (a *agent) readSeedAgain() {
	s, err := readSeed(a.seed.file)
	if err != nil {
		a.log.Error("the agent goes on with the configuration file as it was before", "err", err)
		return
	}
	a.seed = s
}

// ending is how a run has ended.
type ending struct {
	err   error
	again bool // another run may begin in place
}

func failedWith(err error) ending { return ending{err: err} }

// run serves until ctx ends, somebody asks for another run, or the enclosure
// asks for one. ready is called when it serves.
func (a *agent) run(ctx context.Context, ready func()) (end ending) {
	a.health.begin("looks for its buses", len(a.seed.config.Slots))
	defer func() { a.health.begin("ends a run", len(a.seed.config.Slots)) }()
	dir, err := openRunDir(a.seed.config)
	if err != nil {
		return failedWith(err)
	}
	defer dir.close()
	sameBoot := dir.sameBoot || a.mounted == dir.id

	// Drivers load while the process starts. In a start in place clients would
	// wait, for what may never come.
	first := a.door == nil
	if first {
		awaitDevices(ctx, a.seed.config, a.log, func(what string) { a.health.goOn(waitsFor+what, len(a.seed.config.Slots)) })
	}
	hw := openHardware(a.seed.config, a.log)
	defer func() {
		if err := hw.close(); err != nil {
			end.err = errors.Join(end.err, err)
		}
	}()
	opt := enclosure.Options{SameBoot: sameBoot, Log: a.log}
	a.health.goOn("reads the store", len(a.seed.config.Slots))
	opt.Memory = enclosure.Mount(ctx, hw.config.Store, opt)
	if ctx.Err() != nil {
		return ending{}
	}
	f := find(a.seed, opt.Memory)
	hw.use(f.config)
	a.health.goOn("looks at the slots, and carries on what was cut short", len(f.config.Slots))
	hw.ports.make(ctx)
	enc, err := enclosure.Open(ctx, hw.config, opt)
	if ctx.Err() != nil {
		return ending{} // stopped before it was ready; recovery is done again at the next start
	}
	if err != nil {
		return failedWith(fmt.Errorf("open enclosure: %w", err))
	}
	switch {
	case enc.Status(ctx).Store.OK:
		a.mounted = dir.id
		if err := dir.mark(); err != nil {
			a.log.Warn("the next start takes this one's power for lost, and rewrites what it reads", "err", err)
		}
	case f.frozen == nil: // a frozen run has not looked at the config blocks: the next one does
		hw.explainStore(ctx)
	}
	f.noteEdit(ctx, enc)
	f.notes = append(f.notes, hw.warnings...)

	// Serving ends with ctx, or when another run is asked for.
	serving, endServing := context.WithCancel(ctx)
	defer endServing()
	asked := make(chan string, 1)
	k := newKeeper(f, enc, a.uplink, func(why string) {
		select {
		case asked <- why:
		default:
		}
		endServing()
	}, a.log)
	k.ports = hw.ports
	k.tellConsole = tellConsole
	// Where it is not known what is configured, a lock of before stays.
	if known := f.frozen == nil && !f.unsure; known || !consoleTold(k.running.RunDir) {
		k.lockConsole(f.config)
	}
	// The poller goes on while the server lets operations end; whichever ends
	// by itself ends the other. Slots do not wait for the network.
	polling, endPolling := context.WithCancel(context.WithoutCancel(ctx))
	defer endPolling()
	polled := make(chan error, 1)
	go func() {
		defer endServing()
		polled <- enc.Run(polling)
	}()
	var looking sync.WaitGroup
	looking.Go(func() { hw.ports.look(polling, enc.Note) })
	endRun := func() error {
		endPolling()
		ran := <-polled
		looking.Wait()
		if errors.Is(ran, context.Canceled) {
			return nil
		}
		return ran
	}

	a.uplink.tellTo(enc.Note)
	a.health.goOn("sets the controller's own network", len(f.config.Slots))
	a.uplink.start(ctx, f.config.Network, f.unsure)
	if first {
		if station.NotYet(a.uplink.problem()) {
			a.health.goOn(waitsFor+"the controller's own network", len(f.config.Slots))
		}
		a.uplink.await(serving)
	}
	l, err := a.listen(f.config.Socket)
	if err != nil && a.door != nil {
		a.log.Error("the socket of before is used", "err", err)
		k.notes = append(k.notes, fmt.Sprintf("socket: %v; %s is used until the agent's process ends, and the next one would not start: correct 'socket'", err, a.socket))
		l, err = a.door.open(), nil
	}
	if err != nil {
		return failedWith(errors.Join(err, endRun()))
	}
	look := &check{hw: hw, config: f.config, keeper: k, socket: f.config.Socket, sysfs: "/sys", now: time.Now}
	srv := server.New(enc, server.Options{Agent: mgmt.Version, Keeper: k, AdminUID: uint32(os.Geteuid()), Check: look.lines, Log: a.log})
	a.now(&session{enc, k})
	defer a.now(nil)
	looking.Go(func() { a.uplink.look(polling) })
	if f.frozen == nil && unread(opt.Memory.Problem()) {
		pause := mediumPause(a.unread)
		a.unread++
		looking.Go(func() { hw.awaitMedium(serving, a.seed.config, pause, k.Restart) })
	} else {
		a.unread = 0
	}
	life := newVitals(enc, func() { _, _ = k.now(), a.uplink.problem() }, a.door, hw.buses)
	looking.Go(func() { life.watch(polling) })
	a.health.serving(life)
	ready()
	a.log.Info("ready", "enclosure", f.config.Enclosure, "socket", f.config.Socket, "version", mgmt.Version, "simulated", f.config.Simulated, "same_boot", sameBoot, "configuration", f.version)

	served := srv.Serve(serving, l)
	a.health.begin("ends a run", len(f.config.Slots))
	ran := endRun()
	why := ""
	select {
	case why = <-asked:
	default:
	}
	a.log.Info("stopped", "by", cmp.Or(why, stoppedBy(ctx, served, ran)))
	return ending{errors.Join(served, ran), served == nil && (ran != nil || why != "") && ctx.Err() == nil}
}

func stoppedBy(ctx context.Context, served, ran error) string {
	switch {
	case served != nil || ran != nil:
		return "an error"
	case ctx.Err() != nil:
		return "signal"
	}
	return "nobody"
}

// listen is the door for the next server. It stays open from one run to the
// next, unless the socket is another one.
func (a *agent) listen(socket string) (net.Listener, error) {
	if a.door == nil || a.socket != socket {
		l, err := listen(socket, a.log)
		if err != nil {
			return nil, err
		}
		if a.door != nil {
			_ = a.door.Close() // its socket goes with it
		}
		a.door, a.socket = newDoor(l), socket
	}
	return a.door.open(), nil
}

// now says which session there is, nil = none.
func (a *agent) now(r *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.present = r
	close(a.changed)
	a.changed = make(chan struct{})
}

// current waits for a run, or the end of ctx, which gives nil.
func (a *agent) current(ctx context.Context) *session {
	for {
		a.mu.Lock()
		r, changed := a.present, a.changed
		a.mu.Unlock()
		if r != nil {
			return r
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// Status is that of the present run's enclosure. Between two runs it waits, so
// that the watchdog bites where the next one does not begin.
func (a *agent) Status(ctx context.Context) enclosure.Status {
	if r := a.current(ctx); r != nil {
		return r.enc.Status(ctx)
	}
	return enclosure.Status{}
}

func wireVMs(c *config.Config) []mgmt.VM {
	vms := make([]mgmt.VM, 0, len(c.VMs))
	for _, v := range c.VMs {
		vms = append(vms, mgmt.VM{Name: v.Name, UUID: v.UUID.String(), Hosts: v.Hosts, Slots: v.Slots, Policy: v.Policy})
	}
	return vms
}

// explainStore looks, by reads alone, what chip there is where the store can
// not be used, and warns if it is not the configured one.
func (h *hardware) explainStore(ctx context.Context) {
	chip, ok := h.config.Store.Medium.(interface {
		Identify(ctx context.Context) (nvm.Found, error)
	})
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if found, err := chip.Identify(ctx); err != nil {
		h.warnings = append(h.warnings, fmt.Sprintf("store: the chip at %s: %v; found %s", h.config.Store.Name, err, found))
	}
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
