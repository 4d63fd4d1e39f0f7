package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/mgmt"
	"baton/mgmt/config"
	"baton/sim"
	"baton/test/rig"
	"baton/vlan/station"
)

// fakeNet is a network that is set as told, and forgotten with the power.
type fakeNet struct {
	mu    sync.Mutex
	now   *station.Network
	calls int
	fails map[string]error // by address
}

func (n *fakeNet) Apply(_ context.Context, want *station.Network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls++
	if want != nil {
		if err := n.fails[want.Address.Addr().String()]; err != nil {
			return err
		}
	}
	n.now = want
	return nil
}

// fail makes an address one that can not be set; nil makes it good again.
func (n *fakeNet) fail(address string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fails[address] = err
}

// powerOff is a loss of power.
func (n *fakeNet) powerOff() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now = nil
}

// count is how often a network was set.
func (n *fakeNet) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls
}

// shown is the address that is set, "" = none.
func (n *fakeNet) shown() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == nil {
		return ""
	}
	return n.now.Address.Addr().String()
}

// floored is an enclosure whose floor is kept here.
type floored struct {
	*enclosure.Enclosure
	floor  enclosure.Floor
	raised []enclosure.Floor
	fails  error
	kept   func() // called when a configuration was kept
	hangs  bool   // the store does not take any
	raise  func() // called when the floor was raised
}

// Keep is that of the enclosure.
func (f *floored) Keep(ctx context.Context, c plan.Configuration) error {
	if f.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	err := f.Enclosure.Keep(ctx, c)
	if f.kept != nil {
		f.kept()
	}
	return err
}

func (f *floored) Floor() enclosure.Floor { return f.floor }

// Raise is as the enclosure's: nothing goes below the floor again.
func (f *floored) Raise(_ context.Context, to enclosure.Floor, dry bool, _ string) ([]string, error) {
	if f.fails != nil {
		return nil, f.fails
	}
	var changes []string
	for _, name := range sorted(to.Slots) {
		if have := f.floor.Slots[name]; to.Slots[name].Counter > have.Counter {
			changes = append(changes, fmt.Sprintf("%s: generation above %d", name, to.Slots[name].Counter))
			if !dry {
				f.floor.Slots[name] = to.Slots[name]
			}
		}
	}
	if !dry {
		f.raised = append(f.raised, to)
		if f.raise != nil {
			f.raise()
		}
	}
	return changes, nil
}

// desk is a simulated enclosure and a keeper of its configuration.
type desk struct {
	*rig.Rig
	t     *testing.T
	file  string
	seed  *seed
	net   *fakeNet
	u     *uplink
	enc   *floored
	k     *keeper
	again []string
}

// rackText is the configuration of a rig's world. The store has the
// configuration, or with inFile the file.
func rackText(r *rig.Rig, inFile bool) string {
	var slots, hosts []string
	for i, s := range r.Config.Slots {
		slots = append(slots, fmt.Sprintf(`{"name": %q, "bus": "bus0", "address": "0x%02x", "profile": "regs-v1", "eeprom": {"address": "0x%02x", "part": "24c256"}}`, s.Name, s.Addr, 0x20+i))
	}
	for _, h := range r.Config.Hosts {
		hosts = append(hosts, fmt.Sprintf(`{"name": %q, "group": %d, "mac": %q}`, h.Name, h.Group, h.MAC))
	}
	return fmt.Sprintf(`{
"enclosure": "rack7-io2",
"buses": {"bus0": "/dev/i2c-0"},
"store": {"bus": "bus0", "address": "0x57", "part": "24c256", "format_blank": true, "config": %v},
"slots": [
 %s
],
"hosts": [
 %s
],
"vms": [
 {"name": "train1", "uuid": %q, "hosts": ["server1", "server2", "server3"], "slots": ["gpu0"], "policy": "always"}
],
"network": {"interface": "eth0", "address": "192.0.2.10/24", "gateway": "192.0.2.1"}
}
`, !inFile, strings.Join(slots, ",\n "), strings.Join(hosts, ",\n "), rig.UUID(200))
}

// onDesk runs f at a desk whose seed is the rig's configuration.
func onDesk(t *testing.T, o rig.Options, inFile bool, f func(t *testing.T, d *desk)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		o.Config = func(c *enclosure.Config) { c.VMs = c.VMs[:1]; c.VMs[0].Slots = []string{"gpu0"} }
		d := &desk{Rig: rig.New(t, o), t: t, file: filepath.Join(dir, "batond.json"), net: &fakeNet{fails: map[string]error{}}}
		d.write(rackText(d.Rig, inFile))
		d.start(true)
		defer func() { d.u.revert("", "the test ends"); d.Stop() }()
		f(t, d)
		d.Check()
	})
}

func (d *desk) write(text string) {
	d.t.Helper()
	if err := os.WriteFile(d.file, []byte(text), 0o640); err != nil {
		d.t.Fatal(err)
	}
}

// start is a start of the agent: as a process of its own, or in place.
func (d *desk) start(process bool) {
	d.t.Helper()
	d.Stop()
	var err error
	if d.seed, err = readSeed(d.file); err != nil {
		d.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	mem := enclosure.Mount(d.t.Context(), d.Config.Store, enclosure.Options{SameBoot: true})
	f := find(d.seed, mem)
	d.Config.Hosts, d.Config.VMs = rosterOf(f.config, f.config.Slots)
	d.Start(enclosure.Options{SameBoot: true, Memory: mem})
	floor := enclosure.Floor{Slots: map[string]ee.Generation{}, Hosts: map[string]uint32{}}
	if d.enc != nil {
		floor = d.enc.floor
	}
	d.enc = &floored{Enclosure: d.E, floor: floor}
	f.noteEdit(d.t.Context(), d.E)
	if process {
		if d.u != nil && d.u.trial != nil {
			d.u.trial.over.Stop() // its process is gone
		}
		d.u = newUplink(d.net, log)
	}
	d.u.tellTo(d.E.Note)
	d.u.start(d.t.Context(), f.config.Network, f.unsure)
	d.k = newKeeper(f, d.enc, d.u, func(why string) { d.again = append(d.again, why) }, log)
}

// edit is the text that is kept with words replaced.
func (d *desk) edit(oldnew ...string) string {
	d.t.Helper()
	text := d.k.Config().Text
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(text, oldnew[i]) {
			d.t.Fatalf("%q is not in the configuration", oldnew[i])
		}
		text = strings.Replace(text, oldnew[i], oldnew[i+1], 1)
	}
	return text
}

func (d *desk) apply(text string, change ...func(*mgmt.ConfigRequest)) (mgmt.ConfigApplied, error) {
	r := mgmt.ConfigRequest{Text: text}
	for _, c := range change {
		c(&r)
	}
	return d.k.Apply(d.Ctx(), r, "test")
}

func (d *desk) applied(text string, change ...func(*mgmt.ConfigRequest)) mgmt.ConfigApplied {
	d.t.Helper()
	a, err := d.apply(text, change...)
	if err != nil {
		d.t.Fatal(err)
	}
	return a
}

func dry(r *mgmt.ConfigRequest)     { r.DryRun = true }
func restart(r *mgmt.ConfigRequest) { r.Restart = true }

// codeOf is the code of any refusal.
func codeOf(err error) string {
	if p, ok := errors.AsType[*mgmt.Problem](err); ok {
		return p.Code
	}
	return string(rig.Code(err))
}

func wantCode(t *testing.T, err error, want enclosure.Code) {
	t.Helper()
	if got := codeOf(err); got != string(want) {
		t.Errorf("refusal is %q (%v); want %q", got, err, want)
	}
}

