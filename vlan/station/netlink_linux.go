package station

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// netlinkTimeout bounds one question to the kernel.
const netlinkTimeout = 2 * time.Second

// rtnetlink is the kernel by way of route netlink.
type rtnetlink struct{ h *netlink.Handle }

func openKernel() (kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	if err := h.SetSocketTimeout(netlinkTimeout); err != nil {
		h.Close()
		return nil, err
	}
	return rtnetlink{h}, nil
}

func (k rtnetlink) look() (seen, error) {
	var now seen
	links, err := dump(k.h.LinkList, netlink.ErrDumpInterrupted)
	if err != nil {
		return now, fmt.Errorf("listing interfaces: %w", err)
	}
	at := map[int]int{}
	for _, l := range links {
		a := l.Attrs()
		out := link{name: a.Name, index: a.Index, up: a.Flags&net.FlagUp != 0}
		if v, ok := l.(*netlink.Vlan); ok {
			out.parent, out.vlan = a.ParentIndex, uint16(v.VlanId)
		}
		at[a.Index] = len(now.links)
		now.links = append(now.links, out)
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return k.h.AddrList(nil, netlink.FAMILY_ALL) }, netlink.ErrDumpInterrupted)
	if err != nil {
		return now, fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range addrs {
		if i, ok := at[a.LinkIndex]; ok {
			now.links[i].addresses = append(now.links[i].addresses, prefixOf(a.IPNet))
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(func() ([]netlink.Route, error) {
			return k.h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		}, netlink.ErrDumpInterrupted)
		if err != nil {
			return now, fmt.Errorf("listing routes: %w", err)
		}
		for _, r := range routes {
			gw, ok := netip.AddrFromSlice(r.Gw)
			if bits := 0; r.Dst != nil {
				if bits, _ = r.Dst.Mask.Size(); bits != 0 {
					continue
				}
			}
			if ok {
				now.routes = append(now.routes, route{r.LinkIndex, gw.Unmap()})
			}
		}
	}
	return now, nil
}

func prefixOf(n *net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}

func (k rtnetlink) do(s step) error {
	on := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: s.index, Name: s.name}}
	switch s.op {
	case makeLink:
		return k.h.LinkAdd(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: s.name, ParentIndex: s.index}, VlanId: int(s.vlan), VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
	case raiseLink:
		return k.h.LinkSetUp(on)
	case dropLink:
		return k.h.LinkDel(on)
	case addAddress, dropAddress:
		a := &netlink.Addr{IPNet: &net.IPNet{IP: s.address.Addr().AsSlice(), Mask: net.CIDRMask(s.address.Bits(), s.address.Addr().BitLen())}}
		if s.op == addAddress {
			return k.h.AddrAdd(on, a)
		}
		return k.h.AddrDel(on, a)
	}
	family := netlink.FAMILY_V4
	if s.gateway.Is6() {
		family = netlink.FAMILY_V6
	}
	r := &netlink.Route{LinkIndex: s.index, Gw: s.gateway.AsSlice(), Family: family, Table: unix.RT_TABLE_MAIN}
	if s.op == addRoute {
		r.Protocol = unix.RTPROT_STATIC
		return k.h.RouteAdd(r)
	}
	return k.h.RouteDel(r)
}
