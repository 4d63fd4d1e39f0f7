package mgmt

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Enclosure answers GET /v1/enclosure: all of it, from one look.
type Enclosure struct {
	Name      string    `json:"name"`
	Agent     string    `json:"agent"`     // version of batond
	Simulated bool      `json:"simulated"` // its buses may be those of the simulator
	UptimeMS  int64     `json:"uptime_ms"` // of the agent
	Time      time.Time `json:"time"`
	ClockSet  bool      `json:"clock_set"` // false: time is nonsense, go by uptime
	Store     Store     `json:"store"`
	Slots     []Slot    `json:"slots"`
	Hosts     []Host    `json:"hosts"`
	VMs       []VM      `json:"vms"`
	Moves     []Move    `json:"moves"`
	Warnings  []string  `json:"warnings"`
}

// Store is the agent's own memory.
type Store struct {
	OK          bool   `json:"ok"`
	Problem     string `json:"problem,omitempty"`
	Incarnation string `json:"incarnation,omitempty"` // first half of every generation
	PageWrites  uint64 `json:"page_writes"`           // since the agent started
	FreePages   int    `json:"free_pages"`
	Damaged     int    `json:"damaged_pages"` // found at the start
}

// Slot is one device position, as last read from the hardware.
type Slot struct {
	Name         string   `json:"name"`
	Profile      string   `json:"profile"`
	Capabilities []string `json:"capabilities"`
	CannotHold   []string `json:"cannot_hold"` // invariants, with why
	Device       string   `json:"device,omitempty"`
	Group        uint16   `json:"group"`
	Host         string   `json:"host,omitempty"` // absent = free
	VM           string   `json:"vm,omitempty"`   // that has it, or that it is held for
	Held         bool     `json:"held"`
	Released     bool     `json:"released"`
	Generation   string   `json:"generation,omitempty"` // "9f3c2a10-17"; absent = none yet
	Flag         string   `json:"flag"`                 // none, armed, target, spent, void
	FlagReason   string   `json:"flag_reason,omitempty"`
	Policy       string   `json:"policy,omitempty"` // never, on-move, always
	Guard        bool     `json:"guard"`
	Hold         bool     `json:"hold"`
	Link         string   `json:"link"`          // up, down, enabled, unknown
	Cut          string   `json:"cut,omitempty"` // confirmed, unconfirmed
	Peer         string   `json:"peer,omitempty"`
	Memory       Verdict  `json:"memory"`
	Values       Values   `json:"values"`
	Latches      []string `json:"latches"`
	Power        string   `json:"power"`             // of the device: on, off, unknown
	Locate       bool     `json:"locate"`            // its LED is on
	Blocked      string   `json:"blocked,omitempty"` // why
	Busy         bool     `json:"busy"`
	Problem      string   `json:"problem,omitempty"`
	ReadAgeMS    int64    `json:"read_age_ms"`
	Port         string   `json:"port,omitempty"` // of the enclosure's switch
	VLAN         string   `json:"vlan,omitempty"` // what the port was last read as: "tagged, VLAN 101"
}

// Values are the engine's words that a verdict compares.
type Values struct {
	Resets uint32 `json:"resets" strict:"required"`
	Epoch  uint32 `json:"epoch" strict:"required"`
	Ident  uint32 `json:"ident" strict:"required"`
}

// Verdict answers GET /v1/slots/{slot}/verdict, and is part of others.
type Verdict struct {
	Slot       string `json:"slot,omitempty"`
	Generation string `json:"generation,omitempty"`
	Preserved  string `json:"preserved"` // yes, no, unknown; unknown is treated as no
	Reason     string `json:"reason"`
	Flag       string `json:"flag"`
	Now        Values `json:"now"`
	Base       Values `json:"base"`   // what they were compared with
	Proven     uint32 `json:"proven"` // reset count at the last proof; 0 = none
}

// Seen returns what an arm, ack or proof of life quotes of v.
func (v Verdict) Seen() Seen { return Seen{v.Generation, v.Now} }

// Host is one server.
type Host struct {
	Name   string   `json:"name"`
	Group  uint16   `json:"group"`
	MAC    string   `json:"mac"`
	Fenced bool     `json:"fenced"`
	Epoch  uint32   `json:"epoch"` // of the last fence; unfence quotes it
	Why    string   `json:"why,omitempty"`
	Slots  []string `json:"slots"`
}

