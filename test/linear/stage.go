package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"baton/ee/bus"
	"baton/mgmt"
	"baton/sim"
	"baton/sim/control"
)

// stage is a simulated enclosure in this process, each bus at a socket, and
// batond as a process of its own.
type stage struct {
	dir, batond string
	bug         string // BATON_BUG
	w           *sim.World
	stop        context.CancelFunc
	buses       sync.WaitGroup

	incarnation string // of generations

	agent *exec.Cmd
	said  *bytes.Buffer
}

func slotName(i int) string { return fmt.Sprintf("gpu%d", i) }
func hostName(i int) string { return fmt.Sprintf("server%d", i+1) }
func vmName(i int) string   { return fmt.Sprintf("train%d", i+1) }

const (
	vms      = 2
	storeBus = "store"
)

// world has a bus for the store and one for each slot.
func world() sim.Spec {
	sp := sim.Spec{Seed: 1, Buses: []sim.BusSpec{{Name: storeBus}}, Chips: []sim.ChipSpec{{Name: "store", Bus: storeBus, Addr: 0x57}}}
	for i := range slots {
		b := fmt.Sprintf("bus%d", i)
		sp.Buses = append(sp.Buses, sim.BusSpec{Name: b})
		sp.Chips = append(sp.Chips, sim.ChipSpec{Name: slotName(i), Bus: b, Addr: 0x50})
		sp.Slots = append(sp.Slots, sim.SlotSpec{Name: slotName(i), Bus: b, Chip: slotName(i), EngineAddr: 0x40})
	}
	for i := range hosts {
		sp.Servers = append(sp.Servers, sim.ServerSpec{Name: hostName(i), Group: uint16(101 + i)})
	}
	return sp
}

// newStage starts all of it. What it returns has to be closed, also beside an
// error.
func newStage(ctx context.Context, bin, bug string) (*stage, error) {
	dir, err := os.MkdirTemp("", "linear")
	if err != nil {
		return nil, err
	}
	s := &stage{dir: dir, batond: filepath.Join(bin, "batond"), bug: bug, w: sim.New(world())}
	serving, stop := context.WithCancel(context.Background())
	s.stop = stop
	names := map[string]string{}
	for _, b := range s.w.Spec().Buses {
		path := s.path(b.Name + ".sock")
		l, err := net.Listen("unix", path)
		if err != nil {
			return s, err
		}
		names[b.Name] = "unix:" + path
		s.buses.Go(func() { _ = bus.Serve(serving, l, s.w.Bus(b.Name)) }) // it ends with ctx, or the agent's transfers fail
	}
	if err := s.writeConfig(names); err != nil {
		return s, err
	}
	return s, s.start(ctx)
}

func (s *stage) path(name string) string { return filepath.Join(s.dir, name) }

func (s *stage) writeConfig(buses map[string]string) error {
	type object = map[string]any
	var all []string
	c := object{
		"enclosure": "linear", "simulated": true, "run_dir": s.path("run"), "socket": s.path("baton.sock"), "buses": buses,
		"store": object{"bus": storeBus, "address": "0x57", "part": "24c256", "format_blank": true},
	}
	var sl, ho, vm []object
	for _, x := range s.w.Spec().Slots {
		all = append(all, x.Name)
		sl = append(sl, object{
			"name": x.Name, "bus": x.Bus, "address": "0x40", "profile": "regs-v1", "mac": control.MAC(x.MAC),
			"eeprom": object{"address": "0x50", "part": "24c256"},
		})
	}
	var names []string
	for _, x := range s.w.Spec().Servers {
		names = append(names, x.Name)
		ho = append(ho, object{"name": x.Name, "group": x.Group, "mac": control.MAC(x.MAC)})
	}
	for i := range vms {
		vm = append(vm, object{
			"name": vmName(i), "uuid": fmt.Sprintf("6ba7b810-9dad-41d1-80b4-00c04fd430c%d", i), "hosts": names, "slots": all, "policy": "always",
		})
	}
	c["slots"], c["hosts"], c["vms"] = sl, ho, vm
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(s.path("batond.json"), text, 0o600)
}

// start starts batond and waits until it answers.
func (s *stage) start(ctx context.Context) error {
	s.said = &bytes.Buffer{}
	s.agent = exec.Command(s.batond, "-config", s.path("batond.json"))
	s.agent.Env = append(os.Environ(), "BATON_BUG="+s.bug)
	s.agent.Stdout, s.agent.Stderr = s.said, s.said
	if err := s.agent.Start(); err != nil {
		s.agent = nil
		return err
	}
	c := mgmt.Dial(s.path("baton.sock"))
	defer c.Close()
	return until(ctx, "batond to answer", func() (bool, error) {
		_, err := c.Hosts(ctx)
		return err == nil, nil
	})
}

// unfence lets all hosts in.
func (s *stage) unfence(ctx context.Context) error {
	c := mgmt.Dial(s.path("baton.sock"))
	defer c.Close()
	all, err := c.Hosts(ctx)
	for _, h := range all {
		err = errors.Join(err, c.Unfence(ctx, h.Name, h.Epoch))
	}
	return err
}

// end ends batond: by SIGTERM, after which operations under way are finished,
// or by SIGKILL.
func (s *stage) end(by syscall.Signal) error {
	if s.agent == nil {
		return nil
	}
	agent := s.agent
	s.agent = nil
	if err := agent.Process.Signal(by); err != nil {
		return fmt.Errorf("signal batond: %w", err)
	}
	err := agent.Wait()
	if by == syscall.SIGKILL {
		return nil // it says so
	}
	if err != nil {
		return fmt.Errorf("batond ended with %w: %s", err, tail(s.said.String()))
	}
	return nil
}

func tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " / ")
}

func (s *stage) close() error {
	err := s.end(syscall.SIGKILL)
	s.stop()
	s.buses.Wait()
	return errors.Join(err, os.RemoveAll(s.dir))
}

// settle waits until nothing is under way nor waits to be tried again.
func (s *stage) settle(ctx context.Context) (from state, err error) {
	c := mgmt.Dial(s.path("baton.sock"))
	defer c.Close()
	var busy string
	err = until(ctx, "the enclosure to come to rest", func() (bool, error) {
		e, err := c.Enclosure(ctx)
		if err != nil {
			return false, err
		}
		busy = ""
		for _, sl := range e.Slots {
			if sl.Busy || sl.Blocked != "" || sl.Problem != "" {
				busy = fmt.Sprintf("%s: busy=%v %s %s", sl.Name, sl.Busy, sl.Blocked, sl.Problem)
			}
		}
		for _, h := range e.Hosts {
			if strings.Contains(h.Why, "not confirmed") {
				busy = h.Name + ": " + h.Why
			}
		}
		if busy != "" {
			return false, nil
		}
		s.incarnation = e.Store.Incarnation
		out := outputOf(e.Slots, e.Hosts)
		for i, sl := range out.slots {
			from.slots[i] = sl
		}
		for i, h := range out.hosts {
			from.hosts[i] = h
		}
		return true, nil
	})
	if err != nil && busy != "" {
		err = fmt.Errorf("%w: %s", err, busy)
	}
	return from, err
}

// until asks cond until it says yes or fails.
func until(ctx context.Context, what string, cond func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		ok, err := cond()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", what, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}
