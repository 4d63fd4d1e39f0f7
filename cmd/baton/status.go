package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"

	"baton/mgmt"
)

var statusCommand = command{
	name: "status", args: "[SLOT]", short: "what there is, and what to do next (also without a verb)",
	about: "Shows enclosure, slots, hosts and what needs attention; with SLOT, all of\none slot.",
	nargs: [2]int{0, 1},
	run: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if len(args) == 1 {
				return t.slotStatus(ctx, args[0])
			}
			var e mgmt.Enclosure
			err := t.wait(ctx, asking, func(ctx context.Context) (err error) {
				e, err = t.agent.Enclosure(ctx)
				return err
			})
			if err != nil {
				return err
			}
			s := seen{Enclosure: e}
			// The trial of a network is the one thing that is not in it.
			if c, err := t.agent.Config(ctx); err == nil {
				s.Trial = c.Trial
			}
			s.Next = suggest(s)
			if t.json {
				return t.printJSON(s)
			}
			t.status(s)
			return nil
		}
	},
}

// seen answers status: the enclosure, and what is likely to be typed next.
type seen struct {
	mgmt.Enclosure
	Trial *mgmt.Trial `json:"trial,omitempty"`
	Next  []next      `json:"next"`
}

func (t *tool) status(e seen) {
	head := fmt.Sprintf("enclosure %s   agent %s up %s", e.Name, e.Agent, age(e.UptimeMS))
	if !e.ClockSet {
		head += "   clock not set (using uptime)"
	}
	if e.Simulated {
		head += "   SIMULATED"
	}
	t.say("%s", head)

	rows := make([][]string, 0, len(e.Slots))
	for _, s := range e.Slots {
		rows = append(rows, []string{s.Name, orDash(s.Device), fmt.Sprint(s.Group), hostWord(s), linkWord(s), orDash(s.VM), memoryWord(s)})
	}
	fmt.Fprint(t.stdout, table([]column{
		{head: "SLOT"}, {head: "DEVICE", least: 9}, {head: "GROUP", right: true}, {head: "HOST"}, {head: "LINK"}, {head: "VM"}, {head: "MEMORY"},
	}, rows))
	t.line("hosts", hostsWord(e.Hosts))
	if e.Store.OK {
		text := fmt.Sprintf("ok, %d pages free, %s since the agent started", e.Store.FreePages, count(int(e.Store.PageWrites), "page write"))
		if e.Store.Damaged > 0 {
			text += fmt.Sprintf(", %d pages were damaged", e.Store.Damaged)
		}
		t.line("store", text)
	} else {
		t.line("store", "NOT USABLE, so nothing can be changed: "+e.Store.Problem)
	}
	for _, s := range e.Slots {
		for _, w := range attention(s) {
			t.line(s.Name, w)
		}
	}
	for _, w := range e.Warnings {
		t.line("warning", w)
	}
	t.trial(e.Trial)
	for i, n := range e.Next {
		label := "Next: "
		if i > 0 {
			label = "      "
		}
		t.command(label, n)
	}
}

// command prints what is to be typed, with the reason where there is room: a
// shell takes it for a comment.
func (t *tool) command(label string, n next) {
	line := label + n.Command
	if why := fmt.Sprintf("%-36s  # %s", line, n.Why); n.Why != "" && len(why) <= width {
		line = why
	}
	fmt.Fprintln(t.stdout, line)
}

// next prints what is likely to be typed next. A command is never broken: it
// is copied.
func (t *tool) next(commands ...string) {
	for i, c := range commands {
		label := "Next: "
		if i > 0 {
			label = "      "
		}
		fmt.Fprintln(t.stdout, label+c)
	}
}

// line prints "label: text" with its continuation indented. What the agent
// says of a slot often begins with its name.
func (t *tool) line(label, text string) {
	if text != "" {
		text = strings.TrimPrefix(text, strings.TrimSpace(label)+": ")
		fmt.Fprintln(t.stdout, wrap(label+": "+text, 2))
	}
}

func hostWord(s mgmt.Slot) string {
	switch {
	case s.Held:
		return "(held)"
	case s.Generation == "": // without a store nobody knows
		return "(unknown)"
	case s.Host == "":
		return "(free)"
	}
	return s.Host
}