// same fails the test unless f leaves all as it was: configuration, pages,
// registers, network.
func (d *desk) same(what string, f func()) {
	d.t.Helper()
	type state struct {
		c     mgmt.Config
		calls int
		pages uint64
		regs  uint64
		file  string
		hosts int
		again int
	}
	now := func() state {
		text, err := os.ReadFile(d.file)
		if err != nil {
			d.t.Fatal(err)
		}
		s := state{d.k.Config(), d.net.count(), d.W.PageWrites("store"), 0, string(text), len(d.E.Status(d.Ctx()).Hosts), len(d.again)}
		s.c.Trial = nil
		for _, c := range d.Config.Slots {
			s.pages += d.W.PageWrites(c.Name)
			s.regs += d.W.Slot(c.Name).RegisterWrites()
		}
		return s
	}
	before := now()
	f()
	if after := now(); after != before {
		d.t.Errorf("%s: %+v, before %+v", what, after, before)
	}
}

func TestApply(t *testing.T) {
	onDesk(t, rig.Options{Slots: 2}, false, func(t *testing.T, d *desk) {
		d.StartVM(rig.VM1, rig.A)
		if c := d.k.Config(); c.Version != 0 || c.Where != "store" || c.Text != string(d.seed.text) || c.Trial != nil {
			t.Errorf("at first: %+v", c)
		}
		text := d.edit(`"policy": "always"`, `"policy": "on-move"`, `{"name": "server3", "group": 103`, `{"name": "server4", "group": 104`, `"server3"]`, `"server4"]`)
		want := []string{"host server3 removed", "host server4 added: group 104, " + d.Config.Hosts[2].MAC.String(),
			"VM train1: hosts server1 server2 server3 -> server1 server2 server4, policy always -> on-move"}
		d.same("a dry run", func() {
			a := d.applied(text, dry)
			if a.Version != 0 || !slices.Equal(a.Changes, want) || len(a.Restart) != 0 || a.Restart == nil || !a.DryRun || a.Restarting {
				t.Errorf("dry run: %+v", a)
			}
		})
		a := d.applied(text)
		if a.Version != 1 || !slices.Equal(a.Changes, want) || len(a.Restart) != 0 || a.DryRun || a.Restarting || a.Trial != nil {
			t.Errorf("applied: %+v", a)
		}
		if d.W.Slot("gpu0").State().Control&ee.CtlGuard != 0 {
			t.Error("the guard does not follow the policy")
		}
		check := func(when string) {
			t.Helper()
			if c := d.k.Config(); c.Version != 1 || c.Text != text {
				t.Errorf("%s: version %d, text\n%s", when, c.Version, c.Text)
			}
			var hosts []string
			for _, h := range d.E.Status(d.Ctx()).Hosts {
				hosts = append(hosts, h.Name)
			}
			if !slices.Equal(hosts, []string{"server1", "server2", "server4"}) {
				t.Errorf("%s: hosts %v", when, hosts)
			}
			if vms := d.k.VMs(); len(vms) != 1 || vms[0].Policy != "on-move" {
				t.Errorf("%s: VMs %+v", when, vms)
			}
			if w := d.k.Warnings(); len(w) != 0 {
				t.Errorf("%s: warnings %q", when, w)
			}
			d.WantHost("gpu0", rig.A)
		}
		check("at once")
		d.same("the same once more", func() {
			if a := d.applied(text); a.Version != 1 || len(a.Changes) != 0 {
				t.Errorf("the same once more: %+v", a)
			}
		})
		d.start(true)
		check("after a start")
		told := false
		for _, e := range events(d) {
			told = told || e.Kind == "config"
		}
		if told {
			t.Error("a start tells of a change that was before")
		}
		if a := d.applied(text + "\n\n"); a.Version != 2 || !slices.Equal(a.Changes, []string{"the form of the text alone"}) {
			t.Errorf("white space: %+v", a)
		}
		if a := d.applied(d.edit(`"on-move"`, `"always"`)); a.Version != 3 {
			t.Errorf("%+v", a)
		}
		if last := events(d); !slices.ContainsFunc(last, func(e enclosure.Event) bool {
			return e.Kind == "config" && e.By == "test" && e.Text == "configuration 3: VM train1: policy on-move -> always"
		}) {
			t.Errorf("events %+v", last)
		}
	})
}

func events(d *desk) []enclosure.Event {
	all, _ := d.E.Events(0)
	return all
}

func TestApplyRefused(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40)
	onDesk(t, rig.Options{Slots: 2}, false, func(t *testing.T, d *desk) {
		d.StartVM(rig.VM1, rig.A)
		d.applied(d.edit(`"server3"]`, `"server3" ]`))
		one := uint32(1)
		zero := uint32(0)
		for _, tt := range []struct {
			name   string
			text   string
			change func(*mgmt.ConfigRequest)
			code   enclosure.Code
			says   string // in the problem's text or its errors
			errors int    // at least
		}{
			{"another version", d.edit(`"always"`, `"never"`), func(r *mgmt.ConfigRequest) { r.Expect = &zero }, enclosure.CodeConfigChanged, "has version 1, not 0", 0},
			{"empty", "", nil, enclosure.CodeBadConfig, "1: : empty", 1},
			{"no JSON", "enclosure: e", nil, enclosure.CodeBadConfig, "not JSON", 1},
			{"cut short", d.edit()[:300], nil, enclosure.CodeBadConfig, "not JSON", 1},
			{"not UTF-8", d.edit("rack7", "rack\xff7"), nil, enclosure.CodeBadConfig, "2: : not UTF-8", 1},
			{"null", "null", nil, enclosure.CodeBadConfig, "is null", 1},
			{"a list", "[]", nil, enclosure.CodeBadConfig, "is an array, want an object", 1},
			{"deep", deep, nil, enclosure.CodeBadConfig, "nested deeper than 16", 1},
			{"huge", strings.Repeat(" ", 1<<20) + "{}", nil, enclosure.CodeBadConfig, "1048578 bytes, at most 1048576", 1},
			{"very wrong", `{"slots": [` + strings.Repeat(`{"name": "-"},`, 3000) + `{}]}`, nil, enclosure.CodeBadConfig, "errors", mostErrors},
			{"unknown key", d.edit(`"vms"`, `"vns"`), nil, enclosure.CodeBadConfig, "14: vns: unknown key", 1},
			{"unknown profile", d.edit(`regs-v1`, `/nowhere/regs.json`), nil, enclosure.CodeBadConfig, "slots[0].profile", 1},
			{"what only the seed says", d.edit(`/dev/i2c-0`, `/dev/i2c-7`), nil, enclosure.CodeBadConfig, "3: buses.bus0: differs from the seed", 1},
			{"the store", d.edit(`"0x57"`, `"0x56"`), nil, enclosure.CodeBadConfig, "4: store: differs from the seed", 1},
			{"host in use", d.edit(`"server1", "group": 101`, `"server1", "group": 201`), nil, enclosure.CodeInUse, "gpu0", 0},
			{"slot in use", d.edit(`"0x60"`, `"0x6f"`), nil, enclosure.CodeInUse, "gpu0", 0},
			{"slot in use renamed", d.edit(`"name": "gpu0"`, `"name": "gpu9"`, `["gpu0"]`, `["gpu9"]`), nil, enclosure.CodeInUse, "gpu0", 0},
			{"time to confirm", d.edit("192.0.2.10", "192.0.2.11"), func(r *mgmt.ConfigRequest) { r.ConfirmMS = 30*60*1000 + 1 }, enclosure.CodeBadRequest, "confirm_ms 1800001 is outside 1..1800000", 0},
			{"time below zero", d.edit("192.0.2.10", "192.0.2.11"), func(r *mgmt.ConfigRequest) { r.ConfirmMS = math.MinInt64 }, enclosure.CodeBadRequest, "confirm_ms", 0},
			{"too large for the store", d.edit(`"vms": [`, `"vms": [`+manyVMs(900)), nil, enclosure.CodeBadConfig, "store.part: the configuration takes", 1},
		} {
			for _, dryRun := range []bool{true, false} {
				d.same(tt.name, func() {
					_, err := d.apply(tt.text, func(r *mgmt.ConfigRequest) {
						r.DryRun, r.Restart = dryRun, true
						if tt.change != nil {
							tt.change(r)
						}
					})
					if err == nil {
						t.Errorf("%s: not refused", tt.name)
						return
					}
					wantCode(t, err, tt.code)
					said := []string{err.Error()}
					if p, ok := errors.AsType[*mgmt.Problem](err); ok {
						for _, e := range p.Errors {
							said = append(said, fmt.Sprintf("%d: %s: %s", e.Line, e.Key, e.Text))
							if e.Line < 1 {
								t.Errorf("%s: %+v has no line", tt.name, e)
							}
						}
						if len(p.Errors) < tt.errors || len(p.Errors) > mostErrors || p.State != "nothing was changed" || p.Next == "" {
							t.Errorf("%s: %d errors, %+v", tt.name, len(p.Errors), p.State)
						}
					}
					if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, tt.says) }) {
						t.Errorf("%s: %q; want %q in it", tt.name, said[:min(len(said), 5)], tt.says)
					}
				})
			}
		}
		if a := d.applied(d.edit(`"always"`, `"never"`), func(r *mgmt.ConfigRequest) { r.Expect = &one }); a.Version != 2 {
			t.Errorf("afterwards: %+v", a)
		}
	})
}

