package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"baton/mgmt"
)

var fenceCommand = command{
	name: "fence", args: "HOST", short: "cut a host from all its slots, now",
	about: `Ends the host's use of this enclosure: nothing may be given to it, every slot
of its group is cut, and what its VMs had is held for them. It is done when
every cut is confirmed; where one is not, it fails and the agent keeps trying.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			var f mgmt.Fenced
			err := t.wait(ctx, "fencing "+args[0], func(ctx context.Context) (err error) {
				f, err = t.agent.Fence(ctx, args[0])
				return err
			})
			if err != nil {
				return err
			}
			if t.json {
				return t.printJSON(f)
			}
			what := "it had no slots"
			if len(f.Slots) > 0 {
				what = strings.Join(f.Slots, " ") + " cut, confirmed"
			}
			t.say("%s is fenced: %s.", f.Host, what)
			t.next(fmt.Sprintf("baton unfence %s --epoch %d  # once it is safe", f.Host, f.Epoch))
			return nil
		}
	},
}

var unfenceCommand = command{
	name: "unfence", args: "HOST [--epoch N] [--yes]", short: "let a fenced host take part again",
	about: `Lifts the fence with that epoch: if the host was fenced again since, nothing
happens. Without --epoch it is the fence that stands now.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		epoch := fs.Int64("epoch", -1, "`epoch` of the fence that is lifted")
		yes := fs.Bool("yes", false, "do not ask")
		return func(ctx context.Context, args []string) error {
			if *epoch < -1 || *epoch > 1<<32-1 {
				return &usageError{fmt.Sprintf("--epoch %d is no epoch", *epoch)}
			}
			h, err := t.agent.Host(ctx, args[0])
			if err != nil {
				return err
			}
			if *epoch >= 0 {
				h.Epoch = uint32(*epoch)
			}
			if err := t.confirm(ctx, *yes, "%s may be given slots again: it must not hold anything of before", h.Name); err != nil {
				return err
			}
			if err := t.agent.Unfence(ctx, h.Name, h.Epoch); err != nil {
				return err
			}
			if h, err = t.agent.Host(ctx, h.Name); err != nil {
				return err
			}
			if t.json {
				return t.printJSON(h)
			}
			t.say("%s is unfenced (epoch %d).", h.Name, h.Epoch)
			return nil
		}
	},
}
