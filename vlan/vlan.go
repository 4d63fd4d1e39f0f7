// Package vlan makes the ports of the enclosure's switch members of the VLANs
// of those hosts whose slots they carry.
//
// The switch is a Linux bridge that filters VLANs; its ports are plain
// interfaces or those of a switch chip (DSA), which is all the same here. What
// has to change is computed by a pure function (plan) from what is wanted and
// what the kernel says; Switch does it and reads it back. A slot's port is a
// member of one VLAN or of none. On the uplink only the VLANs of configured
// hosts are ours, on all other ports none is: what is not ours is never
// touched.
package vlan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Mode is how a port carries its VLAN.
type Mode int

// The modes. A Tagged port carries its VLANs' frames with their tag and drops
// those without; an Access port carries one VLAN, without a tag.
const (
	Tagged Mode = iota
	Access
)

func (m Mode) String() string {
	if m == Access {
		return "access"
	}
	return "tagged"
}

// Port is an interface of the bridge.
type Port struct {
	Name string
	Mode Mode
}

// Config is a switch as the agent's configuration has it. It is taken as valid:
// names differ, and no two groups have one VLAN.
type Config struct {
	Bridge string
	Uplink Port
	Ports  []Port            // of slots
	VLANs  map[uint16]uint16 // group -> VLAN; a group that is not in it is its own
	Groups []uint16          // of hosts: their VLANs are ours on the uplink
	// OwnVLAN is the tag of the controller's own network where that goes through
	// the bridge, 0 = none; OwnUntagged tells that it goes through it untagged.
	OwnVLAN     uint16
	OwnUntagged bool
	// Make tells that the bridge is made where it is absent, and that ports that
	// are nobody's are added to it.
	Make bool
}

// VLAN is the VLAN of a group.
func (c Config) VLAN(group uint16) uint16 {
	if v, ok := c.VLANs[group]; ok {
		return v
	}
	return group
}

// ErrUnseen is found in the error where the bridge could not be read, or nothing
// can be set on it as it is: it is absent, or filters no VLANs. Nothing was
// changed then.
var ErrUnseen = errors.New("nothing was changed on the switch")

// unseen is an error that ErrUnseen is found in.
type unseen struct{ error }

func (unseen) Is(target error) bool { return target == ErrUnseen }
func (u unseen) Unwrap() error      { return u.error }

// kernel is what Switch needs of the network stack. A call takes at most some
// seconds.
type kernel interface {
	// look is a consistent picture of a bridge and its ports, or an error. That
	// there is no such bridge is none.
	look(bridge string) (seen, error)
	// change carries changes out, in their order, each whatever became of those
	// before; its result has as many errors.
	change(changes []change) []error
	// whyNot says what is wrong with an interface that is no port of the bridge.
	whyNot(bridge, port string) error
	// nic looks at an interface. That there is none is no error.
	nic(name string) (nic, error)
	// create makes a bridge that filters VLANs and gives new ports none.
	create(bridge string) error
	// enslave makes an interface a port of a bridge, raise switches one on.
	enslave(index, bridge int) error
	raise(index int) error
	close()
}

// Switch sets VLANs of a bridge's ports. Its methods may be called from any
// goroutine.
type Switch struct {
	c     Config
	open  func() (kernel, error)
	pause func(context.Context, time.Duration) error

	turn chan struct{} // full = somebody talks to the kernel, and has what is below
	k    kernel        // nil = not open
	want desired
	wars map[string]*war // by port: what is put back again and again
	// By name: why something absent could not be made, and what was made and is
	// not up yet, with its index.
	unmade map[string]error
	lower  map[string]int
	untold []Repair

	mu    sync.Mutex // of what is told
	last  map[string]string
	warn  []string
	count Stats
}

// Stats count messages to the kernel since New.
type Stats struct {
	Looks   uint64 // pictures that were taken, of two messages each
	Changes uint64 // messages that change something
	Retries uint64 // of either, after the kernel had no room or no consistent answer
}

// New returns a Switch. Nothing is opened before it is first used; the network
// namespace is then that of its thread.
func New(c Config) *Switch { return newSwitch(c, openKernel) }

func newSwitch(c Config, open func() (kernel, error)) *Switch {
	s := &Switch{c: c, open: open, pause: pause, turn: make(chan struct{}, 1), wars: map[string]*war{}, unmade: map[string]error{}, lower: map[string]int{}, last: map[string]string{}}
	s.want = desired{bridge: c.Bridge, uplink: wish{name: c.Uplink.Name, mode: c.Uplink.Mode}, own: own{c.OwnVLAN, c.OwnUntagged}}
	for _, p := range c.Ports {
		s.want.ports = append(s.want.ports, wish{name: p.Name, mode: p.Mode})
	}
	s.want.ours = s.ours(c.Groups)
	return s
}

