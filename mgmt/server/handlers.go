package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/mgmt"
)

func (s *Server) enclosure(c *call) (any, error) {
	text := s.looks.get(c.ctx, s.backend.Seq(), func() []byte { return encode(s.look(c.ctx)) })
	if text == nil {
		return nil, c.ctx.Err()
	}
	s.write(c.w, http.StatusOK, mgmt.MediaTypeJSON, text)
	return streamed{}, nil
}

// lately is the text of a look that is still fresh, or nil.
func (s *Server) lately() []byte { return s.looks.fresh(s.backend.Seq()) }

func (s *Server) look(ctx context.Context) mgmt.Enclosure {
	st := s.backend.Status(ctx)
	now := time.Now()
	return mgmt.Enclosure{
		Name:      st.Name,
		Agent:     s.opt.Agent,
		Simulated: st.Simulated,
		UptimeMS:  st.Uptime.Milliseconds(),
		Time:      now,
		ClockSet:  clockSet(now),
		Store:     wireStore(st.Store),
		Slots:     each(st.Slots, wireSlot),
		Hosts:     each(st.Hosts, wireHost),
		VMs:       list(s.opt.Keeper.VMs()),
		Moves:     each(st.Moves, wireMove),
		Warnings:  append(list(s.opt.Keeper.Warnings()), st.Warnings...),
	}
}

// clockSet: a BMC without a clock battery starts in 1970, or where its image
// puts the floor.
func clockSet(t time.Time) bool { return t.Year() >= 2026 }

func (s *Server) slots(c *call) (any, error) {
	return mgmt.Slots{Slots: each(s.backend.Status(c.ctx).Slots, wireSlot)}, nil
}

func (s *Server) slot(c *call) (any, error) {
	return s.findSlot(c)
}

func (s *Server) findSlot(c *call) (mgmt.Slot, error) {
	name := c.http.PathValue("slot")
	slots := s.backend.Status(c.ctx).Slots
	i := slices.IndexFunc(slots, func(sl enclosure.SlotStatus) bool { return sl.Name == name })
	if i < 0 {
		names := each(slots, func(sl enclosure.SlotStatus) string { return sl.Name })
		return mgmt.Slot{}, &enclosure.Error{Code: enclosure.CodeUnknownSlot, What: fmt.Sprintf("there is no slot %q; there are %s", clip(name), strings.Join(names, ", ")), State: "nothing was changed"}
	}
	return wireSlot(slots[i]), nil
}

// verdict is of one generation: where a move comes between, it is asked again.
func (s *Server) verdict(c *call) (any, error) {
	for range 3 {
		before, err := s.findSlot(c)
		if err != nil {
			return nil, err
		}
		v, err := s.backend.Verdict(c.ctx, before.Name)
		if err != nil {
			return nil, err
		}
		after, err := s.findSlot(c)
		if err != nil {
			return nil, err
		}
		if before.Generation == after.Generation {
			w := wireVerdict(v)
			w.Slot, w.Generation = before.Name, before.Generation
			return w, nil
		}
	}
	return nil, &enclosure.Error{Code: enclosure.CodeBusy, Slot: c.http.PathValue("slot"), What: "it is being moved", Retry: true, State: "nothing was changed"}
}

func (s *Server) move(c *call) (any, error) {
	in, err := decode[mgmt.MoveRequest](c)
	if err != nil {
		return nil, err
	}
	r := enclosure.MoveRequest{VM: in.VM, Slots: in.Slots, To: in.To, Preserve: in.Preserve, By: c.by()}
	var bad badly
	r.ID = bad.uuid("id", in.ID)
	r.Expect = bad.generations("expect", in.Expect)
	r.Wait = bad.wait(in.WaitMS)
	bad.names("slots", in.Slots)
	if err := bad.err(); err != nil {
		return nil, err
	}
	m, err := s.backend.Move(c.ctx, r)
	if err != nil {
		return nil, err
	}
	return wireMove(m), nil
}

