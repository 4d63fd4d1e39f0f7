package enclosure_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"baton/enclosure"
	"baton/test/rig"
	"baton/vlan"
)

// blindSwitch is one that at times can not be read.
type blindSwitch struct {
	enclosure.Switch
	blind atomic.Bool
	sets  atomic.Int64
}

func (b *blindSwitch) see() error {
	if b.blind.Load() {
		return fmt.Errorf("there is no bridge br0: %w", vlan.ErrUnseen)
	}
	return nil
}

func (b *blindSwitch) Set(ctx context.Context, port string, group uint16) error {
	b.sets.Add(1)
	if err := b.see(); err != nil {
		return err
	}
	return b.Switch.Set(ctx, port, group)
}

func (b *blindSwitch) May(ctx context.Context, ports []string, group uint16) error {
	if err := b.see(); err != nil {
		return err
	}
	return b.Switch.May(ctx, ports, group)
}

// TestSwitchUnseen: while the switch can not be read moves are refused before
// anything is cut, a start cuts nobody, and what the ports have become meanwhile
// is mended when it can be read again.
func TestSwitchUnseen(t *testing.T) {
	for _, profile := range []string{"regs-v1", "nvm-only"} {
		sw := &blindSwitch{}
		world(t, rig.Options{Switch: true, Profile: profile, Config: func(c *enclosure.Config) {
			sw.Switch, c.Switch = c.Switch, sw
		}}, func(t *testing.T, r *rig.Rig) {
			r.Attach(rig.VM1, rig.A)
			if got, want := r.SlotStatus("gpu0"), "VLANs [101]"; got.Port != "lan0" || got.VLAN != want {
				t.Errorf("status has port %q, %q; want lan0, %q", got.Port, got.VLAN, want)
			}
			sw.blind.Store(true)
			gen, sets := r.Gen("gpu0"), sw.sets.Load()
			m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
			if rig.Code(err) != enclosure.CodeHardware || !strings.Contains(err.Error(), "port lan0") || !strings.Contains(err.Error(), "nothing was changed") {
				t.Errorf("%s: move = %s, %v; want it refused, with the port and that nothing was changed", profile, m.State, err)
			}
			if r.Gen("gpu0") != gen || sw.sets.Load() != sets {
				t.Errorf("%s: generation %v, %d calls that set; want %v, %d", profile, r.Gen("gpu0"), sw.sets.Load(), gen, sets)
			}
			r.WantHost("gpu0", rig.A)

			r.Restart()
			r.WantHost("gpu0", rig.A)
			if s := r.SlotStatus("gpu0"); s.Blocked != "" || s.Cut != "" {
				t.Errorf("%s: after a start: blocked %q, cut %q", profile, s.Blocked, s.Cut)
			}
			if err := r.W.Switch().Leave(r.Ctx(), "lan0", 101); err != nil {
				t.Fatal(err)
			}
			r.Run()
			time.Sleep(3 * time.Second)
			sw.blind.Store(false)
			time.Sleep(3 * time.Second)
			if got, err := r.W.Switch().Membership(r.Ctx(), "lan0"); err != nil || !slices.Equal(got, []uint16{101}) {
				t.Errorf("%s: member of %v, %v; want 101", profile, got, err)
			}
			events, _ := r.E.Events(0)
			if n := count(events, "port lan0 can be read again"); n != 1 {
				t.Errorf("%s: %d events say that the port can be read again; want 1", profile, n)
			}
			r.WantHost("gpu0", rig.A)
			r.Move(rig.VM1, rig.B)
		})
	}
}

func count(events []enclosure.Event, text string) int {
	n := 0
	for _, ev := range events {
		if strings.Contains(ev.Text, text) {
			n++
		}
	}
	return n
}
