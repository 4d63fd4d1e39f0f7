package sim

import (
	"baton/ee"
	"baton/pcie"
)

// shown are the flags that the agent writes, engine's those that the engine
// adds from its own state.
var shown = []struct {
	bit  byte
	flag pcie.DVSECFlags
}{
	{ee.ShowValid, pcie.DVSECValid},
	{ee.ShowTarget, pcie.DVSECTarget},
	{ee.ShowPowerKept, pcie.DVSECPowerKept},
	{ee.ShowBusy, pcie.DVSECBusy},
}

// dvsec is what the port above the device shows to hosts.
func (s *Slot) dvsec() pcie.DVSEC {
	d := pcie.DVSEC{
		Vendor:      s.w.spec.DVSECVendor,
		Incarnation: s.block.Generation.Incarnation,
		Counter:     s.block.Generation.Counter,
		From:        s.block.From,
		Group:       s.block.Group,
		Engine:      s.mac,
		Resets:      s.resets,
	}
	for _, f := range shown {
		if s.show&f.bit != 0 {
			d.Flags |= f.flag
		}
	}
	if s.guarded() {
		d.Flags |= pcie.DVSECGuard
	}
	if s.control&ee.CtlQuiesce != 0 {
		d.Flags |= pcie.DVSECQuiesced
	}
	if s.latches&ee.LatchReset != 0 {
		d.Flags |= pcie.DVSECResetSeen
	}
	return d
}
