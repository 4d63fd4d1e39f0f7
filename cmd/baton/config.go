package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"baton/cmd/baton/splice"
	"baton/ee"
	"baton/mgmt"
	"baton/mgmt/config"
)

var configShowCommand = command{
	name: "config show", args: "[--text]", short: "the configuration that is in force",
	about: "Shows its version, where it is kept, a network that is on trial, and the text.",
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		text := fs.Bool("text", false, "only the text, as it was given")
		return func(ctx context.Context, _ []string) error {
			c, err := t.agent.Config(ctx)
			if err != nil {
				return err
			}
			if t.json {
				return t.printJSON(c)
			}
			if *text { // byte by byte; valid JSON has no control characters
				_, err := io.WriteString(t.raw, c.Text)
				return err
			}
			t.say("%s", configWord(c))
			t.trial(c.Trial)
			t.say("")
			fmt.Fprintln(t.stdout, strings.TrimRight(c.Text, "\n"))
			return nil
		}
	},
}

// configWord is "version 3, kept in the store".
func configWord(c mgmt.Config) string {
	where := c.Where
	if where == "store" {
		where = "the store"
	}
	if c.Version == 0 {
		return "version 0, as the agent was started with it; changes are kept in " + where
	}
	return fmt.Sprintf("version %d, kept in %s", c.Version, where)
}

// trial says what happens to the controller's network unless somebody acts.
func (t *tool) trial(tr *mgmt.Trial) {
	if tr == nil {
		return
	}
	left := time.Duration(tr.LeftMS) * time.Millisecond
	t.line("ON TRIAL", fmt.Sprintf("network %s. In %s, at %s, it is %s again, unless it is confirmed.", tr.Network, age(tr.LeftMS), time.Now().Add(left).Format("15:04:05"), tr.Before))
}

var configCheckCommand = command{
	name: "config check", args: "FILE", short: "what is wrong with a configuration of batond",
	about: "Reports all that is wrong at once, each with its line and key. Nothing is\nopened, and no agent is needed.",
	nargs: [2]int{1, 1},
	run: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(_ context.Context, args []string) error { return t.checkConfig(args[0]) }
	},
}

// checked answers config check.
type checked struct {
	OK     bool               `json:"ok"`
	Errors []mgmt.ConfigError `json:"errors"`
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
	out := checked{OK: err == nil, Errors: []mgmt.ConfigError{}}
	for _, e := range errs {
		out.Errors = append(out.Errors, mgmt.ConfigError{Line: e.Line, Key: e.Key, Text: e.Text})
	}
	switch {
	case t.json:
		if err := t.printJSON(out); err != nil {
			return err
		}
	case out.OK:
		t.say("%s: ok: enclosure %s, %s, %s, %s", file, c.Enclosure, count(len(c.Slots), "slot"), count(len(c.Hosts), "host"), count(len(c.VMs), "VM"))
	default:
		t.configErrors(file, "", out.Errors)
		t.complain(fmt.Sprintf("%s: %s", file, count(len(errs), "error")), "next", "docs/configuration.md has every key")
	}
	if err != nil {
		return &outcome{exitFailed}
	}
	return nil
}

// configErrors prints what is wrong, and where text is given also the lines.
func (t *tool) configErrors(name, text string, errs []mgmt.ConfigError) {
	lines := strings.Split(text, "\n")
	for _, e := range errs {
		fmt.Fprintln(t.stderr, wrap(fmt.Sprintf("%s:%d: %s: %s", name, e.Line, orDash(e.Key), e.Text), 2))
		if text != "" && e.Line >= 1 && e.Line <= len(lines) {
			line := fmt.Sprintf("  %4d | %s", e.Line, strings.TrimSpace(lines[e.Line-1]))
			fmt.Fprintln(t.stderr, line[:min(len(line), width)])
		}
	}
}

