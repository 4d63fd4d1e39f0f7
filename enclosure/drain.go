package enclosure

import (
	"context"
	"time"

	"baton/ee"
)

// DrainRequest asks to move or release all slots of a host.
type DrainRequest struct {
	ID      ee.UUID
	Host    string
	To      string      // "" = they are released
	Release ReleaseMode // hold or free, where To is ""
	Wait    time.Duration
	By      string
}

// Drained is what became of a host's slots.
type Drained struct {
	Host string
	Done bool
	Sets []DrainedSet
	Left []string
}

// DrainedSet is what became of a VM's slots.
type DrainedSet struct {
	VM     string
	Slots  []string
	Move   ee.UUID // zero = none
	State  string
	Reason string
}

// Drain moves or releases all slots of a host, set by set, and stops at the
// first that fails.
func (e *Enclosure) Drain(ctx context.Context, r DrainRequest) (Drained, error) {
	return Drained{}, notYet()
}
