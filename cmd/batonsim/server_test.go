package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"baton/ee"
	"baton/mgmt"
	"baton/sim"
	"baton/sim/control"
)

// fakeAgent does to the world what an agent would, without an agent's checks,
// and keeps what it was asked, in order.
type fakeAgent struct {
	t *testing.T
	w *sim.World

	mu      sync.Mutex
	calls   []string
	counter uint32
	answer  string // of the verdict
	later   string // of verdicts once the VM runs; "" = the same
	show    byte
	busy    int // so many calls are refused first
}

func (a *fakeAgent) called(format string, args ...any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy > 0 {
		a.busy--
		return &mgmt.Problem{Code: "busy", Detail: "busy", Retry: true}
	}
	a.calls = append(a.calls, fmt.Sprintf(format, args...))
	return nil
}

func (a *fakeAgent) log() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls)
}

func (a *fakeAgent) gen() string { return ee.Generation{Incarnation: 1, Counter: a.counter}.String() }

func (a *fakeAgent) control(v byte) {
	if err := a.w.Bus("bus0").Tx(0x40, []byte{ee.RegControl >> 8, ee.RegControl & 0xFF, v}, nil); err != nil {
		a.t.Error(err)
	}
}

func (a *fakeAgent) Attach(_ context.Context, slot string, r mgmt.AttachRequest) (mgmt.Attached, error) {
	if err := a.called("attach %s %s %s", slot, r.VM, r.Host); err != nil {
		return mgmt.Attached{}, err
	}
	group := map[string]uint16{"server1": 101, "server2": 102}[r.Host]
	a.counter++
	a.control(ee.CtlPower | ee.CtlGuard)
	a.w.Slot(slot).SetBlock(ee.Block{Group: group, From: ee.GroupFree, Generation: ee.Generation{Incarnation: 1, Counter: a.counter}})
	a.control(ee.CtlPower | ee.CtlGuard | ee.CtlReload)
	time.Sleep(10 * time.Millisecond)
	if err := a.w.Bus("bus0").Tx(0x40, []byte{ee.RegDVSEC >> 8, ee.RegDVSEC & 0xFF, a.show}, nil); err != nil {
		a.t.Error(err)
	}
	a.control(ee.CtlPower | ee.CtlGuard | ee.CtlLink)
	return mgmt.Attached{Nonce: "n1", Moved: true, State: "done", Generation: map[string]string{slot: a.gen()}}, nil
}

func (a *fakeAgent) Verdict(_ context.Context, slot string) (mgmt.Verdict, error) {
	if err := a.called("verdict %s", slot); err != nil {
		return mgmt.Verdict{}, err
	}
	v := mgmt.Verdict{Slot: slot, Generation: a.gen(), Preserved: a.answer, Reason: "the fake says so", Now: mgmt.Values{Resets: 7}}
	for _, server := range []string{"server1", "server2"} {
		if len(a.w.Server(server).VMs()) > 0 && a.later != "" {
			v.Preserved = a.later
		}
	}
	return v, nil
}

func (a *fakeAgent) Arm(_ context.Context, slot string, r mgmt.ArmRequest) (mgmt.Arming, error) {
	held := a.w.Server("server1").HoldsDevice("train1", slot)
	return mgmt.Arming{ID: r.ID, Proof: true, Flag: "armed"}, a.called("arm %s %s resets %d held %v", slot, r.Generation, r.Seen.Resets, held)
}

func (a *fakeAgent) Ack(_ context.Context, slot string, r mgmt.AckRequest) error {
	return a.called("ack %s %s %s resets %d", slot, r.Nonce, r.Generation, r.Seen.Resets)
}

func (a *fakeAgent) Alive(_ context.Context, slot string, r mgmt.AliveRequest) error {
	return a.called("alive %s %s resets %d", slot, r.Generation, r.Seen.Resets)
}

// stage is a world with its control socket, a fake agent and a job.
type stage struct {
	w     *sim.World
	c     *control.Client
	agent *fakeAgent
	job   job
}

func newStage(t *testing.T) *stage {
	t.Helper()
	w := sim.New(control.ExampleWorld())
	time.Sleep(15 * time.Millisecond) // engines start
	path := filepath.Join(t.TempDir(), "control.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- control.Serve(ctx, l, control.Handler(w, nil)) }()
	c := control.Dial(path)
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return &stage{w, c, &fakeAgent{t: t, w: w, answer: "no", show: ee.ShowValid}, job{
		VM: "train1", Slot: "gpu0", Checkpoint: filepath.Join(t.TempDir(), "ckpt"), CheckpointEvery: 10,
		StepTime: control.Duration(time.Millisecond), ProofEvery: control.Duration(15 * time.Millisecond), Wait: control.Duration(3 * time.Second),
	}}
}

// run runs a server until stop.
func (s *stage) run(t *testing.T, name string) (out *lockedBuffer, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out = &lockedBuffer{}
	h := &host{name: name, hardware: s.c, agent: s.agent, job: s.job, out: out}
	ended := make(chan error, 1)
	go func() { ended <- h.run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = stop() })
	return out, stop
}

