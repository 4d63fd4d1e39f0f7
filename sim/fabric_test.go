package sim

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"baton/ee"
)

// TestLinkLoss: whatever ends a link, the device is reset unless guard or hold
// is on, and the latch stands unless the agent asked for it.
func TestLinkLoss(t *testing.T) {
	cut := func(control byte) func(*World, engine) {
		return func(_ *World, e engine) { e.set(ee.RegControl, base|control) }
	}
	for _, tt := range []struct {
		name   string
		before byte
		end    func(*World, engine)
		reset  bool
		latch  byte
	}{
		{"asked", 0, cut(0), true, ee.LatchReset},
		{"asked, guard", ee.CtlGuard, cut(ee.CtlGuard), false, 0},
		{"asked, hold", ee.CtlHold, cut(ee.CtlHold), false, 0},
		{"asked, guard in the same write", 0, cut(ee.CtlGuard), false, 0},
		{"asked, guard dropped in the same write", ee.CtlGuard, cut(0), true, ee.LatchReset},
		{"server off", 0, func(w *World, _ engine) { w.Server("server1").PowerLoss() }, true, ee.LatchReset | ee.LatchLinkLost},
		{"server off, guard", ee.CtlGuard, func(w *World, _ engine) { w.Server("server1").PowerLoss() }, false, ee.LatchLinkLost},
		{"fabric link, hold", ee.CtlHold, func(w *World, _ engine) { w.Server("server1").LinkLoss() }, false, ee.LatchLinkLost},
		{"fabric link", 0, func(w *World, _ engine) { w.Server("server1").LinkLoss() }, true, ee.LatchReset | ee.LatchLinkLost},
		{"other group", ee.CtlHold, func(w *World, _ engine) { w.Server("server1").SetGroup(500) }, false, ee.LatchLinkLost},
		{"other EE(Server)", ee.CtlHold, func(w *World, e engine) {
			e.set(ee.RegExpectPeer, 2, 'S', 'V', 0, 0, 1)
			w.Server("server1").SetMAC(MAC{9})
		}, false, ee.LatchLinkLost},
		{"other peer expected", ee.CtlHold, func(_ *World, e engine) { e.set(ee.RegExpectPeer, 9, 9, 9, 9, 9, 9) }, false, ee.LatchLinkLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				w, e := linked(t, oneSlot(), tt.before)
				must(t, w.Server("server1").WriteMem("gpu0", 0, []byte("step")))
				tt.end(w, e)
				st := w.Slot("gpu0").State()
				if st.Peer != "" || st.Reacher != "" || st.Status&ee.StatLink != 0 {
					t.Fatalf("the link is up: %+v", st)
				}
				if st.Latch != tt.latch {
					t.Errorf("LATCH = 0x%02x; want 0x%02x", st.Latch, tt.latch)
				}
				if reset := st.Resets != 1; reset != tt.reset {
					t.Errorf("reset = %v; want %v", reset, tt.reset)
				}
				if n := e.get4(ee.RegLinkChanges); n != 2 {
					t.Errorf("LINK_CHANGES = %d; want 2", n)
				}
				// What is in memory when somebody reaches it again.
				w.Server("server1").SetGroup(101)
				w.Server("server1").PowerOn()
				w.Server("server1").LinkRestore()
				e.set(ee.RegExpectPeer, make([]byte, 6)...)
				e.set(ee.RegControl, base|ee.CtlLink|ee.CtlGuard)
				time.Sleep(w.spec.LinkUpTime)
				want := "step"
				if tt.reset {
					want = "\x00\x00\x00\x00"
				}
				if got := readMem(t, w.Server("server1"), 4); got != want {
					t.Errorf("memory holds %q; want %q", got, want)
				}
			})
		})
	}
}

