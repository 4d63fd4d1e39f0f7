package nvm

import (
	"context"
	"slices"
	"time"
)

// Write programs many pages, from off on and in their order, by few calls to
// the driver. Its errors are those of Program, but for ErrPage. After a power
// cut or an error some of the first pages are written, and one may be torn.
func (m *MTD) Write(ctx context.Context, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > m.g.Size {
		return m.wrap("write", len(p), off, ErrRange)
	}
	const chunk = 16 << 10 // so that nobody waits long for his turn
	for len(p) > 0 {
		buf := slices.Clone(p[:min(len(p), chunk)])
		pages := time.Duration(len(buf)/m.g.Page + 2)
		err := m.change(ctx, pages*m.g.WriteMax, func() error { return whole(m.dev.WriteAt, buf, off) })
		if err != nil {
			return m.wrap("write", len(buf), off, err)
		}
		p, off = p[len(buf):], off+int64(len(buf))
	}
	return nil
}
