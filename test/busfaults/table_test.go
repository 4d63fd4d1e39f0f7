package busfaults

import (
	"fmt"
	"testing"
	"time"

	"baton/enclosure"
	"baton/test/rig"
)

// op is something that is asked while a fault stands.
type op struct {
	name  string
	setup func(c *cell)
	do    func(c *cell) string
}

var ops = []op{
	{"move", nil, func(c *cell) string {
		q := c.Request(rig.VM1, rig.B)
		q.Slots = []string{ours, faulty}
		m, err := c.E.Move(c.Ctx(), q)
		if err == nil && m.State != enclosure.MoveDone {
			c.named(faulty, m.Reason)
		}
		return c.said(err, string(m.State)) + "; "
	}},
	{"attach", func(c *cell) {
		c.W.Server(rig.A).StopVM(rig.VM1)
		if err := c.E.Release(c.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Slots: []string{ours, faulty}, Mode: enclosure.ReleaseHold}); err != nil {
			c.t.Fatal(err)
		}
	}, func(c *cell) string {
		a, err := c.E.Attach(c.Ctx(), enclosure.AttachRequest{VM: rig.VM1, Slots: []string{ours, faulty}, Host: rig.B, Wait: time.Second})
		return c.said(err, string(a.State)) + "; "
	}},
	{"fence", nil, func(c *cell) string {
		_, err := c.E.Fence(c.Ctx(), rig.A, "test")
		return c.said(err, "cut") + "; "
	}},
	{"arm", nil, func(c *cell) string {
		a, err := c.Arm(faulty, true)
		v, verr := c.E.Verdict(c.Ctx(), faulty)
		if verr != nil {
			c.t.Errorf("verdict: %v", verr)
		}
		return c.said(err, string(a.Flag)) + ", " + string(v.Preserved) + "; "
	}},
	{"release", func(c *cell) { c.W.Server(rig.A).StopVM(rig.VM1) }, func(c *cell) string {
		return c.said(c.E.Release(c.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Slots: []string{ours, faulty}, Mode: enclosure.ReleaseHold}), "held") + "; "
	}},
	{"start", nil, func(c *cell) string {
		c.Restart()
		c.Run()
		return ""
	}},
	{"power up", nil, func(c *cell) string {
		c.PowerCycle()
		c.Run()
		return ""
	}},
}

// row is what comes of each operation while a fault stands: the answer, and how
// things are three seconds later.
type row struct {
	fault  fault
	target target
	wants  [7]string
}

// run carries out one cell.
func run(c *cell, o op) string {
	if o.setup != nil {
		o.setup(c)
	}
	before, wrote := c.W.Reach(), c.W.PageWrites(faulty)
	lift := c.fault.inject(c.Rig, c.target)
	got := o.do(c)
	if o.name == "start" {
		c.checkUntouched(before)
	}
	c.checkNamed()
	time.Sleep(3 * time.Second)
	c.checkNamed()
	c.checkSaid()
	got += c.state()
	c.checkOthers()
	lift()
	time.Sleep(lifted)
	if !c.E.Status(c.Ctx()).Store.OK {
		// Run has returned: batond opens a new agent then, which is the first of
		// this boot where none had a store yet.
		c.Stop()
		c.Start(enclosure.Options{SameBoot: o.name != "power up"})
		c.Run()
		time.Sleep(lifted)
	}
	if err := c.whole(); err != nil {
		c.t.Errorf("%v after the fault was lifted: %v", lifted, err)
	}
	// A page that power may have torn is not trusted because it reads well: it is
	// rewritten, be it late.
	if o.name == "power up" && !c.fault.swaps && c.W.PageWrites(faulty) == wrote {
		c.t.Error("the page that was suspect was never rewritten")
	}
	return got
}

// lifted is the bound in which the agent comes back by itself: the longest pause
// between two tries is a minute.
const lifted = 70 * time.Second

