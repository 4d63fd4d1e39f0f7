package main

// configurations are what is searched in full. One model with all faults at
// once is too large; each has those that meet in one protocol.
var configurations = []check{
	{"move: two moves, kills, power cut, dead bus", "move.pml", []string{"KILLS=2", "CUTS=1", "FAULTS=1", "MOVES=2"}, false, false},
	{"move: stale client, sets that differ", "move.pml", []string{"SINGLE", "KILLS=1", "FAULTS=1", "MOVES=2", "REQUESTS=3"}, false, false},
	{"fence: two fences, unfence, kill, dead bus", "move.pml", []string{"KILLS=1", "FAULTS=1", "FENCES=2"}, false, false},
	{"fence: power cut, dead bus", "move.pml", []string{"KILLS=0", "CUTS=1", "FAULTS=1", "FENCES=2"}, false, false},
	{"fence: engine restarts, kill", "move.pml", []string{"KILLS=1", "RESTARTS=2", "FENCES=1"}, false, false},
	{"move: requests that quote no generation", "move.pml", []string{"KILLS=1", "MOVES=2", "REQUESTS=3", "UNQUOTED"}, false, false},
	{"flag: planned move, kill, resets", "flag.pml", []string{"KILLS=1", "HITS=2"}, false, false},
	{"flag: policy always", "flag.pml", []string{"KILLS=1", "HITS=2", "ALWAYS"}, false, false},
	{"flag: fence, starts, kill, resets", "flag.pml", []string{"KILLS=1", "HITS=2", "MOVES=0", "FENCES=1", "STARTS=2"}, false, false},
	{"flag: power cut, fence, kill", "flag.pml", []string{"KILLS=1", "CUTS=1", "HITS=1", "MOVES=0", "FENCES=1", "STARTS=2"}, false, false},
	{"flag: engine restart, move", "flag.pml", []string{"KILLS=0", "RESTARTS=1", "HITS=1"}, false, false},
	{"flag: engine restart, kill", "flag.pml", []string{"KILLS=1", "RESTARTS=1", "HITS=0"}, false, false},
	{"flag: engine restart, fence", "flag.pml", []string{"KILLS=0", "RESTARTS=1", "HITS=1", "MOVES=0", "FENCES=1", "STARTS=2"}, false, false},
	{"progress: move, kill, power cut, dead bus", "move.pml", []string{"KILLS=1", "CUTS=1", "FAULTS=1"}, true, false},
	{"progress: move, fence, dead bus", "move.pml", []string{"KILLS=0", "FAULTS=1", "FENCES=1"}, true, false},
	{"progress: held is attached", "move.pml", []string{"KILLS=0", "FAULTS=1", "FENCES=1", "FINALE"}, true, false},
}

// mutant is one step done wrong, and the property that must notice.
type mutant struct {
	name, model string
	define      []string // the faults that it takes
	property    string
	live        bool
}

func (m mutant) check() check {
	return check{m.name, m.model, append([]string{m.name}, m.define...), m.live, true}
}

var mutants = []mutant{
	{"M_WRITE_BEFORE_CUT", "move.pml", []string{"KILLS=0"}, "oneOwner", false},
	{"M_LINK_BEFORE_WRITE", "move.pml", []string{"KILLS=0"}, "together", false},
	{"M_SLOT_BY_SLOT", "move.pml", []string{"KILLS=0"}, "together", false},
	{"M_GENERATION_UNCHECKED", "move.pml", []string{"KILLS=0", "FENCES=1"}, "staleRefused", false},
	{"M_ONCE", "move.pml", []string{"KILLS=0", "MOVES=2", "UNQUOTED"}, "onceOnly", false},
	{"M_FENCED_NOT_REFUSED", "move.pml", []string{"KILLS=0", "FENCES=1"}, "fencedRefused", false},
	{"M_FENCE_LOOKED_UP_ONCE", "move.pml", []string{"KILLS=0", "FENCES=1"}, "fenceMeetsMove", false},
	{"M_FENCE_UNCONFIRMED", "move.pml", []string{"KILLS=0", "FENCES=1", "FAULTS=1"}, "fenceHolds", false},
	{"M_LATE_UNFENCE", "move.pml", []string{"KILLS=0", "FENCES=2"}, "lateUnfenceRefused", false},
	{"M_FENCE_SETTLES_ALONE", "move.pml", []string{"KILLS=0", "FENCES=2", "FAULTS=1"}, "together", false},
	{"M_NO_ABORT_RECORD", "move.pml", []string{"KILLS=1", "FAULTS=1"}, "undoneStays", false},
	{"M_UNDO_CARRIED_FORWARD", "move.pml", []string{"KILLS=1", "FAULTS=1"}, "undoneStays", false},
	{"M_NO_EXPECT", "move.pml", []string{"KILLS=0"}, "oneOwner", false},
	{"M_RECOVERY_TRUSTS", "move.pml", []string{"KILLS=1", "CUTS=1"}, "together", false},
	{"M_RETRY_NOT_AGAIN", "move.pml", []string{"KILLS=0", "FAULTS=1"}, progress, true},

	{"M_GUARD_DROPPED", "flag.pml", []string{"HITS=2"}, "guardHolds", false},
	{"M_FLAG_AFTER_LINK", "flag.pml", []string{"HITS=0"}, "shownBeforeLink", false},
	{"M_LATE_PROOF", "flag.pml", []string{"HITS=2", "MOVES=0", "STARTS=2"}, "flagNeverLies", false},
	{"M_PROOF_READS_AGAIN", "flag.pml", []string{"HITS=2", "MOVES=0", "STARTS=1"}, "flagNeverLies", false},
	{"M_ARM_REPEAT_CLEARS", "flag.pml", []string{"HITS=2"}, "sameArming", false},
	{"M_ARM_UNCOMPARED", "flag.pml", []string{"HITS=2"}, "flagNeverLies", false},
	{"M_ACK_WITHOUT_NONCE", "flag.pml", []string{"HITS=2", "STARTS=2"}, "flagNeverLies", false},
	{"M_ACK_WITHOUT_VALUES", "flag.pml", []string{"HITS=2", "STARTS=2"}, "flagNeverLies", false},
	{"M_ACK_OF_VALUES_SEEN_LATER", "flag.pml", []string{"KILLS=0", "CUTS=1", "HITS=1", "MOVES=0", "FENCES=1", "STARTS=2"}, "flagNeverLies", false},
	{"M_ACK_ACROSS_RESTART", "flag.pml", []string{"KILLS=0", "RESTARTS=1", "HITS=1"}, "flagNeverLies", false},
	{"M_LATCH_IGNORED", "flag.pml", []string{"KILLS=0", "RESTARTS=1", "HITS=1"}, "flagNeverLies", false},
	{"M_RESTART_KEEPS_PROOF", "flag.pml", []string{"KILLS=0", "RESTARTS=1", "HITS=1"}, "flagNeverLies", false},
	{"M_START_KEEPS_OLD_BASE", "flag.pml", []string{"HITS=2"}, "notShy", false},
}

