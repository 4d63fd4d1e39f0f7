package vlan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func set(t *testing.T, s *Switch, port string, group uint16) {
	t.Helper()
	if err := s.Set(t.Context(), port, group); err != nil {
		t.Fatalf("Set(%s, %d): %v", port, group, err)
	}
}

// mayOne is May of one port.
func mayOne(s *Switch) func(context.Context, string, uint16) error {
	return func(ctx context.Context, port string, group uint16) error { return s.May(ctx, []string{port}, group) }
}

// TestSet follows two VMs' slots through moves: what is asked of the kernel, in
// which order, and what comes of it.
func TestSet(t *testing.T) {
	f, s := bed()
	for _, tt := range []struct {
		port  string
		group uint16
		asked string
		shown string
	}{
		{"lan0", 0, "lan0 leaves 1 untagged", "up: 1 untagged; lan0: none; lan1: 1 untagged; lan2: 1 untagged"},
		{"lan0", 101, "up joins 101; lan0 joins 101", "up: 1 untagged, 101; lan0: 101; lan1: 1 untagged; lan2: 1 untagged"},
		{"lan0", 101, "", "up: 1 untagged, 101; lan0: 101; lan1: 1 untagged; lan2: 1 untagged"},
		{"lan2", 101, "lan2 leaves 1 untagged; lan2 joins 101 untagged", "up: 1 untagged, 101; lan0: 101; lan1: 1 untagged; lan2: 101 untagged"},
		{"lan1", 103, "lan1 leaves 1 untagged; up joins 1103; lan1 joins 1103", "up: 1 untagged, 101, 1103; lan0: 101; lan1: 1103; lan2: 101 untagged"},
		{"lan0", 0, "lan0 leaves 101", "up: 1 untagged, 101, 1103; lan0: none; lan1: 1103; lan2: 101 untagged"},
		{"lan0", 102, "up joins 102; lan0 joins 102", "up: 1 untagged, 101-102, 1103; lan0: 102; lan1: 1103; lan2: 101 untagged"},
		{"lan2", 0, "lan2 leaves 101 untagged; up leaves 101", "up: 1 untagged, 102, 1103; lan0: 102; lan1: 1103; lan2: none"},
		{"lan1", 102, "lan1 leaves 1103; up leaves 1103; lan1 joins 102", "up: 1 untagged, 102; lan0: 102; lan1: 102; lan2: none"},
	} {
		f.asked = nil
		set(t, s, tt.port, tt.group)
		if got := strings.Join(f.asked, "; "); got != tt.asked {
			t.Errorf("Set(%s, %d) asked %q; want %q", tt.port, tt.group, got, tt.asked)
		}
		if got, want := f.shown(), tt.shown+"; other: 1 untagged"; got != want {
			t.Errorf("Set(%s, %d):\n got %s\nwant %s", tt.port, tt.group, got, want)
		}
	}
	if got, want := s.Last("lan1"), "tagged, VLAN 102"; got != want {
		t.Errorf("Last = %q; want %q", got, want)
	}
	if got, want := s.Last("lan2"), "access, in no VLAN"; got != want {
		t.Errorf("Last = %q; want %q", got, want)
	}
	if w := s.Warnings(); len(w) != 0 {
		t.Errorf("warnings %q", w)
	}
	if err := s.Close(); err != nil || f.open {
		t.Errorf("Close: %v, open %v", err, f.open)
	}
}

