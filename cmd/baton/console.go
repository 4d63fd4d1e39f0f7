package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"baton/mgmt"
	"baton/mgmt/config"
	"baton/mgmt/password"
)

var consoleCommand = command{
	name: consoleName, args: "[--run-dir DIR]", short: "a prompt for these commands, as on the serial console",
	about: `Reads commands, without 'baton' before them, and carries each out. An empty line
shows the status; the Tab key completes commands, flags, slots, hosts and VMs;
Ctrl-C ends the command that runs, 'exit' or Ctrl-D the session. Lines can be
edited where TERM says that the terminal moves its cursor; with TERM=dumb, or
from a pipe, they are read as they come.

Where the configuration has a password for the console, it is asked for at the
start and after the time without a key that is configured (docs/console.md).`,
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		dir := fs.String("run-dir", config.DefaultRunDir, "`directory` in which the agent leaves how the console is locked")
		return func(ctx context.Context, _ []string) error {
			if t.json {
				return &usageError{"a console has no JSON: each of its commands has"}
			}
			if t.person != nil {
				return &usageError{"this is the console already"}
			}
			// Ctrl-C is for the command that runs; the console has its own way out.
			ctx, stop := signal.NotifyContext(context.WithoutCancel(ctx), syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			ignored := make(chan os.Signal, 1)
			signal.Notify(ignored, os.Interrupt, syscall.SIGQUIT) // Ctrl-\ would end it, with a dump
			defer signal.Stop(ignored)
			in := newKeyboard(t.stdin, t.raw)
			c := &session{t: t, in: in, lock: lock{dir: *dir}, names: &names{agent: t.agent}}
			return c.run(ctx)
		}
	},
}

const consoleName = "console"

// prompt is what scripts wait for.
const prompt = "baton> "

// session is one console from its start to its end.
type session struct {
	t     *tool
	in    *keyboard
	lock  lock
	names *names
	shut  bool // the next line needs the password
}

// What a line can be beside one.
var (
	errIdle      = errors.New("no key for too long")
	errInterrupt = errors.New("interrupted")
)

func (c *session) run(ctx context.Context) error {
	if err := c.first(ctx); err != nil {
		return ended(err)
	}
	c.t.say("Baton console. Try: status, check, help; Tab completes, 'exit' ends.")
	for {
		if c.late() {
			c.say("Locked: no key for %s.", age(c.lock.after.Milliseconds()))
			c.shut = true
		}
		if c.shut {
			c.shut = false
			if err := c.unlock(ctx, mgmt.ConsoleLocked); err != nil {
				return ended(err)
			}
		}
		line, err := c.in.line(ctx, prompt, c.lock.idle(), c.complete)
		switch {
		case errors.Is(err, errIdle) || errors.Is(err, errInterrupt):
			continue
		case err != nil:
			return ended(err)
		}
		// The agent may have come only now, and with it a password.
		if c.in.tty && c.lock.learn() {
			c.say("This console has a password, which the agent tells only now.")
			if err := c.unlock(ctx, ""); err != nil {
				return ended(err)
			}
			continue
		}
		if end := c.do(ctx, line); end {
			return nil
		}
	}
}

// ended is how a session ends: that nobody types any more is no failure.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// late tells that nobody has touched a key for too long, be it while a command
// ran: one that goes on for ever does not keep the console open.
func (c *session) late() bool {
	idle := c.lock.idle()
	return idle > 0 && c.in.idle() >= idle
}

func (c *session) say(format string, args ...any) { c.t.say(format, args...) }

// do carries out a line; end tells that it was the last.
func (c *session) do(ctx context.Context, text string) (end bool) {
	words, err := split(text)
	if err != nil {
		next := "quote with ' or \", as a shell does"
		if errors.Is(err, errPipe) {
			next = "shell"
		}
		c.complain(err.Error(), next)
		return false
	}
	if len(words) > 0 && words[0] == "baton" { // as the suggestions have it
		words = words[1:]
	}
	word := ""
	if len(words) > 0 {
		word = words[0]
	}
	switch {
	case len(words) == 1 && (word == "exit" || word == "quit" || word == "logout"):
		return true
	case len(words) == 1 && word == "lock":
		c.lockNow()
	case len(words) == 1 && (word == "shell" || word == "sh"):
		c.shell(ctx)
	case len(words) == 1 && (word == "help" || word == "?"):
		c.help()
	default:
		c.verb(ctx, words)
	}
	return false
}

// complain says what was wrong with a line.
func (c *session) complain(what, next string) { c.t.complain(what, "next", next) }

// verb runs a command of the table, as it would run beside a shell's prompt. An interrupt ends
// it, and not the console.
func (c *session) verb(ctx context.Context, words []string) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	sub := newTool(c.t.stdin, c.t.raw, c.t.errs)
	sub.socket = c.t.socket
	if c.in.tty {
		sub.person = c
	}
	_ = sub.do(ctx, words) // it has said why it failed
	if ctx.Err() != nil && c.in.tty {
		fmt.Fprintln(c.t.stdout) // the terminal has shown ^C
	}
	c.names.forget() // it may have changed who is there
}

