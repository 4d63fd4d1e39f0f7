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
	live   *live // what is said while something takes long
	agent  *mgmt.Client
	verb   string    // that was recognised
	person person    // who is asked; nil = whoever is at stdin, if that is a terminal
	errs   io.Writer // stderr as it was given

	// Flags that every command has.
	json   bool
	socket string
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	return newTool(stdin, stdout, stderr).do(ctx, args)
}

func newTool(stdin io.Reader, stdout, stderr io.Writer) *tool {
	l := newLive(stderr)
	t := &tool{stdin: stdin, stdout: ascii{stdout, l}, raw: stdout, stderr: ascii{stderr, l}, errs: stderr, live: l, socket: os.Getenv("BATON_SOCKET")}
	if t.socket == "" {
		t.socket = mgmt.DefaultSocket
	}
	return t
}

// do runs one command, and says why it failed.
func (t *tool) do(ctx context.Context, args []string) error {
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
	// Common flags may stand before the verb, and between its words.
	rest, err := t.common(args)
	if errors.Is(err, flag.ErrHelp) {
		return t.help(nil)
	}
	if err != nil {
		return err
	}
	if len(rest) == 0 {
		rest = []string{"status"}
	}
	c, rest, err := t.find(rest)
	if errors.Is(err, flag.ErrHelp) {
		return t.help([]string{t.verb})
	}
	if err != nil {
		return err
	}
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
		return &usageError{"usage: " + c.usage()}
	}
	t.agent = mgmt.Dial(t.socket)
	return do(ctx, pos)
}

// common parses the flags that all commands have, up to the next word.
func (t *tool) common(args []string) ([]string, error) {
	fs := t.flags("baton")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil, err
	} else if err != nil {
		return nil, &usageError{err.Error()}
	}
	return fs.Args(), nil
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
