package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
)

// command is a verb, of one word or of a noun and a word: "move", "slot adopt".
type command struct {
	name  string
	args  string // after the name
	short string
	about string // lines of help
	run   func(t *tool, fs *flag.FlagSet) func(ctx context.Context, args []string) error
	nargs [2]int // least and most positional arguments
}

func (c command) usage() string { return strings.TrimSpace("baton " + c.name + " " + c.args) }

// group is what a person looks for together.
type group struct {
	title    string
	commands []command
}

// groups are in the order of help; commands are all of them. Both are filled
// by init: help refers to them.
var (
	groups   []group
	commands []command
)

func init() {
	groups = []group{
		{"Look", []command{statusCommand, checkCommand, watchCommand, logCommand, movesCommand, verdictCommand, reportCommand}},
		{"Move", []command{moveCommand, fenceCommand, unfenceCommand, drainCommand, attachCommand, releaseCommand}},
		{"By hand: parts, and what hosts do by themselves", []command{
			locateCommand, adoptCommand, powerCommand, resetCommand,
			armCommand, disarmCommand, ackCommand, aliveCommand,
		}},
		{"Configuration", []command{
			configShowCommand, configCheckCommand, configSetCommand, configApplyCommand, configConfirmCommand, configRevertCommand,
			backupCommand, restoreCommand,
		}},
		{"The controller's own image", []command{imageStatusCommand, imageInstallCommand, imageRollbackCommand}},
		{"When all else fails", []command{resolveCommand, nvmCheckCommand, nvmRepairCommand, nvmDumpCommand}},
		{"This tool", []command{consoleCommand, consolePasswordCommand, helpCommand, versionCommand}},
	}
	for _, g := range groups {
		commands = append(commands, g.commands...)
	}
}

// find takes the words of a command from the front of args. Its error is a
// usage error, or flag.ErrHelp where help on a noun is asked for.
func (t *tool) find(args []string) (command, []string, error) {
	word, rest := args[0], args[1:]
	plain, verb := lookup(word)
	if len(under(word)) == 0 {
		if !verb {
			return command{}, nil, &usageError{fmt.Sprintf("there is no command %q%s", word, nearest(word))}
		}
		return plain, rest, nil
	}
	t.verb = word
	after, err := t.common(rest)
	var c command
	found := false
	if err == nil && len(after) > 0 {
		c, found = lookup(word + " " + after[0])
	}
	switch {
	case found:
		return c, after[1:], nil
	case verb:
		return plain, rest, nil
	case err != nil:
		return command{}, nil, err
	case len(after) == 0:
		return command{}, nil, &usageError{fmt.Sprintf("baton %s: say what: %s", word, strings.Join(verbsUnder(word), ", "))}
	}
	name := word + " " + after[0]
	return command{}, nil, &usageError{fmt.Sprintf("there is no command %q%s", name, nearest(name))}
}

func lookup(name string) (command, bool) {
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == name })
	if i < 0 {
		return command{}, false
	}
	return commands[i], true
}

// under lists the commands of a noun.
func under(noun string) []command {
	var out []command
	for _, c := range commands {
		if strings.HasPrefix(c.name, noun+" ") {
			out = append(out, c)
		}
	}
	return out
}

func verbsUnder(noun string) []string {
	var out []string
	for _, c := range under(noun) {
		out = append(out, strings.TrimPrefix(c.name, noun+" "))
	}
	return out
}

// nearest suggests a command that is spelled alike, or whose last word it is:
// people type "adopt gpu0".
func nearest(name string) string {
	best, least := "", len(name)/2+1
	for _, c := range commands {
		d := distance(name, c.name)
		if _, last, ok := strings.Cut(c.name, " "); ok {
			d = min(d, distance(name, last))
		}
		if d < least {
			best, least = c.name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean 'baton %s'?", best)
}

// distance is how many letters have to be put in, left out, replaced or
// swapped with the next to make b of a.
func distance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := before
		before, row = row, make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(before[j]+cost, before[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], last[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
