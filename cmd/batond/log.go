package main

import (
	"context"
	"io"
	"log/slog"
	"time"
)

// newLog logs text, with the agent's uptime beside a time that may be wrong: a
// BMC starts in 1970.
func newLog(w io.Writer) *slog.Logger {
	return slog.New(&withUptime{slog.NewTextHandler(w, nil), time.Now()})
}

type withUptime struct {
	slog.Handler
	start time.Time
}

// Handle adds uptime, unless the record has it (events do).
func (h *withUptime) Handle(ctx context.Context, r slog.Record) error {
	has := false
	r.Attrs(func(a slog.Attr) bool {
		has = has || a.Key == "uptime"
		return !has
	})
	if !has {
		r.AddAttrs(slog.Duration("uptime", time.Since(h.start).Round(time.Millisecond)))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs keeps the uptime.
func (h *withUptime) WithAttrs(as []slog.Attr) slog.Handler {
	return &withUptime{h.Handler.WithAttrs(as), h.start}
}

// WithGroup keeps the uptime.
func (h *withUptime) WithGroup(name string) slog.Handler {
	return &withUptime{h.Handler.WithGroup(name), h.start}
}