var stepLine = regexp.MustCompile(`: step (\d+) model`)

// lastStep is the last step that a server said was done.
func lastStep(out *lockedBuffer) int {
	all := stepLine.FindAllStringSubmatch(out.String(), -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1][1])
	return n
}

// A first start, proofs while it runs, and a planned end; then the next server
// goes on from device memory with the step that came last.
func TestServerPlanned(t *testing.T) {
	s := newStage(t)
	s.agent.busy = 2 // is repeated
	out, stop := s.run(t, "server1")
	await(t, "25 steps and a proof", func() bool { return lastStep(out) >= 25 && strings.Contains(out.String(), "proof of life") })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	calls := s.agent.log()
	begin := []string{"attach gpu0 train1 server1", "verdict gpu0", "verdict gpu0", "ack gpu0 n1 00000001-1 resets 7"}
	if !slices.Equal(calls[:4], begin) {
		t.Errorf("asked\n%q; want it to begin\n%q", calls, begin)
	}
	if !slices.Contains(calls, "alive gpu0 00000001-1 resets 7") {
		t.Errorf("asked %q; want a proof of life", calls)
	}
	if last := calls[len(calls)-1]; last != "arm gpu0 00000001-1 resets 7 held true" {
		t.Errorf("asked last %q; want to arm while QEMU held the device", last)
	}
	if vms := s.w.Server("server1").VMs(); len(vms) != 0 {
		t.Errorf("%q run on after the end", vms)
	}
	for _, want := range []string{"train1: begins at step 0", "checkpoint at step 20", "gpu0: armed", "train1: stopped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("did not say %q:\n%s", want, out)
		}
	}
	n := lastStep(out)

	s.agent.answer, s.agent.show = "yes", ee.ShowValid|ee.ShowTarget
	out, stop = s.run(t, "server2")
	await(t, "a step on server2", func() bool { return lastStep(out) > n })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("goes on from step %d in device memory", n); !strings.Contains(out.String(), want) {
		t.Errorf("server2 did not say %q:\n%s", want, out)
	}
	saved, _, err := loadCheckpoint(s.job.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	if want := after(saved.Run, int(saved.Step)); saved != want {
		t.Errorf("after %d steps on two servers the model is %x; want %x, as if it had never stopped", saved.Step, saved.Model, want.Model)
	}
}

// Whatever lets the host doubt, the job goes on from the checkpoint.
func TestServerDoubts(t *testing.T) {
	for _, tc := range []struct {
		name                string
		before, later       string
		show                byte
		wipe, flip, another bool
		want                string // how it goes on
		sees                string // in the memory
	}{
		{"verdict no", "no", "", ee.ShowValid, true, false, false, "step 10 in the checkpoint", "all zero"},
		{"verdict no though the memory is good", "no", "", ee.ShowValid | ee.ShowTarget, false, false, false, "step 10 in the checkpoint", "has our step 17"},
		{"verdict unknown", "unknown", "", ee.ShowValid | ee.ShowTarget, false, false, false, "step 10 in the checkpoint", "has our step 17"},
		{"reset at VM start", "yes", "no", ee.ShowValid | ee.ShowTarget, true, false, false, "step 10 in the checkpoint", "all zero"},
		{"doubt at VM start", "yes", "no", ee.ShowValid | ee.ShowTarget, false, false, false, "step 10 in the checkpoint", "has our step 17"},
		{"no at first", "no", "yes", ee.ShowValid | ee.ShowTarget, false, false, false, "step 10 in the checkpoint", "has our step 17"},
		{"flag not shown in band", "yes", "yes", ee.ShowValid, false, false, false, "step 10 in the checkpoint", "has our step 17"},
		{"yes, but the memory is not ours", "yes", "yes", ee.ShowValid | ee.ShowTarget, false, false, true, "step 10 in the checkpoint", "another job"},
		{"yes, one record damaged", "yes", "yes", ee.ShowValid | ee.ShowTarget, false, true, false, "step 16 in device memory", "has our step 16"},
		{"yes", "yes", "yes", ee.ShowValid | ee.ShowTarget, false, false, false, "step 17 in device memory", "has our step 17"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t)
			// As a server left it: 17 steps, a checkpoint at 10.
			run := uint64(77)
			if err := saveCheckpoint(s.job.Checkpoint, after(run, 10)); err != nil {
				t.Fatal(err)
			}
			if tc.another {
				run = 78
			}
			if _, err := s.agent.Attach(t.Context(), "gpu0", mgmt.AttachRequest{VM: "train1", Host: "server1"}); err != nil {
				t.Fatal(err)
			}
			await(t, "a link", func() bool { return s.w.Server("server1").Reach("gpu0") })
			mem := memory(after(run, 16), after(run, 17))
			if tc.flip {
				mem[recordSize+30] ^= 4 // step 17 is odd
			}
			if tc.wipe {
				clear(mem)
			}
			if err := s.w.Server("server1").WriteMem("gpu0", 0, mem); err != nil {
				t.Fatal(err)
			}
			s.agent.answer, s.agent.later, s.agent.show = tc.before, tc.later, tc.show
			out, stop := s.run(t, "server2")
			await(t, "a step", func() bool { return lastStep(out) > 0 })
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"goes on from " + tc.want, tc.sees} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("did not say %q:\n%s", want, out)
				}
			}
		})
	}
}