// table is what becomes of what. The answer of an operation is a state of a
// move, "cut" or "held" for what was done, the flag, or the code of a refusal;
// then the verdict. Behind it stands how things are three seconds later, while
// the fault still stands:
//
//	problem   the slot says what is wrong with it; its link and memory are unknown
//	blocked   its set is cut and held, says why, and is tried again
//	uncut     the cut is not confirmed
//	no store  the store says what is wrong; nothing is changed, and nobody cut
//	A, B, -   the host that the model lets reach both slots of the set, - nobody
//	A-        A reaches the slot without the fault, nobody the other
//
// A refusal leaves the set where it was. No row says that a part of a set went
// ahead: "-A" is a set that is to be cut, and can not be.
var table = []row{
	// fault         target   move                           attach                         fence                               arm, verdict                      release                               start        power up
	{nackAddr, eeprom, [7]string{"hardware; A", "hardware; -", "cut; blocked -", "armed, yes; A", "hardware; blocked -", "problem A", "problem A-"}},
	{nackAddr, engine, [7]string{"hardware; problem A", "hardware; problem -", "cut-unconfirmed; blocked uncut -A", "hardware, unknown; problem A", "hardware; blocked uncut -A", "problem A", "problem A-"}},
	{nackAddr, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "no store A", "no store -"}},
	{nackByte, eeprom, [7]string{"blocked; blocked -", "hardware; blocked -", "cut; blocked -", "armed, yes; A", "hardware; blocked -", "A", "blocked A-"}},
	{nackByte, engine, [7]string{"blocked; blocked uncut -A", "hardware; blocked -", "cut-unconfirmed; blocked uncut -A", "hardware, yes; A", "cut-unconfirmed; blocked uncut -A", "A", "blocked A-"}},
	{nackByte, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "A", "no store -"}},
	{nackPointer, eeprom, [7]string{"hardware; A", "hardware; -", "cut; blocked -", "armed, yes; A", "hardware; blocked -", "problem A", "problem A-"}},
	{nackPointer, engine, [7]string{"hardware; problem A", "hardware; problem -", "cut-unconfirmed; blocked uncut -A", "hardware, unknown; problem A", "hardware; blocked uncut -A", "problem A", "problem A-"}},
	{nackPointer, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "no store A", "no store -"}},
	{arbitration, eeprom, [7]string{"hardware; A", "hardware; -", "cut; blocked -", "armed, yes; A", "hardware; blocked -", "problem A", "problem A-"}},
	{arbitration, engine, [7]string{"hardware; problem A", "hardware; problem -", "cut-unconfirmed; blocked uncut -A", "hardware, unknown; problem A", "hardware; blocked uncut -A", "problem A", "problem A-"}},
	{arbitration, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "no store A", "no store -"}},
	{arbitration1, eeprom, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{arbitration1, engine, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{arbitration1, store, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{stuck, eeprom, [7]string{"hardware; problem A", "hardware; problem -", "cut-unconfirmed; blocked uncut -A", "hardware, unknown; problem A", "hardware; blocked uncut -A", "problem A", "problem A-"}},
	{stuck, engine, [7]string{"hardware; problem A", "hardware; problem -", "cut-unconfirmed; blocked uncut -A", "hardware, unknown; problem A", "hardware; blocked uncut -A", "problem A", "problem A-"}},
	{stuck, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "no store A", "no store -"}},
	{stuckFreed, eeprom, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{stuckFreed, engine, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{stuckFreed, store, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{wedged, eeprom, [7]string{"hardware; problem A", "hardware; problem -", "cut-unconfirmed; blocked uncut -A", "hardware, unknown; problem A", "hardware; blocked uncut -A", "problem A", "problem A-"}},
	{wedged, engine, [7]string{"hardware; problem A", "hardware; problem -", "cut-unconfirmed; blocked uncut -A", "hardware, unknown; problem A", "hardware; blocked uncut -A", "problem A", "problem A-"}},
	{wedged, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "no store A", "no store -"}},
	{stretched, eeprom, [7]string{"hardware; A", "hardware; -", "cut; blocked -", "armed, yes; A", "hardware; blocked -", "problem A", "problem A-"}},
	{stretched, engine, [7]string{"hardware; problem A", "hardware; problem -", "cut-unconfirmed; blocked uncut -A", "hardware, unknown; problem A", "hardware; blocked uncut -A", "problem A", "problem A-"}},
	{stretched, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "no store A", "no store -"}},
	{stretchedOK, eeprom, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{stretchedOK, engine, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{stretchedOK, store, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{flipped, eeprom, [7]string{"hardware; A", "hardware; -", "cut; blocked -", "armed, yes; A", "hardware; blocked -", "blocked A-", "blocked A-"}},
	{flipped, engine, [7]string{"hardware; A", "hardware; problem -", "cut; blocked -", "armed, yes; A", "hardware; blocked -", "problem A", "problem A-"}},
	{flipped, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "no store A", "no store -"}},
	{slow, eeprom, [7]string{"blocked; blocked -", "hardware; blocked -", "cut; -", "armed, yes; A", "hardware; -", "A", "blocked A-"}},
	{slow, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "no store A", "no store -"}},
	{missing, eeprom, [7]string{"hardware; A", "hardware; -", "cut; blocked -", "armed, yes; A", "hardware; blocked -", "problem A", "problem A-"}},
	{missing, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "no store A", "no store -"}},
	{otherPart, eeprom, [7]string{"hardware; A", "hardware; -", "cut; blocked -", "armed, yes; A", "hardware; blocked -", "problem A", "problem A-"}},
	{otherPart, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "no store A", "no store -"}},
	{otherSize, eeprom, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{otherSize, store, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "no store A", "no store -"}},
	{foreign, eeprom, [7]string{"hardware; A", "hardware; -", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{foreign, store, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "no store A", "no store -"}},
	{blank, eeprom, [7]string{"hardware; A", "hardware; -", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{blank, store, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "no store A", "-"}},
	{protected, eeprom, [7]string{"blocked; blocked -", "hardware; blocked -", "cut; blocked -", "armed, yes; A", "hardware; blocked -", "A", "A"}},
	{protected, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "A", "no store -"}},
	{worn, eeprom, [7]string{"blocked; blocked -", "hardware; blocked -", "cut; blocked -", "armed, yes; A", "hardware; blocked -", "A", "A"}},
	{worn, store, [7]string{"store-unusable; no store A", "store-unusable; no store -", "store-unusable; no store A", "store-unusable, yes; no store A", "store-unusable; no store A", "A", "no store -"}},
	{wornSome, store, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{decayed, eeprom, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{decayed, store, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{unstable, eeprom, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{unstable, store, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{dead, engine, [7]string{"hardware; problem A-", "hardware; problem -", "cut-unconfirmed; blocked uncut -", "hardware, unknown; problem A-", "hardware; blocked uncut -", "problem A-", "problem A-"}},
	{restarts, engine, [7]string{"done; B", "done; B", "cut; -", "armed, no; A", "held; -", "A", "A"}},
	{deaf, engine, [7]string{"blocked; blocked uncut -A", "hardware; -", "cut-unconfirmed; blocked uncut -A", "armed, yes; A", "cut-unconfirmed; blocked uncut -A", "A", "blocked A-"}},
	{deafOnce, engine, [7]string{"done; B", "done; B", "cut; -", "armed, yes; A", "held; -", "A", "A"}},
	{deafLater, engine, [7]string{"blocked; blocked -", "hardware; -", "cut; blocked -", "armed, yes; A", "hardware; blocked -", "A", "A"}},
	{wrongEngine, engine, [7]string{"identity-mismatch; problem A", "identity-mismatch; problem -", "cut; blocked uncut -", "armed, yes; problem A", "identity-mismatch; blocked uncut -A", "problem A", "problem A-"}},
	{wrongID, engine, [7]string{"identity-mismatch; problem A", "identity-mismatch; problem -", "cut; blocked uncut -", "armed, yes; problem A", "identity-mismatch; blocked uncut -A", "problem A", "problem A-"}},
}

func TestTable(t *testing.T) {
	for _, r := range table {
		for i, o := range ops {
			t.Run(fmt.Sprintf("%s/%s/%s", r.fault.name, r.target.name, o.name), func(t *testing.T) {
				inCell(t, r.fault, r.target, func(c *cell) {
					if got := run(c, o); got != r.wants[i] {
						t.Errorf("%s; want %s", got, r.wants[i])
					}
				})
			})
		}
	}
}
