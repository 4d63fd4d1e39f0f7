package enclosure_test

import (
	"strings"
	"testing"

	"baton/enclosure"
	"baton/sim"
	"baton/test/rig"
)

// TestCheck: what is broken is told as broken, with what to do, and nothing is
// written.
func TestCheck(t *testing.T) {
	well := func(*rig.Rig) {}
	for _, tt := range []struct {
		name          string
		harm          func(r *rig.Rig)
		area, subject string
		level         enclosure.CheckLevel
		text          string
	}{
		{"well", well, "engine", "gpu0", enclosure.CheckOK, "link up with " + rig.A + ", guard on, device"},
		{"well", well, "chip", "gpu0", enclosure.CheckOK, "config block good: group "},
		{"well", well, "chip", "gpu2", enclosure.CheckOK, "config block good: free"},
		{"well", well, "vlan", "gpu0", enclosure.CheckOK, "port lan0: VLANs [10"},
		{"well", well, "vlan", "gpu2", enclosure.CheckOK, "port lan2: in no VLAN"},
		{"port taken out", func(r *rig.Rig) {
			if err := r.W.Switch().Set(r.Ctx(), "lan0", 0); err != nil {
				r.T.Fatal(err)
			}
		}, "vlan", "gpu0", enclosure.CheckFail, "port lan0: member of []; want [101]"},
		{"port of a free slot put in", func(r *rig.Rig) {
			if err := r.W.Switch().Join(r.Ctx(), "lan2", 101); err != nil {
				r.T.Fatal(err)
			}
		}, "vlan", "gpu2", enclosure.CheckFail, "port lan2: member of [101]; want []"},
		{"well", well, "store", "", enclosure.CheckOK, "records in"},
		{"well", well, "host", "hosts", enclosure.CheckOK, "may take part"},
		{"well", well, "agent", "poller", enclosure.CheckOK, "3 of 3"},
		{"dead engine", func(r *rig.Rig) { r.W.Slot("gpu0").Kill() }, "engine", "gpu0", enclosure.CheckFail, "the engine does not answer"},
		{"no card", func(r *rig.Rig) { r.W.Slot("gpu2").RemoveDevice() }, "engine", "gpu2", enclosure.CheckWarn, "no device"},
		{"server off", func(r *rig.Rig) { r.W.Server(rig.A).PowerLoss() }, "engine", "gpu0", enclosure.CheckWarn, "does not answer"},
		{"dead chip", func(r *rig.Rig) { r.W.Chip("gpu0").SetDead(true) }, "chip", "gpu0", enclosure.CheckFail, "does not answer"},
		{"blank chip", func(r *rig.Rig) { r.W.Chip("gpu0").Replace("24c256", nil) }, "chip", "gpu0", enclosure.CheckFail, "config block:"},
		{"flipped bit", func(r *rig.Rig) { r.W.Chip("gpu0").FlipBit(20, 3) }, "chip", "gpu0", enclosure.CheckFail, "config block:"},
		{"another generation", func(r *rig.Rig) {
			was := r.W.Chip("gpu0").Peek(0, 64)
			r.Move(rig.VM1, rig.B)
			r.W.Chip("gpu0").Poke(0, was)
		}, "chip", "gpu0", enclosure.CheckFail, "the store has generation"},
		{"fenced", func(r *rig.Rig) { r.Fence(rig.B) }, "host", rig.B, enclosure.CheckWarn, "fenced"},
		{"stuck bus", func(r *rig.Rig) {
			for _, b := range r.W.Spec().Buses {
				r.W.Bus(b.Name).Inject(sim.Fault{Kind: sim.StuckSDA})
			}
		}, "engine", "gpu2", enclosure.CheckFail, "its bus does not work"},
	} {
		t.Run(tt.name+" "+tt.area+" "+tt.subject, func(t *testing.T) {
			world(t, rig.Options{Slots: 3, Switch: true}, func(t *testing.T, r *rig.Rig) {
				running(t, r, "gpu0", "gpu1")
				tt.harm(r)
				written := func() uint64 { return r.W.PageWrites("store") + r.W.PageWrites("gpu0") + r.W.PageWrites("gpu2") }
				before := written()
				var found []enclosure.CheckLine
				for _, l := range r.E.Check(r.Ctx()) {
					if l.Area == tt.area && (tt.subject == "" || l.Subject == tt.subject) {
						found = append(found, l)
					}
				}
				if len(found) != 1 || found[0].Level != tt.level || !strings.Contains(found[0].Text, tt.text) {
					t.Fatalf("%+v; want one line, %s, with %q", found, tt.level, tt.text)
				}
				if (found[0].Next == "") != (tt.level == enclosure.CheckOK) {
					t.Errorf("level %s, what to do: %q", tt.level, found[0].Next)
				}
				if n := written() - before; n != 0 {
					t.Errorf("a check has written %d pages", n)
				}
			})
		})
	}
}
