package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"baton/mgmt"
	"baton/sim/control"
	"baton/test/gobuild"
)

// demo is the stage: a simulated world, an agent, two servers.
type demo struct {
	out   io.Writer
	began time.Time
	bin   string // programs
	dir   string // everything else

	world   *proc
	batond  *proc
	servers map[string]*proc
	hw      *control.Client // what hands, mains and racks do
	agent   *mgmt.Client    // what an operator or a cluster does

	at        string   // server the slot was last assigned to, by the model
	moves     int      // assignments to another server
	writes    []int    // page writes of each move that nobody disturbed
	preserved []string // verdicts of scenarios A and B
	lost      []int    // steps lost there
}

const (
	slot = "gpu0"
	vm   = "train1"
)

// checkpointEvery is how many steps are lost at most without the memory.
const checkpointEvery = 100

// newDemo builds the programs and starts the world and the agent. What it
// returns has to be stopped, also beside an error.
func newDemo(ctx context.Context, out io.Writer, bin string) (*demo, error) {
	dir, err := os.MkdirTemp("", "baton-demo-")
	if err != nil {
		return nil, err
	}
	d := &demo{out: out, began: time.Now(), bin: bin, dir: dir, servers: map[string]*proc{}}
	if d.bin == "" {
		d.bin = filepath.Join(dir, "bin")
		if err := gobuild.Programs(ctx, d.bin, "./cmd/batonsim", "./cmd/batond"); err != nil {
			return d, err
		}
	}
	if err := d.writeFiles(); err != nil {
		return d, err
	}
	d.hw = control.Dial(d.path("control.sock"))
	d.agent = mgmt.Dial(d.path("baton.sock"))
	d.began = time.Now()
	d.title("One enclosure, two servers, one device. The hardware is simulated; batond and",
		"the servers are processes of their own.")
	if d.world, err = startProc(dir, "batonsim", d.program("batonsim"), "-world", d.path("world.json"), "-dir", dir, "-state", d.path("chips")); err != nil {
		return d, err
	}
	if _, err := d.world.await(ctx, "batonsim: ready"); err != nil {
		return d, err
	}
	if err := d.startAgent(ctx); err != nil {
		return d, err
	}
	d.say("batonsim and batond run in %s", dir)
	for _, host := range []string{"server1", "server2"} {
		if err := d.unfence(ctx, host); err != nil {
			return d, err
		}
	}
	d.say("the store is new, so every server was fenced; both are let in now")
	return d, nil
}

func (d *demo) path(name string) string    { return filepath.Join(d.dir, name) }
func (d *demo) program(name string) string { return filepath.Join(d.bin, name) }

// writeFiles writes what the programs are configured by.
func (d *demo) writeFiles() error {
	world := control.ExampleWorld()
	s1, s2 := world.Servers[0], world.Servers[1]
	type object = map[string]any
	agent := object{
		"enclosure": "demo", "simulated": true, "run_dir": d.path("run"), "socket": d.path("baton.sock"),
		"buses": object{"bus0": "unix:" + d.path("bus0.sock")},
		"store": object{"bus": "bus0", "address": "0x57", "part": "24c256", "format_blank": true},
		"slots": []object{{
			"name": slot, "bus": "bus0", "address": "0x40", "profile": "regs-v1", "mac": control.MAC(world.Slots[0].MAC),
			"eeprom": object{"address": "0x50", "part": "24c256"},
		}},
		"hosts": []object{
			{"name": s1.Name, "group": s1.Group, "mac": control.MAC(s1.MAC)},
			{"name": s2.Name, "group": s2.Group, "mac": control.MAC(s2.MAC)},
		},
		"vms": []object{{
			"name": vm, "uuid": "6ba7b810-9dad-41d1-80b4-00c04fd430c8", "hosts": []string{s1.Name, s2.Name}, "slots": []string{slot}, "policy": "always",
		}},
	}
	job := object{
		"vm": vm, "slot": slot, "checkpoint": d.path("train1.ckpt"), "checkpoint_every": checkpointEvery,
		"step_time": "5ms", "proof_every": "200ms", "wait": "15s",
	}
	errs := []error{os.Mkdir(d.path("run"), 0o700), os.Mkdir(d.path("chips"), 0o700)}
	for name, v := range map[string]any{"batond.json": agent, "job.json": job, "world.json": json.RawMessage(control.FormatWorld(world))} {
		text, err := json.MarshalIndent(v, "", "  ")
		errs = append(errs, err, os.WriteFile(d.path(name), text, 0o600))
	}
	return errors.Join(errs...)
}

// stop ends whatever runs, the servers first.
func (d *demo) stop() {
	for _, p := range d.servers {
		p.kill()
	}
	for _, p := range []*proc{d.batond, d.world} {
		if p != nil {
			p.kill()
		}
	}
	if d.hw != nil {
		d.hw.Close()
		d.agent.Close()
	}
}

// startAgent starts batond and waits until it has looked at the slot.
func (d *demo) startAgent(ctx context.Context) (err error) {
	if d.batond, err = startProc(d.dir, "batond", d.program("batond"), "-config", d.path("batond.json")); err != nil {
		return err
	}
	return await(ctx, "batond to answer", func() (bool, error) {
		select {
		case <-d.batond.ended:
			return false, fmt.Errorf("batond ended: %v; its last words: %s", d.batond.err, d.batond.tail())
		default:
		}
		s, err := d.agent.Slot(ctx, slot)
		return err == nil && s.Problem == "" && !s.Busy, nil
	})
}

