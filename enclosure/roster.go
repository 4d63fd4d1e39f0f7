package enclosure

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"baton/ee"
	"baton/enclosure/plan"
)

// roster is who may have slots: replaced as a whole, never changed.
type roster struct {
	hosts []HostConfig
	vms   []VMConfig
}

// Reconfiguration is a change of who may have slots, in a running agent. Like
// Config it is taken as valid.
type Reconfiguration struct {
	Hosts []HostConfig
	VMs   []VMConfig
	// Changed and Removed are slots that the next start finds changed, or not
	// at all. Until then they stay as they are.
	Changed, Removed []string
	// Keep makes the change last, and Undo puts back what Keep did. Without
	// Keep it lasts as long as the agent runs.
	Keep, Undo func(ctx context.Context) error
	Dry        bool // only say whether it would be refused

	By    string
	Admin bool
	Text  string // of the event
}

// Reconfigure replaces hosts and VMs. A change to what a move, a hold or a
// blockage depends on is refused with CodeBusy, one to a slot that a VM uses
// with CodeInUse, a caller who is not admin with CodeForbidden: who may have a
// slot is not for those to say who would have it.
//
// While the change is being kept no move begins that depends on it; a fence
// does, and where it leaves a slot held the change is given up. Afterwards the
// guards follow the policies at once.
func (e *Enclosure) Reconfigure(ctx context.Context, r Reconfiguration) error {
	if !r.Admin {
		return e.refused(r.By, &Error{
			Code: CodeForbidden, What: r.By + " may not change which hosts and VMs there are", State: "nothing was changed",
			Next: "have an admin do it",
		})
	}
	if r.Text == "" {
		r.Text = "hosts and VMs replaced"
	}
	if r.Dry {
		e.mu.Lock()
		defer e.mu.Unlock()
		if busy := e.mayRefit(r); busy != nil {
			return busy
		}
		return nil
	}
	if err := e.beginRefit(r); err != nil {
		return e.refused(r.By, err)
	}
	if r.Keep != nil {
		// Once begun it is carried through, whoever waits for it.
		keeping, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
		err := r.Keep(keeping)
		cancel()
		if err != nil {
			e.endRefit()
			return e.refused(r.By, err)
		}
	}
	if e.memory.frozen {
		e.endRefit()
		e.emit(Event{Kind: "config", Text: r.Text, By: r.By})
		return nil // it takes a start to begin with it
	}
	guards, busy := e.refit(r)
	if busy != nil {
		if r.Undo != nil {
			undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
			err := r.Undo(undoing)
			cancel()
			if err != nil {
				busy.Err, busy.State, busy.Retry = err, "the change is in force from the agent's next start: what was kept could not be put back", false
			}
		}
		e.endRefit()
		return e.refused(r.By, busy)
	}
	e.emit(Event{Kind: "config", Text: r.Text, By: r.By})
	e.guardAnew(ctx, guards)
	return nil
}

// beginRefit refuses a change that something depends on. If it does not, no
// move begins until endRefit or refit.
func (e *Enclosure) beginRefit(r Reconfiguration) *Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refitting {
		return &Error{Code: CodeBusy, What: "another change of the configuration is under way", State: "nothing was changed", Next: "try again", Retry: true}
	}
	if busy := e.mayRefit(r); busy != nil {
		return busy
	}
	e.refitting = e.refits(r)
	return nil
}

func (e *Enclosure) endRefit() {
	e.mu.Lock()
	e.refitting = false
	e.mu.Unlock()
}

// refit makes the change, unless by now something depends on what it would
// change. It returns the slots under another policy than before.
func (e *Enclosure) refit(r Reconfiguration) ([]*slot, *Error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if busy := e.mayRefit(r); busy != nil {
		return nil, busy
	}
	e.refitting = false
	was := e.roster.Load()
	if reflect.DeepEqual(was.hosts, r.Hosts) && reflect.DeepEqual(was.vms, r.VMs) {
		return nil, nil // moves that wait need not be refused
	}
	before := make([]plan.Policy, len(e.slots))
	for i, s := range e.slots {
		before[i] = e.policyOf(s.st)
	}
	e.roster.Store(&roster{slices.Clone(r.Hosts), slices.Clone(r.VMs)})
	var guards []*slot
	for i, s := range e.slots {
		if e.policyOf(s.st) != before[i] && s.st.Known() {
			s.late = true
			guards = append(guards, s)
		}
	}
	return guards, nil
}

