// Package enclosure is the one place that orders store, engine and switch:
// moves of slots between hosts, the migration-target flag, fences, and what is
// done after a power cut. What it decides by is in package plan.
package enclosure

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"baton/ee"
	"baton/enclosure/plan"
	"baton/nvm"
)

// Enclosure is one enclosure's slots. Its methods may be called from any
// goroutine.
type Enclosure struct {
	cfg     Config
	log     *slog.Logger
	random  func([]byte)
	wall    func() time.Time // decides nothing
	started time.Time
	slots   []*slot
	roster  atomic.Pointer[roster]
	memory  *Memory
	loops   atomic.Pointer[[]*loop] // of Run

	mu        sync.Mutex // never held while anything is waited for
	refitting bool       // hosts, VMs or slots are being configured anew
	journal
	// distrusted hosts count as fenced until they are unfenced again: the store
	// lost records, perhaps theirs.
	distrusted map[string]bool
	moves      map[ee.UUID]*Move        // of this run of the agent, with their steps
	order      []ee.UUID                // of moves, oldest first
	fencing    map[string]chan struct{} // closed at the host's next fence
	hostWrite  chan struct{}            // full while a host's record is written
	looking    chan struct{}            // full while somebody looks who is in a slot
	hostLocks  map[string]chan struct{} // full = a fence or unfence of the host is under way
	repairing  chan struct{}            // full while a repair of the store is under way; nil = none ever was
	pending    map[string][]*slot       // host -> slots whose cut from it is not confirmed
	assignedAt time.Time                // of the last assignment
	wroteAt    time.Time                // of the last record that somebody waited for
	events     []Event
	lastEvent  uint64
	changed    chan struct{}
	refusals   tallies[refusalKey, Event]
	trail      trail
	counts     Counters
}

// opTimeout bounds what is done for one request to one set, waits for a peer
// apart.
const opTimeout = 30 * time.Second

// Open reads the store and the hardware and makes them agree: moves that were
// cut short are carried forward or undone, fences are completed, links that
// should be up come up. Where all agrees it writes nothing. A store or a slot
// that can not be used does not make it fail: Status says what is wrong, and
// what needs it is refused.
func Open(ctx context.Context, cfg Config, opt Options) (*Enclosure, error) {
	if len(cfg.Slots) == 0 || len(cfg.Slots) > maxSlots {
		return nil, fmt.Errorf("enclosure %s: %d slots, want 1..%d", cfg.Name, len(cfg.Slots), maxSlots)
	}
	e := &Enclosure{
		cfg:        cfg,
		log:        opt.log(),
		random:     opt.random(),
		wall:       opt.Wall,
		started:    time.Now(),
		moves:      map[ee.UUID]*Move{},
		fencing:    map[string]chan struct{}{},
		hostLocks:  map[string]chan struct{}{},
		hostWrite:  make(chan struct{}, 1),
		looking:    make(chan struct{}, 1),
		pending:    map[string][]*slot{},
		distrusted: map[string]bool{},
		changed:    make(chan struct{}),
		refusals:   tallies[refusalKey, Event]{most: refusalsApart},
		trail:      newTrail(),
		counts:     newCounters(),
		journal: journal{
			all: map[uint32]plan.Assignment{}, hosts: map[string]plan.Host{},
		},
	}
	for i, c := range cfg.Slots {
		e.slots = append(e.slots, newSlot(i, c))
	}
	if e.wall == nil {
		e.wall = time.Now
	}
	e.roster.Store(&roster{cfg.Hosts, cfg.VMs})
	e.loops.Store(&[]*loop{})
	m := opt.Memory
	if m == nil {
		m = newMemory(cfg.Store, opt)
		m.share(e)
		m.mount(ctx)
	} else {
		m.share(e)
		e.cfg.Store = m.cfg
	}
	if err := e.take(m); err != nil {
		e.problem = err
		e.emit(Event{Kind: "store", Code: string(err.Code), Text: err.Error()})
	}
	e.identify(ctx)
	if e.problem != nil {
		return e, ctx.Err()
	}
	err := e.nameSlots(ctx)
	if err == nil {
		err = e.fenceDistrusted(ctx)
	}
	if err == nil {
		err = e.passLost(ctx)
	}
	if err != nil {
		e.problem = e.asError(err)
		e.emit(Event{Kind: "store", Code: string(CodeStore), Text: e.problem.Error()})
		return e, ctx.Err()
	}
	e.recoverAll(ctx, !opt.SameBoot)
	return e, ctx.Err()
}

// cryptoRandom never fails (crypto/rand).
func cryptoRandom(p []byte) { rand.Read(p) }

// distrustAll makes every host count as fenced, also those that the
// configuration does not name today. fenceDistrusted must follow it.
func (e *Enclosure) distrustAll() {
	for _, h := range e.roster.Load().hosts {
		e.distrusted[h.Name] = true
	}
	for name := range e.hosts {
		e.distrusted[name] = true
	}
}

// storeReserve is how many pages of the store only intents, aborts and fences
// may use: more than any burst of them between two steps of tending.
const storeReserve = 32

// identify looks who is in each slot before anything is written to it.
func (e *Enclosure) identify(ctx context.Context) {
	items := make([]*item, len(e.slots))
	for i, s := range e.slots {
		items[i] = &item{s: s}
	}
	perBus(items, func(its []*item) {
		for _, it := range its {
			if it.s.fault != nil {
				continue // found out already
			}
			e.setFault(it.s, e.identifySlot(ctx, it.s))
		}
	})
	for _, s := range e.slots {
		if s.fault != nil {
			e.emit(Event{Kind: "fault", Slot: s.cfg.Name, Code: string(s.fault.Code), Text: s.fault.Error()})
		}
	}
}