// TestWhoLinks: which of the servers the engine links to.
func TestWhoLinks(t *testing.T) {
	mac := func(n byte) []byte { return []byte{2, 'S', 'V', 0, 0, n} }
	for _, tt := range []struct {
		name    string
		servers []ServerSpec
		expect  []byte
		do      func(w *World)               // before the link is enabled
		late    func(w *World) time.Duration // a minute after; returns from when on a link was possible
		want    string
	}{
		{"the group's", []ServerSpec{{Group: 100}, {Group: 101}}, nil, nil, nil, "server2"},
		{"nobody of the group", []ServerSpec{{Group: 100}}, nil, nil, nil, ""},
		{"the first of a group", []ServerSpec{{Group: 101}, {Group: 101}}, nil, nil, nil, "server1"},
		{"the first that appeared", []ServerSpec{{Group: 101, Off: true}, {Group: 101, Off: true}}, nil,
			func(w *World) { w.Server("server2").PowerOn(); w.Server("server1").PowerOn() }, nil, "server2"},
		{"the one that lost its link appears anew", []ServerSpec{{Group: 101}, {Group: 101}}, nil,
			func(w *World) { w.Server("server1").LinkLoss(); w.Server("server1").LinkRestore() }, nil, "server2"},
		{"one without power", []ServerSpec{{Group: 101, Off: true}}, nil, nil, nil, ""},
		{"the one expected, not the stale one", []ServerSpec{{Group: 101}, {Group: 101}}, mac(2), nil, nil, "server2"},
		{"the one expected is not there", []ServerSpec{{Group: 101}, {Group: 101, Off: true}}, mac(2), nil, nil, ""},
		{"the one expected comes late", []ServerSpec{{Group: 101}, {Group: 101, Off: true}}, mac(2), nil,
			func(w *World) time.Duration { w.Server("server2").PowerOn(); return w.Now() }, "server2"},
		{"the stale one is there before", []ServerSpec{{Group: 101}, {Group: 101, Off: true}}, nil, nil,
			func(w *World) time.Duration { w.Server("server2").PowerOn(); return 0 }, "server1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				s := oneSlot()
				s.Servers = tt.servers
				w := New(s)
				boot(w)
				e := engineOf(t, w, "gpu0")
				if tt.expect != nil {
					e.set(ee.RegExpectPeer, tt.expect...)
				}
				if tt.do != nil {
					tt.do(w)
				}
				e.set(ee.RegControl, base|ee.CtlLink)
				possible := w.Now() - e.bus.span(stopBit)
				if tt.late != nil {
					time.Sleep(time.Minute)
					possible = max(possible, tt.late(w))
				}
				time.Sleep(time.Second)
				if got := w.Slot("gpu0").State().Peer; got != tt.want {
					t.Fatalf("linked to %q; want %q", got, tt.want)
				}
				if tt.want == "" {
					return
				}
				want := w.Server(tt.want).mac
				if got := MAC(e.get(ee.RegPeerMAC, 6)); got != want {
					t.Errorf("PEER_MAC = %x; want %x", got, want)
				}
				if r := w.Reach(); len(r) != 1 || !r[0].Open || r[0].From != possible+w.spec.LinkUpTime {
					t.Errorf("reach = %+v", r)
				}
			})
		})
	}
}

func TestVLAN(t *testing.T) {
	in(t, func(t *testing.T) {
		s := oneSlot()
		s.Slots[0].Port = "lan3"
		s.SwitchTime = time.Millisecond
		w := New(s)
		boot(w)
		sw, ctx := w.Switch(), t.Context()
		e := engineOf(t, w, "gpu0")
		step := func(name string, do func() error, reach bool, members ...uint16) {
			t.Helper()
			t0 := time.Now()
			if err := do(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if took := time.Since(t0); took != time.Millisecond {
				t.Errorf("%s took %v; want SwitchTime", name, took)
			}
			time.Sleep(w.spec.LinkUpTime)
			if got := w.Server("server1").Reach("gpu0"); got != reach {
				t.Errorf("%s: reached = %v; want %v", name, got, reach)
			}
			got, err := sw.Membership(ctx, "lan3")
			if err != nil || !slices.Equal(got, members) {
				t.Errorf("%s: membership = %v, %v; want %v", name, got, err, members)
			}
		}
		e.set(ee.RegControl, base|ee.CtlLink|ee.CtlHold)
		join := func(v uint16) func() error { return func() error { return sw.Join(ctx, "lan3", v) } }
		leave := func(v uint16) func() error { return func() error { return sw.Leave(ctx, "lan3", v) } }
		step("other VLAN", join(200), false, 200)
		step("its VLAN", join(101), true, 101, 200)
		step("again", join(101), true, 101, 200)
		step("leave the other", leave(200), true, 101)
		step("leave", leave(101), false)
		step("leave again", leave(101), false)
		if n := sw.Changes(); n != 4 {
			t.Errorf("%d changes; want 4", n)
		}
		if st := w.Slot("gpu0").State(); st.Latch&ee.LatchLinkLost == 0 || st.Resets != 1 {
			t.Errorf("after the VLAN was taken: %+v", st)
		}
		step("join", join(101), true, 101)
		sw.Stick("lan3", true)
		step("a port that sticks", leave(101), true, 101)
		sw.Stick("lan3", false)

		sw.Fail(1)
		if err := sw.Leave(ctx, "lan3", 101); !errors.Is(err, ErrSwitch) {
			t.Errorf("Leave under Fail = %v; want ErrSwitch", err)
		}
		step("after the failure", leave(101), false)
		if err := sw.Join(ctx, "lan9", 101); err == nil {
			t.Error("Join of a port that is not there succeeded")
		}
		done, cancel := context.WithCancel(ctx)
		cancel()
		if err := sw.Join(done, "lan3", 101); !errors.Is(err, context.Canceled) {
			t.Errorf("Join under a context that is done = %v", err)
		}
		if got, _ := sw.Membership(ctx, "lan3"); len(got) != 0 {
			t.Errorf("a call that failed changed the membership to %v", got)
		}
	})
}

func TestSwitchAndPower(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		in(t, func(t *testing.T) {
			s := oneSlot()
			s.Slots[0].Port, s.SwitchKeeps = "lan3", keeps
			w := New(s)
			must(t, w.Switch().Join(t.Context(), "lan3", 101))
			w.PowerCut()
			if _, err := w.Switch().Membership(t.Context(), "lan3"); !errors.Is(err, ErrPowerOff) {
				t.Errorf("Membership without power = %v; want ErrPowerOff", err)
			}
			w.PowerOn()
			got, err := w.Switch().Membership(t.Context(), "lan3")
			if err != nil || (len(got) == 1) != keeps {
				t.Errorf("keeps=%v: membership after a power cut = %v, %v", keeps, got, err)
			}
		})
	}
}

