package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"baton/mgmt"
	"baton/pcie"
	"baton/sim/control"
)

// runServer plays the software of one server until ctx ends.
func runServer(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("batonsim server", flag.ContinueOnError)
	name := fs.String("name", "", "name of the server, in the world and in the agent's configuration")
	world := fs.String("control", "", "control socket of the simulator")
	socket := fs.String("agent", "", "management socket of batond")
	file := fs.String("job", "", "file of the job")
	if err := parse(fs, args, stderr, "name", "control", "agent", "job"); err != nil {
		return err
	}
	j, err := readJob(*file)
	if err != nil {
		return err
	}
	hardware, a := control.Dial(*world), mgmt.Dial(*socket)
	defer hardware.Close()
	defer a.Close()
	h := &host{name: *name, hardware: hardware, agent: a, job: j, out: stdout}
	return h.run(ctx)
}

// agent is what a server asks of the agent in the enclosure.
type agent interface {
	Attach(ctx context.Context, slot string, r mgmt.AttachRequest) (mgmt.Attached, error)
	Verdict(ctx context.Context, slot string) (mgmt.Verdict, error)
	Arm(ctx context.Context, slot string, r mgmt.ArmRequest) (mgmt.Arming, error)
	Ack(ctx context.Context, slot string, r mgmt.AckRequest) error
	Alive(ctx context.Context, slot string, r mgmt.AliveRequest) error
}

// host is the software of a server.
type host struct {
	name     string
	hardware *control.Client // the server's own hardware
	agent    agent
	job      job

	mu  sync.Mutex
	out io.Writer
}

func (h *host) say(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fmt.Fprintf(h.out, "%s: "+format+"\n", append([]any{h.name}, args...)...)
}

// run does what the hook and QEMU of a real server do: attach, wait for the
// device, verdict, start the VM, verdict again, acknowledge; then the guest
// trains. When ctx ends it arms the slot and stops the VM, ready to be moved.
func (h *host) run(ctx context.Context) error {
	slot := h.job.Slot
	a, err := h.attach(ctx)
	if err != nil {
		return fmt.Errorf("attach %s: %w", slot, err)
	}
	d, err := h.awaitDevice(ctx, a.Generation[slot])
	if err != nil {
		return fmt.Errorf("device of %s: %w", slot, err)
	}
	h.say("%s: device is there, generation %s, DVSEC %s", slot, a.Generation[slot], d.Flags)
	before, err := h.verdict(ctx)
	if err != nil {
		return err
	}
	h.say("%s: memory preserved: %s - %s", slot, before.Preserved, before.Reason)
	if err := h.hardware.StartVM(ctx, h.name, h.job.VM, control.StartVM{Slots: []string{slot}}); err != nil {
		return fmt.Errorf("start %s: %w", h.job.VM, err)
	}
	// QEMU has opened the device by now: what that did to it counts too.
	after, err := h.verdict(ctx)
	if err != nil {
		return err
	}
	preserved := before.Preserved == "yes" && after.Preserved == "yes" && d.Flags&pcie.DVSECTarget != 0
	h.say("%s: started on %s, final verdict: memory preserved: %s", h.job.VM, slot, yesNo(preserved))
	err = h.patiently(ctx, func() error {
		return h.agent.Ack(ctx, slot, mgmt.AckRequest{Nonce: a.Nonce, Generation: after.Generation, Seen: after.Now})
	})
	if err != nil {
		return fmt.Errorf("ack %s: %w", slot, err)
	}
	h.say("%s: acknowledged", slot)
	return h.guest(ctx, preserved, after.Generation)
}

func (h *host) attach(ctx context.Context) (a mgmt.Attached, err error) {
	h.say("%s: asks for %s", h.job.VM, h.job.Slot)
	err = h.patiently(ctx, func() (err error) {
		a, err = h.agent.Attach(ctx, h.job.Slot, mgmt.AttachRequest{VM: h.job.VM, Host: h.name, WaitMS: time.Duration(h.job.Wait).Milliseconds()})
		return err
	})
	return a, err
}

func (h *host) verdict(ctx context.Context) (v mgmt.Verdict, err error) {
	err = h.patiently(ctx, func() (err error) {
		v, err = h.agent.Verdict(ctx, h.job.Slot)
		return err
	})
	if err != nil {
		return v, fmt.Errorf("verdict of %s: %w", h.job.Slot, err)
	}
	return v, nil
}

// pollEvery is how often a server looks again.
const pollEvery = 5 * time.Millisecond

// patiently repeats f, within the job's wait, as long as a retry may help: the
// agent is busy, or restarts.
func (h *host) patiently(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(time.Duration(h.job.Wait))
	for {
		err := f()
		var problem *mgmt.Problem
		var away *mgmt.UnreachableError
		switch {
		case errors.As(err, &problem) && problem.Retry, errors.As(err, &away):
		default:
			return err
		}
		if !time.Now().Before(deadline) || !sleep(ctx, 10*pollEvery) {
			return err
		}
	}
}

// awaitDevice reads the slot's DVSEC until it is stable and of that
// generation.
func (h *host) awaitDevice(ctx context.Context, generation string) (pcie.DVSEC, error) {
	deadline := time.Now().Add(time.Duration(h.job.Wait))
	for {
		a, err := h.hardware.DVSEC(ctx, h.name, h.job.Slot)
		if err == nil {
			var b pcie.DVSEC
			if b, err = h.hardware.DVSEC(ctx, h.name, h.job.Slot); err == nil {
				if g := fmt.Sprintf("%08x-%d", a.Incarnation, a.Counter); pcie.Stable(a, b) && g == generation {
					return a, nil
				}
				err = fmt.Errorf("its DVSEC says %s, generation %08x-%d; want valid, generation %s", a.Flags, a.Incarnation, a.Counter, generation)
			}
		}
		if !time.Now().Before(deadline) || !sleep(ctx, pollEvery) {
			return pcie.DVSEC{}, err
		}
	}
}

