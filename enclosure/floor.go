package enclosure

import (
	"context"

	"baton/ee"
)

// Floor is what a backup says of generations and fences: nothing at or below
// it may come again. It is no assignment.
type Floor struct {
	Slots map[string]ee.Generation
	Hosts map[string]uint32 // epochs of fences
}

// Floor returns the present one.
func (e *Enclosure) Floor() Floor { return Floor{} }

// Raise takes a floor of a backup into the store, and says in words what that
// changed. With dry nothing is changed.
func (e *Enclosure) Raise(ctx context.Context, f Floor, dry bool, by string) ([]string, error) {
	return nil, notYet()
}
