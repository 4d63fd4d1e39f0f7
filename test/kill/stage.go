package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"baton/mgmt"
	"baton/sim"
	"baton/sim/control"
)

// vmOf is a VM of the stage: its slots, and the two servers that it may run on.
// Servers are no other VM's, so that what is done to one concerns one VM.
type vmOf struct {
	name  string
	uuid  string
	slots []string
	hosts [2]string

	at     string            // server it runs on
	nonce  string            // of its start
	sign   map[string][]byte // in device memory, by slot
	intact time.Duration     // the model's time at which it was last known to run well
}

func (v *vmOf) other() string {
	if v.at == v.hosts[0] {
		return v.hosts[1]
	}
	return v.hosts[0]
}

// stage is a world, an agent in it, and what has been done with them.
type stage struct {
	dir     string
	o       options
	world   *proc
	batond  *proc
	hw      *control.Client
	agent   *mgmt.Client
	vms     []*vmOf // of 1, 2 and 8 slots; the last one is left alone
	gens    map[string]string
	fenced  map[string]time.Duration // hosts whose fence was answered, since when
	off     map[string]bool          // servers without power
	typical map[string]effort        // of operations that nobody disturbed
	serial  int                      // of moves and armings
}

// effort is what an operation takes.
type effort struct {
	time   time.Duration
	writes uint64 // pages and bytes of registers
}

// newStage starts a world and all that is in it.
func newStage(ctx context.Context, dir string, o options, seed uint64) (s *stage, err error) {
	s, err = newWorld(ctx, dir, o, seed)
	if err == nil {
		err = s.people(ctx)
	}
	return s.unless(err)
}

