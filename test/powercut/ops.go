package powercut

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/nvm"
	"baton/sim"
	"baton/test/rig"
)

// op is an operation of the agent that is cut short.
type op struct {
	name         string
	slots, buses int
	bare         bool // there is no agent yet
	policy       plan.Policy
	setup        func(r *rig.Rig) error
	// do is the operation; nil = it was acknowledged.
	do func(r *rig.Rig) error
	// look names the state that a new agent shows; nil = where the set is.
	look func(r *rig.Rig) string
	// want are the states that may be found; the last one is the only one once
	// do has returned.
	want  []string
	loose bool // slots may be apart, blocked or free: look says what is right
}

const (
	held  = "held"
	yes   = "yes"
	no    = "no"
	moved = rig.B
)

func after(f func(r *rig.Rig) error) func(r *rig.Rig) error {
	return func(r *rig.Rig) error {
		if err := running(r); err != nil {
			return err
		}
		return f(r)
	}
}

// running has VM1 run on A, and proven alive.
func running(r *rig.Rig) error {
	r.StartVM(rig.VM1, rig.A)
	for _, s := range r.Slots(rig.VM1, rig.A) {
		if err := r.Alive(rig.VM1, rig.A, s); err != nil {
			return err
		}
	}
	return nil
}

func move(r *rig.Rig) error {
	m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
	if err == nil && m.State != enclosure.MoveDone {
		err = fmt.Errorf("move: %s %s", m.State, m.Reason)
	}
	return err
}

func release(mode enclosure.ReleaseMode) func(r *rig.Rig) error {
	return func(r *rig.Rig) error {
		return r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: mode})
	}
}

func fence(r *rig.Rig) error {
	_, err := r.E.Fence(r.Ctx(), rig.A, "test")
	return err
}

func adopt(r *rig.Rig) error {
	a, err := r.E.AdoptionOf(r.Ctx(), "gpu0")
	if err == nil {
		_, err = r.E.Adopt(r.Ctx(), "gpu0", a.Token, "test")
	}
	return err
}

func alive(r *rig.Rig) error { return r.Alive(rig.VM1, rig.A, "gpu0") }

func ack(r *rig.Rig) error {
	v, err := r.E.Verdict(r.Ctx(), "gpu0")
	if err != nil {
		return err
	}
	return r.E.Ack(r.Ctx(), enclosure.AckRequest{Slot: "gpu0", Nonce: r.Nonce(rig.VM1), Gen: r.Gen("gpu0"), Seen: v.Now})
}

func stays(string) []string { return []string{rig.A} }

var newMAC = sim.MAC{2, 'N', 'E', 'W', 0, 9}

