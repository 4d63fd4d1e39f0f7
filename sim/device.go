package sim

import (
	"time"

	"baton/ee"
)

// Device is what a slot's device says it is.
type Device struct {
	Vendor, Device uint16 // Vendor 0xFFFF = there is none
	Class          uint32
	Serial         uint64
}

func (d Device) present() bool { return d.Vendor != 0xFFFF }

// noDevice is what registers read without a device.
var noDevice = Device{0xFFFF, 0xFFFF, 0xFFFFFF, 0}

// resetDevice is a reset that reaches the device: it forgets all it had.
func (s *Slot) resetDevice(t time.Duration, cause string, server int) {
	if !s.powered || !s.device.present() {
		return
	}
	s.logReset(t, cause, server, false)
	s.account(t)
	s.memory, s.memShared, s.master, s.dmaTo = nil, false, false, -1
	s.resets++
	s.latches |= ee.LatchReset
}

// hostReset is a reset that comes from the server the slot is linked to.
func (s *Slot) hostReset(t time.Duration, cause string, server int) {
	if s.peer != server || !s.powered || !s.device.present() {
		return
	}
	if s.guarded() {
		s.swallowed++
		s.logReset(t, cause, server, true)
		return
	}
	s.resetDevice(t, cause, server)
}

func (s *Slot) logReset(t time.Duration, cause string, server int, swallowed bool) {
	r := Reset{At: t, Slot: s.spec.Name, Cause: cause, Swallowed: swallowed}
	if server >= 0 {
		r.Server = s.w.servers[server].spec.Name
	}
	s.w.record.resets = append(s.w.record.resets, r)
}

// devicePowerDown takes the device's power. The link stays: it is the
// engine's.
func (s *Slot) devicePowerDown(t time.Duration) {
	if !s.powered {
		return
	}
	s.account(t)
	s.powered = false
	s.memory, s.memShared, s.master, s.dmaTo = nil, false, false, -1
	s.resetAt, s.readyAt = never, 0
	if s.device.present() {
		s.w.record.losses = append(s.w.record.losses, PowerLoss{t, s.spec.Name})
	}
	s.reachChanged(t)
}

// devicePowerUp gives the device power: it comes up reset, in a new epoch.
func (s *Slot) devicePowerUp(t time.Duration) {
	for s.epoch = 0; s.epoch == 0; {
		s.epoch = uint32(s.w.rng.next() >> 32)
	}
	s.memory, s.memShared, s.master, s.dmaTo = nil, false, false, -1
	s.powered, s.readyAt = true, t+s.w.spec.DeviceResetTime
	if s.device.present() {
		s.resets++
		s.logReset(t, "power-up", -1, false)
	}
	s.reachChanged(t)
}

// setMaster is the driver of that server setting or clearing Bus Master
// Enable, having programmed its own addresses.
func (s *Slot) setMaster(t time.Duration, server int, on bool) {
	if s.reacher != server || s.control&ee.CtlQuiesce != 0 {
		return
	}
	s.account(t)
	s.master = on
	if on {
		s.dmaTo = server
	}
}

// account adds up what a device that is bus master wrote into the memory of
// the server it is linked to, until t. What goes to another server than its
// driver's is stray.
func (s *Slot) account(t time.Duration) {
	if !s.master || s.reacher < 0 {
		s.dmaAt = t // the first write is due as soon as it can go out
		return
	}
	if t < s.dmaAt {
		return
	}
	n := 1 + (t-s.dmaAt)/s.w.spec.DMAPeriod
	s.dmaAt += n * s.w.spec.DMAPeriod
	v := &s.w.servers[s.reacher]
	v.dma += uint64(n)
	if s.dmaTo != s.reacher {
		v.stray += uint64(n)
	}
}

// RemoveDevice pulls the device out of its slot.
func (s *Slot) RemoveDevice() { s.InsertDevice(noDevice) }

// InsertDevice puts another device in the slot; it comes up with its memory
// clear, and the engine counts its power-up.
func (s *Slot) InsertDevice(d Device) {
	t := s.w.enter()
	defer s.w.mu.Unlock()
	s.devicePowerDown(t)
	s.device = d
	if s.running && s.control&ee.CtlPower != 0 {
		s.latches |= ee.LatchPowerLost
		s.devicePowerUp(t)
	}
}
