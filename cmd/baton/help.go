package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"baton/ee"
	"baton/mgmt"
	"baton/mgmt/config"
)

var helpCommand = command{
	name: "help", args: "[COMMAND]", short: "this, or more about a command",
	nargs: [2]int{0, 1},
	run: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(_ context.Context, args []string) error { return t.help(args) }
	},
}

func (t *tool) help(args []string) error {
	if len(args) == 0 {
		t.say("baton passes an I/O enclosure's devices from one server to another.\n")
		for _, c := range commands {
			t.say("  baton %-9s %s", c.name, c.short)
		}
		t.say("\nFlags of all: --json answers in JSON; --socket PATH (or BATON_SOCKET) is the\nagent's, %s if left out. Flags may stand anywhere.", mgmt.DefaultSocket)
		t.say("Exit codes: 0 done, 1 refused or failed, 2 usage, 3 retry may help, 4 the\nagent can not be reached.")
		t.next("baton status", "baton help move")
		return nil
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		return &usageError{fmt.Sprintf("there is no command %q%s", args[0], nearest(args[0]))}
	}
	c := commands[i]
	t.say("usage: baton %s %s\n", c.name, c.args)
	t.say("%s", c.short)
	if c.about != "" {
		t.say("\n%s", c.about)
	}
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	c.run(t, fs)
	first := true
	fs.VisitAll(func(f *flag.Flag) {
		if first {
			t.say("")
		}
		first = false
		arg, text := flag.UnquoteUsage(f)
		if arg != "" {
			arg = " " + arg
		}
		fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("  --%-18s %s", f.Name+arg, text), 23))
	})
	return nil
}

var versionCommand = command{
	name: "version", short: "of baton and of the agent",
	run: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, _ []string) error {
			v := struct {
				Baton string `json:"baton"`
				Agent string `json:"agent,omitempty"`
			}{Baton: mgmt.Version}
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			if e, err := t.agent.Enclosure(ctx); err == nil {
				v.Agent = e.Agent
			}
			if t.json {
				return t.printJSON(v)
			}
			agent := v.Agent
			if agent == "" {
				agent = "not reached"
			}
			t.say("baton %s, agent %s", v.Baton, agent)
			return nil
		}
	},
}

var configCommand = command{
	name: "config", args: "check FILE", short: "say what is wrong with a configuration of batond",
	about: "Reports all that is wrong at once, each with its line and key. Nothing is\nopened.",
	nargs: [2]int{2, 2},
	run: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(_ context.Context, args []string) error {
			if args[0] != "check" {
				return &usageError{"usage: baton config check FILE"}
			}
			return t.checkConfig(args[1])
		}
	},
}

// checked answers config check.
type checked struct {
	OK     bool         `json:"ok"`
	Errors []checkError `json:"errors"`
}

type checkError struct {
	Line int    `json:"line"`
	Key  string `json:"key"`
	Text string `json:"text"`
}

func (t *tool) checkConfig(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	c, err := config.Parse(data, findProfile)
	var errs config.Errors
	if err != nil && !errors.As(err, &errs) {
		return err
	}
	if t.json {
		out := checked{OK: err == nil, Errors: []checkError{}}
		for _, e := range errs {
			out.Errors = append(out.Errors, checkError{e.Line, e.Key, e.Text})
		}
		if err := t.printJSON(out); err != nil {
			return err
		}
	} else if err == nil {
		t.say("%s: ok: enclosure %s, %s, %s, %s", file, c.Enclosure, count(len(c.Slots), "slot"), count(len(c.Hosts), "host"), count(len(c.VMs), "VM"))
	} else {
		for _, e := range errs {
			fmt.Fprintln(t.stderr, wrap(fmt.Sprintf("%s:%d: %s: %s", file, e.Line, orDash(e.Key), e.Text), 2))
		}
		t.complain(fmt.Sprintf("%s: %s", file, count(len(errs), "error")), "next", "docs/configuration.md has every key")
	}
	if err != nil {
		return &outcome{exitFailed}
	}
	return nil
}

func findProfile(name string) (config.Profile, error) {
	p, err := ee.LoadProfile(name)
	if err != nil {
		return config.Profile{}, err
	}
	return config.Profile{Registers: p.Caps.Has(ee.CapStatus), LinkControl: p.Caps.Has(ee.CapLinkControl), BlockOffset: p.BlockOffset}, nil
}