func (s *Server) moves(c *call) (any, error) {
	return mgmt.Moves{Moves: each(s.backend.Status(c.ctx).Moves, wireMove)}, nil
}

func (s *Server) moveByID(c *call) (any, error) {
	var bad badly
	id := bad.uuid("id", c.http.PathValue("id"))
	if err := bad.err(); err != nil {
		return nil, err
	}
	m, ok := s.backend.MoveByID(id)
	if !ok {
		return nil, &enclosure.Error{Code: enclosure.CodeUnknownMove, What: fmt.Sprintf("no move %s is remembered", id), State: "nothing was changed"}
	}
	return wireMove(m), nil
}

func (s *Server) attach(c *call) (any, error) {
	in, err := decode[mgmt.AttachRequest](c)
	if err != nil {
		return nil, err
	}
	var bad badly
	r := enclosure.AttachRequest{VM: in.VM, Host: in.Host, Wait: bad.wait(in.WaitMS), Slots: bad.set(c, in.Slots), By: c.by()}
	if err := bad.err(); err != nil {
		return nil, err
	}
	a, err := s.backend.Attach(c.ctx, r)
	if err != nil {
		return nil, err
	}
	return wireAttached(a), nil
}

func (s *Server) arm(c *call) (any, error) {
	in, err := decode[mgmt.ArmRequest](c)
	if err != nil {
		return nil, err
	}
	var bad badly
	r := enclosure.ArmRequest{Slot: c.http.PathValue("slot"), ID: bad.uuid("id", in.ID), Gen: bad.generation("generation", in.Generation), By: c.by()}
	if in.Seen != nil {
		v := valuesFrom(*in.Seen)
		r.Seen = &v
	}
	r.Lease = bad.millis("lease_ms", in.LeaseMS, 24*time.Hour)
	if err := bad.err(); err != nil {
		return nil, err
	}
	a, err := s.backend.Arm(c.ctx, r)
	if err != nil {
		return nil, err
	}
	return wireArming(a), nil
}

func (s *Server) disarm(c *call) (any, error) {
	in, err := decode[mgmt.DisarmRequest](c)
	if err != nil {
		return nil, err
	}
	var bad badly
	id := bad.uuid("id", in.ID)
	if err := bad.err(); err != nil {
		return nil, err
	}
	return nil, s.backend.Disarm(c.ctx, c.http.PathValue("slot"), id, c.by())
}

