package enclosure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"baton/enclosure/plan"
	"baton/nvm"
)

// Memory is the agent's store as it is found at a start, before it is known
// what slots there are: the configuration that says so may be in it. Open takes
// it over (Options.Memory).
type Memory struct {
	cfg       StoreConfig
	options   Options
	store     *nvm.Store // nil = it can not be used
	report    nvm.Report
	problem   *Error
	frozen    bool
	formatted string // what the medium was before it was formatted, "" = it was not

	written time.Time // last page write of a shared store
	sharer  atomic.Pointer[sharer]
}

// sharer is the slot on whose engine's chip the store is.
type sharer struct {
	e *Enclosure
	s *slot
}

// Mount reads the store. That it can not be used does not make it fail: Problem
// says why, and the Enclosure that is opened with it does. It blocks for the
// time that the medium takes to be read, 0.75 s for 32 KiB over I2C.
func Mount(ctx context.Context, cfg StoreConfig, opt Options) *Memory {
	m := newMemory(cfg, opt)
	m.mount(ctx)
	return m
}

func newMemory(cfg StoreConfig, opt Options) *Memory {
	return &Memory{cfg: cfg, options: opt}
}

func (m *Memory) mount(ctx context.Context) {
	sc := m.cfg
	fail := func(what, next string, err error) {
		m.problem = &Error{Code: CodeStore, Where: sc.Name, What: what, Err: err, State: "nothing was written; status is served, changes are refused", Next: next}
	}
	if sc.Medium == nil {
		fail("the store's medium could not be opened", "check what the configuration says of the store, and that the kernel has the driver of its medium", sc.Problem)
		return
	}
	so := nvm.Options{Suspect: !m.options.SameBoot, ReservePages: storeReserve}
	if sc.Shared != "" {
		so.Gate = m.gate
	}
	store, report, err := nvm.Mount(ctx, sc.Medium, so)
	other := func() bool {
		id, ok := sc.Medium.(identifier)
		if !ok {
			return false
		}
		found, not := id.Identify(ctx)
		if !nvm.OtherPart(not) {
			return false
		}
		fail("the store's chip is not the configured one: found "+found.String(), "correct the part in the configuration, or put the right chip there", not)
		return true
	}
	// A chip that has fewer cells than its part shows the same page at several
	// addresses: a store that was copied to it mounts with a few pages damaged, and
	// would be lost as soon as its log comes to where the pages are the same.
	if (err != nil || len(report.Damaged) > 0) && other() {
		return
	}
	// A format that was cut short is completed: what was there before, if
	// anything, was given up by whoever began it, and no store that has been in
	// use ever reads as half formatted (nvm: halfFormatted says why).
	unmade := func() bool {
		return errors.Is(err, nvm.ErrUnformatted) && (report.State == nvm.Blank || report.State == nvm.HalfFormatted)
	}
	if unmade() && sc.FormatBlank {
		// A bus that reads all ones for a moment has no blank chip on it: what
		// is given up for good is read twice.
		was := report.State
		store, report, err = nvm.Mount(ctx, sc.Medium, so)
		if unmade() && report.State == was {
			store, err = nvm.Format(ctx, sc.Medium, newIncarnation(m.options.random()), so)
			if err == nil && other() { // a blank one could not be told
				m.problem.State = "it was blank, and was formatted; status is served, changes are refused"
				return
			}
			if err == nil {
				m.formatted = was.String()
			}
			report = nvm.Report{State: nvm.Formatted}
		}
	}
	if err != nil {
		fail("the store can not be used", "'baton nvm check' tells what is wrong with it; nothing of it is overwritten by itself", err)
		return
	}
	m.store, m.report = store, report
}

// Problem is why the store can not be used, nil if it can.
func (m *Memory) Problem() error {
	if m.problem == nil {
		return nil
	}
	return m.problem
}

// Configuration returns the agent's configuration as the store has it: see
// plan.FindConfiguration. A store that can not be used has none.
func (m *Memory) Configuration() (c plan.Configuration, found bool, err error) {
	if m.store == nil {
		return c, false, nil
	}
	value, _ := m.store.Get(plan.KeyConfiguration)
	mark, _ := m.store.Get(plan.KeyConfigMark)
	return plan.FindConfiguration(value, mark)
}

