//go:build vm

package vlanvm

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"baton/vlan"
)

// witness is the switch that the enclosure is given: the real one, and a note
// of when which port was a member of what.
type witness struct {
	*vlan.Switch
	t     *testing.T
	group map[uint16]uint16       // -> VLAN
	idle  func(port string) error // an error unless the slot's link is off
	mu    sync.Mutex
	of    map[string][]*stay // by port
}

// stay is the time of a port in a VLAN: it began between the first two, and
// ended between the last two; 0 = not yet.
type stay struct {
	vlan                          uint16
	joins, joined, leaves, leaved time.Duration
}

func (w *witness) Set(ctx context.Context, port string, group uint16) error {
	v := w.vlan(group)
	w.mu.Lock()
	var last *stay
	if l := w.of[port]; len(l) > 0 && l[len(l)-1].leaved == 0 {
		last = l[len(l)-1]
	}
	w.mu.Unlock()
	if (last == nil && v == 0) || last != nil && last.vlan == v {
		return w.Switch.Set(ctx, port, group)
	}
	if w.idle != nil {
		if err := w.idle(port); err != nil {
			w.t.Errorf("port %s changes its VLAN: %v", port, err)
		}
	}
	if last != nil {
		last.leaves = now()
	}
	next := &stay{vlan: v, joins: now()}
	err := w.Switch.Set(ctx, port, group)
	if err != nil {
		w.t.Errorf("Set(%s, %d): %v", port, group, err)
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if last != nil {
		last.leaved = now()
	}
	if v != 0 {
		next.joined = now()
		w.of[port] = append(w.of[port], next)
	}
	return nil
}

func (w *witness) vlan(group uint16) uint16 {
	if v, ok := w.group[group]; ok {
		return v
	}
	return group
}

// late is how long a frame that was sent may wait before the bridge sees it.
const late = 100 * time.Millisecond

// may tells whether a frame sent at s may pass port in VLAN v.
func (w *witness) may(port string, v uint16, s stamp) bool {
	for _, x := range w.of[port] {
		if x.vlan == v && s.after+late >= x.joins && (x.leaved == 0 || s.before <= x.leaved) {
			return true
		}
	}
	return false
}

// does tells whether it must.
func (w *witness) does(port string, v uint16, s stamp) bool {
	for _, x := range w.of[port] {
		if x.vlan == v && s.before >= x.joined && (x.leaves == 0 || s.after+late < x.leaves) {
			return true
		}
	}
	return false
}

// fabric is what frames are judged by.
type fabric struct {
	w      *witness
	port   map[string]string // station -> its port, "" = not a slot's
	access map[string]bool   // port
}

// vlans are those that a frame of f can be of: that of its tag; without one
// that of an access port, whichever it has at the time.
func (f fabric) vlans(s *stream) []uint16 {
	port := f.port[s.from.name]
	if s.tag != 0 {
		return []uint16{s.tag}
	}
	if !f.access[port] {
		return nil
	}
	var out []uint16
	for _, v := range f.w.of[port] {
		out = append(out, v.vlan)
	}
	return out
}

// passes judges one port by how: may, or does. The uplink has what any of the
// slots' ports has.
func (f fabric) passes(name string, v uint16, s stamp, how func(string, uint16, stamp) bool) bool {
	if port := f.port[name]; port != "" {
		return how(port, v, s)
	}
	for _, port := range f.port {
		if port != "" && how(port, v, s) {
			return true
		}
	}
	return false
}

// verdict of all that was sent and heard.
type verdict struct{ sent, heard, due, wrong, missing int }

func (v verdict) String() string {
	return fmt.Sprintf("%d frames sent, heard %d times, %d of them due; %d heard by others, %d missing", v.sent, v.heard, v.due, v.wrong, v.missing)
}

// judge compares what was heard with who was a member of what. Untagged frames
// of the servers and of the controller are the controller's own network's, and
// judged by own.
func (f fabric) judge(t *testing.T, all []*station, skip func(*station) bool) (sum verdict) {
	t.Helper()
	type key struct {
		to, from byte
		tag      uint16
		seq      uint32
	}
	got := map[key]uint16{}
	for _, st := range all {
		for _, h := range st.heard {
			got[key{st.id, h.from, h.tag, h.seq}] = h.wire
			sum.heard++
		}
	}
	complain := func(n *int, format string, args ...any) {
		if *n++; *n <= 5 {
			t.Errorf(format, args...)
		}
	}
	for _, from := range all {
		for _, str := range from.streams {
			sum.sent += len(str.sent)
			for _, to := range all {
				if to == from || skip(to) || skip(from) || f.port[from.name] == "" && str.tag == 0 {
					continue
				}
				for seq, s := range str.sent {
					may, must := false, false
					var of uint16
					for _, v := range f.vlans(str) {
						if f.passes(from.name, v, s, f.w.may) && f.passes(to.name, v, s, f.w.may) {
							may = true
						}
						if f.passes(from.name, v, s, f.w.does) && f.passes(to.name, v, s, f.w.does) {
							must, of = true, v
						}
					}
					wire, was := got[key{to.id, from.id, str.tag, uint32(seq)}]
					switch {
					case was && !may:
						complain(&sum.wrong, "%s heard frame %d of %s, tag %d, sent at %v..%v, and is not in its group", to.name, seq, from.name, str.tag, s.before, s.after)
					case must && !was:
						complain(&sum.missing, "%s has not heard frame %d of %s, tag %d, sent at %v..%v", to.name, seq, from.name, str.tag, s.before, s.after)
					case must:
						sum.due++
						want := of
						if f.access[f.port[to.name]] {
							want = 0
						}
						if wire != want {
							complain(&sum.wrong, "%s heard frame %d of %s with tag %d; want %d", to.name, seq, from.name, wire, want)
						}
					}
				}
			}
		}
	}
	return sum
}