// TestReachRecord follows a device from server 1 to server 2, and pins every
// instant.
func TestReachRecord(t *testing.T) {
	in(t, func(t *testing.T) {
		w, e := linked(t, oneSlot(), ee.CtlGuard)
		up1 := w.Now()
		time.Sleep(time.Second)
		e.set(ee.RegControl, base|ee.CtlGuard)
		down1 := w.Now() - e.bus.span(stopBit)
		w.Slot("gpu0").SetBlock(*blockFor(102))
		e.set(ee.RegControl, base|ee.CtlGuard|ee.CtlReload)
		time.Sleep(w.spec.ReloadLatency)
		e.set(ee.RegControl, base|ee.CtlGuard|ee.CtlLink)
		up2 := w.Now() - e.bus.span(stopBit) + w.spec.LinkUpTime
		time.Sleep(time.Second)
		w.Server("server2").LinkLoss()
		down2 := w.Now()
		time.Sleep(time.Second)
		w.Server("server2").LinkRestore()
		up3 := w.Now() + w.spec.LinkUpTime
		time.Sleep(time.Second)
		want := []Interval{
			{"gpu0", "server1", up1, down1, false},
			{"gpu0", "server2", up2, down2, false},
			{"gpu0", "server2", up3, w.Now(), true},
		}
		got := w.Reach()
		// linked slept from the end of its transfer on: the link was up a STOP
		// earlier.
		want[0].From -= e.bus.span(stopBit)
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		if n := w.MaxOwners("gpu0"); n != 1 {
			t.Errorf("MaxOwners = %d; want 1", n)
		}
		w.ClearRecord()
		if got := w.Reach(); len(got) != 1 || got[0].From != w.Now() {
			t.Errorf("after ClearRecord: %+v", got)
		}
	})
}

func TestMaxOwners(t *testing.T) {
	in(t, func(t *testing.T) {
		w := New(oneSlot())
		// Two engines can not share a slot, so the record is made up here.
		for _, tt := range []struct {
			name  string
			reach []Interval
			want  int
		}{
			{"nobody", nil, 0},
			{"one after the other", []Interval{{"gpu0", "a", 0, 5, false}, {"gpu0", "b", 5, 9, false}}, 1},
			{"overlap", []Interval{{"gpu0", "a", 0, 5, false}, {"gpu0", "b", 4, 9, false}}, 2},
			{"inside", []Interval{{"gpu0", "b", 4, 5, false}, {"gpu0", "a", 0, 9, false}, {"gpu0", "c", 4, 6, false}}, 3},
			{"another slot", []Interval{{"gpu0", "a", 0, 5, false}, {"gpu1", "b", 4, 9, false}}, 1},
			{"same server", []Interval{{"gpu0", "a", 0, 5, false}, {"gpu0", "a", 4, 9, false}}, 1},
		} {
			w.record.reach = tt.reach
			if got := w.MaxOwners("gpu0"); got != tt.want {
				t.Errorf("%s: MaxOwners = %d; want %d", tt.name, got, tt.want)
			}
		}
	})
}
