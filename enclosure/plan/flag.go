package plan

import "fmt"

// Flag is the state of a slot's migration-target flag.
type Flag string

// States of the flag (docs/design.md, "The flag's life").
const (
	None   Flag = "none"
	Armed  Flag = "armed"
	Target Flag = "target"
	Spent  Flag = "spent"
	Void   Flag = "void"
)

// flagCode are the numbers in the store: never reuse one.
var flagCode = map[Flag]byte{None: 1, Armed: 2, Target: 3, Spent: 4, Void: 5}

// Policy is how a VM's device is guarded.
type Policy string

// Policies.
const (
	Never  Policy = "never"
	OnMove Policy = "on-move"
	Always Policy = "always"
)

// Guarding is what a policy asks of the engine while the flag is in a state.
type Guarding struct{ Guard, Hold bool }

// Guard tells what the engine should guard: the flag's state decides under
// on-move, the policy alone under the others. Held slots are guarded under any
// policy but never.
func (p Policy) Guard(f Flag, held bool) Guarding {
	switch p {
	case Always:
		return Guarding{true, true}
	case OnMove:
		return Guarding{held || f == Armed || f == Target, true}
	}
	return Guarding{}
}

// Trigger is what can change a flag.
type Trigger string

// Triggers.
const (
	ArmProven   Trigger = "arm with proof"
	ArmUnproven Trigger = "arm without proof"
	Fencing     Trigger = "fence"
	Moving      Trigger = "move of the same VM, preserved"
	Undoing     Trigger = "undo of such a move"
	Starting    Trigger = "VM started again in place"
	Disarming   Trigger = "disarm, or the lease ends with the VM proven running"
	Acking      Trigger = "ack by the latest start's nonce"
	Proving     Trigger = "proof of life"
	Doubting    Trigger = "engine restarted, foreign peer, operator; values differ"
	Replacing   Trigger = "assignment that does not preserve"
	Taking      Trigger = "adopted, dropped or freed by hand"
	Resetting   Trigger = "reset asked of the agent"
	Powering    Trigger = "power off or cycle"
)

// Rule is a row of the flag's table: in any state of From, On leads to To if
// the engine saw nothing since the baseline, else to Otherwise.
type Rule struct {
	From          []Flag
	On            Trigger
	To, Otherwise Flag // Same = no change
	Note          string
}

// Same as To or Otherwise leaves the flag as it is.
const Same Flag = "same"

// Rules is the flag's whole life; what it does not list is refused.
var Rules = []Rule{
	{[]Flag{None, Spent}, ArmProven, Armed, Void, "guard on and confirmed first; the baseline goes to PROVEN and the store"},
	{[]Flag{None, Spent}, ArmUnproven, Same, Same, "guard on, nothing else: the verdict compares with the last proof"},
	{[]Flag{Armed}, ArmProven, Same, Same, "a repeat: the first arming, nothing cleared"},
	{[]Flag{Armed}, ArmUnproven, Same, Same, "a repeat: the first arming, nothing cleared"},
	{[]Flag{None, Spent, Armed, Target}, Fencing, Armed, Void, "after the fact: the last baseline decides"},
	{[]Flag{Void}, Fencing, Same, Same, ""},
	{[]Flag{None, Spent, Armed, Target}, Moving, Target, Void, "from none and spent as by a fence: guard on in the break, the last baseline decides"},
	{[]Flag{Void}, Moving, Same, Same, "the agent resets the device"},
	{[]Flag{None, Spent, Armed, Target}, Undoing, Target, Void, "under the present generation"},
	{[]Flag{Void}, Undoing, Same, Same, ""},
	{[]Flag{Armed, Target}, Starting, Target, Void, "under the present generation"},
	{[]Flag{None, Spent, Void}, Starting, Same, Same, "the verdict compares with the last baseline"},
	{[]Flag{Armed}, Disarming, None, None, "guard as it was before"},
	{[]Flag{Target, Void, None, Spent}, Acking, Spent, Spent, "the acknowledged values become the baseline; latches clear; guard by policy"},
	{[]Flag{None, Spent}, Proving, Same, Same, "the reset count goes to PROVEN"},
	{[]Flag{None, Spent, Armed, Target}, Doubting, Void, Void, ""},
	{[]Flag{Void}, Doubting, Same, Same, "the first reason stands"},
	{[]Flag{None, Spent, Armed, Target, Void}, Replacing, None, None, "the agent resets the device"},
	{[]Flag{None, Spent, Armed, Target, Void}, Taking, Void, Void, "in the store with the assignment, before the hardware"},
	{[]Flag{Armed, Target}, Resetting, Void, Void, "in the store before the reset"},
	{[]Flag{None, Spent, Void}, Resetting, Same, Same, "the counter moves, so the values say no; a VM that goes on can be proven again"},
	{[]Flag{None, Spent, Armed, Target}, Powering, Void, Void, "in the store before the power goes, where there is evidence that it would take"},
	{[]Flag{Void}, Powering, Same, Same, "the first reason stands"},
}

// Next looks up the table. clean tells whether the engine saw nothing since
// the baseline. It returns an error where the table has no row: the trigger is
// refused in that state.
func Next(f Flag, on Trigger, clean bool) (Flag, error) {
	for _, r := range Rules {
		if r.On != on {
			continue
		}
		for _, from := range r.From {
			if from != f {
				continue
			}
			to := r.To
			if !clean {
				to = r.Otherwise
			}
			if to == Same {
				return f, nil
			}
			return to, nil
		}
	}
	return f, fmt.Errorf("%s is not accepted while the flag is %s", on, f)
}
