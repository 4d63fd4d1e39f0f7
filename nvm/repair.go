package nvm

import (
	"context"
	"errors"
	"fmt"
)

// Repair is what is to be done to a medium so that it holds a store without
// damage. enclosure/plan decides it; nothing here knows what records mean.
type Repair struct {
	// Format makes the store anew, under Incarnation: all that it held is lost.
	Format bool
	// Salvage writes the format records anew, for a store of Incarnation that
	// lost them all.
	Salvage     bool
	Incarnation uint32
	// Clean makes good every page that is damaged, and clears those of batches
	// that were never acknowledged.
	Clean bool
	// Batches are written last, in order, each as one.
	Batches [][]Record
}

// None tells whether there is nothing to be done.
func (r Repair) None() bool {
	return !r.Format && !r.Salvage && !r.Clean && len(r.Batches) == 0
}

// Mend does r to the store on m and returns it, mounted. A power cut at any
// instant leaves a medium to which a repair, decided anew, can be done; pass
// Options.Suspect then, as after any power cut.
func Mend(ctx context.Context, m Medium, r Repair, opt Options) (*Store, Report, error) {
	var s *Store
	var rep Report
	var err error
	switch {
	case r.Format:
		s, err = Format(ctx, m, r.Incarnation, opt)
	case r.Salvage:
		s, rep, err = Salvage(ctx, m, r.Incarnation, opt)
	default:
		s, rep, err = Mount(ctx, m, opt)
	}
	if err != nil {
		return nil, rep, err
	}
	if err := s.Mend(ctx, r); err != nil {
		return nil, rep, err
	}
	return s, rep, nil
}

// Mend does what r says of a store that is mounted: Clean and Batches.
func (s *Store) Mend(ctx context.Context, r Repair) error {
	if r.Clean {
		if err := s.Clean(ctx); err != nil {
			return err
		}
	}
	for _, b := range r.Batches {
		if err := s.Put(ctx, Urgent, b...); err != nil {
			return fmt.Errorf("nvm: repair: %w", err)
		}
	}
	return nil
}

// Clean is replaced below.
func (s *Store) Clean(ctx context.Context) error { return errors.ErrUnsupported }

// Salvage is replaced below.
func Salvage(ctx context.Context, m Medium, incarnation uint32, opt Options) (*Store, Report, error) {
	return nil, Report{}, errors.ErrUnsupported
}
