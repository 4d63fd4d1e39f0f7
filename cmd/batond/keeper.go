package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/mgmt"
	"baton/mgmt/config"

	"golang.org/x/sys/unix"
)

// enclosureOf is what the keeper needs of the enclosure.
type enclosureOf interface {
	Reconfigure(ctx context.Context, r enclosure.Reconfiguration) error
	Keep(ctx context.Context, c plan.Configuration) error
	Status(ctx context.Context) enclosure.Status
	Floor() enclosure.Floor
	Raise(ctx context.Context, f enclosure.Floor, dry bool, by string) ([]string, error)
	Note(ev enclosure.Event)
	Refuse(by string, code enclosure.Code, text string)
}

// keeper keeps the configuration of one run of the agent: what the agent runs
// with, and what is kept for the next start, which may be more.
type keeper struct {
	enc    enclosureOf
	uplink *uplink
	ports  *ports // nil = there is no switch
	log    *slog.Logger
	again  func(why string) // ends the run, and another begins

	file     string         // the seed, or all there is
	seed     *config.Config // as read from there
	seedText []byte         // of now, where it is frozen
	running  *config.Config // what this run was begun with
	frozen   error          // why nothing but a new configuration can be kept
	notes    []string       // warnings about what this run was begun with

	lock chan struct{} // full = a change is under way

	mu sync.Mutex
	kept
}

// kept is a configuration that survives a power cut.
type kept struct {
	version uint32
	text    []byte
	config  *config.Config
}

// newKeeper returns one for a run that begins with what found says.
func newKeeper(f found, enc enclosureOf, u *uplink, again func(string), log *slog.Logger) *keeper {
	return &keeper{
		enc: enc, uplink: u, log: log, again: again, file: f.seed.file, seed: f.seed.config, seedText: f.base, running: f.config, frozen: f.frozen, notes: f.notes,
		lock: make(chan struct{}, 1), kept: f.kept(),
	}
}

func (k *keeper) now() kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept
}

func (k *keeper) set(n kept) {
	k.mu.Lock()
	k.kept = n
	k.mu.Unlock()
	k.ports.use(n.config)
}

// inStore tells whether changes are kept in the store, else in the file.
func (k *keeper) inStore() bool { return k.seed.Store.Config }

// Config is that of server.Keeper.
func (k *keeper) Config() mgmt.Config {
	now := k.now()
	c := mgmt.Config{Version: now.version, Where: k.file, Text: string(now.text), Trial: k.uplink.wire()}
	if k.inStore() {
		c.Where = "store"
	}
	return c
}

// VMs is that of server.Keeper.
func (k *keeper) VMs() []mgmt.VM { return wireVMs(k.now().config) }

// Warnings is that of server.Keeper.
func (k *keeper) Warnings() []string {
	w := slices.Clone(k.notes)
	now := k.now()
	if open := k.open(now.config); len(open) > 0 {
		w = append(w, fmt.Sprintf("configuration %d is not in force until the agent starts again (baton config apply FILE --restart; no link changes): %s", now.version, few(open)))
	}
	if len(now.config.Hosts) == 0 {
		w = append(w, "there are no hosts in the configuration, so no slot can be given to anybody (baton config apply)")
	}
	return slices.Concat(w, k.ports.warnings(), k.uplink.warnings())
}

// open is what of c is not in force in this run.
func (k *keeper) open(c *config.Config) []string {
	changes := config.Texts(config.Diff(k.running, c), config.Restart)
	if k.frozen != nil && c != k.running {
		changes = append(changes, "all of it: the agent is frozen until it starts again")
	}
	return changes
}

