package station

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inNamespace runs f in a network namespace of its own, with an interface eth0
// that is one end of a pair. The thread is not used for anything else again.
func inNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs a network namespace of its own: run it as root, or where the kernel lets users make namespaces")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for ever: the thread goes with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("the kernel makes no network namespace: %v", err)
			return
		}
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "far"}
		if err := netlink.LinkAdd(pair); err != nil {
			t.Errorf("the kernel makes no veth: %v", err)
			return
		}
		f(t)
	}()
	<-done
}

// bed is a Station in a namespace.
type bed struct {
	t *testing.T
	s *Station
}

func (b bed) look() seen {
	now, err := b.s.kernel.look()
	if err != nil {
		b.t.Errorf("look: %v", err)
	}
	return now
}

func (b bed) apply(want *Network) bool {
	b.t.Helper()
	if err := b.s.Apply(b.t.Context(), want); err != nil {
		b.t.Errorf("%v: %v", want, err)
		return false
	}
	return true
}

// check fails the test unless link has exactly these addresses, those of the
// link itself apart, and the default routes are these.
func (b bed) check(name string, addresses []string, routes ...string) {
	b.t.Helper()
	now := b.look()
	var have []string
	if l := now.link(name); l != nil {
		for _, a := range l.addresses {
			if !a.Addr().IsLinkLocalUnicast() {
				have = append(have, a.String())
			}
		}
		if !l.up {
			b.t.Errorf("%s is off", name)
		}
	} else {
		b.t.Errorf("there is no %s", name)
	}
	if !slices.Equal(have, addresses) {
		b.t.Errorf("%s has %v; want %v", name, have, addresses)
	}
	var ways []string
	for _, r := range now.routes {
		ways = append(ways, fmt.Sprintf("%s %s", r.gateway, now.nameOf(r.index)))
	}
	if !slices.Equal(ways, routes) {
		b.t.Errorf("default routes %v; want %v", ways, routes)
	}
}

func TestKernel(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "network")
		bench := bed{t, New(file)}
		apply, check := bench.apply, bench.check

		a := network("eth0", "192.0.2.10/24", "192.0.2.1", 0)
		if !apply(&a) {
			return
		}
		check("eth0", []string{"192.0.2.10/24"}, "192.0.2.1 eth0")
		// Of the same network: the kernel takes it away with the first address,
		// unless it promotes secondaries.
		b := network("eth0", "192.0.2.11/24", "192.0.2.1", 0)
		apply(&b)
		check("eth0", []string{"192.0.2.11/24"}, "192.0.2.1 eth0")
		six := network("eth0", "2001:db8::10/64", "2001:db8::1", 0)
		apply(&six)
		check("eth0", []string{"2001:db8::10/64"}, "2001:db8::1 eth0")
		// Another process, after this one was killed, and an address of somebody
		// else's that stays.
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Error(err)
			return
		}
		other, err := netlink.ParseAddr("198.51.100.5/24")
		if err == nil {
			err = netlink.AddrAdd(eth0, other)
		}
		if err != nil {
			t.Error(err)
			return
		}
		*bench.s = *New(file)
		apply(&a)
		check("eth0", []string{"198.51.100.5/24", "192.0.2.10/24"}, "192.0.2.1 eth0")
		apply(nil)
		check("eth0", []string{"198.51.100.5/24"})

		// What the kernel refuses is said, with what it says.
		far := network("eth0", "192.0.2.10/24", "203.0.113.1", 0)
		if err := bench.s.Apply(t.Context(), &far); err == nil {
			t.Error("a gateway that can not be reached was set")
		} else {
			t.Logf("the kernel's words: %v", err)
		}
		apply(nil)
		check("eth0", []string{"198.51.100.5/24"})
	})
}

// TestKernelVLAN: where the kernel knows no VLANs, that is said, and what was
// set before is left.
func TestKernelVLAN(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		b := bed{t, New(filepath.Join(t.TempDir(), "network"))}
		a, tagged := network("eth0", "192.0.2.10/24", "192.0.2.1", 0), network("eth0", "192.0.2.20/24", "192.0.2.2", 100)
		if !b.apply(&a) {
			return
		}
		err := b.s.Apply(t.Context(), &tagged)
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Logf("this kernel has no 8021q: %v", err)
			if want := "make eth0.100 for VLAN 100: operation not supported"; err.Error() != want {
				t.Errorf("error %q; want %q", err, want)
			}
			b.check("eth0", []string{"192.0.2.10/24"}, "192.0.2.1 eth0")
			b.apply(&a)
			b.check("eth0", []string{"192.0.2.10/24"}, "192.0.2.1 eth0")
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		b.check("eth0.100", []string{"192.0.2.20/24"}, "192.0.2.2 eth0.100")
		b.check("eth0", nil, "192.0.2.2 eth0.100")
		if l := b.look().link("eth0.100"); l == nil || l.vlan != 100 || l.parent != b.look().link("eth0").index {
			t.Errorf("eth0.100 is %+v", l)
		}
		b.apply(&a)
		b.check("eth0", []string{"192.0.2.10/24"}, "192.0.2.1 eth0")
		if l := b.look().link("eth0.100"); l != nil {
			t.Errorf("eth0.100 is left: %+v", l)
		}
	})
}

// TestOthersSecondary: the kernel takes secondary addresses away with the first
// of their network; those of others come back.
func TestOthersSecondary(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		b := bed{t, New(filepath.Join(t.TempDir(), "network"))}
		a := network("eth0", "192.0.2.10/24", "192.0.2.1", 0)
		if !b.apply(&a) {
			return
		}
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Error(err)
			return
		}
		other, _ := netlink.ParseAddr("192.0.2.50/24")
		if err := netlink.AddrAdd(eth0, other); err != nil {
			t.Error(err)
			return
		}
		c := network("eth0", "192.0.2.11/24", "192.0.2.1", 0)
		b.apply(&c)
		b.check("eth0", []string{"192.0.2.50/24", "192.0.2.11/24"}, "192.0.2.1 eth0")
		b.apply(nil)
		b.check("eth0", []string{"192.0.2.50/24"})
	})
}

// TestLateInterface: eth0 comes after the agent.
func TestLateInterface(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		eth0, _ := netlink.LinkByName("eth0")
		if err := netlink.LinkDel(eth0); err != nil {
			t.Error(err)
			return
		}
		file := filepath.Join(t.TempDir(), "network")
		b := bed{t, New(file)}
		six := network("eth0", "2001:db8::10/64", "2001:db8::1", 0)
		for range 3 {
			if err := b.s.Apply(t.Context(), &six); err == nil {
				t.Error("set on nothing")
			} else {
				t.Log(err)
			}
		}
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "far"}
		if err := netlink.LinkAdd(pair); err != nil {
			t.Error(err)
			return
		}
		b.apply(&six)
		b.check("eth0", []string{"2001:db8::10/64"}, "2001:db8::1 eth0")
	})
}
