package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"baton/pcie"
)

// Errors that errors.Is finds in what a server's methods return.
var (
	ErrServerOff  = errors.New("the server has no power")
	ErrServerHung = errors.New("the server hangs")
	ErrNotReached = errors.New("the server does not reach the slot's device")
	ErrNoVM       = errors.New("no such VM runs on the server")
)

// Server is a server with its EE(Server), and the VMs on it. Its methods take
// no time.
type Server struct {
	w     *World
	index int
	spec  *ServerSpec
	group uint16
	mac   MAC

	on       bool
	fabric   bool   // its link to the fabric
	hung     bool   // it makes no progress, and sends nothing
	appeared uint64 // order of appearance on the fabric
	vms      []vm
	dma      uint64
	stray    uint64
}

// vm is a VM whose QEMU runs. It is replaced, never changed, so that copies of
// a World may share it.
type vm struct {
	name  string
	slots []int
	opt   VMOptions
}

// VMOptions says which resets the host sends. Their numbers are as measured on
// Linux 6.1 to 7.3 with QEMU 11.1: a function reset at open and a bus reset at
// guest start, two around a guest's reboot, one at close. The zero value is a
// host that resets as usual.
type VMOptions struct {
	NoOpenReset   bool // none when QEMU opens the device and starts the guest; else two
	NoRebootReset bool // none when the guest reboots; else two
	NoCloseReset  bool // none when QEMU ends, however it ends; else one
	NoBusMaster   bool // the guest's driver does not set Bus Master Enable
}

// usable begins every method that needs the server running. It takes the lock.
func (v *Server) usable() (t time.Duration, err error) {
	t = v.w.enter()
	switch {
	case !v.on:
		err = fmt.Errorf("sim: %s: %w", v.spec.Name, ErrServerOff)
	case v.hung:
		err = fmt.Errorf("sim: %s: %w", v.spec.Name, ErrServerHung)
	}
	return t, err
}

func (v *Server) reached(slot string) (*Slot, error) {
	s := v.w.Slot(slot)
	if s.reacher != v.index {
		return nil, fmt.Errorf("sim: %s: %s: %w", v.spec.Name, slot, ErrNotReached)
	}
	return s, nil
}

// StartVM starts a VM with the devices of slots: QEMU opens them, which resets
// them, and the guest's driver makes them bus master.
func (v *Server) StartVM(name string, slots []string, opt VMOptions) error {
	t, err := v.usable()
	defer v.w.mu.Unlock()
	if err != nil {
		return err
	}
	m := vm{name: name, opt: opt}
	for _, n := range slots {
		s, err := v.reached(n)
		if err != nil {
			return err
		}
		if user := v.user(s.index); user != "" {
			return fmt.Errorf("sim: %s: %s is held by %s", v.spec.Name, n, user)
		}
		m.slots = append(m.slots, s.index)
	}
	if slices.ContainsFunc(v.vms, func(o vm) bool { return o.name == name }) {
		return fmt.Errorf("sim: %s: %s runs already", v.spec.Name, name)
	}
	v.vms = append(slices.Clip(v.vms), m)
	if !opt.NoOpenReset {
		v.resetAll(t, m.slots, "host: open", "host: guest start")
	}
	v.guestUp(t, m)
	return nil
}

// resetAll sends each of the resets to each of the slots that are reached.
func (v *Server) resetAll(t time.Duration, slots []int, causes ...string) {
	for _, i := range slots {
		for _, cause := range causes {
			v.w.slots[i].hostReset(t, cause, v.index)
		}
	}
}

// guestUp is the guest's driver taking its devices.
func (v *Server) guestUp(t time.Duration, m vm) {
	for _, i := range m.slots {
		if !m.opt.NoBusMaster {
			v.w.slots[i].setMaster(t, v.index, true)
		}
	}
}

// user is the VM whose QEMU holds the slot.
func (v *Server) user(slot int) string {
	for _, m := range v.vms {
		if slices.Contains(m.slots, slot) {
			return m.name
		}
	}
	return ""
}