// Freeze keeps the Enclosure that will be opened from changing anything, links
// above all, since nobody knows how it should be: why is its problem. The
// records are shown as they are, and a configuration can be kept.
func (m *Memory) Freeze(why *Error) {
	if m.problem == nil {
		m.problem, m.frozen = why, true
	}
}

// take makes m the enclosure's memory. It returns why there is no store to
// write to.
func (e *Enclosure) take(m *Memory) *Error {
	e.memory, e.store, e.report = m, m.store, m.report
	if m.formatted != "" {
		e.emit(Event{Kind: "store", Text: m.formatted + " store formatted; every host starts fenced: baton unfence HOST"})
	}
	if m.store == nil {
		return m.problem
	}
	for _, p := range e.load() {
		e.distrustAll()
		e.emit(Event{Kind: "store", Text: p})
	}
	if n := e.loadAudit(); n > 0 {
		e.emit(Event{Kind: "store", Text: fmt.Sprintf("%d records of the audit can not be read and are written over; nothing depends on them", n)})
	}
	if len(m.report.Damaged) > 0 {
		e.emit(Event{Kind: "store", Text: fmt.Sprintf("%s: %d damaged pages; what was in them is lost, what can be told of it is told", m.cfg.Name, len(m.report.Damaged))})
	}
	return m.problem
}

// share tells a shared store whose chip it is on.
func (m *Memory) share(e *Enclosure) {
	for _, s := range e.slots {
		if s.cfg.Name == m.cfg.Shared {
			m.sharer.Store(&sharer{e, s})
		}
	}
}

// gate is called before every page write of a store that shares its chip with
// an engine. It keeps off while the engine loads, and leaves one load time
// between page writes, so that an engine that restarts by itself, of which
// nobody knows yet, finds the chip free within the 10 ms that it tries.
func (m *Memory) gate(ctx context.Context) error { // called by one goroutine at a time
	load, loading := m.cfg.LoadTime, func() bool { return false }
	if sh := m.sharer.Load(); sh != nil {
		load = sh.s.cfg.Profile.LoadTime
		loading = func() bool {
			sh.e.mu.Lock()
			defer sh.e.mu.Unlock()
			return sh.s.loading
		}
	}
	if err := pause(ctx, time.Until(m.written.Add(load))); err != nil {
		return err
	}
	deadline := time.Now().Add(2 * load)
	for loading() && !time.Now().After(deadline) {
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	m.written = time.Now()
	return nil
}

// Keep writes the agent's configuration into the store: all of it is there
// when Keep returns, or nothing of it. Moves and fences overtake it in the
// store's queue. Of a frozen enclosure it is what can still be written.
func (e *Enclosure) Keep(ctx context.Context, c plan.Configuration) error {
	if err := e.keepRecord(ctx, nvm.Record{Key: plan.KeyConfiguration, Value: c.Encode()}); err != nil {
		return err
	}
	// Without its mark the record counts all the same.
	if err := e.keepRecord(ctx, nvm.Record{Key: plan.KeyConfigMark, Value: plan.EncodeConfigMark(c.Version)}); err != nil {
		e.log.Warn("should the record of the configuration be lost, nobody will notice", "err", err)
	}
	return nil
}

func (e *Enclosure) keepRecord(ctx context.Context, r nvm.Record) error {
	if e.memory.frozen {
		if err := e.store.Put(ctx, nvm.Normal, r); err != nil {
			return e.notKept(err)
		}
		return nil
	}
	err := e.put(ctx, nvm.Normal, record{r, func(*Enclosure) {}})
	if errors.Is(err, nvm.ErrTooLarge) || errors.Is(err, nvm.ErrFull) {
		return e.notKept(err)
	}
	return err
}

func (e *Enclosure) notKept(err error) *Error {
	known := e.storeError(err)
	known.What = "the store did not take the configuration"
	switch {
	case errors.Is(err, nvm.ErrUnknown):
		known.Next = "start the agent again: it takes what it finds"
	case errors.Is(err, nvm.ErrTooLarge) || errors.Is(err, nvm.ErrFull):
		known.State, known.Next, known.Retry = "nothing was changed", "make the configuration smaller, or give the store a larger part", false
	default:
		known.State = "nothing was changed"
	}
	return known
}

func (o Options) random() func([]byte) {
	if o.Random != nil {
		return o.Random
	}
	return cryptoRandom
}

func (o Options) log() *slog.Logger {
	if o.Log != nil {
		return o.Log
	}
	return slog.New(slog.DiscardHandler)
}
