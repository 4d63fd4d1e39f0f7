package nvm

import (
	"context"
	"fmt"
)

// Section returns a Medium that is the size bytes of m from off on: a store's
// part of a chip that it shares with a config block. Both must be multiples of
// a page (of an erase block, where m has them), else ErrPage; and within m,
// else ErrRange. It is an Eraser if m is.
//
// m and its sections are one Medium: calls to all of them must be serialised.
func Section(m Medium, off, size int64) (Medium, error) {
	g := m.Geometry()
	unit := int64(g.Page)
	if g.Erase > 0 {
		unit = int64(g.Erase)
	}
	if off < 0 || size <= 0 || off > g.Size-size {
		return nil, fmt.Errorf("nvm: section of %d bytes at %#x of %d: %w", size, off, g.Size, ErrRange)
	}
	if unit <= 0 || off%unit != 0 || size%unit != 0 {
		return nil, fmt.Errorf("nvm: section of %d bytes at %#x: %w of %d", size, off, ErrPage, unit)
	}
	g.Size = size
	s := section{m: m, off: off, g: g}
	if e, ok := m.(Eraser); ok {
		return &eraserSection{s, e}, nil
	}
	return &s, nil
}

type section struct {
	m   Medium
	off int64
	g   Geometry
}

type eraserSection struct {
	section
	e Eraser
}

func (s *section) Geometry() Geometry { return s.g }

func (s *section) check(n int, off int64) error {
	if off < 0 || off+int64(n) > s.g.Size {
		return fmt.Errorf("section: %d bytes at %#x: %w", n, off, ErrRange)
	}
	return nil
}

func (s *section) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := s.check(len(p), off); err != nil {
		return err
	}
	return s.m.ReadAt(ctx, p, s.off+off)
}

func (s *section) Program(ctx context.Context, p []byte, off int64) error {
	if err := s.check(len(p), off); err != nil {
		return err
	}
	return s.m.Program(ctx, p, s.off+off)
}

func (s *section) Settle(ctx context.Context) error { return s.m.Settle(ctx) }

func (s *eraserSection) Erase(ctx context.Context, off int64) error {
	if err := s.check(s.g.Erase, off); err != nil {
		return err
	}
	return s.e.Erase(ctx, s.off+off)
}
