package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"baton/mgmt"
)

var moveCommand = command{
	name: "move", args: "VM --to HOST [flags]", short: "pass a VM's slots to another host, together",
	about: `Moves all slots of the VM, or those of --slots, in one transaction: either all
of them are with the new host afterwards, or all are where they were. It does
not touch the VM; the new host must start it and acknowledge.

A move has an ID. If the agent's answer is lost, ask again with the same --id:
however often it is asked for, it has the effect of one.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		to := fs.String("to", "", "`host` to move to")
		slots := fs.String("slots", "", "only these `slots`, as gpu0,gpu1")
		var expect expectations
		fs.Var(&expect, "expect", "refuse unless a slot has this `generation`, as gpu0=17; may be repeated")
		wait := fs.Duration("wait", 0, "how long the new host's engine may take to appear; 0 = 5s")
		drop := fs.Bool("no-preserve", false, "do not keep the devices' memory: the agent resets them")
		id := fs.String("id", "", "`UUID` of the move, to repeat one")
		yes := fs.Bool("yes", false, "do not ask before memory is lost")
		return func(ctx context.Context, args []string) error {
			if *to == "" {
				return &usageError{"--to HOST is missing"}
			}
			e, err := t.agent.Enclosure(ctx)
			if err != nil {
				return err
			}
			r := mgmt.MoveRequest{ID: *id, VM: args[0], To: *to, Slots: list(*slots), Preserve: !*drop, WaitMS: wait.Milliseconds()}
			if r.Expect, err = expect.resolve(e); err != nil {
				return err
			}
			if *drop {
				if err := t.confirm(ctx, *yes, "the memory of the devices of %s is lost", r.VM); err != nil {
					return err
				}
			}
			if r.ID == "" {
				r.ID = newUUID()
			}
			return t.move(ctx, r)
		}
	},
}

// move asks for a move and shows its steps while it runs.
func (t *tool) move(ctx context.Context, r mgmt.MoveRequest) error {
	type answer struct {
		m   mgmt.Move
		err error
	}
	done := make(chan answer, 1)
	go func() {
		m, err := t.agent.Move(ctx, r)
		done <- answer{m, err}
	}()
	if !t.json {
		defer t.live.begin("moving " + r.VM)()
	}
	// Most moves are over before the first tick.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	shown := 0
	for {
		select {
		case <-tick.C:
			if m, err := t.agent.MoveByID(ctx, r.ID); err == nil && !t.json {
				shown = t.steps(m, shown)
			}
		case a := <-done:
			if errors.As(a.err, new(*mgmt.UnreachableError)) {
				return &lost{"move", r.ID, a.err}
			}
			if a.err != nil {
				return a.err
			}
			if t.json {
				if err := t.printJSON(a.m); err != nil {
					return err
				}
				return moveOutcome(a.m)
			}
			t.steps(a.m, shown)
			return t.moveEnd(a.m)
		}
	}
}

// lost is something with an ID whose answer did not come.
type lost struct {
	what string
	id   string
	err  error
}

func (l *lost) Error() string {
	return fmt.Sprintf("%v; the %s %s may have been done", l.err, l.what, l.id)
}

func (l *lost) Unwrap() error { return l.err }

// steps prints those from shown on, and before the first what is moved.
func (t *tool) steps(m mgmt.Move, shown int) int {
	for i := shown; i < len(m.Steps); i++ {
		if i == 0 {
			kept := "keeping memory"
			if !m.Preserve {
				kept = "not keeping memory"
			}
			t.say("%s: %s (%s) %s -> %s, %s", orDash(m.VM), count(len(m.Slots), "slot"), strings.Join(m.Slots, " "), orFree(m.From), orFree(m.To), kept)
		}
		s := m.Steps[i]
		fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("%7.1f ms  %-10s  %s", float64(s.AtUS)/1000, s.Name, s.Text), 24))
	}
	return max(shown, len(m.Steps))
}

// moveEnd says how a move ended, and what is to be done now.
func (t *tool) moveEnd(m mgmt.Move) error {
	switch {
	case m.State == "done" && m.To == "": // a release that had been blocked
		t.say("done: %s with nobody.", strings.Join(m.Slots, " "))
	case m.State == "done":
		took := ""
		if n := len(m.Steps); n > 0 {
			took = fmt.Sprintf(" in %.0f ms", float64(m.Steps[n-1].AtUS)/1000)
		}
		t.say("done%s. Memory preserved: %s. %s must now start %s and acknowledge.", took, memoryOf(m.Memory), m.To, m.VM)
	case m.State == "running":
		t.say("%s is still being moved.", m.VM)
		t.next("baton moves " + m.ID)
	default:
		what, state, next := moveWords(m)
		if m.Reason != "" { // an attach has none
			what += ": " + m.Reason
		}
		t.complain(m.VM+": "+what, "state", state, "next", next, "move", m.ID)
	}
	return moveOutcome(m)
}

// moveWords are for moves that were not done.
func moveWords(m mgmt.Move) (what, state, next string) {
	slots := strings.Join(m.Slots, " ")
	switch m.State {
	case "waiting":
		return "moved, but " + m.To + " does not answer", slots + ": links are on, and the engine of " + m.To + " has not appeared",
			"start " + m.To + "; or move back: baton move " + m.VM + " --to " + orAny(m.From)
	case "undone":
		return "the move was undone", slots + " as before: " + orFree(m.From) + ", generation " + counter(m.Generation), "mend the cause, then move again"
	case "held":
		return "the move was ended by a fence", slots + " cut, and held for " + m.VM, "baton attach " + m.VM + " --to HOST, one that is not fenced"
	case "blocked":
		return "the move is blocked", slots + " cut and held; the agent keeps trying", "mend the cause; baton status shows when it is over"
	}
	return "the move was refused", "nothing was changed", "baton status"
}

func orAny(host string) string {
	if host == "" {
		return "HOST"
	}
	return host
}

// moveOutcome is the exit code of a move.
func moveOutcome(m mgmt.Move) error {
	switch m.State {
	case "done":
		return nil
	case "waiting", "running":
		return &outcome{exitRetry}
	}
	return &outcome{exitFailed}
}

// memoryOf sums up the verdicts of a set: the worst one counts.
func memoryOf(verdicts map[string]mgmt.Verdict) string {
	if len(verdicts) == 0 {
		return "unknown"
	}
	for _, answer := range []string{"no", "unknown"} {
		for _, slot := range slices.Sorted(maps.Keys(verdicts)) {
			if v := verdicts[slot]; v.Preserved == answer {
				return fmt.Sprintf("%s (%s: %s)", answer, slot, v.Reason)
			}
		}
	}
	return "yes"
}

var movesCommand = command{
	name: "moves", args: "[ID]", short: "moves that are remembered, or one of them",
	about: "Lists moves, the oldest first; with ID, shows the steps of one.",
	nargs: [2]int{0, 1},
	run: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if len(args) == 1 {
				m, err := t.agent.MoveByID(ctx, args[0])
				if err != nil {
					return err
				}
				if t.json {
					return t.printJSON(m)
				}
				t.steps(m, 0)
				t.say("%s: %s %s -> %s: %s", m.ID, orDash(m.VM), orFree(m.From), orFree(m.To), m.State)
				t.line("reason", m.Reason)
				return nil
			}
			moves, err := t.agent.Moves(ctx)
			if err != nil {
				return err
			}
			if t.json {
				return t.printJSON(mgmt.Moves{Moves: moves})
			}
			if len(moves) == 0 {
				t.say("No moves are remembered.")
				return nil
			}
			rows := make([][]string, 0, len(moves))
			for _, m := range moves {
				rows = append(rows, []string{m.ID, orDash(m.VM), orFree(m.From), orFree(m.To), m.State})
			}
			fmt.Fprint(t.stdout, table([]column{{head: "ID"}, {head: "VM"}, {head: "FROM"}, {head: "TO"}, {head: "STATE"}}, rows))
			return nil
		}
	},
}

// expectations are those of --expect.
type expectations []string

// String is that of flag.Value.
func (e *expectations) String() string { return strings.Join(*e, ",") }

// Set takes one or more, as gpu0=17,gpu1=17.
func (e *expectations) Set(s string) error {
	for _, one := range list(s) {
		if slot, gen, ok := strings.Cut(one, "="); !ok || slot == "" || gen == "" {
			return fmt.Errorf("want SLOT=GENERATION, as gpu0=17")
		}
		*e = append(*e, one)
	}
	return nil
}

// resolve completes short generations with the slot's present incarnation.
func (e *expectations) resolve(enc mgmt.Enclosure) (map[string]string, error) {
	if len(*e) == 0 {
		return nil, nil
	}
	out := map[string]string{}
	for _, one := range *e {
		slot, gen, _ := strings.Cut(one, "=")
		if !strings.Contains(gen, "-") {
			i := slices.IndexFunc(enc.Slots, func(s mgmt.Slot) bool { return s.Name == slot })
			if i < 0 {
				return nil, &usageError{fmt.Sprintf("--expect %s: there is no slot %q", one, slot)}
			}
			inc, _, ok := strings.Cut(enc.Slots[i].Generation, "-")
			if !ok {
				return nil, &usageError{fmt.Sprintf("--expect %s: the generation of %s is not known", one, slot)}
			}
			gen = inc + "-" + gen
		}
		if was, twice := out[slot]; twice && was != gen {
			return nil, &usageError{fmt.Sprintf("--expect: %s is given twice", slot)}
		}
		out[slot] = gen
	}
	return out, nil
}

// list splits a,b,c.
func list(s string) []string {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// newUUID is a random one (RFC 9562 section 5.4).
func newUUID() string {
	var u [16]byte
	rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0F | 0x40
	u[8] = u[8]&0x3F | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
