package servertest

import (
	"context"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
)

// parts are those that are known and those that are there.
type parts struct{ known, found enclosure.Parts }

// run is which start of the agent a Fake is.
const run = 7

// record keeps an audit record; the caller holds mu.
func (f *Fake) record(r enclosure.AuditRecord) {
	r.Seq = 1
	if n := len(f.audit); n > 0 {
		r.Seq = f.audit[n-1].Seq + 1
	}
	r.Run, r.Uptime = run, f.status.Uptime+time.Duration(f.seq)*time.Millisecond
	f.audit = append(f.audit, r)
}

// Record adds an audit record as it is, but for its number.
func (f *Fake) Record(r enclosure.AuditRecord) {
	f.mu.Lock()
	defer f.mu.Unlock()
	run, uptime := r.Run, r.Uptime
	f.record(r)
	last := &f.audit[len(f.audit)-1]
	last.Run, last.Uptime = run, uptime
}

// Audit is that of Backend.
func (f *Fake) Audit() ([]enclosure.AuditRecord, uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.audit), f.Lost
}

// Refuse is that of Backend. A refusal like one before it is counted there.
func (f *Fake) Refuse(by string, code enclosure.Code, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counters.Refusals[code]++
	for i := range f.audit {
		if r := &f.audit[i]; r.Kind == "refused" && r.By == by && r.Code == string(code) {
			r.Count = max(r.Count, 1) + 1
			return
		}
	}
	f.note(enclosure.Event{Kind: "refused", Code: string(code), Text: text, By: by})
	f.record(enclosure.AuditRecord{Kind: "refused", Code: string(code), Text: text, By: by})
}

// Counters is that of Backend.
func (f *Fake) Counters() enclosure.Counters {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.counters
	c.Moves, c.Refusals, c.BusErrors = maps.Clone(c.Moves), maps.Clone(c.Refusals), maps.Clone(c.BusErrors)
	return c
}

// Drain is that of Backend.
func (f *Fake) Drain(ctx context.Context, r enclosure.DrainRequest) (enclosure.Drained, error) {
	f.mu.Lock()
	d, again := f.drained[r.ID]
	_, err := f.host(r.Host)
	var to *enclosure.HostStatus
	if err == nil && r.To != "" {
		to, err = f.host(r.To)
	}
	if err == nil && to != nil && to.Fenced {
		err = refusal(enclosure.CodeFenced, "", "host %s is fenced: %s", to.Name, to.Why)
	}
	sets := map[string][]string{}
	for _, n := range f.slotsOf(r.Host) {
		s, _ := f.slot(n)
		sets[s.VM] = append(sets[s.VM], n)
	}
	fail, reason := f.FailVM, f.Reason
	f.mu.Unlock()
	if again || err != nil {
		return d, err
	}
	how := "release: " + string(r.Release)
	if r.To != "" {
		how = "to " + r.To
	}
	if err := f.begin(ctx, "drain %s %s", r.Host, how); err != nil {
		return enclosure.Drained{}, err
	}
	d = enclosure.Drained{Host: r.Host}
	for i, vm := range slices.Sorted(maps.Keys(sets)) {
		set := enclosure.DrainedSet{VM: vm, Slots: sets[vm]}
		switch {
		case r.To != "" && vm != "":
			set.Move = r.ID
			set.Move[15] += byte(i + 1)
			m, err := f.Move(ctx, enclosure.MoveRequest{ID: set.Move, VM: vm, Slots: set.Slots, To: r.To, Preserve: true, Wait: r.Wait, By: r.By})
			if set.State, set.Reason = string(m.State), m.Reason; err != nil {
				set.State, set.Reason, set.Move = "failed", err.Error(), ee.UUID{}
			}
		case vm == fail && vm != "":
			set.State, set.Reason = "failed", reason
		default:
			mode := r.Release
			if mode == "" {
				mode = enclosure.ReleaseFree
			}
			f.mu.Lock()
			f.release(enclosure.ReleaseRequest{VM: vm, Slots: set.Slots, Mode: mode, By: r.By})
			f.mu.Unlock()
			set.State = "released"
		}
		d.Sets = append(d.Sets, set)
		if !slices.Contains([]string{"released", "done", "waiting"}, set.State) {
			break
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d.Left = f.slotsOf(r.Host)
	d.Done = len(d.Left) == 0
	f.drained[r.ID] = d
	text := "drained, " + how
	if !d.Done {
		text = fmt.Sprintf("not drained, %s: %s are still there", how, strings.Join(d.Left, " "))
	}
	f.note(enclosure.Event{Kind: "drain", Host: r.Host, Text: text, By: r.By})
	f.record(enclosure.AuditRecord{Kind: "drain", Host: r.Host, Text: text, By: r.By})
	return d, nil
}

// Replace puts other parts into a slot; what is "" in them stays as it is.
func (f *Fake) Replace(slot string, with enclosure.Parts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.parts[slot]
	for _, x := range []struct{ to, from *string }{
		{&p.found.Engine, &with.Engine}, {&p.found.Device, &with.Device}, {&p.found.Serial, &with.Serial}, {&p.found.Chip, &with.Chip}, {&p.found.Block, &with.Block},
	} {
		if *x.from != "" {
			*x.to = *x.from
		}
	}
	f.parts[slot] = p
	f.edits++
	if s, err := f.slot(slot); err == nil && p.found != p.known {
		s.Problem = fmt.Sprintf("%s: other parts than the agent knows: engine %s, device %s; it is left alone until they are adopted", slot, p.found.Engine, p.found.Serial)
	}
}

func (f *Fake) adoption(slot string) (enclosure.Adoption, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.slot(slot)
	if err != nil {
		return enclosure.Adoption{}, err
	}
	p := f.parts[slot]
	type plain enclosure.Parts // without its methods: a token does not change with how parts are printed
	a := enclosure.Adoption{Slot: slot, Needed: p.known != p.found, Old: p.known, New: p.found, Generation: s.Generation, Token: token(plain(p.found))}
	if a.Needed {
		a.Effect = []string{
			"the slot comes back free, with a generation above " + s.Generation.String(),
			"what was in the device's memory counts as lost",
		}
	}
	return a, nil
}

func token(v any) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE(fmt.Append(nil, v))) }

