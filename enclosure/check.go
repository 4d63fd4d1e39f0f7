package enclosure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"baton/ee"
	"baton/ee/bus"
	"baton/nvm"
	"baton/vlan"
)

// CheckLevel says how good something is.
type CheckLevel string

// Levels of a check.
const (
	CheckOK   CheckLevel = "ok"
	CheckWarn CheckLevel = "warn"
	CheckFail CheckLevel = "fail"
)

// CheckLine is one thing that was looked at.
type CheckLine struct {
	Area    string // bus, store, engine, chip, vlan, host, agent, ...
	Subject string // which
	Level   CheckLevel
	Text    string
	Next    string // what to do; "" where nothing is
}

// checkLock is how long a check waits for a slot that an operation has.
const checkLock = 300 * time.Millisecond

// Check reads engines, config blocks, VLANs and the store's own figures anew,
// and says of each whether it is as it should be. It writes nothing. A slot's
// lock is held as long as a look takes, some milliseconds; where a chip shows no
// config block, up to 0.4 s more.
//
// A bus that fails otherwise than by a chip that is silent is not asked again:
// it would take a second each time.
func (e *Enclosure) Check(ctx context.Context) []CheckLine {
	lines := append([]CheckLine{e.checkPoller()}, e.checkStore(ctx)...)
	items := make([]*item, len(e.slots))
	found := make([][]CheckLine, len(e.slots))
	for i, s := range e.slots {
		items[i] = &item{s: s}
	}
	perBus(items, func(its []*item) {
		dead := error(nil)
		for _, it := range its {
			if ctx.Err() != nil {
				return // whoever asked is told that it did not end
			}
			found[it.s.index], dead = e.checkSlot(ctx, it.s, dead)
		}
	})
	for _, l := range found {
		lines = append(lines, l...)
	}
	return append(append(lines, e.checkVLANs(ctx)...), e.checkHosts()...)
}

// checkPoller tells whether the loop that looks at engines runs.
func (e *Enclosure) checkPoller() CheckLine {
	const late = 10 * time.Second // it looks every second; recovery may take a while
	l := CheckLine{Area: "agent", Subject: "poller", Level: CheckOK, Text: "there is no engine that it can look at now"}
	e.mu.Lock()
	defer e.mu.Unlock()
	var old []string
	n := 0
	for _, s := range e.slots {
		if !s.can(ee.CapStatus) || s.fault != nil || s.blocked != nil || s.readErr != nil {
			continue
		}
		n++
		if time.Since(s.readAt) > late && s.holder == "" {
			old = append(old, s.cfg.Name)
		}
	}
	if len(old) > 0 {
		l.Level, l.Text = CheckWarn, fmt.Sprintf("%s: not looked at for more than %v", strings.Join(old, " "), late)
		l.Next = "look at the agent's log; if it goes on, restart the agent: no link changes"
	} else if n > 0 {
		l.Text = fmt.Sprintf("engines looked at in the last %v: %d of %d", late, n, len(e.slots))
	}
	return l
}