// refits tells whether r changes anything that moves depend on. Enclosure.mu
// is held.
func (e *Enclosure) refits(r Reconfiguration) bool {
	now := e.roster.Load()
	return len(r.Changed)+len(r.Removed) > 0 || !reflect.DeepEqual(now.hosts, r.Hosts) || !reflect.DeepEqual(now.vms, r.VMs)
}

// mayRefit says what depends on something that r changes. Enclosure.mu is held.
func (e *Enclosure) mayRefit(r Reconfiguration) *Error {
	const unchanged = "nothing was changed"
	for _, h := range e.roster.Load().hosts {
		if len(e.pending[h.Name]) > 0 && !slices.Contains(r.Hosts, h) && !e.memory.frozen {
			return &Error{
				Code: CodeBusy, What: fmt.Sprintf("the cut of %v from host %s is not confirmed, and goes on being tried", names(e.pending[h.Name]), h.Name),
				State: unchanged, Next: "end that first (baton status), then try again", Retry: true,
			}
		}
	}
	for _, s := range e.slots {
		if what := e.cutsOff(s, r.Hosts, r.VMs); what != "" {
			return &Error{
				Code: CodeInUse, Slot: s.cfg.Name, What: "a VM uses the slot, and would lose it: " + what,
				State: unchanged, Next: "move or release the slot first, or leave that as it is",
			}
		}
		if e.memory.frozen {
			continue // hosts, VMs and slots are the seed's: they are nobody's to compare with
		}
		if name := e.dependsOn(s, r.Hosts, r.VMs); name != "" {
			return &Error{
				Code: CodeBusy, Slot: s.cfg.Name, What: "the slot is being moved, held or blocked, and depends on " + name,
				State: unchanged, Next: "end that first (baton status), then try again", Retry: true,
			}
		}
		removed := slices.Contains(r.Removed, s.cfg.Name)
		switch {
		case !removed && !slices.Contains(r.Changed, s.cfg.Name):
		case e.occupied(s):
			return &Error{
				Code: CodeBusy, Slot: s.cfg.Name, What: "the slot itself is being moved, held or blocked",
				State: unchanged, Next: "end that first (baton status), then try again", Retry: true,
			}
		case s.st.InUse():
			return &Error{
				Code: CodeInUse, Slot: s.cfg.Name, What: "VM " + e.vmName(s.st.Now.VM) + " uses the slot",
				State: unchanged, Next: "stop that VM and release the slot first",
			}
		case removed && s.st.Known() && s.st.Now.To != ee.GroupFree:
			return &Error{
				Code: CodeInUse, Slot: s.cfg.Name, What: fmt.Sprintf("the slot is with group %d, and nobody would look after it there any more", s.st.Now.To),
				State: unchanged, Next: "release it first (baton release VM --mode free)",
			}
		}
	}
	return nil
}

// cutsOff says what of hosts and VMs would take s from a VM that uses it, or
// its guard; "" where nothing does. Enclosure.mu is held.
func (e *Enclosure) cutsOff(s *slot, hosts []HostConfig, vms []VMConfig) string {
	if !s.st.InUse() {
		return ""
	}
	now, then := e.hostOf(s.st.Now.To), find(hosts, func(h HostConfig) bool { return h.Group == s.st.Now.To })
	switch {
	case now != nil && then == nil, now == nil && then == nil && e.memory.frozen:
		return fmt.Sprintf("no host would have group %d", s.st.Now.To)
	case now != nil && *now != *then:
		return "host " + now.Name + " would be another"
	}
	is := func(v VMConfig) bool { return v.UUID == s.st.Now.VM }
	if find(e.roster.Load().vms, is) != nil && find(vms, is) == nil {
		return "VM " + e.vmName(s.st.Now.VM) + " would not be known"
	}
	return ""
}