func (s *Switch) ours(groups []uint16) []uint16 {
	var out []uint16
	for _, g := range groups {
		out = append(out, s.c.VLAN(g))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// take waits until nobody else talks to the kernel.
func (s *Switch) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return unseen{fmt.Errorf("the switch is busy: %w", ctx.Err())}
	}
}

func (s *Switch) give() { <-s.turn }

// Close ends it. It must not be used afterwards.
func (s *Switch) Close() error {
	s.turn <- struct{}{}
	defer s.give()
	if s.k != nil {
		s.k.close()
		s.k = nil
	}
	return nil
}

// Set makes port a member of the group's VLAN and of no other, 0 = of none, and
// the uplink a member of the VLANs that ports use. It reads back what it did,
// and changes nothing where that is so already.
//
// What leaves does so before anything joins. Where a port can not join, it is
// wanted in what it was in before, so that nothing is left half done; where it
// can not leave, Repair goes on trying. An error names all that went wrong;
// errors.Is finds ErrUnseen where nothing was changed. It takes milliseconds.
func (s *Switch) Set(ctx context.Context, port string, group uint16) error {
	return s.SetAll(ctx, map[string]uint16{port: group})
}

// SetAll is Set for many ports, with two looks at the bridge for all of them.
func (s *Switch) SetAll(ctx context.Context, groups map[string]uint16) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	before := slices.Clone(s.want.ports)
	if err := s.wish(groups); err != nil {
		return unseen{err}
	}
	now, err := s.look(ctx)
	if err != nil {
		s.unwish(before, groups)
		return err
	}
	about := scope{ports: map[string]bool{}, vlans: map[uint16]bool{}}
	for i, w := range s.want.ports {
		if _, ok := groups[w.name]; !ok {
			continue
		}
		about.add(w, before[i], now.port(w.name))
	}
	tried, _, err := s.bring(ctx, now, about)
	if err != nil {
		s.unwish(before, groups)
		if tried {
			if now, again := s.look(ctx); again == nil {
				_, _, _ = s.bring(ctx, now, about) // what it can not tidy Repair does
			}
		}
	}
	return err
}

// wish notes what is wanted. On an error nothing is.
func (s *Switch) wish(groups map[string]uint16) error {
	for port, group := range groups {
		if !slices.ContainsFunc(s.want.ports, func(w wish) bool { return w.name == port }) {
			return fmt.Errorf("port %s is no slot's", port)
		}
		if v := s.c.VLAN(group); group != 0 && (v < 1 || v > maxVLAN) {
			return fmt.Errorf("group %d has VLAN %d, which is outside 1..%d", group, v, maxVLAN)
		}
	}
	for i, w := range s.want.ports {
		if g, ok := groups[w.name]; ok {
			s.want.ports[i].decided, s.want.ports[i].vlan = true, 0
			if g != 0 {
				s.want.ports[i].vlan = s.c.VLAN(g)
			}
		}
	}
	return nil
}

const maxVLAN = 4094 // 4095 is reserved (IEEE 802.1Q table 9-2)

// unwish takes back what could not be had. A port that should be in no VLAN is
// still wanted there.
func (s *Switch) unwish(before []wish, groups map[string]uint16) {
	for i, w := range s.want.ports {
		if _, ok := groups[w.name]; ok && w.vlan != 0 {
			s.want.ports[i] = before[i]
		}
	}
}

// May tells, by looking alone, why the VLAN of ports could not be set to that
// of a group, in all of them together: an access uplink has room for a set only
// when all of it goes. nil = nothing is known to stand in the way. errors.Is
// finds ErrUnseen in the error.
func (s *Switch) May(ctx context.Context, ports []string, group uint16) error {
	_, err := s.suppose(ctx, ports, group)
	return err
}

// Check tells, by looking alone, what would not be so after Set; nil = port is a
// member of the group's VLAN and of no other, as its mode has it, and the uplink
// is of it, too. errors.Is finds ErrUnseen where that can not be.
func (s *Switch) Check(ctx context.Context, port string, group uint16) error {
	differs, err := s.suppose(ctx, []string{port}, group)
	return join(append(differs, err)...)
}

// suppose looks what would have to change so that ports have the VLAN of a group,
// and what keeps them from it.
func (s *Switch) suppose(ctx context.Context, ports []string, group uint16) (differs []error, err error) {
	if err := s.take(ctx); err != nil {
		return nil, err
	}
	defer s.give()
	before := slices.Clone(s.want.ports)
	defer func() { s.want.ports = before }()
	groups := map[string]uint16{}
	for _, port := range ports {
		groups[port] = group
	}
	if err := s.wish(groups); err != nil {
		return nil, unseen{err}
	}
	now, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	about := scope{ports: map[string]bool{}, vlans: map[uint16]bool{}}
	for _, w := range s.want.ports {
		if _, ok := groups[w.name]; ok {
			about.add(w, w, now.port(w.name))
		}
	}
	changes, problems := plan(s.want, now)
	for _, c := range about.changes(changes, s.want.uplink.name) {
		should := "should not be"
		if c.join {
			should = "should be"
		}
		differs = append(differs, fmt.Errorf("%s is a member of %s, and %s of %s", c.port, list(now.port(c.port).members), should, list(c.members)))
	}
	if err := s.explain(about.problems(problems, s.want.uplink.name)); err != nil {
		return differs, unseen{err}
	}
	return differs, nil
}

