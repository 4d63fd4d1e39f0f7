package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"baton/mgmt"
)

var helpCommand = command{
	name: "help", args: "[COMMAND]", short: "this, or more about a command",
	nargs: [2]int{0, 2},
	run: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(_ context.Context, args []string) error { return t.help(args) }
	},
}

// helped answers help with --json.
type helped struct {
	Command string `json:"command"`
	Group   string `json:"group"`
	Usage   string `json:"usage"`
	Short   string `json:"short"`
}

// help is about everything, a noun, or a command.
func (t *tool) help(args []string) error {
	name := strings.Join(args, " ")
	c, ok := lookup(name)
	if name != "" && !ok && len(under(name)) == 0 {
		return &usageError{fmt.Sprintf("there is no command %q%s", name, nearest(name))}
	}
	if t.json {
		out := []helped{}
		for _, g := range groups {
			for _, c := range g.commands {
				if name == "" || c.name == name || strings.HasPrefix(c.name, name+" ") {
					out = append(out, helped{c.name, g.title, c.usage(), c.short})
				}
			}
		}
		return t.printJSON(out)
	}
	switch {
	case name == "":
		t.overview()
	case !ok:
		t.say("baton %s:\n", name)
		for _, c := range under(name) {
			t.briefly(c)
		}
		t.next("baton help " + under(name)[0].name)
	default:
		t.explain(c)
	}
	return nil
}

func (t *tool) overview() {
	t.say("baton passes an I/O enclosure's devices from one server to another.")
	for _, g := range groups {
		t.say("\n%s", g.title)
		for _, c := range g.commands {
			t.briefly(c)
		}
	}
	t.say("\nFlags of all: --json answers in JSON; --socket PATH (or BATON_SOCKET) is the\nagent's, %s if left out. Flags may stand anywhere.", mgmt.DefaultSocket)
	t.say("Exit codes: 0 done, 1 refused or failed, 2 usage, 3 retry may help, 4 the\nagent can not be reached.")
	t.next("baton status", "baton help move")
}

// briefly is one line of a list of commands.
func (t *tool) briefly(c command) { t.say("  baton %-14s  %s", c.name, c.short) }

func (t *tool) explain(c command) {
	fmt.Fprintln(t.stdout, wrap("usage: "+c.usage(), 7)+"\n")
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
		dashes := "--"
		if len(f.Name) == 1 {
			dashes = " -"
		}
		fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("  %s%-18s %s", dashes, f.Name+arg, text), 23))
	})
	for _, sub := range under(c.name) {
		t.say("\nSee also: baton help %s", sub.name)
	}
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