// TestCheck: what is not as it should be is told, and left.
func TestCheck(t *testing.T) {
	f, s := bed()
	for _, tt := range []struct {
		up, lan1, lan2 []member
		port           string
		group          uint16
		want           string
	}{
		{port: "lan1", group: 0, want: "<nil>"},
		{up: []member{{1103, false, false}}, lan1: []member{{1103, false, false}}, port: "lan1", group: 103, want: "<nil>"},
		{up: []member{{102, false, false}}, lan2: []member{{102, true, true}}, port: "lan2", group: 102, want: "<nil>"},
		{up: []member{{101, false, false}}, lan1: []member{{101, false, false}, {7, false, false}}, port: "lan1", group: 101, want: "lan1 is a member of 101, 7, and should not be of 7"},
		{up: []member{{101, false, false}}, port: "lan1", group: 101, want: "lan1 is a member of none, and should be of 101"},
		{up: []member{{102, false, false}}, lan2: []member{{102, false, false}}, port: "lan2", group: 102, want: "lan2 is a member of 102, and should be of 102 untagged"},
		{lan1: []member{{101, false, false}}, port: "lan1", group: 101, want: "up is a member of none, and should be of 101"},
		{port: "lan7", group: 101, want: "port lan7 is no slot's"},
	} {
		f.now.port("up").members, f.now.port("lan1").members, f.now.port("lan2").members = tt.up, tt.lan1, tt.lan2
		if err := s.Check(t.Context(), tt.port, tt.group); fmt.Sprint(err) != tt.want {
			t.Errorf("Check(%s, %d) = %v; want %s", tt.port, tt.group, err, tt.want)
		}
	}
	if len(f.asked) > 0 {
		t.Errorf("a check asked for %v", f.asked)
	}
	if done, err := s.Repair(t.Context()); err != nil || len(done) > 0 {
		t.Errorf("and what was checked is wanted: %v, %v", done, err)
	}
}

// TestRestart: where all agrees an agent that has just started changes nothing.
func TestRestart(t *testing.T) {
	f, s := bed()
	groups := map[string]uint16{"lan0": 101, "lan1": 0, "lan2": 103}
	if err := s.SetAll(t.Context(), groups); err != nil {
		t.Fatal(err)
	}
	f.asked = nil
	again := newSwitch(s.c, s.open)
	// What the first slot asks for says nothing about the others' VLANs.
	for port, g := range maps.All(groups) {
		set(t, again, port, g)
	}
	if _, err := again.Repair(t.Context()); err != nil || len(f.asked) > 0 {
		t.Errorf("%v, %v; want no change", f.asked, err)
	}
	if st := again.Stats(); st.Changes != 0 || st.Looks != 4 {
		t.Errorf("%+v; want 4 looks and no change", st)
	}
}

