package plan

import (
	"baton/ee"
	"baton/enclosure/bug"
)

// Peer is the host that a group belongs to, as it is now.
type Peer struct {
	MAC    ee.MAC
	Fenced bool
}

// Want is what a slot's page, engine and port should look like.
type Want struct {
	Block ee.Block
	Link  bool
	Peer  ee.MAC // whom the engine may connect to; zero where Link is false
	Show  uint8  // DVSEC
	Guarding
}

// Desire says what a slot should look like. host is the one whose group the
// slot has, nil where it is free or the configuration knows of no such host;
// whoever is fenced gets no link.
func Desire(s Slot, incarnation uint32, p Policy, host *Peer) Want {
	w := Want{
		Block:    s.Block(incarnation),
		Guarding: p.Guard(s.Flag(), s.Held()),
	}
	w.Guard = w.Guard && s.Caps.Has(ee.CapResetGuard)
	if s.Now.To == ee.GroupFree || host == nil || host.Fenced {
		return w
	}
	w.Link = true
	if !bug.Is(bug.OneOwner) {
		w.Peer = host.MAC
	}
	w.Show = ee.ShowValid
	if s.Flag() == Target {
		w.Show |= ee.ShowTarget | ee.ShowPowerKept
	}
	return w
}

// Group is the VLAN that the slot's port should be a member of; 0 = of none.
func (w Want) Group() uint16 {
	if !w.Link {
		return 0
	}
	return w.Block.Group
}

// Control is what CONTROL should be; was is what it is, for the bits that are
// nobody's but the operator's.
func (w Want) Control(was uint8) uint8 {
	c := was & (ee.CtlPower | ee.CtlLocate)
	if w.Guard {
		c |= ee.CtlGuard
	}
	if w.Hold {
		c |= ee.CtlHold
	}
	if w.Link {
		return c | ee.CtlLink
	}
	return c | ee.CtlQuiesce
}

// Missing tells whether CONTROL lacks what g asks for. More than that may be on:
// whoever armed the slot wanted it.
func (g Guarding) Missing(control uint8) bool {
	return g.Guard && control&ee.CtlGuard == 0 || g.Hold && control&ee.CtlHold == 0
}

// Diff is what has to be done to a slot.
type Diff uint8

// What a Diff can hold, in the order in which it is done.
const (
	DoCut     Diff = 1 << iota // take the link off and confirm it
	DoWrite                    // write the config block
	DoReload                   // make the engine load it
	DoConnect                  // expect the peer, show the flag, link on
	DoShow                     // flag or guard under a link that stays up
)

// Has tells whether d has any of what.
func (d Diff) Has(what Diff) bool { return d&what != 0 }

// Found is what was read of a slot.
type Found struct {
	Block *ee.Block       // nil = unreadable, blank or damaged
	Live  *ee.Observation // nil where the engine has no Status
	Show  uint8           // DVSEC as read back
	Peer  ee.MAC          // EXPECT_PEER as read back
	// Suspect means that power may have been lost inside a write cycle: a page
	// that reads well once may read differently next time.
	Suspect bool
}

// Compare is the table of recovery: it looks at everything that a move sets and
// returns what has to be done again. Where all agrees it returns 0, and nothing
// is written.
//
//	found                                            done
//	page differs, damaged, or written in a power cut write; under another group or generation also cut, reload
//	engine not loaded, config bad, another group     cut, reload
//	link enabled, must not be                        cut
//	link not enabled, must be                        connect
//	another peer expected                            cut, connect
//	flag shown differs, guard off but wanted         show
func Compare(w Want, f Found, caps ee.Caps) Diff {
	var d Diff
	if bug.Is(bug.PowerCut) && f.Suspect && w.Link {
		return d
	}
	same := f.Block != nil && *f.Block == w.Block
	if !same || f.Suspect {
		d |= DoWrite
	}
	if f.Block == nil || f.Block.Group != w.Block.Group || f.Block.Generation != w.Block.Generation {
		d |= DoCut | DoReload
	}
	if !caps.Has(ee.CapStatus) {
		// Nothing can be read but the page: the engine runs with what it loaded
		// at power-up or at the last reload.
		if d.Has(DoReload) {
			d |= DoConnect
		}
		return d
	}
	on := f.Live.Control&ee.CtlLink != 0
	if f.Live.Status&ee.StatLoaded == 0 || f.Live.Status&ee.StatConfigBad != 0 || f.Live.Group != w.Block.Group {
		d |= DoCut | DoReload
	}
	if on && (!w.Link || caps.Has(ee.CapExpectPeer) && f.Peer != w.Peer) {
		d |= DoCut
	}
	if w.Link && (!on || d.Has(DoCut)) {
		d |= DoConnect
	}
	if d.Has(DoCut | DoConnect) {
		return d
	}
	if w.Missing(f.Live.Control) || (w.Link && caps.Has(ee.CapFlagMirror) && f.Show != w.Show) {
		d |= DoShow
	}
	return d
}
