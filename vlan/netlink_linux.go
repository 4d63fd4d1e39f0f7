package vlan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// netlinkTimeout bounds one question to the kernel.
const netlinkTimeout = 2 * time.Second

// Attributes of a bridge (linux/if_link.h).
const (
	bridgeFiltering = 7 // IFLA_BR_VLAN_FILTERING
	bridgeProtocol  = 8 // IFLA_BR_VLAN_PROTOCOL
)

// rtnetlink is the kernel by way of route netlink.
type rtnetlink struct{ socket *nl.SocketHandle }

func openKernel() (kernel, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	limit := unix.NsecToTimeval(netlinkTimeout.Nanoseconds())
	err = errors.Join(s.SetSendTimeout(&limit), s.SetReceiveTimeout(&limit))
	if err == nil {
		err = s.SetExtAck(true) // the kernel's own words, where it has some
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return rtnetlink{&nl.SocketHandle{Socket: s}}, nil
}

func (k rtnetlink) close() { k.socket.Close() }

func (k rtnetlink) ask(r *nl.NetlinkRequest, answer uint16) ([][]byte, error) {
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.socket}
	out, err := r.Execute(unix.NETLINK_ROUTE, answer)
	if errors.Is(err, unix.EAGAIN) {
		return nil, fmt.Errorf("the kernel has not answered within %v: %w", netlinkTimeout, err)
	}
	return out, err
}

// transient tells whether a question is to be asked again: a signal or a change
// came between, or the kernel had no room for the answer.
func transient(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, nl.ErrDumpInterrupted)
}

// look is that of kernel.
func (k rtnetlink) look(bridge string) (seen, error) {
	now, err := k.link(bridge)
	if err != nil || !now.found || now.kind != "bridge" {
		return now, err
	}
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	r.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	r.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(nl.RTEXT_FILTER_BRVLAN_COMPRESSED)))
	links, err := k.ask(r, unix.RTM_NEWLINK)
	if err != nil {
		return now, err
	}
	for _, m := range links {
		p, master, err := parsePort(m)
		switch {
		case err != nil:
			return now, err
		case p.index == now.index:
			now.self = p.members
		case master == now.index:
			now.ports = append(now.ports, p)
		}
	}
	return now, nil
}

// link asks for one interface.
func (k rtnetlink) link(name string) (seen, error) {
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	links, err := k.ask(r, unix.RTM_NEWLINK)
	switch {
	case errors.Is(err, unix.ENODEV):
		return seen{}, nil
	case err != nil:
		return seen{}, err
	case len(links) != 1:
		return seen{}, fmt.Errorf("%d answers about %s, want 1", len(links), name)
	}
	return parseLink(links[0])
}

// whyNot is that of kernel.
func (k rtnetlink) whyNot(bridge, port string) error {
	l, err := k.link(port)
	switch {
	case err != nil:
		return fmt.Errorf("port %s: %w", port, err)
	case !l.found:
		return fmt.Errorf("there is no port %s", port)
	}
	return fmt.Errorf("%s is no port of bridge %s; make it one: ip link set %s master %s", port, bridge, port, bridge)
}

// change is that of kernel.
func (k rtnetlink) change(c change) error {
	_, err := k.ask(changeRequest(c), 0)
	return err
}

// changeRequest is the message for a change: the VLANs of a port in ranges, all
// in one.
func changeRequest(c change) *nl.NetlinkRequest {
	kind := unix.RTM_DELLINK
	if c.join {
		kind = unix.RTM_SETLINK
	}
	r := nl.NewNetlinkRequest(kind, unix.NLM_F_ACK)
	m := nl.NewIfInfomsg(unix.AF_BRIDGE)
	m.Index = int32(c.index)
	r.AddData(m)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	for _, s := range spans(c.members) {
		flags := uint16(0)
		if s.pvid {
			flags |= nl.BRIDGE_VLAN_INFO_PVID
		}
		if s.untagged {
			flags |= nl.BRIDGE_VLAN_INFO_UNTAGGED
		}
		if s.vlan == s.last {
			spec.AddRtAttr(nl.IFLA_BRIDGE_VLAN_INFO, vlanInfo(flags, s.vlan))
			continue
		}
		spec.AddRtAttr(nl.IFLA_BRIDGE_VLAN_INFO, vlanInfo(flags|nl.BRIDGE_VLAN_INFO_RANGE_BEGIN, s.vlan))
		spec.AddRtAttr(nl.IFLA_BRIDGE_VLAN_INFO, vlanInfo(flags|nl.BRIDGE_VLAN_INFO_RANGE_END, s.last))
	}
	r.AddData(spec)
	return r
}