func (e *Enclosure) checkStore(ctx context.Context) []CheckLine {
	sc := e.cfg.Store
	l := CheckLine{Area: "store", Subject: sc.Name, Level: CheckOK}
	e.mu.Lock()
	problem, damaged := e.problem, len(e.report.Damaged)
	e.mu.Unlock()
	if problem != nil || e.store == nil {
		l.Level, l.Next = CheckFail, "baton nvm check"
		l.Text = "not usable: nothing can be changed"
		if problem != nil {
			l.Text = problem.What
			if problem.Err != nil {
				l.Text += ": " + problem.Err.Error()
			}
		}
		if m, ok := sc.Medium.(identifier); ok {
			if found, err := m.Identify(ctx); err != nil {
				l.Text += fmt.Sprintf("; the chip: %v", err)
			} else {
				l.Text += "; the chip answers: " + found.String()
			}
		}
		return []CheckLine{l}
	}
	st := e.store.Stats()
	records := 0
	for range e.store.All("") {
		records++
	}
	l.Text = fmt.Sprintf("%s, %d records in %d of %d pages, %d free", cmp.Or(sc.Part, "a file or section"), records, st.Live, st.Pages, st.Free)
	wear := 0.0
	if p, ok := nvm.Parts[sc.Part]; ok && p.Endurance > 0 {
		wear = 100 * float64(st.Hottest) / float64(p.Endurance)
		l.Text += fmt.Sprintf(", %.2f %% worn", wear)
	}
	switch {
	case st.Bad > 0:
		l.Level, l.Next = CheckWarn, "baton nvm check; plan to replace the chip"
		l.Text += fmt.Sprintf("; %d pages failed and are avoided", st.Bad)
	case wear > 80:
		l.Level, l.Next = CheckWarn, "plan to replace the chip (docs/field-guide.md)"
	case damaged > 0:
		l.Level, l.Next = CheckWarn, "baton nvm check says what was lost with them"
		l.Text += fmt.Sprintf("; %d pages were damaged at the start", damaged)
	case st.Free < storeReserve:
		l.Level, l.Next = CheckWarn, "a store with more pages; only moves and fences are written now"
	}
	return []CheckLine{l}
}

// checkSlot looks at engine and chip of a slot. dead is why its bus is not asked
// any more, and comes back.
func (e *Enclosure) checkSlot(ctx context.Context, s *slot, dead error) ([]CheckLine, error) {
	engine := CheckLine{Area: "engine", Subject: s.cfg.Name, Level: CheckOK}
	chip := CheckLine{Area: "chip", Subject: s.cfg.Name, Level: CheckOK}
	bad := func(l *CheckLine, text, next string) {
		l.Level, l.Text, l.Next = CheckFail, text, next
	}
	const mend = "check the part, its power and its bus"
	switch {
	case s.cfg.Problem != nil:
		bad(&engine, s.cfg.Problem.Error(), "correct the configuration, or load the driver")
		return []CheckLine{engine}, dead
	case dead != nil:
		bad(&engine, "not looked at: its bus does not work: "+dead.Error(), "mend the bus first")
		return []CheckLine{engine}, dead
	case !e.lockWithin(s, checkLock):
		engine.Level, engine.Text, engine.Next = CheckWarn, "not looked at: an operation has the slot", "wait for it (baton watch), then check again"
		return []CheckLine{engine}, nil
	}
	defer e.release(s)
	lines := []CheckLine{}
	if s.can(ee.CapStatus) {
		id, err := s.engine.Identity(ctx)
		if fault := s.notTheEngine(id, err); fault != nil {
			bad(&engine, strings.TrimPrefix(fault.What, s.where()+": "), fault.Next)
			if err != nil {
				engine.Text += fmt.Sprintf(" (%s): %v", s.where(), err)
			}
			if broken(err) {
				return append(lines, engine), err
			}
		} else if o, err := e.observe(ctx, s); err != nil {
			bad(&engine, err.Error(), mend)
			if broken(err) {
				return append(lines, engine), err
			}
		} else {
			e.judgeEngine(&engine, s, id, o)
		}
	} else {
		engine.Text = fmt.Sprintf("profile %s has no registers: nothing of it can be read", s.cfg.Profile.Name)
	}
	lines = append(lines, engine)
	err := e.checkChip(ctx, s, &chip)
	if broken(err) {
		dead = err
	}
	return append(lines, chip), dead
}

// broken tells a bus that takes a second to fail from a chip that is silent.
func broken(err error) bool {
	err = bus.Classify("transfer", "", 0, err)
	return errors.Is(err, bus.ErrStuck) || errors.Is(err, bus.ErrWedged)
}

