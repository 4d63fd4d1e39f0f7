package servertest

import (
	"context"

	"baton/ee"
	"baton/enclosure"
)

// Audit is that of Backend.
func (f *Fake) Audit() ([]enclosure.AuditRecord, uint32) { return nil, 0 }

// Refuse is that of Backend.
func (f *Fake) Refuse(string, enclosure.Code, string) {}

// Counters is that of Backend.
func (f *Fake) Counters() enclosure.Counters { return enclosure.Counters{} }

// Drain is that of Backend.
func (f *Fake) Drain(ctx context.Context, r enclosure.DrainRequest) (enclosure.Drained, error) {
	return enclosure.Drained{Host: r.Host, Done: true}, f.begin(ctx, "drain %s to %q release %q", r.Host, r.To, r.Release)
}

// AdoptionOf is that of Backend.
func (f *Fake) AdoptionOf(ctx context.Context, slot string) (enclosure.Adoption, error) {
	return enclosure.Adoption{Slot: slot}, f.begin(ctx, "look at the parts of %s", slot)
}

// Adopt is that of Backend.
func (f *Fake) Adopt(ctx context.Context, slot, token, by string) (enclosure.Adoption, error) {
	return enclosure.Adoption{Slot: slot, Adopted: true}, f.begin(ctx, "adopt %s %s", slot, token)
}

// Locate is that of Backend.
func (f *Fake) Locate(ctx context.Context, slot string, on bool, _ string) error {
	return f.begin(ctx, "locate %s %v", slot, on)
}

// Power is that of Backend.
func (f *Fake) Power(ctx context.Context, r enclosure.PowerRequest) error {
	return f.begin(ctx, "power %s %s", r.Slot, r.State)
}

// Reset is that of Backend.
func (f *Fake) Reset(ctx context.Context, r enclosure.ResetRequest) error {
	return f.begin(ctx, "reset %s", r.Slot)
}

// Resolve is that of Backend.
func (f *Fake) Resolve(ctx context.Context, id ee.UUID, drop []string, _ string) (enclosure.Move, error) {
	return enclosure.Move{ID: id}, f.begin(ctx, "resolve %s without %v", id, drop)
}

// ForceFree is that of Backend.
func (f *Fake) ForceFree(ctx context.Context, slot, typed, _ string) error {
	return f.begin(ctx, "force-free %s %s", slot, typed)
}

// CheckNVM is that of Backend.
func (f *Fake) CheckNVM(ctx context.Context) (enclosure.NVMReport, error) {
	return enclosure.NVMReport{State: "formatted"}, f.begin(ctx, "check NVM")
}

// RepairNVM is that of Backend.
func (f *Fake) RepairNVM(ctx context.Context, token string, format bool, _ string) (enclosure.NVMReport, error) {
	return enclosure.NVMReport{State: "formatted", Repaired: true}, f.begin(ctx, "repair NVM %s format %v", token, format)
}

// DumpNVM is that of Backend.
func (f *Fake) DumpNVM(ctx context.Context, of string) (enclosure.NVMDump, error) {
	return enclosure.NVMDump{Of: of}, f.begin(ctx, "dump NVM of %s", of)
}
