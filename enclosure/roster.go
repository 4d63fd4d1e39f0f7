package enclosure

import (
	"reflect"
	"slices"

	"baton/enclosure/plan"
)

// roster is who may have slots: replaced as a whole, never changed.
type roster struct {
	hosts []HostConfig
	vms   []VMConfig
}

// Reconfigure replaces hosts and VMs of a running agent. Both are taken as
// valid, like Config. A change to what a move, a hold or a blockage depends on
// is refused with CodeBusy, a caller who is not admin with CodeForbidden: who
// may have a slot is not for those to say who would have it.
func (e *Enclosure) Reconfigure(hosts []HostConfig, vms []VMConfig, by string, admin bool) error {
	if !admin {
		return e.refused(by, &Error{
			Code: CodeForbidden, What: by + " may not change which hosts and VMs there are", State: "nothing was changed",
			Next: "have an admin do it",
		})
	}
	e.mu.Lock()
	var busy *Error
	for _, s := range e.slots {
		if name := e.dependsOn(s, hosts, vms); name != "" {
			busy = &Error{
				Code: CodeBusy, Slot: s.cfg.Name, What: "the slot is being moved, held or blocked, and depends on " + name,
				State: "nothing was changed", Next: "end that first (baton status), then try again", Retry: true,
			}
			break
		}
	}
	if busy == nil {
		e.roster.Store(&roster{slices.Clone(hosts), slices.Clone(vms)})
	}
	e.mu.Unlock()
	if busy != nil {
		return e.refused(by, busy)
	}
	e.emit(Event{Kind: "config", Text: "hosts and VMs replaced", By: by})
	return nil
}

// dependsOn names a host or VM that would change while s depends on it; ""
// where there is none. Enclosure.mu is held.
func (e *Enclosure) dependsOn(s *slot, hosts []HostConfig, vms []VMConfig) string {
	moving := s.holder != "" && s.holder != pollHolder
	if !moving && !s.st.Held() && s.blocked == nil && !e.unfinished(s) {
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