// ops are the operations of the agent.
var ops = slices.Concat(moves(), []op{
	{name: "format", slots: 2, buses: 1, bare: true, do: func(r *rig.Rig) error { r.Start(enclosure.Options{}); return nil },
		look: fresh, want: []string{yes}, loose: true},
	{name: "attach", slots: 2, buses: 1, do: func(r *rig.Rig) error {
		_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.A, Wait: time.Second})
		return err
	}, want: []string{"", rig.A}, loose: true, look: where},
	{name: "attach-in-place", slots: 1, buses: 1, setup: running, do: func(r *rig.Rig) error {
		if err := r.W.Server(rig.A).StopVM(rig.VM1); err != nil {
			return err
		}
		_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Host: rig.A, Wait: time.Second})
		return err
	}, want: stays("")},
	{name: "attach-other-vm", slots: 2, buses: 1, setup: after(func(r *rig.Rig) error {
		return errors.Join(r.W.Server(rig.A).StopVM(rig.VM1), release(enclosure.ReleaseKeep)(r))
	}), do: func(r *rig.Rig) error {
		_, err := r.E.Attach(r.Ctx(), enclosure.AttachRequest{VM: rig.VM2, Host: rig.B, Wait: time.Second})
		return err
	}, want: []string{rig.A, moved}},
	{name: "arm", slots: 1, buses: 1, setup: running, do: func(r *rig.Rig) error { _, err := r.Arm("gpu0", true); return err }, want: stays("")},
	{name: "disarm", slots: 1, buses: 1, setup: after(func(r *rig.Rig) error { _, err := r.Arm("gpu0", true); return err }),
		do: func(r *rig.Rig) error { return r.E.Disarm(r.Ctx(), "gpu0", rig.UUID(100), "test") }, want: stays("")},
	{name: "ack-first", slots: 1, buses: 1, setup: func(r *rig.Rig) error { r.Attach(rig.VM1, rig.A); r.Boot(rig.VM1, rig.A); return nil },
		do: ack, want: stays("")},
	{name: "ack-target", slots: 1, buses: 1, setup: after(func(r *rig.Rig) error {
		r.W.Server(rig.A).PowerLoss()
		r.Fence(rig.A)
		r.Attach(rig.VM1, rig.B)
		r.Boot(rig.VM1, rig.B)
		return nil
	}), do: ack, want: []string{rig.B}},
	{name: "alive", slots: 1, buses: 1, policy: plan.OnMove, setup: after(func(r *rig.Rig) error { return r.W.Server(rig.A).GuestReboot(rig.VM1) }), do: alive, want: stays("")},
	{name: "release-keep", slots: 1, buses: 1, setup: running, do: release(enclosure.ReleaseKeep), want: []string{no, yes},
		look: func(r *rig.Rig) string {
			if r.SlotStatus("gpu0").Released {
				return yes
			}
			return no
		}},
	{name: "release-hold", slots: 2, buses: 1, setup: running, do: release(enclosure.ReleaseHold), want: []string{rig.A, held}},
	{name: "release-free", slots: 1, buses: 1, setup: running, do: release(enclosure.ReleaseFree), want: []string{rig.A, ""}, loose: true, look: where},
	{name: "fence", slots: 2, buses: 1, setup: running, do: fence, want: []string{rig.A, held + " fenced"}, look: fenced},
	{name: "unfence", slots: 1, buses: 1, setup: after(fence), do: func(r *rig.Rig) error {
		return r.E.Unfence(r.Ctx(), rig.A, r.Host(rig.A).Epoch, "test")
	}, want: []string{held + " fenced", held}, look: fenced},
	{name: "compaction", slots: 1, buses: 1, setup: after(fill), do: compact, want: stays("")},
	{name: "configuration", slots: 1, buses: 1, setup: after(func(r *rig.Rig) error { return r.E.Keep(r.Ctx(), configuration(1)) }),
		do: func(r *rig.Rig) error { return r.E.Keep(r.Ctx(), configuration(2)) }, want: []string{"1", "2"}, look: kept},
	{name: "repair", slots: 1, buses: 1, setup: after(spoil),
		do: func(r *rig.Rig) error {
			c, err := r.E.CheckNVM(r.Ctx())
			if err == nil {
				_, err = r.E.RepairNVM(r.Ctx(), c.Token, false, "test")
			}
			return err
		}, want: stays("")},
	{name: "undo", slots: 2, buses: 1, setup: after(func(r *rig.Rig) error {
		// gpu1's page can not be written until gpu0's is written back.
		b, pages := r.W.Bus("bus0"), 0
		b.Inject(sim.Fault{Kind: sim.NACKData, Addr: 0x21, Only: sim.WriteOp, Byte: 10})
		b.OnTransfer(func(addr uint16, w []byte) {
			if addr == 0x20 && len(w) == 2+ee.BlockSize && w[0] == 0 && w[1] == 0 {
				if pages++; pages == 2 {
					b.ClearFaults()
				}
			}
		})
		return nil
	}), do: func(r *rig.Rig) error {
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		if err == nil && m.State != enclosure.MoveUndone {
			err = fmt.Errorf("move: %s, want undone", m.State)
		}
		return err
	}, want: []string{rig.B, rig.A}},
	{name: "adopt", slots: 2, buses: 1, setup: func(r *rig.Rig) error {
		r.StartVM(rig.VM1, rig.A, "gpu0")
		r.W.Slot("gpu0").SetEngine(ee.EngineID, newMAC)
		r.Restart()
		return nil
	}, do: adopt, want: []string{no, yes}, look: adopted, loose: true},
	{name: "adopt-blank", slots: 1, buses: 1, setup: after(func(r *rig.Rig) error {
		r.W.Chip("gpu0").SetImage(bytes.Repeat([]byte{0xFF}, 32768))
		return nil
	}), do: adopt, want: []string{rig.A, held}},
	{name: "resolve", slots: 2, buses: 1, setup: after(func(r *rig.Rig) error {
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x61, Only: sim.WriteOp, Skip: 2})
		if m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)); err != nil || m.State != enclosure.MoveBlocked {
			return fmt.Errorf("move = %s, %w; want blocked", m.State, err)
		}
		return nil
	}), do: func(r *rig.Rig) error {
		_, err := r.E.Resolve(r.Ctx(), rig.UUID(1), []string{"gpu1"}, "test")
		return err
	}, want: []string{no, yes}, look: dropped, loose: true},
	{name: "force-free", slots: 1, buses: 1, setup: after(func(r *rig.Rig) error {
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, Only: sim.WriteOp})
		_ = release(enclosure.ReleaseHold)(r) // its cut can not be carried out
		r.W.Bus("bus0").ClearFaults()
		return nil
	}), do: func(r *rig.Rig) error { return r.E.ForceFree(r.Ctx(), "gpu0", "gpu0", "test") },
		want: []string{no, yes}, look: freed, loose: true},
	{name: "reset", slots: 1, buses: 1, setup: after(move), do: func(r *rig.Rig) error {
		return r.E.Reset(r.Ctx(), enclosure.ResetRequest{Slot: "gpu0", Gen: r.Gen("gpu0"), By: "test"})
	}, want: []string{moved}},
	{name: "power-cycle", slots: 1, buses: 1, setup: after(release(enclosure.ReleaseHold)), do: func(r *rig.Rig) error {
		return r.E.Power(r.Ctx(), enclosure.PowerRequest{Slot: "gpu0", Gen: r.Gen("gpu0"), State: "cycle", By: "test"})
	}, want: []string{held}},
	{name: "raise", slots: 1, buses: 1, setup: running, do: func(r *rig.Rig) error {
		f := r.E.Floor()
		f.Hosts[rig.A] += 3
		f.Slots["gpu0"] = ee.Generation{Incarnation: f.Slots["gpu0"].Incarnation, Counter: 900}
		_, err := r.E.Raise(r.Ctx(), f, false, "test")
		return err
	}, want: []string{rig.A, held + " fenced"}, look: fenced},
})

