package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"

	"baton/mgmt"
)

var logCommand = command{
	name: "log", args: "[NAME] [-n N]", short: "what was done and refused, also before the agent started",
	about: `Shows what the agent's store keeps, over power cuts, and then what this run of
the agent adds. NAME is a slot, host, VM or move, or who did it. The steps of
moves are in 'baton moves ID'. Times are the agent's run and its uptime where
the clock was not set: only those of one run compare.`,
	nargs: [2]int{0, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		n := fs.Int("n", 30, "only the newest `entries` of each list; 0 = all")
		return func(ctx context.Context, args []string) error {
			if *n < 0 {
				return &usageError{"-n can not be negative"}
			}
			name := ""
			if len(args) == 1 {
				name = args[0]
			}
			l, err := t.readLog(ctx, name)
			if err != nil {
				return err
			}
			left := l.newest(*n)
			if t.json {
				return t.printJSON(l)
			}
			t.log(l, left, name)
			return nil
		}
	},
}

// logged answers log.
type logged struct {
	Records []mgmt.AuditRecord `json:"records"` // of the store
	Lost    uint32             `json:"lost"`    // older ones that are no longer kept
	Gap     bool               `json:"gap"`     // events of this run before those are lost
	Events  []mgmt.Event       `json:"events"`  // of this run that are in no record
}

func (t *tool) readLog(ctx context.Context, name string) (logged, error) {
	a, err := t.agent.Audit(ctx)
	if err != nil {
		return logged{}, err
	}
	evs, err := t.agent.Events(ctx, "")
	if err != nil {
		return logged{}, err
	}
	l := logged{Records: []mgmt.AuditRecord{}, Lost: a.Lost, Gap: evs.Gap, Events: []mgmt.Event{}}
	for _, e := range evs.Events {
		recorded := slices.ContainsFunc(a.Records, func(r mgmt.AuditRecord) bool { return records(r, e) })
		if !recorded && e.Kind != "step" && about(name, e.Text, e.By, e.Slot, e.Host, e.VM, e.Move) {
			l.Events = append(l.Events, e)
		}
	}
	for _, r := range a.Records {
		if about(name, r.Text, r.By, append([]string{r.Host, r.VM, r.Move}, r.Slots...)...) {
			l.Records = append(l.Records, r)
		}
	}
	return l, nil
}

// records says that r is what the store keeps of e. A record's time is that of
// its event, perhaps in coarser units.
func records(r mgmt.AuditRecord, e mgmt.Event) bool {
	const unit = 1000 // ms
	apart := r.UptimeMS - e.UptimeMS
	return r.Kind == e.Kind && r.Code == e.Code && r.Move == e.Move && -unit < apart && apart < unit
}

// about says that an entry is about name; "" is everything.
func about(name, text, by string, names ...string) bool {
	if name == "" || by == name || slices.Contains(names, name) {
		return true
	}
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,;:()[]'\"", r) })
	return slices.Contains(words, name)
}

// newest leaves n entries of each list, and tells how many it dropped.
func (l *logged) newest(n int) (left int) {
	if n == 0 {
		return 0
	}
	r, e := max(0, len(l.Records)-n), max(0, len(l.Events)-n)
	l.Records, l.Events = l.Records[r:], l.Events[e:]
	return r + e
}

func (t *tool) log(l logged, left int, name string) {
	if l.Lost > 0 {
		t.say("%s: no longer kept.", count(int(l.Lost), "older record"))
	}
	if len(l.Records) > 0 {
		t.say("Kept in the store:")
	}
	for _, r := range l.Records {
		text := r.Text
		if who := r.Host; len(r.Slots) > 0 && !about(r.Slots[0], text, "") {
			text = strings.Join(r.Slots, " ") + ": " + text
		} else if who != "" && !about(who, text, "") {
			text = who + ": " + text
		}
		if r.Code != "" && !strings.Contains(text, r.Code) {
			text += " [" + r.Code + "]"
		}
		if r.Count > 1 {
			text += fmt.Sprintf(" (%d times)", r.Count)
		}
		when := clock(r.Time, r.UptimeMS)
		if r.Time.Year() < clockIsSet {
			when = fmt.Sprintf("run %d +%.1f s", r.Run, float64(r.UptimeMS)/1000)
		}
		t.entry(when, r.Kind, text, r.By)
	}
	if len(l.Events) > 0 {
		t.say("Beside those, since the agent started:")
	}
	for _, e := range l.Events {
		t.entry(strings.TrimLeft(clock(e.Time, e.UptimeMS), " "), e.Kind, e.Text, e.By)
	}
	if len(l.Records)+len(l.Events) == 0 {
		if name != "" {
			t.say("Nothing about %q.", name)
			t.next("baton log", "baton status")
			return
		}
		t.say("Nothing has been recorded.")
	}
	if left > 0 {
		t.say("%s left out.", count(left, "older entry"))
		t.next(strings.Join(strings.Fields("baton log "+name+" -n 0"), " "))
	}
}

func (t *tool) entry(when, kind, text, by string) {
	if by != "" {
		text += " (by " + by + ")"
	}
	fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("%-19s  %-8s %s", when, kind, text), 30))
}
