package sim

import (
	"encoding/binary"
	"hash/maphash"
)

// Writing tells whether a chip is in its write cycle: only then does the kind
// of tear make a difference to a power cut.
func (w *World) Writing() bool {
	t := w.enter()
	defer w.mu.Unlock()
	for i := range w.chips {
		if t < w.chips[i].cycle.until {
			return true
		}
	}
	return false
}

// Writing is the world's, at the instant of the snapshot.
func (s *Snapshot) Writing() bool {
	for i := range s.w.chips {
		if s.w.at < s.w.chips[i].cycle.until {
			return true
		}
	}
	return false
}

// Fingerprint adds to h all that a power cut has left and what follows depends
// on: the cells of all chips, which of them are unstable, what engines, servers
// and the switch are. Instants and the record of the past are not in it. Where
// cells are unstable the state of the random numbers is. It panics while the
// enclosure has power: then what is under way counts, too.
func (w *World) Fingerprint(h *maphash.Hash) {
	w.enter()
	defer w.mu.Unlock()
	if w.on {
		panic("sim: fingerprint of a world that has power")
	}
	loose := false
	for i := range w.chips {
		loose = w.chips[i].fingerprint(h) || loose
	}
	if loose {
		word(h, w.rng.state)
	}
	for i := range w.slots {
		s := &w.slots[i]
		maphash.WriteComparable(h, struct {
			id          uint32
			mac         MAC
			device      Device
			dead        bool
			powered     bool
			epoch       uint32
			ignore      int
			cutInLoad   bool
			control     byte
			latches     byte
			resets      uint32
			proven      uint32
			loaded, bad bool
		}{s.id, s.mac, s.device, s.dead, s.powered, s.epoch, s.ignore, s.cutInLoad, s.control, s.latches, s.resets, s.proven, s.loaded, s.configBad})
	}
	for i := range w.servers {
		v := &w.servers[i]
		maphash.WriteComparable(h, struct {
			group            uint16
			mac              MAC
			on, fabric, hung bool
			appeared         uint64
		}{v.group, v.mac, v.on, v.fabric, v.hung, v.appeared})
		for _, m := range v.vms {
			h.WriteString(m.name)
			for _, s := range m.slots {
				word(h, uint64(s))
			}
			maphash.WriteComparable(h, m.opt)
		}
	}
	for i := range w.spec.Slots {
		p := w.spec.Slots[i].Port
		for _, v := range w.sw.vlans[p] {
			word(h, uint64(i)<<32|uint64(v))
		}
	}
	word(h, uint64(w.sw.failing))
}

func (c *Chip) fingerprint(h *maphash.Hash) (loose bool) {
	h.WriteString(c.spec.Part)
	maphash.WriteComparable(h, [2]bool{c.dead, c.protected})
	for i, p := range c.pages {
		if p == erased {
			continue
		}
		word(h, uint64(i))
		h.Write(p.data[:c.part.Page])
		if p.worn {
			word(h, uint64(p.wear))
		}
		if l := p.loose; l != nil {
			loose = true
			maphash.WriteComparable(h, *l)
		}
	}
	word(h, uint64(len(c.pages)))
	return loose
}

func word(h *maphash.Hash, v uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	h.Write(b[:])
}