// VM is a virtual machine as configured.
type VM struct {
	Name   string   `json:"name"`
	UUID   string   `json:"uuid"`
	Hosts  []string `json:"hosts"`
	Slots  []string `json:"slots"`
	Policy string   `json:"policy"`
}

// MoveRequest is the body of POST /v1/moves.
type MoveRequest struct {
	ID       string            `json:"id" strict:"required"` // chosen by the caller; a repeat has the effect of one
	VM       string            `json:"vm" strict:"required"`
	Slots    []string          `json:"slots,omitempty"` // absent = all of the VM
	To       string            `json:"to" strict:"required"`
	Expect   map[string]string `json:"expect,omitempty"`           // slot -> generation
	Preserve bool              `json:"preserve" strict:"required"` // never by default: false costs the memory
	WaitMS   int64             `json:"wait_ms,omitempty"`          // for the target's engine; absent = the agent's default
}

// Move answers POST /v1/moves and GET /v1/moves/{id}.
type Move struct {
	ID         string             `json:"id"`
	VM         string             `json:"vm"`
	Slots      []string           `json:"slots"`
	From       string             `json:"from,omitempty"`
	To         string             `json:"to"`
	State      string             `json:"state"` // running, done, waiting, undone, held, refused, blocked
	Generation string             `json:"generation,omitempty"`
	Preserve   bool               `json:"preserve"`
	Memory     map[string]Verdict `json:"memory,omitempty"`
	Steps      []Step             `json:"steps"`
	Reason     string             `json:"reason,omitempty"`
}

// Step is a finished step of a move.
type Step struct {
	Name string `json:"name"`
	AtUS int64  `json:"at_us"` // since the request
	Text string `json:"text"`
}

// AttachRequest is the body of POST /v1/slots/{slot}/attach. Slots has {slot}
// in it; absent, it is that one alone.
type AttachRequest struct {
	VM     string   `json:"vm" strict:"required"`
	Host   string   `json:"host" strict:"required"`
	Slots  []string `json:"slots,omitempty"`
	WaitMS int64    `json:"wait_ms,omitempty"`
}

// Attached answers an AttachRequest.
type Attached struct {
	Nonce      string             `json:"nonce"` // ack quotes it
	Moved      bool               `json:"moved"` // false: the set was there already
	State      string             `json:"state"`
	Generation map[string]string  `json:"generation"`
	Memory     map[string]Verdict `json:"memory"`
}

// ArmRequest is the body of POST /v1/slots/{slot}/arm. Without Seen it is no
// proof.
type ArmRequest struct {
	ID         string  `json:"id" strict:"required"`
	Generation string  `json:"generation" strict:"required"`
	Seen       *Values `json:"seen,omitempty"`
	LeaseMS    int64   `json:"lease_ms,omitempty"`
}

// Arming answers an ArmRequest.
type Arming struct {
	ID     string `json:"id"` // of the arming that stands
	Proof  bool   `json:"proof"`
	Flag   string `json:"flag"`
	Base   Values `json:"base"`
	Reason string `json:"reason,omitempty"`
}

// DisarmRequest is the body of POST /v1/slots/{slot}/disarm.
type DisarmRequest struct {
	ID string `json:"id" strict:"required"`
}

// AckRequest is the body of POST /v1/slots/{slot}/ack.
type AckRequest struct {
	Nonce      string `json:"nonce" strict:"required"`
	Generation string `json:"generation" strict:"required"`
	Seen       Values `json:"seen" strict:"required"`
}

// AliveRequest is the body of POST /v1/slots/{slot}/alive.
type AliveRequest struct {
	Generation string `json:"generation" strict:"required"`
	Seen       Values `json:"seen" strict:"required"`
}

// ReleaseRequest is the body of POST /v1/slots/{slot}/release. Slots is as in
// AttachRequest.
type ReleaseRequest struct {
	VM     string            `json:"vm,omitempty"` // required, but for force-free
	Slots  []string          `json:"slots,omitempty"`
	Expect map[string]string `json:"expect,omitempty"`
	Mode   string            `json:"mode" strict:"required"` // keep, hold, free, force-free
	Typed  string            `json:"typed,omitempty"`        // force-free: the slot's name, typed by a person at the console
}

// UnfenceRequest is the body of POST /v1/hosts/{host}/unfence.
type UnfenceRequest struct {
	Epoch uint32 `json:"epoch" strict:"required"` // of the fence that is lifted
}

