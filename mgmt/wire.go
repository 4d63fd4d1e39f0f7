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
	Blocked      string   `json:"blocked,omitempty"` // why
	Busy         bool     `json:"busy"`
	Problem      string   `json:"problem,omitempty"`
	ReadAgeMS    int64    `json:"read_age_ms"`
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
	VM     string            `json:"vm" strict:"required"`
	Slots  []string          `json:"slots,omitempty"`
	Expect map[string]string `json:"expect,omitempty"`
	Mode   string            `json:"mode" strict:"required"` // keep, hold, free
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
