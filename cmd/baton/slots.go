package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"baton/mgmt"
)

var verdictCommand = command{
	name: "verdict", args: "SLOT", short: "was the device's memory preserved, and why",
	about: `Reads the engine and compares it with what was known when the VM last ran.
Unknown is to be treated as no. The last line, seen, is what arm, ack and
alive quote.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			var v mgmt.Verdict
			err := t.wait(ctx, "reading "+args[0], func(ctx context.Context) (err error) {
				v, err = t.agent.Verdict(ctx, args[0])
				return err
			})
			if err != nil {
				return err
			}
			if t.json {
				return t.printJSON(v)
			}
			fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("%s: memory preserved: %s - %s", v.Slot, strings.ToUpper(v.Preserved), v.Reason), 2))
			proven := fmt.Sprintf("at reset count %d", v.Proven)
			if v.Proven == 0 {
				proven = "never since the engine started"
			}
			t.fields([][2]string{
				{"flag", v.Flag},
				{"now", valuesText(v.Now)},
				{"compared to", valuesText(v.Base)},
				{"proof", proven},
				{"seen", seenText(v)},
			})
			return nil
		}
	},
}

// seenText is what may be quoted: of an engine that was not read there is none.
func seenText(v mgmt.Verdict) string {
	if v.Generation == "" || v.Now == (mgmt.Values{}) {
		return "-"
	}
	return v.Seen().String()
}

func valuesText(v mgmt.Values) string {
	if v == (mgmt.Values{}) {
		return "-"
	}
	return fmt.Sprintf("resets %d, power epoch 0x%08x, identity 0x%08x", v.Resets, v.Epoch, v.Ident)
}

var attachCommand = command{
	name: "attach", args: "VM --to HOST [--slots a,b] [--wait 10s]", short: "what a host asks before it starts a VM",
	about: "Gives the VM its slots on that host. Where it has them already nothing is\ntouched. The answer has a nonce that ack must quote.",
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		to := fs.String("to", "", "`host` that starts the VM")
		slots := fs.String("slots", "", "only these `slots`, as gpu0,gpu1")
		wait := fs.Duration("wait", 0, "how long the host's engine may take to appear; 0 = 5s")
		return func(ctx context.Context, args []string) error {
			if *to == "" {
				return &usageError{"--to HOST is missing"}
			}
			r := mgmt.AttachRequest{VM: args[0], Host: *to, Slots: list(*slots), WaitMS: wait.Milliseconds()}
			if len(r.Slots) == 0 {
				e, err := t.agent.Enclosure(ctx)
				if err != nil {
					return err
				}
				i := slices.IndexFunc(e.VMs, func(v mgmt.VM) bool { return v.Name == r.VM })
				if i < 0 || len(e.VMs[i].Slots) == 0 {
					return &mgmt.Problem{Code: "unknown-vm", Detail: fmt.Sprintf("the agent's configuration has no VM %q", r.VM), State: "nothing was changed", Next: "add it, or name --slots"}
				}
				r.Slots = e.VMs[i].Slots
			}
			var a mgmt.Attached
			err := t.wait(ctx, "attaching "+r.VM+" to "+r.Host, func(ctx context.Context) (err error) {
				a, err = t.agent.Attach(ctx, r.Slots[0], r)
				return err
			})
			if err != nil {
				return err
			}
			m := mgmt.Move{VM: r.VM, Slots: r.Slots, To: r.Host, State: a.State}
			if t.json {
				if err := t.printJSON(a); err != nil {
					return err
				}
				return moveOutcome(m)
			}
			if a.State != "done" {
				return t.moveEnd(m)
			}
			t.attached(r, a)
			return nil
		}
	},
}

func (t *tool) attached(r mgmt.AttachRequest, a mgmt.Attached) {
	how := "attached to"
	if !a.Moved {
		how = "already with"
	}
	t.say("%s: %s %s %s", r.VM, strings.Join(r.Slots, " "), how, r.Host)
	for _, slot := range slices.Sorted(maps.Keys(a.Memory)) {
		v := a.Memory[slot]
		fmt.Fprintln(t.stdout, wrap(fmt.Sprintf("  %-12s generation %s, memory preserved: %s - %s", slot, counter(a.Generation[slot]), v.Preserved, v.Reason), 15))
	}
	t.fields([][2]string{{"nonce", a.Nonce}})
	t.next(fmt.Sprintf("start %s on %s, then for each slot", r.VM, r.Host), "baton verdict SLOT", "baton ack SLOT --nonce "+a.Nonce+" --seen SEEN")
}

var armCommand = command{
	name: "arm", args: "SLOT [--seen SEEN] [--id UUID] [--lease 10m]", short: "prepare a slot for a move while its VM still runs",
	about: `Turns the guard on, so that stopping the VM does not reset the device. With
--seen, read by 'baton verdict' before it was checked that QEMU holds the
device, it is a proof that the VM ran; without, the last proof decides.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		word := fs.String("seen", "", "what 'baton verdict' gave as `seen`")
		id := fs.String("id", "", "`UUID` of the arming, to repeat one")
		lease := fs.Duration("lease", 0, "how long it stands if the VM runs on; 0 = 10m")
		return func(ctx context.Context, args []string) error {
			r := mgmt.ArmRequest{ID: *id, LeaseMS: lease.Milliseconds()}
			if r.ID == "" {
				r.ID = newUUID()
			}
			if *word != "" {
				seen, err := mgmt.ParseSeen(*word)
				if err != nil {
					return &usageError{err.Error()}
				}
				r.Generation, r.Seen = seen.Generation, &seen.Values
			} else {
				s, err := t.agent.Slot(ctx, args[0])
				if err != nil {
					return err
				}
				r.Generation = s.Generation
			}
			a, err := t.agent.Arm(ctx, args[0], r)
			if err != nil {
				return err
			}
			if t.json {
				return t.printJSON(a)
			}
			proof := "armed with proof"
			if !a.Proof {
				proof = "guard on, without proof: the verdict compares with the last proof of life"
			}
			t.say("%s: %s; flag %s", args[0], proof, a.Flag)
			t.line("reason", a.Reason)
			if !a.Proof && a.Flag != "armed" {
				// Nothing is recorded that could be taken back.
				t.next("stop the VM and move it")
				return nil
			}
			t.fields([][2]string{{"arming", a.ID}, {"baseline", valuesText(a.Base)}})
			t.next("stop the VM and move it, or", fmt.Sprintf("baton disarm %s --id %s", args[0], a.ID))
			return nil
		}
	},
}