// Use replaces the groups of hosts. Ports stay as they are.
func (s *Switch) Use(groups []uint16) {
	s.turn <- struct{}{}
	defer s.give()
	s.want.ours = s.ours(groups)
}

// Last is what was last read of port, for people: "tagged, VLAN 101"; "" where
// nothing was. It asks nobody.
func (s *Switch) Last(port string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[port]
}

// Warnings are what a person should know, or do something about. It asks
// nobody: they are of the last look.
func (s *Switch) Warnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.warn)
}

// Stats counts messages.
func (s *Switch) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// scope is what a pass is about: these ports, and these VLANs of the uplink.
type scope struct {
	all   bool            // all ports, but
	not   map[string]bool // these, and
	stay  string          // what this one would leave
	ports map[string]bool
	vlans map[uint16]bool
}

func (a *scope) add(now, before wish, found *seenPort) {
	a.ports[now.name] = true
	a.vlans[now.vlan], a.vlans[before.vlan] = true, true
	if found != nil {
		for _, m := range found.members {
			a.vlans[m.vlan] = true
		}
	}
}

// changes are those that the scope is about.
func (a *scope) changes(in []change, uplink string) []change {
	if a.all {
		return slices.DeleteFunc(slices.Clone(in), func(c change) bool { return a.not[c.port] || !c.join && c.port == a.stay })
	}
	var out []change
	for _, c := range in {
		if c.port == uplink {
			c.members = slices.DeleteFunc(slices.Clone(c.members), func(m member) bool { return !a.vlans[m.vlan] })
			if len(c.members) > 0 {
				out = append(out, c)
			}
		} else if a.ports[c.port] {
			out = append(out, c)
		}
	}
	return out
}

// problems are those that the scope is about.
func (a *scope) problems(in []problem, uplink string) []problem {
	if a.all {
		return in
	}
	return slices.DeleteFunc(slices.Clone(in), func(p problem) bool {
		if p.port == uplink {
			return p.vlan != 0 && !a.vlans[p.vlan]
		}
		return !a.ports[p.port]
	})
}

// bring makes what is in scope as it is wanted, and reads it back. tried tells
// that the kernel was asked for a change, failed which ports are not as wanted
// all the same.
func (s *Switch) bring(ctx context.Context, now seen, about scope) (tried bool, failed map[string]error, err error) {
	changes, problems := plan(s.want, now)
	changes = about.changes(changes, s.want.uplink.name)
	problems = about.problems(problems, s.want.uplink.name)
	cut := leaving(s.want, about)
	if cut {
		// A cut does what it can, whatever is wrong with the uplink: what that
		// does not leave Repair goes on with.
		problems = slices.DeleteFunc(problems, func(p problem) bool { return p.port == s.want.uplink.name })
	}
	var errs []error
	if err := s.explain(problems); err != nil {
		if !cut && !about.all {
			return false, nil, unseen{err}
		}
		errs = append(errs, err)
	}
	failed = map[string]error{}
	fail := func(port string, err error) {
		if failed[port] = join(failed[port], err); !cut || port != s.want.uplink.name {
			errs = append(errs, err)
		}
	}
	stays := map[string]bool{} // ports that did not leave: they must not join another
	for _, join := range []bool{false, true} {
		next := slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return c.join != join || stays[c.port] })
		for i, err := range s.apply(ctx, next) {
			if c := next[i]; err != nil {
				fail(c.port, fmt.Errorf("%s: %w", c, err))
				stays[c.port] = true
			}
		}
	}
	if len(changes) == 0 {
		if err := join(errs...); err != nil && s.c.Make && !about.all {
			return false, nil, unseen{err} // a port that comes later
		}
		return false, nil, join(errs...)
	}
	after, err := s.look(ctx)
	if err != nil {
		err = fmt.Errorf("not read back: %w", plain(err))
		for _, c := range changes {
			failed[c.port] = err
		}
		return true, failed, join(append(errs, err)...)
	}
	left, _ := plan(s.want, after)
	for _, c := range about.changes(left, s.want.uplink.name) {
		if failed[c.port] == nil {
			fail(c.port, fmt.Errorf("%s is read back as a member of %s: does something else manage it?", c.port, list(after.port(c.port).members)))
		}
	}
	return true, failed, join(errs...)
}