// ask is that of person: a command's question. It is open no longer than the
// console would be.
func (c *session) ask(ctx context.Context, question string, echo bool) (string, error) {
	if !echo {
		return c.in.secret(ctx, question, c.lock.idle())
	}
	return c.in.answer(ctx, question, c.lock.idle())
}

func (c *session) lockNow() {
	if c.in.tty {
		c.lock.learn()
	}
	if c.lock.encoded == "" {
		c.complain("there is no password, so nothing can be locked", "console password")
		return
	}
	c.shut = true
}

// help is short enough for 24 lines.
func (c *session) help() {
	for _, g := range groups {
		var all []string
		for _, cmd := range g.commands {
			if cmd.name != consoleName {
				all = append(all, strings.ReplaceAll(cmd.name, " ", "\x00")) // a name is not broken
			}
		}
		fmt.Fprintln(c.t.stdout, strings.ReplaceAll(wrap(g.title+": "+strings.Join(all, ", "), 2), "\x00", " "))
	}
	c.say("Here: an empty line is 'status'; lock, shell, exit. Tab completes, the arrow")
	c.say("keys bring lines back, Ctrl-C ends what runs. There are no pipes; 'shell' has.")
	c.say("'help move' tells more of one, and so does 'move --help'.")
}

// shells are tried in this order.
var shells = []string{"/bin/sh", "/bbin/gosh"}

// shell runs a shell in place of the console, until it ends. The console does
// not see its keys: one that keeps to it locks itself after the console's time.
func (c *session) shell(ctx context.Context) {
	for _, path := range shells {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, path)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGHUP) }
		cmd.WaitDelay = 2 * time.Second
		cmd.Stdin, cmd.Stdout, cmd.Stderr = c.t.stdin, c.t.raw, c.t.errs
		cmd.Env = os.Environ()
		if idle := c.lock.idle(); idle > 0 {
			cmd.Env = append(cmd.Env, fmt.Sprintf("TMOUT=%d", int(idle.Seconds())))
		}
		restore := c.in.keep()
		err := cmd.Run()
		restore()
		c.in.touch()
		if err != nil && !errors.As(err, new(*exec.ExitError)) {
			c.complain(err.Error(), "help")
		}
		return
	}
	c.complain("there is no shell here: looked for "+strings.Join(shells, ", "), "help")
}

// noteLimit bounds what is told to the agent: the console does not wait for it.
const noteLimit = time.Second

// note tells the agent, if it is there.
func (c *session) note(ctx context.Context, what string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteLimit)
	defer cancel()
	_ = c.t.agent.NoteConsole(ctx, what) // an agent that is gone keeps nobody out, or in
}

// Bounds of what follows a wrong password.
const (
	firstPause = time.Second
	mostPause  = 30 * time.Second
)

// first waits for the agent's word whether there is a password, and asks for it.
// Who drives the console by a pipe is there already: nobody is kept out.
func (c *session) first(ctx context.Context) error {
	if !c.in.tty {
		return nil
	}
	defer c.in.blind()() // it may be a password that is typed
	found, err := c.lock.first(ctx, sinceBoot(), newLocal("").agentEnds, func() {
		c.say("Waiting up to %v for the agent, which knows whether there is a password.", agentWait)
	})
	switch {
	case err != nil:
		return err
	case !found:
		c.say("No agent has started since power-up, so there is no password: this console is\nopen. Try: check")
	case c.lock.encoded != "":
		return c.unlock(ctx, "")
	}
	return nil
}

// unlock returns when the password was typed. Whoever ends the session gets a
// new one, which is locked as well.
//
// note is what the agent is told first; "" = nothing. What is typed meanwhile,
// and in the pauses, is not shown: it is a password, or nearly.
func (c *session) unlock(ctx context.Context, note string) error {
	defer c.in.blind()()
	if note != "" {
		c.note(ctx, note)
	}
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		typed, err := c.in.secret(ctx, "Password: ", 0)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errInterrupt) || errors.Is(err, io.EOF) && c.in.alive():
			pause /= 2
			if err := c.pause(ctx, firstPause/5); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		c.lock.learn() // it may be another one by now, or none
		if c.lock.encoded == "" {
			return nil
		}
		h, err := password.Parse(c.lock.encoded)
		if err == nil && h.Is(typed) {
			c.in.touch()
			c.note(ctx, mgmt.ConsoleUnlocked)
			return nil
		}
		c.note(ctx, mgmt.ConsoleRefused)
		if err := c.pause(ctx, pause); err != nil {
			return err
		}
		c.say("That is not the password.")
	}
}

func (c *session) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
