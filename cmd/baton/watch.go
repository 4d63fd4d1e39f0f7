package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"baton/mgmt"
)

var watchCommand = command{
	name: "watch", args: "[--after ID] [--slot a,b] [--kind a,b] [-n N] [--for 1m]", short: "what happens, as it happens",
	about: `Shows the last few events, then each as it happens, until it is interrupted or
--for is over. It resumes by itself when the agent was restarted. What is older
than this run of the agent is in 'baton log'. With --json each event is one
line.`,
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		after := fs.String("after", "", "begin after the event with this `ID`, or number; 0 = with all that are kept")
		slots := fs.String("slot", "", "only events of these `slots`, as gpu0,gpu1")
		kinds := fs.String("kind", "", "only events of these `kinds`, as fence,fault")
		last := fs.Int("n", 10, "how many earlier `events` to begin with")
		length := fs.Duration("for", 0, "how long to go on; 0 = until interrupted")
		return func(ctx context.Context, _ []string) error {
			if *last < 0 || *length < 0 {
				return &usageError{"-n and --for can not be negative"}
			}
			if *length > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, *length)
				defer cancel()
			}
			f := filter{list(*slots), list(*kinds)}
			for _, k := range f.kinds { // one that is misspelt would be waited for
				if !slices.Contains(mgmt.EventKinds, k) {
					return &usageError{fmt.Sprintf("there is no kind of event %q; there are %s", k, strings.Join(mgmt.EventKinds, ", "))}
				}
			}
			for _, s := range f.slots { // a name that is misspelt would be waited for
				if _, err := t.agent.Slot(ctx, s); err != nil {
					return err
				}
			}
			if *after == "" {
				evs, err := t.agent.Events(ctx, "")
				if err != nil {
					return err
				}
				if n := len(evs.Events); n > 0 {
					*after = evs.Events[n-1].ID
				}
				shown := slices.DeleteFunc(evs.Events, func(e mgmt.Event) bool { return !f.wants(e) })
				for _, e := range shown[max(0, len(shown)-*last):] {
					if err := t.event(e); err != nil {
						return err
					}
				}
			}
			return t.follow(ctx, *after, f)
		}
	},
}

// filter picks events; what is empty picks all.
type filter struct{ slots, kinds []string }

func (f filter) wants(e mgmt.Event) bool {
	if e.Kind == mgmt.KindGap {
		return true // what is lost may have been of interest
	}
	return (len(f.slots) == 0 || slices.Contains(f.slots, e.Slot)) && (len(f.kinds) == 0 || slices.Contains(f.kinds, e.Kind))
}

// follow shows events until ctx ends. The first connection has to succeed;
// later ones are tried again.
func (t *tool) follow(ctx context.Context, after string, f filter) error {
	reached := after != "" && after != "0" // Events was answered, or the stream will say if not
	for {
		err := t.agent.Watch(ctx, after, func(e mgmt.Event) error {
			reached = true
			if e.ID != "" {
				after = e.ID
			}
			if !f.wants(e) {
				return nil
			}
			return t.event(e)
		})
		if ctx.Err() != nil {
			return nil
		}
		if !reached || !errors.As(err, new(*mgmt.UnreachableError)) {
			return err
		}
		if err := t.again(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// again waits until an agent answers, for as long as it takes.
func (t *tool) again(ctx context.Context) error {
	tell := func(text string) {
		if !t.json {
			fmt.Fprintln(t.stderr, "baton: "+text)
		}
	}
	tell("the agent went away; trying again")
	return t.wait(ctx, "waiting for the agent", func(ctx context.Context) error {
		for {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil
			}
			_, err := t.agent.Hosts(ctx)
			if err == nil {
				tell("the agent is back")
				return nil
			}
			if !errors.As(err, new(*mgmt.UnreachableError)) {
				return err
			}
		}
	})
}

func (t *tool) event(e mgmt.Event) error {
	if t.json {
		return json.NewEncoder(t.raw).Encode(e)
	}
	text := e.Text
	if e.By != "" {
		text += " (by " + e.By + ")"
	}
	when := clock(e.Time, e.UptimeMS)
	_, err := fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("%s  %-9s %s", when, e.Kind, text), len(when)+12))
	return err
}

// clockIsSet is the year of the first version: a BMC without a battery starts
// in 1970.
const clockIsSet = 2026

// clock is the time, or the uptime where the clock is not set.
func clock(at time.Time, uptimeMS int64) string {
	if at.Year() >= clockIsSet {
		return at.Local().Format("2006-01-02 15:04:05")
	}
	return fmt.Sprintf("%10.1f s", float64(uptimeMS)/1000)
}
