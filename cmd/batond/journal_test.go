package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeJournal is a socket where entries arrive.
type fakeJournal struct {
	t    *testing.T
	path string
	conn *net.UnixConn
}

func newFakeJournal(t *testing.T) *fakeJournal {
	t.Helper()
	dir, err := os.MkdirTemp("", "journal") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	j := &fakeJournal{t: t, path: filepath.Join(dir, "socket")}
	j.listen()
	t.Cleanup(func() { _ = j.conn.Close() })
	return j
}

func (j *fakeJournal) listen() {
	j.t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: j.path, Net: "unixgram"})
	if err != nil {
		j.t.Fatal(err)
	}
	j.conn = conn
}

// next is the entry that arrives next, as field to value.
func (j *fakeJournal) next() map[string]string {
	j.t.Helper()
	if err := j.conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		j.t.Fatal(err)
	}
	buf, oob := make([]byte, 1<<18), make([]byte, 64)
	n, oobn, _, _, err := j.conn.ReadMsgUnix(buf, oob)
	if err != nil {
		j.t.Fatalf("no entry: %v", err)
	}
	text := buf[:n]
	if oobn > 0 {
		if n > 0 {
			j.t.Errorf("%d bytes beside a file", n)
		}
		text = j.file(oob[:oobn])
	}
	return j.parse(text)
}

// file reads the one that was passed, which must be sealed as journald wants.
func (j *fakeJournal) file(oob []byte) []byte {
	j.t.Helper()
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		j.t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		j.t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "entry")
	defer f.Close()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if want := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL; err != nil || seals != want {
		j.t.Errorf("seals 0x%x, %v; want 0x%x", seals, err, want)
	}
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	if err != nil {
		j.t.Fatal(err)
	}
	return text
}

func (j *fakeJournal) parse(text []byte) map[string]string {
	j.t.Helper()
	out := map[string]string{}
	for len(text) > 0 {
		line, rest, ok := bytes.Cut(text, []byte("\n"))
		if !ok {
			j.t.Fatalf("field without an end: %q", text)
		}
		name, value, short := strings.Cut(string(line), "=")
		if !short {
			n := binary.LittleEndian.Uint64(rest)
			value = string(rest[8 : 8+n])
			if rest[8+n] != '\n' {
				j.t.Fatalf("%s is longer than it says", name)
			}
			rest = rest[8+n+1:]
		}
		out[name] = value
		text = rest
	}
	return out
}

// TestJournalFields: what events and the agent's own lines have is in fields.
func TestJournalFields(t *testing.T) {
	j := newFakeJournal(t)
	log := slog.New(newHandler(io.Discard, true, j.path))
	many := strings.Repeat("a line of a stack\n", 20000) // more than a datagram takes
	for _, tt := range []struct {
		say  func()
		want map[string]string
	}{
		{func() {
			log.Info("linked with server2", "kind", "linked", "uptime", 1500*time.Millisecond, "slot", "gpu0", "host", "server2", "vm", "train1", "code", "busy", "move", "0b5f", "by", "uid 0")
		}, map[string]string{
			"MESSAGE":  `linked with server2 kind=linked slot=gpu0 host=server2 vm=train1 code=busy move=0b5f by="uid 0"`,
			"PRIORITY": "6", "SYSLOG_IDENTIFIER": "batond", "BATON_KIND": "linked", "BATON_UPTIME_US": "1500000", "BATON_SLOT": "gpu0",
			"BATON_HOST": "server2", "BATON_VM": "train1", "BATON_CODE": "busy", "BATON_MOVE": "0b5f", "BATON_BY": "uid 0",
		}},
		{func() { log.With("slot", "gpu1").WithGroup("bus").Warn("late", "err", errors.New("two\nlines")) }, map[string]string{
			"MESSAGE": `late slot=gpu1 bus.err="two\nlines"`, "PRIORITY": "4", "SYSLOG_IDENTIFIER": "batond", "BATON_SLOT": "gpu1", "BATON_BUS_ERR": "two\nlines",
		}},
		{func() { log.Error("group", slog.Group("a", "x", 1, slog.Group("", "y", "")), slog.Attr{}) }, map[string]string{
			"MESSAGE": `group a.x=1 a.y=""`, "PRIORITY": "3", "SYSLOG_IDENTIFIER": "batond", "BATON_A_X": "1", "BATON_A_Y": "",
		}},
		{func() { log.Debug("nobody wants to know"); log.Error(many) }, map[string]string{
			"MESSAGE": many, "PRIORITY": "3", "SYSLOG_IDENTIFIER": "batond",
		}},
	} {
		tt.say()
		if got := j.next(); !maps.Equal(got, tt.want) {
			t.Errorf("entry %.300q\nwant %.300q", got, tt.want)
		}
	}
}

// TestJournalHangs: a journal that takes nothing delays nobody, and is told how
// much it missed.
func TestJournalHangs(t *testing.T) {
	j := newFakeJournal(t)
	log := slog.New(newHandler(io.Discard, true, j.path))
	const lines = 5000
	begin := time.Now()
	for i := range lines {
		log.Info(strconv.Itoa(i))
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("%d lines took %v", lines, took)
	}
	taken := 0
	for begin := time.Now(); ; {
		if err := j.conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := j.conn.Read(make([]byte, 1024)); err != nil {
			break // empty
		}
		taken++
		if time.Since(begin) > 5*time.Second {
			t.Fatal("the socket does not become empty")
		}
	}
	time.Sleep(journalPause)
	log.Info("last")
	lost, err := strconv.Atoi(j.next()["BATON_LOST"])
	if err != nil || taken == 0 || lost == 0 || taken+lost != lines {
		t.Errorf("%d lines taken, %d reported lost, %v; want %d together", taken, lost, err, lines)
	}
	if got := j.next()["MESSAGE"]; got != "last" {
		t.Errorf("then %q; want last", got)
	}
}

// TestJournalRestarts: a journal whose socket is another one now is found.
func TestJournalRestarts(t *testing.T) {
	j := newFakeJournal(t)
	log := slog.New(newHandler(io.Discard, true, j.path))
	log.Info("one")
	_ = j.next()
	_ = j.conn.Close()
	_ = os.Remove(j.path)
	log.Info("nobody is there")
	j.listen()
	time.Sleep(journalPause)
	log.Info("two")
	if got := j.next()["BATON_LOST"]; got != "1" {
		t.Errorf("lost %q; want 1", got)
	}
	if got := j.next()["MESSAGE"]; got != "two" {
		t.Errorf("after a restart: %q; want two", got)
	}
}

// TestNoJournal: text, where standard error is no journal, or there is none.
func TestNoJournal(t *testing.T) {
	var out bytes.Buffer
	slog.New(newHandler(&out, true, filepath.Join(t.TempDir(), "none"))).Info("hello")
	if got := out.String(); !strings.Contains(got, "this is text") || !strings.Contains(got, "msg=hello") {
		t.Errorf("without a journal: %q", got)
	}
	j := newFakeJournal(t)
	t.Setenv("JOURNAL_STREAM", "1:2") // somebody's, but not our stderr
	out.Reset()
	newLog(&out).Info("hello")
	if got := out.String(); !strings.Contains(got, "msg=hello") {
		t.Errorf("to a writer: %q", got)
	}
	_ = j.conn.SetReadDeadline(time.Now())
	if _, err := j.conn.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an entry was sent: %v", err)
	}
}
