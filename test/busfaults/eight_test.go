package busfaults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"baton/enclosure"
	"baton/sim"
	"baton/test/rig"
)

// An engine of a set of eight fails during a move: it ignores what it is told
// from its first, second or third command on, restarts, or dies.
func TestSetOfEight(t *testing.T) {
	for _, tc := range []struct {
		name string
		fail func(s *sim.Slot)
		mend func(s *sim.Slot)
		ends []enclosure.MoveState
	}{
		{"ignores all", func(s *sim.Slot) { s.IgnoreControl(forEver) }, func(s *sim.Slot) { s.IgnoreControl(0) }, []enclosure.MoveState{enclosure.MoveBlocked}},
		{"ignores reload", func(s *sim.Slot) { s.IgnoreControlAfter(1, forEver) }, func(s *sim.Slot) { s.IgnoreControl(0) }, []enclosure.MoveState{enclosure.MoveBlocked}},
		{"ignores link on", func(s *sim.Slot) { s.IgnoreControlAfter(2, forEver) }, func(s *sim.Slot) { s.IgnoreControl(0) }, []enclosure.MoveState{enclosure.MoveBlocked}},
		{"ignores one link on", func(s *sim.Slot) { s.IgnoreControlAfter(2, 1) }, func(*sim.Slot) {}, []enclosure.MoveState{enclosure.MoveDone}},
		{"restarts", func(s *sim.Slot) { s.RestartAfter(15 * time.Millisecond) }, func(*sim.Slot) {}, []enclosure.MoveState{enclosure.MoveDone, enclosure.MoveUndone, enclosure.MoveWaiting}},
		{"dies", func(s *sim.Slot) { go killAfter(s, 15*time.Millisecond) }, (*sim.Slot).Revive, []enclosure.MoveState{enclosure.MoveBlocked}},
	} {
		for bad := 0; bad < 8; bad += every(1, 5) {
			t.Run(fmt.Sprintf("%s/%s", tc.name, rig.Slot(bad)), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := rig.New(t, rig.Options{Slots: 10, Buses: 2})
					defer r.Stop()
					var set []string
					for i := range 8 {
						set = append(set, rig.Slot(i))
					}
					others := []string{rig.Slot(8), rig.Slot(9)}
					r.StartVM(rig.VM1, rig.A, set...)
					r.StartVM(rig.VM2, rig.C, others...)
					r.Run()
					before := written(r, others)
					tc.fail(r.W.Slot(rig.Slot(bad)))
					q := r.Request(rig.VM1, rig.B)
					q.Slots = set
					m, err := r.E.Move(r.Ctx(), q)
					if err != nil || !slices.Contains(tc.ends, m.State) {
						t.Fatalf("move: %s %s, %v; want one of %v", m.State, m.Reason, err, tc.ends)
					}
					if m.State != enclosure.MoveDone && !strings.Contains(m.Reason, rig.Slot(bad)) {
						t.Errorf("%s for a reason that does not name %s: %s", m.State, rig.Slot(bad), m.Reason)
					}
					if m.State == enclosure.MoveBlocked {
						for i, n := range set {
							s := r.SlotStatus(n)
							if s.Blocked == "" {
								t.Errorf("%s of the blocked set is not blocked", n)
							}
							if i != bad && (s.Cut != "confirmed" || r.W.Server(rig.A).Reach(n) || r.W.Server(rig.B).Reach(n)) {
								t.Errorf("%s of the blocked set is not cut: %s", n, s.Cut)
							}
						}
					}
					time.Sleep(3 * time.Second)
					for _, n := range others {
						if s := r.SlotStatus(n); s.Blocked+s.Problem != "" || !r.W.Server(rig.C).Reach(n) {
							t.Errorf("%s, of another VM: blocked %q, problem %q, reached: %v", n, s.Blocked, s.Problem, r.W.Server(rig.C).Reach(n))
						}
					}
					if now := written(r, others); now != before {
						t.Errorf("engines of another VM were written to: %d bytes, before %d", now, before)
					}
					tc.mend(r.W.Slot(rig.Slot(bad)))
					time.Sleep(lifted)
					host := r.SlotStatus(set[0]).Host
					for _, n := range set {
						if s := r.SlotStatus(n); s.Blocked+s.Problem != "" {
							t.Errorf("%s, mended: blocked %q, problem %q", n, s.Blocked, s.Problem)
						}
						r.WantHost(n, host)
					}
					if host == "" {
						t.Error("mended, the set is with nobody")
					}
				})
			})
		}
	}
}

// killAfter ends with the bubble's time.
func killAfter(s *sim.Slot, d time.Duration) {
	time.Sleep(d)
	s.Kill()
}

// written is how many bytes were written to the engines of slots.
func written(r *rig.Rig, slots []string) (n uint64) {
	for _, s := range slots {
		n += r.W.Slot(s).RegisterWrites()
	}
	return n
}