func manyVMs(n int) string {
	var b strings.Builder
	for i := range n {
		u := rig.UUID(byte(i))
		for j := range 6 {
			u[j] = byte(i * (7 + 16*j) >> (j % 3))
		}
		u[9], u[10] = byte(i>>8), byte(i)
		fmt.Fprintf(&b, ` {"name": "vm%d", "uuid": %q, "hosts": ["server1"], "slots": ["gpu1"]},`+"\n", i*i*31%99991, u)
	}
	return b.String()
}

// TestApplyRestart: what needs a start is kept and said, until there was one.
func TestApplyRestart(t *testing.T) {
	onDesk(t, rig.Options{Slots: 3}, false, func(t *testing.T, d *desk) {
		d.StartVM(rig.VM1, rig.A)
		first := d.edit()
		// The third slot goes, a VM gets the second, and one that is not there yet.
		text := d.edit(`"name": "gpu2"`, `"name": "new0"`, `"vms": [`, `"vms": [{"name": "train2", "uuid": "6ba7b810-9dad-41d1-80b4-00c04fd430c8", "hosts": ["server2"], "slots": ["gpu1", "new0"]},`)
		want := []string{"slot gpu2 removed", "slot new0 added: profile regs-v1, bus bus0, address 0x62, eeprom 24c256 at 0x22"}
		a := d.applied(text)
		if a.Version != 1 || !slices.Equal(a.Restart, want) || a.Restarting || len(d.again) > 0 {
			t.Errorf("applied: %+v, started again %q", a, d.again)
		}
		warned := func() string { return strings.Join(d.k.Warnings(), "\n") }
		if w := warned(); !strings.Contains(w, "configuration 1 is not in force until the agent starts again") || !strings.Contains(w, want[0]) {
			t.Errorf("warnings %q", w)
		}
		// What is there already can be used.
		d.Unfence(rig.B)
		q := d.Request("train2", rig.B)
		if m, err := d.E.Move(d.Ctx(), q); err != nil || !slices.Equal(m.Slots, []string{"gpu1"}) {
			t.Errorf("move of the new VM: %+v, %v", m, err)
		}
		_, err := d.apply(first)
		wantCode(t, err, enclosure.CodeInUse)
		if err := d.E.Release(d.Ctx(), enclosure.ReleaseRequest{VM: "train2", Slots: []string{"gpu1"}, Mode: enclosure.ReleaseFree}); err != nil {
			t.Fatal(err)
		}
		// Back again, nothing is open any more.
		if a := d.applied(first); a.Version != 2 || len(a.Restart) != 0 || warned() != "" {
			t.Errorf("taken back: %+v, %q", a, warned())
		}
	})
	onDesk(t, rig.Options{Slots: 2}, false, func(t *testing.T, d *desk) {
		text := d.edit(`"enclosure": "rack7-io2"`, `"enclosure": "rack8"`)
		a := d.applied(text)
		if len(a.Restart) != 1 || a.Restarting {
			t.Errorf("%+v", a)
		}
		a = d.applied(text, restart) // the same, and now it may
		if a.Version != 1 || !a.Restarting || len(d.again) != 1 {
			t.Errorf("%+v, %q", a, d.again)
		}
		d.start(false)
		if w := d.k.Warnings(); len(w) != 0 || d.k.running.Enclosure != "rack8" {
			t.Errorf("after the start: %q, %s", w, d.k.running.Enclosure)
		}
		if a := d.applied(text, restart); a.Restarting {
			t.Error("it starts again with nothing to start for")
		}
	})
}

