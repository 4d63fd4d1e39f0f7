package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"baton/sim/control"
)

// run is one run: a scene, in which the agent is killed once. The error is what
// ended it early; what else was wrong is in the kill.
func (s *stage) run(ctx context.Context, number int) (k kill, err error) {
	random := rand.New(rand.NewPCG(s.o.seed, uint64(number)))
	v, scene, steps, victim := s.draw(random)
	k = kill{scene: scene, op: steps[victim].op, slots: len(v.slots)}
	strike := s.instant(random)
	mishap := ""
	if steps[victim].idle && random.IntN(6) == 0 {
		mishap = pick(random, "reseat", "restart")
	}
	hurt := v.slots[random.IntN(len(v.slots))]

	before, err := s.hw.State(ctx)
	if err != nil {
		return k, err
	}
	for i, st := range steps {
		if i == victim {
			err = s.killed(ctx, &k, v, st, strike, mishap, hurt)
		} else {
			err = s.undisturbed(ctx, v, st)
		}
		if err != nil {
			return k, err
		}
	}
	if err := s.settled(ctx); err != nil {
		return k, fmt.Errorf("at the end: %w", err)
	}
	k.wrong = append(k.wrong, s.check(ctx, v, before)...)
	return k, nil
}

// undisturbed does a step, and learns what it takes.
func (s *stage) undisturbed(ctx context.Context, v *vmOf, st step) error {
	if st.op == "" {
		_, err := st.do(ctx)
		return err
	}
	base, err := s.hw.State(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	_, err = st.do(ctx)
	if err != nil {
		return fmt.Errorf("%s, undisturbed: %w", st.op, err)
	}
	took := time.Since(began)
	after, err := s.hw.State(ctx)
	s.typical[st.key(v)] = effort{took, writes(after) - writes(base)}
	return err
}

func (st step) key(v *vmOf) string { return fmt.Sprintf("%s %d %d", st.op, len(v.slots), st.slots) }

// writes counts all that was written in a world, pages and bytes of registers.
func writes(s control.State) (n uint64) {
	for _, c := range s.Chips {
		n += c.PageWrites
	}
	for _, l := range s.Slots {
		n += l.Writes
	}
	return n
}

// instant says when to strike: after a part of the usual time, or after a part
// of the usual writes and a moment.
type instant struct {
	byWrites bool
	part     float64 // of what is usual
	moment   time.Duration
}

func (s *stage) instant(random *rand.Rand) instant {
	return instant{random.IntN(2) == 0, 1.05 * random.Float64(), time.Duration(random.IntN(7000)) * time.Microsecond / time.Duration(1+random.IntN(20))}
}

func (i instant) String() string {
	switch {
	case i.byWrites && i.part < 0.1:
		return fmt.Sprintf("%v after the request", i.moment/8)
	case i.byWrites:
		return fmt.Sprintf("%v after %.0f %% of its writes", i.moment, 100*i.part)
	}
	return fmt.Sprintf("after %.0f %% of its time", 100*i.part)
}

// lookEvery is how often the world is looked at while an operation is under way.
const lookEvery = 200 * time.Microsecond

// killed does a step in which the agent is killed, starts the next agent and
// repeats the request.
func (s *stage) killed(ctx context.Context, k *kill, v *vmOf, st step, strike instant, mishap, hurt string) error {
	wrong := func(format string, args ...any) { k.wrong = append(k.wrong, fmt.Sprintf(format, args...)) }
	usual, known := s.typical[st.key(v)]
	if !known {
		usual = effort{time.Duration(25+8*st.slots) * time.Millisecond, uint64(2 + 40*st.slots)}
	}
	k.how = strike.String()
	base, err := s.hw.State(ctx)
	if err != nil {
		return err
	}
	var stored []byte
	if s.o.forget {
		if stored, err = s.hw.ReadChip(ctx, "store", 0, 32<<10); err != nil {
			return err
		}
	}

	type answer struct {
		outcome string
		err     error
	}
	answered := make(chan answer, 1)
	began := time.Now()
	go func() {
		outcome, err := st.do(ctx)
		answered <- answer{outcome, err}
	}()
	var first answer
	var replied bool
	end := time.After(usual.time * 3) // where as many writes never come
	goal := writes(base) + uint64(strike.part*float64(usual.writes))
	sawEarly := ""
	soon := strike.byWrites && strike.part < 0.1 // shortly after the request itself
	if soon {
		time.Sleep(strike.moment / 8)
	}
watch:
	for !soon {
		now, err := s.hw.State(ctx)
		if err != nil {
			return err
		}
		if sawEarly == "" {
			sawEarly = early(now, v.slots, st.links, base)
		}
		if strike.byWrites && writes(now) >= goal {
			time.Sleep(strike.moment)
			break
		}
		wait := lookEvery
		if !strike.byWrites {
			left := time.Until(began.Add(time.Duration(strike.part * float64(usual.time))))
			if left <= 0 {
				break
			}
			wait = min(wait, left)
		}
		select {
		case first = <-answered:
			replied = true
			break watch
		case <-end:
			break watch
		case <-time.After(wait):
		}
	}
	s.batond.kill()
	k.after = time.Since(began)
	if !replied {
		first = <-answered
		replied = first.err == nil
	}
	if replied && first.err != nil {
		return fmt.Errorf("%s, before it was killed: %w", st.op, first.err)
	}

	dead, err := s.hw.State(ctx)
	if err != nil {
		return err
	}
	if sawEarly == "" {
		sawEarly = early(dead, v.slots, st.links, base)
	}
	if sawEarly != "" {
		wrong("together: %s", sawEarly)
	}
	p := progressOf(base, dead, v.slots, st)
	p.replied = replied
	k.phase = p.phase()

	if s.o.forget {
		if err := s.hw.WriteChip(ctx, "store", 0, stored); err != nil {
			return err
		}
	}
	switch mishap {
	case "reseat":
		k.mishap = "the device of " + hurt + " was taken out and put back"
		err = s.hw.Reseat(ctx, hurt)
	case "restart":
		k.mishap = "the engine of " + hurt + " restarted"
		err = s.hw.RestartEngine(ctx, hurt)
	}
	if err != nil {
		return err
	}

	next := time.Now()
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("the next agent: %w", err)
	}
	k.back = time.Since(next)
	owners, err := s.together(ctx, v)
	if err != nil {
		return err
	}
	if st.links == "" && st.slots > 0 && replied && owners != "" {
		wrong("lost: %s was answered, and then %s has the slots", st.op, owners)
	}
	if st.links != "" && replied && owners != st.links && !s.off[st.links] {
		wrong("lost: %s was answered, and then %q has the slots; want %s", st.op, owners, st.links)
	}

	// Once: the same request again, and again.
	before, err := s.hw.State(ctx)
	if err != nil {
		return err
	}
	var outcomes []string
	if replied {
		outcomes = append(outcomes, first.outcome)
	}
	for range 2 {
		again, err := st.do(ctx)
		if err != nil {
			return fmt.Errorf("%s, repeated: %w", st.op, err)
		}
		outcomes = append(outcomes, again)
	}
	for _, o := range outcomes[1:] {
		if o != outcomes[0] {
			wrong("once: %s was answered %q, and repeated %q", st.op, outcomes[0], o)
		}
	}
	after, err := s.hw.State(ctx)
	if err != nil {
		return err
	}
	for _, name := range v.slots {
		a, _ := base.Slot(name)
		m, _ := before.Slot(name)
		b, _ := after.Slot(name)
		if st.slots == 0 && b.Generation != a.Generation {
			wrong("%s changed the generation of %s from %s to %s", st.op, name, a.Generation, b.Generation)
		}
		done := replied || st.links != "" && owners == st.links
		if st.op == "release" {
			done = false // it has no ID: what is held is held once more, under a new generation
		}
		if done && b.Generation != m.Generation {
			wrong("once: %s was done; repeated, %s went from generation %s to %s", st.op, name, m.Generation, b.Generation)
		}
	}
	return nil
}