// TestBreakBeforeMake: at no instant is a slot's port a member of two VLANs, or
// of one that is not its own, or is anything taken from another.
func TestBreakBeforeMake(t *testing.T) {
	f, s := bed()
	if err := s.SetAll(t.Context(), map[string]uint16{"lan0": 101, "lan1": 101, "lan2": 102}); err != nil {
		t.Fatal(err)
	}
	f.watch = func() {
		for _, n := range []string{"lan0", "lan1", "lan2"} {
			if m := f.now.port(n).members; len(m) > 1 {
				t.Errorf("%s is a member of %s", n, list(m))
			}
		}
		if got := list(f.now.port("lan1").members); got != "101" {
			t.Errorf("lan1: %s; want 101 throughout", got)
		}
		if !slices.ContainsFunc(f.now.port("up").members, func(m member) bool { return m.vlan == 101 }) {
			t.Error("the uplink left 101, which lan1 uses")
		}
	}
	for range 3 {
		for _, g := range []uint16{102, 103, 0, 101} {
			set(t, s, "lan0", g)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		name string
		f    func(*fake)
		c    func(*Config)
		port string
		want string
	}{
		{name: "no bridge", c: func(c *Config) { c.Bridge = "br7" }, want: "there is no bridge br7; make it: ip link add br7 type bridge && echo 1 >/sys/class/net/br7/bridge/vlan_filtering"},
		{name: "no such kind", f: func(f *fake) { f.now.kind = "bond" }, want: "br0 is no bridge"},
		{name: "no filtering", f: func(f *fake) { f.now.filtering = false }, want: "bridge br0 does not filter VLANs"},
		{name: "802.1ad", f: func(f *fake) { f.now.protocol = 0x88a8 }, want: "tags of protocol 0x88a8, want 0x8100"},
		{name: "no port", c: func(c *Config) { c.Ports[0].Name = "lan7" }, port: "lan7", want: "there is no port lan7"},
		{name: "port of another", f: func(f *fake) { f.existing = []string{"lan7"} }, c: func(c *Config) { c.Ports[0].Name = "lan7" }, port: "lan7", want: "lan7 is no port of bridge br0"},
		{name: "no uplink", c: func(c *Config) { c.Uplink.Name = "up7" }, want: "there is no port up7"},
		{name: "not a slot's", port: "other", want: "port other is no slot's"},
		{name: "VLAN 0", c: func(c *Config) { c.VLANs[101] = 0 }, want: "group 101 has VLAN 0, which is outside 1..4094"},
		{name: "VLAN 4095", c: func(c *Config) { c.VLANs[101] = 4095 }, want: "group 101 has VLAN 4095, which is outside 1..4094"},
		{name: "own VLAN", c: func(c *Config) { c.OwnVLAN, c.OwnUntagged = 101, false }, want: "VLAN 101 is the controller's own network's"},
		{name: "access uplink", c: func(c *Config) { c.Uplink.Mode = Access }, want: "goes untagged over up: an access port would cut it"},
		{name: "own network on a host's VLAN", f: func(f *fake) { f.now.port("up").members = []member{{101, true, true}} }, want: "VLAN 101 is the one of untagged frames on up"},
		{name: "kernel says no", f: func(f *fake) {
			f.fail = func(what string) error {
				if what == "look" {
					return unix.EPERM
				}
				return nil
			}
		}, want: "reading bridge br0: operation not permitted"},
	} {
		f, s := bed(func(c *Config) {
			if tt.c != nil {
				tt.c(c)
			}
		})
		if tt.f != nil {
			tt.f(f)
		}
		before, port := f.shown(), tt.port
		if port == "" {
			port = "lan0"
		}
		for name, do := range map[string]func(context.Context, string, uint16) error{"May": mayOne(s), "Set": s.Set} {
			err := do(t.Context(), port, 101)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.Is(err, ErrUnseen) {
				t.Errorf("%s: %s = %v; want %q, ErrUnseen", tt.name, name, err, tt.want)
			}
		}
		if got := f.shown(); got != before || len(f.asked) > 0 {
			t.Errorf("%s: asked %v, %s; want %s", tt.name, f.asked, got, before)
		}
		// What was refused is not wanted any more.
		f.fail = nil
		if done, err := s.Repair(t.Context()); len(done) > 0 {
			t.Errorf("%s: and then %v, %v", tt.name, done, err)
		}
	}
}

// TestFails: a message that fails is named, a port that can not join is not left
// half way, and one that can not leave is wanted out of it from then on.
func TestFails(t *testing.T) {
	f, s := bed()
	if err := s.SetAll(t.Context(), map[string]uint16{"lan0": 101, "lan1": 0, "lan2": 0}); err != nil {
		t.Fatal(err)
	}
	failing := func(what string, err error) {
		f.asked = nil
		f.fail = func(w string) error {
			if w == what {
				return err
			}
			return nil
		}
	}
	// To join: after the port has left its old VLAN, as a move does.
	set(t, s, "lan0", 0)
	failing("lan0 joins 102", unix.EOPNOTSUPP)
	before := f.shown()
	err := s.Set(t.Context(), "lan0", 102)
	if want := "lan0 joins 102: operation not supported"; err == nil || err.Error() != want || errors.Is(err, ErrUnseen) {
		t.Errorf("Set = %v; want %q", err, want)
	}
	if got := f.shown(); got != before {
		t.Errorf("after a join that failed: %s; want %s", got, before)
	}
	f.fail = nil
	if done, err := s.Repair(t.Context()); err != nil || len(done) > 0 {
		t.Errorf("and then %v, %v", done, err)
	}
	// To leave.
	set(t, s, "lan0", 102)
	failing("lan0 leaves 102", unix.EIO)
	if err := s.Set(t.Context(), "lan0", 0); err == nil || !strings.Contains(err.Error(), "lan0 leaves 102: input/output error") {
		t.Errorf("Set(0) = %v", err)
	}
	f.fail = nil
	done, err := s.Repair(t.Context())
	if got := f.shown(); err != nil || len(done) == 0 || got != "up: 1 untagged; lan0: none; lan1: none; lan2: none; other: 1 untagged" {
		t.Errorf("a cut is not tried again: %v, %v, %s", done, err, got)
	}
	// What could not be put back is not told as if it had been, and not counted.
	f.now.port("lan2").members = []member{{7, false, false}}
	failing("lan2 leaves 7", unix.EIO)
	if done, err := s.Repair(t.Context()); len(done) > 0 || err == nil || !strings.Contains(err.Error(), "lan2 leaves 7: input/output error") {
		t.Errorf("a repair that fails: %v, %v; want an error and nothing done", done, err)
	}
	f.asked = nil
	if done, err := s.Repair(t.Context()); len(done) > 0 || len(f.asked) > 0 || err == nil || err.Error() != "lan2 leaves 7: input/output error" {
		t.Errorf("tried again at once: %v, %v, %v; want what is wrong, and nothing asked", done, f.asked, err)
	}
	f.fail = nil
	if w := s.Warnings(); len(w) > 0 {
		t.Errorf("warnings %q; want none", w)
	}
	set(t, s, "lan2", 0)
	// A port that has left is cut, whether the uplink leaves or not: Repair goes
	// on with that.
	set(t, s, "lan1", 102)
	failing("up leaves 102", unix.EIO)
	if err := s.Set(t.Context(), "lan1", 0); err != nil || list(f.now.port("lan1").members) != "none" {
		t.Errorf("Set(0), and the uplink can not leave: %v, %s; want it done", err, f.shown())
	}
	if _, err := s.Repair(t.Context()); err == nil || !strings.Contains(err.Error(), "up leaves 102: input/output error") {
		t.Errorf("Repair = %v; want what is wrong with the uplink", err)
	}
	f.fail = nil
	// A port that did not leave joins nothing else.
	set(t, s, "lan1", 101)
	failing("lan1 leaves 101", unix.EIO)
	if err := s.Set(t.Context(), "lan1", 102); err == nil {
		t.Error("a port that did not leave: no error")
	}
	if got := list(f.now.port("lan1").members); got != "101" {
		t.Errorf("lan1 is a member of %s; want 101", got)
	}
	if slices.Contains(f.asked, "lan1 joins 102") {
		t.Errorf("lan1 did not leave 101, and was made to join 102: %v", f.asked)
	}
	// One that says yes and does nothing.
	f.fail, f.stuck = nil, "lan2"
	err = s.Set(t.Context(), "lan2", 101)
	if want := "lan2 is read back as a member of none: does something else manage it?"; err == nil || err.Error() != want {
		t.Errorf("Set = %v; want %q", err, want)
	}
	// All that goes wrong is said.
	f.stuck = ""
	f.fail = func(w string) error {
		if strings.HasPrefix(w, "lan") {
			return unix.EIO
		}
		return nil
	}
	set0 := map[string]uint16{"lan1": 0, "lan2": 102}
	err = s.SetAll(t.Context(), set0)
	if strings.Contains(fmt.Sprint(err), "\n") {
		t.Errorf("SetAll = %q; want one line", err)
	}
	for _, want := range []string{"lan1 leaves 101: input/output error", "lan2 joins 102 untagged: input/output error"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("SetAll = %v; want %q in it", err, want)
		}
	}
}