// identifier is a medium that can tell, by reads alone, whether the chip is of
// the configured part.
type identifier interface {
	Identify(ctx context.Context) (nvm.Found, error)
}

// identifySlot returns why the slot must not be written to. Where the store has
// records of the slot, a config block of that store proves the chip, and the
// 0.1 s that a chip of unknown kind takes is saved.
func (e *Enclosure) identifySlot(ctx context.Context, s *slot) *Error {
	if s.cfg.Problem != nil {
		return s.untouched("the slot's bus could not be opened", s.cfg.Problem)
	}
	if err := e.identifyEngine(ctx, s); err != nil {
		return err
	}
	if e.state(s).Known() {
		if b, err := s.readBlock(ctx); err == nil && b.Generation.Incarnation == e.inc {
			return nil
		}
	}
	if m, ok := s.cfg.Medium.(identifier); ok {
		found, err := m.Identify(ctx)
		switch {
		case nvm.OtherPart(err):
			return s.notIts("the chip at "+s.cfg.Page+" is not the configured one: found "+found.String(), err)
		case err != nil:
			return s.untouched("the engine's EEPROM at "+s.cfg.Page+" does not answer", err)
		}
	}
	if g := s.cfg.Medium.Geometry(); g.Page < ee.BlockSize {
		return s.notIts(fmt.Sprintf("the chip at %s has pages of %d bytes; a config block takes one page of %d", s.cfg.Page, g.Page, ee.BlockSize), nil)
	}
	return nil
}

func (e *Enclosure) identifyEngine(ctx context.Context, s *slot) *Error {
	if !s.can(ee.CapStatus) {
		return nil
	}
	id, err := s.engine.Identity(ctx)
	fault := s.notTheEngine(id, err)
	e.mu.Lock()
	s.identity = id
	s.trusted = fault == nil
	e.mu.Unlock()
	return fault
}

// notTheEngine compares what was read with what is configured.
func (s *slot) notTheEngine(id ee.Identity, err error) *Error {
	switch {
	case errors.Is(err, ee.ErrWrongID):
		return s.notIts("what answers is not the engine", err)
	case err != nil:
		return s.untouched("the engine does not answer", err)
	}
	want, said := s.expected(), "configured"
	if want != s.configured() {
		said = "adopted"
	}
	var what string
	switch {
	case !want.MAC.IsZero() && id.MAC != want.MAC:
		what = fmt.Sprintf("the engine has MAC %s, %s is %s", id.MAC, said, want.MAC)
	case want.Serial != 0 && id.Vendor != ee.NoDevice && id.Serial != want.Serial:
		what = fmt.Sprintf("the device has serial %016x, %s is %016x", id.Serial, said, want.Serial)
	default:
		return nil
	}
	fault := s.notIts(what, nil)
	fault.Next = fmt.Sprintf("if it was replaced: baton slot adopt %s; else put the right part back", s.cfg.Name)
	return fault
}

// configured is who the configuration says is in the slot.
func (s *slot) configured() plan.Identity { return plan.Identity{MAC: s.cfg.MAC, Serial: s.cfg.Serial} }

// expected is who should be in the slot: the parts that were adopted, as long
// as the configuration says what it said then. Enclosure.mu or the slot's lock
// is held.
func (s *slot) expected() plan.Identity {
	if s.adopted != nil && s.adopted.Configured == s.configured() {
		return s.adopted.Found
	}
	return s.configured()
}

// untouched is hardware for a slot that nothing was written to.
func (s *slot) untouched(what string, err error) *Error {
	e := s.hardware(what, err)
	e.State = "nothing was written to this slot"
	return e
}

// notIts refuses a part that is not the slot's.
func (s *slot) notIts(what string, err error) *Error {
	return &Error{
		Code: CodeIdentity, Slot: s.cfg.Name, Where: s.where(), What: what, Err: err,
		State: "nothing was written to this slot", Next: "correct the configuration, or put the right part back",
	}
}

// slotNamed returns the slot of that name, or a refusal.
func (e *Enclosure) slotNamed(name string) (*slot, error) {
	for _, s := range e.slots {
		if s.cfg.Name == name {
			return s, nil
		}
	}
	return nil, &Error{
		Code: CodeUnknownSlot, What: fmt.Sprintf("there is no slot %q", name),
		State: "nothing was changed", Next: "'baton status' lists the slots",
	}
}

// slotsNamed are the slots of those names, as far as there are any.
func (e *Enclosure) slotsNamed(names []string) []*slot {
	return e.slotsWhere(func(s *slot) bool { return slices.Contains(names, s.cfg.Name) })
}

// usable refuses slots that nothing may be done to.
func (e *Enclosure) usable(s *slot) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.problem != nil {
		return e.problem
	}
	if s.fault != nil {
		return s.fault
	}
	if s.blocked != nil {
		state := "its set is cut and held"
		if open := s.blocked.open(); len(open) > 0 {
			state = fmt.Sprintf("the cut of %v is not confirmed: its old host may still reach it", open)
		}
		return &Error{
			Code: CodeBlocked, Slot: s.cfg.Name, What: "the slot is blocked: " + s.blocked.reason.Error(),
			State: state, Next: "mend the cause: it is tried again by itself", Retry: true,
		}
	}
	return nil
}
