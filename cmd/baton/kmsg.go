package main

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelWarnings are the lines of the kernel's log of level warning and graver
// (dev-kmsg in the kernel's ABI documentation).
func kernelWarnings(l local) (string, error) {
	fd, err := unix.Open(l.path("/dev/kmsg"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }() // it was only read
	const most = 4096                     // records: more than any board's buffer holds
	var out strings.Builder
	buf := make([]byte, 8<<10) // of one record
	for range most {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR):
			continue // overwritten meanwhile
		case errors.Is(err, unix.EAGAIN) || n == 0:
			return out.String(), nil
		case err != nil:
			return out.String(), err
		}
		if line, ok := kernelLine(string(buf[:n])); ok {
			out.WriteString(line)
		}
	}
	return out.String(), nil
}

// kernelLine reads one record: "priority,sequence,microseconds,flags;text".
func kernelLine(record string) (string, bool) {
	head, text, ok := strings.Cut(record, ";")
	var prio, seq, us int64
	if _, err := fmt.Sscanf(head, "%d,%d,%d", &prio, &seq, &us); !ok || err != nil || prio&7 > 4 {
		return "", false
	}
	text, _, _ = strings.Cut(text, "\n")
	return fmt.Sprintf("%12.6f %s\n", float64(us)/1e6, text), true
}