func linkWord(s mgmt.Slot) string {
	switch {
	case s.Blocked != "":
		return "blocked"
	case s.Busy:
		return "moving"
	case s.Link == "enabled":
		return "no peer"
	}
	return orDash(s.Link)
}

// memoryWord is the verdict in a table.
func memoryWord(s mgmt.Slot) string {
	if s.VM == "" {
		return "-"
	}
	word := map[string]string{"yes": "kept", "no": "not kept"}[s.Memory.Preserved]
	switch {
	case word == "":
		return "unknown"
	case s.Guard:
		return word + ", guarded"
	}
	return word
}

// hostsWord is short while all is well.
func hostsWord(hosts []mgmt.Host) string {
	var ok, parts []string
	fenced := map[string][]string{} // by reason
	for _, h := range hosts {
		name := fmt.Sprintf("%s (%d)", h.Name, h.Group)
		if h.Fenced {
			fenced[h.Why] = append(fenced[h.Why], name)
		} else {
			ok = append(ok, name)
		}
	}
	if len(ok) > 0 {
		parts = append(parts, strings.Join(ok, ", "))
	}
	for _, why := range slices.Sorted(maps.Keys(fenced)) {
		part := "FENCED: " + strings.Join(fenced[why], ", ")
		if why != "" {
			part += " - " + why
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

// attention is what is not as it should be with a slot.
func attention(s mgmt.Slot) []string {
	var out []string
	if s.Problem != "" {
		out = append(out, s.Problem)
	}
	if s.Blocked != "" {
		out = append(out, "blocked: "+s.Blocked)
	}
	if s.Cut == "unconfirmed" {
		out = append(out, "its cut is not confirmed: its old host may still reach it")
	}
	if s.Power == "off" {
		out = append(out, "its device has no power")
	}
	return out
}

// silent tells whether the engine does not answer: what is wrong can not be
// looked at before it does.
func silent(s mgmt.Slot) bool {
	said := s.Problem + s.Blocked
	return strings.Contains(said, "the engine can not be read") || strings.Contains(said, "the engine does not answer")
}

func (t *tool) slotStatus(ctx context.Context, name string) error {
	var s mgmt.Slot
	err := t.wait(ctx, asking, func(ctx context.Context) (err error) {
		s, err = t.agent.Slot(ctx, name)
		return err
	})
	if err != nil {
		return err
	}
	if t.json {
		return t.printJSON(s)
	}
	t.say("%s: %s", s.Name, where(s))
	flag := s.Flag
	if s.FlagReason != "" {
		flag += " - " + s.FlagReason
	}
	link := linkWord(s)
	if s.Peer != "" {
		link += " with " + s.Peer
	}
	onOff := map[bool]string{true: "on", false: "off"}
	guard := onOff[s.Guard] + ", hold on link loss " + onOff[s.Hold]
	if silent(s) {
		guard = "unknown"
	}
	power := s.Power
	if s.Locate {
		power += ", locate LED on"
	}
	t.fields([][2]string{
		{"device", orDash(s.Device)},
		{"profile", s.Profile + ": " + orDash(strings.Join(s.Capabilities, " "))},
		{"link", link},
		{"cut", s.Cut},
		{"port", strings.TrimSuffix(s.Port+": "+s.VLAN, ": ")},
		{"power", power},
		{"generation", s.Generation},
		{"policy", s.Policy},
		{"guard", guard},
		{"flag", flag},
		{"memory", memoryText(s.Memory)},
		{"latches", strings.Join(s.Latches, ", ")},
		{"read", age(s.ReadAgeMS) + " ago"},
	})
	for _, w := range append(attention(s), s.CannotHold...) {
		t.line("  warning", w)
	}
	return nil
}

// fields prints labels and values in two columns, without the empty ones.
func (t *tool) fields(rows [][2]string) {
	const label = 12
	for _, r := range rows {
		if r[1] != "" {
			fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("  %-*s %s", label, r[0], r[1]), label+3))
		}
	}
}

func memoryText(v mgmt.Verdict) string {
	if v.Preserved == "" {
		return ""
	}
	return fmt.Sprintf("preserved: %s - %s", v.Preserved, v.Reason)
}
