package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"baton/mgmt"

	"golang.org/x/term"
)

// report tells why a command failed: what, how things are now, what to do.
func (t *tool) report(ctx context.Context, err error) {
	if errors.As(err, new(*outcome)) {
		return // told already
	}
	if t.json {
		t.reportJSON(err)
		return
	}
	var p *mgmt.Problem
	var u *mgmt.UnreachableError
	var use *usageError
	var gone *lost
	switch {
	case errors.As(err, &gone):
		t.complain(err.Error(), "next", fmt.Sprintf("the same command with --id %s: however often it is asked for, it is done once", gone.id))
	case errors.As(err, &p):
		t.complain(p.Error(), t.details(ctx, p)...)
	case errors.As(err, &u):
		t.complain(u.Error(), "next", fmt.Sprintf("is batond running, and are you allowed to open %s?", u.Socket))
	case errors.As(err, &use):
		t.complain(use.text, "next", strings.TrimSpace("baton help "+t.verb))
	default:
		t.complain(err.Error())
	}
}

// complain prints a headline and labelled lines below it.
func (t *tool) complain(headline string, labelled ...string) {
	fmt.Fprintln(t.stderr, wrap("baton: "+headline, 2))
	for i := 0; i+1 < len(labelled); i += 2 {
		if labelled[i+1] != "" {
			fmt.Fprintln(t.stderr, wrap(fmt.Sprintf("  %-6s %s", labelled[i]+":", labelled[i+1]), 9))
		}
	}
}

// details of a problem: now, state, next, code.
func (t *tool) details(ctx context.Context, p *mgmt.Problem) []string {
	finality := "final"
	if p.Retry {
		finality = "a retry may help"
	}
	return []string{
		"now", t.present(ctx, p.Slot),
		"state", p.State,
		"next", p.Next,
		"code", fmt.Sprintf("%s (%s; docs/errors.md)", p.Code, finality),
	}
}

// present says how a slot is now, "" if that can not be found out quickly.
func (t *tool) present(ctx context.Context, slot string) string {
	if slot == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := t.agent.Slot(ctx, slot)
	if err != nil {
		return ""
	}
	return where(s)
}

// where tells who has a slot.
func where(s mgmt.Slot) string {
	if s.Generation == "" && s.Host == "" && s.VM == "" {
		return "who has it is not known"
	}
	out := fmt.Sprintf("group %d (%s)", s.Group, orFree(s.Host))
	if s.Held {
		out = "held for " + s.VM
	} else if s.VM != "" {
		out += ", VM " + s.VM
	}
	return out + ", generation " + counter(s.Generation)
}

func orFree(host string) string {
	if host == "" {
		return "free"
	}
	return host
}

// reportJSON gives every failure as a problem document.
func (t *tool) reportJSON(err error) {
	var p *mgmt.Problem
	if !errors.As(err, &p) {
		code := "failed"
		switch exitCode(err) {
		case exitUsage:
			code = "usage"
		case exitUnreachable:
			code = "unreachable"
		}
		p = &mgmt.Problem{Title: "baton failed", Code: code, Detail: err.Error(), Retry: code == "unreachable"}
	}
	_ = t.printJSON(p) // where stdout is gone there is nobody to tell
}

// person is somebody who can be asked while a command runs.
type person interface {
	// ask reads a line after the question; echo says whether it is shown while
	// it is typed. No answer, an interrupt too, is an error.
	ask(ctx context.Context, question string, echo bool) (string, error)
}

// asks tells whether there is a person to ask.
func (t *tool) asks() bool {
	if t.person != nil {
		return true
	}
	f, ok := t.stdin.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// answer reads a line that a person types after the question. No answer, and
// an interrupt, is "".
func (t *tool) answer(ctx context.Context, question string) string {
	if t.person != nil {
		s, err := t.person.ask(ctx, string(printable([]byte(wrap(question, 0)))), true)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(s)
	}
	fmt.Fprint(t.stderr, wrap(question, 0))
	line := make(chan string, 1)
	go func() {
		s, _ := bufio.NewReader(t.stdin).ReadString('\n')
		line <- s
	}()
	select {
	case s := <-line:
		return strings.TrimSpace(s)
	case <-ctx.Done():
		fmt.Fprintln(t.stderr)
		return ""
	}
}

// unchanged ends a command that was not confirmed.
func (t *tool) unchanged() error {
	const text = "nothing was changed"
	if t.json {
		_ = t.printJSON(&mgmt.Problem{Title: "not confirmed", Code: "not-confirmed", Detail: text, State: text})
	} else {
		fmt.Fprintln(t.stderr, "baton: "+text)
	}
	return &outcome{exitFailed}
}

// confirm asks a person; a script says --yes beforehand.
func (t *tool) confirm(ctx context.Context, yes bool, format string, args ...any) error {
	if yes {
		return nil
	}
	question := fmt.Sprintf(format, args...)
	if !t.asks() {
		return &usageError{question + ": this has to be confirmed, and there is nobody to ask; say --yes"}
	}
	switch strings.ToLower(t.answer(ctx, question+". Go on? [y/N] ")) {
	case "y", "yes":
		return nil
	}
	return t.unchanged()
}

// retype has a person type a name, after the warnings: for what can not be
// taken back. A script says --yes and the name by --typed.
func (t *tool) retype(ctx context.Context, yes bool, typed, name string, warnings ...string) error {
	switch {
	case typed != "" && typed != name:
		return &usageError{fmt.Sprintf("--typed %s is not %s; nothing was changed", typed, name)}
	case typed != "" && yes:
		return nil
	case !t.asks():
		return &usageError{fmt.Sprintf("%s This wants the name typed, and there is nobody to ask; say --yes --typed NAME", strings.Join(warnings, " "))}
	}
	for _, w := range warnings {
		fmt.Fprintln(t.stderr, wrap(w, 0))
	}
	if t.answer(ctx, fmt.Sprintf("Type %s to go on: ", name)) != name {
		return t.unchanged()
	}
	return nil
}
