package ee

// The register file of profile regs-v1. The chip's real map is not public:
// this one is ours (docs/engine-regs-v1.md), and a board's own profile gives
// other offsets. Pointer 16 bits big-endian, auto-increment, values
// little-endian.
//
// The order of the live block is what makes a move cheap: CONTROL is followed
// by STATUS and LATCH, so one combined transfer writes the cut and reads back
// whether it took, and EXPECT_PEER, DVSEC and CONTROL are one burst that ends
// with the link.
const (
	RegID       = 0x0000 // 4 bytes, EngineID
	RegRevision = 0x0004 // 2
	RegMAC      = 0x0006 // 6, wire order
	RegVendor   = 0x000C // 2, PCI vendor of the device behind the engine; 0xFFFF = none
	RegDevice   = 0x000E // 2, PCI device ID
	RegClass    = 0x0010 // 4, PCI class code in the low 24 bits
	RegSerial   = 0x0014 // 8, PCIe Device Serial Number

	RegExpectPeer  = 0x0100 // 6, wire order; zero = whoever has the group
	RegDVSEC       = 0x0106 // 1, Show* bits
	RegControl     = 0x0107 // 1, Ctl* bits
	RegStatus      = 0x0108 // 1, Stat* bits
	RegLatch       = 0x0109 // 1, Latch* bits, write 1 to clear
	RegGroup       = 0x010A // 2, group the engine runs with, from the block it loaded
	RegResets      = 0x010C // 4, resets that reached the device since the engine started; device power-up counts
	RegEpoch       = 0x0110 // 4, random at each device power-up, never 0
	RegProven      = 0x0114 // 4, written by the agent: Resets at the last proof; 0 after an engine restart
	RegIdent       = 0x0118 // 4, CRC-32C over the 28 bytes at RegID: one word that differs when any part was replaced
	RegSwallowed   = 0x011C // 4, resets the guard swallowed
	RegLinkChanges = 0x0120 // 4
	RegRetransmits = 0x0124 // 4, frames
	RegPeerMAC     = 0x0128 // 6, zero = no peer
	RegPeerGroup   = 0x012E // 2
	RegGeneration  = 0x0130 // 8, incarnation and counter of the block it loaded
	RegFromGroup   = 0x0138 // 2, from-group of the block it loaded

	// RegEnd is one past the last register; reads beyond return 0xFF, writes are ignored.
	RegEnd = 0x0140
)

// EngineID is what RegID reads ("EEI1", little-endian).
const EngineID = 0x31494545

// Bits of RegControl. Reload, DeviceReset clear themselves.
const (
	CtlLink        = 1 << iota // link enable
	CtlGuard                   // swallow resets from the host side
	CtlHold                    // keep the device powered and out of reset when the link drops
	CtlQuiesce                 // Bus Master Enable is held clear
	CtlReload                  // load the config block; ends with link enable 0, DVSEC not valid
	CtlDeviceReset             // the agent's own reset: passes the guard, counts in RegResets
	CtlPower                   // device power
	CtlLocate                  // locate LED
)

// Bits of RegStatus.
const (
	StatLink      = 1 << iota // link up
	StatPeer                  // a peer with this group (and EXPECT_PEER's MAC) is on the fabric
	StatDevice                // device present
	StatPower                 // device power good
	StatConfigBad             // the block's CRC or magic was bad: the engine stays unconnected
	StatLoaded                // a load has ended since the last start or reload
	StatResetting             // a device reset or power-up is under way
	StatEnabled               // link enable, as the engine has it: a link that is down but enabled is no cut
)

// Bits of RegLatch.
const (
	LatchPowerLost = 1 << iota
	LatchRestarted // the engine restarted
	LatchReset     // a reset reached the device
	LatchLinkLost  // the link went down without the agent's asking
)

// Bits of RegDVSEC: what hosts see; the engine adds guard, quiesced and reset
// seen from its own state, and group and generation from the loaded block.
const (
	ShowValid = 1 << iota
	ShowTarget
	ShowPowerKept
	ShowBusy
)

// Group IDs of the ExpEther manager (public documentation: 16..4092 can be assigned).
const (
	GroupMin  = 16
	GroupMax  = 4092
	GroupFree = 4093
)
