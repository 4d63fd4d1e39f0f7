package enclosure

import (
	"fmt"
	"time"

	"baton/enclosure/bug"
	"baton/enclosure/plan"
)

// Refuse records that something was refused before it got here. Equal
// refusals, by caller and code, are counted, not repeated.
func (e *Enclosure) Refuse(by string, code Code, text string) {
	e.refusal(Event{Kind: "refused", Code: string(code), Text: text, By: by})
}

// refused records that a request of by was refused with err, and returns it as
// an *Error.
func (e *Enclosure) refused(by string, err error) error {
	known := e.asError(err)
	if bug.Is(bug.NothingSilent) {
		return known
	}
	e.refusal(Event{Kind: "refused", Slot: known.Slot, Code: string(known.Code), Text: known.Error(), By: by})
	return known
}

// refusalsApart is how many equal refusals are told of apart within a minute.
const refusalsApart = 256

// refusalKey is what makes refusals equal.
type refusalKey struct{ by, code, slot string }

// refusal makes an event of the first of equal refusals; those that come within
// a minute of it are counted, and told of by tellRepeats.
func (e *Enclosure) refusal(ev Event) {
	e.mu.Lock()
	e.counts.Refusals[Code(ev.Code)]++
	again := e.refusals.repeated(refusalKey{ev.By, ev.Code, ev.Slot}, time.Now())
	if again != nil {
		again.n++
		again.last = ev
	}
	e.mu.Unlock()
	if again == nil {
		e.emit(ev)
	}
}

// tellRepeats tells of refusals that were only counted, once their minute is
// over; with all, of whatever was counted.
func (e *Enclosure) tellRepeats(all bool) {
	e.mu.Lock()
	told := e.refusals.due(time.Now(), all)
	e.mu.Unlock()
	for _, t := range told {
		ev := t.last
		if t.key == (refusalKey{}) {
			ev.By, ev.Code, ev.Slot = "others", "", ""
		}
		times := "once more"
		if t.n > 1 {
			times = fmt.Sprintf("%d more times", t.n)
		}
		ev.Text = fmt.Sprintf("refused %s within a minute, the last: %s", times, ev.Text)
		e.emitCounted(ev, t.n, nil)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, counted := range []*tallies[auditKey, plan.Audit]{&e.trail.repeats, &e.trail.refusals} {
		for _, t := range counted.due(time.Now(), all) {
			a := t.last
			if t.key == (auditKey{}) {
				a.By, a.Code, a.Slots = "others", "", 0
			}
			a.Count = t.n
			e.trail.add(a)
		}
	}
}
