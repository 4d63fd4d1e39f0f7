// Package rig puts an agent and a simulated world together for tests: the
// enclosure's hardware is sim's, the agent is the real one, and hosts do what
// baton's hooks do. It is used inside testing/synctest bubbles, where the bits
// on a bus take virtual time.
package rig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/nvm"
	"baton/sim"
)

// Options say what is in the world. The zero value is one slot "gpu0" with a
// store chip of its own on one bus, two hosts and one VM "train1" under policy
// always.
type Options struct {
	Slots      int // gpu0, gpu1, ...; default 1
	Buses      int // slots are dealt out to them; default 1
	Policy     plan.Policy
	Profile    string // of all slots; default regs-v1
	ProfileMod func(*ee.Profile)
	Switch     bool   // slots have ports of a switch
	Shared     bool   // the store shares the chip of gpu0
	Fenced     bool   // hosts are left fenced, as after a format
	Bare       bool   // nothing was formatted yet: no agent is started
	Seed       uint64 // of all that the agent and the world take at random
	Sim        func(*sim.Spec)
	Config     func(*enclosure.Config)
}

// Rig is a world and the agent that runs in it.
type Rig struct {
	T       testing.TB
	W       *sim.World
	E       *enclosure.Enclosure
	Profile *ee.Profile
	Config  enclosure.Config

	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}
	options Options
	moves   byte
	nonces  map[string]ee.UUID // of each VM's latest start
	random  *rand.Rand
}

// Names of what a Rig has.
const (
	VM1 = "train1"
	VM2 = "train2"
	A   = "server1"
	B   = "server2"
	C   = "server3"
)

// Groups of the hosts.
const (
	GroupA = 101
	GroupB = 102
	GroupC = 103
)

// UUID is a fixed UUID for tests: n in its last byte.
func UUID(n byte) ee.UUID { return ee.UUID{0: 0xBA, 6: 0x40, 8: 0x80, 15: n} }

// Slot is the name of slot i.
func Slot(i int) string { return fmt.Sprintf("gpu%d", i) }

// New makes the world, formats the store, starts the agent and unfences the
// hosts.
func New(t testing.TB, o Options) *Rig {
	t.Helper()
	if o.Slots == 0 {
		o.Slots = 1
	}
	if o.Buses == 0 {
		o.Buses = 1
	}
	if o.Profile == "" {
		o.Profile = "regs-v1"
	}
	if o.Policy == "" {
		o.Policy = plan.Always
	}
	r := &Rig{T: t, nonces: map[string]ee.UUID{}, random: rand.New(rand.NewPCG(o.Seed, 1))}
	profile, err := ee.LoadProfile(o.Profile)
	if err != nil {
		t.Fatal(err)
	}
	if o.ProfileMod != nil {
		o.ProfileMod(profile)
	}
	r.Profile = profile

	spec := sim.Spec{Seed: o.Seed + 1}
	for b := range o.Buses {
		spec.Buses = append(spec.Buses, sim.BusSpec{Name: busName(b)})
	}
	if !o.Shared {
		spec.Chips = append(spec.Chips, sim.ChipSpec{Name: "store", Bus: busName(0), Addr: 0x57})
	}
	for i := range o.Slots {
		bus := busName(i % o.Buses)
		spec.Chips = append(spec.Chips, sim.ChipSpec{Name: Slot(i), Bus: bus, Addr: uint16(0x20 + i)})
		s := sim.SlotSpec{Name: Slot(i), Bus: bus, Chip: Slot(i), EngineAddr: uint16(0x60 + i), NVMOnly: o.Profile == "nvm-only"}
		if o.Switch {
			s.Port = fmt.Sprintf("lan%d", i)
		}
		spec.Slots = append(spec.Slots, s)
	}
	spec.Servers = []sim.ServerSpec{{Name: A, Group: GroupA}, {Name: B, Group: GroupB}, {Name: C, Group: GroupC}}
	if o.Sim != nil {
		o.Sim(&spec)
	}
	r.connect(o, sim.New(spec))
	if o.Bare {
		r.cancel = func() {}
		return r
	}
	r.Start(enclosure.Options{})
	if !o.Fenced {
		for _, h := range r.Config.Hosts {
			r.Unfence(h.Name)
		}
	}
	return r
}

