package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Class says how a change takes effect.
type Class int

// The classes of a change.
const (
	Live          Class = iota // at once
	Restart                    // when the agent starts the next time
	NetworkChange              // at once, on trial
)

// Change is one difference between two configurations.
type Change struct {
	Class Class
	Text  string // "host server1: group 101 -> 111"
	Slot  string // that the next start finds changed, "" = none
	Gone  bool   // or finds no more
}

func (c Change) String() string { return c.Text }

// Diff lists what differs, in the order of the file's sections. Both are valid.
// The order in which slots, hosts and VMs stand means nothing.
func Diff(was, now *Config) []Change {
	d := differ{}
	d.value(Restart, "enclosure", was.Enclosure, now.Enclosure)
	d.value(Restart, "simulated", was.Simulated, now.Simulated)
	d.value(Restart, "run_dir", was.RunDir, now.RunDir)
	d.value(Restart, "socket", was.Socket, now.Socket)
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append(sortedKeys(was.Buses), sortedKeys(now.Buses)...)))) {
		d.value(Restart, "bus "+name, was.Buses[name], now.Buses[name])
	}
	d.fields(Restart, "store", was.Store, now.Store)
	diffNamed(&d, Restart, "slot", was.Slots, now.Slots, func(s Slot) string { return s.Name }, Slot.summary)
	diffNamed(&d, Live, "host", was.Hosts, now.Hosts, func(h Host) string { return h.Name }, func(h Host) string { return fmt.Sprintf("group %d, %s", h.Group, h.MAC) })
	diffNamed(&d, Live, "VM", was.VMs, now.VMs, func(v VM) string { return v.Name }, func(v VM) string {
		return fmt.Sprintf("hosts %s; slots %s; policy %s", strings.Join(v.Hosts, " "), strings.Join(v.Slots, " "), v.Policy)
	})
	if !reflect.DeepEqual(was.Switch, now.Switch) {
		d.add(Restart, "switch: %s -> %s", was.Switch, now.Switch)
	}
	if !reflect.DeepEqual(was.Network, now.Network) {
		d.add(NetworkChange, "network: %s -> %s", was.Network, now.Network)
	}
	return d.changes
}

// Texts are the lines of those changes whose class is in classes; of all where
// none is given.
func Texts(changes []Change, classes ...Class) []string {
	lines := []string{}
	for _, c := range changes {
		if len(classes) == 0 || slices.Contains(classes, c.Class) {
			lines = append(lines, c.Text)
		}
	}
	return lines
}

type differ struct{ changes []Change }

func (d *differ) add(class Class, format string, args ...any) {
	d.changes = append(d.changes, Change{Class: class, Text: fmt.Sprintf(format, args...)})
}

func (d *differ) value(class Class, what string, was, now any) {
	if was != now {
		d.add(class, "%s: %s -> %s", what, shown(was), shown(now))
	}
}

// fields compares two structs, key by key.
func (d *differ) fields(class Class, what string, was, now any) {
	if text := changed(was, now); text != "" {
		d.add(class, "%s: %s", what, text)
	}
}

// changed says which keys of two structs differ, and how; "" where none does.
func changed(was, now any) string {
	var out []string
	a, b := reflect.ValueOf(was), reflect.ValueOf(now)
	for i := range a.NumField() {
		x, y := a.Field(i).Interface(), b.Field(i).Interface()
		if !reflect.DeepEqual(x, y) {
			key, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
			out = append(out, fmt.Sprintf("%s %s -> %s", key, shown(x), shown(y)))
		}
	}
	return strings.Join(out, ", ")
}

func diffNamed[T any](d *differ, class Class, what string, was, now []T, name func(T) string, summary func(T) string) {
	before, after := map[string]T{}, map[string]T{}
	for _, v := range was {
		before[name(v)] = v
	}
	for _, v := range now {
		after[name(v)] = v
	}
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, n := range sortedKeys(all) {
		a, had := before[n]
		b, has := after[n]
		c := Change{Class: class}
		if class == Restart {
			c.Slot, c.Gone = n, !has
		}
		switch {
		case !had:
			c.Text, c.Slot = fmt.Sprintf("%s %s added: %s", what, n, summary(b)), ""
		case !has:
			c.Text = fmt.Sprintf("%s %s removed", what, n)
		case !reflect.DeepEqual(a, b):
			c.Text = fmt.Sprintf("%s %s: %s", what, n, changed(a, b))
		default:
			continue
		}
		d.changes = append(d.changes, c)
	}
}

func (s Slot) summary() string {
	text := fmt.Sprintf("profile %s, bus %s", s.Profile, s.Bus)
	if s.Address != 0 {
		text += ", address " + s.Address.String()
	}
	return text + ", eeprom " + s.EEPROM.String()
}

func (e EEPROM) String() string { return e.Part + " at " + e.Address.String() }

// String is how the file has it.
func (r *Reload) String() string {
	switch {
	case r == nil:
		return "none given"
	case r.None:
		return `"none"`
	}
	level := "low"
	if r.Active {
		level = "high"
	}
	return fmt.Sprintf("%s:%d %s", r.GPIO.Chip, r.GPIO.Number, level)
}

// shown is a value as a person would say it.
func shown(v any) string {
	zero := v == nil || reflect.ValueOf(v).IsZero()
	switch x := v.(type) {
	case bool:
		return fmt.Sprint(x)
	case []string:
		return strings.Join(x, " ")
	case *Reload:
		return x.String()
	}
	if zero {
		return "none"
	}
	if s, ok := v.(Serial); ok {
		return fmt.Sprintf("0x%016x", uint64(s))
	}
	return fmt.Sprint(v)
}
