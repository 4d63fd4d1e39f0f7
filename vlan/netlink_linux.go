package vlan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// netlinkTimeout bounds one question to the kernel.
const netlinkTimeout = 2 * time.Second

// Attributes of a bridge (linux/if_link.h).
const (
	bridgeFiltering = 7  // IFLA_BR_VLAN_FILTERING
	bridgeProtocol  = 8  // IFLA_BR_VLAN_PROTOCOL
	bridgePVID      = 39 // IFLA_BR_VLAN_DEFAULT_PVID
)

// rtnetlink is the kernel by way of route netlink. It has a socket of its own
// with one buffer, since nl takes 64 KiB from the heap for each answer, and can
// not ask for many changes at once.
type rtnetlink struct {
	fd     int
	buffer []byte
}

func openKernel() (kernel, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	limit := unix.NsecToTimeval(netlinkTimeout.Nanoseconds())
	for _, err = range []error{
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1), // refusals do not repeat what was asked,
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1), // and have the kernel's own words
	} {
		if err != nil {
			return nil, errors.Join(err, unix.Close(fd))
		}
	}
	return &rtnetlink{fd, make([]byte, 64<<10)}, nil
}

func (k *rtnetlink) close() { _ = unix.Close(k.fd) }

// send sends requests in one piece. The kernel carries them out one after the
// other.
func (k *rtnetlink) send(requests ...*nl.NetlinkRequest) error {
	var b []byte
	for _, r := range requests {
		b = append(b, r.Serialize()...)
		b = append(b, make([]byte, -len(b)&(unix.NLMSG_ALIGNTO-1))...)
	}
	return late(unix.Sendto(k.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
}

// receive gives messages to each until that says that it was the last. They are
// in the buffer, which the next overwrite.
func (k *rtnetlink) receive(each func(syscall.NetlinkMessage) (last bool)) error {
	for {
		// With MSG_TRUNC n is what there was, whether there was room or not.
		n, from, err := unix.Recvfrom(k.fd, k.buffer, unix.MSG_TRUNC)
		if errors.Is(err, unix.EINTR) {
			continue // a signal; the kernel has answered already
		}
		if err != nil {
			return late(err)
		}
		if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != nl.PidKernel {
			continue
		}
		if n > len(k.buffer) {
			return fmt.Errorf("%w: %d bytes, want at most %d", errAnswer, n, len(k.buffer))
		}
		messages, err := syscall.ParseNetlinkMessage(k.buffer[:n])
		if err != nil {
			return fmt.Errorf("%w: %w", errAnswer, err)
		}
		if slices.ContainsFunc(messages, each) {
			return nil
		}
	}
}

// late says what a time-out was.
func late(err error) error {
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("the kernel has not answered within %v: %w", netlinkTimeout, err)
	}
	return err
}

// ask sends a question and gives each answer about an interface or an address to
// each.
func (k *rtnetlink) ask(r *nl.NetlinkRequest, each func([]byte) error) error {
	if err := k.send(r); err != nil {
		return err
	}
	var found error
	interrupted := false
	err := k.receive(func(m syscall.NetlinkMessage) (last bool) {
		if m.Header.Seq != r.Seq {
			return false // of a question that was given up
		}
		interrupted = interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
		switch m.Header.Type {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			if err := refusal(m); err != nil {
				found = err
			}
			return true
		case unix.RTM_NEWLINK, unix.RTM_NEWADDR:
			if err := each(m.Data); err != nil && found == nil {
				found = err
			}
		}
		return m.Header.Flags&unix.NLM_F_MULTI == 0
	})
	if err == nil && interrupted {
		err = nl.ErrDumpInterrupted
	}
	if err == nil {
		err = found
	}
	return err
}

// refusal is the error in a message that ends an answer; nil = none.
func refusal(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		if m.Header.Type == unix.NLMSG_DONE {
			return nil
		}
		return fmt.Errorf("%w: refusal of %d bytes", errAnswer, len(m.Data))
	}
	n := int32(binary.NativeEndian.Uint32(m.Data))
	if n == 0 {
		return nil
	}
	var err error = unix.Errno(-n)
	const head = 4 + unix.SizeofNlMsghdr // the number and, with CAP_ACK, the request's header
	if m.Header.Flags&unix.NLM_F_ACK_TLVS != 0 && m.Header.Flags&unix.NLM_F_CAPPED != 0 && len(m.Data) > head {
		attrs, _ := parseAttrs(m.Data[head:]) // words, nothing else hangs on them
		for _, a := range attrs {
			if a.kind == unix.NLMSGERR_ATTR_MSG {
				err = fmt.Errorf("%w: %s", err, text(a.value))
			}
		}
	}
	return err
}

