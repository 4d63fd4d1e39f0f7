package bank

import (
	"fmt"
	"strconv"
	"strings"

	"baton/images/uboot"
)

// Variables of the bootloader's environment. The three in the middle are
// U-Boot's own (doc/api/bootcount.rst, drivers/bootcount/bootcount_env.c).
const (
	VarBank    = "baton_bank"        // the bank that is booted where none is on trial
	VarTrial   = "upgrade_available" // 1: the other bank is on trial, and starts are counted
	VarCount   = "bootcount"         // starts since the trial began
	VarLimit   = "bootlimit"         // more starts than this end the trial
	VarOutcome = "baton_outcome"     // how the last trial ended, for people
)

// Names are the banks.
var Names = []string{"a", "b"}

// Other is the other bank.
func Other(name string) string {
	if name == "b" {
		return "a"
	}
	return "b"
}

// Vars are our variables.
type Vars struct {
	Bank    string // "a" or "b"
	Trial   bool
	Count   int
	Limit   int // 0 = no limit
	Outcome string
}

// Read takes our variables out of an environment. What can not be read is what
// U-Boot and its script take it for: bank a, no trial, zero.
func Read(e uboot.Env) Vars {
	v := Vars{Bank: "a", Trial: e[VarTrial] == "1", Count: number(e[VarCount]), Limit: number(e[VarLimit]), Outcome: e[VarOutcome]}
	if e[VarBank] == "b" {
		v.Bank = "b"
	}
	return v
}

