// Package servertest has an enclosure without hardware, for tests of what
// talks to one. It keeps groups, generations and fences, and knows nothing of
// links, memory or power cuts: package enclosure against package sim tests
// those.
package servertest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
)

// Incarnation is the first half of the generations of a Fake.
const Incarnation = 0x9f3c2a10

// Fake is an enclosure with slots gpu0, gpu1 and nic0 of VM train1, which runs
// on server1, and a free slot gpu2 for VM train2. server3 is fenced.
type Fake struct {
	Settings

	mu       sync.Mutex
	status   enclosure.Status
	moves    map[ee.UUID]enclosure.Move
	asked    map[ee.UUID]string
	drained  map[ee.UUID]enclosure.Drained
	parts    map[string]parts
	audit    []enclosure.AuditRecord
	counters enclosure.Counters
	events   []enclosure.Event
	seq      uint64
	edits    uint64
	changed  chan struct{}
	calls    []string
}

// Settings are what a test wants of a Fake. While it is served they are
// changed by Set only.
type Settings struct {
	// Gate, if set, is called by every operation after it was validated.
	Gate func(ctx context.Context) error
	// End, if set, is the state that moves end in, for Reason.
	End    enclosure.MoveState
	Reason string
	// Err, if set, is what every operation returns.
	Err error
	// Memory is what verdicts say.
	Memory plan.Verdict
	// FailVM, if set, is a VM whose set a drain can not get off its host, for
	// Reason.
	FailVM string
	// NVM is what a check finds. A repair takes all findings away that it can
	// do something about.
	NVM enclosure.NVMReport
	// Checks, if set, are what Check answers.
	Checks []enclosure.CheckLine
	// Lost is how many audit records are no longer kept.
	Lost uint32
}

// Set changes the settings.
func (f *Fake) Set(fn func(*Settings)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(&f.Settings)
}

// Groups of the hosts, and the VMs, of a Fake.
var (
	groups = map[string]uint16{"server1": 101, "server2": 102, "server3": 103}
	vms    = map[string][]string{"train1": {"gpu0", "gpu1", "nic0"}, "train2": {"gpu2"}}
)

// Ring is how many events a Fake keeps.
const Ring = 64

// New returns a Fake that has been up for three days.
func New() *Fake {
	yes := plan.Verdict{
		Preserved: plan.Yes, Reason: "no reset reached the device and its power was kept since reset count 4 was proven",
		Flag: plan.Spent, Now: plan.Values{Resets: 4, Epoch: 0x1c2d3e4f, Ident: 0x89ab12cd}, Base: plan.Values{Resets: 4, Epoch: 0x1c2d3e4f, Ident: 0x89ab12cd}, Proven: 4,
	}
	slot := func(name, device, host, vm string, gen uint32) enclosure.SlotStatus {
		s := enclosure.SlotStatus{
			Name: name, Profile: "regs-v1", Capabilities: []string{"LinkControl", "Status"}, Device: device,
			Group: ee.GroupFree, Host: host, VM: vm, Generation: ee.Generation{Incarnation: Incarnation, Counter: gen},
			Flag: plan.None, Policy: plan.Always, Link: "down", Power: "on", ReadAge: 300 * time.Millisecond,
		}
		if host != "" {
			s.Group, s.Link, s.Guard, s.Flag, s.Peer = groups[host], "up", true, plan.Spent, "8c:df:9d:00:02:01"
			s.Memory, s.Values = yes, yes.Now
		}
		return s
	}
	f := &Fake{
		Settings: Settings{Memory: yes, NVM: enclosure.NVMReport{State: "formatted"}},
		status: enclosure.Status{
			Name:   "rack7-io2",
			Uptime: 74*time.Hour + 5*time.Minute,
			Store:  enclosure.StoreStatus{OK: true, Incarnation: Incarnation, PageWrites: 12, Free: 480},
			Slots: []enclosure.SlotStatus{
				slot("gpu0", "10de:2330 accelerator", "server1", "train1", 17),
				slot("gpu1", "10de:2330 accelerator", "server1", "train1", 17),
				slot("nic0", "15b3:1021 network", "server1", "train1", 12),
				slot("gpu2", "10de:2330 accelerator", "", "", 3),
			},
			Hosts: []enclosure.HostStatus{
				{Name: "server1", Group: 101, MAC: "8c:df:9d:00:02:01", Epoch: 1, Slots: []string{"gpu0", "gpu1", "nic0"}},
				{Name: "server2", Group: 102, MAC: "8c:df:9d:00:02:02", Epoch: 1},
				{Name: "server3", Group: 103, MAC: "8c:df:9d:00:02:03", Fenced: true, Epoch: 2, Why: "never unfenced since the store was formatted"},
			},
		},
		moves:   map[ee.UUID]enclosure.Move{},
		asked:   map[ee.UUID]string{},
		drained: map[ee.UUID]enclosure.Drained{},
		parts:   map[string]parts{},
		counters: enclosure.Counters{
			Moves: map[enclosure.MoveState]uint64{}, Refusals: map[enclosure.Code]uint64{},
			BusErrors: map[string]uint64{"i2c-5": 0, "i2c-6": 0}, PageWrites: 12,
		},
		changed: make(chan struct{}),
	}
	for i, s := range f.status.Slots {
		known := enclosure.Parts{
			Engine: fmt.Sprintf("8c:df:9d:00:01:%02x", i+1), Device: s.Device, Serial: fmt.Sprintf("0x48b02d0300a1b2c%d", i+3),
			Chip: fmt.Sprintf("24c256 at i2c-5/0x%x", 0x50+i), Block: fmt.Sprintf("generation %s, group %d", s.Generation, s.Group),
		}
		f.parts[s.Name] = parts{known, known}
	}
	f.audit = append(f.audit, enclosure.AuditRecord{Seq: 41, Run: 6, Uptime: 2 * time.Second, Kind: "config", Text: "configuration 3 applied: vms train2 is new", By: "uid 0"})
	f.note(enclosure.Event{Kind: "recovery", Text: "4 slots read back; nothing had to be done"})
	return f
}