// transient tells whether a question is to be asked again: a signal or a change
// came between, or the kernel had no room for the answer.
func transient(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, nl.ErrDumpInterrupted)
}

// look is that of kernel.
func (k *rtnetlink) look(bridge string) (seen, error) {
	now, err := k.link(bridge)
	if err != nil || !now.found || now.kind != "bridge" {
		return now, err
	}
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	r.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	r.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(nl.RTEXT_FILTER_BRVLAN_COMPRESSED)))
	return now, k.ask(r, func(m []byte) error {
		p, master, err := parsePort(m)
		switch {
		case err != nil:
			return err
		case p.index == now.index:
			now.self = p.members
		case master == now.index:
			now.ports = append(now.ports, p)
		}
		return nil
	})
}

// link asks for one interface.
func (k *rtnetlink) link(name string) (seen, error) {
	var l seen
	err := k.ask(linkQuestion(name), func(m []byte) (err error) {
		l, err = parseLink(m)
		return err
	})
	if errors.Is(err, unix.ENODEV) {
		return seen{}, nil
	}
	return l, err
}

func linkQuestion(name string) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return r
}

// whyNot is that of kernel.
func (k *rtnetlink) whyNot(bridge, port string) error {
	l, err := k.link(port)
	switch {
	case err != nil:
		return fmt.Errorf("port %s: %w", port, err)
	case !l.found:
		return fmt.Errorf("there is no port %s", port)
	}
	return fmt.Errorf("%s is no port of bridge %s; make it one: ip link set %s master %s", port, bridge, port, bridge)
}

// nic is that of kernel.
func (k *rtnetlink) nic(name string) (nic, error) {
	var n nic
	err := k.ask(linkQuestion(name), func(m []byte) error {
		attrs, index, err := parseInfo(m)
		n.found, n.index = true, index
		for _, a := range attrs {
			if a.kind == unix.IFLA_MASTER && len(a.value) == 4 {
				n.master = int(binary.NativeEndian.Uint32(a.value))
			}
		}
		return err
	})
	if errors.Is(err, unix.ENODEV) {
		return nic{}, nil
	}
	if err != nil {
		return n, err
	}
	r := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	r.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
	return n, k.ask(r, func(m []byte) error {
		index, address, err := parseAddress(m)
		if err == nil && index == n.index && address != "" {
			n.address = address
		}
		return err
	})
}

// parseAddress reads an answer about an address; "" = one that the kernel gives
// to every interface by itself.
func parseAddress(m []byte) (index int, address string, err error) {
	if len(m) < unix.SizeofIfAddrmsg {
		return 0, "", fmt.Errorf("%w: address in %d bytes", errAnswer, len(m))
	}
	index = int(binary.NativeEndian.Uint32(m[4:]))
	if m[0] == unix.AF_INET6 && m[3] == unix.RT_SCOPE_LINK {
		return index, "", nil
	}
	attrs, err := parseAttrs(m[unix.SizeofIfAddrmsg:])
	for _, a := range attrs {
		ip, ok := netip.AddrFromSlice(a.value)
		if ok && (a.kind == unix.IFA_LOCAL || a.kind == unix.IFA_ADDRESS && address == "") {
			address = fmt.Sprintf("%v/%d", ip, m[1])
		}
	}
	if err == nil && address == "" {
		err = fmt.Errorf("%w: no address", errAnswer)
	}
	return index, address, err
}