// judgeEngine says what an engine's registers mean.
func (e *Enclosure) judgeEngine(l *CheckLine, s *slot, id ee.Identity, o ee.Observation) {
	want := e.desire(s)
	st := e.state(s)
	e.mu.Lock()
	blocked, cut, problem, peer := s.blocked, s.cut, e.problem, s.peer
	e.mu.Unlock()
	link := "down"
	switch {
	case o.Status&ee.StatLink != 0:
		link = "up"
		if h := e.hostOf(st.Now.To); h != nil && h.MAC == peer.MAC {
			link += " with " + h.Name
		}
	case o.Control&ee.CtlLink != 0:
		link = "enabled, no peer"
	}
	text := []string{fmt.Sprintf("%s at %s/0x%02x", s.cfg.Profile.Name, s.cfg.BusName, s.cfg.Addr), "link " + link}
	if o.Control&ee.CtlGuard != 0 {
		text = append(text, "guard on")
	}
	if id.Vendor == ee.NoDevice || o.Status&ee.StatDevice == 0 {
		text = append(text, "no device")
	} else {
		text = append(text, fmt.Sprintf("device %04x:%04x", id.Vendor, id.Device))
	}
	if names := latchNames(o.Latch); len(names) > 0 {
		text = append(text, "since the last acknowledgement: "+strings.Join(names, ", "))
	}
	say := func(level CheckLevel, what, next string) {
		l.Level, l.Next = level, next
		text = append(text, what)
	}
	name := s.cfg.Name
	switch {
	case blocked != nil:
		say(CheckFail, "BLOCKED: "+blocked.reason.Error(), "baton move resolve")
	case o.Status&ee.StatConfigBad != 0:
		say(CheckFail, "it says that its config block is bad", "baton nvm check")
	case problem != nil:
		say(CheckWarn, "whose it is is not known without the store", "mend the store first")
	case cut == "unconfirmed":
		say(CheckFail, "its cut is not confirmed: its old host may still reach it", "pull its cable or power it off (docs/field-guide.md)")
	case s.fault != nil:
		say(CheckFail, s.fault.What, s.fault.Next)
	case o.Status&ee.StatLoaded != 0 && o.Group != want.Block.Group && !(o.Group == 0 && want.Block.Group == ee.GroupFree):
		say(CheckFail, fmt.Sprintf("it runs with group %d, and the records say %d", o.Group, want.Block.Group), "wait some seconds and check again; then baton log "+name)
	case want.Link && s.can(ee.CapLinkControl) && o.Control&ee.CtlLink == 0:
		say(CheckFail, "its link should be on, and is not", "baton status "+name)
	case !want.Link && o.Control&ee.CtlLink != 0:
		say(CheckFail, "its link is on, and nobody should have it", "baton status "+name)
	case o.Control&ee.CtlLink != 0 && o.Status&ee.StatLink == 0:
		say(CheckWarn, "the host's engine does not answer", "is the server on, and its cable in? (docs/field-guide.md)")
	case id.Vendor == ee.NoDevice || o.Status&ee.StatDevice == 0:
		say(CheckWarn, "", "seat the card, or take the slot out of the configuration")
	case o.Status&ee.StatPower == 0:
		say(CheckWarn, "its device has no power", "baton slot power "+name+" on")
	case o.Status&ee.StatLoaded == 0:
		say(CheckWarn, "it has not loaded its config block", "baton status "+name)
	}
	l.Text = strings.Join(slices.DeleteFunc(text, func(s string) bool { return s == "" }), ", ")
}