// Calls lists the operations that got through, in order.
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Edit changes the status.
func (f *Fake) Edit(fn func(*enclosure.Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(&f.status)
	f.edits++
}

// Note adds an event.
func (f *Fake) Note(e enclosure.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(e)
}

func (f *Fake) note(e enclosure.Event) {
	f.seq++
	f.counters.Events++
	e.Seq = f.seq
	e.Uptime = f.status.Uptime + time.Duration(f.seq)*time.Millisecond
	f.events = append(f.events, e)
	f.events = f.events[max(0, len(f.events)-Ring):]
	close(f.changed)
	f.changed = make(chan struct{})
}

// Events is that of Backend.
func (f *Fake) Events(after uint64) ([]enclosure.Event, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, _ := slices.BinarySearchFunc(f.events, after+1, func(e enclosure.Event, seq uint64) int { return cmp.Compare(e.Seq, seq) })
	return slices.Clone(f.events[i:]), len(f.events) > 0 && f.events[0].Seq > after+1
}

// Seq is that of Backend. Its upper half counts edits, which no event tells of,
// so that whoever looks after one sees it.
func (f *Fake) Seq() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.edits<<32 | f.seq
}

// Changed is that of Backend.
func (f *Fake) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Status is that of Backend.
func (f *Fake) Status(context.Context) enclosure.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	s.Slots = slices.Clone(s.Slots)
	s.Hosts = slices.Clone(s.Hosts)
	for i := range s.Hosts {
		s.Hosts[i].Slots = f.slotsOf(s.Hosts[i].Name)
	}
	return s
}

// slotsOf are the slots that are with host.
func (f *Fake) slotsOf(host string) (names []string) {
	for _, s := range f.status.Slots {
		if s.Host == host {
			names = append(names, s.Name)
		}
	}
	return names
}

// begin is what every operation does first.
func (f *Fake) begin(ctx context.Context, format string, args ...any) error {
	f.mu.Lock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	gate, err := f.Gate, f.Err
	f.mu.Unlock()
	if gate != nil {
		if err := gate(ctx); err != nil {
			return err
		}
	}
	return err
}

func (f *Fake) slot(name string) (*enclosure.SlotStatus, error) {
	i := slices.IndexFunc(f.status.Slots, func(s enclosure.SlotStatus) bool { return s.Name == name })
	if i < 0 {
		return nil, refusal(enclosure.CodeUnknownSlot, "", "there is no slot %q", name)
	}
	return &f.status.Slots[i], nil
}