func TestNetworkTrial(t *testing.T) {
	type run func(t *testing.T, d *desk, text string)
	onTrial := func(t *testing.T, d *desk) string {
		t.Helper()
		text := d.edit("192.0.2.10", "192.0.2.11", `"always"`, `"on-move"`)
		d.same("a dry run", func() {
			if a := d.applied(text, dry); a.Trial == nil || a.Trial.LeftMS != 120_000 || a.Trial.Network != "192.0.2.11/24 on eth0, gateway 192.0.2.1" {
				t.Errorf("dry run: trial %+v", a.Trial)
			}
		})
		a := d.applied(text, func(r *mgmt.ConfigRequest) { r.ConfirmMS = 60_000 })
		if a.Version != 1 || a.Trial == nil || a.Trial.LeftMS != 60_000 ||
			a.Trial.Network != "192.0.2.11/24 on eth0, gateway 192.0.2.1" || a.Trial.Before != "192.0.2.10/24 on eth0, gateway 192.0.2.1" {
			t.Errorf("applied: %+v, trial %+v", a, a.Trial)
		}
		if got := d.net.shown(); got != "192.0.2.11" {
			t.Errorf("network is %s", got)
		}
		// All but the network is kept, and in force.
		c := d.k.Config()
		if want := strings.Replace(text, "192.0.2.11", "192.0.2.10", 1); c.Text != want || c.Trial == nil || d.k.VMs()[0].Policy != "on-move" {
			t.Errorf("kept meanwhile:\n%s", c.Text)
		}
		if w := d.k.Warnings(); len(w) != 1 || !strings.Contains(w[0], "is on trial") {
			t.Errorf("warnings %q", w)
		}
		return text
	}
	over := func(t *testing.T, d *desk, version uint32, address string) {
		t.Helper()
		synctest.Wait()
		if got := d.net.shown(); got != address {
			t.Errorf("network is %s; want %s", got, address)
		}
		c := d.k.Config()
		if c.Version != version || c.Trial != nil || !strings.Contains(c.Text, address) || !strings.Contains(c.Text, "on-move") {
			t.Errorf("version %d, trial %v; want %d\n%s", c.Version, c.Trial, version, c.Text)
		}
		if w := d.k.Warnings(); len(w) > 0 {
			t.Errorf("warnings %q", w)
		}
		for name, f := range map[string]func(context.Context, string) (mgmt.Config, error){"confirm": d.k.Confirm, "revert": d.k.Revert} {
			_, err := f(d.Ctx(), "test")
			if codeOf(err) != string(enclosure.CodeNotNeeded) {
				t.Errorf("%s afterwards: %v", name, err)
			}
		}
	}
	for name, f := range map[string]run{
		"nobody confirms": func(t *testing.T, d *desk, _ string) {
			time.Sleep(59_999 * time.Millisecond)
			if d.net.shown() != "192.0.2.11" || d.k.Config().Trial.LeftMS != 1 {
				t.Errorf("just before: %s, %+v", d.net.shown(), d.k.Config().Trial)
			}
			time.Sleep(time.Millisecond)
			over(t, d, 1, "192.0.2.10")
			if !slices.ContainsFunc(events(d), func(e enclosure.Event) bool {
				return e.Kind == "config" && strings.Contains(e.Text, "nobody confirmed it in time; it is 192.0.2.10/24 on eth0, gateway 192.0.2.1 again")
			}) {
				t.Error("no event tells of it")
			}
			d.start(true)
			over(t, d, 1, "192.0.2.10")
		},
		"confirmed": func(t *testing.T, d *desk, text string) {
			time.Sleep(30 * time.Second)
			c, err := d.k.Confirm(d.Ctx(), "test")
			if err != nil || c.Version != 2 || c.Text != text || c.Trial != nil {
				t.Errorf("confirm: %+v, %v", c, err)
			}
			time.Sleep(time.Hour)
			over(t, d, 2, "192.0.2.11")
			d.start(true)
			over(t, d, 2, "192.0.2.11")
		},
		"taken back": func(t *testing.T, d *desk, _ string) {
			if _, err := d.k.Revert(d.Ctx(), "test"); err != nil {
				t.Error(err)
			}
			over(t, d, 1, "192.0.2.10")
			time.Sleep(time.Hour)
			over(t, d, 1, "192.0.2.10")
		},
		"another change meanwhile": func(t *testing.T, d *desk, text string) {
			for _, text := range []string{d.edit(`"on-move"`, `"never"`), text, strings.Replace(text, "192.0.2.11", "192.0.2.12", 1)} {
				d.same("meanwhile", func() {
					_, err := d.apply(text)
					wantCode(t, err, enclosure.CodeTrial)
					d.applied(text, dry)
				})
			}
			time.Sleep(time.Minute)
			over(t, d, 1, "192.0.2.10")
			d.applied(d.edit(`"on-move"`, `"never"`))
		},
		"the agent is started anew": func(t *testing.T, d *desk, _ string) {
			d.start(true)
			over(t, d, 1, "192.0.2.10")
		},
		"the power is cut": func(t *testing.T, d *desk, _ string) {
			d.net.powerOff()
			d.W.PowerCut()
			d.Stop()
			time.Sleep(time.Second)
			d.W.PowerOn()
			time.Sleep(50 * time.Millisecond)
			d.start(true)
			over(t, d, 1, "192.0.2.10")
		},
		"the agent starts again in place": func(t *testing.T, d *desk, text string) {
			time.Sleep(20 * time.Second)
			before := d.k.Config().Trial.LeftMS
			d.start(false)
			if tr := d.k.Config().Trial; tr == nil || tr.LeftMS > before || tr.LeftMS < before-2000 || d.net.shown() != "192.0.2.11" {
				t.Fatalf("the trial does not go on: %+v, %s", tr, d.net.shown())
			}
			if c, err := d.k.Confirm(d.Ctx(), "test"); err != nil || c.Text != text {
				t.Errorf("%+v, %v", c, err)
			}
			over(t, d, 2, "192.0.2.11")
		},
		"in place, and nobody confirms": func(t *testing.T, d *desk, _ string) {
			d.start(false)
			time.Sleep(time.Minute)
			over(t, d, 1, "192.0.2.10")
			if !slices.ContainsFunc(events(d), func(e enclosure.Event) bool { return strings.Contains(e.Text, "nobody confirmed it") }) {
				t.Error("no event of the new run tells of it")
			}
		},
		"the store hangs": func(t *testing.T, d *desk, _ string) {
			d.enc.hangs = true
			time.Sleep(50 * time.Second)
			if _, err := d.k.Confirm(context.WithoutCancel(d.Ctx()), "test"); err == nil {
				t.Error("confirmed, and not kept")
			}
			d.enc.hangs = false
			over(t, d, 1, "192.0.2.10")
		},
		"the store is gone": func(t *testing.T, d *desk, _ string) {
			d.W.Chip("store").SetDead(true)
			_, err := d.k.Confirm(d.Ctx(), "test")
			wantCode(t, err, enclosure.CodeStore)
			if d.k.Config().Trial == nil {
				t.Error("what could not be kept counts as confirmed")
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if d.net.shown() != "192.0.2.10" {
				t.Errorf("network is %s", d.net.shown())
			}
			d.W.Chip("store").SetDead(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) { f(t, d, onTrial(t, d)) })
		})
	}
}

// TestNetworkFails: what can not be set is said, and the one before put back.
func TestNetworkFails(t *testing.T) {
	onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
		ctx, cancel := context.WithCancel(t.Context())
		var looking sync.WaitGroup
		looking.Go(func() { d.u.look(ctx) })
		defer looking.Wait()
		defer cancel()
		d.net.fail("192.0.2.11", errors.New("no such device"))
		_, err := d.apply(d.edit("192.0.2.10", "192.0.2.11", `"always"`, `"never"`))
		wantCode(t, err, enclosure.CodeHardware)
		if c := d.k.Config(); d.net.shown() != "192.0.2.10" || c.Version != 1 || c.Trial != nil || !strings.Contains(c.Text, "never") || !strings.Contains(c.Text, "192.0.2.10") {
			t.Errorf("network %s, %+v", d.net.shown(), c)
		}
		if w := d.k.Warnings(); len(w) > 0 {
			t.Errorf("warnings %q", w)
		}
		// At a start its interface may not be there yet.
		d.net.powerOff()
		d.net.fail("192.0.2.10", errors.New("there is no interface eth0"))
		d.u.start(d.Ctx(), d.k.now().config.Network, false)
		if w := d.k.Warnings(); len(w) != 1 || !strings.Contains(w[0], "there is no interface eth0") || !strings.Contains(w[0], "tried again") {
			t.Errorf("warnings %q", w)
		}
		time.Sleep(17 * time.Second)
		d.net.fail("192.0.2.10", nil)
		time.Sleep(networkRetry + time.Second)
		if w := d.k.Warnings(); len(w) > 0 || d.net.shown() != "192.0.2.10" {
			t.Errorf("later: network %s, warnings %q", d.net.shown(), w)
		}
		calls := d.net.count()
		time.Sleep(time.Minute)
		if d.net.count() != calls {
			t.Error("a network that is set is set again")
		}
	})
}

// TestFrozenKeeper: what is in the store and can not be used is shown, guessed
// about by nobody, and can be replaced.
func TestFrozenKeeper(t *testing.T) {
	packed := func(text string) []byte { return config.Pack([]byte(text)) }
	for _, tt := range []struct {
		name string
		rec  func(d *desk) plan.Configuration
		says string
		text bool // the text that is there is shown
	}{
		{"of a newer agent", func(d *desk) plan.Configuration {
			return plan.Configuration{Version: 5, Packed: packed(d.edit(`"vms"`, `"quota": 3, "vms"`))}
		}, "quota: unknown key", true},
		{"damaged", func(*desk) plan.Configuration { return plan.Configuration{Version: 5, Packed: []byte("no deflate")} }, "unpacking", false},
		{"not of this seed any more", func(d *desk) plan.Configuration {
			return plan.Configuration{Version: 5, Packed: packed(strings.NewReplacer(`"bus0": "/dev`, `"bus9": "/dev`, `"bus0"`, `"bus9"`).Replace(d.edit()))}
		}, `there is no bus "bus9"`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onDesk(t, rig.Options{Slots: 2}, false, func(t *testing.T, d *desk) {
				d.StartVM(rig.VM1, rig.A)
				good := d.edit()
				rec := tt.rec(d)
				if err := d.E.Keep(d.Ctx(), rec); err != nil {
					t.Fatal(err)
				}
				links := d.W.Slot("gpu0").RegisterWrites()
				// The seed of a board knows its slots only.
				d.write(strings.Join([]string{good[:strings.Index(good, `"hosts"`)], `"hosts": []`, "\n}\n"}, ""))
				d.start(true)
				st := d.E.Status(d.Ctx())
				if st.Store.OK || !strings.Contains(st.Store.Problem, tt.says) || !strings.Contains(st.Store.Problem, "version 5") {
					t.Errorf("store %+v", st.Store)
				}
				c := d.k.Config()
				if c.Version != 5 || tt.text != strings.Contains(c.Text, "train1") {
					t.Errorf("shown: version %d\n%s", c.Version, c.Text)
				}
				if _, err := d.E.Fence(d.Ctx(), rig.A, "test"); err == nil {
					t.Error("a fence did not fail")
				}
				if n := d.W.Slot("gpu0").RegisterWrites() - links; n != 0 || !d.W.Server(rig.A).Reach("gpu0") {
					t.Errorf("%d bytes written to the engine", n)
				}
				if _, err := d.k.Backup(d.Ctx()); codeOf(err) != string(enclosure.CodeStore) {
					t.Errorf("backup: %v", err)
				}
				a := d.applied(good, restart)
				version := uint32(6)
				if a.Version != version || !a.Restarting || a.Trial == nil != tt.text {
					t.Errorf("applied: %+v", a)
				}
				if a.Trial != nil { // nobody could tell that it is the network of before
					version++
					if _, err := d.k.Confirm(d.Ctx(), "test"); err != nil {
						t.Error(err)
					}
				}
				d.start(false)
				if c := d.k.Config(); c.Version != version || c.Text != good || d.k.frozen != nil {
					t.Errorf("after the start: version %d\n%s", c.Version, c.Text)
				}
				if st := d.E.Status(d.Ctx()); !st.Store.OK || st.Slots[0].Host != rig.A {
					t.Errorf("after the start: %+v", st.Store)
				}
				if n := d.W.Slot("gpu0").RegisterWrites() - links; n != 0 {
					t.Errorf("%d bytes written to the engine", n)
				}
			})
		})
	}
}

