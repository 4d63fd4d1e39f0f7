package enclosure

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"baton/ee"
	"baton/enclosure/plan"
)

// statusAge is how old a reading may be before Status looks itself.
const statusAge = 1500 * time.Millisecond

// Status tells everything about the enclosure. What was read more than
// statusAge ago is read again, unless an operation has the slot.
func (e *Enclosure) Status(ctx context.Context) Status {
	for _, s := range e.slots {
		if ctx.Err() != nil {
			break // that nobody listens any more says nothing of an engine
		}
		e.mu.Lock()
		old := s.readAt.IsZero() || time.Since(s.readAt) > statusAge
		e.mu.Unlock()
		if !old || !s.can(ee.CapStatus) || !e.tryLock(s) {
			continue
		}
		if s.fault == nil {
			if _, err := e.observe(ctx, s); err == nil {
				e.watchPeer(ctx, s)
			}
		}
		e.release(s)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	st := Status{Name: e.cfg.Name, Simulated: e.cfg.Simulated, Uptime: time.Since(e.started), Store: e.storeStatus()}
	for _, s := range e.slots {
		st.Slots = append(st.Slots, e.slotStatus(s))
	}
	for _, h := range e.roster.Load().hosts {
		rec, fenced := e.fencedLocked(h.Name)
		hs := HostStatus{Name: h.Name, Group: h.Group, MAC: h.MAC.String(), Fenced: fenced, Epoch: rec.Epoch}
		_, known := e.hosts[h.Name]
		switch {
		case fenced && e.problem != nil && len(e.hosts) == 0:
			hs.Why = "the store can not be used: nobody knows who may take part"
		case fenced && !known:
			hs.Why = "never unfenced since the store was formatted"
		case fenced && e.distrusted[h.Name]:
			hs.Why = "the store lost records at the last start; nobody is believed until unfenced"
		case fenced && len(e.pending[h.Name]) > 0:
			hs.Why = fmt.Sprintf("the cut of %v is not confirmed yet", names(e.pending[h.Name]))
		}
		for _, s := range e.slots {
			if s.st.Known() && s.st.Now.To == h.Group {
				hs.Slots = append(hs.Slots, s.cfg.Name)
			}
		}
		st.Hosts = append(st.Hosts, hs)
	}
	for _, id := range e.order {
		st.Moves = append(st.Moves, copyMove(e.moves[id]))
	}
	st.Moves = append(st.Moves, e.blockedBeforeLocked()...)
	st.Warnings = e.warningsLocked()
	return st
}

// Seq is the sequence number of the newest event; 0 = none yet.
func (e *Enclosure) Seq() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lastEvent
}

func (e *Enclosure) storeStatus() StoreStatus {
	if e.problem != nil {
		return StoreStatus{Problem: e.problem.Error()}
	}
	s := e.store.Stats()
	return StoreStatus{OK: true, Incarnation: e.inc, PageWrites: s.PageWrites, Free: s.Free, Damaged: len(e.report.Damaged)}
}

// warningsLocked are the things that a person should do something about.
func (e *Enclosure) warningsLocked() []string {
	var w []string
	for _, h := range slices.Sorted(maps.Keys(e.distrusted)) {
		if e.host(h) == nil {
			continue
		}
		w = append(w, h+" counts as fenced since the store lost records: baton unfence "+h+" when it may take part")
	}
	for _, s := range e.slots {
		w = append(w, s.adoptedWarnings()...)
		if s.st.Now.Kind.ByHand() && s.cut != "confirmed" && e.confirmable(s) {
			w = append(w, s.cfg.Name+": taken out by hand and its cut is not confirmed: nobody gets it before that (pull its cable, or power it off)")
		}
		for _, n := range s.cannotHold() {
			w = append(w, s.cfg.Name+": "+n)
		}
	}
	return w
}

// blockedBeforeLocked are the moves that were blocked when the agent started,
// so that they can be resolved. Enclosure.mu is held.
func (e *Enclosure) blockedBeforeLocked() (moves []Move) {
	told := map[ee.UUID]bool{}
	for _, s := range e.slots {
		id := s.st.Now.ID
		if s.blocked == nil || told[id] || e.moves[id] != nil {
			continue
		}
		told[id] = true
		if m, ok := e.recordedLocked(id, true); ok {
			moves = append(moves, m)
		}
	}
	return moves
}