// Apply is that of server.Keeper: it checks a configuration as a whole, keeps
// it, and puts in force what can be.
func (k *keeper) Apply(ctx context.Context, r mgmt.ConfigRequest, by string) (mgmt.ConfigApplied, error) {
	var none mgmt.ConfigApplied
	done, err := k.begin(ctx)
	if err != nil {
		return none, k.refused(by, err)
	}
	defer done()
	a, err := k.check(r)
	if err != nil {
		return none, k.refused(by, err)
	}
	out := mgmt.ConfigApplied{Version: a.was.version, Changes: a.lines, Restart: k.open(a.asked), DryRun: r.DryRun}
	change := k.reconfiguration(a, by)
	if r.DryRun {
		change.Dry = true
		if err := k.enc.Reconfigure(ctx, change); err != nil {
			return none, err
		}
		if a.network {
			out.Trial = &mgmt.Trial{Network: a.asked.Network.String(), Before: a.was.config.Network.String(), LeftMS: a.confirm.Milliseconds()}
		}
		return out, nil
	}
	if dir := a.asked.RunDir; dir != k.running.RunDir {
		if err := usableRunDir(dir); err != nil {
			return none, k.refused(by, err)
		}
	}
	if a.changed() {
		if err := k.enc.Reconfigure(ctx, change); err != nil {
			return none, err // it has been told already
		}
		k.set(a.next)
		out.Version = a.next.version
	}
	if a.network {
		if err := k.uplink.try(ctx, a.text, a.asked.Network, a.confirm, by); err != nil {
			return none, k.refused(by, err)
		}
		out.Trial = k.uplink.wire()
	}
	if r.Restart && len(out.Restart) > 0 {
		out.Restarting = true
		k.Restart(fmt.Sprintf("configuration %d, by %s", out.Version, by))
	}
	return out, nil
}

// usableRunDir makes the directory: without one no agent starts, and there would
// be nobody to ask for another.
func usableRunDir(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = unix.Access(dir, unix.W_OK)
	}
	if err == nil {
		return nil
	}
	return &enclosure.Error{
		Code: enclosure.CodeBadConfig, Where: dir, What: "run_dir: no agent could start with it", Err: err, State: unchanged,
		Next: "name a directory on a file system that is writable and that power loss empties",
	}
}

// begin waits until no other change is under way.
func (k *keeper) begin(ctx context.Context) (done func(), err error) {
	select {
	case k.lock <- struct{}{}:
		return func() { <-k.lock }, nil
	case <-ctx.Done():
		return nil, &enclosure.Error{Code: enclosure.CodeBusy, What: "another change of the configuration is under way", Err: ctx.Err(), State: unchanged, Next: "try again", Retry: true}
	}
}

const unchanged = "nothing was changed"

// application is a configuration that may be applied, as far as it itself can
// tell.
type application struct {
	was, next kept
	text      []byte         // as it was asked for
	asked     *config.Config // of text
	network   bool           // it brings another network, which goes on trial
	confirm   time.Duration
	lines     []string // what differs
}

func (a application) changed() bool { return !bytes.Equal(a.was.text, a.next.text) }

func (k *keeper) check(r mgmt.ConfigRequest) (a application, err error) {
	a.was, a.text = k.now(), []byte(r.Text)
	if r.Expect != nil && *r.Expect != a.was.version {
		return a, &enclosure.Error{
			Code: enclosure.CodeConfigChanged, What: fmt.Sprintf("the configuration has version %d, not %d: someone changed it since you looked", a.was.version, *r.Expect),
			State: unchanged, Next: "look again with 'baton config show'",
		}
	}
	if err := k.onTrial(); err != nil && !r.DryRun {
		return a, err
	}
	if err := k.edited(a.was); err != nil {
		return a, err
	}
	if a.confirm, err = confirmTime(r.ConfirmMS); err != nil {
		return a, err
	}
	if a.asked, err = k.parse(a.text); err != nil {
		return a, err
	}
	changes := config.Diff(a.was.config, a.asked)
	a.lines = config.Texts(changes)
	a.network = slices.ContainsFunc(changes, func(c config.Change) bool { return c.Class == config.NetworkChange })
	a.next = kept{version: a.was.version + 1, text: a.text, config: a.asked}
	if len(changes) == 0 && a.changed() {
		a.lines = []string{"the form of the text alone"}
	}
	if !a.network {
		return a, nil
	}
	// What is kept has the network of now, until the new one is confirmed.
	now := a.was.text
	if k.frozen != nil {
		now = k.seedText // with the other one's network, as far as that can be told
	}
	if a.next.text, err = config.WithNetwork(a.text, now); err != nil {
		return a, &enclosure.Error{Code: enclosure.CodeInternal, What: "the network could not be left out", Err: err, State: unchanged}
	}
	a.next.config, err = k.parse(a.next.text)
	if p, ok := errors.AsType[*mgmt.Problem](err); ok {
		p.Detail += ": all but 'network' is kept at once, and does not go with the network of now"
		p.Next = "apply the change of 'network' by itself, confirm it, then the rest"
	}
	return a, err
}