// Fork is a rig on a copy of the world that s was taken of, with the options
// that r was made with and no agent yet.
func (r *Rig) Fork(s *sim.Snapshot) *Rig {
	f := &Rig{T: r.T, Profile: r.Profile, options: r.options, moves: r.moves, nonces: maps.Clone(r.nonces), random: rand.New(rand.NewPCG(r.options.Seed, 2)), cancel: func() {}}
	f.connect(r.options, s.World())
	return f
}

// connect makes the agent's configuration for a world.
func (r *Rig) connect(o Options, w *sim.World) {
	r.W, r.options = w, o
	r.Config = r.config(o)
	if o.Config != nil {
		o.Config(&r.Config)
	}
}

func busName(i int) string { return fmt.Sprintf("bus%d", i) }

func (r *Rig) config(o Options) enclosure.Config {
	c := enclosure.Config{Name: "rack7-io2", Simulated: true}
	var all []string
	sp := r.W.Spec()
	for i, s := range sp.Slots {
		var chip sim.ChipSpec
		for _, cs := range sp.Chips {
			if cs.Name == s.Chip {
				chip = cs
			}
		}
		medium := r.Chip(chip)
		sc := enclosure.SlotConfig{
			Name: s.Name, BusName: s.Bus, Bus: r.W.Bus(s.Bus), Addr: s.EngineAddr, Profile: r.Profile,
			Medium: medium, Part: chip.Part, Page: fmt.Sprintf("%s/0x%02x", chip.Bus, chip.Addr), Port: s.Port, Serial: s.Serial,
		}
		if s.NVMOnly {
			sc.Reload = pulse{r.W.Slot(s.Name)}
		} else {
			sc.MAC = ee.MAC(s.MAC)
		}
		if o.Shared && i == 0 {
			// A driver of its own, as batond gives it: slot and store are driven
			// by different goroutines.
			section, err := nvm.Section(r.Chip(chip), 4096, 28*1024)
			if err != nil {
				r.T.Fatal(err)
			}
			c.Store = enclosure.StoreConfig{Medium: section, Name: sc.Page, Shared: s.Name, Part: chip.Part, Offset: 4096}
		}
		c.Slots = append(c.Slots, sc)
		all = append(all, s.Name)
	}
	if !o.Shared {
		for _, cs := range sp.Chips {
			if cs.Name == "store" {
				c.Store = enclosure.StoreConfig{Medium: r.Chip(cs), Part: cs.Part, Name: fmt.Sprintf("%s/0x%02x", cs.Bus, cs.Addr)}
			}
		}
	}
	c.Store.FormatBlank = true
	for _, s := range sp.Servers {
		c.Hosts = append(c.Hosts, enclosure.HostConfig{Name: s.Name, Group: s.Group, MAC: ee.MAC(s.MAC)})
	}
	for i, n := range []string{VM1, VM2} {
		c.VMs = append(c.VMs, enclosure.VMConfig{Name: n, UUID: UUID(byte(200 + i)), Hosts: []string{A, B, C}, Slots: all, Policy: o.Policy})
	}
	if o.Switch {
		c.Switch = r.W.Switch()
	}
	return c
}

// Chip is a driver for a chip of the world.
func (r *Rig) Chip(c sim.ChipSpec) nvm.Medium {
	part, ok := nvm.Parts[c.Part]
	if !ok {
		r.T.Fatalf("no part %q", c.Part)
	}
	return nvm.NewEEPROM(r.W.Bus(c.Bus), c.Addr, part)
}

// pulse is the reload line of an engine without registers.
type pulse struct{ s *sim.Slot }

func (p pulse) Reload(context.Context) error {
	p.s.Pulse()
	return nil
}

// Start starts an agent. Its poller does not run until Run.
func (r *Rig) Start(opt enclosure.Options) {
	r.T.Helper()
	r.ctx, r.cancel = context.WithCancel(context.Background())
	opt.Random = func(p []byte) {
		for i := range p {
			p[i] = byte(r.random.Uint32())
		}
	}
	e, err := enclosure.Open(r.ctx, r.Config, opt)
	if err != nil {
		r.T.Fatalf("Open: %v", err)
	}
	r.E = e
}

