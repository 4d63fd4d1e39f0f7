// Package figures measures what Baton promises in numbers. make figures prints
// them, one "name value unit" a line.
package figures

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/sim"
	"baton/test/rig"

	"go.uber.org/goleak"
)

// report collects the lines; TestMain writes them to the file that
// BATON_FIGURES names.
var report []string

func figure(name string, value any, unit string) {
	if f, ok := value.(float64); ok {
		value = fmt.Sprintf("%.3f", f)
	}
	report = append(report, fmt.Sprintf("%s %v %s", name, value, unit))
}

func TestMain(m *testing.M) {
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if path := os.Getenv("BATON_FIGURES"); path != "" {
		if err := os.WriteFile(path, []byte(strings.Join(report, "\n")+"\n"), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// pages is the number of page writes of all chips.
func pages(r *rig.Rig) (n uint64) {
	for _, c := range r.W.Spec().Chips {
		n += r.W.PageWrites(c.Name)
	}
	return n
}

// TestPageWrites moves one slot to and fro, with the poller and its tending of
// the store under way, and counts what each move writes from its request until
// the next one's.
func TestPageWrites(t *testing.T) {
	const moves = 10_000
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, rig.Options{})
		defer r.Stop()
		r.StartVM(rig.VM1, rig.A)
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.Run()
		most, total := uint64(0), pages(r)
		first := total
		for i := range moves {
			q := r.Request(rig.VM1, []string{rig.B, rig.A}[i%2])
			q.ID[0], q.ID[1], q.ID[2] = 1, byte(i>>8), byte(i)
			if m, err := r.E.Move(r.Ctx(), q); err != nil || m.State != enclosure.MoveDone {
				t.Fatalf("move %d: %s %s, %v", i, m.State, m.Reason, err)
			}
			now := pages(r)
			most, total = max(most, now-total), now
			if i%1000 == 0 {
				r.W.ClearRecord()
			}
		}
		if most > 2 {
			t.Errorf("a move wrote %d pages; want at most 2", most)
		}
		figure("page_writes_1slot", most, "pages, the most of 10000 consecutive moves")
		figure("page_writes_1slot_mean", float64(total-first)/moves, "pages a move")
	})
}

// TestPlannedTotal counts a whole planned move of one slot: arm, move, the
// start on the destination, ack.
func TestPlannedTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, rig.Options{})
		defer r.Stop()
		r.StartVM(rig.VM1, rig.A)
		before := pages(r)
		if _, err := r.Arm("gpu0", true); err != nil {
			t.Fatal(err)
		}
		r.W.Server(rig.A).StopVM(rig.VM1)
		r.Move(rig.VM1, rig.B)
		if v := r.StartVM(rig.VM1, rig.B); v["gpu0"].Preserved != plan.Yes {
			t.Errorf("verdict %+v", v)
		}
		figure("page_writes_planned_total", pages(r)-before, "pages: arm, move, start, ack")
	})
}

// Floors, from bit counts alone: nine bits a byte at 400 kHz.
const (
	byteTime  = 9 * time.Second / 400_000
	pageWrite = 67 * byteTime // device address, two of word address, 64 of data
	readBack  = 68 * byteTime // and the device address once more
	cycle     = 5 * time.Millisecond
)

func TestBusTime(t *testing.T) {
	const reload = time.Millisecond
	for _, tt := range []struct {
		slots int
		floor time.Duration
		limit float64
	}{
		{1, 2 * (pageWrite + cycle + readBack), 1.20},
		{8, pageWrite + cycle + readBack + 8*(pageWrite+readBack), 1.25},
	} {
		took, steps := linked(t, tt.slots, 1, time.Nanosecond)
		with, _ := linked(t, tt.slots, 1, reload)
		over := float64(took) / float64(tt.floor)
		if over > tt.limit {
			t.Errorf("%d slots: %v on the bus, floor %v: %.3f; want at most %.2f\n%s", tt.slots, took, tt.floor, over, tt.limit, steps)
		}
		name := fmt.Sprintf("bus_time_%dslot%s", tt.slots, plural(tt.slots))
		figure(name+"_over_floor", over, fmt.Sprintf("ratio (%v over %v)", took, tt.floor))
		figure(name+"_reload", float64(with-took)/float64(time.Millisecond), fmt.Sprintf("ms more with a reload latency of %v", reload))
	}
}

// TestBusesInParallel moves eight slots on four buses: beside the intent, each
// bus carries two slots' share.
func TestBusesInParallel(t *testing.T) {
	one, _ := linked(t, 8, 1, time.Nanosecond)
	four, steps := linked(t, 8, 4, time.Nanosecond)
	if four > one*6/10 {
		t.Errorf("eight slots on four buses took %v, on one %v\n%s", four, one, steps)
	}
	figure("bus_time_8slots_4buses_over_1bus", float64(four)/float64(one), fmt.Sprintf("ratio (%v over %v)", four, one))
}

// linked is the virtual time of a planned move from its request until all its
// links are on.
func linked(t *testing.T, slots, buses int, reload time.Duration) (took time.Duration, steps string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, rig.Options{Slots: slots, Buses: buses, Sim: func(s *sim.Spec) { s.ReloadLatency = reload }})
		defer r.Stop()
		r.StartVM(rig.VM1, rig.A)
		for i := range slots {
			if _, err := r.Arm(rig.Slot(i), true); err != nil {
				t.Fatal(err)
			}
		}
		r.W.Server(rig.A).StopVM(rig.VM1)
		m := r.Move(rig.VM1, rig.B)
		for _, s := range m.Steps {
			steps += fmt.Sprintf("%10v %s: %s\n", s.At, s.Name, s.Text)
			if s.Name == "linked" {
				took = s.At
			}
		}
	})
	return took, steps
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
