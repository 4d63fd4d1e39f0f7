package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"baton/sim/control"
)

// check asks the model, and then the agent, whether the invariants have held
// in all that happened to v since before. Nothing was to happen to the others.
func (s *stage) check(ctx context.Context, v *vmOf, before control.State) (wrong []string) {
	now, err := s.hw.State(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	r, err := s.hw.Record(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	wrong = append(recorded(r, v.slots), untouched(before, now, v.slots)...)
	for _, l := range now.Slots {
		if why := older(s.gens[l.Name], l.Generation); why != "" {
			wrong = append(wrong, fmt.Sprintf("generation of %s: %s", l.Name, why))
		}
		s.gens[l.Name] = l.Generation
	}
	if err := s.barred(ctx); err != nil {
		wrong = append(wrong, err.Error())
	}

	// What is reported is so: owner and generation, by the agent and the model.
	slots, err := s.agent.Slots(ctx)
	if err != nil {
		return append(wrong, err.Error())
	}
	for _, l := range slots {
		m, _ := now.Slot(l.Name)
		if l.Generation != m.Generation || l.Host != m.Reacher {
			wrong = append(wrong, fmt.Sprintf("read back: %s is with %q, generation %s; by the model with %q, generation %s", l.Name, l.Host, l.Generation, m.Reacher, m.Generation))
		}
	}
	hosts, err := s.agent.Hosts(ctx)
	if err != nil {
		return append(wrong, err.Error())
	}
	for _, h := range hosts {
		if _, fenced := s.fenced[h.Name]; h.Fenced != fenced {
			wrong = append(wrong, fmt.Sprintf("fence: %s fenced: %v; want %v", h.Name, h.Fenced, fenced))
		}
	}
	return wrong
}

// recorded is what the model remembers that should never have been.
func recorded(r control.Record, set []string) (wrong []string) {
	for slot, n := range r.MaxOwners {
		if n > 1 {
			wrong = append(wrong, fmt.Sprintf("one owner: %d servers could reach %s at the same instant", n, slot))
		}
	}
	for _, v := range r.Violations {
		wrong = append(wrong, fmt.Sprintf("hardware: %s: %s", v.Name, v.What))
	}
	for _, a := range r.Reach {
		for _, b := range r.Reach {
			if a.Slot < b.Slot && a.Server != b.Server && slices.Contains(set, a.Slot) && slices.Contains(set, b.Slot) &&
				a.From < end(r, b) && b.From < end(r, a) {
				wrong = append(wrong, fmt.Sprintf("together: %s was with %s while %s was with %s", a.Slot, a.Server, b.Slot, b.Server))
			}
		}
	}
	return wrong
}

// end is the end of an interval; one that is open has none yet.
func end(r control.Record, i control.Interval) control.Duration {
	if i.Open {
		return r.Now + 1
	}
	return i.To
}

// untouched lists what changed of slots that are not in set.
func untouched(before, now control.State, set []string) (wrong []string) {
	for _, b := range now.Slots {
		if slices.Contains(set, b.Name) {
			continue
		}
		if a, _ := before.Slot(b.Name); a != b {
			wrong = append(wrong, fmt.Sprintf("nobody asked for %s, and it changed from %+v to %+v", b.Name, a, b))
		}
		a, _ := before.Chip(b.Name)
		c, _ := now.Chip(b.Name)
		if a.PageWrites != c.PageWrites {
			wrong = append(wrong, fmt.Sprintf("nobody asked for %s, and %d pages of its chip were written", b.Name, c.PageWrites-a.PageWrites))
		}
	}
	return wrong
}

// older tells why generation now can not follow was; "" = it can.
func older(was, now string) string {
	a, _, _ := strings.Cut(was, "-")
	b, _, _ := strings.Cut(now, "-")
	switch {
	case was == "":
		return ""
	case a != b:
		return fmt.Sprintf("another incarnation: %s, then %s", was, now)
	case counter(now) < counter(was):
		return fmt.Sprintf("it went back: %s, then %s", was, now)
	}
	return ""
}

// counter is the second half of a generation.
func counter(generation string) uint64 {
	_, n, _ := strings.Cut(generation, "-")
	c, _ := strconv.ParseUint(n, 10, 64)
	return c
}

// barred is an error where a fenced host could reach anything since.
func (s *stage) barred(ctx context.Context) error {
	r, err := s.hw.Record(ctx)
	if err != nil {
		return err
	}
	for host, since := range s.fenced {
		if why := reachedSince(r, host, since); why != "" {
			return fmt.Errorf("fencing: %s", why)
		}
	}
	return nil
}

func reachedSince(r control.Record, host string, since time.Duration) string {
	for _, i := range r.Reach {
		if i.Server == host && time.Duration(end(r, i)) > since {
			return fmt.Sprintf("%s is fenced since %v, and reached %s from %v to %v", host, since, i.Slot, time.Duration(i.From), time.Duration(i.To))
		}
	}
	return ""
}

// judge holds the verdict of each of v's slots against what the model knows and
// what is in the memory: yes only where nothing reached the device, and, where
// the memory was to be kept, then always.
func (s *stage) judge(ctx context.Context, v *vmOf, at string, keeps bool) error {
	for _, name := range v.slots {
		said, err := s.agent.Verdict(ctx, name)
		if err != nil {
			return err
		}
		r, err := s.hw.Record(ctx)
		if err != nil {
			return err
		}
		// A reset after the verdict was taken is no fault of it: none comes now.
		found, err := s.hw.ReadMem(ctx, at, name, 0, len(v.sign[name]))
		if err != nil {
			return fmt.Errorf("memory of %s: %w", name, err)
		}
		if why := falsely(said.Preserved, r.IntactSince(name, v.intact), bytes.Equal(found, v.sign[name]), keeps); why != "" {
			return fmt.Errorf("flag: verdict of %s is %s (%s), %s", name, said.Preserved, said.Reason, why)
		}
	}
	return nil
}

// falsely tells what is wrong with a verdict; "" = nothing.
func falsely(preserved string, intact, same, keeps bool) string {
	switch {
	case preserved == "yes" && !intact:
		return "and a reset or a loss of power reached the device"
	case preserved == "yes" && !same:
		return "and the memory is another"
	case preserved != "yes" && intact && keeps:
		return "and nothing reached the device"
	}
	return ""
}
