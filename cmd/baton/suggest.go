package main

import (
	"fmt"
	"slices"
	"strings"

	"baton/mgmt"
)

// next is a command that is likely to be typed next, and why.
type next struct {
	Command string `json:"command"`
	Why     string `json:"why,omitempty"`
}

// suggestions are what a state asks for, the most pressing first. Each gives
// its commands, none where there is nothing to do about it.
var suggestions = []struct {
	state string
	do    func(e seen) []next
}{
	{"the store can not be used", func(e seen) []next {
		if e.Store.OK {
			return nil
		}
		return []next{{"baton nvm check", "what is wrong with the store"}}
	}},
	{"a network is on trial", func(e seen) []next {
		if e.Trial == nil {
			return nil
		}
		return []next{{"baton config confirm", "or the network is put back in " + age(e.Trial.LeftMS)}}
	}},
	{"a set is blocked", func(e seen) []next {
		if !e.Store.OK {
			return nil // nothing can be changed
		}
		return first(1, e.Slots, func(s mgmt.Slot) (next, bool) {
			return next{"baton move resolve", s.Name + " is blocked"}, s.Blocked != ""
		})
	}},
	{"a slot is faulty", func(e seen) []next {
		if !e.Store.OK {
			return nil
		}
		return first(2, e.Slots, func(s mgmt.Slot) (next, bool) {
			n := next{"baton slot adopt " + s.Name, "if its parts were replaced"}
			if silent(s) {
				n = next{"baton log " + s.Name, "since when it does not answer"}
			}
			return n, s.Problem != "" && s.Blocked == ""
		})
	}},
	{"the store was damaged", func(e seen) []next {
		if !e.Store.OK || e.Store.Damaged == 0 {
			return nil
		}
		return []next{{"baton nvm check", "what was lost with the damaged pages"}}
	}},
	{"a host is fenced", func(e seen) []next {
		if !e.Store.OK {
			return nil
		}
		return first(2, e.Hosts, func(h mgmt.Host) (next, bool) {
			if strings.HasPrefix(h.Why, "the cut of ") {
				return next{"baton fence " + h.Name, "is its cut confirmed now?"}, h.Fenced
			}
			return next{"baton unfence " + h.Name, "once it is safe"}, h.Fenced
		})
	}},
	{"a move waits for its host", func(e seen) []next {
		if !e.Store.OK {
			return nil
		}
		return first(1, e.Moves, func(m mgmt.Move) (next, bool) {
			// Later moves may have ended it.
			waits := slices.ContainsFunc(e.Slots, func(s mgmt.Slot) bool {
				return slices.Contains(m.Slots, s.Name) && s.Generation == m.Generation && s.Link == "enabled"
			})
			return next{fmt.Sprintf("baton move %s --to %s", m.VM, m.From), m.To + " does not answer"}, m.State == "waiting" && m.From != "" && waits
		})
	}},
	{"a memory was not kept", func(e seen) []next {
		return first(1, e.Slots, func(s mgmt.Slot) (next, bool) {
			return next{"baton verdict " + s.Name, "why its memory counts as lost"}, s.VM != "" && s.Flag == "void"
		})
	}},
	{"a device has no power", func(e seen) []next {
		if !e.Store.OK {
			return nil
		}
		return first(1, e.Slots, func(s mgmt.Slot) (next, bool) {
			return next{"baton slot power " + s.Name + " on", "its device has no power"}, s.Power == "off" && s.Problem == "" && s.Blocked == ""
		})
	}},
	{"a VM can be moved or attached", func(e seen) []next {
		if !e.Store.OK {
			return nil
		}
		return first(1, e.VMs, func(v mgmt.VM) (next, bool) {
			from, verb := "", "attach" // as long as it has no host
			for _, s := range e.Slots {
				if slices.Contains(v.Slots, s.Name) && (s.Blocked != "" || s.Problem != "" || s.VM != "" && s.VM != v.Name) {
					return next{}, false // it would be refused
				}
				if s.VM == v.Name && s.Host != "" {
					from, verb = s.Host, "move"
				}
			}
			i := slices.IndexFunc(e.Hosts, func(h mgmt.Host) bool {
				return !h.Fenced && h.Name != from && slices.Contains(v.Hosts, h.Name)
			})
			if i < 0 {
				return next{}, false
			}
			return next{Command: fmt.Sprintf("baton %s %s --to %s", verb, v.Name, e.Hosts[i].Name)}, true
		})
	}},
	{"always", func(seen) []next { return []next{{Command: "baton watch"}} }},
}

// suggest goes through the table. What two states ask for is said once.
func suggest(e seen) []next {
	out := []next{}
	for _, s := range suggestions {
		for _, n := range s.do(e) {
			if !slices.ContainsFunc(out, func(o next) bool { return o.Command == n.Command }) {
				out = append(out, n)
			}
		}
	}
	return out
}

// first returns what up to n of all ask for.
func first[T any](n int, all []T, do func(T) (next, bool)) []next {
	var out []next
	for _, x := range all {
		if s, ok := do(x); ok && len(out) < n {
			out = append(out, s)
		}
	}
	return out
}