// TestApplyGivenUp: a fence comes while a change is being kept that what it
// holds depends on. The text of before is back, under a number of its own.
func TestApplyGivenUp(t *testing.T) {
	for _, inFile := range []bool{false, true} {
		onDesk(t, rig.Options{}, inFile, func(t *testing.T, d *desk) {
			d.StartVM(rig.VM1, rig.A)
			was := d.edit()
			d.enc.kept = func() { d.enc.kept = nil; d.Fence(rig.A) }
			_, err := d.apply(d.edit(`"always"`, `"never"`))
			wantCode(t, err, enclosure.CodeBusy)
			check := func(when string) {
				t.Helper()
				if c := d.k.Config(); c.Text != was || c.Version != 2 || d.k.frozen != nil || d.k.VMs()[0].Policy != "always" {
					t.Errorf("%s: version %d, frozen %v\n%s", when, c.Version, d.k.frozen, c.Text)
				}
				if s := d.SlotStatus("gpu0"); !s.Held || s.Policy != plan.Always {
					t.Errorf("%s: gpu0 held %v, policy %s", when, s.Held, s.Policy)
				}
			}
			check("at once")
			d.start(true)
			check("after a start")
			d.W.Server(rig.A).StopVM(rig.VM1)
			d.Unfence(rig.A)
			d.Attach(rig.VM1, rig.A)
			d.Boot(rig.VM1, rig.A)
			d.Ack(rig.VM1, rig.A)
			if a := d.applied(d.edit(`"always"`, `"never"`)); a.Version != 3 {
				t.Errorf("%+v", a)
			}
			d.start(true)
			if c := d.k.Config(); c.Version != 3 || d.k.frozen != nil {
				t.Errorf("version %d, frozen %v", c.Version, d.k.frozen)
			}
		})
	}
}

// TestApplyPowerCut cuts the power all along what an apply writes: the next
// start has the old text or the new one, and the assignment of before.
func TestApplyPowerCut(t *testing.T) {
	cuts, seen := 0, map[uint32]int{}
	onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
		d.StartVM(rig.VM1, rig.A)
		was := d.edit(`"server3"]`, `"server3" ]`)
		d.applied(was)
		gen := d.Gen("gpu0")
		now := d.edit(`{"name": "server3", "group": 103`, `{"name": "server3", "group": 113`, `"always"`, `"on-move"`)
		var mu sync.Mutex
		var at []*sim.Snapshot
		d.W.OnPosition(func(sim.Position) {
			s := d.W.Snapshot()
			mu.Lock()
			defer mu.Unlock()
			at = append(at, s)
		})
		d.applied(now)
		d.W.OnPosition(nil)
		d.Stop()
		texts := map[uint32]string{1: was, 2: now}
		for i := 0; i < len(at); i += 1 + len(at)/150 {
			f := d.Fork(at[i])
			f.W.SetTear(sim.Tear{Kind: sim.TearKind(i % sim.TearKinds), Seed: uint64(i), Unstable: i % 4})
			f.W.PowerCut()
			time.Sleep(time.Second)
			f.W.PowerOn()
			time.Sleep(50 * time.Millisecond)
			mem := enclosure.Mount(t.Context(), f.Config.Store, enclosure.Options{})
			fd := find(d.seed, mem)
			if fd.frozen != nil || string(fd.text) != texts[fd.version] {
				t.Fatalf("position %d of %d: version %d, frozen %v, text\n%s", i, len(at), fd.version, fd.frozen, fd.text)
			}
			seen[fd.version]++
			f.Config.Hosts, f.Config.VMs = rosterOf(fd.config, fd.config.Slots)
			f.Start(enclosure.Options{Memory: mem})
			time.Sleep(5 * time.Millisecond)
			f.WantHost("gpu0", rig.A)
			if f.Gen("gpu0") != gen {
				t.Errorf("position %d: generation %s; want %s", i, f.Gen("gpu0"), gen)
			}
			f.Check()
			f.Stop()
			cuts++
		}
		d.Start(enclosure.Options{SameBoot: true})
	})
	if seen[1] == 0 || seen[2] == 0 {
		t.Errorf("outcomes %v: one never came", seen)
	}
	t.Logf("%d cuts, outcomes %v", cuts, seen)
}

// TestFile: without store.config the file itself is kept, and its version in
// the store.
func TestFile(t *testing.T) {
	onDesk(t, rig.Options{}, true, func(t *testing.T, d *desk) {
		first := d.edit()
		if c := d.k.Config(); c.Version != 0 || c.Where != d.file {
			t.Errorf("at first: %+v", c)
		}
		second := d.edit(`"always"`, `"never"`)
		before := d.W.PageWrites("store")
		if a := d.applied(second); a.Version != 1 {
			t.Errorf("%+v", a)
		}
		if n := d.W.PageWrites("store") - before; n != 2 {
			t.Errorf("%d page writes; want 2: the version and its mark", n)
		}
		read := func(name string) string {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Error(err)
			}
			return string(text)
		}
		if read(d.file) != second || read(d.file+".previous") != first {
			t.Error("the file is not what was applied, or FILE.previous not what was before")
		}
		if st, err := os.Stat(d.file); err != nil || st.Mode() != 0o640 {
			t.Errorf("%v, %v", st.Mode(), err)
		}
		before = d.W.PageWrites("store")
		d.start(true)
		if c := d.k.Config(); c.Version != 1 || c.Text != second || d.W.PageWrites("store") != before {
			t.Errorf("after a start: version %d", c.Version)
		}
		// Somebody edits it: that is a version too, and stays one.
		d.write(strings.Replace(second, `"never"`, `"on-move"`, 1))
		for range 2 {
			d.start(true)
			if c := d.k.Config(); c.Version != 2 {
				t.Errorf("edited by hand: version %d; want 2", c.Version)
			}
		}
		if a := d.applied(d.edit(`"on-move"`, `"always"`, "192.0.2.10", "192.0.2.11")); a.Version != 3 || a.Trial == nil {
			t.Errorf("%+v", a)
		}
		if !strings.Contains(read(d.file), "192.0.2.10") {
			t.Error("a network on trial is in the file")
		}
		if _, err := d.k.Confirm(d.Ctx(), "test"); err != nil || !strings.Contains(read(d.file), "192.0.2.11") {
			t.Errorf("confirmed: %v", err)
		}
		// Where the store is may be changed as well: it takes a start.
		a := d.applied(d.edit(`"0x57", "part": "24c256", "format_blank": true`, `"0x57", "part": "24c256"`))
		if !slices.Equal(a.Restart, []string{"store: format_blank true -> false"}) {
			t.Errorf("%+v", a)
		}
		// The file is gone: what can not be kept is not put in force.
		if err := os.Rename(d.file, d.file+".gone"); err != nil {
			t.Fatal(err)
		}
		version := d.k.Config().Version
		_, err := d.apply(d.edit(`"always"`, `"never"`))
		wantCode(t, err, enclosure.CodeInternal)
		if d.k.VMs()[0].Policy != "always" || d.k.Config().Version != version {
			t.Error("a change that was not kept is in force")
		}
		if err := os.Rename(d.file+".gone", d.file); err != nil {
			t.Fatal(err)
		}
		names, err := filepath.Glob(filepath.Join(filepath.Dir(d.file), "*"))
		if err != nil || len(names) != 2 {
			t.Errorf("left behind: %q, %v", names, err)
		}
	})
}

