//go:build vm

package vlanvm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"baton/enclosure"
	"baton/test/rig"
	"baton/vlan"
)

// TestDrift: what something else changes is put back; what is not ours is left.
func TestDrift(t *testing.T) {
	plug(t)
	ctx := t.Context()
	sw := vlan.New(config(vlan.Tagged))
	defer sw.Close()
	must(t, sw.SetAll(ctx, map[string]uint16{lan[0]: rig.GroupA, lan[1]: rig.GroupB, lan[2]: 0, lan[3]: 0}))
	pair(t, "lan9", "eng9")
	master(t, "lan9", bridge)
	must(t, netlink.BridgeVlanAddRange(link(t, uplink), 205, 210, false, false, false, true))
	must(t, netlink.BridgeVlanAdd(link(t, "lan9"), 101, false, false, false, true))
	must(t, netlink.BridgeVlanAdd(link(t, bridge), 102, false, false, true, false))
	if done, err := sw.Repair(ctx); err != nil || len(done) != 0 {
		t.Errorf("nothing of ours was changed: %v, %v", done, err)
	}
	warned := strings.Join(sw.Warnings(), "\n")
	for _, want := range []string{
		"VLANs 205-210 on uplink up0 are not ours and left alone",
		"port lan9 is a member of VLAN 101, which hosts have, and is neither a slot's port nor the uplink",
		"the controller itself is a member of VLAN 102 on bridge br0",
	} {
		if !strings.Contains(warned, want) {
			t.Errorf("warnings %q; want %q", warned, want)
		}
	}

	for _, tt := range []struct {
		name  string
		spoil func() error
		want  string
	}{
		{"port taken out", func() error { return netlink.BridgeVlanDel(link(t, lan[0]), 101, false, false, false, true) },
			"[lan0: port lan0 was a member of none; made to join 101]"},
		{"port of a free slot put in", func() error { return netlink.BridgeVlanAdd(link(t, lan[2]), 101, false, false, false, true) },
			"[lan2: port lan2 was a member of 101; made to leave 101]"},
		{"tag instead of none", func() error { return netlink.BridgeVlanAdd(link(t, lan[1]), 102, false, false, false, true) },
			"[lan1: port lan1 was a member of 102; made to join 102 untagged]"},
		{"uplink taken out, and put in", func() error {
			return errors.Join(netlink.BridgeVlanDel(link(t, uplink), 101, false, false, false, true), netlink.BridgeVlanAdd(link(t, uplink), 1103, false, false, false, true))
		}, "[up0: port up0 was a member of 1 untagged, 102, 205-210, 1103; made to leave 1103; made to join 101]"},
	} {
		must(t, tt.spoil())
		done, err := sw.Repair(ctx)
		var got []string
		for _, r := range done {
			got = append(got, r.Port+": "+r.Text)
		}
		if err != nil || fmt.Sprint(got) != tt.want {
			t.Errorf("%s: %v, %v; want %s", tt.name, got, err, tt.want)
		}
		var all []string
		for _, p := range append(lan[:len(lan):len(lan)], uplink, "lan9", bridge) {
			all = append(all, members(t, p))
		}
		if got, want := fmt.Sprint(all), "[[101] [102pu] [] [] [1pu 101 102 205 206 207 208 209 210] [1pu 101] [1pu 102]]"; got != want {
			t.Errorf("%s: afterwards %s; want %s", tt.name, got, want)
		}
	}
	// Again and again: not at once, and it is said.
	must(t, netlink.BridgeVlanDel(link(t, lan[0]), 101, false, false, false, true))
	if done, err := sw.Repair(ctx); err != nil || len(done) != 0 {
		t.Errorf("a second repair at once: %v, %v", done, err)
	}
	// Who is asked does it, whatever was repaired before.
	must(t, sw.Set(ctx, lan[0], rig.GroupA))
	if got := members(t, lan[0]); got != "[101]" {
		t.Errorf("after Set: %s", got)
	}
}

