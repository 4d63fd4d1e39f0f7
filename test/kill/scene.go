package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"baton/mgmt"
)

// step is one request to the agent, or something that somebody else does.
type step struct {
	op    string // "" = nothing that is killed
	slots int    // whose config blocks it writes
	links string // server that its slots are linked with at the end; "" = it makes no links
	idle  bool   // the VM does not run meanwhile: its devices may have mishaps

	// do asks for it. What it returns is the outcome, which a repeated request
	// has as well.
	do func(ctx context.Context) (string, error)
}

// act is a step that nobody kills.
func act(f func(ctx context.Context) error) step {
	return step{do: func(ctx context.Context) (string, error) { return "", f(ctx) }}
}

// planned: arm, stop, move, attach in place, start, ack.
func (s *stage) planned(v *vmOf) []step {
	to := v.other()
	var steps []step
	for _, slot := range v.slots {
		r := mgmt.ArmRequest{ID: s.id()}
		steps = append(steps, step{op: "arm", do: func(ctx context.Context) (string, error) {
			if r.Seen == nil {
				seen, err := s.agent.Verdict(ctx, slot)
				if err != nil {
					return "", err
				}
				r.Generation, r.Seen = seen.Generation, &seen.Now
			}
			a, err := s.agent.Arm(ctx, slot, r)
			return fmt.Sprintf("%s proof=%v flag=%s base=%v", a.ID, a.Proof, a.Flag, a.Base), err
		}})
	}
	r := mgmt.MoveRequest{ID: s.id(), VM: v.name, To: to, Preserve: true}
	return append(append(steps,
		act(func(ctx context.Context) error { return s.hw.VM(ctx, v.at, v.name, "stop") }),
		step{op: "move", slots: len(v.slots), links: to, idle: true, do: func(ctx context.Context) (string, error) {
			m, err := s.agent.Move(ctx, r)
			if err == nil && m.State != "done" {
				err = fmt.Errorf("the move is %s: %s", m.State, m.Reason)
			}
			return fmt.Sprintf("%s %s %v to %s, generation %s", m.ID, m.State, m.Slots, m.To, m.Generation), err
		}}),
		append([]step{s.attaching(v, to)}, s.arrival(v, to, true)...)...)
}

// unplanned: the server is lost, fenced, and its VM starts on the other one.
// The one that was lost lives on.
func (s *stage) unplanned(v *vmOf, hangs bool) []step {
	from, to := v.at, v.other()
	lost, back := "power-loss", "power-on"
	if hangs {
		lost, back = "hang", "resume"
	}
	steps := []step{
		act(func(ctx context.Context) error { s.off[from] = !hangs; return s.hw.Server(ctx, from, lost) }),
		s.fence(v, from),
		s.attaching(v, to),
	}
	steps = append(steps, s.arrival(v, to, true)...)
	return append(steps, act(func(ctx context.Context) error {
		if err := s.hw.Server(ctx, from, back); err != nil {
			return err
		}
		delete(s.off, from)
		if hangs {
			// Its QEMU closes devices that it no longer reaches.
			if err := s.hw.VM(ctx, from, v.name, "kill"); err != nil {
				return err
			}
		}
		if err := s.barred(ctx); err != nil {
			return err
		}
		return s.unfence(ctx, from)
	}))
}

// released: the VM stops, lets its slots go in one of the ways, and comes again.
func (s *stage) released(v *vmOf, mode string, stays bool) []step {
	to := v.at
	if !stays && mode != "keep" {
		to = v.other()
	}
	r := mgmt.ReleaseRequest{VM: v.name, Slots: v.slots, Mode: mode}
	blocks := len(v.slots)
	if mode == "keep" {
		blocks = 0
	}
	steps := []step{
		act(func(ctx context.Context) error { return s.hw.VM(ctx, v.at, v.name, "stop") }),
		{op: "release", slots: blocks, idle: true, do: func(ctx context.Context) (string, error) {
			err := s.agent.Release(ctx, v.slots[0], r)
			if p, ok := errors.AsType[*mgmt.Problem](err); ok && p.Code == "wrong-state" && mode == "free" {
				return mode, s.free(ctx, v) // a repeat, by whom the VM has let go already
			}
			return mode, err
		}},
		s.attaching(v, to),
	}
	return append(steps, s.arrival(v, to, mode != "free")...)
}

// free is an error unless all of v's slots are nobody's.
func (s *stage) free(ctx context.Context, v *vmOf) error {
	all, err := s.agent.Slots(ctx)
	for _, l := range all {
		if slices.Contains(v.slots, l.Name) && (l.Host != "" || l.VM != "") {
			return fmt.Errorf("%s was released, and is with %q for VM %q", l.Name, l.Host, l.VM)
		}
	}
	return err
}

func (s *stage) fence(v *vmOf, host string) step {
	return step{op: "fence", slots: len(v.slots), idle: true, do: func(ctx context.Context) (string, error) {
		f, err := s.agent.Fence(ctx, host)
		if err != nil {
			return "", err
		}
		r, err := s.hw.Record(ctx)
		if _, known := s.fenced[host]; !known {
			s.fenced[host] = time.Duration(r.Now)
		}
		return "fenced " + f.Host, err
	}}
}

func (s *stage) attaching(v *vmOf, to string) step {
	return step{op: "attach", slots: len(v.slots), links: to, idle: true, do: func(ctx context.Context) (string, error) {
		a, err := s.agent.Attach(ctx, v.slots[0], mgmt.AttachRequest{VM: v.name, Host: to, Slots: v.slots})
		v.nonce = a.Nonce
		return fmt.Sprintf("%s %v", a.State, a.Generation), err
	}}
}

// arrival: a VM starts where its slots are now: verdict, start, ack.
func (s *stage) arrival(v *vmOf, to string, keeps bool) []step {
	steps := []step{act(func(ctx context.Context) error {
		if err := s.judge(ctx, v, to, keeps); err != nil {
			return err
		}
		v.at = to
		return s.boot(ctx, v)
	})}
	for _, slot := range v.slots {
		steps = append(steps, step{op: "ack", do: func(ctx context.Context) (string, error) { return "", s.ack(ctx, v, slot) }})
	}
	return append(steps, act(func(ctx context.Context) error { return s.sign(ctx, v) }))
}

// draw is what a run does: the steps, which of them is killed.
func (s *stage) draw(random *rand.Rand) (v *vmOf, scene string, steps []step, victim int) {
	v = s.vms[random.IntN(len(s.vms)-1)]
	op := pick(random, "move", "move", "move", "move", "move", "move", "attach", "attach", "attach", "attach", "fence", "fence", "fence", "release", "release", "release", "arm", "arm", "ack", "ack")
	hangs, stays, mode := random.IntN(2) == 0, random.IntN(2) == 0, pick(random, "keep", "hold", "free")
	kind := map[string]string{"move": "planned", "arm": "planned", "fence": "unplanned", "release": "released"}[op]
	if kind == "" {
		kind = pick(random, "planned", "unplanned", "released")
	}
	switch kind {
	case "planned":
		scene, steps = "planned move", s.planned(v)
	case "unplanned":
		scene, steps = "fence and attach", s.unplanned(v, hangs)
	case "released":
		scene, steps = "release ("+mode+") and attach", s.released(v, mode, stays)
	}
	var of []int
	for i, st := range steps {
		if st.op == op {
			of = append(of, i)
		}
	}
	return v, fmt.Sprintf("%s of %d slots from %s", scene, len(v.slots), v.at), steps, of[random.IntN(len(of))]
}

func pick(random *rand.Rand, of ...string) string { return of[random.IntN(len(of))] }
