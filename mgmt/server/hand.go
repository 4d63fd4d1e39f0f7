package server

import (
	"slices"

	"baton/ee"
	"baton/enclosure"
	"baton/mgmt"
)

// What people do by hand: parts, power, drains and what is left when all else
// fails.

func (s *Server) adoption(c *call) (any, error) {
	a, err := s.backend.AdoptionOf(c.ctx, c.http.PathValue("slot"))
	if err != nil {
		return nil, err
	}
	return wireAdoption(a), nil
}

func (s *Server) adopt(c *call) (any, error) {
	in, err := decode[mgmt.AdoptRequest](c)
	if err != nil {
		return nil, err
	}
	a, err := s.backend.Adopt(c.ctx, c.http.PathValue("slot"), in.Token, c.by())
	if err != nil {
		return nil, err
	}
	return wireAdoption(a), nil
}

func (s *Server) locate(c *call) (any, error) {
	in, err := decode[mgmt.LocateRequest](c)
	if err != nil {
		return nil, err
	}
	return nil, s.backend.Locate(c.ctx, c.http.PathValue("slot"), in.On, c.by())
}

func (s *Server) power(c *call) (any, error) {
	in, err := decode[mgmt.PowerRequest](c)
	if err != nil {
		return nil, err
	}
	var bad badly
	r := enclosure.PowerRequest{Slot: c.http.PathValue("slot"), Gen: bad.generation("generation", in.Generation), State: enclosure.PowerState(in.State), By: c.by()}
	if !slices.Contains([]enclosure.PowerState{enclosure.PowerOn, enclosure.PowerOff, enclosure.PowerCycle}, r.State) {
		bad.add("state: %q is none of on, off, cycle", clip(in.State))
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	return nil, s.backend.Power(c.ctx, r)
}

func (s *Server) reset(c *call) (any, error) {
	in, err := decode[mgmt.ResetRequest](c)
	if err != nil {
		return nil, err
	}
	var bad badly
	r := enclosure.ResetRequest{Slot: c.http.PathValue("slot"), Gen: bad.generation("generation", in.Generation), By: c.by()}
	if err := bad.err(); err != nil {
		return nil, err
	}
	return nil, s.backend.Reset(c.ctx, r)
}

func (s *Server) resolve(c *call) (any, error) {
	in, err := decode[mgmt.ResolveRequest](c)
	if err != nil {
		return nil, err
	}
	var bad badly
	id := bad.uuid("id", c.http.PathValue("id"))
	bad.names("drop", in.Drop)
	if len(in.Drop) == 0 {
		bad.add("drop: names no slot")
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	m, err := s.backend.Resolve(c.ctx, id, in.Drop, c.by())
	if err != nil {
		return nil, err
	}
	return wireMove(m), nil
}

// forceFree is a release that asks nobody but the person who typed the slot's
// name, so all that the other modes take is refused.
func (s *Server) forceFree(c *call, in mgmt.ReleaseRequest) error {
	slot := c.http.PathValue("slot")
	var bad badly
	if in.VM != "" || len(in.Slots) > 0 || len(in.Expect) > 0 {
		bad.add("mode force-free is for the slot of the path alone, and takes typed only")
	}
	if in.Typed != slot {
		bad.add("typed: %q is not %q: have a person type the slot's name", clip(in.Typed), clip(slot))
	}
	if err := bad.err(); err != nil {
		return err
	}
	return s.backend.ForceFree(c.ctx, slot, in.Typed, c.by())
}

func (s *Server) drain(c *call) (any, error) {
	in, err := decode[mgmt.DrainRequest](c)
	if err != nil {
		return nil, err
	}
	var bad badly
	r := enclosure.DrainRequest{ID: bad.uuid("id", in.ID), Host: c.http.PathValue("host"), To: in.To, Release: enclosure.ReleaseMode(in.Release), Wait: bad.wait(in.WaitMS), By: c.by()}
	switch {
	case (in.To == "") == (in.Release == ""):
		bad.add("give to, the host that takes the slots, or release, and not both")
	case in.To == "" && r.Release != enclosure.ReleaseHold && r.Release != enclosure.ReleaseFree:
		bad.add("release: %q is none of hold, free", clip(in.Release))
	case in.To == r.Host:
		bad.add("to: is the host that is drained")
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	d, err := s.backend.Drain(c.ctx, r)
	if err != nil {
		return nil, err
	}
	return wireDrained(d), nil
}

func (s *Server) audit(*call) (any, error) {
	records, lost := s.backend.Audit()
	return mgmt.Audit{Records: each(records, wireRecord), Lost: lost}, nil
}

func (s *Server) checkNVM(c *call) (any, error) {
	r, err := s.backend.CheckNVM(c.ctx)
	if err != nil {
		return nil, err
	}
	return wireReport(r), nil
}

func (s *Server) repairNVM(c *call) (any, error) {
	in, err := decode[mgmt.RepairRequest](c)
	if err != nil {
		return nil, err
	}
	r, err := s.backend.RepairNVM(c.ctx, in.Token, in.Format, c.by())
	if err != nil {
		return nil, err
	}
	out := wireReport(r)
	if r.Restart {
		out.Restarting = true
		c.restart("the store was repaired")
	}
	return out, nil
}

func (s *Server) dumpNVM(c *call) (any, error) {
	of := c.http.URL.Query().Get("of")
	if of == "" {
		return nil, problem(codeBad, "of: missing: store, or a slot's name")
	}
	d, err := s.backend.DumpNVM(c.ctx, of)
	if err != nil {
		return nil, err
	}
	return mgmt.NVMDump{Of: d.Of, Part: d.Part, Offset: d.Offset, Image: list(d.Image)}, nil
}

func wireAdoption(a enclosure.Adoption) mgmt.Adoption {
	return mgmt.Adoption{
		Slot: a.Slot, Needed: a.Needed, Old: mgmt.Parts(a.Old), New: mgmt.Parts(a.New), Generation: generation(a.Generation),
		Effect: list(a.Effect), Token: a.Token, Adopted: a.Adopted,
	}
}

func wireDrained(d enclosure.Drained) mgmt.Drained {
	return mgmt.Drained{Host: d.Host, Done: d.Done, Left: list(d.Left), Sets: each(d.Sets, func(s enclosure.DrainedSet) mgmt.DrainedSet {
		out := mgmt.DrainedSet{VM: s.VM, Slots: list(s.Slots), State: s.State, Reason: s.Reason}
		if s.Move != (ee.UUID{}) {
			out.Move = s.Move.String()
		}
		return out
	})}
}

func wireRecord(r enclosure.AuditRecord) mgmt.AuditRecord {
	return mgmt.AuditRecord{
		Seq: r.Seq, Run: r.Run, UptimeMS: r.Uptime.Milliseconds(), Time: r.Wall, Kind: r.Kind, Slots: list(r.Slots), Host: r.Host, VM: r.VM,
		Move: r.Move, Code: r.Code, Count: r.Count, By: r.By, Text: r.Text,
	}
}

func wireReport(r enclosure.NVMReport) mgmt.NVMReport {
	return mgmt.NVMReport{State: r.State, Token: r.Token, Repaired: r.Repaired, Findings: each(r.Findings, func(f enclosure.NVMFinding) mgmt.NVMFinding {
		return mgmt.NVMFinding(f)
	})}
}
