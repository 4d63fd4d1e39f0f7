package servertest

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/config"
)

// ConfigText is the configuration that a Fake has.
//
//go:embed config.json
var ConfigText string

// Keeper is a configuration that nobody uses: what is applied is checked, kept
// and shown. Time does not pass for it: a trial ends with Expire.
type Keeper struct {
	mu       sync.Mutex
	config   mgmt.Config
	before   mgmt.Config // of a trial
	vms      []mgmt.VM
	floor    map[string]ee.Generation
	restarts []string
}

// NewKeeper returns one with the configuration, and the generations, of a new
// Fake.
func NewKeeper() *Keeper {
	k := &Keeper{floor: map[string]ee.Generation{}}
	for _, s := range New().status.Slots {
		k.floor[s.Name] = s.Generation
	}
	if err := k.set(ConfigText); err != nil {
		panic(err) // the embedded one is valid
	}
	k.config.Version, k.config.Where = 3, "store"
	return k
}

// parse checks a configuration. Its network is no business of package config
// everywhere, so that is let through.
func parse(text string) (*config.Config, map[string]json.RawMessage, error) {
	var keys map[string]json.RawMessage
	_ = json.Unmarshal([]byte(text), &keys) // Parse says what is wrong
	c, err := config.Parse([]byte(text), nil)
	if bad, ok := errors.AsType[config.Errors](err); ok && len(bad) == 1 && strings.HasPrefix(bad[0].Text, "unknown key") && bad[0].Key == "network" {
		rest := maps.Clone(keys)
		delete(rest, "network")
		p, err := json.Marshal(rest)
		if err != nil {
			return nil, nil, err
		}
		c, err = config.Parse(p, nil)
		return c, keys, err
	}
	return c, keys, err
}

func (k *Keeper) set(text string) error {
	c, _, err := parse(text)
	if err != nil {
		return err
	}
	k.config.Text = text
	k.config.Version++
	k.vms = nil
	for _, v := range c.VMs {
		k.vms = append(k.vms, mgmt.VM{Name: v.Name, UUID: v.UUID.String(), Hosts: v.Hosts, Slots: v.Slots, Policy: v.Policy})
	}
	return nil
}

// Config is that of server.Keeper.
func (k *Keeper) Config() mgmt.Config {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.copy()
}

func (k *Keeper) copy() mgmt.Config {
	c := k.config
	if c.Trial != nil {
		t := *c.Trial
		c.Trial = &t
	}
	return c
}

// VMs is that of server.Keeper.
func (k *Keeper) VMs() []mgmt.VM {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.vms)
}

// Warnings is that of server.Keeper.
func (k *Keeper) Warnings() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.config.Trial == nil {
		return nil
	}
	return []string{"a change of network is on trial and is put back unless it is confirmed: baton config confirm"}
}

// Apply is that of server.Keeper.
func (k *Keeper) Apply(_ context.Context, r mgmt.ConfigRequest, by string) (mgmt.ConfigApplied, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := mgmt.ConfigApplied{Version: k.config.Version, DryRun: r.DryRun}
	switch _, _, err := parse(r.Text); {
	case err != nil:
		return a, err
	case r.Expect != nil && *r.Expect != k.config.Version:
		e := refusal(enclosure.CodeConfigChanged, "", "the configuration is version %d, not %d: someone changed it since you looked", k.config.Version, *r.Expect)
		e.Next = "look at it with 'baton config show', and make your change anew"
		return a, e
	case k.config.Trial != nil && !r.DryRun:
		e := refusal(enclosure.CodeTrial, "", "a change of network waits to be confirmed")
		e.Next = "baton config confirm, or baton config revert"
		return a, e
	}
	var network string
	a.Changes, a.Restart, network = changes(k.config.Text, r.Text)
	if network != "" {
		a.Trial = &mgmt.Trial{Network: network, Before: networkOf(k.config.Text), LeftMS: (2 * time.Minute).Milliseconds()}
		if r.ConfirmMS > 0 {
			a.Trial.LeftMS = r.ConfirmMS
		}
	}
	if r.DryRun || len(a.Changes) == 0 {
		return a, nil
	}
	before := k.copy()
	if err := k.set(r.Text); err != nil {
		return a, err
	}
	if a.Trial != nil {
		t := *a.Trial
		k.before, k.config.Trial = before, &t
	}
	a.Version, a.Restarting = k.config.Version, r.Restart && len(a.Restart) > 0
	if a.Restarting {
		k.restarts = append(k.restarts, fmt.Sprintf("configuration %d, by %s", a.Version, by))
	}
	return a, nil
}