// TestAccessUplink: without tags there is one group at a time.
func TestAccessUplink(t *testing.T) {
	f, s := bed(func(c *Config) { c.Uplink.Mode, c.OwnUntagged = Access, false })
	f.now.port("up").members = nil
	set(t, s, "lan0", 101)
	set(t, s, "lan1", 101)
	before := f.shown()
	want := "up is an access port and carries one group at a time, and VLANs 101-102 are used"
	for name, do := range map[string]func(context.Context, string, uint16) error{"May": mayOne(s), "Set": s.Set} {
		if err := do(t.Context(), "lan2", 102); err == nil || !strings.Contains(err.Error(), want) || f.shown() != before {
			t.Errorf("%s: %v, %s; want %q", name, err, f.shown(), want)
		}
	}
	// All of them may go together, one after the other as a move does it.
	if err := s.May(t.Context(), []string{"lan0", "lan1"}, 102); err != nil || f.shown() != before {
		t.Errorf("May of both = %v, %s; want nil, and nothing changed", err, f.shown())
	}
	set(t, s, "lan0", 0)
	set(t, s, "lan1", 0)
	set(t, s, "lan2", 102)
	if got, want := f.shown(), "up: 102 untagged; lan0: none; lan1: none; lan2: 102 untagged; other: 1 untagged"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestDisturbed: what the kernel had no room or no consistent answer for is
// asked again, and not for ever.
func TestDisturbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, errno := range []error{unix.EINTR, unix.ENOBUFS} {
			for _, times := range []int{1, tries - 1, tries} {
				for _, what := range []string{"look", "up joins 101", "lan0 joins 101"} {
					f, s := bed()
					set(t, s, "lan0", 0)
					left := times
					f.fail = func(w string) error {
						if w == what && left > 0 {
							left--
							return fmt.Errorf("netlink: %w", errno)
						}
						return nil
					}
					before := f.shown()
					err := s.Set(t.Context(), "lan0", 101)
					if (err != nil) != (times == tries) || err != nil && (!errors.Is(err, errno) || !strings.Contains(err.Error(), "asked 5 times")) {
						t.Errorf("%s, %v %d times: %v", what, errno, times, err)
					}
					if err != nil && f.shown() != before {
						t.Errorf("%s, %v %d times: %s; want %s", what, errno, times, f.shown(), before)
					}
					if n := s.Stats().Retries; n != uint64(times) {
						t.Errorf("%s: %d retries; want %d", what, n, times)
					}
				}
			}
		}
	})
}