// adoptedWarnings say which of the configured parts are not those of the slot.
// Enclosure.mu is held.
func (s *slot) adoptedWarnings() (w []string) {
	const text = "%s: %s %s was adopted in place of the configured %s: correct the configuration"
	have, conf := s.expected(), s.configured()
	if have.MAC != conf.MAC {
		w = append(w, fmt.Sprintf(text, s.cfg.Name, "engine", have.MAC, conf.MAC))
	}
	if have.Serial != conf.Serial {
		w = append(w, fmt.Sprintf(text, s.cfg.Name, "device", serialText(have.Serial), serialText(conf.Serial)))
	}
	return w
}

// cannotHold lists the invariants that the slot's hardware can not hold.
func (s *slot) cannotHold() []string {
	var out []string
	for n := ee.Invariant(1); n <= ee.Invariants; n++ {
		if ok, why := s.cfg.Profile.Holds(n); !ok {
			out = append(out, fmt.Sprintf("invariant %d can not be held: %s", n, why))
		}
	}
	return out
}

func (e *Enclosure) slotStatus(s *slot) SlotStatus {
	st := s.st
	o := SlotStatus{
		Name:         s.cfg.Name,
		Profile:      s.cfg.Profile.Name,
		Capabilities: s.cfg.Profile.Caps.Names(),
		CannotHold:   s.cannotHold(),
		Group:        st.Now.To,
		VM:           e.vmName(st.Now.VM),
		Held:         st.Held(),
		Released:     st.Known() && st.Released == st.Now.Gen,
		Generation:   ee.Generation{Incarnation: e.inc, Counter: st.Now.Gen},
		Flag:         st.Flag(),
		Policy:       e.policyOf(st),
		Cut:          s.cut,
		Memory:       e.judgeLocked(s),
		Busy:         s.holder != "" && s.holder != pollHolder,
		Link:         "unknown",
		Port:         s.cfg.Port,
	}
	if e.cfg.Switch != nil && s.cfg.Port != "" {
		o.VLAN = e.cfg.Switch.Last(s.cfg.Port)
	}
	if st.Now.Kind.ByHand() && s.cut != "confirmed" {
		o.Cut = "unconfirmed" // also where nobody has tried since the agent started
	}
	if h := e.hostOf(st.Now.To); h != nil {
		o.Host = h.Name
	}
	if st.Flag() == plan.Void {
		o.FlagReason = st.VoidReason().String()
	}
	if s.blocked != nil {
		o.Blocked = s.blocked.reason.Error()
	}
	if s.identity.Vendor != 0 && s.identity.Vendor != ee.NoDevice {
		o.Device = fmt.Sprintf("%04x:%04x %s", s.identity.Vendor, s.identity.Device, className(s.identity.Class))
	}
	switch {
	case s.fault != nil:
		o.Problem = s.fault.Error()
	case s.readErr != nil:
		o.Problem = s.hardware("the engine can not be read", s.readErr).Error()
	case !s.readAt.IsZero():
		o.ReadAge = time.Since(s.readAt)
		o.Guard = s.live.Control&ee.CtlGuard != 0
		o.Hold = s.live.Control&ee.CtlHold != 0
		o.Locate = s.live.Control&ee.CtlLocate != 0
		o.Values = plan.ValuesOf(s.live)
		o.Latches = latchNames(s.live.Latch)
		if s.can(ee.CapStatus) {
			o.Power = "off"
			if s.live.Status&ee.StatPower != 0 {
				o.Power = "on"
			}
		}
		switch {
		case s.live.Status&ee.StatLink != 0:
			o.Link = "up"
			o.Peer = s.peer.MAC.String()
		case s.live.Control&ee.CtlLink != 0:
			o.Link = "enabled"
		default:
			o.Link = "down"
		}
	}
	return o
}

func latchNames(l uint8) []string {
	var out []string
	for i, n := range []string{"power lost", "engine restarted", "reset seen", "link lost"} {
		if l&(1<<i) != 0 {
			out = append(out, n)
		}
	}
	return out
}

// className is the PCI base class in a word (PCI Code and ID Assignment
// Specification, revision 1.11).
func className(class uint32) string {
	switch class >> 16 {
	case 0x01:
		return "storage"
	case 0x02:
		return "network"
	case 0x03:
		return "display"
	case 0x04:
		return "multimedia"
	case 0x0C:
		return "serial bus"
	case 0x12:
		return "accelerator"
	}
	return fmt.Sprintf("class %06x", class)
}
