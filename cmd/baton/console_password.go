package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"strings"

	"baton/cmd/baton/splice"
	"baton/mgmt/password"
)

var consolePasswordCommand = command{
	name: "console password", args: "[--clear] [--yes]", short: "set or clear the password of the serial console",
	about: `Asks for the new password twice, and does not show it; not at a terminal, it is
the first line of stdin. What is kept, in the configuration, is a hash of it that
is slow to try. It is in force at once, and locks consoles that are open after
the time without a key that 'console.lock_after' says, 10m if nothing.

With --clear there is none any more: who is at the serial port may do anything.`,
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		clear := fs.Bool("clear", false, "take the password away")
		yes := fs.Bool("yes", false, "do not ask before the password is taken away")
		return func(ctx context.Context, _ []string) error {
			was, err := t.agent.Config(ctx)
			if err != nil {
				return err
			}
			encoded := ""
			if *clear {
				err = t.confirm(ctx, *yes, "whoever is at the serial port may do anything then")
			} else {
				encoded, err = t.newPassword(ctx)
			}
			if err != nil {
				return err
			}
			value, err := json.Marshal(encoded)
			if err != nil {
				return err
			}
			text, err := splice.Set([]byte(was.Text), "console.password", value)
			if err != nil {
				return err
			}
			c := change{name: "configuration", text: string(text), yes: true, next: "baton console password"}
			return t.change(ctx, was, c)
		}
	},
}

// newPassword has a person type a password twice, and returns it encoded.
func (t *tool) newPassword(ctx context.Context) (string, error) {
	first, err := t.hidden(ctx, "New password: ")
	if err != nil {
		return "", err
	}
	if err := password.Check(first); err != nil {
		return "", &usageError{err.Error() + "; nothing was changed"}
	}
	if t.asks() {
		again, err := t.hidden(ctx, "Once more: ")
		if err != nil {
			return "", err
		}
		if again != first {
			return "", &usageError{"the two are not the same; nothing was changed"}
		}
	}
	return password.New(first)
}

// errNoPassword is of somebody who did not go on.
var errNoPassword = &usageError{"no password was given; nothing was changed"}

// hidden reads a line that is not shown where it is typed.
func (t *tool) hidden(ctx context.Context, question string) (string, error) {
	p := t.person
	if p == nil && t.asks() {
		k := newKeyboard(t.stdin, t.errs)
		k.edit = false
		s, err := k.secret(ctx, question, 0)
		if err != nil {
			return "", errNoPassword
		}
		return s, nil
	}
	if p != nil {
		s, err := p.ask(ctx, question, false)
		if err != nil {
			return "", errNoPassword
		}
		return s, nil
	}
	s, err := bufio.NewReader(t.stdin).ReadString('\n')
	if err != nil && (s == "" || errors.Is(err, os.ErrClosed)) {
		return "", errNoPassword
	}
	return strings.TrimRight(s, "\r\n"), nil
}