// Fenced answers POST /v1/hosts/{host}/fence: all of Slots are cut.
type Fenced struct {
	Host  string   `json:"host"`
	Epoch uint32   `json:"epoch"`
	Slots []string `json:"slots"`
}

// Slots answers GET /v1/slots.
type Slots struct {
	Slots []Slot `json:"slots"`
}

// Hosts answers GET /v1/hosts.
type Hosts struct {
	Hosts []Host `json:"hosts"`
}

// Moves answers GET /v1/moves.
type Moves struct {
	Moves []Move `json:"moves"`
}

// Events answers GET /v1/events where no stream is asked for.
type Events struct {
	Gap    bool    `json:"gap"` // some after the ID that was asked for are lost
	Events []Event `json:"events"`
}

// Event is something that happened.
type Event struct {
	ID       string    `json:"id,omitempty"` // "RUN.SEQ": of which run of the agent, and its number there
	UptimeMS int64     `json:"uptime_ms"`
	Time     time.Time `json:"time"`
	Kind     string    `json:"kind"`
	Slot     string    `json:"slot,omitempty"`
	Host     string    `json:"host,omitempty"`
	VM       string    `json:"vm,omitempty"`
	Move     string    `json:"move,omitempty"`
	Code     string    `json:"code,omitempty"`
	Text     string    `json:"text"`
	By       string    `json:"by,omitempty"`
}

// KindGap is the kind of the event, without ID, that stands in a stream for
// events that are lost: the agent restarted or they are too long ago.
const KindGap = "gap"

// EventKinds are the kinds of events there are, beside KindGap.
var EventKinds = []string{
	"ack", "adopt", "arm", "attach", "blocked", "config", "console", "drain", "fault", "fence", "link", "linked", "locate",
	"move", "power", "recovery", "refused", "release", "repair", "reset", "resolve", "restore", "step", "store", "unfence", "vlan", "void",
}

// Seen is what a host has read of a slot, in one word that people and scripts
// can pass on: "9f3c2a10-17/5/0x1c2d3e4f/0x89ab12cd" is generation, reset
// count, power epoch and identity.
type Seen struct {
	Generation string
	Values     Values
}

// String gives the word.
func (s Seen) String() string {
	return fmt.Sprintf("%s/%d/0x%08x/0x%08x", s.Generation, s.Values.Resets, s.Values.Epoch, s.Values.Ident)
}

// ParseSeen is the inverse of String.
func ParseSeen(word string) (Seen, error) {
	p := strings.Split(word, "/")
	if len(p) == 4 && strings.Contains(p[0], "-") {
		resets, err1 := strconv.ParseUint(p[1], 10, 32)
		epoch, err2 := strconv.ParseUint(p[2], 0, 32)
		ident, err3 := strconv.ParseUint(p[3], 0, 32)
		if err1 == nil && err2 == nil && err3 == nil {
			return Seen{p[0], Values{uint32(resets), uint32(epoch), uint32(ident)}}, nil
		}
	}
	return Seen{}, fmt.Errorf("%q is not what 'baton verdict' prints as seen: want GENERATION/RESETS/EPOCH/IDENT", word)
}

// AuditRecord is what the agent's store keeps of something that changed
// assignments, fences, parts or configuration, or was refused.
type AuditRecord struct {
	Seq      uint32    `json:"seq"`       // of all that were ever kept in this store
	Run      uint32    `json:"run"`       // which start of the agent; uptimes of one run compare
	UptimeMS int64     `json:"uptime_ms"` // in that run
	Time     time.Time `json:"time"`      // zero where the clock was not set
	Kind     string    `json:"kind"`      // as of Event
	Slots    []string  `json:"slots"`
	Host     string    `json:"host,omitempty"`
	VM       string    `json:"vm,omitempty"`
	Move     string    `json:"move,omitempty"`
	Code     string    `json:"code,omitempty"`  // of a refusal or failure
	Count    uint32    `json:"count,omitempty"` // of equal refusals that this stands for; absent = one
	By       string    `json:"by,omitempty"`
	Text     string    `json:"text"`
}

// Audit answers GET /v1/audit: the records that are kept, oldest first.
type Audit struct {
	Records []AuditRecord `json:"records"`
	Lost    uint32        `json:"lost"` // older ones that are no longer kept
}