// occupied tells whether s is being moved, held or blocked. Enclosure.mu is
// held.
func (e *Enclosure) occupied(s *slot) bool {
	moving := s.holder != "" && s.holder != pollHolder
	return moving || s.st.Held() || s.blocked != nil || e.unfinished(s)
}

// guardAnew makes engines follow policies that have changed. What does not
// follow now the poller makes follow.
func (e *Enclosure) guardAnew(ctx context.Context, slots []*slot) {
	for _, s := range slots {
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockWait)
		if err := e.acquire(short, pollHolder, true, s); err == nil {
			if s.fault == nil && s.blocked == nil && e.takeLate(s) {
				e.followPolicy(short, s)
			}
			e.release(s)
		}
		cancel()
	}
}

// takeLate tells, once, whether the policy of s has changed and its engine has
// not followed.
func (e *Enclosure) takeLate(s *slot) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	late := s.late
	s.late = false
	return late
}

func (e *Enclosure) followPolicy(ctx context.Context, s *slot) {
	if !s.can(ee.CapStatus) || e.storeProblem() != nil {
		return // what can not be read has no guard to switch
	}
	if f := e.follow(ctx, s); f != nil && f.err.Code != CodeFenced {
		e.emit(Event{Kind: "fault", Slot: s.cfg.Name, Code: string(f.err.Code), Text: f.err.Error() + "; the guard does not follow the policy yet"})
		return
	}
	e.emit(Event{Kind: "config", Slot: s.cfg.Name, Text: fmt.Sprintf("%s: guard as policy %s wants it", s.cfg.Name, e.policyOf(e.state(s)))})
}

// dependsOn names a host or VM that would change while s depends on it; ""
// where there is none. Enclosure.mu is held.
func (e *Enclosure) dependsOn(s *slot, hosts []HostConfig, vms []VMConfig) string {
	if !e.occupied(s) {
		return ""
	}
	groups := []uint16{s.bound, s.st.Now.To}
	if s.st.Prior != nil {
		groups = append(groups, s.st.Prior.To)
	}
	for _, h := range e.roster.Load().hosts {
		if slices.Contains(groups, h.Group) && !slices.Contains(hosts, h) {
			return "host " + h.Name
		}
	}
	for _, h := range hosts {
		if slices.Contains(groups, h.Group) && !slices.Contains(e.roster.Load().hosts, h) {
			return "host " + h.Name
		}
	}
	for _, v := range e.roster.Load().vms {
		same := func(o VMConfig) bool { return reflect.DeepEqual(o, v) }
		if v.UUID == s.st.Now.VM && !slices.ContainsFunc(vms, same) {
			return "VM " + v.Name
		}
	}
	return ""
}

// host returns the host of that name, nil where there is none.
func (e *Enclosure) host(name string) *HostConfig {
	return find(e.roster.Load().hosts, func(h HostConfig) bool { return h.Name == name })
}

// hostOf returns the host that has a group, nil where there is none.
func (e *Enclosure) hostOf(group uint16) *HostConfig {
	return find(e.roster.Load().hosts, func(h HostConfig) bool { return h.Group == group })
}

func find[T any](list []T, is func(T) bool) *T {
	if i := slices.IndexFunc(list, is); i >= 0 {
		return &list[i]
	}
	return nil
}

func (e *Enclosure) vm(name string) *VMConfig {
	return find(e.roster.Load().vms, func(v VMConfig) bool { return v.Name == name })
}

// policyOf is the policy of the VM that has s, or that it is held for.
func (e *Enclosure) policyOf(st plan.Slot) plan.Policy {
	if v := find(e.roster.Load().vms, func(v VMConfig) bool { return v.UUID == st.Now.VM }); v != nil {
		return v.Policy
	}
	return plan.Never
}