func number(s string) int {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

// write puts our variables into an environment; others stay.
func (v Vars) write(e uboot.Env) {
	e[VarBank] = v.Bank
	e[VarTrial] = "0"
	if v.Trial {
		e[VarTrial] = "1"
	}
	e[VarCount] = strconv.Itoa(v.Count)
	e[VarLimit] = strconv.Itoa(v.Limit)
	e[VarOutcome] = v.Outcome
	if v.Outcome == "" {
		delete(e, VarOutcome)
	}
}

// Attempt is a bank that the bootloader boots if what is in it is whole.
type Attempt struct {
	Bank  string
	Trial bool
}

// Plan is what the bootloader does at a start: which banks it boots, the next
// one where one is not whole, and whether it first saves the number of starts.
// The U-Boot script of docs/update.md makes the same of the same variables.
func (v Vars) Plan() (try [2]Attempt, save bool, after Vars) {
	keep, other := Attempt{Bank: v.Bank}, Attempt{Bank: Other(v.Bank)}
	if !v.Trial {
		return [2]Attempt{keep, other}, false, v
	}
	v.Count++
	if v.over() {
		return [2]Attempt{keep, other}, true, v
	}
	other.Trial = true
	return [2]Attempt{other, keep}, true, v
}

func (v Vars) over() bool { return v.Limit > 0 && v.Count > v.Limit }

// State is what the environment and the bank that runs say together.
type State int

// States.
const (
	Direct    State = iota // the kernel was not booted from a bank
	Lost                   // no copy of the environment is good
	Steady                 // the bank that was confirmed runs
	Pending                // it does, and the other will be tried at the next start
	Trying                 // the other bank runs, on trial
	GivenUp                // it still runs, and the next start boots the bank that was confirmed
	Failed                 // the trial is over, and the bank of before runs
	Displaced              // the bank that was confirmed could not be booted, and the other runs
)

var stateNames = [...]string{"direct", "lost", "steady", "pending", "trying", "given up", "failed", "displaced"}

// String is the state in one word.
func (s State) String() string { return stateNames[s] }

// stateOf says in which state a controller is whose bank running runs, and which
// the bootloader has started on trial or not.
func stateOf(v Vars, running string, trial bool) State {
	keeps := running == v.Bank
	switch {
	case running == "":
		return Direct
	case keeps && !v.Trial:
		return Steady
	case keeps && v.Count == 0:
		return Pending
	case keeps:
		return Failed
	case v.Trial && !v.over():
		return Trying
	case v.Trial && trial:
		return GivenUp // the bootloader starts no trial over the limit
	}
	return Displaced
}

// event is what happens to a controller that runs.
type event int

const (
	clear     event = iota // the other bank is about to be erased
	installed              // it holds an image that is whole
	healthy                // the image that runs is
	unhealthy              // it is not
	started                // the image that runs has come up
	back                   // someone wants the other image, or no trial
	events
)

var eventNames = [...]string{"clear", "installed", "healthy", "unhealthy", "started", "back"}

func (e event) String() string { return eventNames[e] }

// action is what is written to the environment, in one go.
type action int

const (
	refuse   action = iota // nothing; it is an error
	nothing                // nothing
	endTrial               // no trial any more
	tryOther               // the bank that runs is kept, the other one is tried
	commit                 // the bank that runs is kept
	giveUp                 // the next start boots the bank of before
)

var actionNames = [...]string{"refuse", "-", "end trial", "try other", "keep running", "give up"}

func (a action) String() string { return actionNames[a] }

// table is the machine: what an event does in a state. docs/update.md has it
// in words.
//
//	what runs is ...                clear     installed healthy  unhealthy started   back
var table = map[State][events]action{
	Direct:    {clear: refuse, installed: refuse, healthy: nothing, unhealthy: refuse, started: nothing, back: refuse},
	Lost:      {clear: refuse, installed: refuse, healthy: refuse, unhealthy: refuse, started: refuse, back: refuse},
	Steady:    {clear: nothing, installed: tryOther, healthy: nothing, unhealthy: refuse, started: nothing, back: tryOther},
	Pending:   {clear: endTrial, installed: tryOther, healthy: nothing, unhealthy: refuse, started: nothing, back: endTrial},
	Trying:    {clear: refuse, installed: refuse, healthy: commit, unhealthy: giveUp, started: nothing, back: giveUp},
	GivenUp:   {clear: refuse, installed: refuse, healthy: refuse, unhealthy: nothing, started: nothing, back: nothing},
	Failed:    {clear: endTrial, installed: tryOther, healthy: nothing, unhealthy: refuse, started: endTrial, back: tryOther},
	Displaced: {clear: commit, installed: tryOther, healthy: commit, unhealthy: refuse, started: commit, back: tryOther},
}

// bootLimit: an image is tried once. A power cut in its trial counts.
const bootLimit = 1

// do is what the action makes of the variables; why goes into the outcome.
func (a action) do(v Vars, running, why string) Vars {
	switch a {
	case endTrial:
		v.Trial, v.Count = false, 0
	case tryOther:
		return Vars{Bank: running, Trial: true, Limit: bootLimit}
	case commit:
		v.Bank, v.Trial, v.Count = running, false, 0
	case giveUp:
		v.Limit = max(v.Limit, bootLimit)
		v.Count = max(v.Count, v.Limit+1)
	}
	if why != "" {
		v.Outcome = why
	}
	return v
}

// ended is how a trial of bank other that is over has ended, as far as the
// variables tell.
func ended(v Vars) string {
	other := Other(v.Bank)
	switch {
	case v.Outcome != "":
		return v.Outcome
	case v.Count > 1:
		return fmt.Sprintf("bank %s was started and not confirmed (power cut, restart or watchdog in its trial), bank %s runs", other, v.Bank)
	}
	return fmt.Sprintf("the bootloader could not boot bank %s, so bank %s runs", other, v.Bank)
}

// clean makes a text fit for a variable: printable ASCII of at most 160 bytes,
// without what U-Boot's shell could trip over.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r < ' ' || r > '~':
			return ' '
		case strings.ContainsRune("\\\"'$;`&|{}", r):
			return '.'
		}
		return r
	}, s)
	return strings.TrimSpace(s[:min(len(s), 160)])
}