func moves() []op {
	var all []op
	for _, m := range []struct{ slots, buses int }{{1, 1}, {2, 1}, {2, 2}, {8, 1}, {8, 4}} {
		all = append(all, op{name: fmt.Sprintf("move-%d-on-%d", m.slots, m.buses), slots: m.slots, buses: m.buses,
			setup: running, do: move, want: []string{rig.A, moved}})
	}
	return all
}

// where the set is by gpu0: with a host, held or free.
func where(r *rig.Rig) string {
	s := r.SlotStatus("gpu0")
	if s.Host == "" && s.Held {
		return held
	}
	return s.Host
}

// fenced is where, and whether A is fenced. A slot is never with a host that is.
func fenced(r *rig.Rig) string {
	if r.Host(rig.A).Fenced {
		return where(r) + " fenced"
	}
	return where(r)
}

// fresh: all slots are free, all hosts fenced.
func fresh(r *rig.Rig) string {
	for _, s := range r.E.Status(r.Ctx()).Slots {
		if s.Host != "" || s.Held || s.Problem != "" {
			return fmt.Sprintf("%+v", s)
		}
	}
	for _, h := range r.E.Status(r.Ctx()).Hosts {
		if !h.Fenced {
			return h.Name + " is not fenced"
		}
	}
	return yes
}