// onTrial is an error while a network is on trial.
func (k *keeper) onTrial() error {
	if k.uplink.wire() == nil {
		return nil
	}
	return &enclosure.Error{
		Code: enclosure.CodeTrial, What: "a change of network is on trial", State: unchanged,
		Next: "'baton config confirm' keeps it, 'baton config revert' puts the one before back; then apply again",
	}
}

// edited is an error where somebody has edited the file since it was read:
// that would be written over, and nobody would know. A file that can not be
// read is not written either.
func (k *keeper) edited(now kept) error {
	if k.inStore() {
		return nil
	}
	if text, err := os.ReadFile(k.file); err != nil || bytes.Equal(text, now.text) {
		return nil
	}
	return &enclosure.Error{
		Code: enclosure.CodeConfigChanged, Where: k.file, What: "the file was edited by hand, and the agent has not read it since", State: unchanged,
		Next: "start the agent again, which reads it, or put back what was there; then make the change anew",
	}
}

func confirmTime(ms int64) (time.Duration, error) {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case ms == 0:
		return defaultConfirm, nil
	case ms < 0 || ms > maxConfirm.Milliseconds():
		return 0, &enclosure.Error{Code: enclosure.CodeBadRequest, What: fmt.Sprintf("confirm_ms %d is outside 1..%d", ms, maxConfirm.Milliseconds()), State: unchanged, Next: "leave it out for 2 minutes"}
	}
	return d, nil
}

// parse validates a configuration as a whole.
func (k *keeper) parse(text []byte) (*config.Config, error) {
	c, err := config.Parse(text, findProfile)
	if err == nil && k.inStore() {
		if errs := c.SeedErrors(k.seed); len(errs) > 0 {
			err = errs
		}
	}
	if err != nil {
		return nil, badConfig(err)
	}
	return c, nil
}

// mostErrors is how many of a configuration's errors are told.
const mostErrors = 200

func badConfig(err error) *mgmt.Problem {
	p := &mgmt.Problem{Code: string(enclosure.CodeBadConfig), State: unchanged, Next: "docs/configuration.md has every key"}
	all, ok := errors.AsType[config.Errors](err)
	if !ok {
		p.Detail = err.Error()
		return p
	}
	p.Detail = "1 error"
	if len(all) != 1 {
		p.Detail = fmt.Sprintf("%d errors", len(all))
	}
	for _, e := range all[:min(len(all), mostErrors)] {
		p.Errors = append(p.Errors, mgmt.ConfigError{Line: e.Line, Key: e.Key, Text: e.Text})
	}
	return p
}

// reconfiguration is what a asks of the enclosure.
func (k *keeper) reconfiguration(a application, by string) enclosure.Reconfiguration {
	r := enclosure.Reconfiguration{
		Keep: func(ctx context.Context) error { return k.put(ctx, a.next) },
		Undo: func(ctx context.Context) error {
			// Under a number of its own: they never go back.
			back := a.was
			back.version = a.next.version + 1
			if err := k.put(ctx, back); err != nil {
				return err
			}
			k.set(back)
			return nil
		},
		By: by, Admin: true,
		Text: fmt.Sprintf("configuration %d: %s", a.next.version, few(a.lines)),
	}
	r.Hosts, r.VMs = rosterOf(a.next.config, k.running.Slots)
	for _, c := range config.Diff(k.running, a.next.config) {
		switch {
		case c.Gone:
			r.Removed = append(r.Removed, c.Slot)
		case c.Slot != "":
			r.Changed = append(r.Changed, c.Slot)
		}
	}
	return r
}