func TestEnded(t *testing.T) {
	f, s := bed()
	set(t, s, "lan0", 101)
	f.asked = nil
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Set(ended, "lan0", 102); !errors.Is(err, context.Canceled) || len(f.asked) > 0 {
		t.Errorf("with an ended context: %v, %v", err, f.asked)
	}
	s.turn <- struct{}{}
	if err := s.Set(ended, "lan0", 102); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnseen) {
		t.Errorf("while it is busy: %v", err)
	}
	<-s.turn
	no := newSwitch(s.c, func() (kernel, error) { return nil, unix.EPROTONOSUPPORT })
	if err := no.Set(t.Context(), "lan0", 101); err == nil || !strings.Contains(err.Error(), "netlink: protocol not supported") {
		t.Errorf("no netlink: %v", err)
	}
	if w := no.Warnings(); len(w) != 1 || w[0] != "switch: netlink: protocol not supported" {
		t.Errorf("warnings %q", w)
	}
}

// TestForeign: what is not ours is named, and left.
func TestForeign(t *testing.T) {
	f, s := bed()
	f.now.port("up").members = []member{{1, true, true}, {101, false, false}, {205, false, false}, {300, false, true}, {301, false, true}}
	f.now.port("other").members = []member{{102, false, false}}
	f.now.self = []member{{1, true, true}, {1103, false, false}}
	if err := s.SetAll(t.Context(), map[string]uint16{"lan0": 0, "lan1": 0, "lan2": 0}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := f.shown(), "up: 1 untagged, 205, 300-301 untagged only out; lan0: none; lan1: none; lan2: none; other: 102"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	want := []string{
		"switch: VLANs 205, 300-301 on uplink up are not ours and left alone",
		"switch: port other is a member of VLAN 102, which hosts have, and is neither a slot's port nor the uplink: it hears their devices, and is left alone",
		"switch: the controller itself is a member of VLAN 1103 on bridge br0, which hosts have: it hears their devices, and is left so",
	}
	if got := s.Warnings(); !slices.Equal(got, want) {
		t.Errorf("warnings\n%q; want\n%q", got, want)
	}
	// A host that is new: its VLAN is ours from now on.
	s.Use([]uint16{101, 102, 103, 205})
	if done, err := s.Repair(t.Context()); err != nil || len(done) != 0 {
		t.Errorf("%v, %v: the uplink is looked after again only after a pause", done, err)
	}
}

// TestRepair: what something else changes is put back, less and less often, and
// with fewer and fewer events.
func TestRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := bed()
		if err := s.SetAll(t.Context(), map[string]uint16{"lan0": 101, "lan1": 102, "lan2": 0}); err != nil {
			t.Fatal(err)
		}
		var events []string
		var at []time.Duration
		began := time.Now()
		for time.Since(began) < 10*time.Minute {
			time.Sleep(10 * time.Second)
			f.now.port("lan0").members = []member{{7, false, false}}
			f.asked = nil
			done, err := s.Repair(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range done {
				events = append(events, r.Text)
			}
			if len(f.asked) > 0 {
				at = append(at, time.Since(began))
				if got := strings.Join(f.asked, "; "); got != "lan0 leaves 7; lan0 joins 101" {
					t.Errorf("asked %q", got)
				}
			}
		}
		if want := []time.Duration{10, 20, 40, 80, 140, 200, 260, 320, 380, 440, 500, 560}; len(at) != len(want) {
			t.Errorf("repaired at %v; want %v s", at, want)
		} else {
			for i := range at {
				if at[i] != want[i]*time.Second {
					t.Errorf("repaired at %v; want %v s", at, want)
					break
				}
			}
		}
		what := "port lan0 was a member of 7; made to leave 7; made to join 101"
		want := []string{
			what,
			what,
			what + "; 2 times since the last event, 4 in all: something else manages it",
			what + "; 4 times since the last event, 8 in all: something else manages it",
		}
		if !slices.Equal(events, want) {
			t.Errorf("events %q; want %q", events, want)
		}
		if w := s.Warnings(); len(w) != 1 || !strings.Contains(w[0], "port lan0 was changed by something else 1") {
			t.Errorf("warnings %q", w)
		}
		// Left in peace, it is looked after at once again.
		set(t, s, "lan0", 101)
		time.Sleep(repairQuiet + time.Second)
		for range 2 {
			if done, err := s.Repair(t.Context()); err != nil || len(done) > 0 {
				t.Errorf("%v, %v", done, err)
			}
		}
		if w := s.Warnings(); len(w) != 0 {
			t.Errorf("warnings %q; want none any more", w)
		}
	})
}