// progressOf is how far a step had come.
func progressOf(base, now control.State, slots []string, st step) progress {
	p := progress{of: st.slots}
	a, _ := base.Chip("store")
	b, _ := now.Chip("store")
	p.intent = b.PageWrites != a.PageWrites
	for _, name := range slots {
		a, _ := base.Chip(name)
		b, _ := now.Chip(name)
		if b.PageWrites != a.PageWrites {
			p.blocks++
		}
		if l, _ := now.Slot(name); st.links != "" && l.Reacher != st.links {
			p.links = true
		}
	}
	return p
}

// early tells of a slot that is linked with its new server while another of the
// set, which was looked at later, does not run with its new config block.
func early(now control.State, slots []string, to string, base control.State) string {
	if to == "" {
		return ""
	}
	linked := ""
	for _, name := range slots {
		l, _ := now.Slot(name)
		was, _ := base.Slot(name)
		if linked != "" && l.Generation == was.Generation {
			return fmt.Sprintf("%s is linked with %s, and %s still has generation %s", linked, to, name, was.Generation)
		}
		if linked == "" && was.Reacher != to && l.Reacher == to {
			linked = name
		}
	}
	return ""
}

// together tells which server has all of a VM's slots; "" = none has one.
func (s *stage) together(ctx context.Context, v *vmOf) (string, error) {
	now, err := s.hw.State(ctx)
	if err != nil {
		return "", err
	}
	var who []string
	for _, name := range v.slots {
		l, _ := now.Slot(name)
		who = append(who, l.Reacher)
	}
	if len(slices.Compact(slices.Clone(who))) != 1 {
		return "", fmt.Errorf("together: the slots of %s are with %q", v.name, strings.Join(who, ", "))
	}
	return who[0], nil
}