func (d *demo) unfence(ctx context.Context, host string) error {
	h, err := d.agent.Host(ctx, host)
	if err != nil {
		return err
	}
	return d.agent.Unfence(ctx, host, h.Epoch)
}

// startServer starts the software of a server, which asks for the slot, and
// waits until its job has begun or gone on.
func (d *demo) startServer(ctx context.Context, name string) (p *proc, err error) {
	if p, err = startProc(d.dir, name, d.program("batonsim"), "server", "-name", name,
		"-control", d.path("control.sock"), "-agent", d.path("baton.sock"), "-job", d.path("job.json")); err != nil {
		return nil, err
	}
	d.servers[name] = p
	if _, err := p.await(ctx, " step "); err != nil { // "begins at step", "goes on from step"
		return nil, err
	}
	return p, d.countMove(ctx)
}

// countMove counts a move if the engine runs with another server's group than
// it last did.
func (d *demo) countMove(ctx context.Context) error {
	s, err := d.hw.State(ctx)
	if err != nil {
		return err
	}
	l, _ := s.Slot(slot)
	for _, v := range control.ExampleWorld().Servers {
		if v.Group == l.Group && v.Name != d.at {
			d.at = v.Name
			d.moves++
		}
	}
	return nil
}

// pageWrites is how many write cycles all chips have begun.
func (d *demo) pageWrites(ctx context.Context) (int, error) {
	s, err := d.hw.State(ctx)
	n := 0
	for _, c := range s.Chips {
		n += int(c.PageWrites)
	}
	return n, err
}

var (
	stepDone = regexp.MustCompile(`: step (\d+) model ([0-9a-f]+)$`)
	wentOn   = regexp.MustCompile(`goes on from step (\d+) in `)
)

// lastStep is the last step that a server said was done, and how the model
// begins that it then had.
func (p *proc) lastStep() (n int, model string) {
	line, _ := p.find(" model ")
	if m := stepDone.FindStringSubmatch(line); m != nil {
		n, _ = strconv.Atoi(m[1])
		model = m[2]
	}
	return n, model
}

// model is what a training that never stopped has after n steps, worked out
// here once more: the first four bytes.
func model(n int) string {
	var m [sha256.Size]byte
	for i := 1; i <= n; i++ {
		m = sha256.Sum256(binary.LittleEndian.AppendUint64(m[:], uint64(i)))
	}
	return fmt.Sprintf("%x", m[:4])
}

// train waits until a server is half way between two checkpoints and beyond
// the one after step from: whenever it dies soon, the checkpoint loses
// something.
func (d *demo) train(ctx context.Context, p *proc, from int) error {
	return awaitStep(ctx, p, (from/checkpointEvery+1)*checkpointEvery+checkpointEvery/2)
}

// awaitStep waits until a server has done step n.
func awaitStep(ctx context.Context, p *proc, n int) error {
	return await(ctx, fmt.Sprintf("%s to do step %d", p.name, n), func() (bool, error) {
		select {
		case <-p.ended:
			return false, fmt.Errorf("%s ended: %v; its last words: %s", p.name, p.err, p.tail())
		default:
			done, _ := p.lastStep()
			return done >= n, nil
		}
	})
}

// resumed is how a server's job went on.
type resumed struct {
	step      int
	source    string // "device memory", "the checkpoint"
	preserved string // final verdict
	reason    string
	memory    string // what the job found there
}

func readResumed(p *proc) (r resumed, err error) {
	line, _ := p.find("goes on from")
	m := wentOn.FindStringSubmatch(line)
	if m == nil {
		return r, fmt.Errorf("%s did not say how it went on: %q", p.name, line)
	}
	r.step, _ = strconv.Atoi(m[1])
	_, r.source, _ = strings.Cut(line, " in ")
	line, _ = p.find("final verdict:")
	_, r.preserved, _ = strings.Cut(line, "memory preserved: ")
	line, _ = p.find(slot + ": memory preserved:")
	_, r.reason, _ = strings.Cut(line, " - ")
	line, ok := p.find("device memory has ")
	if !ok {
		line, _ = p.find("device memory is ")
	}
	_, r.memory, _ = strings.Cut(line, vm+": ")
	return r, nil
}

// title begins a scene.
func (d *demo) title(lines ...string) {
	fmt.Fprintf(d.out, "\n%s\n", strings.Join(lines, "\n"))
}

// say tells what happened, with the time since the demo began, in 80 columns.
func (d *demo) say(format string, args ...any) {
	stamp := fmt.Sprintf("%6.2f s  ", time.Since(d.began).Seconds())
	width := 80 - len(stamp)
	var line string
	for word := range strings.FieldsSeq(fmt.Sprintf(format, args...)) {
		if line != "" && len(line)+1+len(word) > width {
			fmt.Fprintln(d.out, stamp+line)
			stamp, line = strings.Repeat(" ", len(stamp)), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	fmt.Fprintln(d.out, stamp+line)
}

// summary is the last line.
func (d *demo) summary() string {
	lost := make([]string, len(d.lost))
	for i, n := range d.lost {
		lost[i] = strconv.Itoa(n)
	}
	return fmt.Sprintf("demo: ok moves=%d page_writes_per_move=%d memory_preserved=%s steps_lost=%s",
		d.moves, slices.Max(d.writes), strings.Join(d.preserved, ","), strings.Join(lost, ","))
}
