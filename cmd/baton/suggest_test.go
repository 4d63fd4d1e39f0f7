package main

import (
	"testing"

	"baton/mgmt"

	"github.com/google/go-cmp/cmp"
)

// TestSuggest: each state that asks for something is answered with it, the
// most pressing first.
func TestSuggest(t *testing.T) {
	well := func() seen {
		return seen{Enclosure: mgmt.Enclosure{
			Store: mgmt.Store{OK: true},
			Slots: []mgmt.Slot{{Name: "gpu0", Host: "server1", VM: "train1", Generation: "9f3c2a10-17"}, {Name: "gpu1"}},
			Hosts: []mgmt.Host{{Name: "server1"}, {Name: "server2"}},
			VMs:   []mgmt.VM{{Name: "train1", Hosts: []string{"server1", "server2"}, Slots: []string{"gpu0"}}},
		}}
	}
	for _, tt := range []struct {
		state string
		edit  func(*seen)
		want  []string
	}{
		{"all is well", func(*seen) {}, []string{"baton move train1 --to server2", "baton watch"}},
		{"nobody has the slot", func(e *seen) { e.Slots[0].Host, e.Slots[0].VM = "", "" }, []string{"baton attach train1 --to server1", "baton watch"}},
		{"no other host", func(e *seen) { e.VMs[0].Hosts = []string{"server1"} }, []string{"baton watch"}},
		{"store", func(e *seen) { e.Store.OK = false }, []string{"baton nvm check", "baton watch"}},
		{"store, and all that is wrong with it", func(e *seen) {
			e.Store.OK, e.Hosts[1].Fenced, e.Slots[0].Blocked, e.Slots[1].Problem = false, true, "x", "x"
		}, []string{"baton nvm check", "baton watch"}},
		{"the first VM's slot is another's", func(e *seen) {
			e.VMs = append([]mgmt.VM{{Name: "train0", Hosts: []string{"server2"}, Slots: []string{"gpu0"}}}, e.VMs...)
		}, []string{"baton move train1 --to server2", "baton watch"}},
		{"damage", func(e *seen) { e.Store.Damaged = 1 }, []string{"baton nvm check", "baton move train1 --to server2", "baton watch"}},
		{"trial", func(e *seen) { e.Trial = &mgmt.Trial{LeftMS: 61_000} }, []string{"baton config confirm", "baton move train1 --to server2", "baton watch"}},
		{"blocked", func(e *seen) { e.Slots[0].Blocked, e.Slots[0].Problem, e.Slots[1].Blocked = "x", "y", "x" }, []string{"baton move resolve", "baton watch"}},
		{"faulty", func(e *seen) { e.Slots[1].Problem = "x" }, []string{"baton slot adopt gpu1", "baton move train1 --to server2", "baton watch"}},
		{"fenced", func(e *seen) { e.Hosts[1].Fenced = true }, []string{"baton unfence server2", "baton watch"}},
		{"waiting", func(e *seen) {
			e.Moves = []mgmt.Move{{VM: "train1", From: "server2", To: "server1", State: "waiting", Slots: []string{"gpu0"}, Generation: "9f3c2a10-17"}}
			e.Slots[0].Link = "enabled"
		}, []string{"baton move train1 --to server2", "baton watch"}},
		{"waited", func(e *seen) {
			e.Moves = []mgmt.Move{{VM: "train1", From: "server2", To: "server1", State: "waiting", Slots: []string{"gpu0"}, Generation: "9f3c2a10-16"}}
			e.Slots[0].Link = "enabled"
		}, []string{"baton move train1 --to server2", "baton watch"}},
		{"void", func(e *seen) { e.Slots[0].Flag = "void" }, []string{"baton verdict gpu0", "baton move train1 --to server2", "baton watch"}},
	} {
		e := well()
		tt.edit(&e)
		var got []string
		for _, n := range suggest(e) {
			got = append(got, n.Command)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.state, diff)
		}
	}
}
