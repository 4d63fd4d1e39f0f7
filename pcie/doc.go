// Package pcie reads what a PCI Express function shows in its config space.
//
// The DVSEC here is Baton's own layout (docs/dvsec.md); the capability that
// carries it is the standard's: PCI Express Base Specification, Designated
// Vendor-Specific Extended Capability, ID 0x0023.
package pcie