// DrainRequest is the body of POST /v1/hosts/{host}/drain. One of To and
// Release is given.
type DrainRequest struct {
	ID      string `json:"id" strict:"required"` // chosen by the caller; a repeat goes on with what is left
	To      string `json:"to,omitempty"`         // host that takes the sets
	Release string `json:"release,omitempty"`    // hold or free
	WaitMS  int64  `json:"wait_ms,omitempty"`    // of each move
}

// Drained answers a DrainRequest. Sets are in the order in which they were
// done; the first that failed is the last.
type Drained struct {
	Host string       `json:"host"`
	Done bool         `json:"done"` // the host has no slots here
	Sets []DrainedSet `json:"sets"`
	Left []string     `json:"left"` // slots that are still with the host
}

// DrainedSet is what became of a VM's slots.
type DrainedSet struct {
	VM     string   `json:"vm,omitempty"` // absent: slots that no VM has
	Slots  []string `json:"slots"`
	Move   string   `json:"move,omitempty"` // its ID
	State  string   `json:"state"`          // of the move, or released, failed
	Reason string   `json:"reason,omitempty"`
}

// Adoption answers GET and POST /v1/slots/{slot}/adopt: the parts that the
// agent knew, those it finds, and what adopting them means.
type Adoption struct {
	Slot       string   `json:"slot"`
	Needed     bool     `json:"needed"` // false: the parts are those the agent knows
	Old        Parts    `json:"old"`
	New        Parts    `json:"new"`
	Generation string   `json:"generation"` // that the slot has, or with POST has got
	Effect     []string `json:"effect"`     // what adopting does, a sentence each
	Token      string   `json:"token"`      // stands for New; POST quotes it
	Adopted    bool     `json:"adopted"`
}

// Parts are who is in a slot. What is not known is absent.
type Parts struct {
	Engine string `json:"engine,omitempty"` // MAC
	Device string `json:"device,omitempty"` // "10de:2330 accelerator"
	Serial string `json:"serial,omitempty"` // of the device, "0x48b02d0300a1b2c3"
	Chip   string `json:"chip,omitempty"`   // of the config block, as "24c256 at bus0/0x50"
	Block  string `json:"block,omitempty"`  // what is in it, in words
}

// AdoptRequest is the body of POST /v1/slots/{slot}/adopt.
type AdoptRequest struct {
	Token string `json:"token" strict:"required"`
}

// LocateRequest is the body of POST /v1/slots/{slot}/locate.
type LocateRequest struct {
	On bool `json:"on" strict:"required"`
}

// PowerRequest is the body of POST /v1/slots/{slot}/power.
type PowerRequest struct {
	Generation string `json:"generation" strict:"required"`
	State      string `json:"state" strict:"required"` // on, off, cycle
}

// ResetRequest is the body of POST /v1/slots/{slot}/reset.
type ResetRequest struct {
	Generation string `json:"generation" strict:"required"`
}

// ResolveRequest is the body of POST /v1/moves/{id}/resolve: the blocked set
// goes on without these slots.
type ResolveRequest struct {
	Drop []string `json:"drop" strict:"required"`
}

// Config answers GET /v1/config.
type Config struct {
	Version uint32 `json:"version"` // raised by every change; 0 = the file the agent was started with
	Where   string `json:"where"`   // where changes are kept: store, or the file's path
	Text    string `json:"text"`    // as it was given
	Trial   *Trial `json:"trial,omitempty"`
}

// Trial is a change of the controller's own network that is put back unless it
// is confirmed.
type Trial struct {
	Network string `json:"network"` // as it is now, in words
	Before  string `json:"before"`  // as it is going to be again
	LeftMS  int64  `json:"left_ms"`
}

// ConfigRequest is the body of POST /v1/config.
type ConfigRequest struct {
	Text      string  `json:"text" strict:"required"`
	Expect    *uint32 `json:"expect,omitempty"`     // version that is to be replaced
	DryRun    bool    `json:"dry_run,omitempty"`    // only say what would be done
	Restart   bool    `json:"restart,omitempty"`    // the agent may start itself again where that is needed
	ConfirmMS int64   `json:"confirm_ms,omitempty"` // of a change of network; absent = 2 min
}

// ConfigApplied answers a ConfigRequest.
type ConfigApplied struct {
	Version    uint32   `json:"version"`    // that is in force
	Changes    []string `json:"changes"`    // what differs from before, a line each
	Restart    []string `json:"restart"`    // of them, what needs a start of the agent
	Restarting bool     `json:"restarting"` // the agent is doing that now; it touches no link
	DryRun     bool     `json:"dry_run"`
	Trial      *Trial   `json:"trial,omitempty"`
}

