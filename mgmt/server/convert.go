package server

import (
	"cmp"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/mgmt"
)

// From the enclosure's types to those on the wire. Lists are never null.

func list[T any](in []T) []T {
	return append(make([]T, 0, len(in)), in...)
}

func each[A, B any](in []A, f func(A) B) []B {
	out := make([]B, 0, len(in))
	for _, a := range in {
		out = append(out, f(a))
	}
	return out
}

func generation(g ee.Generation) string {
	if g == (ee.Generation{}) {
		return ""
	}
	return g.String()
}

func wireValues(v plan.Values) mgmt.Values {
	return mgmt.Values{Resets: v.Resets, Epoch: v.Epoch, Ident: v.Ident}
}

func valuesFrom(v mgmt.Values) plan.Values {
	return plan.Values{Resets: v.Resets, Epoch: v.Epoch, Ident: v.Ident}
}

func wireVerdict(v plan.Verdict) mgmt.Verdict {
	return mgmt.Verdict{
		Preserved: string(v.Preserved), Reason: v.Reason, Flag: string(v.Flag),
		Now: wireValues(v.Now), Base: wireValues(v.Base), Proven: v.Proven,
	}
}

func wireMemory(in map[string]plan.Verdict) map[string]mgmt.Verdict {
	if in == nil {
		return nil
	}
	out := make(map[string]mgmt.Verdict, len(in))
	for slot, v := range in {
		out[slot] = wireVerdict(v)
	}
	return out
}

func wireStore(s enclosure.StoreStatus) mgmt.Store {
	out := mgmt.Store{OK: s.OK, Problem: s.Problem, PageWrites: s.PageWrites, FreePages: s.Free, Damaged: s.Damaged}
	if s.Incarnation != 0 {
		out.Incarnation = ee.Generation{Incarnation: s.Incarnation}.String()[:8]
	}
	return out
}

func wireSlot(s enclosure.SlotStatus) mgmt.Slot {
	return mgmt.Slot{
		Name:         s.Name,
		Profile:      s.Profile,
		Capabilities: list(s.Capabilities),
		CannotHold:   list(s.CannotHold),
		Device:       s.Device,
		Group:        s.Group,
		Host:         s.Host,
		VM:           s.VM,
		Held:         s.Held,
		Released:     s.Released,
		Generation:   generation(s.Generation),
		Flag:         string(s.Flag),
		FlagReason:   s.FlagReason,
		Policy:       string(s.Policy),
		Guard:        s.Guard,
		Hold:         s.Hold,
		Link:         s.Link,
		Cut:          s.Cut,
		Peer:         s.Peer,
		Memory:       wireVerdict(s.Memory),
		Values:       wireValues(s.Values),
		Latches:      list(s.Latches),
		Power:        cmp.Or(s.Power, "unknown"),
		Locate:       s.Locate,
		Blocked:      s.Blocked,
		Busy:         s.Busy,
		Problem:      s.Problem,
		ReadAgeMS:    s.ReadAge.Milliseconds(),
		Port:         s.Port,
		VLAN:         s.VLAN,
	}
}

func wireHost(h enclosure.HostStatus) mgmt.Host {
	return mgmt.Host{Name: h.Name, Group: h.Group, MAC: h.MAC, Fenced: h.Fenced, Epoch: h.Epoch, Why: h.Why, Slots: list(h.Slots)}
}

func wireMove(m enclosure.Move) mgmt.Move {
	return mgmt.Move{
		ID: m.ID.String(), VM: m.VM, Slots: list(m.Slots), From: m.From, To: m.To,
		State: string(m.State), Generation: generation(m.Generation), Preserve: m.Preserve,
		Memory: wireMemory(m.Memory), Reason: m.Reason,
		Steps: each(m.Steps, func(st enclosure.Step) mgmt.Step {
			return mgmt.Step{Name: st.Name, AtUS: st.At.Microseconds(), Text: st.Text}
		}),
	}
}

func wireAttached(a enclosure.Attached) mgmt.Attached {
	out := mgmt.Attached{Nonce: a.Nonce.String(), Moved: a.Moved, State: string(a.State), Generation: map[string]string{}, Memory: map[string]mgmt.Verdict{}}
	for slot, g := range a.Generation {
		out.Generation[slot] = generation(g)
	}
	for slot, v := range a.Memory {
		w := wireVerdict(v)
		w.Slot, w.Generation = slot, out.Generation[slot]
		out.Memory[slot] = w
	}
	return out
}

func wireArming(a plan.Arming) mgmt.Arming {
	return mgmt.Arming{ID: a.ID.String(), Proof: a.Proof, Flag: string(a.Flag), Base: wireValues(a.Base), Reason: a.Reason}
}
