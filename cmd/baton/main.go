// Command baton is the tool for people and hosts: it asks the agent of an I/O
// enclosure (docs/cli.md).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"baton/mgmt"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(exitCode(err))
}

// Exit codes (docs/cli.md).
const (
	exitDone        = 0
	exitFailed      = 1 // refused or failed
	exitUsage       = 2
	exitRetry       = 3 // it may succeed later
	exitUnreachable = 4
)

// usageError is a command line that makes no sense.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// outcome is something that was reported already and was not done.
type outcome struct{ code int }

func (o *outcome) Error() string { return fmt.Sprintf("exit code %d", o.code) }

func exitCode(err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return exitDone
	}
	if o, ok := errors.AsType[*outcome](err); ok {
		return o.code
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	if p, ok := errors.AsType[*mgmt.Problem](err); ok && p.Retry {
		return exitRetry
	}
	if _, ok := errors.AsType[*mgmt.UnreachableError](err); ok {
		return exitUnreachable
	}
	return exitFailed
}

// tool is one run of baton.
type tool struct {
	stdin  io.Reader
	stdout io.Writer // of text: printable ASCII only
	raw    io.Writer // of JSON
	stderr io.Writer
	agent  *mgmt.Client
	verb   string // that was recognised

	// Flags that every command has.
	json   bool
	socket string
}

// command is a verb.
type command struct {
	name  string
	args  string // after the name
	short string
	about string // lines of help
	run   func(t *tool, fs *flag.FlagSet) func(ctx context.Context, args []string) error
	nargs [2]int // least and most positional arguments
}

// commands in the order of help. It is filled by init: help refers to it.
var commands []command

func init() {
	commands = []command{
		statusCommand, moveCommand, movesCommand, fenceCommand, unfenceCommand,
		verdictCommand, attachCommand, armCommand, disarmCommand, ackCommand, aliveCommand, releaseCommand,
		eventsCommand, configCommand, versionCommand, helpCommand,
	}
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	t := &tool{stdin: stdin, stdout: ascii{stdout}, raw: stdout, stderr: ascii{stderr}, socket: os.Getenv("BATON_SOCKET")}
	if t.socket == "" {
		t.socket = mgmt.DefaultSocket
	}
	err := t.dispatch(ctx, args)
	if t.agent != nil {
		t.agent.Close()
	}
	if err != nil {
		t.report(ctx, err)
	}
	return err
}

func (t *tool) dispatch(ctx context.Context, args []string) error {
	// Common flags may stand before the verb.
	global := t.flags("baton")
	if err := global.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return t.help(nil)
		}
		return &usageError{err.Error()}
	}
	verb, rest := "status", global.Args()
	if len(rest) > 0 {
		verb, rest = rest[0], rest[1:]
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == verb })
	if i < 0 {
		return &usageError{fmt.Sprintf("there is no command %q%s", verb, nearest(verb))}
	}
	c := commands[i]
	t.verb = c.name
	fs := t.flags("baton " + c.name)
	do := c.run(t, fs)
	pos, err := interspersed(fs, rest)
	if errors.Is(err, flag.ErrHelp) {
		return t.help([]string{c.name})
	}
	if err != nil {
		return &usageError{err.Error()}
	}
	if len(pos) < c.nargs[0] || len(pos) > c.nargs[1] {
		return &usageError{fmt.Sprintf("usage: baton %s %s", c.name, c.args)}
	}
	t.agent = mgmt.Dial(t.socket)
	return do(ctx, pos)
}

// flags returns a set with those that every command has.
func (t *tool) flags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // report says what is wrong
	fs.BoolVar(&t.json, "json", t.json, "answer in JSON")
	fs.StringVar(&t.socket, "socket", t.socket, "management `socket` of the agent")
	return fs
}

// interspersed parses flags wherever they stand; "--" ends them.
func interspersed(fs *flag.FlagSet, args []string) (pos []string, err error) {
	for {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		rest := fs.Args()
		if len(rest) == 0 {
			return pos, nil
		}
		if n := len(args) - len(rest); n > 0 && args[n-1] == "--" {
			return append(pos, rest...), nil
		}
		pos, args = append(pos, rest[0]), rest[1:]
	}
}

// nearest suggests a verb that begins alike.
func nearest(verb string) string {
	for n := len(verb); n > 0; n-- {
		for _, c := range commands {
			if strings.HasPrefix(c.name, verb[:n]) {
				return fmt.Sprintf("; did you mean 'baton %s'?", c.name)
			}
		}
	}
	return ""
}

// printJSON is the answer to every command with --json.
func (t *tool) printJSON(v any) error {
	e := json.NewEncoder(t.raw)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// say prints a line of text, wrapped.
func (t *tool) say(format string, args ...any) {
	fmt.Fprintln(t.stdout, wrap(fmt.Sprintf(format, args...), 0))
}
