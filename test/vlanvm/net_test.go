//go:build vm

package vlanvm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Interfaces of the VM: ports of br0, and the far end of each, which is an
// engine, or the servers behind the uplink.
const (
	bridge = "br0"
	uplink = "up0"
	far    = "srv"
)

var lan = []string{"lan0", "lan1", "lan2", "lan3"}

func engine(i int) string { return fmt.Sprintf("eng%d", i) }

// plug makes a bridge that filters VLANs, with its ports as they are at first:
// all in VLAN 1, untagged.
func plug(t *testing.T) {
	t.Helper()
	unplug(t)
	on := true
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}, VlanFiltering: &on}
	must(t, netlink.LinkAdd(br))
	must(t, netlink.LinkSetUp(br))
	for i, p := range lan {
		pair(t, p, engine(i))
		master(t, p, bridge)
	}
	pair(t, uplink, far)
	master(t, uplink, bridge)
	t.Cleanup(func() { unplug(t) })
}

func unplug(t *testing.T) {
	t.Helper()
	for _, name := range append([]string{bridge, "br1", uplink, "lan9"}, lan...) {
		if l, err := netlink.LinkByName(name); err == nil {
			must(t, netlink.LinkDel(l))
		}
	}
}

func pair(t *testing.T, a, b string) {
	t.Helper()
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a}, PeerName: b}))
	for _, name := range []string{a, b} {
		must(t, netlink.LinkSetUp(link(t, name)))
	}
}

func master(t *testing.T, port, of string) {
	t.Helper()
	must(t, netlink.LinkSetMaster(link(t, port), link(t, of)))
}

func link(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// members is what the kernel says of a port, read by another program's way
// than that under test: one entry a VLAN.
func members(t *testing.T, port string) string {
	t.Helper()
	var all map[int32][]string
	for range 20 {
		list, err := netlink.BridgeVlanList()
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		must(t, err)
		all = map[int32][]string{}
		for index, infos := range list {
			for _, v := range infos {
				text := fmt.Sprint(v.Vid)
				if v.PortVID() {
					text += "p"
				}
				if v.EngressUntag() {
					text += "u"
				}
				all[index] = append(all[index], text)
			}
		}
		break
	}
	return fmt.Sprint(all[int32(link(t, port).Attrs().Index)])
}

// typeTest is the EtherType of the frames here (IEEE 802, local experimental).
const typeTest = 0x88B5

// station sends and receives frames on an interface.
type station struct {
	name string
	id   byte
	fd   int

	mu      sync.Mutex
	heard   []heard
	streams []*stream
}

// stream is what a station sends with one tag.
type stream struct {
	from *station
	tag  uint16 // 0 = none
	sent []stamp
}

// stamp is when a frame was sent: between the two.
type stamp struct{ before, after time.Duration }

type heard struct {
	from byte
	tag  uint16 // that it was sent with
	seq  uint32
	wire uint16 // tag that it came with
}

var began = time.Now()

func now() time.Duration { return time.Since(began) }

// stations are all that send and receive in a test.
type stations struct {
	t    *testing.T
	all  []*station
	stop atomic.Bool
	done sync.WaitGroup
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// add makes a station that sends with each of these tags, every pause.
func (s *stations) add(name string, tags ...uint16) *station {
	s.t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
	must(s.t, err)
	must(s.t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1))
	must(s.t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
	limit := unix.NsecToTimeval(int64(50 * time.Millisecond))
	must(s.t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	must(s.t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: link(s.t, name).Attrs().Index}))
	st := &station{name: name, id: byte(len(s.all)), fd: fd}
	for _, tag := range tags {
		st.streams = append(st.streams, &stream{from: st, tag: tag})
	}
	s.all = append(s.all, st)
	s.t.Cleanup(func() {
		s.end() // a test that gave up has not
		unix.Close(fd)
	})
	return st
}

// sendEvery is the time between two frames of a stream.
const sendEvery = 10 * time.Millisecond

func (s *stations) start() {
	for _, st := range s.all {
		s.done.Go(func() { s.listen(st) })
		s.done.Go(func() { s.talk(st) })
	}
}

// filter has a bridge filter VLANs, or not.
func filter(t *testing.T, bridge string, on string) {
	t.Helper()
	must(t, os.WriteFile("/sys/class/net/"+bridge+"/bridge/vlan_filtering", []byte(on), 0o644))
}

// end stops sending, lets what is under way arrive, and stops.
func (s *stations) end() {
	s.stop.Store(true)
	s.done.Wait()
}

func (s *stations) talk(st *station) {
	tick := time.NewTicker(sendEvery)
	defer tick.Stop()
	for !s.stop.Load() {
		for _, f := range st.streams {
			frame := f.frame()
			before := now()
			_, err := unix.Write(st.fd, frame)
			if err != nil {
				s.t.Errorf("%s: send: %v", st.name, err)
				return
			}
			f.sent = append(f.sent, stamp{before, now()})
		}
		<-tick.C
	}
}

// frame is the stream's next: who sent it, with what tag, which one.
func (f *stream) frame() []byte {
	b := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0, 0, 0, 0, f.from.id}
	if f.tag != 0 {
		b = binary.BigEndian.AppendUint16(b, 0x8100)
		b = binary.BigEndian.AppendUint16(b, f.tag)
	}
	b = binary.BigEndian.AppendUint16(b, typeTest)
	b = append(b, f.from.id)
	b = binary.BigEndian.AppendUint16(b, f.tag)
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.sent)))
	return append(b, make([]byte, 64)...)
}

func (s *stations) listen(st *station) {
	p, oob := make([]byte, 2048), make([]byte, 256)
	quiet := 0
	for quiet < 10 { // half a second after the last is sent
		n, o, _, from, err := unix.Recvmsg(st.fd, p, oob, 0)
		if s.stop.Load() {
			quiet++
		}
		if err != nil {
			if err != unix.EAGAIN && err != unix.EINTR {
				s.t.Errorf("%s: receive: %v", st.name, err)
				return
			}
			continue
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		h, ok := parse(p[:n], oob[:o])
		if !ok {
			continue
		}
		quiet = 0
		st.mu.Lock()
		st.heard = append(st.heard, h)
		st.mu.Unlock()
	}
}

// parse reads a frame of ours. A tag is in the frame, or beside it where the
// kernel took it out.
func parse(p, oob []byte) (heard, bool) {
	var h heard
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return h, false
	}
	for _, c := range cmsgs {
		// struct tpacket_auxdata (linux/if_packet.h)
		if c.Header.Level == unix.SOL_PACKET && c.Header.Type == unix.PACKET_AUXDATA && len(c.Data) >= 20 {
			if binary.NativeEndian.Uint32(c.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
				h.wire = binary.NativeEndian.Uint16(c.Data[16:]) & 0xfff
			}
		}
	}
	if len(p) >= 18 && binary.BigEndian.Uint16(p[12:]) == 0x8100 {
		h.wire = binary.BigEndian.Uint16(p[14:]) & 0xfff
		p = slices.Concat(p[:12], p[16:])
	}
	if len(p) < 21 || binary.BigEndian.Uint16(p[12:]) != typeTest {
		return h, false
	}
	h.from, h.tag, h.seq = p[14], binary.BigEndian.Uint16(p[15:]), binary.BigEndian.Uint32(p[17:])
	return h, true
}
