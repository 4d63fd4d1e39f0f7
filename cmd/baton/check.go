package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"baton/mgmt"
)

var checkCommand = command{
	name: "check", args: "[--config FILE]", short: "look at everything: ok, warn or FAIL, with what to do",
	about: `Has the agent look at buses, engines, EEPROMs, store, VLANs, hosts, socket and
clock, and looks itself at what the controller's init says: watchdog, image,
modules. Nothing is changed, and nothing has to wait for it. What is wrong
stands last.

Where no agent answers, it says why as far as that can be seen from here: is a
process there, is its configuration valid, are its devices there, what has it
logged. Exit code 1 says that something fails, 4 that no agent answers.`,
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		file := fs.String("config", configFile, "configuration `file` of the agent, for where none answers")
		return func(ctx context.Context, _ []string) error {
			c, err := t.checkAll(ctx, newLocal(*file))
			if err != nil && !errors.As(err, new(*mgmt.UnreachableError)) {
				return err
			}
			if t.json {
				if err := t.printJSON(c); err != nil {
					return err
				}
				return c.outcome()
			}
			t.checkup(c)
			if err != nil {
				return err // it says so on stderr, with its exit code
			}
			return c.outcome()
		}
	},
}

// checkup answers check.
type checkup struct {
	Agent string           `json:"agent"` // reached, unreachable
	Error string           `json:"error,omitempty"`
	Lines []mgmt.CheckLine `json:"lines"`
	OK    int              `json:"ok"`
	Warn  int              `json:"warn"`
	Fail  int              `json:"fail"`
}

func (c checkup) outcome() error {
	switch {
	case c.Agent == "unreachable":
		return &outcome{exitUnreachable}
	case c.Fail > 0:
		return &outcome{exitFailed}
	}
	return nil
}

// checkAll asks the agent, and looks here. Where no agent answers there are
// lines all the same, beside the error.
func (t *tool) checkAll(ctx context.Context, l local) (checkup, error) {
	c := checkup{Agent: "reached", Lines: []mgmt.CheckLine{}}
	var answer mgmt.Check
	err := t.wait(ctx, "looking at everything", func(ctx context.Context) error {
		err := t.hello(ctx)
		if err == nil {
			answer, err = t.agent.Check(ctx)
		}
		return err
	})
	var gone *mgmt.UnreachableError
	switch {
	case errors.As(err, &gone):
		c.Agent, c.Error = "unreachable", err.Error()
		c.Lines = append(c.Lines, l.absent(t.socket)...)
	case err != nil:
		return c, err
	}
	c.Lines = append(append(c.Lines, answer.Lines...), l.init()...)
	for i := range c.Lines {
		switch c.Lines[i].Level {
		case mgmt.CheckOK:
			c.OK++
		case mgmt.CheckFail:
			c.Fail++
		default:
			c.Warn++ // also what a newer agent may call otherwise
		}
	}
	slices.SortStableFunc(c.Lines, func(a, b mgmt.CheckLine) int { return gravity(a.Level) - gravity(b.Level) })
	return c, err
}

// helloLimit is how long an agent may take for what needs no hardware: one that
// is stuck is not to keep anybody from looking by himself.
var helloLimit = 10 * time.Second

// hello asks something small, to see whether an agent answers at all.
func (t *tool) hello(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, helloLimit)
	defer cancel()
	_, err := t.agent.Hosts(ctx)
	return err
}

// gravity orders lines: on a terminal of 24 lines what is wrong must not scroll
// away.
func gravity(level string) int {
	switch level {
	case mgmt.CheckOK:
		return 0
	case mgmt.CheckFail:
		return 2
	}
	return 1
}

func (t *tool) checkup(c checkup) {
	for _, l := range c.Lines {
		word := l.Level
		if word == mgmt.CheckFail {
			word = "FAIL"
		}
		text := strings.TrimPrefix(l.Text, l.Subject+": ")
		fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("%-4s  %s %s: %s", word, l.Area, l.Subject, text), 6))
		if l.Next != "" {
			fmt.Fprintln(t.stdout, wrap("      next: "+l.Next, 12))
		}
	}
	t.say("%d ok, %d warn, %d fail.", c.OK, c.Warn, c.Fail)
	switch {
	case c.Fail > 0:
		t.next("baton report  # all of it, to paste into a ticket")
	case c.Warn == 0:
		t.next("baton status")
	}
}