// vlanInfo is a struct bridge_vlan_info (linux/if_bridge.h).
func vlanInfo(flags, vlan uint16) []byte {
	b := make([]byte, 4)
	binary.NativeEndian.PutUint16(b, flags)
	binary.NativeEndian.PutUint16(b[2:], vlan)
	return b
}

// errAnswer is found in errors about what no kernel sends.
var errAnswer = errors.New("an answer of netlink that makes no sense")

// parsePort reads an answer to the question about the ports of all bridges.
func parsePort(m []byte) (p seenPort, master int, err error) {
	attrs, index, err := parseInfo(m)
	if err != nil {
		return p, 0, err
	}
	p.index = index
	for _, a := range attrs {
		switch a.kind {
		case unix.IFLA_IFNAME:
			p.name = nl.BytesToString(a.value)
		case unix.IFLA_MASTER:
			if len(a.value) == 4 {
				master = int(binary.NativeEndian.Uint32(a.value))
			}
		case unix.IFLA_AF_SPEC:
			if p.members, err = parseMembers(a.value); err != nil {
				return p, master, fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return p, master, nil
}

func parseMembers(spec []byte) ([]member, error) {
	attrs, err := parseAttrs(spec)
	if err != nil {
		return nil, err
	}
	var out []member
	first := uint16(0) // of a range that has begun
	for _, a := range attrs {
		if a.kind != nl.IFLA_BRIDGE_VLAN_INFO {
			continue
		}
		if len(a.value) < 4 {
			return nil, fmt.Errorf("%w: VLAN in %d bytes", errAnswer, len(a.value))
		}
		flags, vlan := binary.NativeEndian.Uint16(a.value), binary.NativeEndian.Uint16(a.value[2:])
		if vlan < 1 || vlan > maxVLAN {
			return nil, fmt.Errorf("%w: VLAN %d", errAnswer, vlan)
		}
		m := member{vlan, flags&nl.BRIDGE_VLAN_INFO_PVID != 0, flags&nl.BRIDGE_VLAN_INFO_UNTAGGED != 0}
		switch {
		case flags&nl.BRIDGE_VLAN_INFO_RANGE_BEGIN != 0:
			first = vlan
			continue
		case flags&nl.BRIDGE_VLAN_INFO_RANGE_END == 0:
			first = vlan
		case first == 0 || first > vlan:
			return nil, fmt.Errorf("%w: VLANs %d..%d", errAnswer, first, vlan)
		}
		for v := first; v <= vlan; v++ {
			m.vlan = v
			out = append(out, m)
		}
		first = 0
	}
	sortMembers(out)
	return out, nil
}

// parseLink reads an answer about one interface.
func parseLink(m []byte) (seen, error) {
	attrs, index, err := parseInfo(m)
	now := seen{found: true, index: index}
	if err != nil {
		return now, err
	}
	for _, a := range attrs {
		if a.kind != unix.IFLA_LINKINFO {
			continue
		}
		info, err := parseAttrs(a.value)
		if err != nil {
			return now, err
		}
		for _, i := range info {
			switch i.kind {
			case nl.IFLA_INFO_KIND:
				now.kind = nl.BytesToString(i.value)
			case nl.IFLA_INFO_DATA:
				if now.kind != "bridge" {
					continue
				}
				data, err := parseAttrs(i.value)
				if err != nil {
					return now, err
				}
				for _, d := range data {
					switch {
					case d.kind == bridgeFiltering && len(d.value) == 1:
						now.filtering = d.value[0] != 0
					case d.kind == bridgeProtocol && len(d.value) == 2:
						now.protocol = binary.BigEndian.Uint16(d.value)
					}
				}
			}
		}
	}
	return now, nil
}

type attr struct {
	kind  int
	value []byte
}

// parseInfo takes the header off a message about an interface.
func parseInfo(m []byte) (attrs []attr, index int, err error) {
	if len(m) < unix.SizeofIfInfomsg {
		return nil, 0, fmt.Errorf("%w: %d bytes", errAnswer, len(m))
	}
	index = int(int32(binary.NativeEndian.Uint32(m[4:])))
	attrs, err = parseAttrs(m[unix.SizeofIfInfomsg:])
	return attrs, index, err
}

// parseAttrs takes a list of attributes apart.
func parseAttrs(b []byte) ([]attr, error) {
	var out []attr
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return nil, fmt.Errorf("%w: attribute of %d bytes in %d", errAnswer, n, len(b))
		}
		kind := int(binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER))
		out = append(out, attr{kind, b[unix.SizeofRtAttr:n]})
		b = b[min(len(b), (n+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
	}
	return out, nil
}