func (v *Server) find(name string) (int, error) {
	for i, m := range v.vms {
		if m.name == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("sim: %s: %s: %w", v.spec.Name, name, ErrNoVM)
}

// StopVM shuts a VM down; closing its devices resets what is still reached.
func (v *Server) StopVM(name string) error { return v.end(name, "host: close") }

// KillQEMU is SIGKILL: the kernel closes the devices, with the same resets.
func (v *Server) KillQEMU(name string) error { return v.end(name, "host: QEMU killed") }

func (v *Server) end(name, cause string) error {
	t, err := v.usable()
	defer v.w.mu.Unlock()
	if err != nil {
		return err
	}
	i, err := v.find(name)
	if err != nil {
		return err
	}
	m := v.vms[i]
	v.vms = slices.Concat(v.vms[:i], v.vms[i+1:])
	if !m.opt.NoCloseReset {
		v.resetAll(t, m.slots, cause)
	}
	for _, s := range m.slots {
		v.w.slots[s].setMaster(t, v.index, false)
	}
	return nil
}

// GuestReboot is the VM's own reboot: QEMU resets its devices, its driver takes
// them again.
func (v *Server) GuestReboot(name string) error {
	t, err := v.usable()
	defer v.w.mu.Unlock()
	if err != nil {
		return err
	}
	i, err := v.find(name)
	if err != nil {
		return err
	}
	m := v.vms[i]
	if !m.opt.NoRebootReset {
		v.resetAll(t, m.slots, "host: guest reboot", "host: guest reboot")
	}
	v.guestUp(t, m)
	return nil
}

// Hang stops the server: VMs make no progress, no reset is sent, its links stay.
func (v *Server) Hang() {
	v.w.enter()
	defer v.w.mu.Unlock()
	v.hung = true
}

// Resume ends a Hang.
func (v *Server) Resume() {
	v.w.enter()
	defer v.w.mu.Unlock()
	v.hung = false
}

// PanicReboot is a kernel that panics and boots again: it resets all it can
// reach, twice, and comes up without VMs.
func (v *Server) PanicReboot() {
	t := v.w.enter()
	defer v.w.mu.Unlock()
	if !v.on {
		return
	}
	v.vms, v.hung = nil, false
	for i := range v.w.slots {
		v.w.slots[i].hostReset(t, "host: reboot", v.index)
		v.w.slots[i].hostReset(t, "host: reboot", v.index)
	}
}

// PowerLoss takes the server's power: its VMs are gone, its links drop.
func (v *Server) PowerLoss() {
	t := v.w.enter()
	defer v.w.mu.Unlock()
	v.on, v.hung, v.vms = false, false, nil
	v.w.refresh(t)
}

// PowerOn boots the server; it appears on the fabric, after all that are there.
func (v *Server) PowerOn() {
	t := v.w.enter()
	defer v.w.mu.Unlock()
	if !v.on {
		v.on = true
		v.appear()
		v.w.refresh(t)
	}
}

// LinkLoss cuts the server's link to the fabric.
func (v *Server) LinkLoss() {
	t := v.w.enter()
	defer v.w.mu.Unlock()
	v.fabric = false
	v.w.refresh(t)
}

// LinkRestore ends a LinkLoss.
func (v *Server) LinkRestore() {
	t := v.w.enter()
	defer v.w.mu.Unlock()
	if !v.fabric {
		v.fabric = true
		v.appear()
		v.w.refresh(t)
	}
}

func (v *Server) appear() {
	v.w.appears++
	v.appeared = v.w.appears
}

// SetGroup gives the server's EE(Server) another group, or a stale one.
func (v *Server) SetGroup(group uint16) {
	t := v.w.enter()
	defer v.w.mu.Unlock()
	v.group = group
	v.w.refresh(t)
}

// SetMAC replaces the server's EE(Server).
func (v *Server) SetMAC(mac MAC) {
	t := v.w.enter()
	defer v.w.mu.Unlock()
	v.mac = mac
	v.w.refresh(t)
}

// Reset sends one reset to the slot's device, if it is reached.
func (v *Server) Reset(slot string) error {
	t, err := v.usable()
	defer v.w.mu.Unlock()
	if err != nil {
		return err
	}
	s, err := v.reached(slot)
	if err != nil {
		return err
	}
	s.hostReset(t, "host: reset", v.index)
	return nil
}

// SetBusMaster is a driver on the server setting or clearing Bus Master Enable.
// An engine that quiesces lets nothing set it.
func (v *Server) SetBusMaster(slot string, on bool) error {
	t, err := v.usable()
	defer v.w.mu.Unlock()
	if err != nil {
		return err
	}
	s, err := v.reached(slot)
	if err != nil {
		return err
	}
	s.setMaster(t, v.index, on)
	return nil
}

// Reach tells whether the server can reach the slot's device now.
func (v *Server) Reach(slot string) bool {
	v.w.enter()
	defer v.w.mu.Unlock()
	_, err := v.reached(slot)
	return err == nil
}

// HoldsDevice tells whether that VM runs here and its QEMU holds the slot's
// device, reached or not.
func (v *Server) HoldsDevice(name, slot string) bool {
	v.w.enter()
	defer v.w.mu.Unlock()
	return v.on && v.user(v.w.Slot(slot).index) == name && name != ""
}

// VMs are the names of the VMs that run.
func (v *Server) VMs() []string {
	v.w.enter()
	defer v.w.mu.Unlock()
	var names []string
	for _, m := range v.vms {
		names = append(names, m.name)
	}
	return names
}

// ReadMem reads the slot's device memory from off on.
func (v *Server) ReadMem(slot string, off int, p []byte) error {
	s, err := v.mem(slot, off, len(p))
	defer v.w.mu.Unlock()
	if err != nil {
		return err
	}
	clear(p)
	if s.memory != nil {
		copy(p, s.memory[off:])
	}
	return nil
}

// WriteMem writes the slot's device memory from off on.
func (v *Server) WriteMem(slot string, off int, p []byte) error {
	s, err := v.mem(slot, off, len(p))
	defer v.w.mu.Unlock()
	if err != nil {
		return err
	}
	switch {
	case s.memory == nil:
		s.memory = make([]byte, s.spec.MemoryBytes)
	case s.memShared:
		s.memory = slices.Clone(s.memory)
	}
	s.memShared = false
	copy(s.memory[off:], p)
	return nil
}

// mem takes the lock, as usable does.
func (v *Server) mem(slot string, off, n int) (*Slot, error) {
	if _, err := v.usable(); err != nil {
		return nil, err
	}
	s, err := v.reached(slot)
	if err != nil {
		return nil, err
	}
	if off < 0 || n > s.spec.MemoryBytes-off {
		return nil, fmt.Errorf("sim: %s: %d bytes at 0x%x are outside its memory of %d", slot, n, off, s.spec.MemoryBytes)
	}
	return s, nil
}

// DVSEC is what the slot's port shows in config space, if it is there: device
// power makes no difference, the port is the engine's.
func (v *Server) DVSEC(slot string) (pcie.DVSEC, error) {
	_, err := v.usable()
	defer v.w.mu.Unlock()
	if err != nil {
		return pcie.DVSEC{}, err
	}
	s := v.w.Slot(slot)
	if s.peer != v.index {
		return pcie.DVSEC{}, fmt.Errorf("sim: %s: %s: %w", v.spec.Name, slot, ErrNotReached)
	}
	return s.dvsec(), nil
}

// DMA is how many writes devices made into the server's memory.
func (v *Server) DMA() uint64 {
	n, _ := v.counts()
	return n
}

// StrayDMA is how many of them came from devices that another server's driver
// had programmed.
func (v *Server) StrayDMA() uint64 {
	_, n := v.counts()
	return n
}

func (v *Server) counts() (dma, stray uint64) {
	t := v.w.enter()
	defer v.w.mu.Unlock()
	for i := range v.w.slots {
		v.w.slots[i].account(t)
	}
	return v.dma, v.stray
}
