package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// journalSocket is where journald takes entries with fields
// (systemd.io/JOURNAL_NATIVE_PROTOCOL).
const journalSocket = "/run/systemd/journal/socket"

// journalHandler sends each record as an entry of the journal. An attribute
// becomes the field BATON_KEY, the uptime BATON_UPTIME_US; MESSAGE has the
// attributes too, for those who read lines and not fields.
type journalHandler struct {
	to     *journalConn
	attrs  []slog.Attr
	prefix string // of keys, from groups
}

// Enabled is from level Info on, as text is.
func (h *journalHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

// WithAttrs is that of slog.Handler.
func (h *journalHandler) WithAttrs(as []slog.Attr) slog.Handler {
	c := *h
	c.attrs = slices.Clone(h.attrs)
	for _, a := range as {
		c.attrs = flatten(c.attrs, h.prefix, a)
	}
	return &c
}

// WithGroup is that of slog.Handler.
func (h *journalHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	c := *h
	c.prefix += name + "."
	return &c
}

// Handle never waits for the journal longer than journalWait.
func (h *journalHandler) Handle(_ context.Context, r slog.Record) error {
	attrs := slices.Clone(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		attrs = flatten(attrs, h.prefix, a)
		return true
	})
	return h.to.send(entry(r, attrs))
}

// flatten appends a, or the attributes of the group that it is.
func flatten(to []slog.Attr, prefix string, a slog.Attr) []slog.Attr {
	a.Value = a.Value.Resolve()
	if a.Value.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, b := range a.Value.Group() {
			to = flatten(to, prefix, b)
		}
		return to
	}
	if a.Key == "" {
		return to
	}
	a.Key = prefix + a.Key
	return append(to, a)
}

func entry(r slog.Record, attrs []slog.Attr) []byte {
	var b bytes.Buffer
	var message strings.Builder
	message.WriteString(r.Message)
	for _, a := range attrs {
		if a.Key == "uptime" && a.Value.Kind() == slog.KindDuration {
			field(&b, "BATON_UPTIME_US", strconv.FormatInt(a.Value.Duration().Microseconds(), 10))
			continue
		}
		value := a.Value.String()
		field(&b, "BATON_"+fieldName(a.Key), value)
		if value == "" || strings.ContainsAny(value, " \t\n\"=") {
			value = strconv.Quote(value)
		}
		message.WriteString(" " + a.Key + "=" + value)
	}
	field(&b, "MESSAGE", message.String())
	field(&b, "PRIORITY", priority(r.Level))
	field(&b, "SYSLOG_IDENTIFIER", "batond")
	return b.Bytes()
}

// priority is that of syslog.
func priority(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "3"
	case l >= slog.LevelWarn:
		return "4"
	}
	return "6"
}

// fieldName is a key in the letters that the journal allows.
func fieldName(key string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key)
}

// field appends one; with a length where the value has lines.
func field(b *bytes.Buffer, name, value string) {
	b.WriteString(name)
	if strings.Contains(value, "\n") {
		b.WriteByte('\n')
		b.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(value))))
	} else {
		b.WriteByte('=')
	}
	b.WriteString(value)
	b.WriteByte('\n')
}

// Events are logged by whoever makes them, in the middle of a move: a journal
// that hangs must not hold that up. (go-systemd's journal.Send waits without a
// bound, so it is not used.)
const (
	journalWait  = 50 * time.Millisecond // for the journal to take one entry
	journalPause = time.Second           // after it did not, until it is asked again
)

// journalConn is the way to the journal.
type journalConn struct {
	path string

	mu     sync.Mutex
	conn   *net.UnixConn
	paused time.Time // nothing is sent before
	lost   int       // entries since the last that was taken
}

func openJournal(path string) (*journalConn, error) {
	j := &journalConn{path: path}
	return j, j.dial()
}

// dial connects: an unconnected socket is not told when there is room again.
func (j *journalConn) dial() (err error) {
	if j.conn != nil {
		_ = j.conn.Close() // it is of no use any more
	}
	j.conn, err = net.DialUnix("unixgram", nil, &net.UnixAddr{Name: j.path, Net: "unixgram"})
	return err
}

// send sends one entry, or loses and counts it.
func (j *journalConn) send(entry []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if time.Now().Before(j.paused) {
		j.lost++
		return errLost
	}
	if j.lost > 0 {
		var b bytes.Buffer
		field(&b, "MESSAGE", fmt.Sprintf("%d lines were lost: the journal did not take them", j.lost))
		field(&b, "BATON_LOST", strconv.Itoa(j.lost))
		field(&b, "PRIORITY", priority(slog.LevelWarn))
		field(&b, "SYSLOG_IDENTIFIER", "batond")
		if err := j.deliver(b.Bytes()); err != nil {
			return j.lose(err)
		}
		j.lost = 0
	}
	if err := j.deliver(entry); err != nil {
		return j.lose(err)
	}
	return nil
}

var errLost = errors.New("the journal does not take entries; this one is lost")

func (j *journalConn) lose(err error) error {
	j.lost++
	j.paused = time.Now().Add(journalPause)
	return fmt.Errorf("%w: %w", errLost, err)
}

// deliver sends one entry, over a new connection if the old one is broken.
func (j *journalConn) deliver(entry []byte) error {
	var err error
	if j.conn != nil {
		if err = j.write(entry); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	if dialed := j.dial(); dialed != nil {
		j.conn = nil
		return errors.Join(err, dialed)
	}
	return j.write(entry)
}

func (j *journalConn) write(entry []byte) error {
	if err := j.conn.SetWriteDeadline(time.Now().Add(journalWait)); err != nil {
		return err
	}
	_, err := j.conn.Write(entry)
	if !errors.Is(err, syscall.EMSGSIZE) && !errors.Is(err, syscall.ENOBUFS) {
		return err
	}
	// Too long for a datagram: a sealed file in memory goes instead.
	fd, err := unix.MemfdCreate("batond-entry", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "batond-entry")
	defer f.Close()
	if _, err := f.Write(entry); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL); err != nil {
		return err
	}
	raw, err := j.conn.SyscallConn() // package net sends no files over a connected datagram socket
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Write(func(to uintptr) bool {
		sent = unix.Sendmsg(int(to), nil, unix.UnixRights(fd), nil, 0)
		return !errors.Is(sent, unix.EAGAIN)
	}); err != nil {
		return err
	}
	return sent
}
