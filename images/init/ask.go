package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// healthFD tells the agent on which descriptor it is asked how it is.
const healthFD = "BATON_HEALTH_FD=3"

// line is this end of the private channel to one process of the agent's: for
// each '?' a line comes back. One goroutine uses it at a time.
type line struct {
	f     *os.File
	asked bool   // an answer is still to come
	rest  []byte // what has come of it
}

// newLine returns both ends.
func newLine() (l *line, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	return &line{f: os.NewFile(uintptr(pair[0]), "health")}, os.NewFile(uintptr(pair[1]), "health"), nil
}

// ask returns what the process says within the time given, "" if nothing. An
// answer that comes later is that of the next call: a process that is slow is
// not asked more often for it.
func (l *line) ask(patience time.Duration) (string, error) {
	end := time.Now().Add(patience)
	if !l.asked {
		_ = l.f.SetWriteDeadline(end)
		if _, err := l.f.Write([]byte("?")); err != nil {
			return "", quietly(err)
		}
		l.asked = true
	}
	_ = l.f.SetReadDeadline(end)
	p := make([]byte, 512)
	for {
		n, err := l.f.Read(p)
		l.rest = append(l.rest, p[:n]...)
		if i := bytes.LastIndexByte(l.rest, '\n'); i >= 0 {
			lines := strings.Split(string(l.rest[:i]), "\n")
			l.rest, l.asked = l.rest[i+1:], false
			return lines[len(lines)-1], nil
		}
		if len(l.rest) > 4096 {
			l.rest = nil // it talks, and says nothing
		}
		if err != nil {
			return "", quietly(err)
		}
	}
}

// quietly is nil where an answer may still come.
func quietly(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

func (l *line) close() { _ = l.f.Close() }
