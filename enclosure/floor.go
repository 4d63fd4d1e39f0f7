package enclosure

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"baton/ee"
	"baton/enclosure/plan"
	"baton/nvm"
)

// Floor is what a backup says of generations and fences: nothing at or below
// it may come again. It is no assignment.
type Floor struct {
	Slots map[string]ee.Generation
	Hosts map[string]uint32 // epochs of fences
}

// floorMax bounds the generations and epochs of a floor: above it there would
// soon be none left to give out.
const floorMax = 0xF0000000

// Floor returns the present one. Where a backup has raised it above a slot's
// generation, that is what the slot's says: a backup of a backup loses nothing.
func (e *Enclosure) Floor() Floor {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := Floor{map[string]ee.Generation{}, map[string]uint32{}}
	if e.store == nil {
		return f
	}
	for _, s := range e.slots {
		f.Slots[s.cfg.Name] = ee.Generation{Incarnation: e.inc, Counter: max(s.st.Now.Gen, e.floor.Counter)}
	}
	for name, h := range e.hosts {
		f.Hosts[name] = h.Epoch
	}
	return f
}

// Raise takes a floor of a backup into the store, and says in words what that
// changed. What is newer here stays. A host of which the backup knows a fence
// that is missing here is fenced anew, its slots cut and held: nobody knows why
// it was. With dry nothing is changed. A repeat changes nothing.
func (e *Enclosure) Raise(ctx context.Context, f Floor, dry bool, by string) ([]string, error) {
	if err := checkFloor(f); err != nil {
		return nil, e.refused(by, err)
	}
	if problem := e.storeProblem(); problem != nil {
		return nil, e.refused(by, problem)
	}
	if !dry {
		// What is being assigned has a generation already, perhaps one of the backup's.
		if err := e.acquire(ctx, "restore", false, e.slots...); err != nil {
			return nil, e.refused(by, err)
		}
	}
	words, err := e.raiseGenerations(ctx, f, dry)
	if !dry {
		e.release(e.slots...)
	}
	if err != nil {
		return words, e.refused(by, err)
	}
	more, err := e.raiseFences(ctx, f, dry, by)
	words = append(words, more...)
	if !dry {
		for _, w := range words {
			e.emit(Event{Kind: "restore", Text: w, By: by})
		}
	}
	if err != nil {
		return words, e.refused(by, err)
	}
	return words, nil
}

func checkFloor(f Floor) error {
	bad := func(what string) error {
		return &Error{Code: CodeBadBackup, What: what, State: "nothing was changed", Next: "use a backup that 'baton backup' has written"}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Slots)) {
		if f.Slots[name].Counter > floorMax {
			return bad(fmt.Sprintf("the backup's generation of %s is %s, above all that are given out", name, f.Slots[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Hosts)) {
		if f.Hosts[name] > floorMax {
			return bad(fmt.Sprintf("the backup's fence of %s is %d, above all that are given out", name, f.Hosts[name]))
		}
		if len(name) == 0 || len(name) > maxHostName {
			return bad(fmt.Sprintf("the backup names a host %q", name))
		}
	}
	return nil
}

// maxHostName is what a record's key has room for.
const maxHostName = 64

func (e *Enclosure) raiseGenerations(ctx context.Context, f Floor, dry bool) (words []string, err error) {
	floor := plan.Floor{Incarnation: e.inc}
	foreign := map[uint32]bool{}
	for _, name := range slices.Sorted(maps.Keys(f.Slots)) {
		g := f.Slots[name]
		if g.Incarnation != e.inc {
			foreign[g.Incarnation] = true
			continue
		}
		floor.Counter = max(floor.Counter, g.Counter)
		if s, err := e.slotNamed(name); err == nil && g.Counter > e.state(s).Now.Gen && g.Counter > e.floorNow() {
			words = append(words, fmt.Sprintf("%s: the backup knows generation %s, newer than ours (%s): the store here is older than the backup", name, g, e.generation(s)))
		}
	}
	for _, inc := range slices.Sorted(maps.Keys(foreign)) {
		words = append(words, fmt.Sprintf("the backup's generations are of store %08x, ours is %08x: none of them can come again here, whatever they count", inc, e.inc))
	}
	e.mu.Lock()
	next := e.nextGen
	e.mu.Unlock()
	if floor.Counter < next {
		return words, nil
	}
	words = append(words, fmt.Sprintf("the next generation is %d, above all that the backup knows", floor.Counter+1))
	if dry {
		return words, nil
	}
	return words, e.put(context.WithoutCancel(ctx), nvm.Urgent, e.floorRecord(floor))
}

// passLost leaves out the generations that lost records may have told of, a
// backup's floor above all: the next start may no longer see that any were lost.
func (e *Enclosure) passLost(ctx context.Context) error {
	e.mu.Lock()
	var assigned uint32
	for gen := range e.all {
		assigned = max(assigned, gen)
	}
	floor := plan.Floor{Incarnation: e.inc, Counter: assigned + plan.LostGap}
	due := len(e.report.Lost) > 0 && assigned < floorMax && floor.Counter > e.floor.Counter
	e.mu.Unlock()
	if !due {
		return nil
	}
	return e.put(ctx, nvm.Urgent, e.floorRecord(floor))
}

func (e *Enclosure) floorNow() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.floor.Counter
}

func (e *Enclosure) raiseFences(ctx context.Context, f Floor, dry bool, by string) (words []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(f.Hosts)) {
		epoch := f.Hosts[name]
		rec, _ := e.fenced(name)
		if epoch <= rec.Epoch {
			continue
		}
		slots := ""
		if h := e.host(name); h != nil {
			if have := e.slotsOf(h.Group); len(have) > 0 {
				slots = fmt.Sprintf("; its slots %v are cut and held", names(have))
			}
		}
		words = append(words, fmt.Sprintf("%s: the backup knows fence %d, ours is %d: it is fenced anew until 'baton unfence %s'%s", name, epoch, rec.Epoch, name, slots))
		if dry {
			continue
		}
		if err := e.fenceAbove(ctx, name, epoch, by); err != nil {
			return words, err
		}
	}
	return words, nil
}

// fenceAbove fences a host with an epoch above a backup's. One that is not
// configured gets the record alone: it has no slots.
func (e *Enclosure) fenceAbove(ctx context.Context, name string, epoch uint32, by string) error {
	if e.host(name) != nil {
		_, err := e.fence(ctx, name, epoch, by)
		return err
	}
	done, err := e.lockHost(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	rec, _ := e.fenced(name)
	rec.Fenced, rec.Epoch = true, max(rec.Epoch, epoch)+1
	work := context.WithoutCancel(ctx)
	if err := e.putHost(work, name, rec); err != nil {
		return err
	}
	return e.callRoll(work)
}
