// Package station gives the controller its own address: an interface, a VLAN
// on it, an address and a default route.
//
// What has to be done is computed by a pure function (plan) from what is wanted,
// what was set before, and what the kernel says; Apply does it, looks again, and
// goes on until there is nothing left to do. Interfaces, addresses and routes
// that it was never asked to set are not touched.
package station

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
)

// Network is an address of the controller's own.
type Network struct {
	Interface string       `json:"interface"`
	Address   netip.Prefix `json:"address"` // with the host's bits, 192.0.2.10/24
	Gateway   netip.Addr   `json:"gateway"` // of the default route; the zero Addr = none
	VLAN      uint16       `json:"vlan"`    // tag on Interface; 0 = untagged
}

// Link is the name of the interface that has the address: with a VLAN the
// "eth0.100" above Interface.
func (n Network) Link() string {
	if n.VLAN == 0 {
		return n.Interface
	}
	return fmt.Sprintf("%s.%d", n.Interface, n.VLAN)
}

// String is "192.0.2.10/24 on eth0, VLAN 100, gateway 192.0.2.1".
func (n Network) String() string {
	s := fmt.Sprintf("%s on %s", n.Address, n.Interface)
	if n.VLAN != 0 {
		s += fmt.Sprintf(", VLAN %d", n.VLAN)
	}
	if n.Gateway.IsValid() {
		s += fmt.Sprintf(", gateway %s", n.Gateway)
	}
	return s
}

// ErrAbsent is returned when there is no such interface: its driver may not be
// loaded yet.
var ErrAbsent = errors.New("there is no interface")

// NotYet tells whether an error of Apply may be for want of a driver that is
// still to be loaded: the interface's, or that of VLANs.
func NotYet(err error) bool { return errors.Is(err, ErrAbsent) || errors.Is(err, syscall.EOPNOTSUPP) }

// kernel is what Apply needs of the network stack.
type kernel interface {
	look() (seen, error)
	do(step) error
}

// Station sets networks, one at a time. Its methods must not be called
// concurrently.
type Station struct {
	file   string
	kernel kernel
	set    []setting // what may be taken away again
	read   bool      // set was read from file
}

// setting is a network that was set, or was about to be.
type setting struct {
	Network
	Made bool `json:"made"` // the VLAN's interface was not there before
}

// New returns a Station that notes in file what it sets, so that another
// process can take it away again. The file must be where power loss empties it,
// as it does the kernel's tables. Nothing is opened before the first Apply that
// has something to do; the network namespace is then that of its thread.
func New(file string) *Station { return &Station{file: file} }

// rounds bounds how often Apply looks again: an interface is made, then gets
// its address, then what it replaces goes, and what the kernel took away with
// that comes back.
const rounds = 6

// Apply makes want the controller's network, in place of what was set before;
// nil only takes that away. It reads back what it did. Where something failed,
// what was there before is not taken away. It blocks for some milliseconds.
func (s *Station) Apply(ctx context.Context, want *Network) error {
	if err := s.recall(); err != nil {
		return err
	}
	if want == nil && len(s.set) == 0 {
		return nil
	}
	if s.kernel == nil {
		k, err := openKernel()
		if err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		s.kernel = k
	}
	if err := s.intend(want); err != nil {
		return err
	}
	for range rounds {
		if err := ctx.Err(); err != nil {
			return err
		}
		now, err := s.kernel.look()
		if err != nil {
			return err
		}
		steps, err := plan(want, s.set, now)
		if len(steps) == 0 && err == nil {
			return s.settle(want)
		}
		errs := []error{err}
		for _, st := range steps {
			if st.takes() && errors.Join(errs...) != nil {
				continue // what is there is better than nothing
			}
			if err := s.kernel.do(st); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", st, err))
				continue
			}
			for _, back := range s.others(st, want, now) {
				if err := s.kernel.do(back); err != nil && !errors.Is(err, fs.ErrExist) {
					errs = append(errs, fmt.Errorf("%s, which was there before: %w", back, err))
				}
			}
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s does not stay set: does something else manage this interface?", want)
}

// others are the addresses of somebody else's that the kernel takes away with
// one of ours: unless it promotes secondaries, those of the same IPv4 network
// go with the first.
func (s *Station) others(gone step, want *Network, now seen) []step {
	l := now.link(gone.name)
	if gone.op != dropAddress || !gone.address.Addr().Is4() || l == nil {
		return nil
	}
	var back []step
	for _, a := range l.addresses {
		ours := want != nil && want.Link() == l.name && want.Address == a ||
			slices.ContainsFunc(s.set, func(o setting) bool { return o.Link() == l.name && o.Address == a })
		if !ours && a.Masked() == gone.address.Masked() {
			back = append(back, step{op: addAddress, name: l.name, index: l.index, address: a})
		}
	}
	return back
}

// recall reads, once, what a process before this one has set.
func (s *Station) recall() error {
	if s.read {
		return nil
	}
	s.read = true
	text, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s.set)
	}
	if err != nil {
		s.set = nil
		return fmt.Errorf("what was set before is not known, and left: %w", err)
	}
	return nil
}

// intend notes want before anything is done for it.
func (s *Station) intend(want *Network) error {
	if want == nil || slices.ContainsFunc(s.set, func(o setting) bool { return o.Network == *want }) {
		return nil
	}
	now, err := s.kernel.look()
	if err != nil {
		return err
	}
	if now.link(want.Interface) == nil {
		return noInterface(*want) // who makes its VLAN's is not known yet
	}
	made := slices.ContainsFunc(s.set, func(o setting) bool { return o.Made && o.Link() == want.Link() })
	s.set = append(s.set, setting{*want, made || want.VLAN != 0 && now.link(want.Link()) == nil})
	return s.note()
}

// settle notes that nothing but want is set.
func (s *Station) settle(want *Network) error {
	before := len(s.set)
	s.set = slices.DeleteFunc(s.set, func(o setting) bool { return want == nil || o.Network != *want })
	if len(s.set) == before {
		return nil
	}
	return s.note()
}

func (s *Station) note() error {
	text, err := json.Marshal(s.set)
	if err != nil {
		return err
	}
	tmp := s.file + ".new"
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return fmt.Errorf("noting what is set: %w", err)
	}
	if err := os.Rename(tmp, s.file); err != nil {
		return fmt.Errorf("noting what is set: %w", err)
	}
	return nil
}

// dumpTries is how often a dump that a change came between is asked for again.
const dumpTries = 5

// dump asks for a list until it is consistent.
func dump[T any](ask func() ([]T, error), interrupted error) ([]T, error) {
	var list []T
	var err error
	for range dumpTries {
		if list, err = ask(); !errors.Is(err, interrupted) {
			return list, err
		}
		time.Sleep(time.Millisecond)
	}
	return list, err
}