// TestFromFileToStore: a file that says store.config from now on is the seed,
// and versions go on; back again what the store has is not lost.
func TestFromFileToStore(t *testing.T) {
	onDesk(t, rig.Options{}, true, func(t *testing.T, d *desk) {
		d.applied(d.edit(`"always"`, `"never"`))
		d.write(d.edit(`"config": false`, `"config": true`))
		d.start(true)
		if c := d.k.Config(); c.Version != 1 || c.Where != "store" {
			t.Errorf("%+v", c)
		}
		a := d.applied(d.edit(`"never"`, `"on-move"`))
		if a.Version != 2 || d.k.VMs()[0].Policy != "on-move" {
			t.Errorf("%+v", a)
		}
		d.start(true)
		if d.k.VMs()[0].Policy != "on-move" {
			t.Error("the store's does not count")
		}
		text, err := os.ReadFile(d.file)
		if err != nil {
			t.Fatal(err)
		}
		d.write(strings.Replace(string(text), `"config": true`, `"config": false`, 1))
		before := d.W.PageWrites("store")
		d.start(true)
		if w := d.k.Warnings(); len(w) != 1 || !strings.Contains(w[0], "the store has a configuration, version 2, that is not used") || d.k.VMs()[0].Policy != "never" {
			t.Errorf("warnings %q", w)
		}
		if d.W.PageWrites("store") != before {
			t.Error("the store's was written over")
		}
	})
}

// TestSeedChanged: what only the seed says counts at once, and is said.
func TestSeedChanged(t *testing.T) {
	onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
		d.applied(d.edit(`"always"`, `"never"`))
		d.write(strings.Replace(string(d.seed.text), `{"bus0": "/dev/i2c-0"}`, `{"bus0": "/dev/i2c-0", "bus1": "/dev/i2c-1"}`, 1))
		d.start(true)
		if len(d.k.running.Buses) != 2 || d.k.VMs()[0].Policy != "never" || d.k.frozen != nil {
			t.Errorf("buses %v, frozen %v", d.k.running.Buses, d.k.frozen)
		}
		if w := d.k.Warnings(); len(w) != 1 || !strings.Contains(w[0], "buses") {
			t.Errorf("warnings %q", w)
		}
		_, err := d.apply(d.edit(`"never"`, `"always"`))
		wantCode(t, err, enclosure.CodeBadConfig)
		d.applied(d.edit(`"never"`, `"always"`, `{"bus0": "/dev/i2c-0"}`, `{"bus0": "/dev/i2c-0", "bus1": "/dev/i2c-1"}`))
		d.start(true)
		if w := d.k.Warnings(); len(w) > 0 {
			t.Errorf("warnings %q", w)
		}
	})
}

func TestBackup(t *testing.T) {
	onDesk(t, rig.Options{Slots: 2}, false, func(t *testing.T, d *desk) {
		d.applied(d.edit(`"server3"]`, `"server3" ]`))
		inc := d.Gen("gpu0").Incarnation
		d.enc.floor = enclosure.Floor{
			Slots: map[string]ee.Generation{"gpu0": {Incarnation: inc, Counter: 17}, "gpu1": {Incarnation: inc, Counter: 5}},
			Hosts: map[string]uint32{"server1": 3},
		}
		b, err := d.k.Backup(d.Ctx())
		if err != nil {
			t.Fatal(err)
		}
		if b.Format != 1 || b.Enclosure != "rack7-io2" || b.Version != 1 || b.Config != d.edit() || b.Sum == "" || b.Sum != b.Checksum() ||
			b.Incarnation != fmt.Sprintf("%08x", inc) || len(b.Slots) != 2 || b.Slots[0].Generation != fmt.Sprintf("%08x-17", inc) || len(b.Hosts) != 1 || b.Hosts[0].Epoch != 3 {
			t.Errorf("%+v", b)
		}

		// Time goes on: another configuration, newer generations.
		d.applied(d.edit(`"always"`, `"never"`))
		d.enc.floor.Slots["gpu0"] = ee.Generation{Incarnation: inc, Counter: 40}
		d.enc.floor.Slots["gpu1"] = ee.Generation{Incarnation: inc, Counter: 2} // a store that knows less
		want := []string{"VM train1: policy never -> always", "gpu1: generation above 5"}
		d.same("a dry run", func() {
			r, err := d.k.Restore(d.Ctx(), mgmt.RestoreRequest{Backup: b, DryRun: true}, "test")
			if err != nil || !slices.Equal(r.Changes, want) || !r.DryRun || r.Restarting {
				t.Errorf("dry run: %+v, %v", r, err)
			}
		})
		if n := len(d.enc.raised); n != 0 {
			t.Errorf("a dry run raised the floor %d times", n)
		}
		r, err := d.k.Restore(d.Ctx(), mgmt.RestoreRequest{Backup: b}, "test")
		if err != nil || !slices.Equal(r.Changes, want) || r.Restarting {
			t.Errorf("restore: %+v, %v", r, err)
		}
		if c := d.k.Config(); c.Version != 3 || c.Text != b.Config {
			t.Errorf("afterwards version %d\n%s", c.Version, c.Text)
		}
		// The old backup has not brought an old generation back.
		if g := d.enc.floor.Slots["gpu0"].Counter; g != 40 {
			t.Errorf("gpu0's floor is %d; want 40", g)
		}
		if g := d.enc.floor.Slots["gpu1"].Counter; g != 5 {
			t.Errorf("gpu1's floor is %d; want 5", g)
		}
		if !slices.ContainsFunc(events(d), func(e enclosure.Event) bool { return e.Kind == "restore" && e.By == "test" }) {
			t.Error("no event tells of it")
		}
		// A repeat changes nothing, and there is nothing to tell.
		told := len(events(d))
		if r, err := d.k.Restore(d.Ctx(), mgmt.RestoreRequest{Backup: b}, "test"); err != nil || len(r.Changes) != 0 || len(events(d)) != told {
			t.Errorf("a repeat: %+v, %v; %d events, had been %d", r, err, len(events(d)), told)
		}
		// With another network and slots it starts again, and the network is on
		// trial: a backup's may be of another place.
		d.applied(d.edit("192.0.2.10", "192.0.2.11"))
		if _, err := d.k.Confirm(d.Ctx(), "test"); err != nil {
			t.Fatal(err)
		}
		d.applied(d.edit(`"name": "gpu1"`, `"name": "gpu7"`))
		d.start(false)
		r, err = d.k.Restore(d.Ctx(), mgmt.RestoreRequest{Backup: b}, "test")
		if err != nil || !r.Restarting || len(d.again) != 1 || d.net.shown() != "192.0.2.10" || d.k.Config().Trial == nil {
			t.Errorf("restore: %+v, %v, network %s", r, err, d.net.shown())
		}
	})
}

