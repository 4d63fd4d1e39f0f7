// Package sim models an I/O enclosure as hardware behaves: 24Cxx EEPROMs and
// expander engines on I2C buses, the devices behind the engines with their
// memory, the fabric, the switch, and servers with the VMs on them. It does
// what the parts do, not what a test expects, and keeps its own record of what
// every server could reach and of every reset that reached a device. A test
// judges the agent by that record, never by what the agent says.
//
// # Time
//
// The same code runs in a testing/synctest bubble, where its sleeps are virtual
// and exact, and in real time in cmd/batonsim. A transfer sleeps for the bits
// it takes on the wire. All else is lazy: an event (a load that ends, a link
// that comes up, a power cut) has its instant, and is carried out, with that
// instant, before whoever looks next sees or changes anything. So there are no
// goroutines to wait for, and an idle World costs nothing.
//
// Instants are durations since the World was made; a copy goes on from the
// instant of its original. A World belongs to the bubble it was made in
// (channels do): make it, or take it from a Snapshot, inside.
//
// # What is assumed
//
// The EEPROM follows the AT24C data sheets (part.go cites them). The engine is
// ours (package ee, docs/design.md "The engine as we assume it"); where those
// leave a choice, the one that is worse for the agent is modelled:
//
//   - A burst of registers is a snapshot taken when the read is addressed, so
//     what arrives is as old as the transfer is long.
//   - The register file answers nobody (NACK) until EngineStartTime has passed.
//   - CtlReload and CtlDeviceReset read back as 0 at once; only RegStatus tells
//     that the load or the reset has ended.
//   - A link enable that was written during a load is taken back when it ends.
//   - The engine reads its block without a claim on the bus. If its chip is in
//     a write cycle or being addressed it tries again, for 10 ms, then gives up
//     as if the block were bad.
//   - An EEPROM loses its address counter with its power.
package sim