// unless is the stage, which is closed where there is an error.
func (s *stage) unless(err error) (*stage, error) {
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// newWorld starts the world, and no agent yet.
func newWorld(ctx context.Context, dir string, o options, seed uint64) (s *stage, err error) {
	s = &stage{dir: dir, o: o, gens: map[string]string{}, fenced: map[string]time.Duration{}, off: map[string]bool{}, typical: map[string]effort{}}
	if err := os.MkdirAll(filepath.Join(dir, "run"), 0o700); err != nil {
		return s, err
	}
	if err := s.writeFiles(seed); err != nil {
		return s, err
	}
	s.hw, s.agent = control.Dial(s.path("control.sock")), mgmt.Dial(s.path("sock"))
	if s.world, err = startProc(dir, "batonsim", nil, filepath.Join(o.bin, "batonsim"), "-world", s.path("world.json"), "-dir", dir); err != nil {
		return s, err
	}
	return s, s.await(ctx, "the simulator", s.world, func() error { _, err := s.hw.State(ctx); return err })
}

// people starts an agent, lets the servers in, and starts every VM on the first
// of its own.
func (s *stage) people(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	hosts, err := s.agent.Hosts(ctx)
	if err != nil {
		return err
	}
	for _, h := range hosts {
		if err := s.agent.Unfence(ctx, h.Name, h.Epoch); err != nil {
			return err
		}
	}
	for _, v := range s.vms {
		v.at = v.hosts[0]
		if err := s.attach(ctx, v, v.at); err != nil {
			return err
		}
		if err := s.boot(ctx, v); err != nil {
			return err
		}
		if err := s.ack(ctx, v, v.slots...); err != nil {
			return err
		}
		if err := s.sign(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) path(name string) string { return filepath.Join(s.dir, name) }

func (s *stage) close() {
	for _, p := range []*proc{s.batond, s.world} {
		if p != nil {
			p.kill()
		}
	}
	if s.hw != nil {
		s.hw.Close()
		s.agent.Close()
	}
}

// hz is fast-mode plus: a store is read in a third of a second.
const hz = 1_000_000

// writeFiles writes what the programs are configured by.
func (s *stage) writeFiles(seed uint64) error {
	type object = map[string]any
	spec := sim.Spec{
		Seed:  seed + 1,
		Buses: []sim.BusSpec{{Name: "bus0", Hz: hz}, {Name: "bus1", Hz: hz}},
		Chips: []sim.ChipSpec{{Name: "store", Bus: "bus0", Addr: 0x57}},
	}
	var slots, hosts, vms []object
	for i, n := range []int{1, 2, 8, 1} {
		v := &vmOf{name: fmt.Sprintf("vm%d", i), uuid: fmt.Sprintf("6ba7b810-9dad-41d1-80b4-00c04fd430c%x", i), sign: map[string][]byte{}}
		for j := range v.hosts {
			k := 2*i + j
			v.hosts[j] = fmt.Sprintf("server%d", k)
			mac := sim.MAC{2, 5: byte(0x11 + k)}
			spec.Servers = append(spec.Servers, sim.ServerSpec{Name: v.hosts[j], Group: uint16(101 + k), MAC: mac})
			hosts = append(hosts, object{"name": v.hosts[j], "group": 101 + k, "mac": control.MAC(mac)})
		}
		for range n {
			k := len(slots)
			name, bus := fmt.Sprintf("gpu%d", k), fmt.Sprintf("bus%d", k%2)
			v.slots = append(v.slots, name)
			spec.Chips = append(spec.Chips, sim.ChipSpec{Name: name, Bus: bus, Addr: uint16(0x20 + k)})
			spec.Slots = append(spec.Slots, sim.SlotSpec{Name: name, Bus: bus, Chip: name, EngineAddr: uint16(0x60 + k), MemoryBytes: 256})
			slots = append(slots, object{
				"name": name, "bus": bus, "address": fmt.Sprintf("0x%02x", 0x60+k), "profile": "regs-v1",
				"eeprom": object{"address": fmt.Sprintf("0x%02x", 0x20+k), "part": "24c256"},
			})
		}
		vms = append(vms, object{"name": v.name, "uuid": v.uuid, "hosts": v.hosts, "slots": v.slots, "policy": "always"})
		s.vms = append(s.vms, v)
	}
	agent := object{
		"enclosure": "kill", "simulated": true, "run_dir": s.path("run"), "socket": s.path("sock"),
		"buses": object{"bus0": "unix:" + s.path("bus0.sock"), "bus1": "unix:" + s.path("bus1.sock")},
		"store": object{"bus": "bus0", "address": "0x57", "part": "24c256", "format_blank": true},
		"slots": slots, "hosts": hosts, "vms": vms,
	}
	if s.o.store != nil {
		agent["store"] = s.o.store
	}
	text, err := json.MarshalIndent(agent, "", " ")
	return errors.Join(err, os.WriteFile(s.path("batond.json"), text, 0o600), os.WriteFile(s.path("world.json"), control.FormatWorld(spec), 0o600))
}

// start starts an agent and waits until all is as it shall be.
func (s *stage) start(ctx context.Context) error {
	if err := s.launch(); err != nil {
		return err
	}
	return s.settled(ctx)
}

// launch starts an agent.
func (s *stage) launch() (err error) {
	args := append(slices.Clone(s.o.wrap), filepath.Join(s.o.bin, "batond"), "-config", s.path("batond.json"))
	s.batond, err = startProc(s.dir, "batond", s.o.env, args[0], args[1:]...)
	return err
}

// said is all that the stage's agents have logged.
func (s *stage) said() string {
	text, _ := os.ReadFile(s.batond.log) // of this process's making
	return string(text)
}

// settled waits until the agent serves, nothing is under way, nothing is wrong,
// and each slot is linked with the server it says, where that one has power.
func (s *stage) settled(ctx context.Context) error {
	return s.await(ctx, "all slots to be well", s.batond, func() error {
		e, err := s.agent.Enclosure(ctx)
		if err != nil {
			return err
		}
		if !e.Store.OK {
			return errors.New("store: " + e.Store.Problem)
		}
		w, err := s.hw.State(ctx)
		if err != nil {
			return err
		}
		for _, l := range e.Slots {
			m, _ := w.Slot(l.Name)
			host := l.Host
			switch {
			case l.Problem+l.Blocked != "":
				return fmt.Errorf("%s: %s %s", l.Name, l.Problem, l.Blocked)
			case l.Busy:
				return fmt.Errorf("%s is busy", l.Name)
			case m.Reacher != host && !s.off[host]:
				return fmt.Errorf("%s is with %q, by the model with %q", l.Name, host, m.Reacher)
			}
		}
		return nil
	})
}

// await asks until nothing is wrong.
func (s *stage) await(ctx context.Context, what string, p *proc, look func() error) error {
	for begin := time.Now(); ; {
		err := look()
		switch {
		case err == nil:
			return nil
		case p.gone() != nil:
			return p.gone()
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Since(begin) > s.o.wait:
			return fmt.Errorf("waited %v for %s: %w", s.o.wait, what, err)
		}
		time.Sleep(3 * time.Millisecond)
	}
}

// id is a new UUID.
func (s *stage) id() string {
	s.serial++
	return fmt.Sprintf("0b5f6a52-3a55-4b0e-9d8a-%012d", s.serial)
}

func (s *stage) attach(ctx context.Context, v *vmOf, host string) error {
	a, err := s.agent.Attach(ctx, v.slots[0], mgmt.AttachRequest{VM: v.name, Host: host, Slots: v.slots})
	if err == nil {
		v.nonce = a.Nonce
	}
	return err
}

// boot starts a VM where it is, and signs its devices' memory.
func (s *stage) boot(ctx context.Context, v *vmOf) error {
	if err := s.hw.StartVM(ctx, v.at, v.name, control.StartVM{Slots: v.slots}); err != nil {
		return fmt.Errorf("start of %s: %w", v.name, err)
	}
	return nil
}

// ack acknowledges the start of a VM's slots: from here on its memory counts.
func (s *stage) ack(ctx context.Context, v *vmOf, slots ...string) error {
	for _, name := range slots {
		seen, err := s.agent.Verdict(ctx, name)
		if err != nil {
			return err
		}
		if err := s.agent.Ack(ctx, name, mgmt.AckRequest{Nonce: v.nonce, Generation: seen.Generation, Seen: seen.Now}); err != nil {
			return fmt.Errorf("ack of %s: %w", name, err)
		}
	}
	return nil
}

// sign writes what is looked for again later into the memory of a VM's devices.
func (s *stage) sign(ctx context.Context, v *vmOf) error {
	s.serial++
	for _, name := range v.slots {
		v.sign[name] = fmt.Appendf(nil, "%s %s %d", v.name, name, s.serial)
		if err := s.hw.WriteMem(ctx, v.at, name, 0, v.sign[name]); err != nil {
			return fmt.Errorf("memory of %s: %w", name, err)
		}
	}
	r, err := s.hw.Record(ctx)
	v.intact = time.Duration(r.Now)
	return err
}

func (s *stage) unfence(ctx context.Context, host string) error {
	h, err := s.agent.Host(ctx, host)
	if err != nil {
		return err
	}
	// What it reaches from here on is its right.
	delete(s.fenced, host)
	return s.agent.Unfence(ctx, host, h.Epoch)
}
