package enclosure

import (
	"fmt"
	"strings"
	"time"

	"baton/ee"
	"baton/enclosure/plan"
)

// MoveRequest asks for one transaction that passes Slots of VM to host To.
type MoveRequest struct {
	ID       ee.UUID                  // chosen by the caller; a repeat has the effect of one
	VM       string                   // name
	Slots    []string                 // names; empty = all slots of the VM
	To       string                   // host
	Expect   map[string]ee.Generation // slot -> generation; a slot that is left out is moved as it is
	Preserve bool
	Wait     time.Duration // for the target's engine to appear; 0 = DefaultWait, at most MaxWait
	By       string        // who asks, for events
}

// Bounds of MoveRequest.Wait.
const (
	DefaultWait = 5 * time.Second
	MaxWait     = 2 * time.Minute
)

// MoveState is how far a move has come.
type MoveState string

// The states of a move. All but Running survive a restart of the agent.
const (
	MoveRunning MoveState = "running"
	MoveDone    MoveState = "done"    // links on, the target's engine is the peer
	MoveWaiting MoveState = "waiting" // links on, the target's engine has not appeared within Wait
	MoveUndone  MoveState = "undone"  // an error; the set is back where it was
	MoveHeld    MoveState = "held"    // ended by a fence or by hand: the set is cut, and held for its VM unless it was freed
	MoveRefused MoveState = "refused" // found out before anything was cut; nothing changed
	MoveBlocked MoveState = "blocked" // neither forward nor back: cut and held, retried
)

// Move is what is known of a move, from its records and the hardware.
type Move struct {
	ID         ee.UUID
	VM         string
	Slots      []string
	From       string // host, or "" where no slot of the set was with a host
	To         string
	State      MoveState
	Generation ee.Generation // the set's present one
	Preserve   bool
	Memory     map[string]plan.Verdict // per slot, as read at the end; nil while running
	Steps      []Step                  // what it cost, in order; empty after a restart
	Reason     string                  // why it was undone, refused, held or blocked

	by string // who asked
}

// Step is one finished step of a move.
type Step struct {
	Name string        // checked, intent, cut, reset, assigned, vlan, linked, undo
	At   time.Duration // since the request
	Text string
}

// AttachRequest is what a host asks before it starts VM: its slots, to itself.
type AttachRequest struct {
	VM    string
	Slots []string // empty = all slots of the VM
	Host  string
	Wait  time.Duration
	By    string
}

// Attached answers an AttachRequest.
type Attached struct {
	Nonce      ee.UUID // ack quotes it
	Moved      bool    // false: the set was here already and nothing was changed
	State      MoveState
	Generation map[string]ee.Generation
	Memory     map[string]plan.Verdict
}

// ArmRequest asks to prepare Slot for a move while VM still holds the device.
type ArmRequest struct {
	Slot  string
	ID    ee.UUID
	Seen  *plan.Values // what the host read while QEMU held the device; nil = no proof
	Gen   ee.Generation
	Lease time.Duration // 0 = DefaultLease
	By    string
}

// DefaultLease is how long an arming stands when the VM is seen to run on.
const DefaultLease = 10 * time.Minute

// AckRequest says that VM runs and that the host has acted on the verdict.
type AckRequest struct {
	Slot  string
	Nonce ee.UUID
	Gen   ee.Generation
	Seen  plan.Values // those of the verdict that the host acted on
	By    string
}

// AliveRequest is a proof of life: QEMU of the slot's VM held the device after
// Seen was read.
type AliveRequest struct {
	Slot string
	Gen  ee.Generation
	Seen plan.Values
	By   string
}

// ReleaseMode is what becomes of a slot whose VM has stopped.
type ReleaseMode string

// Modes of release.
const (
	ReleaseKeep ReleaseMode = "keep" // stays in its group; another VM may attach
	ReleaseHold ReleaseMode = "hold" // cut, waits for its VM
	ReleaseFree ReleaseMode = "free" // cut, for anyone, after a device reset
)

// ForceFree is the mode of release that goes by ForceFree, not Release.
const ForceFree ReleaseMode = "force-free"

// ReleaseRequest ends VM's use of Slots.
type ReleaseRequest struct {
	VM     string
	Slots  []string // empty = all slots that VM has
	Expect map[string]ee.Generation
	Mode   ReleaseMode
	By     string
}

// Fenced answers Fence.
type Fenced struct {
	Host  string
	Epoch uint32
	Slots []string // cut by this fence, confirmed
}

// Status is the enclosure as last read.
type Status struct {
	Name      string
	Simulated bool
	Uptime    time.Duration
	Store     StoreStatus
	Slots     []SlotStatus
	Hosts     []HostStatus
	Moves     []Move
	Warnings  []string
}

