package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"baton/mgmt"
)

var drainCommand = command{
	name: "host drain", args: "HOST --to HOST2 | --release hold|free [flags]", short: "empty a host before it is worked on",
	about: `Moves all slots of HOST to HOST2, or releases them, set by set; stops at the
first set that fails. It does not touch the VMs: stop them first, or have the
cluster do it.

hold: the slots are cut and wait for their VMs. free: they are cut and for
anyone, after a reset of the devices.

A drain has an ID. If the agent's answer is lost, ask again with the same --id:
sets that are done stay done.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		to := fs.String("to", "", "`host` that takes the sets")
		release := fs.String("release", "", "hold or free, instead of moving")
		wait := fs.Duration("wait", 0, "how long HOST2's engine may take to appear, each time; 0 = 5s")
		id := fs.String("id", "", "`UUID` of the drain, to repeat one")
		yes := fs.Bool("yes", false, "do not ask")
		return func(ctx context.Context, args []string) error {
			switch {
			case (*to == "") == (*release == ""):
				return &usageError{"say one of --to HOST2 and --release hold|free"}
			case *release != "" && *release != "hold" && *release != "free":
				return &usageError{fmt.Sprintf("--release %s is none of hold, free", *release)}
			}
			e, err := t.agent.Enclosure(ctx)
			if err != nil {
				return err
			}
			r := mgmt.DrainRequest{ID: *id, To: *to, Release: *release, WaitMS: wait.Milliseconds()}
			if r.ID == "" {
				r.ID = newUUID()
			}
			if err := t.confirm(ctx, *yes, "%s", drainQuestion(e, args[0], r)); err != nil {
				return err
			}
			return t.drain(ctx, e, args[0], r, *id != "")
		}
	},
}

func drainQuestion(e mgmt.Enclosure, host string, r mgmt.DrainRequest) string {
	var sets []string
	for _, vm := range vmsOf(e, host) {
		sets = append(sets, fmt.Sprintf("%s (%s)", orDash(vm), strings.Join(slotsOf(e, host, vm), " ")))
	}
	what := host + " has no slots here"
	if len(sets) > 0 {
		what = fmt.Sprintf("%s of %s", strings.Join(sets, ", "), host)
	}
	switch {
	case r.To != "":
		what += " moved to " + r.To
	case r.Release == "free":
		what += " cut and free; the memory of the devices is lost"
	default:
		what += " cut and held"
	}
	if vms := unreleased(e, host); len(vms) > 0 {
		what += fmt.Sprintf("; links are cut under a VM that still runs: stop %s first", strings.Join(vms, ", "))
	}
	return what
}

// unreleased lists the VMs that have slots with host and have not released them.
func unreleased(e mgmt.Enclosure, host string) []string {
	var out []string
	for _, s := range e.Slots {
		if s.Host == host && s.VM != "" && !s.Released && !slices.Contains(out, s.VM) {
			out = append(out, s.VM)
		}
	}
	return out
}

// vmsOf lists the VMs that have slots with host; "" are slots without VM.
func vmsOf(e mgmt.Enclosure, host string) []string {
	var out []string
	for _, s := range e.Slots {
		if s.Host == host && !slices.Contains(out, s.VM) {
			out = append(out, s.VM)
		}
	}
	return out
}

func slotsOf(e mgmt.Enclosure, host, vm string) []string {
	var out []string
	for _, s := range e.Slots {
		if s.Host == host && s.VM == vm {
			out = append(out, s.Name)
		}
	}
	return out
}

// drain asks for a drain and shows what happens to the host's sets meanwhile;
// named = a person gave its ID.
func (t *tool) drain(ctx context.Context, e mgmt.Enclosure, host string, r mgmt.DrainRequest, named bool) error {
	vms := vmsOf(e, host)
	finish := t.progress(ctx, func(ev mgmt.Event) bool {
		return ev.Kind == "drain" || ev.Kind == "step" && slices.Contains(vms, ev.VM)
	})
	var d mgmt.Drained
	err := t.wait(ctx, "draining "+host, func(ctx context.Context) (err error) {
		d, err = t.agent.Drain(ctx, host, r)
		return err
	})
	finish()
	if errors.As(err, new(*mgmt.UnreachableError)) {
		return &lost{"drain", r.ID, err}
	}
	if err != nil {
		return err
	}
	if t.json {
		err = t.printJSON(d)
	} else {
		t.drained(d, r, named)
	}
	if err == nil && !d.Done {
		err = &outcome{exitFailed}
	}
	return err
}

// progress shows the events that are wanted, with their time from now, until
// the function it returns is called. Events are no answer: where they can not
// be had, nothing is shown.
func (t *tool) progress(ctx context.Context, wants func(mgmt.Event) bool) (finish func()) {
	began := time.Now()
	before, err := t.agent.Events(ctx, "")
	if t.json || err != nil {
		return func() {}
	}
	after := ""
	if n := len(before.Events); n > 0 {
		after = before.Events[n-1].ID
	}
	show := func(e mgmt.Event) error {
		if e.ID != "" {
			after = e.ID
		}
		if wants(e) {
			at := fmt.Sprintf("%8.1f ms", float64(time.Since(began).Microseconds())/1000)
			fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("%s  %-8s %s", at, e.VM, e.Text), len(at)+11))
		}
		return nil
	}
	watch, stop := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { _ = t.agent.Watch(watch, after, show) })
	return func() {
		stop()
		done.Wait()
		// What the stream has not brought yet.
		rest, err := t.agent.Events(ctx, after)
		if err != nil {
			return
		}
		for _, e := range rest.Events {
			_ = show(e)
		}
	}
}

func (t *tool) drained(d mgmt.Drained, r mgmt.DrainRequest, named bool) {
	rows := make([][]string, 0, len(d.Sets))
	for _, s := range d.Sets {
		rows = append(rows, []string{orDash(s.VM), strings.Join(s.Slots, " "), s.State})
	}
	if len(rows) > 0 {
		fmt.Fprint(t.stdout, table([]column{{head: "VM"}, {head: "SLOTS", least: 10}, {head: "STATE"}}, rows))
	}
	if d.Done {
		t.say("%s has no slots here.", d.Host)
		switch {
		case r.To != "" && len(d.Sets) > 0:
			t.say("%s must now start its VMs and acknowledge.", r.To)
		case r.Release == "hold" && len(d.Sets) > 0:
			t.say("The slots wait for their VMs: baton attach VM --to HOST.")
		}
		t.next("baton status", "baton fence "+d.Host+"  # if it must not come back by itself")
		return
	}
	again := "mend the cause, then the same command again: what is done stays done"
	if n := len(d.Sets); named && n > 0 && slices.Contains([]string{"undone", "held", "blocked"}, d.Sets[n-1].State) {
		again = "mend the cause, then drain with another --id: this one has had its effect"
	}
	reason, state := "the first set that failed ended it", "left with "+d.Host+": "+orDash(strings.Join(d.Left, " "))
	switch n := len(d.Sets); {
	case n == 0:
		reason = "its cut was not seen"
	case d.Sets[n-1].Reason != "":
		reason = d.Sets[n-1].Reason
	}
	t.complain(fmt.Sprintf("%s is not empty: %s", d.Host, reason), "state", state, "next", again)
}
