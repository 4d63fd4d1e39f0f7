package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"baton/mgmt"
)

// complete is what Tab does: it adds what is certain, and shows what there is
// to choose from where nothing is.
func (c *session) complete(line string, pos int, show func(string)) (string, int, bool) {
	if pos != len(line) {
		return line, pos, true // in the middle of a line nothing is guessed
	}
	cut := strings.LastIndexByte(line, ' ') + 1
	head, last := line[:cut], line[cut:]
	words := strings.Fields(head)
	if len(words) > 0 && words[0] == "baton" {
		words = words[1:]
	}
	var fits []string
	for _, w := range candidates(words, last, c.names.get) {
		if strings.HasPrefix(w, last) {
			fits = append(fits, w)
		}
	}
	slices.Sort(fits)
	fits = slices.Compact(fits)
	switch len(fits) {
	case 0:
		return line, pos, true
	case 1:
		line = head + fits[0]
		if !strings.HasSuffix(fits[0], ",") {
			line += " "
		}
		return line, len(line), true
	}
	if more := common(fits); len(more) > len(last) {
		line = head + more
		return line, len(line), true
	}
	show(choices(fits))
	return line, pos, true
}

// choices are laid out as one paragraph, of few lines.
func choices(words []string) string {
	const most = 60
	text := strings.Join(words[:min(len(words), most)], "  ")
	if len(words) > most {
		text += fmt.Sprintf("  and %d more", len(words)-most)
	}
	return string(printable([]byte(wrap(text, 0)))) + "\n"
}

// common is what all words begin with.
func common(words []string) string {
	p := words[0]
	for _, w := range words[1:] {
		for !strings.HasPrefix(w, p) {
			p = p[:len(p)-1]
		}
	}
	return p
}

// here are the words that only the console has.
var here = []string{"exit", "lock", "shell"}

// candidates are the words that can follow those before the cursor. known asks
// for names, and is called only where they matter.
func candidates(before []string, last string, known func() known) []string {
	if len(before) == 0 {
		out := slices.Clone(here)
		for _, c := range commands {
			word, _, _ := strings.Cut(c.name, " ")
			if c.name != consoleName {
				out = append(out, word)
			}
		}
		return out
	}
	if before[0] == "help" {
		return helpWords(before[1:])
	}
	var c command
	rest := before
	if len(before) > 1 {
		c, _ = lookup(before[0] + " " + before[1])
		rest = before[2:]
	}
	if c.name == "" {
		c, _ = lookup(before[0])
		rest = before[1:]
	}
	var out []string
	if len(before) == 1 {
		out = verbsUnder(before[0])
	}
	if c.name == "" {
		return out
	}
	fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
	c.run(&tool{}, fs)
	if len(rest) > 0 && strings.HasPrefix(rest[len(rest)-1], "-") {
		f := fs.Lookup(strings.TrimLeft(rest[len(rest)-1], "-"))
		if f != nil && !isBool(f) {
			kind, _ := flag.UnquoteUsage(f)
			return ofKind(kind, last, known)
		}
	}
	if strings.HasPrefix(last, "-") {
		fs.VisitAll(func(f *flag.Flag) {
			dashes := "--"
			if len(f.Name) == 1 {
				dashes = "-"
			}
			out = append(out, dashes+f.Name)
		})
		return append(out, "--json", "--help")
	}
	if kind := argument(c, positional(fs, rest)); kind != "" {
		out = append(out, ofKind(kind, last, known)...)
	}
	return out
}

func helpWords(before []string) (out []string) {
	for _, c := range commands {
		f := strings.Fields(c.name)
		if len(before) == 0 {
			out = append(out, f[0])
		} else if len(f) > 1 && len(before) == 1 && f[0] == before[0] {
			out = append(out, f[1])
		}
	}
	return out
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// positional counts the words that are neither flags nor their values.
func positional(fs *flag.FlagSet, words []string) (n int) {
	for i := 0; i < len(words); i++ {
		if !strings.HasPrefix(words[i], "-") {
			n++
			continue
		}
		name, _, has := strings.Cut(strings.TrimLeft(words[i], "-"), "=")
		if f := fs.Lookup(name); f != nil && !has && !isBool(f) {
			i++
		}
	}
	return n
}

// argument is what the synopsis of c calls its nth argument; "" = it has none.
func argument(c command, n int) string {
	if n >= c.nargs[1] {
		return ""
	}
	args := c.args
	for cut := range strings.SplitSeq(args, "[--") { // flags are no arguments
		args = cut
		break
	}
	words := strings.Fields(strings.NewReplacer("[", " ", "]", " ").Replace(args))
	if len(words) == 0 || strings.HasPrefix(words[min(n, len(words)-1)], "-") {
		return ""
	}
	return words[min(n, len(words)-1)]
}

// known are names that the agent has.
type known struct{ slots, hosts, vms []string }

// ofKind are the names of a kind; where several may be given, with commas
// between, those that are not there yet.
func ofKind(kind, last string, ask func() known) (out []string) {
	switch strings.ToLower(kind) {
	case "slot":
		return ask().slots
	case "slots":
		done := ""
		if i := strings.LastIndexByte(last, ','); i >= 0 {
			done = last[:i+1]
		}
		for _, s := range ask().slots {
			if !slices.Contains(strings.Split(done, ","), s) {
				out = append(out, done+s)
			}
		}
		return out
	case "host":
		return ask().hosts
	case "vm":
		return ask().vms
	case "name":
		k := ask()
		return slices.Concat(k.slots, k.hosts, k.vms)
	case "kinds":
		return mgmt.EventKinds
	case "command":
		return helpWords(nil)
	case "generation":
		for _, s := range ask().slots {
			out = append(out, s+"=")
		}
		return out
	}
	if strings.Contains(kind, "|") { // "on|off|cycle", "store|SLOT"
		for w := range strings.SplitSeq(kind, "|") {
			if w == strings.ToLower(w) {
				out = append(out, w)
			} else {
				out = append(out, ofKind(w, last, ask)...)
			}
		}
	}
	return out
}

// Bounds of asking for names: Tab must not wait.
const (
	namesLimit = 500 * time.Millisecond
	namesAge   = 5 * time.Second
)

// names asks the agent for names, and remembers them for a while. An agent that
// does not answer has none.
type names struct {
	agent *mgmt.Client
	last  known
	at    time.Time
}

func (n *names) forget() { n.at = time.Time{} }

func (n *names) get() known {
	if !n.at.IsZero() && time.Since(n.at) < namesAge {
		return n.last
	}
	n.last, n.at = known{}, time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), namesLimit)
	defer cancel()
	e, err := n.agent.Enclosure(ctx)
	if err != nil {
		return n.last
	}
	for _, s := range e.Slots {
		n.last.slots = append(n.last.slots, s.Name)
	}
	for _, h := range e.Hosts {
		n.last.hosts = append(n.last.hosts, h.Name)
	}
	for _, v := range e.VMs {
		n.last.vms = append(n.last.vms, v.Name)
	}
	return n.last
}
