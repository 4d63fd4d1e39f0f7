package control

import (
	"baton/ee"
	"baton/sim"
)

func stateOf(w *sim.World) State {
	spec := w.Spec()
	s := State{Now: Duration(w.Now()), Powered: w.Powered(), Positions: w.Positions()}
	for _, b := range spec.Buses {
		n := w.Bus(b.Name).Stats()
		s.Buses = append(s.Buses, BusState{b.Name, n.Transfers, n.NACKs, n.Bytes, n.Bits, Duration(n.Busy)})
	}
	for _, c := range spec.Chips {
		chip := ChipState{Name: c.Name, Part: c.Part, PageWrites: w.PageWrites(c.Name)}
		for _, n := range w.Chip(c.Name).Wear() {
			chip.Hottest = max(chip.Hottest, n)
		}
		s.Chips = append(s.Chips, chip)
	}
	for _, l := range spec.Slots {
		slot := w.Slot(l.Name)
		st := slot.State()
		s.Slots = append(s.Slots, SlotState{
			Name: l.Name, Group: st.Block.Group, Generation: st.Block.Generation.String(), Link: st.Status&ee.StatLink != 0,
			Peer: st.Peer, Reacher: st.Reacher,
			Control: Hex[uint16]{uint16(st.Control)}, Status: Hex[uint16]{uint16(st.Status)},
			Latch: Hex[uint16]{uint16(st.Latch)}, Show: Hex[uint16]{uint16(st.Show)},
			Resets: st.Resets, Swallowed: st.Swallowed, Proven: st.Proven, Epoch: Hex[uint32]{st.Epoch}, Writes: slot.RegisterWrites(),
		})
	}
	for _, v := range spec.Servers {
		srv := w.Server(v.Name)
		st := ServerState{Name: v.Name, DMA: srv.DMA(), Stray: srv.StrayDMA(), VMs: []VM{}, Reaches: []string{}}
		for _, name := range srv.VMs() {
			vm := VM{Name: name, Holds: []string{}}
			for _, l := range spec.Slots {
				if srv.HoldsDevice(name, l.Name) {
					vm.Holds = append(vm.Holds, l.Name)
				}
			}
			st.VMs = append(st.VMs, vm)
		}
		for _, l := range spec.Slots {
			if srv.Reach(l.Name) {
				st.Reaches = append(st.Reaches, l.Name)
			}
		}
		s.Servers = append(s.Servers, st)
	}
	return s
}

func recordOf(w *sim.World) Record {
	r := Record{
		Now: Duration(w.Now()), Reach: []Interval{}, MaxOwners: map[string]int{},
		Resets: []Reset{}, PowerLoss: []PowerLoss{}, Violations: []Violation{},
	}
	for _, i := range w.Reach() {
		r.Reach = append(r.Reach, Interval{i.Slot, i.Server, Duration(i.From), Duration(i.To), i.Open})
	}
	for _, l := range w.Spec().Slots {
		r.MaxOwners[l.Name] = w.MaxOwners(l.Name)
		for _, x := range w.Resets(l.Name) {
			r.Resets = append(r.Resets, Reset{Duration(x.At), x.Slot, x.Cause, x.Server, x.Swallowed})
		}
		for _, at := range w.PowerLosses(l.Name) {
			r.PowerLoss = append(r.PowerLoss, PowerLoss{Duration(at), l.Name})
		}
	}
	for _, v := range w.Violations() {
		r.Violations = append(r.Violations, Violation{Duration(v.At), v.Name, v.What})
	}
	return r
}