func findProfile(name string) (config.Profile, error) {
	p, err := ee.LoadProfile(name)
	if err != nil {
		return config.Profile{}, err
	}
	return config.Profile{Registers: p.Caps.Has(ee.CapStatus), LinkControl: p.Caps.Has(ee.CapLinkControl), BlockOffset: p.BlockOffset}, nil
}

// change is a configuration that is to be put in force.
type change struct {
	name    string // of the text, for errors
	text    string
	show    bool   // a person has not seen the text: errors show its lines
	next    string // command that does it, after a dry run
	restart *bool  // nil = not said
	within  time.Duration
	dry     bool
	yes     bool
}

// flags of the commands that change the configuration.
func (c *change) flags(fs *flag.FlagSet) {
	fs.BoolFunc("restart", "start the agent again where that is needed, which touches no link; =false keeps the configuration for its next start", func(s string) error {
		b, err := strconv.ParseBool(s)
		c.restart = &b
		return err
	})
	fs.DurationVar(&c.within, "confirm-within", 0, "how long a changed network of the controller stands unless it is confirmed; 0 = 2m")
	fs.BoolVar(&c.dry, "dry-run", false, "only show what would change")
	fs.BoolVar(&c.yes, "yes", false, "do not ask before the controller's network is changed, or the agent started again")
}

var configSetCommand = command{
	name: "config set", args: "KEY VALUE [KEY VALUE]... [--delete KEY] [flags]", short: "change single values of the configuration",
	about: `KEY is a path; elements of lists go by name or number: vms[train1].policy,
hosts[server3].group, network.address. VALUE is JSON, or a bare word, which is a
string. What is not there yet is added:
  baton config set "hosts[server9]" '{"group": 109, "mac": "8c:df:9d:00:02:09"}'
The rest of the text stays as it was written. Nothing happens if the
configuration was changed by somebody else meanwhile.`,
	nargs: [2]int{0, 64},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		var c change
		var del []string
		c.flags(fs)
		fs.Func("delete", "remove this `KEY`; may be repeated", func(s string) error { del = append(del, s); return nil })
		return func(ctx context.Context, args []string) error {
			if len(args)%2 != 0 || len(args)+len(del) == 0 {
				return &usageError{"want KEY VALUE, in pairs, or --delete KEY"}
			}
			was, err := t.agent.Config(ctx)
			if err != nil {
				return err
			}
			text, err := edit([]byte(was.Text), args, del)
			if err != nil {
				return &usageError{err.Error()}
			}
			c.name, c.text, c.show, c.next = "configuration", string(text), true, "the same command without --dry-run"
			return t.change(ctx, was, c)
		}
	},
}

// edit sets the pairs of key and value, and deletes.
func edit(text []byte, pairs, del []string) ([]byte, error) {
	for i := 0; i+1 < len(pairs); i += 2 {
		v, err := splice.Value(pairs[i+1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pairs[i], err)
		}
		if text, err = splice.Set(text, pairs[i], v); err != nil {
			return nil, err
		}
	}
	for _, key := range del {
		var err error
		if text, err = splice.Delete(text, key); err != nil {
			return nil, err
		}
	}
	return text, nil
}