// adopted: the parts are adopted or not; if not, they can be.
func adopted(r *rig.Rig) string {
	state := yes
	if s := r.SlotStatus("gpu0"); s.Problem != "" {
		state = no
		if err := adopt(r); err != nil {
			return err.Error()
		}
	}
	if s := r.SlotStatus("gpu0"); s.Problem != "" || s.Blocked != "" || !s.Held || s.VM != rig.VM1 || s.Flag != plan.Void {
		return fmt.Sprintf("%s: %+v", state, s)
	}
	return state
}

// dropped: the slot was dropped, or the set is together.
func dropped(r *rig.Rig) string {
	s, o := r.SlotStatus("gpu0"), r.SlotStatus("gpu1")
	switch {
	case s.Problem+s.Blocked+o.Problem+o.Blocked != "" || s.Host == "":
		return fmt.Sprintf("gpu0 %+v, gpu1 %+v", s, o)
	case o.Host == s.Host:
		return no
	case o.Host != "" || !o.Held || o.VM != rig.VM1 || o.Flag != plan.Void || o.Cut != "confirmed" || o.Memory.Preserved == plan.Yes:
		return fmt.Sprintf("dropped: %+v", o)
	}
	return yes
}

// freed: the slot is its VM's, or nobody's; nobody reaches it.
func freed(r *rig.Rig) string {
	s := r.SlotStatus("gpu0")
	switch {
	case s.Problem+s.Blocked != "" || s.Host != "" || s.Cut != "confirmed" || !s.Held && s.Memory.Preserved == plan.Yes:
		return fmt.Sprintf("%+v", s)
	case s.Held:
		return no
	}
	return yes
}

func configuration(version uint32) plan.Configuration {
	return plan.Configuration{Version: version, Packed: bytes.Repeat([]byte{byte(version)}, 700)}
}

// kept is the configuration's version, if it is whole.
func kept(r *rig.Rig) string {
	c, found, err := enclosure.Mount(r.Ctx(), r.Config.Store, enclosure.Options{SameBoot: true}).Configuration()
	if err != nil || !found || !bytes.Equal(c.Packed, configuration(c.Version).Packed) {
		return fmt.Sprintf("found %v, version %d, %v", found, c.Version, err)
	}
	return fmt.Sprint(c.Version)
}

// fill ages the store until housekeeping has records to carry over, as months of
// use do. The agent is away meanwhile.
func fill(r *rig.Rig) error {
	r.Stop()
	s, _, err := nvm.Mount(context.Background(), r.Config.Store.Medium, nvm.Options{ReservePages: -1})
	if err != nil {
		return err
	}
	n := s.Stats().Pages
	for i := range n/2 + n/3 {
		for n := 0; n < 40 && (s.Stats().Free < 16 || i%16 == 0 && n == 0); n++ {
			if err := s.Tend(context.Background()); err != nil {
				return err
			}
		}
		if err := s.Put(context.Background(), nvm.Urgent, filler(i)); err != nil {
			return err
		}
	}
	return nil
}

// spoil programs half the bits of the store's first page, a format record.
func spoil(r *rig.Rig) error {
	m := r.Config.Store.Medium
	p := make([]byte, max(64, m.Geometry().Page))
	if err := m.ReadAt(r.Ctx(), p, 0); err != nil {
		return err
	}
	for i := range p {
		p[i] &= 0x5a
	}
	return errors.Join(m.Program(r.Ctx(), p, 0), m.Settle(r.Ctx()))
}

// filler is a record that the agent takes no part in.
func filler(i int) nvm.Record {
	return nvm.Record{Key: fmt.Sprintf("~%d", i%8), Value: []byte{byte(i), byte(i >> 8)}}
}

// compact tends the store until it has moved what is needed and made room.
func compact(r *rig.Rig) error {
	s, _, err := nvm.Mount(context.Background(), r.Config.Store.Medium, nvm.Options{})
	if err != nil {
		return err
	}
	for i := range 8 {
		if err := s.Put(context.Background(), nvm.Urgent, filler(i)); err != nil {
			return err
		}
		for range 3 {
			if err := s.Tend(context.Background()); err != nil {
				return err
			}
		}
	}
	return nil
}