// trace is one of docs/traces.md that the model has the parts for.
type trace struct {
	name, model string
	define      []string
}

func (t trace) check() check {
	return check{t.name, t.model, append([]string{t.name}, t.define...), false, true}
}

var traces = []trace{
	{"T1", "flag.pml", []string{"HITS=2", "NOGUARD"}},
	{"T2", "flag.pml", []string{"HITS=1"}},
	{"T3", "move.pml", []string{"KILLS=0", "FENCES=1", "FAULTS=1"}},
	{"T4", "move.pml", []string{"KILLS=0", "CUTS=1", "FENCES=1", "FAULTS=1"}},
	{"T5", "move.pml", []string{"KILLS=0", "FENCES=1", "FAULTS=1"}},
	{"T6", "move.pml", []string{"KILLS=0", "FENCES=1"}},
	{"T8", "flag.pml", []string{"KILLS=1", "HITS=2", "MOVES=0"}},
	{"T9", "flag.pml", []string{"KILLS=1"}},
	{"T11", "move.pml", []string{"KILLS=0"}},
	{"T12", "move.pml", []string{"KILLS=0", "FAULTS=1"}},
	{"T13", "move.pml", []string{"KILLS=0", "FAULTS=1", "FENCES=1"}},
	{"T14", "move.pml", []string{"KILLS=0", "FENCES=2"}},
	{"T16", "move.pml", []string{"KILLS=0", "APART", "UNQUOTED"}},
	{"T17", "move.pml", []string{"KILLS=0", "APART", "HELD", "UNQUOTED"}},
	{"T18", "flag.pml", []string{"KILLS=0", "CUTS=1", "HITS=0", "MOVES=0", "FENCES=1", "STARTS=1"}},
	{"T19", "flag.pml", []string{"KILLS=0", "HITS=0", "MOVES=1", "FENCES=1", "STARTS=1"}},
	{"T20", "flag.pml", []string{"KILLS=0", "HITS=0", "MOVES=0", "STARTS=1"}},
	{"T22", "move.pml", []string{"SINGLE", "KILLS=1", "MOVES=2"}},
	{"T23", "move.pml", []string{"KILLS=0", "CUTS=1", "FAULTS=1"}},
	{"T24", "move.pml", []string{"KILLS=0", "FAULTS=1"}},
	{"T25", "move.pml", []string{"KILLS=0", "MOVES=2"}},
	{"T26", "flag.pml", []string{"KILLS=0", "HITS=0", "MOVES=1", "STARTS=2"}},
	{"T27", "flag.pml", []string{"KILLS=1", "HITS=0", "MOVES=1", "STARTS=1"}},
	{"T28", "flag.pml", []string{"KILLS=0", "RESTARTS=1", "HITS=1"}},
	{"T29", "move.pml", []string{"KILLS=1"}},
	{"T33", "move.pml", []string{"KILLS=0", "FENCES=1"}},
	{"T35", "flag.pml", []string{"KILLS=0", "CUTS=1", "HITS=0", "STARTS=1"}},
}