// A restore that its configuration will be refused has fenced nobody, and where
// that could not be known before, it does not say that nothing was changed.
func TestRestoreHalfWay(t *testing.T) {
	onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
		inc := d.Gen("gpu0").Incarnation
		d.enc.floor = enclosure.Floor{Slots: map[string]ee.Generation{"gpu0": {Incarnation: inc, Counter: 17}}}
		b, err := d.k.Backup(d.Ctx())
		if err != nil {
			t.Fatal(err)
		}
		d.enc.floor.Slots["gpu0"] = ee.Generation{Incarnation: inc, Counter: 2}
		tryNetwork := func() { d.applied(d.edit("192.0.2.10", "192.0.2.11")) }
		tryNetwork()
		d.same("while a network is on trial", func() {
			_, err := d.k.Restore(d.Ctx(), mgmt.RestoreRequest{Backup: b}, "test")
			wantCode(t, err, enclosure.CodeTrial)
		})
		if n := len(d.enc.raised); n != 0 {
			t.Errorf("the floor was raised %d times", n)
		}
		if _, err := d.k.Revert(d.Ctx(), "test"); err != nil {
			t.Fatal(err)
		}
		d.enc.raise = tryNetwork
		_, err = d.k.Restore(d.Ctx(), mgmt.RestoreRequest{Backup: b}, "test")
		wantCode(t, err, enclosure.CodeTrial)
		if err == nil || strings.Contains(err.Error(), unchanged) || !strings.Contains(err.Error(), "are raised") {
			t.Errorf("%v", err)
		}
	})
}

func TestBadBackup(t *testing.T) {
	onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
		good, err := d.k.Backup(d.Ctx())
		if err != nil {
			t.Fatal(err)
		}
		d.applied(d.edit(`"always"`, `"never"`))
		for _, tt := range []struct {
			name   string
			change func(b *mgmt.Backup)
			sum    bool // make the sum right again
			code   enclosure.Code
			says   string
		}{
			{"edited", func(b *mgmt.Backup) { b.Config += " " }, false, enclosure.CodeBadBackup, "was changed or cut short"},
			{"no sum", func(b *mgmt.Backup) { b.Sum = "" }, false, enclosure.CodeBadBackup, "was changed or cut short"},
			{"raised by hand", func(b *mgmt.Backup) { b.Version++ }, false, enclosure.CodeBadBackup, "was changed or cut short"},
			{"of the future", func(b *mgmt.Backup) { b.Format = 2 }, true, enclosure.CodeBadBackup, "has format 2, and this agent reads 1"},
			{"of another", func(b *mgmt.Backup) { b.Enclosure = "rack9" }, true, enclosure.CodeBadBackup, "is of enclosure rack9, and this is rack7-io2"},
			{"of two", func(b *mgmt.Backup) { b.Config = strings.Replace(b.Config, "rack7-io2", "rack9", 1) }, true, enclosure.CodeBadBackup, "and its configuration of rack9"},
			{"a bad configuration", func(b *mgmt.Backup) { b.Config = "{" }, true, enclosure.CodeBadConfig, ""},
			{"of another seed", func(b *mgmt.Backup) { b.Config = strings.Replace(b.Config, "/dev/i2c-0", "/dev/i2c-1", 1) }, true, enclosure.CodeBadConfig, ""},
			{"a bad generation", func(b *mgmt.Backup) { b.Slots = []mgmt.BackupSlot{{Name: "gpu0", Generation: "17"}} }, true, enclosure.CodeBadBackup, `"17"`},
			{"a slot twice", func(b *mgmt.Backup) {
				b.Slots = []mgmt.BackupSlot{{Name: "gpu0", Generation: "9f3c2a10-17"}, {Name: "gpu0", Generation: "9f3c2a10-18"}}
			}, true, enclosure.CodeBadBackup, "is there twice"},
			{"a host without name", func(b *mgmt.Backup) { b.Hosts = []mgmt.BackupHost{{Epoch: 4}} }, true, enclosure.CodeBadBackup, "has no name"},
			{"the store refuses", func(*mgmt.Backup) {
				d.enc.fails = &enclosure.Error{Code: enclosure.CodeStore, What: "full", State: unchanged}
			}, true, enclosure.CodeStore, "full"},
		} {
			b := good
			tt.change(&b)
			if tt.sum {
				b.Sum = b.Checksum()
			}
			d.same(tt.name, func() {
				_, err := d.k.Restore(d.Ctx(), mgmt.RestoreRequest{Backup: b}, "test")
				wantCode(t, err, tt.code)
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%s: %v; want %q", tt.name, err, tt.says)
				}
			})
			if len(d.enc.raised) > 0 {
				t.Errorf("%s: the floor was raised", tt.name)
			}
		}
		d.enc.fails = nil
		if _, err := d.k.Restore(d.Ctx(), mgmt.RestoreRequest{Backup: good}, "test"); err != nil {
			t.Errorf("the good one: %v", err)
		}
	})
}

// TestNoHosts: a seed that knows its slots only, as it is in a board's image.
func TestNoHosts(t *testing.T) {
	onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
		full := d.edit()
		d.write(full[:strings.Index(full, `"hosts"`)] + `"hosts": []` + "\n}\n")
		d.start(true)
		if w := d.k.Warnings(); len(w) != 1 || !strings.Contains(w[0], "there are no hosts") {
			t.Errorf("warnings %q", w)
		}
		d.applied(full)
		if len(d.E.Status(d.Ctx()).Hosts) != 3 {
			t.Error("the hosts are not there")
		}
	})
}

// TestManyAtOnce: changes come one after the other, and each counts.
func TestManyAtOnce(t *testing.T) {
	onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var versions []uint32
		for i := range 6 {
			text := d.edit(`"group": 103`, fmt.Sprintf(`"group": %d`, 200+i))
			wg.Go(func() {
				a, err := d.apply(text)
				mu.Lock()
				defer mu.Unlock()
				versions = append(versions, a.Version)
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		slices.Sort(versions)
		if !slices.Equal(versions, []uint32{1, 2, 3, 4, 5, 6}) {
			t.Errorf("versions %v", versions)
		}
		// Who looked before is told.
		zero := uint32(0)
		_, err := d.apply(d.edit(`"always"`, `"never"`), func(r *mgmt.ConfigRequest) { r.Expect = &zero })
		wantCode(t, err, enclosure.CodeConfigChanged)
		// A client that does not wait is told, too.
		d.k.lock <- struct{}{}
		ctx, cancel := context.WithTimeout(d.Ctx(), time.Second)
		defer cancel()
		_, err = d.k.Apply(ctx, mgmt.ConfigRequest{Text: d.edit()}, "test")
		wantCode(t, err, enclosure.CodeBusy)
		<-d.k.lock
	})
}

func TestAgain(t *testing.T) {
	bad := errors.New("the store is in doubt")
	for _, tt := range []struct {
		name string
		ends func(run int) ending
		runs int
		took time.Duration
		err  error
	}{
		{"a signal", func(int) ending { return ending{} }, 1, 0, nil},
		{"an error that no start mends", func(int) ending { return failedWith(bad) }, 1, 0, bad},
		{"asked for, often", func(n int) ending { return ending{again: n < 50} }, 50, 0, nil},
		{"one that mends itself", func(n int) ending {
			if n == 1 {
				return ending{bad, true}
			}
			return ending{}
		}, 2, firstPause, nil},
		{"one that does not", func(int) ending { return ending{bad, true} }, 4, 7 * firstPause, bad},
		{"now and then", func(n int) ending {
			time.Sleep(time.Minute)
			if n < 20 {
				return ending{bad, true}
			}
			return ending{}
		}, 20, 20*time.Minute + 19*firstPause, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs, began := 0, time.Now()
				err := again(t.Context(), slog.New(slog.DiscardHandler), func() ending { runs++; return tt.ends(runs) })
				if took := time.Since(began); runs != tt.runs || took != tt.took || !errors.Is(err, tt.err) {
					t.Errorf("%d runs in %v, %v; want %d in %v, %v", runs, took, err, tt.runs, tt.took, tt.err)
				}
			})
		})
	}
}