// create is that of kernel.
func (k *rtnetlink) create(bridge string) error {
	err := k.tell(createRequest(bridge))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("the kernel can make none (%w): its module bridge is not loaded yet, or it was built without CONFIG_BRIDGE or CONFIG_BRIDGE_VLAN_FILTERING; it is tried again", err)
	}
	return err
}

func createRequest(bridge string) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(bridge)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(bridgeFiltering, nl.Uint8Attr(1))
	data.AddRtAttr(bridgePVID, nl.Uint16Attr(0))
	r.AddData(info)
	return r
}

// enslave is that of kernel.
func (k *rtnetlink) enslave(index, bridge int) error {
	r := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(index)
	r.AddData(m)
	r.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(bridge))))
	return k.tell(r)
}

// raise is that of kernel.
func (k *rtnetlink) raise(index int) error {
	r := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index, m.Flags, m.Change = int32(index), unix.IFF_UP, unix.IFF_UP
	r.AddData(m)
	return k.tell(r)
}

// tell has one thing done.
func (k *rtnetlink) tell(r *nl.NetlinkRequest) error {
	r.Flags |= unix.NLM_F_ACK
	return k.ask(r, func([]byte) error { return nil })
}

func exists(err error) bool { return errors.Is(err, unix.EEXIST) }
func gone(err error) bool   { return errors.Is(err, unix.ENODEV) }

// change is that of kernel.
func (k *rtnetlink) change(changes []change) []error {
	out := make([]error, 0, len(changes))
	for len(changes) > 0 {
		n, size := 0, 0
		for n < min(len(changes), together) {
			size += 64 + 16*len(spans(changes[n].members))
			if n > 0 && size > togetherBytes {
				break
			}
			n++
		}
		out = append(out, k.some(changes[:n])...)
		changes = changes[n:]
	}
	return out
}

// Changes are sent in pieces of at most this many, so that refusals of all of
// them have room in the socket, and of this length unless it is one. Most are of
// 44 bytes.
const (
	together      = 64
	togetherBytes = 32 << 10
)

// some asks for changes in one piece. Only the last is acknowledged: of the
// others the kernel tells only what went wrong, and does so before.
func (k *rtnetlink) some(changes []change) []error {
	errs := make([]error, len(changes))
	requests := make([]*nl.NetlinkRequest, len(changes))
	of := map[uint32]int{}
	for i, c := range changes {
		requests[i] = changeRequest(c)
		of[requests[i].Seq] = i
	}
	last := len(changes) - 1
	requests[last].Flags |= unix.NLM_F_ACK
	err := k.send(requests...)
	if err == nil {
		err = k.receive(func(m syscall.NetlinkMessage) bool {
			i, ours := of[m.Header.Seq]
			if !ours || m.Header.Type != unix.NLMSG_ERROR {
				return false
			}
			errs[i] = refusal(m)
			return i == last
		})
	}
	for i := range errs {
		if errs[i] == nil {
			errs[i] = err // if there is one nobody knows which were carried out
		}
	}
	return errs
}

// changeRequest is the message for a change: the VLANs of a port in ranges, all
// in one.
func changeRequest(c change) *nl.NetlinkRequest {
	kind := unix.RTM_DELLINK
	if c.join {
		kind = unix.RTM_SETLINK
	}
	r := nl.NewNetlinkRequest(kind, 0)
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
			p.name = text(a.value)
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
				now.kind = text(i.value)
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
					case d.kind == bridgePVID && len(d.value) == 2:
						now.pvid = binary.NativeEndian.Uint16(d.value)
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

// text is a string that ends with a zero, or with the attribute.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