// Run lets the agent's poller run until Stop. Where it does so already, nothing
// happens.
func (r *Rig) Run() {
	if r.done != nil {
		return
	}
	r.done = make(chan struct{})
	go func(e *enclosure.Enclosure, ctx context.Context, done chan struct{}) {
		defer close(done)
		_ = e.Run(ctx) // it ends with ctx
	}(r.E, r.ctx, r.done)
}

// Stop ends the agent as SIGKILL would, but for a poller that runs: that one
// writes what the audit still has in RAM.
func (r *Rig) Stop() {
	r.cancel()
	if r.done != nil {
		<-r.done
		r.done = nil
	}
}

// Restart ends the agent and starts another on the same powered hardware.
func (r *Rig) Restart() {
	r.T.Helper()
	r.Stop()
	r.Start(enclosure.Options{SameBoot: true})
	time.Sleep(linkUp)
}

// linkUp is longer than the model's links take to come up.
const linkUp = 5 * time.Millisecond

// PowerCycle takes the enclosure's power, agent and all, and gives it back.
func (r *Rig) PowerCycle() {
	r.T.Helper()
	r.W.PowerCut()
	r.PowerUp()
}

// PowerUp starts the world after a power cut, and an agent in it.
func (r *Rig) PowerUp() {
	r.T.Helper()
	r.Stop()
	time.Sleep(time.Second)
	r.W.PowerOn()
	time.Sleep(50 * time.Millisecond) // engines start and load before the controller is up
	r.Start(enclosure.Options{})
	time.Sleep(linkUp)
}

// Ctx is the agent's.
func (r *Rig) Ctx() context.Context { return r.ctx }

// Unfence unfences a host, quoting its present fence.
func (r *Rig) Unfence(host string) {
	r.T.Helper()
	if err := r.E.Unfence(r.ctx, host, r.Host(host).Epoch, "test"); err != nil {
		r.T.Fatalf("unfence %s: %v", host, err)
	}
}

// Host is a host's status.
func (r *Rig) Host(name string) enclosure.HostStatus {
	for _, h := range r.E.Status(r.ctx).Hosts {
		if h.Name == name {
			return h
		}
	}
	r.T.Fatalf("no host %s", name)
	return enclosure.HostStatus{}
}

// SlotStatus is a slot's status.
func (r *Rig) SlotStatus(name string) enclosure.SlotStatus {
	for _, s := range r.E.Status(r.ctx).Slots {
		if s.Name == name {
			return s
		}
	}
	r.T.Fatalf("no slot %s", name)
	return enclosure.SlotStatus{}
}

// Request is a move of vm with a new ID.
func (r *Rig) Request(vm, to string) enclosure.MoveRequest {
	r.moves++
	return enclosure.MoveRequest{ID: UUID(r.moves), VM: vm, To: to, Preserve: true, Wait: time.Second, By: "test"}
}

// Move moves vm and fails the test unless it is done.
func (r *Rig) Move(vm, to string, slots ...string) enclosure.Move {
	r.T.Helper()
	q := r.Request(vm, to)
	q.Slots = slots
	m, err := r.E.Move(r.ctx, q)
	if err != nil || m.State != enclosure.MoveDone {
		r.T.Fatalf("move %s to %s: %s %s, %v", vm, to, m.State, m.Reason, err)
	}
	return m
}

// Attach attaches vm to host and fails the test unless that works.
func (r *Rig) Attach(vm, host string, slots ...string) enclosure.Attached {
	r.T.Helper()
	a, err := r.E.Attach(r.ctx, enclosure.AttachRequest{VM: vm, Host: host, Slots: slots, Wait: time.Second, By: host})
	if err != nil {
		r.T.Fatalf("attach %s to %s: %v", vm, host, err)
	}
	r.nonces[vm] = a.Nonce
	return a
}

// Slots are the names of vm's slots that are with host.
func (r *Rig) Slots(vm, host string) []string {
	var names []string
	for _, s := range r.E.Status(r.ctx).Slots {
		if s.VM == vm && s.Host == host {
			names = append(names, s.Name)
		}
	}
	return names
}

// StartVM does what a server does to start vm: attach, QEMU opens the devices,
// take the verdict, acknowledge. It returns the verdict of each slot.
func (r *Rig) StartVM(vm, host string, slots ...string) map[string]plan.Verdict {
	r.T.Helper()
	r.Attach(vm, host, slots...)
	r.Boot(vm, host)
	return r.Ack(vm, host)
}