// AdoptionOf is that of Backend.
func (f *Fake) AdoptionOf(ctx context.Context, slot string) (enclosure.Adoption, error) {
	a, err := f.adoption(slot)
	if err != nil {
		return a, err
	}
	return a, f.begin(ctx, "look at the parts of %s", slot)
}

// Adopt is that of Backend.
func (f *Fake) Adopt(ctx context.Context, slot, token, by string) (enclosure.Adoption, error) {
	a, err := f.adoption(slot)
	switch {
	case err != nil:
		return a, err
	case !a.Needed:
		return a, refusal(enclosure.CodeNotNeeded, slot, "its parts are those that the agent knows")
	case token != a.Token:
		e := refusal(enclosure.CodeStaleToken, slot, "other parts are there than those that the token stands for")
		e.Next = "look again: baton slot adopt " + slot
		return a, e
	}
	if err := f.begin(ctx, "adopt %s %s", slot, token); err != nil {
		return a, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.parts[slot] = parts{a.New, a.New}
	s, _ := f.slot(slot)
	f.lose(s, "its parts were replaced")
	s.Problem = ""
	if a.New.Device != "" {
		s.Device = a.New.Device
	}
	a.Generation, a.Needed, a.Adopted, a.Effect = s.Generation, false, true, nil
	f.note(enclosure.Event{Kind: "adopt", Slot: slot, Text: slot + ": parts adopted, generation " + s.Generation.String(), By: by})
	f.record(enclosure.AuditRecord{Kind: "adopt", Slots: []string{slot}, Text: fmt.Sprintf("engine %s, device %s", a.New.Engine, a.New.Serial), By: by})
	return a, nil
}

// lose makes a slot free and void.
func (f *Fake) lose(s *enclosure.SlotStatus, why string) {
	s.Host, s.Group, s.VM, s.Held, s.Link, s.Peer, s.Cut, s.Guard, s.Blocked = "", ee.GroupFree, "", false, "down", "", "confirmed", false, ""
	s.Generation.Counter++
	s.Flag, s.FlagReason, s.Memory = plan.Void, why, plan.Verdict{Preserved: plan.No, Reason: why, Flag: plan.Void}
	f.counters.Voids++
}

// Locate is that of Backend.
func (f *Fake) Locate(ctx context.Context, slot string, on bool, by string) error {
	return f.onSlot(ctx, slot, fmt.Sprintf("locate %s %v", slot, on), nil, func(s *enclosure.SlotStatus) {
		s.Locate = on
		f.note(enclosure.Event{Kind: "locate", Slot: slot, Text: fmt.Sprintf("%s: locate LED %s", slot, onOff(on)), By: by})
	})
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// onSlot checks that there is the slot and has done do to it.
func (f *Fake) onSlot(ctx context.Context, slot, call string, gen *ee.Generation, do func(*enclosure.SlotStatus)) error {
	f.mu.Lock()
	s, err := f.slot(slot)
	f.mu.Unlock()
	if err == nil && gen != nil {
		err = f.check(slot, *gen)
	}
	if err != nil {
		return err
	}
	if err := f.begin(ctx, "%s", call); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	do(s)
	return nil
}

// Power is that of Backend.
func (f *Fake) Power(ctx context.Context, r enclosure.PowerRequest) error {
	f.mu.Lock()
	if s, err := f.slot(r.Slot); err == nil && s.Host != "" {
		f.mu.Unlock()
		e := refusal(enclosure.CodeWrongState, r.Slot, "it is with %s: power is switched in a slot that is cut only", s.Host)
		e.Next = "release it first: baton release " + r.Slot
		return e
	}
	f.mu.Unlock()
	return f.onSlot(ctx, r.Slot, fmt.Sprintf("power %s %s", r.Slot, r.State), &r.Gen, func(s *enclosure.SlotStatus) {
		if s.Power = "on"; r.State == enclosure.PowerOff {
			s.Power = "off"
		}
		s.Values.Epoch++
		s.Latches = []string{"power lost"}
		s.Memory = plan.Verdict{Preserved: plan.No, Reason: "the device lost power", Flag: s.Flag}
		f.note(enclosure.Event{Kind: "power", Slot: r.Slot, Text: fmt.Sprintf("%s: power %s", r.Slot, r.State), By: r.By})
		f.record(enclosure.AuditRecord{Kind: "power", Slots: []string{r.Slot}, Text: "power " + string(r.State), By: r.By})
	})
}

// Reset is that of Backend.
func (f *Fake) Reset(ctx context.Context, r enclosure.ResetRequest) error {
	return f.onSlot(ctx, r.Slot, "reset "+r.Slot, &r.Gen, func(s *enclosure.SlotStatus) {
		s.Values.Resets++
		s.Latches = []string{"reset seen"}
		s.Memory = plan.Verdict{Preserved: plan.No, Reason: "a reset reached the device", Flag: s.Flag, Now: s.Values}
		f.note(enclosure.Event{Kind: "reset", Slot: r.Slot, Text: fmt.Sprintf("%s: device reset, resets %d", r.Slot, s.Values.Resets), By: r.By})
		f.record(enclosure.AuditRecord{Kind: "reset", Slots: []string{r.Slot}, Text: "device reset", By: r.By})
	})
}

// Resolve is that of Backend.
func (f *Fake) Resolve(ctx context.Context, id ee.UUID, drop []string, by string) (enclosure.Move, error) {
	f.mu.Lock()
	m, ok := f.moves[id]
	f.mu.Unlock()
	switch {
	case !ok:
		return m, refusal(enclosure.CodeUnknownMove, "", "no move %s is remembered", id)
	case m.State != enclosure.MoveBlocked:
		return m, refusal(enclosure.CodeWrongState, "", "move %s is %s, not blocked", id, m.State)
	}
	for _, n := range drop {
		if !slices.Contains(m.Slots, n) {
			return m, refusal(enclosure.CodeBadRequest, "", "move %s has no slot %q", id, n)
		}
	}
	if len(drop) == len(m.Slots) {
		return m, refusal(enclosure.CodeBadRequest, "", "nothing would be left of move %s", id)
	}
	if err := f.begin(ctx, "resolve %s without %s", id, strings.Join(drop, " ")); err != nil {
		return m, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var left []string
	m.Memory = map[string]plan.Verdict{}
	for _, n := range m.Slots {
		s, _ := f.slot(n)
		if slices.Contains(drop, n) {
			f.lose(s, "it was dropped from a blocked move")
			continue
		}
		left = append(left, n)
		s.Host, s.Group, s.Generation, s.Flag, s.Held, s.Link, s.Cut, s.Peer, s.Blocked = m.To, groups[m.To], m.Generation, plan.Target, false, "up", "", macOf(m.To), ""
		m.Memory[n] = f.Memory
	}
	m.State, m.Slots, m.Reason = enclosure.MoveDone, left, ""
	f.moves[id] = m
	for i := range f.status.Moves {
		if f.status.Moves[i].ID == id {
			f.status.Moves[i] = m
		}
	}
	text := fmt.Sprintf("move %s goes on without %s", id, strings.Join(drop, " "))
	f.note(enclosure.Event{Kind: "resolve", VM: m.VM, Move: id.String(), Text: text, By: by})
	f.record(enclosure.AuditRecord{Kind: "resolve", Slots: drop, VM: m.VM, Move: id.String(), Text: text, By: by})
	return m, nil
}

// ForceFree is that of Backend.
func (f *Fake) ForceFree(ctx context.Context, slot, typed, by string) error {
	if typed != slot {
		return refusal(enclosure.CodeBadRequest, slot, "%q was typed, not the slot's name", typed)
	}
	return f.onSlot(ctx, slot, "force-free "+slot, nil, func(s *enclosure.SlotStatus) {
		vm := s.VM
		f.lose(s, "it was made free by force")
		f.note(enclosure.Event{Kind: "release", Slot: slot, VM: vm, Text: slot + ": made free by force, whatever its hardware does", By: by})
		f.record(enclosure.AuditRecord{Kind: "release", Slots: []string{slot}, VM: vm, Text: "made free by force", By: by})
	})
}

// CheckNVM is that of Backend.
func (f *Fake) CheckNVM(ctx context.Context) (enclosure.NVMReport, error) {
	if err := f.begin(ctx, "check NVM"); err != nil {
		return enclosure.NVMReport{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.report(), nil
}

func (f *Fake) report() enclosure.NVMReport {
	r := f.NVM
	r.Findings = slices.Clone(r.Findings)
	r.Token = token(r.Findings)
	return r
}

// RepairNVM is that of Backend.
func (f *Fake) RepairNVM(ctx context.Context, token string, format bool, by string) (enclosure.NVMReport, error) {
	f.mu.Lock()
	r := f.report()
	f.mu.Unlock()
	repairable := slices.ContainsFunc(r.Findings, func(x enclosure.NVMFinding) bool { return x.Repair != "" })
	var err *enclosure.Error
	switch {
	case !repairable && r.State == "formatted":
		err = refusal(enclosure.CodeNotNeeded, "", "there is nothing to repair")
	case token != r.Token:
		err = refusal(enclosure.CodeStaleToken, "", "the check finds something else now")
		err.Next = "check again: baton nvm check"
	case r.State != "formatted" && !format:
		err = refusal(enclosure.CodeWrongState, "", "the store is %s: only making it anew helps, and all it held is lost", r.State)
		err.Next = "if that may be: baton nvm repair --format"
	}
	if err != nil {
		return r, err
	}
	if err := f.begin(ctx, "repair NVM %s format %v", token, format); err != nil {
		return r, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.NVM.State = "formatted"
	f.NVM.Findings = slices.DeleteFunc(slices.Clone(f.NVM.Findings), func(x enclosure.NVMFinding) bool { return x.Repair != "" })
	f.status.Store.Damaged = 0
	r = f.report()
	r.Repaired, r.Restart = true, true
	f.note(enclosure.Event{Kind: "repair", Text: "the store was repaired", By: by})
	f.record(enclosure.AuditRecord{Kind: "repair", Text: "the store was repaired", By: by})
	return r, nil
}

// DumpNVM is that of Backend. The image is 256 bytes that count from 0.
func (f *Fake) DumpNVM(ctx context.Context, of string) (enclosure.NVMDump, error) {
	d := enclosure.NVMDump{Of: of, Part: "24c256 at i2c-5/0x57"}
	if of != "store" {
		f.mu.Lock()
		_, err := f.slot(of)
		d.Part = f.parts[of].found.Chip
		f.mu.Unlock()
		if err != nil {
			return enclosure.NVMDump{}, err
		}
	}
	for i := range 256 {
		d.Image = append(d.Image, byte(i))
	}
	return d, f.begin(ctx, "dump NVM of %s", of)
}

// Check is that of Backend: lines of all levels, or what Settings.Checks says.
func (f *Fake) Check(context.Context) []enclosure.CheckLine {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Checks != nil {
		return slices.Clone(f.Checks)
	}
	return []enclosure.CheckLine{
		{Area: "bus", Subject: "i2c-5", Level: enclosure.CheckOK, Text: "/dev/i2c-5, 9 addresses configured; nothing else answers"},
		{Area: "engine", Subject: "gpu0", Level: enclosure.CheckOK, Text: "regs-v1 at i2c-5/0x40, link up with server1, guard on"},
		{Area: "host", Subject: "server3", Level: enclosure.CheckWarn, Text: "fenced, epoch 2: nothing can be given to it", Next: "once it is safe: baton unfence server3"},
	}
}