var disarmCommand = command{
	name: "disarm", args: "SLOT --id UUID", short: "take an arming back",
	about: "The guard goes back to what it was before.",
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		id := fs.String("id", "", "`UUID` of the arming")
		return func(ctx context.Context, args []string) error {
			if *id == "" {
				return &usageError{"--id UUID is missing: arm printed it"}
			}
			err := t.agent.Disarm(ctx, args[0], mgmt.DisarmRequest{ID: *id})
			return t.done(ctx, err, args[0], "disarmed")
		}
	},
}

var ackCommand = command{
	name: "ack", args: "SLOT --nonce UUID --seen SEEN", short: "the VM runs, and its host has acted on the verdict",
	about: "Quotes the nonce of the latest attach, and what the verdict that was acted on\ngave as seen.",
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		nonce := fs.String("nonce", "", "`UUID` that attach gave")
		word := fs.String("seen", "", "what 'baton verdict' gave as `seen`")
		return func(ctx context.Context, args []string) error {
			seen, err := mgmt.ParseSeen(*word)
			if err != nil || *nonce == "" {
				return &usageError{"want --nonce of the latest attach and --seen of the verdict"}
			}
			err = t.agent.Ack(ctx, args[0], mgmt.AckRequest{Nonce: *nonce, Generation: seen.Generation, Seen: seen.Values})
			return t.done(ctx, err, args[0], "acknowledged")
		}
	},
}

var aliveCommand = command{
	name: "alive", args: "SLOT --seen SEEN", short: "proof of life: the VM holds the device",
	about: `Only true if it was checked, after 'baton verdict' gave seen, that the VM's
QEMU holds the device.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		word := fs.String("seen", "", "what 'baton verdict' gave as `seen`")
		return func(ctx context.Context, args []string) error {
			seen, err := mgmt.ParseSeen(*word)
			if err != nil {
				return &usageError{err.Error()}
			}
			err = t.agent.Alive(ctx, args[0], mgmt.AliveRequest{Generation: seen.Generation, Seen: seen.Values})
			return t.done(ctx, err, args[0], "proof of life taken")
		}
	},
}

var releaseCommand = command{
	name: "release", args: "VM [--slots a,b] [--mode keep|hold|free]", short: "end a VM's use of its slots",
	about: `keep: the slots stay with their host, and another VM there may attach.
hold: they are cut, and wait for the VM. free: they are cut and for anyone,
after a reset of the devices.`,
	nargs: [2]int{1, 1},
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		slots := fs.String("slots", "", "only these `slots`, as gpu0,gpu1")
		mode := fs.String("mode", "keep", "keep, hold or free")
		yes := fs.Bool("yes", false, "do not ask before memory is lost")
		return func(ctx context.Context, args []string) error {
			r := mgmt.ReleaseRequest{VM: args[0], Slots: list(*slots), Mode: *mode, Expect: map[string]string{}}
			e, err := t.agent.Enclosure(ctx)
			if err != nil {
				return err
			}
			all := len(r.Slots) == 0
			for _, s := range e.Slots {
				if all && s.VM == r.VM {
					r.Slots = append(r.Slots, s.Name)
				}
				// What is released is what was looked at.
				if slices.Contains(r.Slots, s.Name) && s.Generation != "" {
					r.Expect[s.Name] = s.Generation
				}
			}
			if len(r.Slots) == 0 {
				return &mgmt.Problem{Code: "unknown-vm", Detail: "no slot is with, or held for, a VM " + r.VM, State: "nothing was changed", Next: "baton status"}
			}
			if r.Mode == "free" {
				if err := t.confirm(ctx, *yes, "the memory of %s is lost", strings.Join(r.Slots, " ")); err != nil {
					return err
				}
			}
			err = t.wait(ctx, "releasing "+strings.Join(r.Slots, " "), func(ctx context.Context) error { return t.agent.Release(ctx, r.Slots[0], r) })
			if err != nil {
				return err
			}
			return t.released(ctx, r)
		}
	},
}

// released shows the slots as they are now.
func (t *tool) released(ctx context.Context, r mgmt.ReleaseRequest) error {
	all, err := t.agent.Slots(ctx)
	if err != nil {
		return err
	}
	slots := slices.DeleteFunc(all, func(s mgmt.Slot) bool { return !slices.Contains(r.Slots, s.Name) })
	if t.json {
		return t.printJSON(mgmt.Slots{Slots: slots})
	}
	for _, s := range slots {
		t.say("%s: released by %s; %s", s.Name, r.VM, where(s))
	}
	return nil
}

// done ends a command whose answer has nothing in it: it shows the slot as it
// is now.
func (t *tool) done(ctx context.Context, err error, slot, text string) error {
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := t.agent.Slot(ctx, slot)
	if err != nil {
		return err
	}
	if t.json {
		return t.printJSON(s)
	}
	t.say("%s: %s; flag %s, %s", slot, text, s.Flag, where(s))
	return nil
}