func (f *Fake) host(name string) (*enclosure.HostStatus, error) {
	i := slices.IndexFunc(f.status.Hosts, func(h enclosure.HostStatus) bool { return h.Name == name })
	if i < 0 {
		return nil, refusal(enclosure.CodeUnknownHost, "", "there is no host %q", name)
	}
	return &f.status.Hosts[i], nil
}

// macOf is the MAC of a host's engine.
func macOf(host string) string { return fmt.Sprintf("8c:df:9d:00:02:%02x", groups[host]-100) }

func refusal(code enclosure.Code, slot, format string, args ...any) *enclosure.Error {
	return &enclosure.Error{Code: code, Slot: slot, What: fmt.Sprintf(format, args...), State: "nothing was changed"}
}

// Move is that of Backend.
func (f *Fake) Move(ctx context.Context, r enclosure.MoveRequest) (enclosure.Move, error) {
	f.mu.Lock()
	body := fmt.Sprint(r.VM, r.Slots, r.To, r.Preserve)
	if was, ok := f.asked[r.ID]; ok {
		m := f.moves[r.ID]
		f.mu.Unlock()
		if was != body {
			return enclosure.Move{}, refusal(enclosure.CodeMoveIDReused, "", "move %s was for something else", r.ID)
		}
		return m, nil
	}
	m, err := f.validate(r)
	if err != nil {
		f.mu.Unlock()
		return enclosure.Move{}, err
	}
	m.State = enclosure.MoveRunning
	m.Steps = []enclosure.Step{{Name: "checked", Text: "generations 17, " + r.To + " present on all engines"}}
	f.asked[r.ID], f.moves[r.ID] = body, m
	f.mu.Unlock()
	if err := f.begin(ctx, "move %s %v to %s preserve %v", r.VM, m.Slots, r.To, r.Preserve); err != nil {
		return enclosure.Move{}, err
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	m.State, m.Reason = enclosure.MoveDone, f.Reason
	step := func(name, format string, args ...any) {
		at := map[string]time.Duration{"intent": 8100 * time.Microsecond, "cut": 9 * time.Millisecond, "assigned": 21600 * time.Microsecond, "linked": 22900 * time.Microsecond}[name]
		m.Steps = append(m.Steps, enclosure.Step{Name: name, At: at, Text: fmt.Sprintf(format, args...)})
		f.note(enclosure.Event{Kind: "step", VM: r.VM, Move: r.ID.String(), Text: fmt.Sprintf(format, args...), By: r.By})
	}
	step("intent", "written and read back")
	if f.End != "" {
		m.State = f.End
	}
	if (f.End == "" || f.End == enclosure.MoveWaiting) && r.VM != f.FailVM {
		m.Memory = map[string]plan.Verdict{}
		for _, n := range m.Slots {
			s, _ := f.slot(n)
			s.Host, s.Group, s.VM, s.Generation, s.Flag = r.To, groups[r.To], r.VM, m.Generation, plan.Target
			s.Link, s.Held, s.Cut, s.Released, s.Peer = "up", false, "", false, macOf(r.To)
			v := f.Memory
			if !r.Preserve {
				v = plan.Verdict{Preserved: plan.No, Reason: "the move did not ask for it, and the agent reset the device", Flag: plan.None}
			}
			m.Memory[n] = v
		}
		step("cut", "links down, guard on, bus mastering off")
		step("assigned", "group %d, generation %d, read back", groups[r.To], m.Generation.Counter)
		step("linked", "%s up with %s", strings.Join(m.Slots, " "), r.To)
	}
	if r.VM == f.FailVM {
		m.State, m.Memory = enclosure.MoveUndone, nil
	}
	if m.State == enclosure.MoveBlocked {
		for _, n := range m.Slots {
			s, _ := f.slot(n)
			s.Host, s.Group, s.Held, s.Link, s.Cut, s.Peer, s.Blocked = "", ee.GroupFree, true, "down", "confirmed", "", m.Reason
		}
	}
	f.moves[r.ID] = m
	f.status.Moves = append(f.status.Moves, m)
	f.counters.Moves[m.State]++
	f.record(enclosure.AuditRecord{Kind: "move", Slots: m.Slots, Host: r.To, VM: r.VM, Move: r.ID.String(), Text: moved(m), By: r.By})
	return m, nil
}

func moved(m enclosure.Move) string {
	s := fmt.Sprintf("%s -> %s: %s", cmp.Or(m.From, "(free)"), m.To, m.State)
	if m.Reason != "" {
		s += ": " + m.Reason
	}
	return s
}

func (f *Fake) validate(r enclosure.MoveRequest) (enclosure.Move, error) {
	all, ok := vms[r.VM]
	if !ok {
		return enclosure.Move{}, refusal(enclosure.CodeUnknownVM, "", "there is no VM %q", r.VM)
	}
	m := enclosure.Move{ID: r.ID, VM: r.VM, Slots: r.Slots, To: r.To, Preserve: r.Preserve}
	if len(m.Slots) == 0 {
		m.Slots = all
	}
	h, err := f.host(r.To)
	if err != nil {
		return m, err
	}
	if h.Fenced {
		e := refusal(enclosure.CodeFenced, "", "host %s is fenced: %s", h.Name, h.Why)
		e.Next = "baton unfence " + h.Name
		return m, e
	}
	for _, n := range m.Slots {
		s, err := f.slot(n)
		if err != nil {
			return m, err
		}
		if !slices.Contains(all, n) {
			return m, refusal(enclosure.CodeSlotNotVM, n, "it is not a slot of %s", r.VM)
		}
		if want, ok := r.Expect[n]; ok && want != s.Generation {
			e := refusal(enclosure.CodeGenerationChanged, n, "generation is %d, not %d: someone moved it since you looked", s.Generation.Counter, want.Counter)
			e.Current = s.Generation
			e.Next = "look again with 'baton status', or leave --expect out to move what is there"
			return m, e
		}
		if s.Busy {
			e := refusal(enclosure.CodeBusy, n, "another move is under way")
			e.Retry = true
			return m, e
		}
		m.From = s.Host
		if s.Generation.Counter >= m.Generation.Counter {
			m.Generation = ee.Generation{Incarnation: Incarnation, Counter: s.Generation.Counter + 1}
		}
	}
	return m, nil
}

// MoveByID is that of Backend.
func (f *Fake) MoveByID(id ee.UUID) (enclosure.Move, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, ok := f.moves[id]
	return m, ok
}

// Attach is that of Backend.
func (f *Fake) Attach(ctx context.Context, r enclosure.AttachRequest) (enclosure.Attached, error) {
	nonce := ee.UUID{0xa1, 15: byte(len(f.Calls()) + 1)}
	m, err := f.Move(ctx, enclosure.MoveRequest{ID: nonce, VM: r.VM, Slots: r.Slots, To: r.Host, Preserve: true, Wait: r.Wait, By: r.By})
	a := enclosure.Attached{Nonce: nonce, Moved: true, State: m.State, Generation: map[string]ee.Generation{}, Memory: m.Memory}
	for _, s := range m.Slots {
		a.Generation[s] = m.Generation
	}
	return a, err
}

// Verdict is that of Backend.
func (f *Fake) Verdict(ctx context.Context, slot string) (plan.Verdict, error) {
	if err := f.begin(ctx, "verdict %s", slot); err != nil {
		return plan.Verdict{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Memory, nil
}

// Arm is that of Backend.
func (f *Fake) Arm(ctx context.Context, r enclosure.ArmRequest) (plan.Arming, error) {
	if err := f.check(r.Slot, r.Gen); err != nil {
		return plan.Arming{}, err
	}
	if err := f.begin(ctx, "arm %s proof %v lease %v", r.Slot, r.Seen != nil, r.Lease); err != nil {
		return plan.Arming{}, err
	}
	a := plan.Arming{ID: r.ID, Flag: plan.None}
	if r.Seen != nil {
		a.Proof, a.Flag, a.Base = true, plan.Armed, *r.Seen
	}
	return a, nil
}

// check looks at slot and generation as every operation on one does.
func (f *Fake) check(slot string, gen ee.Generation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.slot(slot)
	if err != nil {
		return err
	}
	if s.Generation != gen {
		e := refusal(enclosure.CodeGenerationChanged, slot, "generation is %d, not %d", s.Generation.Counter, gen.Counter)
		e.Current = s.Generation
		return e
	}
	return nil
}

// Disarm is that of Backend.
func (f *Fake) Disarm(ctx context.Context, slot string, id ee.UUID, by string) error {
	return f.begin(ctx, "disarm %s %s by %s", slot, id, by)
}

// Ack is that of Backend.
func (f *Fake) Ack(ctx context.Context, r enclosure.AckRequest) error {
	if err := f.check(r.Slot, r.Gen); err != nil {
		return err
	}
	return f.begin(ctx, "ack %s %s %v", r.Slot, r.Nonce, r.Seen)
}

// Alive is that of Backend.
func (f *Fake) Alive(ctx context.Context, r enclosure.AliveRequest) error {
	if err := f.check(r.Slot, r.Gen); err != nil {
		return err
	}
	return f.begin(ctx, "alive %s %v", r.Slot, r.Seen)
}

// Release is that of Backend.
func (f *Fake) Release(ctx context.Context, r enclosure.ReleaseRequest) error {
	f.mu.Lock()
	for _, n := range r.Slots {
		s, err := f.slot(n)
		if err == nil && s.VM != r.VM && s.VM != "" {
			err = refusal(enclosure.CodeInUse, n, "%s has it, not %s", s.VM, r.VM)
		}
		if err != nil {
			f.mu.Unlock()
			return err
		}
	}
	f.mu.Unlock()
	if err := f.begin(ctx, "release %s %v %s", r.VM, r.Slots, r.Mode); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.release(r)
	return nil
}

func (f *Fake) release(r enclosure.ReleaseRequest) {
	for _, n := range r.Slots {
		s, _ := f.slot(n)
		s.Released = true
		if r.Mode == enclosure.ReleaseKeep {
			continue
		}
		s.Host, s.Group, s.Link, s.Cut, s.Peer = "", ee.GroupFree, "down", "confirmed", ""
		s.Generation.Counter++
		s.Held = r.Mode == enclosure.ReleaseHold
		if r.Mode == enclosure.ReleaseFree {
			s.VM, s.Flag, s.Guard = "", plan.None, false
			s.Values.Resets++
		}
	}
	f.note(enclosure.Event{Kind: "release", VM: r.VM, Text: fmt.Sprintf("%s released: %s", strings.Join(r.Slots, " "), r.Mode), By: r.By})
	f.record(enclosure.AuditRecord{Kind: "release", Slots: r.Slots, VM: r.VM, Text: "released: " + string(r.Mode), By: r.By})
}

// Fence is that of Backend.
func (f *Fake) Fence(ctx context.Context, host, by string) (enclosure.Fenced, error) {
	f.mu.Lock()
	h, err := f.host(host)
	f.mu.Unlock()
	if err != nil {
		return enclosure.Fenced{}, err
	}
	if err := f.begin(ctx, "fence %s by %s", host, by); err != nil {
		return enclosure.Fenced{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	h.Fenced, h.Why = true, "fenced by "+by
	h.Epoch++
	out := enclosure.Fenced{Host: host, Epoch: h.Epoch, Slots: f.slotsOf(host)}
	for _, n := range out.Slots {
		s, _ := f.slot(n)
		s.Host, s.Group, s.Held, s.Link, s.Cut = "", ee.GroupFree, true, "down", "confirmed"
	}
	f.counters.Fences++
	f.record(enclosure.AuditRecord{Kind: "fence", Slots: out.Slots, Host: host, Text: fmt.Sprintf("fenced, epoch %d", h.Epoch), By: by})
	f.note(enclosure.Event{Kind: "fence", Host: host, Text: fmt.Sprintf("fenced; %d slots cut and held", len(out.Slots)), By: by})
	return out, nil
}

// Unfence is that of Backend.
func (f *Fake) Unfence(ctx context.Context, host string, epoch uint32, by string) error {
	f.mu.Lock()
	h, err := f.host(host)
	if err == nil && h.Epoch != epoch {
		err = refusal(enclosure.CodeStaleUnfence, "", "host %s was fenced again: epoch %d, not %d", host, h.Epoch, epoch)
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if err := f.begin(ctx, "unfence %s %d by %s", host, epoch, by); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	h.Fenced, h.Why = false, ""
	f.note(enclosure.Event{Kind: "unfence", Host: host, Text: fmt.Sprintf("unfenced, epoch %d", epoch), By: by})
	f.record(enclosure.AuditRecord{Kind: "unfence", Host: host, Text: fmt.Sprintf("unfenced, epoch %d", epoch), By: by})
	return nil
}
