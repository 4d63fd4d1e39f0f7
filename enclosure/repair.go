package enclosure

import "context"

// NVMReport is what a check of store and config blocks found.
type NVMReport struct {
	State    string
	Findings []NVMFinding
	Token    string
	Repaired bool
	Restart  bool // the agent must be opened anew
}

// NVMFinding is one thing that a check found.
type NVMFinding struct {
	Where, What, Grade, Repair, Lost string
}

// NVMDump is the content of a medium.
type NVMDump struct {
	Of, Part string
	Offset   int64
	Image    []byte
}

// CheckNVM looks for what is wrong with the store and the config blocks. It
// writes nothing.
func (e *Enclosure) CheckNVM(ctx context.Context) (NVMReport, error) { return NVMReport{}, notYet() }

// RepairNVM does what the report that token stands for says.
func (e *Enclosure) RepairNVM(ctx context.Context, token string, format bool, by string) (NVMReport, error) {
	return NVMReport{}, notYet()
}

// DumpNVM reads the store's medium, or that of a slot's engine.
func (e *Enclosure) DumpNVM(ctx context.Context, of string) (NVMDump, error) {
	return NVMDump{}, notYet()
}