// put keeps a configuration: in the store, or in the file and its version in
// the store.
func (k *keeper) put(ctx context.Context, n kept) error {
	if k.inStore() {
		return k.enc.Keep(ctx, plan.Configuration{Version: n.version, Packed: config.Pack(n.text)})
	}
	if err := replaceFile(k.file, n.text); err != nil {
		return &enclosure.Error{
			Code: enclosure.CodeInternal, Where: k.file, What: "the configuration could not be written", Err: err, State: unchanged,
			Next: "the agent needs a directory there that it can write to, or 'store.config' in the configuration",
		}
	}
	if err := k.enc.Keep(ctx, plan.Configuration{Version: n.version, Sum: sha256.Sum256(n.text)}); err != nil {
		// The next start finds another file than the store knows of, and counts.
		k.log.Warn("the version of the configuration could not be kept", "version", n.version, "err", err)
	}
	return nil
}

// Confirm is that of server.Keeper.
func (k *keeper) Confirm(ctx context.Context, by string) (mgmt.Config, error) {
	done, err := k.begin(ctx)
	if err != nil {
		return mgmt.Config{}, k.refused(by, err)
	}
	defer done()
	on, err := k.uplink.confirm(by, func(text []byte) error {
		now := k.now()
		if err := k.edited(now); err != nil {
			return err
		}
		text, err := confirmed(now.text, text)
		if err != nil {
			return err
		}
		c, err := k.parse(text)
		if err != nil {
			return err
		}
		next := kept{version: now.version + 1, text: text, config: c}
		// Meanwhile nothing can be put back.
		keeping, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
		defer cancel()
		if err := k.put(keeping, next); err != nil {
			return err
		}
		k.set(next)
		return nil
	})
	if err != nil {
		return mgmt.Config{}, k.refused(by, err)
	}
	if !on {
		return mgmt.Config{}, k.refused(by, noTrial())
	}
	return k.Config(), nil
}

// confirmed is what is kept with the network of the text that brought it; that
// text itself, unless all else has changed since (by hand, before a start in
// place).
func confirmed(now, text []byte) ([]byte, error) {
	if was, err := config.WithNetwork(text, now); err == nil && bytes.Equal(was, now) {
		return text, nil
	}
	return config.WithNetwork(now, text)
}

// Revert is that of server.Keeper.
func (k *keeper) Revert(ctx context.Context, by string) (mgmt.Config, error) {
	if !k.uplink.revert(by, "taken back") {
		return mgmt.Config{}, k.refused(by, noTrial())
	}
	return k.Config(), nil
}

func noTrial() error {
	return &enclosure.Error{
		Code: enclosure.CodeNotNeeded, What: "no change of network is on trial: it was confirmed, or put back when its time was over",
		State: unchanged, Next: "'baton config show' tells what is in force",
	}
}

// Restart is that of server.Keeper.
func (k *keeper) Restart(why string) {
	k.enc.Note(enclosure.Event{Kind: "config", Text: "the agent starts again: " + why})
	k.again(why)
}

// refused makes a refusal heard.
func (k *keeper) refused(by string, err error) error {
	code, text := enclosure.CodeInternal, err.Error()
	if e, ok := errors.AsType[*enclosure.Error](err); ok {
		code = e.Code
	} else if p, ok := errors.AsType[*mgmt.Problem](err); ok {
		code = enclosure.Code(p.Code)
	}
	k.enc.Refuse(by, code, "configuration: "+text)
	return err
}

// few are the first of some lines.
func few(lines []string) string {
	const most = 4
	if len(lines) == 0 {
		return "nothing differs"
	}
	if len(lines) > most {
		return strings.Join(lines[:most], "; ") + fmt.Sprintf("; and %d more", len(lines)-most)
	}
	return strings.Join(lines, "; ")
}
