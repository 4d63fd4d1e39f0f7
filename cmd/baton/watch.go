package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"time"

	"baton/mgmt"
)

var eventsCommand = command{
	name: "events", args: "[--follow] [--after ID]", short: "what happened, and with --follow what happens",
	about: `Shows the events that the agent keeps, the oldest first. --follow goes on until
it is interrupted, and resumes by itself when the agent was restarted. With
--json each event is one line.`,
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		follow := fs.Bool("follow", false, "go on with what happens")
		after := fs.String("after", "", "only those after the event with this `ID`, or number")
		return func(ctx context.Context, _ []string) error {
			if *follow {
				return t.follow(ctx, *after)
			}
			evs, err := t.agent.Events(ctx, *after)
			if err != nil {
				return err
			}
			if evs.Gap {
				evs.Events = append([]mgmt.Event{{Kind: mgmt.KindGap, Text: "events before this are lost"}}, evs.Events...)
			}
			for _, e := range evs.Events {
				if err := t.event(e); err != nil {
					return err
				}
			}
			return nil
		}
	},
}

// follow shows events until ctx ends. The first connection has to succeed;
// later ones are tried again.
func (t *tool) follow(ctx context.Context, after string) error {
	reached := false
	for {
		err := t.agent.Watch(ctx, after, func(e mgmt.Event) error {
			reached = true
			if e.ID != "" {
				after = e.ID
			}
			return t.event(e)
		})
		if ctx.Err() != nil {
			return nil
		}
		if !reached || !errors.As(err, new(*mgmt.UnreachableError)) {
			return err
		}
		if !t.json {
			fmt.Fprintln(t.stderr, "baton: the agent went away; trying again")
		}
		for err != nil {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil
			}
			if _, err = t.agent.Hosts(ctx); err != nil && !errors.As(err, new(*mgmt.UnreachableError)) {
				return err
			}
		}
	}
}

func (t *tool) event(e mgmt.Event) error {
	if t.json {
		return json.NewEncoder(t.raw).Encode(e)
	}
	// Uptime where the clock is not set: a BMC starts in 1970.
	when := fmt.Sprintf("%10.1f s", float64(e.UptimeMS)/1000)
	if e.Time.Year() >= 2026 {
		when = e.Time.Local().Format("2006-01-02 15:04:05")
	}
	text := e.Text
	if e.By != "" {
		text += " (by " + e.By + ")"
	}
	line := fmt.Sprintf("%s  %-9s %s", when, e.Kind, text)
	_, err := fmt.Fprintln(t.stdout, wrap(line, len(when)+12))
	return err
}
