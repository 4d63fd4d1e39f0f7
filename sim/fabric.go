package sim

import (
	"time"

	"baton/ee"
)

// relink looks whether the slot's link may be up, and lets it drop or begin to
// come up. asked: what changed is the agent's doing at this engine.
func (s *Slot) relink(t time.Duration, asked bool) {
	if s.peer >= 0 && !(s.enabled() && s.fits(s.peer)) {
		s.linkDown(t, asked)
	}
	switch {
	case s.peer >= 0:
	case s.candidate() < 0:
		s.linkAt = never
	case s.linkAt == never:
		s.linkAt = t + s.w.spec.LinkUpTime
		s.w.schedule(s.linkAt)
	}
}

// enabled tells whether the engine wants a link.
func (s *Slot) enabled() bool {
	return s.running && s.startAt == never && s.control&ee.CtlLink != 0 && s.loaded && s.assigned
}

// fits tells whether the engine can connect to that server: it is on the
// fabric with the engine's group, where the engine's port can see it, and is
// not another than the one expected.
func (s *Slot) fits(server int) bool {
	v := &s.w.servers[server]
	switch {
	case !v.on || !v.fabric || v.group != s.block.Group:
		return false
	case s.expect != MAC{} && s.expect != v.mac:
		return false
	}
	return s.spec.Port == "" || s.w.sw.member(s.spec.Port, s.block.Group)
}

// candidate is the server the engine would link to: of those that fit the one
// that came onto the fabric first; -1 = none.
func (s *Slot) candidate() int {
	if !s.enabled() {
		return -1
	}
	return s.firstFit()
}

func (s *Slot) firstFit() int {
	best := -1
	for i := range s.w.servers {
		if s.fits(i) && (best < 0 || s.w.servers[i].appeared < s.w.servers[best].appeared) {
			best = i
		}
	}
	return best
}

// seenPeer is the server that the peer registers show: the one the engine is
// linked to, else the one it would link to.
func (s *Slot) seenPeer() int {
	if s.peer >= 0 {
		return s.peer
	}
	if !s.running || !s.loaded || !s.assigned {
		return -1
	}
	return s.firstFit()
}

func (s *Slot) linkUp(t time.Duration, server int) {
	s.peer, s.linkAt = server, never
	s.linkChanges++
	s.reachChanged(t)
}

// linkDown is the link dropping under a running engine: unless something holds
// the device, it sees its upstream port go and is reset.
func (s *Slot) linkDown(t time.Duration, asked bool) {
	s.linkGone(t)
	s.linkChanges++
	if !asked {
		s.latches |= ee.LatchLinkLost
	}
	if s.control&(ee.CtlGuard|ee.CtlHold) == 0 {
		s.resetDevice(t, "link down", -1)
	}
}

// linkGone is the link's end, without what the engine makes of it.
func (s *Slot) linkGone(t time.Duration) {
	s.account(t)
	s.peer, s.linkAt = -1, never
	s.reachChanged(t)
}

// reachChanged records who can reach the device from t on.
func (s *Slot) reachChanged(t time.Duration) {
	now := s.peer
	if !s.powered || !s.device.present() {
		now = -1
	}
	if now == s.reacher {
		return
	}
	s.account(t)
	if s.reacher >= 0 {
		s.w.record.reach = append(s.w.record.reach, Interval{
			Slot: s.spec.Name, Server: s.w.servers[s.reacher].spec.Name, From: s.reachFrom, To: t})
	}
	s.reacher, s.reachFrom = now, t
}
