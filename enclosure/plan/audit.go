package plan

import (
	"encoding/binary"
	"fmt"
	"time"

	"baton/ee"
)

// Audit is the record of something that changed assignments, fences, parts or
// configuration, or was refused. It is for people: nothing is decided by it.
type Audit struct {
	Seq    uint32 // of all that were ever made in this store, from 1
	Run    uint32 // which start of the agent, from 1
	Uptime time.Duration
	Wall   time.Time // zero where the clock was not set
	Kind   string
	Code   string
	Slots  SlotSet
	Host   string
	VM     string
	Move   ee.UUID
	By     string
	Count  uint32 // of equal ones that this stands for; 0 = one
	Text   string
}

// PrefixAudit and a byte are the keys of the audit's ring.
const PrefixAudit = "l"

// AuditSize is the largest value of an audit record: with its key and their
// lengths it fills four pages of 64 bytes. AuditText bounds its text.
const (
	AuditSize = 200
	AuditText = 120

	auditWord = 36 // of names; the rest of one that is longer is cut off
	auditForm = 1
	auditHead = 1 + 1 + 4 + 4 + 5

	maxUptime = 1<<40 - 1 // milliseconds: 34 years
)

// What the second byte of an audit record says is there.
const (
	auditWall = 1 << iota
	auditSlots
	auditCount
	auditMove
	auditBits = 1<<iota - 1
)

// clockSet is the first year that a clock which was set can show: a controller
// without a battery starts in 1970.
const clockSet = 2026

// Fit returns a as its record can hold it: printable ASCII, names and text cut
// to what there is room for, times in whole seconds and milliseconds, and no
// wall time where the clock was not set.
func (a Audit) Fit() Audit {
	a.Uptime = min(max(0, a.Uptime.Truncate(time.Millisecond)), maxUptime*time.Millisecond)
	if s := a.Wall.Unix(); a.Wall.UTC().Year() < clockSet || s > 1<<32-1 {
		a.Wall = time.Time{}
	} else {
		a.Wall = time.Unix(s, 0).UTC()
	}
	for _, w := range []*string{&a.Kind, &a.Code, &a.Host, &a.VM, &a.By} {
		*w = printable(*w, auditWord)
	}
	a.Text = printable(a.Text, AuditText)
	// The words alone can be more than there is room for only where nobody
	// writes such ones: kind and code are ours, and short.
	for _, w := range []*string{&a.Text, &a.Kind, &a.Code} {
		if over := len(a.Encode()) - AuditSize; over > 0 {
			*w = (*w)[:max(0, len(*w)-over)]
		}
	}
	return a
}

// printable is s in printable ASCII, a '?' for each other character, and at most
// n of them; the last three are dots where some were cut off.
func printable(s string, n int) string {
	p := make([]byte, 0, min(len(s), n+1))
	for _, r := range s {
		if len(p) > n {
			break
		}
		if r < ' ' || r > '~' {
			r = '?'
		}
		p = append(p, byte(r))
	}
	if len(p) > n {
		p = append(p[:n-3], "..."...)
	}
	return string(p)
}

// Encode returns the value in the store of a record that fits.
func (a Audit) Encode() []byte {
	p := make([]byte, 2, AuditSize)
	p[0] = auditForm
	p = binary.LittleEndian.AppendUint32(p, a.Seq)
	p = binary.LittleEndian.AppendUint32(p, a.Run)
	up := uint64(a.Uptime / time.Millisecond)
	p = append(p, byte(up), byte(up>>8), byte(up>>16), byte(up>>24), byte(up>>32))
	if !a.Wall.IsZero() {
		p[1] |= auditWall
		p = binary.LittleEndian.AppendUint32(p, uint32(a.Wall.Unix()))
	}
	if a.Slots != 0 {
		p[1] |= auditSlots
		p = binary.LittleEndian.AppendUint64(p, uint64(a.Slots))
	}
	if a.Count != 0 {
		p[1] |= auditCount
		p = binary.LittleEndian.AppendUint32(p, a.Count)
	}
	if !a.Move.IsZero() {
		p[1] |= auditMove
		p = append(p, a.Move[:]...)
	}
	for _, s := range []string{a.Kind, a.Code, a.Host, a.VM, a.By, a.Text} {
		p = append(append(p, byte(len(s))), s...)
	}
	return p
}

// DecodeAudit is the inverse of Encode.
func DecodeAudit(value []byte) (Audit, error) {
	p := value
	bad := func(what string) (Audit, error) {
		return Audit{}, fmt.Errorf("%w: audit of %d bytes: %s", ErrRecord, len(value), what)
	}
	if len(p) < auditHead || len(p) > AuditSize || p[0] != auditForm || p[1]&^auditBits != 0 {
		return bad("its head")
	}
	bits := p[1]
	a := Audit{Seq: binary.LittleEndian.Uint32(p[2:]), Run: binary.LittleEndian.Uint32(p[6:])}
	up := uint64(binary.LittleEndian.Uint32(p[10:])) | uint64(p[14])<<32
	a.Uptime = time.Duration(up) * time.Millisecond
	p = p[auditHead:]
	short := false
	take := func(bit byte, n int) []byte { // zeros where there is none
		if bits&bit == 0 || len(p) < n {
			short = short || bits&bit != 0
			return make([]byte, n)
		}
		q := p[:n]
		p = p[n:]
		return q
	}
	wall := binary.LittleEndian.Uint32(take(auditWall, 4))
	a.Slots = SlotSet(binary.LittleEndian.Uint64(take(auditSlots, 8)))
	a.Count = binary.LittleEndian.Uint32(take(auditCount, 4))
	a.Move = ee.UUID(take(auditMove, 16))
	if wall != 0 {
		a.Wall = time.Unix(int64(wall), 0).UTC()
	}
	for _, s := range []*string{&a.Kind, &a.Code, &a.Host, &a.VM, &a.By, &a.Text} {
		if len(p) == 0 || len(p) < 1+int(p[0]) {
			return bad("cut short")
		}
		*s = string(p[1 : 1+p[0]])
		p = p[1+p[0]:]
	}
	// One record has one form: what was decoded is what would be written.
	if short || len(p) != 0 || a.Seq == 0 || a.Fit() != a || string(a.Encode()) != string(value) {
		return bad("its content")
	}
	return a, nil
}
