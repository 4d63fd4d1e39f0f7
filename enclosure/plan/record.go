// Package plan decides: what a slot's records mean, what its engine should look
// like, what a reading of the hardware proves, and what recovery must mend. It
// does no I/O, so that tools can ask it the same questions as the agent.
//
// The records are those of docs/nvm-format.md; the tables are printed into
// docs/state-tables.md.
package plan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/bits"
	"slices"

	"baton/ee"
)

// Kind is what made an assignment.
type Kind uint8

// Kinds of assignment. The numbers are in the store: never reuse one.
const (
	KindMove    Kind = 1
	KindAttach  Kind = 2 // ID is the start nonce
	KindUndo    Kind = 3 // ID is the move that was aborted; final
	KindFence   Kind = 4
	KindRelease Kind = 5
	KindAdopt   Kind = 6 // first start, or rebuilt from a config block
	KindCancel  Kind = 7 // a move that was refused after its intent was written, before anything was cut
	KindDrop    Kind = 8 // taken out of a blocked set by hand, and held for its VM
	KindForced  Kind = 9 // freed by hand, whatever the hardware did
)

var kindNames = map[Kind]string{
	KindMove: "move", KindAttach: "attach", KindUndo: "undo", KindFence: "fence",
	KindRelease: "release", KindAdopt: "adopt", KindCancel: "cancel", KindDrop: "drop", KindForced: "forced",
}

func (k Kind) String() string { return kindNames[k] }

// ByHand tells whether a person took the slot from where it was although its
// hardware did not do as told: nobody gets it before a confirmed cut is read.
func (k Kind) ByHand() bool { return k == KindDrop || k == KindForced }

// Assignment is the record that gives a set of slots to a group. For each slot
// the newest one counts, by generation; it is the intent of the config blocks
// that follow it, and "done" is inferred from them.
type Assignment struct {
	Kind     Kind
	Preserve bool   // the device's memory goes along, if the evidence holds
	To       uint16 // group, or ee.GroupFree
	Slots    SlotSet
	VM       ee.UUID // that has the set, or that it is held for; zero = nobody
	ID       ee.UUID
	Gen      uint32 // counter; the incarnation is the store's
}

// SlotSet is a set of slot indexes, 0..63.
type SlotSet uint64

// Has tells whether slot i is in the set.
func (s SlotSet) Has(i int) bool { return s&(1<<i) != 0 }

// With returns the set and slot i.
func (s SlotSet) With(i int) SlotSet { return s | 1<<i }

// Key prefixes in the store. Keys are short: key and value of an assignment
// fit one page of 64 bytes (docs/nvm-format.md).
const (
	PrefixAssignment = "a" // + counter, big-endian
	PrefixEvidence   = "b" // + slot
	PrefixName       = "n" // + slot: the slot's name
	PrefixStart      = "s" // + the lowest slot of the set
	PrefixReleased   = "r" // + slot
	PrefixHost       = "h" // + name
	KeyRoll          = "H"
	PrefixAdopted    = "i" // + slot
	PrefixUncut      = "u" // + slot
	KeyFloor         = "g"
)

// ErrRecord is returned when a record's bytes are not of the form that
// docs/nvm-format.md gives.
var ErrRecord = errors.New("record of an unknown form")

const (
	assignmentSize = 1 + 2 + 8 + 16 + 16
	preserveBit    = 0x80
)

// Key is where a is kept.
func (a Assignment) Key() string {
	return PrefixAssignment + string(binary.BigEndian.AppendUint32(nil, a.Gen))
}

// Encode returns a's value in the store.
func (a Assignment) Encode() []byte {
	p := make([]byte, 0, assignmentSize)
	k := byte(a.Kind)
	if a.Preserve {
		k |= preserveBit
	}
	p = append(p, k)
	p = binary.LittleEndian.AppendUint16(p, a.To)
	p = binary.LittleEndian.AppendUint64(p, uint64(a.Slots))
	p = append(p, a.VM[:]...)
	return append(p, a.ID[:]...)
}