// leaving tells whether nothing in scope is to be a member of anything.
func leaving(want desired, about scope) bool {
	return !about.all && !slices.ContainsFunc(want.ports, func(w wish) bool { return about.ports[w.name] && w.vlan != 0 })
}

// plain is an error that ErrUnseen is not found in.
func plain(err error) error { return errors.New(err.Error()) }

// several are errors on one line, which events and refusals are. The order is
// that of the texts: the same again is to read the same.
type several []error

func (s several) Unwrap() []error { return s }

func (s several) Error() string {
	var out []string
	for _, err := range s {
		out = append(out, err.Error())
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// join is what of errs is not nil; nil if that is nothing.
func join(errs ...error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return several(errs)
}

// explain makes problems an error.
func (s *Switch) explain(problems []problem) error {
	var errs []error
	for _, p := range problems {
		if p.missing {
			errs = append(errs, s.absent(p.port))
			continue
		}
		errs = append(errs, errors.New(p.text))
	}
	return join(errs...)
}

// look takes a picture of the bridge, if anything can be set on it.
func (s *Switch) look(ctx context.Context) (seen, error) {
	return s.judge(s.picture(ctx))
}

// picture is what the kernel says, whether anything can be set or not.
func (s *Switch) picture(ctx context.Context) (seen, error) {
	if s.k == nil {
		k, err := s.open()
		if err != nil {
			return seen{}, fmt.Errorf("netlink: %w", err)
		}
		s.k = k
	}
	var now seen
	err := s.retry(ctx, func() (err error) {
		s.counts(func(c *Stats) { c.Looks++ })
		now, err = s.k.look(s.want.bridge)
		return err
	})
	if err != nil {
		err = fmt.Errorf("reading bridge %s: %w", s.want.bridge, err)
	}
	return now, err
}

// judge keeps what was seen, and says why nothing can be set.
func (s *Switch) judge(now seen, err error) (seen, error) {
	if err == nil {
		err = usable(s.want.bridge, now)
		if why := s.unmade[s.want.bridge]; !now.found && why != nil {
			err = why
		}
	}
	if err != nil {
		return now, s.blind(err)
	}
	s.tell(now)
	return now, nil
}

// blind notes why nothing is known.
func (s *Switch) blind(err error) error {
	s.mu.Lock()
	clear(s.last)
	s.warn = []string{fmt.Sprintf("switch: %v", err)}
	s.mu.Unlock()
	return unseen{err}
}

// tell keeps what was seen for those who ask.
func (s *Switch) tell(now seen) {
	warn := foreign(s.want, now)
	last := map[string]string{}
	for _, w := range append(slices.Clone(s.want.ports), s.want.uplink) {
		p := now.port(w.name)
		switch {
		case p == nil:
			warn = append(warn, s.absent(w.name).Error())
		case len(p.members) == 0:
			last[w.name] = w.mode.String() + ", in no VLAN"
		default:
			last[w.name] = fmt.Sprintf("%s, %s", w.mode, vlans(p.members))
		}
	}
	warn = append(warn, s.pending()...)
	for _, w := range s.wars {
		if w.repairs > 1 {
			warn = append(warn, w.String())
		}
	}
	for i := range warn {
		warn[i] = "switch: " + warn[i]
	}
	slices.Sort(warn)
	s.mu.Lock()
	s.last, s.warn = last, warn
	s.mu.Unlock()
}

func (s *Switch) counts(f func(*Stats)) {
	s.mu.Lock()
	f(&s.count)
	s.mu.Unlock()
}

// apply asks for changes at once, and once more for those for which the kernel
// had no room.
func (s *Switch) apply(ctx context.Context, changes []change) []error {
	ask := func(changes ...change) []error {
		s.counts(func(n *Stats) { n.Changes += uint64(len(changes)) })
		return s.k.change(changes)
	}
	if len(changes) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return slices.Repeat([]error{err}, len(changes))
	}
	errs := ask(changes...)
	for i, c := range changes {
		if err := errs[i]; transient(err) {
			first := true
			errs[i] = s.retry(ctx, func() error {
				if first {
					first = false
					return err
				}
				return ask(c)[0]
			})
		}
	}
	return errs
}

// tries is how often the kernel is asked where it had no room for the answer, or
// something changed while it gave it.
const tries = 5

// retry asks until there is an answer, tries times. Changes may be asked for
// twice: the second time they change nothing.
func (s *Switch) retry(ctx context.Context, ask func() error) error {
	var err error
	for n := range tries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err = ask(); err == nil || !transient(err) {
			return err
		}
		s.counts(func(c *Stats) { c.Retries++ })
		if err := s.pause(ctx, time.Millisecond<<n); err != nil {
			return err
		}
	}
	return fmt.Errorf("asked %d times: %w", tries, err)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
