// Package bug names the faults that tests put into the agent on purpose, one
// for each invariant of docs/design.md, to prove that the invariant's test
// notices. They exist only under the build tag batonbug; without it Is is
// false and the compiler drops them.
package bug

// Bug is one fault.
type Bug string

// The bugs. Each is named after the invariant that it breaks.
const (
	OneOwner      Bug = "one-owner"      // whoever has the group may connect
	Together      Bug = "together"       // each slot is linked as soon as it is written
	PowerCut      Bug = "power-cut"      // recovery trusts what it finds
	Flag          Bug = "flag"           // a reset does not change the verdict
	Fencing       Bug = "fencing"        // the target's fence is looked at once, at the request
	Once          Bug = "once"           // a move ID that is known is taken as new
	Closed        Bug = "closed"         // any host may have any VM
	ReadBack      Bug = "read-back"      // what was written is not read
	NothingSilent Bug = "nothing-silent" // a refusal is no event
	OldTenant     Bug = "old-tenant"     // the device is not reset for another VM
)

// All lists the bugs in the order of the invariants.
var All = []Bug{OneOwner, Together, PowerCut, Flag, Fencing, Once, Closed, ReadBack, NothingSilent, OldTenant}

// Bugs of recovery and of the store. What they break shows after a power cut
// only; test/powercut must notice each.
const (
	UndoForward Bug = "undo-forward" // recovery does not know undos, and carries the move forward
	RecordLate  Bug = "record-late"  // the record of a move is written after the config blocks
	FenceInRAM  Bug = "fence-in-ram" // a fence is acknowledged and not recorded
	GoneFree    Bug = "gone-free"    // recovery takes a torn config block for a new slot's

	// These are in nvm, which imports nothing of ours: it knows them by the same
	// names.
	EarlyAck  Bug = "nvm-early-ack"  // a record is acknowledged in its write cycle
	FreeEarly Bug = "nvm-free-early" // compaction clears what it moves before the copy is there
)

// Campaign lists the bugs that the power-cut campaign must notice.
var Campaign = []Bug{Together, UndoForward, RecordLate, FenceInRAM, GoneFree, EarlyAck, FreeEarly}
