package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"

	"baton/mgmt"
)

var resolveCommand = command{
	name: "move resolve", args: "[MOVE] [--drop SLOT | --force-free SLOT] [--yes]", short: "let a blocked set go on without a slot",
	about: `Without a flag: which moves are blocked, by which slots, and what to type. MOVE
is needed where more than one is blocked.

--drop takes a slot out of the set: the others go on. The slot is then free,
its memory counts as lost, and nobody gets it before its cut was read back.

--force-free makes the records of one slot say free, whatever the hardware
does. It is for a slot that can not be reached at all: if its old host still
reaches the device, nothing will stop it. It wants the slot's name typed.`,
	nargs: [2]int{0, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		drop := fs.String("drop", "", "take these `slots` out of the set, as gpu0,gpu1")
		free := fs.String("force-free", "", "make the records of this `slot` say free")
		yes := fs.Bool("yes", false, "do not ask")
		typed := fs.String("typed", "", "with --yes where nobody can type: the `name` of the slot once more")
		return func(ctx context.Context, args []string) error {
			if *drop != "" && *free != "" {
				return &usageError{"--drop and --force-free are two different things: say one"}
			}
			e, err := t.agent.Enclosure(ctx)
			if err != nil {
				return err
			}
			if *free != "" {
				return t.forceFree(ctx, e, args, *free, *yes, *typed)
			}
			blocked := slices.DeleteFunc(slices.Clone(e.Moves), func(m mgmt.Move) bool { return m.State != "blocked" })
			if *drop == "" {
				if len(args) == 1 {
					m, err := t.agent.MoveByID(ctx, args[0])
					if err != nil {
						return err
					}
					blocked = []mgmt.Move{m}
				}
				return t.showBlocked(e, blocked)
			}
			m, err := t.theBlocked(ctx, args, blocked)
			if err != nil {
				return err
			}
			return t.dropSlots(ctx, e, m, list(*drop), *yes)
		}
	},
}

// theBlocked is the move that is meant.
func (t *tool) theBlocked(ctx context.Context, args []string, blocked []mgmt.Move) (mgmt.Move, error) {
	if len(args) == 1 {
		return t.agent.MoveByID(ctx, args[0])
	}
	switch len(blocked) {
	case 0:
		return mgmt.Move{}, &mgmt.Problem{Code: "wrong-state", Detail: "no move is blocked", State: "nothing was changed", Next: "baton status"}
	case 1:
		return blocked[0], nil
	}
	return mgmt.Move{}, &usageError{fmt.Sprintf("%d moves are blocked: say which; 'baton move resolve' lists them", len(blocked))}
}

func (t *tool) showBlocked(e mgmt.Enclosure, blocked []mgmt.Move) error {
	if t.json {
		return t.printJSON(mgmt.Moves{Moves: blocked})
	}
	var next []string
	inMove := map[string]bool{}
	for _, m := range blocked {
		fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("%s: %s (%s) %s -> %s is %s: %s", m.ID, m.VM, strings.Join(m.Slots, " "), orFree(m.From), orFree(m.To), m.State, orDash(m.Reason)), 2))
		id := ""
		if len(blocked) > 1 {
			id = m.ID + " "
		}
		set, said := blockedOf(e, m), len(next)
		for _, s := range e.Slots {
			if !slices.Contains(m.Slots, s.Name) {
				continue
			}
			inMove[s.Name] = true
			for _, w := range attention(s) {
				t.line("  "+s.Name, w)
			}
			if m.State == "blocked" && len(set) > 1 && slices.Contains(set, s.Name) && s.Problem != "" {
				next = append(next, fmt.Sprintf("baton move resolve %s--drop %s", id, s.Name))
			}
		}
		switch {
		case m.State != "blocked":
		case len(set) == 1: // a whole set can not be dropped
			next = append(next, "baton move resolve --force-free "+set[0])
		case len(next) == said:
			next = append(next, fmt.Sprintf("baton move resolve %s--drop SLOT", id))
		}
	}
	for _, s := range e.Slots {
		if s.Blocked != "" && !inMove[s.Name] {
			t.line(s.Name, "blocked: "+s.Blocked)
			if !silent(s) {
				next = append(next, "baton slot adopt "+s.Name)
			}
			next = append(next, "baton move resolve --force-free "+s.Name)
		}
	}
	if len(blocked) == 0 && len(next) == 0 {
		t.say("Nothing is blocked.")
		return nil
	}
	t.say("The agent keeps trying. Where the cause can be mended, mend it and wait.")
	t.next(next...)
	return nil
}

