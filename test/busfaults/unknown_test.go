package busfaults

import (
	"strings"
	"testing"
	"time"

	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"
)

// What can not be read is unknown: not yes, not no, and no reason to cut anybody.
// Once it can be read the answer is what it was.
func TestUnknown(t *testing.T) {
	for _, tc := range []struct {
		name   string
		target target
		start  bool // a new agent finds it so
	}{
		{"engine", engine, false},
		{"engine at the start", engine, true},
		{"eeprom at the start", eeprom, true},
		{"store at the start", store, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inCell(t, nackAddr, tc.target, func(c *cell) {
				before := c.W.Reach()
				lift := nackAddr.inject(c.Rig, tc.target)
				if tc.start {
					c.Restart()
					c.Run()
				}
				time.Sleep(3 * time.Second)
				v := c.Verdict(faulty)
				s := c.SlotStatus(faulty)
				if v.Preserved != plan.Unknown || v.Reason == "" || v.Now != (plan.Values{}) {
					t.Errorf("verdict %+v; want unknown, with a reason and no values", v)
				}
				if tc.target == store && !strings.Contains(v.Reason, "store") {
					t.Errorf("the reason is not the store: %s", v.Reason)
				}
				if tc.target != store && (s.Link != "unknown" || s.Host != rig.A || s.VM != rig.VM1) {
					t.Errorf("link %s, with %q for %q; want unknown, %s, %s", s.Link, s.Host, s.VM, rig.A, rig.VM1)
				}
				if now := c.W.Reach(); len(now) != len(before) || c.reach(faulty) != rig.A || c.reach(ours) != rig.A {
					t.Errorf("links changed: %+v, were %+v", now, before)
				}
				lift()
				time.Sleep(lifted)
				if tc.target == store {
					c.Restart()
				}
				c.WantVerdict(faulty, plan.Yes)
				c.WantVerdict(ours, plan.Yes)
				if len(c.W.Reach()) != len(before) {
					t.Error("links changed when it could be read again")
				}
			})
		})
	}
}

// An EEPROM that does not answer while its engine comes back to the bus is not a
// damaged one: nothing is cut to write it anew.
func TestUnreadIsNotDamaged(t *testing.T) {
	inCell(t, nackAddr, eeprom, func(c *cell) {
		before := c.W.Reach()
		lift := nackAddr.inject(c.Rig, eeprom)
		c.W.Bus(engine.bus).Inject(sim.Fault{Kind: sim.NACKAddr, Addr: engine.addr, For: 2500 * time.Millisecond})
		time.Sleep(10 * time.Second)
		if now := c.W.Reach(); len(now) != len(before) || c.reach(faulty) != rig.A {
			t.Errorf("links changed: %+v, were %+v", now, before)
		}
		lift()
		time.Sleep(lifted)
		c.WantVerdict(faulty, plan.Yes)
	})
}
