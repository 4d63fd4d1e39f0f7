package busfaults

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"baton/enclosure"
	"baton/sim"
	"baton/test/rig"
)

// Every byte of every structure that a move writes is refused, once and for
// ever: what is refused once makes no difference, what is refused for ever ends
// in a state with a name, and both hosts never have a part of the set.
func TestEveryByteRefused(t *testing.T) {
	seen := map[string]bool{}
	for _, tg := range targets {
		for n := 2; n < tg.page+2; n += every(7, 21) {
			n := n % tg.page // the address comes last
			for _, count := range []int{1, 0} {
				f := onWire("byte refused", sim.Fault{Kind: sim.NACKData, Only: sim.WriteOp, Byte: n, Count: count})
				t.Run(fmt.Sprintf("%s/%d/%d", tg.name, n, count), func(t *testing.T) {
					inCell(t, f, tg, func(c *cell) {
						lift := f.inject(c.Rig, tg)
						q := c.Request(rig.VM1, rig.B)
						q.Slots = []string{ours, faulty}
						m, err := c.E.Move(c.Ctx(), q)
						got := c.said(err, string(m.State))
						seen[tg.name+" "+got] = true
						want := []string{string(enclosure.MoveBlocked)}
						switch {
						case count == 1:
							want = []string{string(enclosure.MoveDone)}
						case tg == store:
							want = []string{string(enclosure.CodeStore)}
						}
						if !slices.Contains(want, got) {
							t.Errorf("%s %s; want one of %v", got, m.Reason, want)
						}
						c.checkNamed()
						time.Sleep(3 * time.Second)
						c.checkSaid()
						c.checkOthers()
						lift()
						time.Sleep(lifted)
						if !c.E.Status(c.Ctx()).Store.OK {
							c.Restart()
							c.Run()
							time.Sleep(lifted)
						}
						if err := c.whole(); err != nil {
							t.Error(err)
						}
					})
				})
			}
		}
	}
	for _, want := range []string{"eeprom done", "eeprom blocked", "engine done", "engine blocked", "store done", "store store-unusable"} {
		if !seen[want] {
			t.Errorf("%q never came: %v", want, seen)
		}
	}
}
