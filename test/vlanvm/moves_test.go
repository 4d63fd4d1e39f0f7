//go:build vm

package vlanvm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"baton/enclosure"
	"baton/test/rig"
	"baton/vlan"
)

// table gives a group another VLAN than its own number.
var table = map[uint16]uint16{rig.GroupC: 1103}

func config(uplinkMode vlan.Mode) vlan.Config {
	return vlan.Config{
		Bridge: bridge, Uplink: vlan.Port{Name: uplink, Mode: uplinkMode},
		Ports:       []vlan.Port{{Name: lan[0]}, {Name: lan[1], Mode: vlan.Access}, {Name: lan[2]}, {Name: lan[3], Mode: vlan.Access}},
		VLANs:       table,
		Groups:      []uint16{rig.GroupA, rig.GroupB, rig.GroupC},
		OwnUntagged: uplinkMode == vlan.Tagged,
	}
}

// TestFrames: while the slots of one VM move between three servers, and its
// host is fenced, frames are sent all the time: by each engine with every
// group's tag and without one, by the servers with all tags. Only the members of
// a group hear each other; what another VM's slots have, on the same uplink and
// at first in the same group, is not disturbed; and neither is the controller's
// own network.
func TestFrames(t *testing.T) {
	plug(t)
	w := &witness{t: t, Switch: vlan.New(config(vlan.Tagged)), group: table, of: map[string][]*stay{}}
	defer w.Switch.Close()
	r := rig.New(t, rig.Options{Slots: 4, Buses: 2, Config: func(c *enclosure.Config) {
		for i := range c.Slots {
			c.Slots[i].Port = lan[i]
		}
		c.Switch = w
	}})
	defer r.Stop()
	for _, p := range lan {
		if got := members(t, p); got != "[]" {
			t.Errorf("port %s of a slot that is free is a member of %s", p, got)
		}
	}
	w.idle = func(port string) error {
		slot := rig.Slot(slices.Index(lan, port))
		for _, h := range []string{rig.A, rig.B, rig.C} {
			if r.W.Server(h).Reach(slot) {
				return fmt.Errorf("the link of %s with %s is on", slot, h)
			}
		}
		return nil
	}

	s := &stations{t: t}
	s.add(engine(0), 0, 101, 102, 1103)
	s.add(engine(1), 0, 101, 102)
	s.add(engine(2), 0, 101, 102, 1103)
	s.add(engine(3), 0, 101)
	srv := s.add(far, 0, 101, 102, 1103)
	own := s.add(bridge, 0)
	s.start()
	time.Sleep(300 * time.Millisecond)

	one, two := []string{"gpu0", "gpu1"}, []string{"gpu2", "gpu3"}
	r.Attach(rig.VM2, rig.A, two...)
	r.Attach(rig.VM1, rig.A, one...)
	time.Sleep(200 * time.Millisecond)
	var longest time.Duration
	for range 3 {
		for _, to := range []string{rig.B, rig.C, rig.A} {
			before := now()
			m := r.Move(rig.VM1, to, one...)
			longest = max(longest, now()-before)
			if cut := slices.IndexFunc(m.Steps, func(st enclosure.Step) bool { return st.Name == "cut" }); cut < 0 {
				t.Errorf("a move without a cut: %v", m.Steps)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	r.Move(rig.VM1, rig.B, one...)
	time.Sleep(200 * time.Millisecond)
	r.Fence(rig.B)
	time.Sleep(200 * time.Millisecond)
	if got := members(t, uplink); got != "[1pu 101]" {
		t.Errorf("with server2 fenced the uplink is a member of %s; want of what the others use and what it had", got)
	}

	// Another agent on the same hardware changes nothing.
	r.Stop()
	again := &witness{t: t, Switch: vlan.New(config(vlan.Tagged)), group: table, of: w.of, idle: w.idle}
	defer again.Switch.Close()
	r.Config.Switch = again
	r.Start(enclosure.Options{SameBoot: true})
	if n := again.Stats().Changes; n != 0 {
		t.Errorf("a start on what agrees: %d messages that change something; want 0", n)
	}
	time.Sleep(200 * time.Millisecond)
	s.end()

	f := fabric{
		w:      w,
		port:   map[string]string{engine(0): lan[0], engine(1): lan[1], engine(2): lan[2], engine(3): lan[3], far: "", bridge: ""},
		access: map[string]bool{lan[1]: true, lan[3]: true},
	}
	sum := f.judge(t, s.all, func(st *station) bool { return st == own })
	t.Logf("%v; longest move %v", sum, longest.Round(time.Millisecond))
	if sum.due < 1000 || sum.sent < 5000 {
		t.Errorf("%v: that proves little", sum)
	}
	// The other VM's slots were never anything but members of their group.
	for _, p := range lan[2:] {
		if n := len(w.of[p]); n != 1 {
			t.Errorf("port %s changed its VLAN %d times", p, n)
		}
	}
	// The controller's own network: untagged over the uplink, both ways.
	for _, way := range []struct{ from, to *station }{{srv, own}, {own, srv}} {
		seqs := map[uint32]bool{}
		for _, h := range way.to.heard {
			if h.from == way.from.id && h.tag == 0 {
				seqs[h.seq] = true
			}
		}
		if sent := len(way.from.streams[0].sent); len(seqs) != sent {
			t.Errorf("of the controller's own network %d frames of %d came from %s to %s", len(seqs), sent, way.from.name, way.to.name)
		}
	}
	for _, h := range own.heard {
		if h.tag != 0 {
			t.Errorf("the controller heard a frame of station %d with tag %d", h.from, h.tag)
			break
		}
	}
	r.Check()
}

// TestAccessUplink: one group at a time, without a tag.
func TestAccessUplink(t *testing.T) {
	plug(t)
	sw := vlan.New(config(vlan.Access))
	defer sw.Close()
	must(t, sw.SetAll(t.Context(), map[string]uint16{lan[0]: 0, lan[1]: 0, lan[2]: 0, lan[3]: 0}))
	must(t, netlink.BridgeVlanDel(link(t, uplink), 1, true, true, false, true))
	must(t, sw.Set(t.Context(), lan[0], rig.GroupA))
	if got := members(t, uplink) + members(t, lan[0]); got != "[101pu][101]" {
		t.Errorf("uplink and port: %s", got)
	}
	err := sw.Set(t.Context(), lan[1], rig.GroupB)
	if err == nil {
		t.Error("two groups on an access port")
	} else {
		t.Log(err)
	}
	if got := members(t, uplink) + members(t, lan[1]); got != "[101pu][]" {
		t.Errorf("after that, uplink and port: %s", got)
	}
	must(t, sw.Set(t.Context(), lan[0], 0))
	must(t, sw.Set(t.Context(), lan[1], rig.GroupB))
	if got := members(t, uplink) + members(t, lan[1]); got != "[102pu][102pu]" {
		t.Errorf("the other group: %s", got)
	}
}
