package enclosure_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"periph.io/x/conn/v3/i2c"

	"baton/ee/bus"
	"baton/enclosure"
	"baton/test/rig"
)

// heldBus is a bus whose transfers wait while it is held, or take their time.
type heldBus struct {
	i2c.Bus
	held  atomic.Pointer[chan struct{}]
	takes atomic.Int64
}

func (b *heldBus) Tx(addr uint16, w, r []byte) error {
	if c := b.held.Load(); c != nil {
		<-*c
	}
	time.Sleep(time.Duration(b.takes.Load()))
	return b.Bus.Tx(addr, w, r)
}

// hold lets no transfer come back until let is called.
func (b *heldBus) hold() (let func()) {
	c := make(chan struct{})
	b.held.Store(&c)
	return func() {
		b.held.Store(nil)
		close(c)
	}
}

// withHeldBus puts one in front of the engines of bus1.
func withHeldBus(b *heldBus, in func(i2c.Bus) i2c.Bus) func(*enclosure.Config) {
	return func(c *enclosure.Config) {
		var front i2c.Bus
		for i, s := range c.Slots {
			if s.BusName != "bus1" {
				continue
			}
			if front == nil {
				b.Bus = s.Bus
				front = in(b)
			}
			c.Slots[i].Bus = front
		}
	}
}

// quietLoops returns the loops that were quiet for longer than d, joined.
func quietLoops(r *rig.Rig, d time.Duration) string {
	var names []string
	for _, l := range r.E.Loops() {
		if l.Quiet > d {
			names = append(names, l.Name)
		}
	}
	return strings.Join(names, ", ")
}

// A poller that does not come back from a transfer which nothing bounds is
// named, and only that one.
func TestLoopsNameWhatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &heldBus{}
		r := rig.New(t, rig.Options{Slots: 2, Buses: 2, Config: withHeldBus(b, func(b i2c.Bus) i2c.Bus { return b })})
		if n := len(r.E.Loops()); n != 0 {
			t.Errorf("%d loops before Run", n)
		}
		r.Run()
		for range 120 {
			time.Sleep(time.Second)
			if got := quietLoops(r, 2*time.Second); got != "" {
				t.Fatalf("all is well, and yet quiet: %s", got)
			}
		}
		if n := len(r.E.Loops()); n != 3 {
			t.Errorf("%d loops; want two pollers, and the watch over the rest", n)
		}
		let := b.hold()
		time.Sleep(enclosure.LoopQuiet / 2)
		if got := quietLoops(r, enclosure.LoopQuiet); got != "" {
			t.Errorf("too early: %s", got)
		}
		time.Sleep(enclosure.LoopQuiet/2 + 2*time.Second)
		if got, want := quietLoops(r, enclosure.LoopQuiet), "poller of bus bus1"; got != want {
			t.Errorf("stuck: %q; want %q", got, want)
		}
		let()
		time.Sleep(3 * time.Second)
		if got := quietLoops(r, 2*time.Second); got != "" {
			t.Errorf("quiet after the transfer came back: %s", got)
		}
		r.Stop()
		if n := len(r.E.Loops()); n != 0 {
			t.Errorf("%d loops after Run", n)
		}
	})
}

// A bus that never comes back, behind its owner, makes no poller stuck: each
// transfer fails in a second.
func TestLoopsOverWedgedBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &heldBus{}
		var owned *bus.Owned
		r := rig.New(t, rig.Options{Slots: 4, Buses: 2, Config: withHeldBus(b, func(i i2c.Bus) i2c.Bus {
			owned = bus.Own(i, time.Second)
			return owned
		})})
		r.Run()
		time.Sleep(5 * time.Second)
		let := b.hold()
		var longest time.Duration
		for range 300 {
			time.Sleep(time.Second)
			for _, l := range r.E.Loops() {
				longest = max(longest, l.Quiet)
			}
		}
		if longest > 5*time.Second {
			t.Errorf("a loop was quiet for %v on a wedged bus; want some seconds at most", longest)
		}
		if p := r.SlotStatus("gpu1").Problem; !strings.Contains(p, bus.ErrWedged.Error()) {
			t.Errorf("gpu1: %q; want that its bus is wedged", p)
		}
		let()
		r.Stop()
		if err := owned.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Bringing back a large set over a bus on which each transfer takes twenty
// seconds lasts for minutes, and all the time something comes to its end.
func TestLoopsWhileSlowlyBroughtBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &heldBus{}
		r := rig.New(t, rig.Options{Slots: 8, Buses: 2, Config: withHeldBus(b, func(b i2c.Bus) i2c.Bus { return b })})
		r.StartVM(rig.VM1, rig.A)
		r.Run()
		time.Sleep(2 * time.Second)
		b.takes.Store(int64(20 * time.Second))
		for _, s := range []string{"gpu1", "gpu3", "gpu5", "gpu7"} {
			r.W.Slot(s).Restart()
		}
		begin := time.Now()
		var longest time.Duration
		for well := false; !well; {
			time.Sleep(time.Second)
			for _, l := range r.E.Loops() {
				longest = max(longest, l.Quiet)
			}
			if time.Since(begin) > time.Hour {
				t.Fatal("the set did not come back in an hour")
			}
			well = true
			for _, s := range []string{"gpu1", "gpu3", "gpu5", "gpu7"} {
				well = well && r.W.Server(rig.A).Reach(s)
			}
		}
		took := time.Since(begin)
		t.Logf("brought back in %v, quiet for %v at most", took, longest)
		if took < 2*enclosure.LoopQuiet {
			t.Errorf("it took %v: this test shows nothing below %v", took, 2*enclosure.LoopQuiet)
		}
		if longest > enclosure.LoopQuiet {
			t.Errorf("a loop was quiet for %v; want at most %v", longest, enclosure.LoopQuiet)
		}
		r.Stop()
	})
}

// Problem says what status says.
func TestProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, rig.Options{})
		if p := r.E.Problem(); p != "" {
			t.Errorf("Problem = %q", p)
		}
		r.Stop()
		r.Config.Store = enclosure.StoreConfig{Name: "nowhere", Problem: errors.New("no such device")}
		r.Start(enclosure.Options{})
		if p := r.E.Problem(); !strings.Contains(p, "no such device") {
			t.Errorf("Problem = %q", p)
		}
		r.Stop()
	})
}

// Nothing at a start waits for the kernel's randomness, which has none in the
// first second of a controller's power, but the first format of a store.
func TestStartNeedsNoRandomness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, rig.Options{Slots: 2})
		r.StartVM(rig.VM1, rig.A)
		r.Stop()
		for _, same := range []bool{true, false} {
			drawn := 0
			e, err := enclosure.Open(t.Context(), r.Config, enclosure.Options{SameBoot: same, Random: func([]byte) { drawn++ }})
			if err != nil || e.Problem() != "" {
				t.Fatalf("Open: %v, %s", err, e.Problem())
			}
			if drawn != 0 {
				t.Errorf("same boot %v: a start drew random bytes %d times", same, drawn)
			}
		}
	})
}
