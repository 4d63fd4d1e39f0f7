package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
)

// newLog logs to the journal with its fields, where w is standard error and
// that is the journal; else text to w. Both have the agent's uptime beside a
// time that may be wrong: a BMC starts in 1970.
func newLog(w io.Writer) *slog.Logger {
	is := false
	if w == io.Writer(os.Stderr) {
		is, _ = journal.StderrIsJournalStream() // what can not be told is not it
	}
	return slog.New(&withUptime{newHandler(w, is, journalSocket), time.Now()})
}

func newHandler(w io.Writer, isJournal bool, socket string) slog.Handler {
	text := slog.NewTextHandler(w, nil)
	if !isJournal {
		return text
	}
	j, err := openJournal(socket)
	if err != nil {
		slog.New(text).Warn("the journal does not take fields; this is text", "err", err)
		return text
	}
	return &journalHandler{to: j}
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