// guest is the job in the VM, with the server's proofs of life beside it.
func (h *host) guest(ctx context.Context, preserved bool, generation string) error {
	t, err := h.resume(ctx, preserved)
	if err != nil {
		return err
	}
	proofs, stop := context.WithCancel(ctx)
	var prover sync.WaitGroup
	prover.Go(func() { h.proveLife(proofs, generation) })
	err = h.train(ctx, t)
	stop()
	prover.Wait()
	if err != nil {
		return err
	}
	return h.leave(generation)
}

// resume finds the state to go on from: what is in device memory, if the host
// says that it was preserved and the job finds its own signature there; else
// the checkpoint.
func (h *host) resume(ctx context.Context, preserved bool) (training, error) {
	saved, found, err := loadCheckpoint(h.job.Checkpoint)
	if err != nil {
		return training{}, err
	}
	if !found {
		var run [8]byte
		_, _ = rand.Read(run[:]) // never fails
		saved.Run = binary.LittleEndian.Uint64(run[:])
		if err := saveCheckpoint(h.job.Checkpoint, saved); err != nil {
			return training{}, err
		}
	}
	mem, err := h.hardware.ReadMem(ctx, h.name, h.job.Slot, 0, memorySize)
	if err != nil {
		return training{}, fmt.Errorf("device memory: %w", err)
	}
	t, why := newest(mem, saved.Run)
	if why == nil {
		h.say("%s: device memory has our step %d", h.job.VM, t.Step)
	} else {
		h.say("%s: %v", h.job.VM, why)
	}
	switch {
	case preserved && why == nil:
		h.say("%s: goes on from step %d in device memory", h.job.VM, t.Step)
		return t, nil
	case found:
		h.say("%s: goes on from step %d in the checkpoint", h.job.VM, saved.Step)
	default:
		h.say("%s: begins at step 0", h.job.VM)
	}
	return saved, nil
}

// train does steps until ctx ends, the job is done, or the device is lost. A
// step is said to be done once it is in device memory.
func (h *host) train(ctx context.Context, t training) error {
	for h.job.Steps == 0 || t.Step < h.job.Steps {
		if !sleep(ctx, time.Duration(h.job.StepTime)) {
			break
		}
		t = t.next()
		// Not under ctx: a step is done as a whole.
		if err := h.hardware.WriteMem(context.WithoutCancel(ctx), h.name, h.job.Slot, t.place(), t.record()); err != nil {
			return fmt.Errorf("step %d: %w", t.Step, err)
		}
		h.say("%s: step %d model %x", h.job.VM, t.Step, t.Model[:4])
		if t.Step%h.job.CheckpointEvery == 0 {
			if err := saveCheckpoint(h.job.Checkpoint, t); err != nil {
				return err
			}
			h.say("%s: checkpoint at step %d", h.job.VM, t.Step)
		}
	}
	return nil
}

// proveLife posts proofs until ctx ends: read the reset count, see that QEMU
// still holds the device, post what was read. A reset between the reading and
// the post is not covered.
func (h *host) proveLife(ctx context.Context, generation string) {
	for sleep(ctx, time.Duration(h.job.ProofEvery)) {
		err := func() error {
			v, err := h.agent.Verdict(ctx, h.job.Slot)
			if err != nil {
				return err
			}
			if holds, err := h.holds(ctx); err != nil {
				return err
			} else if !holds {
				return fmt.Errorf("QEMU of %s does not hold the device", h.job.VM)
			}
			return h.agent.Alive(ctx, h.job.Slot, mgmt.AliveRequest{Generation: generation, Seen: v.Now})
		}()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			h.say("%s: no proof of life: %v", h.job.Slot, err)
		default:
			h.say("%s: proof of life", h.job.Slot)
		}
	}
}

// holds tells whether QEMU of the job's VM holds the device.
func (h *host) holds(ctx context.Context) (bool, error) {
	s, err := h.hardware.State(ctx)
	if err != nil {
		return false, err
	}
	me, _ := s.Server(h.name)
	for _, vm := range me.VMs {
		for _, slot := range vm.Holds {
			if vm.Name == h.job.VM && slot == h.job.Slot {
				return true, nil
			}
		}
	}
	return false, nil
}

// leave is the planned end: arm while QEMU still holds the device, then stop
// the VM. Its closing resets meet the guard.
func (h *host) leave(generation string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(h.job.Wait))
	defer cancel()
	v, err := h.verdict(ctx)
	if err != nil {
		return err
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	r := mgmt.ArmRequest{ID: uuid(id), Generation: generation, Seen: &v.Now}
	var a mgmt.Arming
	err = h.patiently(ctx, func() (err error) {
		a, err = h.agent.Arm(ctx, h.job.Slot, r)
		return err
	})
	if err != nil {
		return fmt.Errorf("arm %s: %w", h.job.Slot, err)
	}
	h.say("%s: %s", h.job.Slot, strings.TrimSpace(a.Flag+" "+a.Reason))
	if err := h.hardware.VM(ctx, h.name, h.job.VM, "stop"); err != nil {
		return fmt.Errorf("stop %s: %w", h.job.VM, err)
	}
	h.say("%s: stopped", h.job.VM)
	return nil
}

func uuid(id [16]byte) string {
	id[6], id[8] = id[6]&0x0F|0x40, id[8]&0x3F|0x80 // version 4 of RFC 9562
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// sleep waits for d and tells whether ctx still stands.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