// DecodeAssignment is the inverse of Key and Encode.
func DecodeAssignment(key string, p []byte) (Assignment, error) {
	if len(key) != 5 || key[:1] != PrefixAssignment || len(p) != assignmentSize {
		return Assignment{}, fmt.Errorf("%w: assignment of %d bytes under %q", ErrRecord, len(p), key)
	}
	a := Assignment{
		Kind:     Kind(p[0] &^ preserveBit),
		Preserve: p[0]&preserveBit != 0,
		To:       binary.LittleEndian.Uint16(p[1:]),
		Slots:    SlotSet(binary.LittleEndian.Uint64(p[3:])),
		VM:       ee.UUID(p[11:27]),
		ID:       ee.UUID(p[27:43]),
		Gen:      binary.BigEndian.Uint32([]byte(key[1:])),
	}
	if kindNames[a.Kind] == "" || a.Slots == 0 || (!ee.ValidGroup(a.To) && a.To != ee.GroupFree) {
		return Assignment{}, fmt.Errorf("%w: kind %d, group %d, slots 0x%x", ErrRecord, a.Kind, a.To, uint64(a.Slots))
	}
	return a, nil
}

// Evidence is the record of what was known of a slot's device when the flag
// last changed without a change of assignment: by arm, disarm, ack, a start in
// place, or doubt.
type Evidence struct {
	Flag        Flag   // none, armed, target, spent or void
	Gen         uint32 // the assignment it was written under
	Base        Values
	ID          ee.UUID // of the arming, or the nonce that was acknowledged
	GuardBefore bool    // what disarm goes back to
	Acked       bool    // a VM was seen to use the slot under Gen
	Lease       uint16  // seconds, of an arming
	Why         Reason  // of void
	Start       uint32  // serial of the latest start that was acknowledged; 0 = none
}

const (
	evidenceSize = 1 + 4 + 12 + 16 + 1 + 2 + 1 + 4
	guardBit     = 1
	ackedBit     = 2
)

// SlotKey is the key of slot i's record under a prefix.
func SlotKey(prefix string, i int) string { return prefix + string([]byte{byte(i)}) }

// Encode returns e's value in the store.
func (e Evidence) Encode() []byte {
	p := make([]byte, 0, evidenceSize)
	p = append(p, flagCode[e.Flag])
	p = binary.LittleEndian.AppendUint32(p, e.Gen)
	p = binary.LittleEndian.AppendUint32(p, e.Base.Resets)
	p = binary.LittleEndian.AppendUint32(p, e.Base.Epoch)
	p = binary.LittleEndian.AppendUint32(p, e.Base.Ident)
	p = append(p, e.ID[:]...)
	var bits byte
	if e.GuardBefore {
		bits |= guardBit
	}
	if e.Acked {
		bits |= ackedBit
	}
	p = append(p, bits)
	p = binary.LittleEndian.AppendUint16(p, e.Lease)
	p = append(p, byte(e.Why))
	return binary.LittleEndian.AppendUint32(p, e.Start)
}

// DecodeEvidence is the inverse of Encode.
func DecodeEvidence(p []byte) (Evidence, error) {
	if len(p) != evidenceSize {
		return Evidence{}, fmt.Errorf("%w: evidence of %d bytes", ErrRecord, len(p))
	}
	e := Evidence{
		Gen: binary.LittleEndian.Uint32(p[1:]),
		Base: Values{
			Resets: binary.LittleEndian.Uint32(p[5:]),
			Epoch:  binary.LittleEndian.Uint32(p[9:]),
			Ident:  binary.LittleEndian.Uint32(p[13:]),
		},
		ID:          ee.UUID(p[17:33]),
		GuardBefore: p[33]&guardBit != 0,
		Acked:       p[33]&ackedBit != 0,
		Lease:       binary.LittleEndian.Uint16(p[34:]),
		Why:         Reason(p[36]),
		Start:       binary.LittleEndian.Uint32(p[37:]),
	}
	for f, c := range flagCode {
		if c == p[0] {
			e.Flag = f
		}
	}
	if e.Flag == "" || p[33]&^(guardBit|ackedBit) != 0 || int(e.Why) >= len(reasonText) {
		return Evidence{}, fmt.Errorf("%w: evidence with flag %d, bits 0x%x, reason %d", ErrRecord, p[0], p[33], p[36])
	}
	return e, nil
}

