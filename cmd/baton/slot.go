package main

import (
	"context"
	"flag"
	"fmt"

	"baton/mgmt"
)

var locateCommand = command{
	name: "slot locate", args: "SLOT [--off]", short: "blink the LED of a slot, to find it in the rack",
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		off := fs.Bool("off", false, "put it out")
		return func(ctx context.Context, args []string) error {
			if err := t.agent.Locate(ctx, args[0], !*off); err != nil {
				return err
			}
			if t.json {
				return t.done(ctx, nil, args[0], "")
			}
			if *off {
				t.say("%s: its LED is out.", args[0])
				return nil
			}
			t.say("%s: its LED is on.", args[0])
			t.next("baton slot locate " + args[0] + " --off")
			return nil
		}
	},
}

var adoptCommand = command{
	name: "slot adopt", args: "SLOT [--dry-run] [--yes]", short: "take a new engine, chip or card as the slot's",
	about: `After a part was replaced the agent leaves the slot alone until a person says
that the new part is meant. Shows the parts that the agent knew beside those it
finds, and what adopting them does; then asks.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		dry := fs.Bool("dry-run", false, "only show it")
		yes := fs.Bool("yes", false, "do not ask")
		return func(ctx context.Context, args []string) error {
			var a mgmt.Adoption
			err := t.wait(ctx, "reading "+args[0], func(ctx context.Context) (err error) {
				a, err = t.agent.AdoptionOf(ctx, args[0])
				return err
			})
			if err != nil {
				return err
			}
			if *dry || !a.Needed {
				if t.json {
					return t.printJSON(a)
				}
				t.adoption(a)
				if a.Needed {
					t.next("baton slot adopt " + a.Slot)
				}
				return nil
			}
			if !t.json {
				t.adoption(a)
			}
			if err := t.confirm(ctx, *yes, "the parts that were found become those of %s", a.Slot); err != nil {
				return err
			}
			err = t.wait(ctx, "adopting "+a.Slot, func(ctx context.Context) (err error) {
				a, err = t.agent.Adopt(ctx, a.Slot, a.Token)
				return err
			})
			if err != nil {
				return err
			}
			if t.json {
				return t.printJSON(a)
			}
			t.say("%s: adopted, generation %s.", a.Slot, counter(a.Generation))
			t.next("baton status "+a.Slot, "baton nvm check")
			return nil
		}
	},
}

// partWidth is that of a part in words.
const partWidth = 34

// adoption shows the old and the new parts side by side, and marks what
// differs.
func (t *tool) adoption(a mgmt.Adoption) {
	t.say("%s: generation %s", a.Slot, counter(a.Generation))
	t.say("  %-6s  %-*s  %s", "PART", partWidth, "KNOWN", "FOUND")
	for _, r := range [][3]string{
		{"engine", a.Old.Engine, a.New.Engine},
		{"device", a.Old.Device, a.New.Device},
		{"serial", a.Old.Serial, a.New.Serial},
		{"chip", a.Old.Chip, a.New.Chip},
		{"block", a.Old.Block, a.New.Block},
	} {
		mark, known, found := " ", orDash(r[1]), orDash(r[2])
		if a.Needed && r[1] != "" && r[2] != "" && r[1] != r[2] { // what was not known is any; of what is not there nothing changes
			mark = "*"
		}
		if max(len(known), len(found)) <= partWidth {
			fmt.Fprintf(t.stdout, "%s %-6s  %-*s  %s\n", mark, r[0], partWidth, known, found)
			continue
		}
		fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("%s %-6s  known: %s", mark, r[0], known), 17))
		fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("%10sfound: %s", "", found), 17))
	}
	if !a.Needed {
		t.say("These are the parts that the agent knows: there is nothing to adopt.")
		return
	}
	t.say("Adopting them:")
	t.bullets(a.Effect)
}

// bullets prints sentences.
func (t *tool) bullets(lines []string) {
	for _, l := range lines {
		fmt.Fprintln(t.stdout, wrap("  - "+l, 4))
	}
}

var powerCommand = command{
	name: "slot power", args: "SLOT on|off|cycle [--yes]", short: "switch the power of a device that is cut",
	about: `The slot must be free or held, and its cut confirmed. Off and cycle lose what
the device's memory holds; a power cycle also ends what a reset leaves behind.`,
	nargs: [2]int{2, 2},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		yes := fs.Bool("yes", false, "do not ask before memory is lost")
		return func(ctx context.Context, args []string) error {
			slot, state := args[0], args[1]
			if state != "on" && state != "off" && state != "cycle" {
				return &usageError{fmt.Sprintf("%q is none of on, off, cycle", state)}
			}
			s, err := t.agent.Slot(ctx, slot)
			if err != nil {
				return err
			}
			if state != "on" {
				if err := t.confirm(ctx, *yes, "%s (%s): the memory of the device is lost", slot, where(s)); err != nil {
					return err
				}
			}
			err = t.wait(ctx, "power "+state+" of "+slot, func(ctx context.Context) error {
				return t.agent.Power(ctx, slot, mgmt.PowerRequest{Generation: s.Generation, State: state})
			})
			return t.done(ctx, err, slot, powerWords[state])
		}
	},
}

var powerWords = map[string]string{"on": "power is on", "off": "power is off", "cycle": "power was off, and is on"}

var resetCommand = command{
	name: "slot reset", args: "SLOT [--yes]", short: "reset the device of a slot",
	about: `The engine resets the device, and its counter must be seen to move. What the
device's memory holds is lost. A VM whose guard swallows resets can ask for one
this way.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		yes := fs.Bool("yes", false, "do not ask before memory is lost")
		return func(ctx context.Context, args []string) error {
			s, err := t.agent.Slot(ctx, args[0])
			if err != nil {
				return err
			}
			if err := t.confirm(ctx, *yes, "%s (%s): the memory of the device is lost", s.Name, where(s)); err != nil {
				return err
			}
			err = t.wait(ctx, "resetting "+s.Name, func(ctx context.Context) error {
				return t.agent.Reset(ctx, s.Name, mgmt.ResetRequest{Generation: s.Generation})
			})
			return t.done(ctx, err, s.Name, "reset, seen by the engine's counter")
		}
	},
}