func TestChecksum(t *testing.T) {
	b := mgmt.Backup{Format: 1, Enclosure: "e", Config: "{\"a\": \"<&>\"}\n", Time: time.Date(2026, 11, 30, 1, 2, 3, 4, time.UTC)}
	sum := b.Checksum()
	b.Sum, b.Slots, b.Hosts = sum, []mgmt.BackupSlot{}, []mgmt.BackupHost{}
	if got := b.Checksum(); got != sum || !bytes.Equal([]byte(sum), []byte(strings.ToLower(sum))) || len(sum) != 8 {
		t.Errorf("sum %q, then %q", sum, got)
	}
}

// TestRestoreOnTrial: while a network is on trial a restore changes nothing.
func TestRestoreOnTrial(t *testing.T) {
	onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
		b, err := d.k.Backup(d.Ctx())
		if err != nil {
			t.Fatal(err)
		}
		d.applied(d.edit("192.0.2.10", "192.0.2.11"))
		d.same("on trial", func() {
			_, err := d.k.Restore(d.Ctx(), mgmt.RestoreRequest{Backup: b}, "test")
			wantCode(t, err, enclosure.CodeTrial)
		})
		if n := len(d.enc.raised); n != 0 {
			t.Errorf("the floor was raised %d times, and nothing was changed", n)
		}
	})
}

// TestNetworkInDoubt: where nobody can tell what configuration there was, the
// controller stays where it can be reached.
func TestNetworkInDoubt(t *testing.T) {
	// The seed of a board knows its slots only.
	bare := func(d *desk) {
		text := d.edit()
		d.write(text[:strings.Index(text, `"hosts"`)] + `"hosts": []` + "\n}\n")
	}
	apart := func(t *testing.T, d *desk) {
		t.Helper()
		d.applied(d.edit("192.0.2.10", "192.0.2.11"))
		if _, err := d.k.Confirm(d.Ctx(), "test"); err != nil {
			t.Fatal(err)
		}
		bare(d)
	}
	for name, process := range map[string]bool{"in place": false, "another process": true} {
		t.Run("the store can not be read, "+name, func(t *testing.T) {
			onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
				apart(t, d)
				d.W.Chip("store").SetDead(true)
				d.start(process)
				if got := d.net.shown(); got != "192.0.2.11" {
					t.Errorf("network is %q", got)
				}
				d.W.Chip("store").SetDead(false)
				d.start(process)
				if got := d.net.shown(); got != "192.0.2.11" {
					t.Errorf("network is %q when the store is back", got)
				}
			})
		})
	}
	t.Run("frozen", func(t *testing.T) {
		onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
			apart(t, d)
			good := d.edit()
			newer := strings.Replace(good, `"vms"`, `"quota": 3, "vms"`, 1)
			if err := d.E.Keep(d.Ctx(), plan.Configuration{Version: 5, Packed: config.Pack([]byte(newer))}); err != nil {
				t.Fatal(err)
			}
			d.net.powerOff()
			d.start(true)
			if got := d.net.shown(); d.k.frozen == nil || got != "192.0.2.11" {
				t.Errorf("network is %q, frozen: %v", got, d.k.frozen)
			}
			if a := d.applied(good, restart); a.Trial != nil || !a.Restarting {
				t.Errorf("%+v", a)
			}
			d.start(false)
			if c := d.k.Config(); c.Text != good || d.net.shown() != "192.0.2.11" {
				t.Errorf("network %q, kept\n%s", d.net.shown(), c.Text)
			}
		})
	})
}

// TestEditedMeanwhile: what somebody wrote into the file by hand is not written
// over by an agent that has not read it.
func TestEditedMeanwhile(t *testing.T) {
	onDesk(t, rig.Options{}, true, func(t *testing.T, d *desk) {
		read := func() string {
			text, err := os.ReadFile(d.file)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		asked := d.edit(`"always"`, `"never"`)
		byHand := d.edit(`"always"`, `"on-move"`)
		d.write(byHand)
		_, err := d.apply(asked)
		wantCode(t, err, enclosure.CodeConfigChanged)
		if read() != byHand {
			t.Error("what was written by hand is written over")
		}
		// Also while a network is on trial.
		d.start(true)
		d.applied(d.edit("192.0.2.10", "192.0.2.11"))
		byHand = d.edit(`"on-move"`, `"never"`)
		d.write(byHand)
		if _, err := d.k.Confirm(d.Ctx(), "test"); codeOf(err) != string(enclosure.CodeConfigChanged) || read() != byHand {
			t.Errorf("confirmed: %v", err)
		}
		// Once it is read, the network alone is confirmed.
		d.start(false)
		c, err := d.k.Confirm(d.Ctx(), "test")
		if err != nil || c.Text != read() || !strings.Contains(c.Text, `"never"`) || !strings.Contains(c.Text, "192.0.2.11") {
			t.Errorf("confirmed: %v\n%s", err, c.Text)
		}
	})
}

// TestBackupRenamed: a backup is of the configuration that it has, also where
// the enclosure's name is not in force yet.
func TestBackupRenamed(t *testing.T) {
	onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
		d.applied(d.edit("rack7-io2", "rack8-io1"))
		b, err := d.k.Backup(d.Ctx())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := d.k.Restore(d.Ctx(), mgmt.RestoreRequest{Backup: b}, "test"); err != nil {
				t.Error(err)
			}
			d.start(false)
		}
	})
}

// TestNetworkWarnings: what is tried again every few seconds is logged once.
func TestNetworkWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		n := &fakeNet{fails: map[string]error{"192.0.2.10": errors.New("there is no interface eth0")}}
		u := newUplink(n, slog.New(slog.NewTextHandler(&out, nil)))
		c, err := config.Parse([]byte(`{"enclosure": "x", "buses": {"b": "/dev/i2c-0"}, "store": {"file": "/s"},
			"slots": [{"name": "a", "bus": "b", "address": "0x40", "profile": "regs-v1", "eeprom": {"address": "0x50", "part": "24c256"}}],
			"network": {"interface": "eth0", "address": "192.0.2.10/24"}}`), findProfile)
		if err != nil {
			t.Fatal(err)
		}
		u.start(t.Context(), c.Network, false)
		ctx, cancel := context.WithCancel(t.Context())
		var looking sync.WaitGroup
		looking.Go(func() { u.look(ctx) })
		time.Sleep(time.Hour)
		n.fail("192.0.2.10", errors.New("network is down"))
		time.Sleep(time.Hour)
		n.fail("192.0.2.10", nil)
		time.Sleep(time.Minute)
		cancel()
		looking.Wait()
		if lines := strings.Count(out.String(), "\n"); lines != 2 || n.shown() != "192.0.2.10" {
			t.Errorf("%d lines logged; want 2, one for each reason; network is %q", lines, n.shown())
		}
	})
}

// TestRestoreHalf: a restore that fails after fences were raised says so.
func TestRestoreHalf(t *testing.T) {
	onDesk(t, rig.Options{}, false, func(t *testing.T, d *desk) {
		b, err := d.k.Backup(d.Ctx())
		if err != nil {
			t.Fatal(err)
		}
		b.Slots = []mgmt.BackupSlot{{Name: "gpu0", Generation: ee.Generation{Incarnation: d.Gen("gpu0").Incarnation, Counter: 900}.String()}}
		b.Sum = b.Checksum()
		d.applied(d.edit(`"always"`, `"never"`))
		d.W.Chip("store").SetDead(true)
		_, err = d.k.Restore(d.Ctx(), mgmt.RestoreRequest{Backup: b}, "test")
		d.W.Chip("store").SetDead(false)
		e, ok := errors.AsType[*enclosure.Error](err)
		if !ok || len(d.enc.raised) != 1 || strings.Contains(err.Error(), "nothing was changed") || !strings.Contains(e.State, "raised") {
			t.Errorf("raised %d times: %v", len(d.enc.raised), err)
		}
	})
}
