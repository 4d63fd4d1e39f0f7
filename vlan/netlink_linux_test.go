package vlan

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMessage pins the bytes that a change is sent as (linux/netlink.h,
// linux/rtnetlink.h, linux/if_bridge.h), on a little-endian machine.
func TestMessage(t *testing.T) {
	for _, tt := range []struct {
		c    change
		want string
	}{
		{change{"lan3", 7, true, []member{{vlan: 101}}},
			// length 44, RTM_SETLINK, REQUEST, sequence 0; AF_BRIDGE, index 7
			"2c000000 1300 0100 00000000 00000000" + "07 00 0000 07000000 00000000 00000000" +
				// IFLA_AF_SPEC of 12; IFLA_BRIDGE_VLAN_INFO of 8: no flags, 101
				"0c00 1a00" + "0800 0200 0000 6500"},
		{change{"lan3", 258, true, []member{{102, true, true}}},
			"2c000000 1300 0100 00000000 00000000" + "07 00 0000 02010000 00000000 00000000" + "0c00 1a00" + "0800 0200 0600 6600"},
		{change{"lan3", 7, false, []member{{1, true, true}, {vlan: 7}, {vlan: 8}, {vlan: 9}, {vlan: 4094}}},
			// RTM_DELLINK; 1, the range 7..9, 4094
			"44000000 1100 0100 00000000 00000000" + "07 00 0000 07000000 00000000 00000000" +
				"2400 1a00" + "0800 0200 0600 0100" + "0800 0200 0800 0700" + "0800 0200 1000 0900" + "0800 0200 0000 fe0f"},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(tt.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		r := changeRequest(tt.c)
		r.Seq = 0
		if got := r.Serialize(); !bytes.Equal(got, want) {
			t.Errorf("%v:\n got %x\nwant %x", tt.c, got, want)
		}
	}
}

// A bridge's port as Debian's 6.1 kernel answered: lan1, a port of interface 3,
// in VLANs 1 untagged, 101 and 205 to 210.
const portAnswer = "07000100050000004310010000000000" + // AF_BRIDGE, ARPHRD_ETHER, index 5
	"09000300" + "6c616e31" + "00000000" + // IFLA_IFNAME
	"08000a0003000000" + // IFLA_MASTER
	"24001a00" + "08000200" + "06000100" + "08000200" + "00006500" + "08000200" + "0800cd00" + "08000200" + "1000d200"

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAnswer(t *testing.T) {
	p, master, err := parsePort(unhex(t, portAnswer))
	if err != nil || p.name != "lan1" || p.index != 5 || master != 3 {
		t.Errorf("parsePort = %q %d of %d, %v; want lan1 5 of 3", p.name, p.index, master, err)
	}
	if got, want := list(p.members), "1 untagged, 101, 205-210"; got != want {
		t.Errorf("members %q; want %q", got, want)
	}
	for name, spec := range map[string]string{
		"short":               "0700020000006500",
		"attribute too long":  "0900020000006500",
		"attribute too short": "0300020000006500",
		"VLAN in 2 bytes":     "06000200" + "00000000",
		"VLAN 0":              "0800020000000000",
		"VLAN 4095":           "080002000000ff0f",
		"end without begin":   "080002001000d200",
		"backwards":           "080002000800d200" + "080002001000cd00",
	} {
		if m, err := parseMembers(unhex(t, spec)); !errors.Is(err, errAnswer) && name != "short" {
			t.Errorf("%s: %v, %v; want errAnswer", name, m, err)
		}
	}
	if _, err := parseLink([]byte{1, 2, 3}); !errors.Is(err, errAnswer) {
		t.Errorf("three bytes: %v", err)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(unhex(f, portAnswer))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, _, err := parsePort(b)
		if err != nil {
			return
		}
		_, _ = parseLink(b)
		for i, m := range p.members {
			if m.vlan < 1 || m.vlan > maxVLAN {
				t.Fatalf("VLAN %d", m.vlan)
			}
			if i > 0 && p.members[i-1].vlan > m.vlan {
				t.Fatalf("%v is not ascending", p.members)
			}
		}
	})
}

// TestRefusals: of many changes sent at once each has its own answer. The kernel
// of this machine, whatever it can do, refuses them all.
func TestRefusals(t *testing.T) {
	k, err := openKernel()
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	var changes []change
	for i := range 3*together - 1 {
		changes = append(changes, change{"nosuch", 1 << 20, i%2 == 0, []member{{vlan: 101}}})
	}
	var odd []member // what fits into no piece together with others
	for v := uint16(2); v < maxVLAN; v += 2 {
		odd = append(odd, member{vlan: v})
	}
	for range 3 {
		changes = append(changes, change{"nosuch", 1 << 20, false, odd})
	}
	want := unix.ENODEV
	if unix.Geteuid() != 0 {
		want = unix.EPERM
	}
	errs := k.change(changes)
	if len(errs) != len(changes) {
		t.Fatalf("%d answers to %d changes", len(errs), len(changes))
	}
	for i, err := range errs {
		if !errors.Is(err, want) {
			t.Errorf("change %d: %v; want %v", i, err, want)
		}
	}
	if now, err := k.look("lo"); err != nil || !now.found {
		t.Errorf("look afterwards = %v, %v", now, err)
	}
}

// TestNoBridge asks the kernel of this machine, whatever it can do, about an
// interface that is not there and one that is no bridge.
func TestNoBridge(t *testing.T) {
	for bridge, want := range map[string]string{"nosuch0": "there is no bridge nosuch0", "lo": "lo is no bridge"} {
		s := New(Config{Bridge: bridge, Uplink: Port{Name: "up"}, Ports: []Port{{Name: "lan0"}}, Groups: []uint16{101}})
		err := s.Set(t.Context(), "lan0", 101)
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, ErrUnseen) {
			t.Errorf("%s: %v; want %q", bridge, err, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, err := range []error{unix.EINTR, unix.ENOBUFS} {
		if !transient(err) {
			t.Errorf("%v is not asked again", err)
		}
	}
	if transient(unix.EAGAIN) || transient(unix.EPERM) {
		t.Error("what takes seconds, or will not change, is asked again")
	}
}

// TestCreate pins the bytes of the message that makes a bridge, on a
// little-endian machine: that it filters, and its PVID, are in it.
func TestCreate(t *testing.T) {
	want := unhex(t, strings.ReplaceAll(
		// length 76, RTM_NEWLINK, REQUEST CREATE EXCL, sequence 0; AF_UNSPEC
		"4c000000 1000 0106 00000000 00000000"+"00 00 0000 00000000 00000000 00000000"+
			"0800 0300 62723000"+ // IFLA_IFNAME "br0"
			// IFLA_LINKINFO: INFO_KIND "bridge"; INFO_DATA: VLAN_FILTERING 1, VLAN_DEFAULT_PVID 0
			"2400 1200"+"0a00 0100 627269646765 0000"+"1400 0200"+"0500 0700 01000000"+"0600 2700 00000000", " ", ""))
	r := createRequest("br0")
	r.Seq = 0
	if got := r.Serialize(); !bytes.Equal(got, want) {
		t.Errorf("\n got %x\nwant %x", got, want)
	}
}

func TestAddress(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"IPv4":                  {"02188000 03000000" + "08000100 c0000201" + "08000200 c0000209", "192.0.2.9/24"},
		"IPv6":                  {"0a400000 03000000" + "14000100 20010db8000000000000000000000001", "2001:db8::1/64"},
		"what every nic has":    {"0a4080fd 03000000" + "14000100 fe800000000000000000000000000001", ""},
		"IPv4 that is of links": {"021080fd 03000000" + "08000100 a9fe0101", "169.254.1.1/16"},
	} {
		index, got, err := parseAddress(unhex(t, strings.ReplaceAll(tt.in, " ", "")))
		if index != 3 || got != tt.want || err != nil {
			t.Errorf("%s: %d %q, %v; want 3 %q", name, index, got, err, tt.want)
		}
	}
	for _, in := range []string{"", "02188000", "02188000 03000000", "02188000 03000000 0900"} {
		if _, got, err := parseAddress(unhex(t, strings.ReplaceAll(in, " ", ""))); !errors.Is(err, errAnswer) {
			t.Errorf("%q: %q, %v; want errAnswer", in, got, err)
		}
	}
}

// TestLoopback: this machine's kernel tells of lo's address, and of nothing.
func TestLoopback(t *testing.T) {
	k, err := openKernel()
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	if n, err := k.nic("lo"); err != nil || !n.found || n.index != 1 || n.master != 0 {
		t.Errorf("lo: %+v, %v", n, err)
	}
	if n, err := k.nic("nosuch0"); err != nil || n.found {
		t.Errorf("nosuch0: %+v, %v", n, err)
	}
}