// checkChip looks at the page that the engine loads, and where that is none at
// the chip. The slot's lock is held.
func (e *Enclosure) checkChip(ctx context.Context, s *slot, l *CheckLine) error {
	where := partAt(s.cfg.Part, s.cfg.Page)
	b, err := s.readBlock(ctx)
	if err == nil && b.Generation.Incarnation == e.inc {
		st := e.state(s)
		l.Text = fmt.Sprintf("%s, config block good: %s", where, e.blockText(*b))
		if st.Known() && b.Generation.Counter != st.Now.Gen {
			l.Level, l.Next = CheckFail, "baton nvm check"
			l.Text += fmt.Sprintf("; the store has generation %d", st.Now.Gen)
		}
		return nil
	}
	if err == nil {
		l.Level, l.Next = CheckWarn, "if the chip was replaced: baton slot adopt "+s.cfg.Name
		if e.store == nil {
			l.Next = "mend the store first"
		}
		l.Text = fmt.Sprintf("%s, config block good, of another store: %s", where, e.blockText(*b))
		return nil
	}
	if !isBlockError(err) {
		l.Level, l.Text, l.Next = CheckFail, fmt.Sprintf("%s does not answer: %v", where, err), "seat or replace the chip; check its bus"
		return err
	}
	l.Level, l.Text, l.Next = CheckFail, fmt.Sprintf("%s, config block: %v", where, err), "baton nvm check"
	if errors.Is(err, ee.ErrBlockBlank) && !e.state(s).Known() {
		l.Level, l.Next = CheckWarn, "a new chip: baton slot adopt "+s.cfg.Name
	}
	m, ok := s.cfg.Medium.(identifier)
	if !ok {
		return nil
	}
	found, err := m.Identify(ctx)
	if errors.Is(err, nvm.ErrAddressing) || errors.Is(err, nvm.ErrSize) {
		l.Level, l.Text, l.Next = CheckFail, fmt.Sprintf("%s is another part: found %s", where, found), "correct the configuration, or put the right chip in"
	}
	return nil
}

// checkVLANs compares the ports' membership with what the records ask for.
func (e *Enclosure) checkVLANs(ctx context.Context) (lines []CheckLine) {
	for _, s := range e.slots {
		if s.cfg.Port != "" && ctx.Err() == nil {
			lines = append(lines, e.checkPort(ctx, s))
		}
	}
	return lines
}

func (e *Enclosure) checkPort(ctx context.Context, s *slot) CheckLine {
	port := "port " + s.cfg.Port
	l := CheckLine{Area: "vlan", Subject: s.cfg.Name, Level: CheckOK}
	if e.cfg.Switch == nil {
		l.Level, l.Text, l.Next = CheckWarn, port+" is configured, and no switch is: its VLANs are not set", "docs/configuration.md"
		return l
	}
	group := e.desire(s).Group()
	e.mu.Lock()
	if s.blocked != nil {
		group = 0 // cut until it is resolved
	}
	e.mu.Unlock()
	err := e.cfg.Switch.Check(ctx, s.cfg.Port, group)
	switch {
	case err == nil:
		l.Text = port + ": " + e.cfg.Switch.Last(s.cfg.Port)
	case e.busy(s):
		l.Level, l.Text, l.Next = CheckWarn, port+": an operation has the slot", "wait for it (baton watch), then check again"
	case errors.Is(err, vlan.ErrUnseen):
		l.Level, l.Text, l.Next = CheckFail, fmt.Sprintf("%s: %v", port, err), "is the port there, and the bridge?"
	default:
		l.Level, l.Text = CheckFail, fmt.Sprintf("%s: %v", port, err)
		l.Next = "it is put right by itself within a minute; if not, baton log " + s.cfg.Name
	}
	return l
}

func (e *Enclosure) busy(s *slot) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.holder != "" && s.holder != pollHolder
}

// checkHosts lists who can not take part.
func (e *Enclosure) checkHosts() (lines []CheckLine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	free := 0
	for _, h := range e.roster.Load().hosts {
		rec, fenced := e.fencedLocked(h.Name)
		if !fenced {
			free++
			continue
		}
		l := CheckLine{Area: "host", Subject: h.Name, Level: CheckWarn, Text: fmt.Sprintf("fenced, epoch %d: nothing can be given to it", rec.Epoch), Next: "once it is safe: baton unfence " + h.Name}
		if uncut := e.pending[h.Name]; len(uncut) > 0 {
			l.Level, l.Text, l.Next = CheckFail, fmt.Sprintf("fenced, and the cut of %v is not confirmed: it may still reach them", names(uncut)), "switch it off; then baton fence "+h.Name
		}
		lines = append(lines, l)
	}
	if free > 0 {
		lines = append([]CheckLine{{Area: "host", Subject: "hosts", Level: CheckOK, Text: fmt.Sprintf("%d of %d may take part", free, len(e.roster.Load().hosts))}}, lines...)
	}
	return lines
}