// Start is the record of a VM's start on slots that it already had.
type Start struct {
	Nonce  ee.UUID
	Gen    uint32 // highest generation of its slots at that time
	Serial uint32 // of all starts: for each slot the highest counts
	Slots  SlotSet
}

const startSize = 16 + 4 + 4 + 8

// Key is where s is kept. A later start of a set with the same lowest slot
// replaces it.
func (s Start) Key() string { return SlotKey(PrefixStart, bits.TrailingZeros64(uint64(s.Slots))) }

// Encode returns s's value in the store.
func (s Start) Encode() []byte {
	p := append(make([]byte, 0, startSize), s.Nonce[:]...)
	p = binary.LittleEndian.AppendUint32(p, s.Gen)
	p = binary.LittleEndian.AppendUint32(p, s.Serial)
	return binary.LittleEndian.AppendUint64(p, uint64(s.Slots))
}

// DecodeStart is the inverse of Encode.
func DecodeStart(p []byte) (Start, error) {
	if len(p) != startSize {
		return Start{}, fmt.Errorf("%w: start of %d bytes", ErrRecord, len(p))
	}
	return Start{
		Nonce:  ee.UUID(p[:16]),
		Gen:    binary.LittleEndian.Uint32(p[16:]),
		Serial: binary.LittleEndian.Uint32(p[20:]),
		Slots:  SlotSet(binary.LittleEndian.Uint64(p[24:])),
	}, nil
}

// Host is the record of a host's fence. A host without one is fenced: a store
// that was formatted or lost records knows of nobody that may be trusted.
type Host struct {
	Fenced bool
	Epoch  uint32 // raised by every fence; unfence quotes it
	Serial uint32 // of all changes of hosts
}

const hostSize = 1 + 4 + 4

// Encode returns h's value in the store.
func (h Host) Encode() []byte {
	var f byte
	if h.Fenced {
		f = 1
	}
	p := binary.LittleEndian.AppendUint32([]byte{f}, h.Epoch)
	return binary.LittleEndian.AppendUint32(p, h.Serial)
}

// DecodeHost is the inverse of Encode.
func DecodeHost(p []byte) (Host, error) {
	if len(p) != hostSize || p[0] > 1 {
		return Host{}, fmt.Errorf("%w: host of %d bytes", ErrRecord, len(p))
	}
	return Host{Fenced: p[0] == 1, Epoch: binary.LittleEndian.Uint32(p[1:]), Serial: binary.LittleEndian.Uint32(p[5:])}, nil
}

// Roll is the record by which it is noticed that a host's record was lost: it
// is written, on a page of its own, after each change of one.
type Roll struct {
	Serial uint32 // of the last change
	Sum    uint32 // CRC-32C over names and records of all hosts, by name
}

const rollSize = 4 + 4

// RollOf calls the roll of hosts.
func RollOf(hosts map[string]Host) Roll {
	var r Roll
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		h := hosts[name]
		r.Serial = max(r.Serial, h.Serial)
		r.Sum = crc32.Update(r.Sum, castagnoli, []byte(name))
		r.Sum = crc32.Update(r.Sum, castagnoli, h.Encode())
	}
	return r
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Complete tells whether the hosts that were read are all that were written.
// r is the Roll that was read, nil if there is none. A change whose Roll was
// not written any more, since power went between the two, is no loss: then
// the newest host is one ahead.
func (r *Roll) Complete(hosts map[string]Host) bool {
	now := RollOf(hosts)
	if r == nil {
		return now.Serial <= 1
	}
	return now == *r || now.Serial == r.Serial+1
}

// Encode returns r's value in the store.
func (r Roll) Encode() []byte {
	p := binary.LittleEndian.AppendUint32(make([]byte, 0, rollSize), r.Serial)
	return binary.LittleEndian.AppendUint32(p, r.Sum)
}