// changes tells what differs between two configurations, a line each.
func changes(was, is string) (lines, restart []string, network string) {
	_, a, _ := parse(was)
	_, b, _ := parse(is)
	keys := slices.Sorted(maps.Keys(a))
	for k := range maps.Keys(b) {
		if _, ok := a[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		switch live := key == "vms" || key == "hosts"; {
		case same(a[key], b[key]):
		case key == "network":
			network = networkOf(is)
			lines = append(lines, "network: "+network)
		case live:
			lines = append(lines, byName(key, a[key], b[key])...)
		default:
			lines = append(lines, key+": other than before")
			restart = append(restart, key+": other than before")
		}
	}
	return lines, restart, network
}

// same compares two JSON texts.
func same(a, b json.RawMessage) bool {
	var x, y any
	_, _ = json.Unmarshal(a, &x), json.Unmarshal(b, &y) // of what is absent, nil stays
	return fmt.Sprint(x) == fmt.Sprint(y)
}

// byName compares two arrays of objects with names.
func byName(key string, a, b json.RawMessage) (lines []string) {
	named := func(p json.RawMessage) map[string]json.RawMessage {
		var all []json.RawMessage
		_ = json.Unmarshal(p, &all)
		out := map[string]json.RawMessage{}
		for _, o := range all {
			var n struct{ Name string }
			_ = json.Unmarshal(o, &n)
			out[n.Name] = o
		}
		return out
	}
	was, is := named(a), named(b)
	for _, n := range slices.Sorted(maps.Keys(was)) {
		if _, ok := is[n]; !ok {
			lines = append(lines, fmt.Sprintf("%s: %s is gone", key, n))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(is)) {
		if old, ok := was[n]; !ok {
			lines = append(lines, fmt.Sprintf("%s: %s is new", key, n))
		} else if !same(old, is[n]) {
			lines = append(lines, fmt.Sprintf("%s: %s is other than before", key, n))
		}
	}
	return lines
}

func networkOf(text string) string {
	_, keys, _ := parse(text)
	var n struct {
		Interface, Address, Gateway string
		VLAN                        int
	}
	if json.Unmarshal(keys["network"], &n) != nil || n.Interface == "" {
		return "as the system set it up"
	}
	s := n.Interface + " " + n.Address
	if n.Gateway != "" {
		s += " via " + n.Gateway
	}
	if n.VLAN != 0 {
		s += fmt.Sprintf(" in VLAN %d", n.VLAN)
	}
	return s
}

// Confirm is that of server.Keeper.
func (k *Keeper) Confirm(context.Context, string) (mgmt.Config, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.config.Trial == nil {
		return mgmt.Config{}, refusal(enclosure.CodeNotNeeded, "", "no change of network waits to be confirmed")
	}
	k.config.Trial = nil
	return k.copy(), nil
}

// Revert is that of server.Keeper.
func (k *Keeper) Revert(context.Context, string) (mgmt.Config, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.config.Trial == nil {
		return mgmt.Config{}, refusal(enclosure.CodeNotNeeded, "", "no change of network waits to be confirmed")
	}
	err := k.revert()
	return k.copy(), err
}

func (k *Keeper) revert() error {
	k.config.Trial = nil
	return k.set(k.before.Text)
}

// Expire is the end of a trial that nobody confirmed.
func (k *Keeper) Expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.config.Trial != nil {
		if err := k.revert(); err != nil {
			panic(err) // it was in force before
		}
	}
}

// Backup is that of server.Keeper. Its clock is not set.
func (k *Keeper) Backup(context.Context) (mgmt.Backup, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := mgmt.Backup{
		Format: mgmt.BackupFormat, Enclosure: "rack7-io2", Agent: mgmt.Version, Time: time.Date(1970, 1, 1, 0, 7, 0, 0, time.UTC),
		Incarnation: "9f3c2a10", Version: k.config.Version, Config: k.config.Text,
		Slots: []mgmt.BackupSlot{}, Hosts: []mgmt.BackupHost{{Name: "server1", Epoch: 1}, {Name: "server2", Epoch: 1}, {Name: "server3", Epoch: 2}},
	}
	for _, n := range slices.Sorted(maps.Keys(k.floor)) {
		b.Slots = append(b.Slots, mgmt.BackupSlot{Name: n, Generation: k.floor[n].String()})
	}
	b.Sum = b.Checksum()
	return b, nil
}

// Restore is that of server.Keeper.
func (k *Keeper) Restore(_ context.Context, r mgmt.RestoreRequest, by string) (mgmt.Restored, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	b, out := r.Backup, mgmt.Restored{DryRun: r.DryRun}
	switch {
	case b.Format != mgmt.BackupFormat:
		return out, refusal(enclosure.CodeBadBackup, "", "the backup has format %d; this agent knows %d", b.Format, mgmt.BackupFormat)
	case b.Sum != b.Checksum():
		return out, refusal(enclosure.CodeBadBackup, "", "the backup was changed or cut off: its sum is %s, it says %s", b.Checksum(), b.Sum)
	}
	if _, _, err := parse(b.Config); err != nil {
		return out, err
	}
	floor := map[string]ee.Generation{}
	for _, s := range b.Slots {
		g, err := ee.ParseGeneration(s.Generation)
		if err != nil {
			return out, refusal(enclosure.CodeBadBackup, "", "slot %s: %v", s.Name, err)
		}
		if now := k.floor[s.Name]; g.Counter > now.Counter {
			floor[s.Name] = g
			out.Changes = append(out.Changes, fmt.Sprintf("%s: generations go on above %s, not %s", s.Name, g, now))
		}
	}
	lines, _, _ := changes(k.config.Text, b.Config)
	out.Changes = append(out.Changes, lines...)
	if r.DryRun {
		return out, nil
	}
	maps.Copy(k.floor, floor)
	if len(lines) > 0 {
		if err := k.set(b.Config); err != nil {
			return out, err
		}
	}
	if out.Restarting = len(out.Changes) > 0; out.Restarting {
		k.restarts = append(k.restarts, "backup restored, by "+by)
	}
	return out, nil
}

// Restart is that of server.Keeper.
func (k *Keeper) Restart(why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.restarts = append(k.restarts, why)
}

// Restarts lists why the agent was to start anew, in order.
func (k *Keeper) Restarts() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.restarts)
}