// TestRepairFails: what can not be put back is tried less and less often, and
// what is wrong reads the same each time.
func TestRepairFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := bed()
		if err := s.SetAll(t.Context(), map[string]uint16{"lan0": 0, "lan1": 0, "lan2": 0}); err != nil {
			t.Fatal(err)
		}
		f.fail = func(what string) error {
			if strings.HasPrefix(what, "lan") {
				return unix.EIO
			}
			return nil
		}
		f.now.port("lan1").members = []member{{8, false, false}}
		asked := 0
		for i := range 12 {
			want := "lan1 leaves 8: input/output error"
			if i > 0 {
				f.now.port("lan0").members = []member{{7, false, false}}
				want = "lan0 leaves 7: input/output error; " + want
			}
			f.asked = nil
			if done, err := s.Repair(t.Context()); len(done) > 0 || err == nil || err.Error() != want {
				t.Errorf("%d: %v, %v; want %q", i, done, err, want)
			}
			asked += len(f.asked)
			time.Sleep(10 * time.Second)
		}
		if asked != 8 { // lan1 after 0, 10, 30 and 70 s, lan0 after 10, 20, 40 and 80 s
			t.Errorf("asked %d times; want 8", asked)
		}
		f.fail = nil
		time.Sleep(time.Minute)
		if done, err := s.Repair(t.Context()); len(done) != 2 || err != nil {
			t.Errorf("when it can: %v, %v; want two repairs", done, err)
		}
	})
}

// TestRepairKnowsNothing: nothing is changed for slots that nobody has spoken
// for, nor is what they may use taken from the uplink.
func TestRepairKnowsNothing(t *testing.T) {
	f, s := bed()
	f.now.port("up").members = []member{{101, false, false}, {102, false, false}}
	f.now.port("lan0").members = []member{{7, false, false}, {101, false, false}}
	before := f.shown()
	if done, err := s.Repair(t.Context()); err != nil || len(done) > 0 || f.shown() != before {
		t.Errorf("%v, %v, %s", done, err, f.shown())
	}
	// One that has no port is no reason not to look after the others.
	f.now.ports = slices.DeleteFunc(f.now.ports, func(p seenPort) bool { return p.name == "lan1" })
	set(t, s, "lan0", 101)
	f.now.port("lan0").members = nil
	done, err := s.Repair(t.Context())
	if len(done) != 1 || err == nil || err.Error() != "there is no port lan1" {
		t.Errorf("%v, %v", done, err)
	}
}
