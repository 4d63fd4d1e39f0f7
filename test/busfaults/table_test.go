package busfaults

import (
	"fmt"
	"slices"
	"strings"
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
	if o.name == "power up" && !c.fault.swaps && !c.fault.mute && c.W.PageWrites(faulty) == wrote {
		c.t.Error("the page that was suspect was never rewritten")
	}
	return got
}

// lifted is the bound in which the agent comes back by itself: no pause between
// two tries is longer than the fault has stood, and a second.
const lifted = 20 * time.Second

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
const table = `
fault                          | target | move                         | attach                       | fence                             | arm, verdict                    | release                             | start      | power up

address not acknowledged       | eeprom | hardware; A                  | hardware; -                  | cut; blocked -                    | armed, yes; A                   | hardware; blocked -                 | problem A  | problem A-
data byte not acknowledged     | eeprom | blocked; blocked -           | hardware; blocked -          | cut; blocked -                    | armed, yes; A                   | hardware; blocked -                 | A          | blocked A-
second byte not acknowledged   | eeprom | hardware; A                  | hardware; -                  | cut; blocked -                    | armed, yes; A                   | hardware; blocked -                 | problem A  | problem A-
arbitration lost               | eeprom | hardware; A                  | hardware; -                  | cut; blocked -                    | armed, yes; A                   | hardware; blocked -                 | problem A  | problem A-
arbitration lost, twice        | eeprom | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
SDA stuck low                  | eeprom | hardware; problem A          | hardware; problem -          | cut-unconfirmed; blocked uncut -A | hardware, unknown; problem A    | hardware; blocked uncut -A          | problem A  | problem A-
SDA stuck low, clocked free    | eeprom | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
driver does not come back      | eeprom | hardware; problem A          | hardware; problem -          | cut-unconfirmed; blocked uncut -A | hardware, unknown; problem A    | hardware; blocked uncut -A          | problem A  | problem A-
clock stretched past the limit | eeprom | hardware; A                  | hardware; -                  | cut; blocked -                    | armed, yes; A                   | hardware; blocked -                 | problem A  | problem A-
clock stretched within it      | eeprom | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
a bit of each read inverted    | eeprom | hardware; A                  | hardware; -                  | cut; blocked -                    | armed, yes; A                   | hardware; blocked -                 | blocked A- | blocked A-
write cycle over the maximum   | eeprom | blocked; blocked -           | hardware; blocked -          | cut; -                            | armed, yes; A                   | hardware; -                         | A          | blocked A-
missing                        | eeprom | hardware; A                  | hardware; -                  | cut; blocked -                    | armed, yes; A                   | hardware; blocked -                 | problem A  | problem A-
another part                   | eeprom | hardware; A                  | hardware; -                  | cut; blocked -                    | armed, yes; A                   | hardware; blocked -                 | problem A  | problem A-
another size                   | eeprom | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
foreign content                | eeprom | hardware; A                  | hardware; -                  | cut; -                            | armed, yes; A                   | held; -                             | A          | A
blank                          | eeprom | hardware; A                  | hardware; -                  | cut; -                            | armed, yes; A                   | held; -                             | A          | A
write-protected                | eeprom | blocked; blocked -           | hardware; blocked -          | cut; blocked -                    | armed, yes; A                   | hardware; blocked -                 | A          | A
worn out                       | eeprom | blocked; blocked -           | hardware; blocked -          | cut; blocked -                    | armed, yes; A                   | hardware; blocked -                 | A          | A
a bit flipped                  | eeprom | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
bytes that read differently    | eeprom | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A

address not acknowledged       | engine | hardware; problem A          | hardware; problem -          | cut-unconfirmed; blocked uncut -A | hardware, unknown; problem A    | hardware; blocked uncut -A          | problem A  | problem A-
data byte not acknowledged     | engine | blocked; blocked uncut -A    | hardware; blocked -          | cut-unconfirmed; blocked uncut -A | hardware, yes; A                | cut-unconfirmed; blocked uncut -A   | A          | blocked A-
second byte not acknowledged   | engine | hardware; problem A          | hardware; problem -          | cut-unconfirmed; blocked uncut -A | hardware, unknown; problem A    | hardware; blocked uncut -A          | problem A  | problem A-
arbitration lost               | engine | hardware; problem A          | hardware; problem -          | cut-unconfirmed; blocked uncut -A | hardware, unknown; problem A    | hardware; blocked uncut -A          | problem A  | problem A-
arbitration lost, twice        | engine | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
SDA stuck low                  | engine | hardware; problem A          | hardware; problem -          | cut-unconfirmed; blocked uncut -A | hardware, unknown; problem A    | hardware; blocked uncut -A          | problem A  | problem A-
SDA stuck low, clocked free    | engine | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
driver does not come back      | engine | hardware; problem A          | hardware; problem -          | cut-unconfirmed; blocked uncut -A | hardware, unknown; problem A    | hardware; blocked uncut -A          | problem A  | problem A-
clock stretched past the limit | engine | hardware; problem A          | hardware; problem -          | cut-unconfirmed; blocked uncut -A | hardware, unknown; problem A    | hardware; blocked uncut -A          | problem A  | problem A-
clock stretched within it      | engine | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
a bit of each read inverted    | engine | hardware; A                  | hardware; problem -          | cut; blocked -                    | armed, yes; A                   | hardware; blocked -                 | problem A  | problem A-
dead                           | engine | hardware; problem A-         | hardware; problem -          | cut-unconfirmed; blocked uncut -  | hardware, unknown; problem A-   | hardware; blocked uncut -           | problem A- | problem A-
restarts by itself             | engine | done; B                      | done; B                      | cut; -                            | armed, no; A                    | held; -                             | A          | A
ignores commands               | engine | blocked; blocked uncut -A    | hardware; -                  | cut-unconfirmed; blocked uncut -A | armed, yes; A                   | cut-unconfirmed; blocked uncut -A   | A          | blocked A-
ignores one command            | engine | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
ignores all but the first      | engine | blocked; blocked -           | hardware; -                  | cut; blocked -                    | armed, yes; A                   | hardware; blocked -                 | A          | A
another engine                 | engine | identity-mismatch; problem A | identity-mismatch; problem - | cut; blocked uncut -              | armed, yes; problem A           | identity-mismatch; blocked uncut -A | problem A  | problem A-
no engine at all               | engine | identity-mismatch; problem A | identity-mismatch; problem - | cut; blocked uncut -              | armed, yes; problem A           | identity-mismatch; blocked uncut -A | problem A  | problem A-

address not acknowledged       | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | no store A | no store -
data byte not acknowledged     | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | A          | no store -
second byte not acknowledged   | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | no store A | no store -
arbitration lost               | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | no store A | no store -
arbitration lost, twice        | store  | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
SDA stuck low                  | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | no store A | no store -
SDA stuck low, clocked free    | store  | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
driver does not come back      | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | no store A | no store -
clock stretched past the limit | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | no store A | no store -
clock stretched within it      | store  | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
a bit of each read inverted    | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | no store A | no store -
write cycle over the maximum   | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | no store A | no store -
missing                        | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | no store A | no store -
another part                   | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | no store A | no store -
another size                   | store  | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | no store A | no store -
foreign content                | store  | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | no store A | no store -
blank                          | store  | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | no store A | -
write-protected                | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | A          | no store -
worn out                       | store  | store-unusable; no store A   | store-unusable; no store -   | store-unusable; no store A        | store-unusable, yes; no store A | store-unusable; no store A          | A          | no store -
worn out, every third page     | store  | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
a bit flipped                  | store  | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
bytes that read differently    | store  | done; B                      | done; B                      | cut; -                            | armed, yes; A                   | held; -                             | A          | A
`

// row is a line of the table.
type row struct {
	fault  fault
	target target
	wants  []string // by ops
}

func rows(t *testing.T) []row {
	t.Helper()
	var out []row
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) == 1 || cells[0] == "fault" {
			continue
		}
		f := slices.IndexFunc(faults, func(f fault) bool { return f.name == cells[0] })
		tg := slices.IndexFunc(targets, func(tg target) bool { return tg.name == cells[1] })
		if f < 0 || tg < 0 || len(cells) != 2+len(ops) {
			t.Fatalf("no such fault or target, or not %d operations: %s", len(ops), line)
		}
		out = append(out, row{faults[f], targets[tg], cells[2:]})
	}
	return out
}

func TestTable(t *testing.T) {
	for n, r := range rows(t) {
		for i, o := range ops {
			if (n+i)%every(1, 4) != 0 {
				continue
			}
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
