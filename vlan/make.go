package vlan

import (
	"context"
	"fmt"
	"slices"
)

// nic is what the kernel says of an interface that is no port of the bridge.
type nic struct {
	found   bool
	index   int
	master  int    // index of what it is a port of; 0 = of nothing
	address string // one of its own that is more than link-local; "" = none
}

// Make makes what is absent of the switch, where Config.Make says so: the
// bridge, and its ports. What it made the next Repair tells, which does the same
// every time; what it could not, errors and warnings say instead of what to
// type. It is to be called once before anything else; an error is no reason to
// stop. Nothing that exists is taken from anybody, nor is anything deleted.
func (s *Switch) Make(ctx context.Context) error {
	if !s.c.Make {
		return nil
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	now, err := s.picture(ctx)
	if err == nil {
		now, err = s.complete(ctx, now)
	}
	_, err = s.judge(now, err)
	return err
}

// complete makes what is absent and returns the picture after that. The bridge
// filters, and gives new ports no VLAN, from its first instant: it is made so in
// one message, and only then ports are added.
func (s *Switch) complete(ctx context.Context, now seen) (seen, error) {
	clear(s.unmade)
	if !now.found {
		err := s.k.create(s.want.bridge)
		if err != nil && !exists(err) {
			s.unmade[s.want.bridge] = fmt.Errorf("there is no bridge %s, and it could not be made: %w", s.want.bridge, err)
			return now, nil
		}
		if now, err = s.picture(ctx); err != nil {
			return now, err
		}
		if now.found {
			s.made(s.want.bridge, fmt.Sprintf("bridge %s was absent and is made: it filters VLANs, and gives new ports none", s.want.bridge))
			s.lower[s.want.bridge] = now.index
		}
	}
	if usable(s.want.bridge, now) != nil {
		return now, nil // it is another's
	}
	added := false
	for _, w := range slices.Concat([]wish{s.want.uplink}, s.want.ports) {
		if now.port(w.name) != nil {
			continue
		}
		index, err := s.adopt(ctx, now, w.name)
		if err != nil {
			s.unmade[w.name] = err
			continue
		}
		added = true
		s.lower[w.name] = index
		s.made(w.name, fmt.Sprintf("port %s was in no bridge and is now in %s, in no VLAN yet", w.name, s.want.bridge))
	}
	for name, index := range s.lower {
		if err := s.k.raise(index); err != nil && !gone(err) {
			s.unmade[name] = fmt.Errorf("%s is not up: %w; it is tried again", name, err)
			continue
		}
		delete(s.lower, name)
	}
	if !added {
		return now, nil
	}
	return s.picture(ctx)
}

// adopt makes an interface that is nobody's a port of the bridge.
func (s *Switch) adopt(ctx context.Context, now seen, name string) (index int, err error) {
	var n nic
	err = s.retry(ctx, func() (err error) {
		n, err = s.k.nic(name)
		return err
	})
	bridge := s.want.bridge
	switch {
	case err != nil:
		return 0, fmt.Errorf("port %s: %w", name, err)
	case !n.found:
		return 0, fmt.Errorf("there is no port %s; it is added to bridge %s when its driver is there", name, bridge)
	case n.master == now.index:
		return 0, fmt.Errorf("port %s has come to bridge %s just now", name, bridge)
	case n.master != 0:
		return 0, fmt.Errorf("%s is a port of another interface (number %d) and is not taken from it: ip link set %s nomaster", name, n.master, name)
	case n.address != "":
		return 0, fmt.Errorf("%s has the address %s, which it would lose as a port of bridge %s, and is left alone: ip address del %s dev %s", name, n.address, bridge, n.address, name)
	case now.pvid != 0:
		return 0, fmt.Errorf("%s is not added to bridge %s, which was there and would put it into VLAN %d at once; see who needs that: echo 0 >/sys/class/net/%s/bridge/default_pvid", name, bridge, now.pvid, bridge)
	}
	if err := s.k.enslave(n.index, now.index); err != nil {
		return 0, fmt.Errorf("%s could not be added to bridge %s: %w", name, bridge, err)
	}
	return n.index, nil
}

func (s *Switch) made(port, text string) { s.untold = append(s.untold, Repair{port, text}) }

// told are what was made since it was last told.
func (s *Switch) told() []Repair {
	out := s.untold
	s.untold = nil
	return out
}

// absent says what is wrong with an interface that is no port of the bridge.
func (s *Switch) absent(port string) error {
	if err := s.unmade[port]; err != nil {
		return err
	}
	return s.k.whyNot(s.want.bridge, port)
}

// pending are what is not up that was made, for warnings.
func (s *Switch) pending() (out []string) {
	for name := range s.lower {
		if err := s.unmade[name]; err != nil {
			out = append(out, err.Error())
		}
	}
	return out
}