var configApplyCommand = command{
	name: "config apply", args: "FILE [--restart] [--confirm-within 2m] [--dry-run] [--yes]", short: "put a configuration in force",
	about: `Shows what differs, asks where it needs a start of the agent or changes the
controller's network, and applies it as a whole or not at all. A changed network
is put back by itself unless 'baton config confirm' is said in time.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		var c change
		c.flags(fs)
		return func(ctx context.Context, args []string) error {
			data, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			was, err := t.agent.Config(ctx)
			if err != nil {
				return err
			}
			c.name, c.text, c.next = args[0], string(data), "baton config apply "+args[0]
			return t.change(ctx, was, c)
		}
	},
}

// change asks what a configuration would change, then a person, then for it.
func (t *tool) change(ctx context.Context, was mgmt.Config, c change) error {
	r := mgmt.ConfigRequest{Text: c.text, Expect: &was.Version, DryRun: true, Restart: true, ConfirmMS: c.within.Milliseconds()}
	would, err := t.sendConfig(ctx, r, c)
	if err != nil {
		return err
	}
	if c.dry {
		if t.json {
			return t.printJSON(would)
		}
		t.changes(would)
		t.next(c.next)
		return nil
	}
	if !t.json {
		t.changes(would)
	}
	if len(would.Restart) > 0 && c.restart == nil {
		if err := t.confirm(ctx, c.yes, "the agent has to start again, which touches no link"); err != nil {
			return err
		}
	}
	if changesNetwork(would) {
		if err := t.confirm(ctx, c.yes, "the controller's network changes: connections over it end"); err != nil {
			return err
		}
	}
	mark := t.mark(ctx)
	r.DryRun, r.Restart = false, len(would.Restart) > 0 && (c.restart == nil || *c.restart)
	a, err := t.sendConfig(ctx, r, c)
	if err != nil {
		return err
	}
	if a.Restarting {
		if err := t.restarted(ctx, mark); err != nil {
			return err
		}
	}
	if t.json {
		return t.printJSON(a)
	}
	if len(a.Restart) > 0 && !a.Restarting {
		t.say("Configuration %d is kept. What needs a start of the agent is in force after its next one.", a.Version)
	} else {
		t.say("Configuration %d is in force.", a.Version)
	}
	t.trial(a.Trial)
	if a.Trial != nil {
		t.next("baton config confirm, when you can still reach the controller", "baton config revert, to have the old one back now")
		return nil
	}
	t.next("baton status")
	return nil
}

// sendConfig shows the errors of a configuration that is refused.
func (t *tool) sendConfig(ctx context.Context, r mgmt.ConfigRequest, c change) (a mgmt.ConfigApplied, err error) {
	what := "applying the configuration"
	if r.DryRun {
		what = "checking the configuration"
	}
	err = t.wait(ctx, what, func(ctx context.Context) (err error) {
		a, err = t.agent.ApplyConfig(ctx, r)
		return err
	})
	if p, ok := errors.AsType[*mgmt.Problem](err); ok && !t.json {
		text := ""
		if c.show {
			text = c.text
		}
		t.configErrors(c.name, text, p.Errors)
	}
	return a, err
}

// changesNetwork tells whether the controller's own network is another one.
func changesNetwork(a mgmt.ConfigApplied) bool {
	return a.Trial != nil || slices.ContainsFunc(a.Changes, func(c string) bool { return strings.HasPrefix(c, "network") })
}

func (t *tool) changes(a mgmt.ConfigApplied) {
	if len(a.Changes) == 0 {
		t.say("Nothing differs from configuration %d but how it is written.", a.Version)
		return
	}
	t.say("%s to configuration %d:", count(len(a.Changes), "change"), a.Version)
	t.bullets(a.Changes)
	switch {
	case slices.Equal(a.Restart, a.Changes):
		t.say("This needs a start of the agent.")
	case len(a.Restart) > 0:
		t.say("What needs a start of the agent:")
		t.bullets(a.Restart)
	}
	if changesNetwork(a) {
		t.say("A changed network is put back by itself, unless 'baton config confirm' is said in time.")
	}
}

var configConfirmCommand = command{
	name: "config confirm", short: "keep the controller's network that is on trial",
	run: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, _ []string) error {
			c, err := t.agent.ConfirmConfig(ctx)
			if err != nil {
				return err
			}
			if t.json {
				return t.printJSON(c)
			}
			t.say("The network stays: configuration %s.", configWord(c))
			return nil
		}
	},
}

var configRevertCommand = command{
	name: "config revert", short: "put the network before the trial back, now",
	run: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, _ []string) error {
			c, err := t.agent.RevertConfig(ctx)
			if err != nil {
				return err
			}
			if t.json {
				return t.printJSON(c)
			}
			t.say("The network is as before: configuration %s.", configWord(c))
			return nil
		}
	},
}
