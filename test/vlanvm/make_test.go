//go:build vm

package vlanvm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"baton/test/rig"
	"baton/vlan"
)

// TestMake: the agent makes the bridge, and frames pass within a group and
// nowhere else, before and after slots have their VLANs.
func TestMake(t *testing.T) {
	unplug(t)
	t.Cleanup(func() { unplug(t) })
	ctx := t.Context()
	c := config(vlan.Tagged)
	c.OwnUntagged, c.Make = false, true
	sw := vlan.New(c)
	defer sw.Close()
	// Nothing is there yet but the bridge's driver.
	must(t, sw.Make(ctx))
	if err := sw.Set(ctx, lan[0], 0); !errors.Is(err, vlan.ErrUnseen) || !strings.Contains(err.Error(), "there is no port lan0; it is added to bridge br0") {
		t.Errorf("Set without ports = %v", err)
	}
	for i, p := range lan {
		pair(t, p, engine(i))
		must(t, netlink.LinkSetDown(link(t, p)))
	}
	pair(t, uplink, far)
	var net stations
	net.t = t
	servers := net.add(far, 0, rig.GroupA, rig.GroupB)
	engines := []*station{net.add(engine(0), 0, rig.GroupA, rig.GroupB), net.add(engine(1), 0), net.add(engine(2), 0, rig.GroupA, rig.GroupB)}

	// One that is another's is not taken.
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br1"}}))
	master(t, lan[3], "br1")
	addr, err := netlink.ParseAddr("192.0.2.9/24")
	must(t, err)
	must(t, netlink.AddrAdd(link(t, lan[2]), addr))
	told := func(want ...string) {
		t.Helper()
		done, err := sw.Repair(ctx)
		var out []string
		for _, r := range done {
			out = append(out, r.Text)
		}
		text := fmt.Sprint(out, " ", err)
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("Repair = %s; want %q", text, w)
			}
		}
	}
	told("bridge br0 was absent and is made", "port up0 was in no bridge and is now in br0", "port lan1 was", "lan2 has the address 192.0.2.9/24", "lan3 is a port of another interface")
	if l := link(t, lan[3]); l.Attrs().MasterIndex != link(t, "br1").Attrs().Index {
		t.Error("lan3 was taken from br1")
	}
	if l := link(t, lan[2]); l.Attrs().MasterIndex != 0 {
		t.Error("lan2 was taken with its address")
	}
	for _, name := range []string{bridge, uplink, lan[0], lan[1]} {
		if got := members(t, name); got != "[]" {
			t.Errorf("%s is a member of %s; want of nothing", name, got)
		}
		if link(t, name).Attrs().Flags&1 == 0 { // net.FlagUp
			t.Errorf("%s is not up", name)
		}
	}
	for key, want := range map[string]string{"vlan_filtering": "1", "default_pvid": "0"} {
		got, err := os.ReadFile("/sys/class/net/" + bridge + "/bridge/" + key)
		if must(t, err); strings.TrimSpace(string(got)) != want {
			t.Errorf("%s = %s; want %s", key, got, want)
		}
	}
	// A port that is free now is added to the bridge that is there.
	must(t, netlink.AddrDel(link(t, lan[2]), addr))
	told("port lan2 was in no bridge and is now in br0")

	net.start()
	time.Sleep(500 * time.Millisecond)
	set := now()
	must(t, sw.SetAll(ctx, map[string]uint16{lan[0]: rig.GroupA, lan[1]: rig.GroupB}))
	time.Sleep(time.Second)
	net.end()
	heardBy := map[string]int{}
	for _, st := range net.all {
		for _, h := range st.heard {
			from := net.all[h.from]
			heardBy[fmt.Sprintf("%s %s/%d", st.name, from.name, h.tag)]++
			var sent stamp
			for _, s := range from.streams {
				if s.tag == h.tag {
					sent = s.sent[h.seq]
				}
			}
			if sent.after+late < set {
				t.Errorf("%s heard %s, tag %d, sent %v before anybody had a VLAN", st.name, from.name, h.tag, set-sent.after)
			}
		}
	}
	t.Log(heardBy)
	want := []string{"srv eng0/101", "srv eng1/0", "eng0 srv/101", "eng1 srv/102"}
	for _, w := range want {
		if heardBy[w] < 10 {
			t.Errorf("%s: %d frames; want some", w, heardBy[w])
		}
		delete(heardBy, w)
	}
	if len(heardBy) > 0 || len(engines[2].heard) > 0 {
		t.Errorf("heard by others: %v", heardBy)
	}
	if len(servers.heard) == 0 {
		t.Error("the servers hear nothing")
	}
}