func (s *Server) ack(c *call) (any, error) {
	in, err := decode[mgmt.AckRequest](c)
	if err != nil {
		return nil, err
	}
	var bad badly
	r := enclosure.AckRequest{
		Slot: c.http.PathValue("slot"), Nonce: bad.uuid("nonce", in.Nonce),
		Gen: bad.generation("generation", in.Generation), Seen: valuesFrom(in.Seen), By: c.by(),
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	return nil, s.backend.Ack(c.ctx, r)
}

func (s *Server) alive(c *call) (any, error) {
	in, err := decode[mgmt.AliveRequest](c)
	if err != nil {
		return nil, err
	}
	var bad badly
	r := enclosure.AliveRequest{Slot: c.http.PathValue("slot"), Gen: bad.generation("generation", in.Generation), Seen: valuesFrom(in.Seen), By: c.by()}
	if err := bad.err(); err != nil {
		return nil, err
	}
	return nil, s.backend.Alive(c.ctx, r)
}

func (s *Server) release(c *call) (any, error) {
	in, err := decode[mgmt.ReleaseRequest](c)
	if err != nil {
		return nil, err
	}
	var bad badly
	if in.Mode == string(enclosure.ForceFree) {
		return nil, s.forceFree(c, in)
	}
	r := enclosure.ReleaseRequest{VM: in.VM, Slots: bad.set(c, in.Slots), Expect: bad.generations("expect", in.Expect), Mode: enclosure.ReleaseMode(in.Mode), By: c.by()}
	if !slices.Contains([]enclosure.ReleaseMode{enclosure.ReleaseKeep, enclosure.ReleaseHold, enclosure.ReleaseFree}, r.Mode) {
		bad.add("mode: %q is none of keep, hold, free, force-free", clip(in.Mode))
	}
	if in.VM == "" {
		bad.add("vm: missing")
	}
	if in.Typed != "" {
		bad.add("typed: is for mode force-free only")
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	return nil, s.backend.Release(c.ctx, r)
}

func (s *Server) hosts(c *call) (any, error) {
	return mgmt.Hosts{Hosts: each(s.backend.Status(c.ctx).Hosts, wireHost)}, nil
}

func (s *Server) host(c *call) (any, error) {
	name := c.http.PathValue("host")
	hosts := s.backend.Status(c.ctx).Hosts
	i := slices.IndexFunc(hosts, func(h enclosure.HostStatus) bool { return h.Name == name })
	if i < 0 {
		names := each(hosts, func(h enclosure.HostStatus) string { return h.Name })
		return nil, &enclosure.Error{Code: enclosure.CodeUnknownHost, What: fmt.Sprintf("there is no host %q; there are %s", clip(name), clip(strings.Join(names, ", "))), State: "nothing was changed"}
	}
	return wireHost(hosts[i]), nil
}

func (s *Server) fence(c *call) (any, error) {
	if _, err := decode[struct{}](c); err != nil {
		return nil, err
	}
	f, err := s.backend.Fence(c.ctx, c.http.PathValue("host"), c.by())
	if err != nil {
		return nil, err
	}
	return mgmt.Fenced{Host: f.Host, Epoch: f.Epoch, Slots: list(f.Slots)}, nil
}

func (s *Server) unfence(c *call) (any, error) {
	in, err := decode[mgmt.UnfenceRequest](c)
	if err != nil {
		return nil, err
	}
	return nil, s.backend.Unfence(c.ctx, c.http.PathValue("host"), in.Epoch, c.by())
}

// badly collects what is wrong with the values of a request.
type badly []string

func (b *badly) add(format string, args ...any) { *b = append(*b, fmt.Sprintf(format, args...)) }

func (b *badly) err() error {
	if len(*b) == 0 {
		return nil
	}
	return problem(codeBad, "%s", strings.Join(*b, "; "))
}

func (b *badly) uuid(key, s string) ee.UUID {
	u, err := ee.ParseUUID(clip(s))
	if err == nil && u.IsZero() {
		err = fmt.Errorf("the zero UUID names nothing")
	}
	if err != nil {
		b.add("%s: %v", key, err)
	}
	return u
}

func (b *badly) generation(key, s string) ee.Generation {
	g, err := ee.ParseGeneration(clip(s))
	if err != nil {
		b.add("%s: %v", key, err)
	}
	return g
}

func (b *badly) generations(key string, in map[string]string) map[string]ee.Generation {
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]ee.Generation, len(in))
	for slot, g := range in {
		out[slot] = b.generation(key+"."+clip(slot), g)
	}
	slices.Sort(*b) // a map has no order, an answer should
	return out
}

func (b *badly) wait(ms int64) time.Duration { return b.millis("wait_ms", ms, enclosure.MaxWait) }

func (b *badly) millis(key string, ms int64, most time.Duration) time.Duration {
	if ms < 0 || ms > most.Milliseconds() {
		b.add("%s: %d is outside 0..%d", key, ms, most.Milliseconds())
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

func (b *badly) names(key string, names []string) {
	for i, n := range names {
		if slices.Contains(names[:i], n) {
			b.add("%s: %q is there twice", key, clip(n))
		}
	}
}

// set is what a request on one slot is about: it alone, or the slots that the
// body names, of which it must be one.
func (b *badly) set(c *call, slots []string) []string {
	slot := c.http.PathValue("slot")
	if len(slots) == 0 {
		return []string{slot}
	}
	b.names("slots", slots)
	if !slices.Contains(slots, slot) {
		b.add("slots: %q, of the path, is not among them", clip(slot))
	}
	return slots
}