// StoreStatus says how the agent's own memory is.
type StoreStatus struct {
	OK          bool
	Problem     string // why not OK, and what to do
	Incarnation uint32
	PageWrites  uint64 // since the agent started
	Free        int    // pages
	Damaged     int    // pages found damaged at the start
}

// SlotStatus is one slot. Fields from the hardware were read at ReadAt; where
// that failed, Problem says so and they are zero.
type SlotStatus struct {
	Name         string
	Profile      string
	Capabilities []string
	CannotHold   []string // invariants the hardware can not hold, with why
	Device       string   // "10de:2330 accelerator", "" unknown
	Group        uint16
	Host         string // "" = free
	VM           string // that has it or that it is held for
	Held         bool
	Released     bool
	Generation   ee.Generation
	Flag         plan.Flag
	FlagReason   string
	Policy       plan.Policy
	Guard        bool
	Hold         bool
	Link         string // up, down, enabled (no peer yet), unknown
	Cut          string // confirmed, unconfirmed, "" where not cut
	Peer         string // MAC
	Power        string // of the device: on, off, "" where it can not be read
	Memory       plan.Verdict
	Values       plan.Values
	Latches      []string
	Locate       bool   // its LED is on
	Blocked      string // why, "" = not
	Busy         bool   // an operation is under way
	Problem      string
	Port         string        // of the enclosure's switch, "" = none
	VLAN         string        // what the port was last read as: "tagged, VLAN 101"
	ReadAge      time.Duration // since the hardware was last read
}

// HostStatus is one server.
type HostStatus struct {
	Name   string
	Group  uint16
	MAC    string
	Fenced bool
	Epoch  uint32
	Why    string // e.g. "never unfenced since the store was formatted"
	Slots  []string
}

// Event is something that happened; nothing happens without one.
type Event struct {
	Seq    uint64
	Uptime time.Duration // monotonic, since the agent started
	Wall   time.Time     // may be wrong: a BMC starts in 1970
	Kind   string        // move, step, linked, attach, arm, ack, alive, release, fence, unfence, void, recovery, blocked, refused, fault, store, adopt, power, reset, locate, resolve, drain, config, repair, restore
	Slot   string
	Host   string
	VM     string
	Move   string
	Code   string // of a refusal or failure
	Text   string
	By     string
}

// Code is the stable name of a refusal (docs/errors.md).
type Code string

// Codes. A refusal changes nothing.
const (
	CodeUnknownSlot       Code = "unknown-slot"
	CodeUnknownHost       Code = "unknown-host"
	CodeUnknownVM         Code = "unknown-vm"
	CodeUnknownMove       Code = "unknown-move"
	CodeBadRequest        Code = "bad-request"
	CodeGenerationChanged Code = "generation-changed"
	CodeMoveIDReused      Code = "move-id-reused"
	CodeNotAllowed        Code = "vm-not-allowed"
	CodeSlotNotVM         Code = "slot-not-of-vm"
	CodeSplitSet          Code = "split-set"
	CodeHeldForOther      Code = "held-for-other"
	CodeInUse             Code = "in-use"
	CodeBusy              Code = "busy"
	CodeFenced            Code = "host-fenced"
	CodeStaleUnfence      Code = "stale-unfence"
	CodeUnconfirmed       Code = "cut-unconfirmed"
	CodeUnassignable      Code = "unassignable"
	CodeBlocked           Code = "blocked"
	CodeStaleNonce        Code = "stale-nonce"
	CodeValuesDiffer      Code = "values-differ"
	CodeWrongState        Code = "wrong-state"
	CodeCapability        Code = "capability"
	CodeHardware          Code = "hardware"
	CodeIdentity          Code = "identity-mismatch"
	CodeStore             Code = "store-unusable"
	CodeForbidden         Code = "forbidden"
	CodeForeignPeer       Code = "foreign-peer"
	CodeInternal          Code = "internal"
	CodeNotNeeded         Code = "not-needed"
	CodeStaleToken        Code = "stale-token"
	CodeBadConfig         Code = "bad-configuration"
	CodeConfigChanged     Code = "configuration-changed"
	CodeTrial             Code = "trial-running"
	CodeBadBackup         Code = "bad-backup"
)

// Error is a refusal or failure: what, where, in what state things are now and
// what to do next.
type Error struct {
	Code    Code
	Slot    string // "" = none in particular
	Where   string // bus and address, where hardware is meant
	What    string
	State   string // "nothing was changed", ...
	Next    string
	Retry   bool          // the same request may succeed later
	Current ee.Generation // for CodeGenerationChanged
	Err     error
}

// Error gives one line.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Slot != "" {
		fmt.Fprintf(&b, "%s: ", e.Slot)
	}
	b.WriteString(e.What)
	if e.Where != "" {
		fmt.Fprintf(&b, " (%s)", e.Where)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.State != "" {
		fmt.Fprintf(&b, "; %s", e.State)
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }
