package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// ErrSwitch is found by errors.Is in what the switch returns under Fail.
var ErrSwitch = errors.New("the switch does not answer")

// Switch is the enclosure's switch: which of its ports are members of which
// VLANs. Frames are not modelled: an engine behind a port sees those servers
// whose group is a VLAN of its port.
type Switch struct {
	w       *World
	vlans   map[string][]uint16 // by port, sorted; lists are replaced, never changed
	changes uint64
	failing int             // calls that fail; negative = all
	stuck   map[string]bool // ports that acknowledge and do nothing
}

func newSwitch(w *World) Switch {
	sw := Switch{w: w, vlans: make(map[string][]uint16), stuck: make(map[string]bool)}
	for i := range w.spec.Slots {
		if p := w.spec.Slots[i].Port; p != "" {
			sw.vlans[p] = nil
		}
	}
	return sw
}

// Join makes port a member of vlan.
func (sw *Switch) Join(ctx context.Context, port string, vlan uint16) error {
	return sw.change(ctx, port, func(have []uint16) []uint16 {
		i, found := slices.BinarySearch(have, vlan)
		if found {
			return have
		}
		return slices.Insert(slices.Clone(have), i, vlan)
	})
}

// Leave ends port's membership of vlan, if it has it.
func (sw *Switch) Leave(ctx context.Context, port string, vlan uint16) error {
	return sw.change(ctx, port, func(have []uint16) []uint16 {
		i, found := slices.BinarySearch(have, vlan)
		if !found {
			return have
		}
		return slices.Delete(slices.Clone(have), i, i+1)
	})
}

// Set makes port a member of vlan and of no other, 0 = of none, and reads that
// back. It makes no call that changes something where that is so already.
func (sw *Switch) Set(ctx context.Context, port string, vlan uint16) error {
	have, err := sw.Membership(ctx, port)
	if err != nil {
		return err
	}
	var want []uint16
	if vlan != 0 {
		want = []uint16{vlan}
	}
	if slices.Equal(have, want) {
		return nil
	}
	for _, v := range have {
		if v != vlan {
			if err := sw.Leave(ctx, port, v); err != nil {
				return err
			}
		}
	}
	if vlan != 0 && !slices.Contains(have, vlan) {
		if err := sw.Join(ctx, port, vlan); err != nil {
			return err
		}
	}
	if have, err = sw.Membership(ctx, port); err != nil {
		return err
	}
	if !slices.Equal(have, want) {
		return fmt.Errorf("read back as member of %v, want %v", have, want)
	}
	return nil
}

// May finds what can be seen before Set: here, that there are such ports.
func (sw *Switch) May(_ context.Context, ports []string, _ uint16) error {
	sw.w.enter()
	defer sw.w.mu.Unlock()
	for _, port := range ports {
		if _, ok := sw.vlans[port]; !ok {
			return noPort(port)
		}
	}
	return nil
}

// Check tells what would not be so after Set.
func (sw *Switch) Check(ctx context.Context, port string, vlan uint16) error {
	have, err := sw.Membership(ctx, port)
	var want []uint16
	if vlan != 0 {
		want = []uint16{vlan}
	}
	if err == nil && !slices.Equal(have, want) {
		err = fmt.Errorf("member of %v; want %v", have, want)
	}
	return err
}

// Last is what port is a member of, for people.
func (sw *Switch) Last(port string) string {
	sw.w.enter()
	defer sw.w.mu.Unlock()
	if have := sw.vlans[port]; len(have) > 0 {
		return fmt.Sprintf("VLANs %v", have)
	}
	return "in no VLAN"
}

func noPort(port string) error { return fmt.Errorf("sim: switch: there is no port %q", port) }

// Membership lists the VLANs that port is a member of, ascending.
func (sw *Switch) Membership(ctx context.Context, port string) ([]uint16, error) {
	var have []uint16
	err := sw.call(ctx, port, func(time.Duration) { have = slices.Clone(sw.vlans[port]) })
	return have, err
}

func (sw *Switch) change(ctx context.Context, port string, f func([]uint16) []uint16) error {
	return sw.call(ctx, port, func(t time.Duration) {
		next := f(sw.vlans[port])
		if slices.Equal(next, sw.vlans[port]) || sw.stuck[port] {
			return
		}
		sw.vlans[port] = next
		sw.changes++
		sw.w.refresh(t)
	})
}

// call takes the time of a call and carries f out at its end.
func (sw *Switch) call(ctx context.Context, port string, f func(time.Duration)) error {
	if d := sw.w.spec.SwitchTime; d > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	t := sw.w.enter()
	defer sw.w.mu.Unlock()
	if !sw.w.on {
		return fmt.Errorf("sim: switch: %w", ErrPowerOff)
	}
	if sw.failing != 0 {
		sw.failing--
		return fmt.Errorf("sim: switch: %w", ErrSwitch)
	}
	if _, ok := sw.vlans[port]; !ok {
		return noPort(port)
	}
	f(t)
	return nil
}

// Changes is how often a membership changed since the world was made.
func (sw *Switch) Changes() uint64 {
	sw.w.enter()
	defer sw.w.mu.Unlock()
	return sw.changes
}

// Fail makes the next n calls fail, all of them where n is negative, none
// where it is 0.
func (sw *Switch) Fail(n int) {
	sw.w.enter()
	defer sw.w.mu.Unlock()
	sw.failing = n
}

// Stick makes port keep its membership though calls succeed, or ends that.
func (sw *Switch) Stick(port string, on bool) {
	sw.w.enter()
	defer sw.w.mu.Unlock()
	sw.stuck[port] = on
}

func (sw *Switch) member(port string, vlan uint16) bool {
	_, found := slices.BinarySearch(sw.vlans[port], vlan)
	return found
}

// clear is what losing power does to a switch that does not keep its VLANs.
func (sw *Switch) clear() {
	for p := range sw.vlans {
		sw.vlans[p] = nil
	}
}

func (sw *Switch) clone(w *World) Switch {
	c := *sw
	c.w, c.vlans, c.stuck = w, maps.Clone(sw.vlans), maps.Clone(sw.stuck)
	return c
}