// BackupFormat is that of a Backup made by this version.
const BackupFormat = 1

// Backup answers GET /v1/backup: what is needed to set up a new controller. Its
// configuration has the hash of the console's password, if there is one.
type Backup struct {
	Format      int          `json:"format" strict:"required"`
	Enclosure   string       `json:"enclosure" strict:"required"`
	Agent       string       `json:"agent"`
	Time        time.Time    `json:"time"` // may be wrong: see ClockSet
	ClockSet    bool         `json:"clock_set"`
	Incarnation string       `json:"incarnation" strict:"required"`
	Version     uint32       `json:"version"` // of the configuration
	Config      string       `json:"config" strict:"required"`
	Slots       []BackupSlot `json:"slots" strict:"required"`
	Hosts       []BackupHost `json:"hosts" strict:"required"`
	Sum         string       `json:"sum" strict:"required"` // CRC-32C over the rest
}

// BackupSlot is a slot's part of a Backup: a floor, never an assignment.
type BackupSlot struct {
	Name       string `json:"name" strict:"required"`
	Generation string `json:"generation" strict:"required"`
}

// BackupHost is a host's part of a Backup.
type BackupHost struct {
	Name  string `json:"name" strict:"required"`
	Epoch uint32 `json:"epoch" strict:"required"`
}

// RestoreRequest is the body of POST /v1/backup.
type RestoreRequest struct {
	Backup Backup `json:"backup" strict:"required"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// Restored answers a RestoreRequest.
type Restored struct {
	Changes    []string `json:"changes"` // a line each
	Restarting bool     `json:"restarting"`
	DryRun     bool     `json:"dry_run"`
}

// NVMReport answers GET /v1/nvm/check and POST /v1/nvm/repair.
type NVMReport struct {
	State    string       `json:"state"` // of the store: formatted, blank, foreign, half formatted, unreadable
	Findings []NVMFinding `json:"findings"`
	Token    string       `json:"token"` // stands for Findings; repair quotes it
	// After a repair:
	Repaired   bool `json:"repaired"`
	Restarting bool `json:"restarting"` // the agent reads everything anew now
}

// NVMFinding is one thing that a check found.
type NVMFinding struct {
	Where  string `json:"where"`          // "store page 17", "gpu0 config block at bus0/0x50"
	What   string `json:"what"`           // is wrong
	Grade  string `json:"grade"`          // note, damage, unusable
	Repair string `json:"repair"`         // what repair would do; "" = nothing
	Lost   string `json:"lost,omitempty"` // what can not be saved
}

// RepairRequest is the body of POST /v1/nvm/repair.
type RepairRequest struct {
	Token  string `json:"token" strict:"required"`
	Format bool   `json:"format,omitempty"` // the store may be made anew: all it held is lost
}

// NVMDump answers GET /v1/nvm/dump.
type NVMDump struct {
	Of     string `json:"of"`   // store, or a slot
	Part   string `json:"part"` // "24c256 at bus0/0x57"
	Offset int64  `json:"offset"`
	Image  []byte `json:"image"` // base64
}

// Levels of a CheckLine.
const (
	CheckOK   = "ok"
	CheckWarn = "warn" // somebody should look at it
	CheckFail = "fail" // something does not work
)

// Check answers POST /v1/check: how all is that can be looked at without
// changing it.
type Check struct {
	Lines []CheckLine `json:"lines"`
}

// CheckLine is one thing that was looked at.
type CheckLine struct {
	Area    string `json:"area"`    // agent, bus, store, engine, chip, vlan, host, ...
	Subject string `json:"subject"` // which: a bus, a slot, a file
	Level   string `json:"level"`   // ok, warn, fail
	Text    string `json:"text"`
	Next    string `json:"next,omitempty"` // what to do
}

// What a ConsoleNote may say.
const (
	ConsoleUnlocked = "unlocked"
	ConsoleLocked   = "locked"         // by idle time, or by hand
	ConsoleRefused  = "wrong-password" // was typed
)

// ConsoleNote is the body of POST /v1/console: something that happened at the
// serial console, for the events and the audit.
type ConsoleNote struct {
	What string `json:"what" strict:"required"`
}
