package plan

import (
	"fmt"

	"baton/ee"
	"baton/enclosure/bug"
)

// Values are the engine's words that a verdict compares: equal ones mean that
// no reset reached the device, its power was kept and nobody replaced it.
type Values struct {
	Resets uint32 // resets that reached the device since the engine started
	Epoch  uint32 // random at each power-up of the device
	Ident  uint32 // CRC over engine and device identity, serial included
}

// Answer is yes, no or unknown. Unknown is a state of its own; a host treats it
// as no.
type Answer string

// Answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown"
)

// Verdict tells whether a slot's device holds what it held when the VM that
// used it was last known to run, and why.
type Verdict struct {
	Preserved Answer
	Reason    string
	Flag      Flag
	Now       Values // as read; zero if unknown
	Base      Values // what they were compared with; zero if there was none
	Proven    uint32 // PROVEN register; 0 = no proof since the engine started
}

// Reason is why a flag is void, as kept in the store.
type Reason uint8

// Reasons. The numbers are in the store: never reuse one.
const (
	NoReason Reason = iota
	WhyReset
	WhyPower
	WhyReplaced
	WhyRestarted
	WhyForeignPeer
	WhyOperator
	WhyStoreLost
	WhyNoProof
)

var reasonText = [...]string{
	NoReason:       "",
	WhyReset:       "a reset reached the device after the VM was last known to run",
	WhyPower:       "the device lost power",
	WhyReplaced:    "engine or device is another one than before",
	WhyRestarted:   "the engine restarted, so what it saw before is not known",
	WhyForeignPeer: "an engine that is not the target's was connected",
	WhyOperator:    "given up by hand (reset, power, adopt or drop)",
	WhyStoreLost:   "the agent's store was lost or damaged",
	WhyNoProof:     "no proof that the VM ran since the device was assigned",
}

func (r Reason) String() string { return reasonText[r] }

// Judge gives the verdict for a slot from one reading of its engine; o is nil
// where the engine could not be read.
//
// PROVEN is written at every baseline (arm, proof of life, ack) and the engine
// clears it when it restarts, so PROVEN = RESETS says by itself that nothing
// reached the device since and that the engine never restarted. A baseline in
// the store must agree as well; without any since the VM got the device, PROVEN
// is of the VM before.
func Judge(s Slot, o *ee.Observation) Verdict {
	v := Verdict{Flag: s.Flag()}
	base, based := s.Baseline()
	if based {
		v.Base = base
	}
	if !s.Caps.Has(ee.CapStatus | ee.CapLatches) {
		v.Preserved = Unknown
		v.Reason = "this engine can not tell what reached the device (no Status or Latches)"
		return v
	}
	if o == nil {
		v.Preserved = Unknown
		v.Reason = "the engine can not be read; its registers decide once it answers"
		return v
	}
	v.Now, v.Proven = ValuesOf(*o), o.Proven
	why, text := doubt(s, *o, base, based)
	if bug.Is(bug.Flag) && why == WhyReset {
		why = NoReason
	}
	if why == NoReason {
		v.Preserved = Yes
		v.Reason = fmt.Sprintf("no reset reached the device and its power was kept since reset count %d was proven", o.Proven)
		return v
	}
	v.Preserved = No
	v.Reason = text
	return v
}

// doubt returns the first thing that speaks against the memory, NoReason if
// nothing does.
func doubt(s Slot, o ee.Observation, base Values, based bool) (Reason, string) {
	now := ValuesOf(o)
	switch {
	case s.Flag() == Void:
		return s.VoidReason(), s.VoidReason().String()
	case !s.HasEvidence():
		return WhyNoProof, WhyNoProof.String()
	case o.Status&(ee.StatDevice|ee.StatPower) != ee.StatDevice|ee.StatPower:
		return WhyPower, "the device is absent or has no power"
	case o.Proven == 0 && based:
		return WhyRestarted, WhyRestarted.String()
	case o.Proven == 0:
		return WhyNoProof, WhyNoProof.String()
	case based && now.Ident != base.Ident:
		return WhyReplaced, fmt.Sprintf("%s (identity 0x%08x, was 0x%08x)", WhyReplaced, now.Ident, base.Ident)
	case based && now.Epoch != base.Epoch:
		return WhyPower, fmt.Sprintf("%s (power epoch 0x%08x, was 0x%08x)", WhyPower, now.Epoch, base.Epoch)
	case now.Resets != o.Proven:
		return WhyReset, fmt.Sprintf("%s (reset count %d, proven at %d)", WhyReset, now.Resets, o.Proven)
	case based && s.fixed() && now.Resets != base.Resets:
		return WhyReset, fmt.Sprintf("%s (reset count %d, armed at %d)", WhyReset, now.Resets, base.Resets)
	}
	return NoReason, ""
}

// Doubt is the reason to record where Judge says no.
func Doubt(s Slot, o ee.Observation) Reason {
	base, based := s.Baseline()
	why, _ := doubt(s, o, base, based)
	return why
}

// ValuesOf picks the words that are compared.
func ValuesOf(o ee.Observation) Values { return Values{o.Resets, o.Epoch, o.Ident} }

// Arming answers an arm.
type Arming struct {
	Proof  bool
	Flag   Flag
	Base   Values
	ID     ee.UUID // of the arming that stands
	Reason string  // why void
}