// blockedOf are the slots of a move that are still in its blocked set: some may
// have been dropped from it.
func blockedOf(e mgmt.Enclosure, m mgmt.Move) []string {
	var out []string
	for _, s := range e.Slots {
		if slices.Contains(m.Slots, s.Name) && s.Blocked != "" {
			out = append(out, s.Name)
		}
	}
	return out
}

func (t *tool) dropSlots(ctx context.Context, e mgmt.Enclosure, m mgmt.Move, drop []string, yes bool) error {
	stay := slices.DeleteFunc(blockedOf(e, m), func(s string) bool { return slices.Contains(drop, s) })
	rest := "nothing is left of the set"
	if len(stay) > 0 {
		rest = strings.Join(stay, " ") + " go on"
	}
	if err := t.confirm(ctx, yes, "%s leaves the set of %s: its memory counts as lost, and nobody gets it before its cut was read back; %s", strings.Join(drop, " "), m.VM, rest); err != nil {
		return err
	}
	err := t.wait(ctx, "resolving", func(ctx context.Context) (err error) {
		m, err = t.agent.Resolve(ctx, m.ID, mgmt.ResolveRequest{Drop: drop})
		return err
	})
	if err != nil {
		return err
	}
	if t.json {
		if err := t.printJSON(m); err != nil {
			return err
		}
		return moveOutcome(m)
	}
	t.say("%s: without %s", m.VM, strings.Join(drop, " "))
	// A move names all slots that it had; what is said now is of those that stayed.
	m.Slots = slices.DeleteFunc(slices.Clone(m.Slots), func(s string) bool { return !slices.Contains(stay, s) })
	t.steps(m, 0)
	return t.moveEnd(m)
}

func (t *tool) forceFree(ctx context.Context, e mgmt.Enclosure, args []string, slot string, yes bool, typed string) error {
	i := slices.IndexFunc(e.Slots, func(s mgmt.Slot) bool { return s.Name == slot })
	if i < 0 {
		_, err := t.agent.Slot(ctx, slot) // says which there are
		return err
	}
	if len(args) == 1 {
		m, err := t.agent.MoveByID(ctx, args[0])
		if err != nil {
			return err
		}
		if !slices.Contains(m.Slots, slot) {
			return &usageError{fmt.Sprintf("%s is not in the set of move %s", slot, m.ID)}
		}
	}
	s := e.Slots[i]
	danger := fmt.Sprintf("BREAK GLASS: the records of %s will say free, whatever the hardware does.", slot)
	now := fmt.Sprintf("Now: %s.", where(s))
	if s.Cut == "confirmed" {
		now += " Its cut is confirmed."
	} else {
		now += " Its cut is NOT confirmed: a host that still reaches the device goes on using it. Make sure by other means that none does: power off that host, or pull the card."
	}
	if err := t.retype(ctx, yes, typed, slot, danger, now); err != nil {
		return err
	}
	err := t.wait(ctx, "freeing "+slot, func(ctx context.Context) error { return t.agent.ForceFree(ctx, slot, slot) })
	if err := t.done(ctx, err, slot, "its records say free"); err != nil || t.json {
		return err
	}
	t.say("Nobody gets it before its cut was read back.")
	t.next("baton status " + slot)
	return nil
}