// Boot starts vm's QEMU on host with the slots it has there.
func (r *Rig) Boot(vm, host string) {
	r.T.Helper()
	if err := r.W.Server(host).StartVM(vm, r.Slots(vm, host), sim.VMOptions{}); err != nil {
		r.T.Fatal(err)
	}
}

// Ack takes the verdict of each of vm's slots on host and acknowledges it.
func (r *Rig) Ack(vm, host string) map[string]plan.Verdict {
	r.T.Helper()
	verdicts := map[string]plan.Verdict{}
	for _, n := range r.Slots(vm, host) {
		v := r.Verdict(n)
		verdicts[n] = v
		if err := r.E.Ack(r.ctx, enclosure.AckRequest{Slot: n, Nonce: r.nonces[vm], Gen: r.Gen(n), Seen: v.Now, By: host}); err != nil {
			r.T.Fatalf("ack %s: %v", n, err)
		}
	}
	return verdicts
}

// Nonce is that of vm's latest start.
func (r *Rig) Nonce(vm string) ee.UUID { return r.nonces[vm] }

// Gen is a slot's generation.
func (r *Rig) Gen(slot string) ee.Generation { return r.SlotStatus(slot).Generation }

// Verdict takes the verdict of a slot.
func (r *Rig) Verdict(slot string) plan.Verdict {
	r.T.Helper()
	v, err := r.E.Verdict(r.ctx, slot)
	if err != nil {
		r.T.Fatal(err)
	}
	return v
}

// WantVerdict fails the test unless the verdict of slot is as said.
func (r *Rig) WantVerdict(slot string, want plan.Answer) {
	r.T.Helper()
	if v := r.Verdict(slot); v.Preserved != want {
		r.T.Errorf("verdict of %s = %s (%s, flag %s); want %s", slot, v.Preserved, v.Reason, v.Flag, want)
	}
}

// Alive posts a proof of life for a slot, as baton host reconcile does: read
// the count, see that QEMU holds the device, post.
func (r *Rig) Alive(vm, host, slot string) error {
	v := r.Verdict(slot)
	if !r.W.Server(host).HoldsDevice(vm, slot) {
		return errors.New("QEMU does not hold the device")
	}
	return r.E.Alive(r.ctx, enclosure.AliveRequest{Slot: slot, Gen: r.Gen(slot), Seen: v.Now, By: host})
}

// Arm arms a slot; with proof the values are those of now.
func (r *Rig) Arm(slot string, proof bool) (plan.Arming, error) {
	q := enclosure.ArmRequest{Slot: slot, ID: UUID(100), Gen: r.Gen(slot), By: "test"}
	if proof {
		now := r.Verdict(slot).Now
		q.Seen = &now
	}
	return r.E.Arm(r.ctx, q)
}

// Fence fences a host and fails the test unless the cut is confirmed.
func (r *Rig) Fence(host string) enclosure.Fenced {
	r.T.Helper()
	f, err := r.E.Fence(r.ctx, host, "test")
	if err != nil {
		r.T.Fatalf("fence %s: %v", host, err)
	}
	return f
}

// WantHost fails the test unless slot is with host ("" = with nobody) for the
// agent, and that host alone can reach the device.
func (r *Rig) WantHost(slot, host string) {
	r.T.Helper()
	if s := r.SlotStatus(slot); s.Host != host {
		r.T.Errorf("%s is with %q for the agent; want %q", slot, s.Host, host)
	}
	for _, h := range r.W.Spec().Servers {
		if reach := r.W.Server(h.Name).Reach(slot); reach != (h.Name == host) {
			r.T.Errorf("%s reaches %s: %v", h.Name, slot, reach)
		}
	}
}

// Check fails the test where an invariant that the model alone can see was
// broken, at any instant since the world was made.
func (r *Rig) Check() {
	r.T.Helper()
	for _, s := range r.W.Spec().Slots {
		if n := r.W.MaxOwners(s.Name); n > 1 {
			r.T.Errorf("%s: %d servers could reach the device at the same instant", s.Name, n)
		}
	}
	for _, v := range r.W.Violations() {
		r.T.Errorf("%v: %s: %s", v.At, v.Name, v.What)
	}
}

// Code is the code of a refusal, "" for nil.
func Code(err error) enclosure.Code {
	var known *enclosure.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return ""
}