// TestAbsent: what is not there, or not as it must be, is named, and nothing is
// changed.
func TestAbsent(t *testing.T) {
	ctx := t.Context()
	check := func(name string, c vlan.Config, port, want string) {
		t.Helper()
		sw := vlan.New(c)
		defer sw.Close()
		for _, do := range []func(context.Context, string, uint16) error{
			func(ctx context.Context, port string, group uint16) error { return sw.May(ctx, []string{port}, group) }, sw.Set,
		} {
			err := do(ctx, port, rig.GroupA)
			if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, vlan.ErrUnseen) {
				t.Errorf("%s: %v; want %q, and ErrUnseen", name, err, want)
			}
		}
		if n := sw.Stats().Changes; n != 0 {
			t.Errorf("%s: %d messages that change something", name, n)
		}
	}
	unplug(t)
	check("no bridge", config(vlan.Tagged), lan[0], "there is no bridge br0; make it: ip link add br0 type bridge && echo 1 >/sys/class/net/br0/bridge/vlan_filtering")

	plug(t)
	before := members(t, lan[0]) + members(t, uplink)
	for name, change := range map[string]func(*vlan.Config){
		"lo is no bridge":                            func(c *vlan.Config) { c.Bridge = "lo" },
		"there is no port up7":                       func(c *vlan.Config) { c.Uplink.Name = "up7" },
		"eng0 is no port of bridge br0; make it one": func(c *vlan.Config) { c.Ports[0].Name = "eng0" },
		"there is no port lan7":                      func(c *vlan.Config) { c.Ports[0].Name = "lan7" },
		"group 101 has VLAN 4095":                    func(c *vlan.Config) { c.VLANs = map[uint16]uint16{rig.GroupA: 4095} },
		"VLAN 101 is the controller's own network's": func(c *vlan.Config) { c.OwnVLAN = 101 },
		"an access port would cut it":                func(c *vlan.Config) { c.Uplink.Mode = vlan.Access },
	} {
		c := config(vlan.Tagged)
		change(&c)
		check(name, c, c.Ports[0].Name, name)
	}
	filter(t, bridge, "0")
	check("no filtering", config(vlan.Tagged), lan[0], "bridge br0 does not filter VLANs")
	if after := members(t, lan[0]) + members(t, uplink); after != before {
		t.Errorf("after all that: %s; want %s", after, before)
	}

	// A move is refused before anything is cut, and works once it is mended.
	filter(t, bridge, "1")
	sw := vlan.New(config(vlan.Tagged))
	defer sw.Close()
	r := rig.New(t, rig.Options{Slots: 1, ProfileMod: patient, Config: func(c *enclosure.Config) { c.Slots[0].Port, c.Switch = lan[0], sw }})
	defer r.Stop()
	move(t, r, rig.VM1, rig.A)
	filter(t, bridge, "0")
	gen := r.Gen("gpu0")
	m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
	if err == nil || !strings.Contains(err.Error(), "does not filter VLANs") || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("a move without filtering: %s, %v", m.State, err)
	} else {
		t.Log(err)
	}
	if r.Gen("gpu0") != gen {
		t.Error("the generation has changed")
	}
	r.WantHost("gpu0", rig.A)
	// A start of the agent meanwhile cuts nobody.
	r.Restart()
	r.WantHost("gpu0", rig.A)
	filter(t, bridge, "1")
	time.Sleep(1600 * time.Millisecond) // a look that refused counts for a while
	r.Run()
	time.Sleep(2500 * time.Millisecond)
	move(t, r, rig.VM1, rig.B)
	r.WantHost("gpu0", rig.B)
	if got := members(t, lan[0]) + members(t, uplink); got != "[102][1pu 102]" {
		t.Errorf("after the move: %s", got)
	}
}

// TestMany: 64 ports, one of them in all VLANs: a message for each port that
// leaves, one for each that joins, and one of the uplink.
func TestMany(t *testing.T) {
	unplug(t)
	on := true
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}, VlanFiltering: &on}
	must(t, netlink.LinkAdd(br))
	t.Cleanup(func() { unplug(t) })
	const n = 64
	c := vlan.Config{Bridge: bridge, Uplink: vlan.Port{Name: uplink}}
	want := map[string]uint16{}
	pair(t, uplink, far)
	master(t, uplink, bridge)
	for i := range n {
		name := fmt.Sprintf("p%d", i)
		pair(t, name, fmt.Sprintf("q%d", i))
		master(t, name, bridge)
		t.Cleanup(func() { must(t, netlink.LinkDel(link(t, name))) })
		c.Ports = append(c.Ports, vlan.Port{Name: name})
		c.Groups = append(c.Groups, uint16(100+i))
		want[name] = uint16(100 + i)
		if i == 0 {
			must(t, netlink.BridgeVlanAddRange(link(t, name), 2, 4094, false, false, false, true))
		}
	}
	sw := vlan.New(c)
	defer sw.Close()
	before := time.Now()
	must(t, sw.SetAll(t.Context(), want))
	took := time.Since(before)
	st := sw.Stats()
	t.Logf("%d ports in %v: %d looks, %d messages that change something", n, took.Round(time.Millisecond), st.Looks, st.Changes)
	// Every port leaves VLAN 1; that which was in all need not join.
	if st.Looks != 2 || st.Changes != n+n-1+1 {
		t.Errorf("%d looks, %d changes; want 2, %d", st.Looks, st.Changes, n+n-1+1)
	}
	for i := range n {
		if got, want := members(t, c.Ports[i].Name), fmt.Sprintf("[%d]", 100+i); got != want {
			t.Errorf("port %d: %s; want %s", i, got, want)
		}
	}
	sets := time.Now()
	must(t, sw.SetAll(t.Context(), want))
	if again := sw.Stats(); again.Changes != st.Changes || again.Looks != st.Looks+1 {
		t.Errorf("once more: %+v after %+v", again, st)
	}
	t.Logf("once more, where all agrees: %v", time.Since(sets).Round(time.Microsecond))
}

// TestDisturbed: while interfaces come and go all the time, which interrupts
// dumps, each Set has its effect or says what was wrong.
func TestDisturbed(t *testing.T) {
	plug(t)
	sw := vlan.New(config(vlan.Tagged))
	defer sw.Close()
	stop := make(chan struct{})
	var busy sync.WaitGroup
	busy.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			d := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "noise0"}, PeerName: "noise1"}
			if netlink.LinkAdd(d) == nil {
				_ = netlink.LinkDel(d)
			}
		}
	})
	groups := []uint16{rig.GroupA, rig.GroupB, rig.GroupC, 0}
	for i := range 100 {
		g := groups[i%len(groups)]
		must(t, sw.Set(t.Context(), lan[0], g))
		want := fmt.Sprintf("[%d]", g)
		switch g {
		case 0:
			want = "[]"
		case rig.GroupC:
			want = "[1103]"
		}
		if got := members(t, lan[0]); got != want {
			t.Errorf("Set(%d): %s", g, got)
		}
	}
	close(stop)
	busy.Wait()
	t.Logf("%+v", sw.Stats())
}