// DecodeRoll is the inverse of Encode.
func DecodeRoll(p []byte) (Roll, error) {
	if len(p) != rollSize {
		return Roll{}, fmt.Errorf("%w: roll of %d bytes", ErrRecord, len(p))
	}
	return Roll{Serial: binary.LittleEndian.Uint32(p), Sum: binary.LittleEndian.Uint32(p[4:])}, nil
}

// Identity is who is in a slot; zero = any, or not known.
type Identity struct {
	MAC    ee.MAC // the engine's
	Serial uint64 // the device's
}

// Adopted is the record of parts that a person took as a slot's in place of
// the configured ones.
type Adopted struct {
	Configured Identity // what the configuration said then
	Found      Identity // what counts instead, as long as it says so
}

const adoptedSize = 2 * (6 + 8)

// Encode returns a's value in the store.
func (a Adopted) Encode() []byte {
	p := make([]byte, 0, adoptedSize)
	for _, id := range []Identity{a.Configured, a.Found} {
		p = append(p, id.MAC[:]...)
		p = binary.LittleEndian.AppendUint64(p, id.Serial)
	}
	return p
}

// DecodeAdopted is the inverse of Encode.
func DecodeAdopted(p []byte) (Adopted, error) {
	if len(p) != adoptedSize {
		return Adopted{}, fmt.Errorf("%w: adopted identity of %d bytes", ErrRecord, len(p))
	}
	id := func(p []byte) Identity { return Identity{ee.MAC(p), binary.LittleEndian.Uint64(p[6:])} }
	return Adopted{id(p), id(p[adoptedSize/2:])}, nil
}

// Uncut is the record of who may still reach a slot that was taken by hand: its
// cut from these groups had not been confirmed. It counts only for the
// assignment that it was written with.
type Uncut struct {
	Gen    uint32
	Groups string // of hosts, two bytes each, little-endian; at most uncutMax. A string, so that records compare
}

// uncutMax is how many groups an Uncut has room for on one page; a slot that is
// in more places at once is beyond what records can say.
const uncutMax = 20

// UncutOf makes the record; groups beyond uncutMax are left out, the last ones
// first.
func UncutOf(gen uint32, groups []uint16) Uncut {
	var p []byte
	for _, g := range groups[:min(len(groups), uncutMax)] {
		p = binary.LittleEndian.AppendUint16(p, g)
	}
	return Uncut{gen, string(p)}
}

// Has tells whether a group is among u's.
func (u Uncut) Has(group uint16) bool {
	for p := []byte(u.Groups); len(p) > 1; p = p[2:] {
		if binary.LittleEndian.Uint16(p) == group {
			return true
		}
	}
	return false
}

// All returns u's groups.
func (u Uncut) All() (groups []uint16) {
	for p := []byte(u.Groups); len(p) > 1; p = p[2:] {
		groups = append(groups, binary.LittleEndian.Uint16(p))
	}
	return groups
}

// Encode returns u's value in the store.
func (u Uncut) Encode() []byte {
	return append(binary.LittleEndian.AppendUint32(nil, u.Gen), u.Groups...)
}

// DecodeUncut is the inverse of Encode.
func DecodeUncut(p []byte) (Uncut, error) {
	if len(p) < 4 || len(p)%2 != 0 || len(p) > 4+2*uncutMax {
		return Uncut{}, fmt.Errorf("%w: uncut of %d bytes", ErrRecord, len(p))
	}
	return Uncut{binary.LittleEndian.Uint32(p), string(p[4:])}, nil
}

// Floor is the record below which no generation is given out: a backup knew of
// it.
type Floor struct {
	Incarnation uint32 // of the store that gave it out; of another one's nothing follows
	Counter     uint32
}

const floorSize = 4 + 4

// Encode returns f's value in the store.
func (f Floor) Encode() []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, f.Incarnation), f.Counter)
}

// DecodeFloor is the inverse of Encode.
func DecodeFloor(p []byte) (Floor, error) {
	if len(p) != floorSize {
		return Floor{}, fmt.Errorf("%w: floor of %d bytes", ErrRecord, len(p))
	}
	return Floor{binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:])}, nil
}