// A server that loses its device, or hangs, does not say that a step is done
// that is not.
func TestServerLosesDevice(t *testing.T) {
	for _, what := range []string{"hang", "power-loss", "link-loss"} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			out, stop := s.run(t, "server1")
			await(t, "5 steps", func() bool { return lastStep(out) >= 5 })
			if err := s.c.Server(t.Context(), "server1", what); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond) // it ends by itself
			err := stop()
			if !errors.Is(err, sim.ErrServerHung) && !errors.Is(err, sim.ErrServerOff) && !errors.Is(err, sim.ErrNotReached) {
				t.Errorf("run = %v; want the reason the device was lost", err)
			}
			if got := s.agent.log(); slices.ContainsFunc(got, func(c string) bool { return strings.HasPrefix(c, "arm") }) {
				t.Errorf("a server that died armed: %q", got)
			}
			// The memory has what was said, or one more that was not.
			s.w.Server("server1").Resume()
			s.w.Server("server1").PowerOn()
			s.w.Server("server1").LinkRestore()
			await(t, "the link", func() bool { return s.w.Server("server1").Reach("gpu0") })
			mem := make([]byte, memorySize)
			if err := s.w.Server("server1").ReadMem("gpu0", 0, mem); err != nil {
				t.Fatal(err)
			}
			saved, _, err := loadCheckpoint(s.job.Checkpoint)
			if err != nil {
				t.Fatal(err)
			}
			got, err := newest(mem, saved.Run)
			if n := uint64(lastStep(out)); err != nil || got.Step != n {
				t.Errorf("memory has step %d, %v; server1 said %d was done", got.Step, err, n)
			}
		})
	}
}

// Once QEMU is dead, no proof of life is posted, though the device answers and
// the server's software runs on.
func TestServerProvesOnlyWhatLives(t *testing.T) {
	s := newStage(t)
	out, _ := s.run(t, "server1")
	await(t, "a proof", func() bool { return strings.Contains(out.String(), "proof of life") })
	if err := s.c.VM(t.Context(), "server1", "train1", "kill"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Millisecond) // one that was under way
	n := len(s.agent.log())
	await(t, "it to look three times more", func() bool { return len(s.agent.log()) >= n+3 })
	for _, call := range s.agent.log()[n:] {
		if strings.HasPrefix(call, "alive") {
			t.Errorf("%q after QEMU was killed", call)
		}
	}
	if _, since, ok := strings.Cut(out.String(), "gpu0: no proof of life: QEMU of train1 does not hold"); !ok || strings.Contains(since, "gpu0: proof") {
		t.Errorf("it should say that it has no proof:\n%s", out)
	}
}

func TestServerEndsWithItsJob(t *testing.T) {
	s := newStage(t)
	s.job.Steps = 12
	out, _ := s.run(t, "server1")
	await(t, "its end", func() bool { return strings.Contains(out.String(), "train1: stopped") })
	if n := lastStep(out); n != 12 {
		t.Errorf("%d steps; want 12", n)
	}
}

func TestReadJob(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.json")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"vm":"train1","slot":"gpu0","checkpoint":"/x"}`)
	j, err := readJob(path)
	if err != nil || j.CheckpointEvery != 100 || time.Duration(j.ProofEvery) != 10*time.Second {
		t.Errorf("readJob = %+v, %v; want defaults", j, err)
	}
	for text, want := range map[string]string{
		`{}`:                            "vm is missing",
		`{"vm":"train1","slot":"gpu0"}`: "checkpoint is missing",
		`{"vm":"train1","slot":"gpu0","checkpoint":"/x","checkpoint_every":0}`:  "checkpoint_every",
		`{"vm":"train1","slot":"gpu0","checkpoint":"/x","step_time":"fast"}`:    "fast",
		`{"vm":"train1","slot":"gpu0","checkpoint":"/x","gpus":8}`:              "gpus",
		`{"vm":"train1","slot":"gpu0","checkpoint":"/x","checkpoint_every":-1}`: "checkpoint_every",
	} {
		write(text)
		if _, err := readJob(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("readJob(%s) = %v; want something with %q", text, err, want)
		}
	}
}
