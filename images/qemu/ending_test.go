package qemu

import (
	"bufio"
	"io"
	"strings"
	"testing"
)

// TestFollow: what QEMU 7.2 sends.
func TestFollow(t *testing.T) {
	const (
		hello = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}, "capabilities": ["oob"]}}
{"return": {}}
`
		bite = `{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "WATCHDOG", "data": {"action": "reset"}}
`
		reset = `{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}
`
		off = `{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}
`
	)
	for _, tt := range []struct {
		name, sent string
		want       Ending
	}{
		{"nothing", "", EndKilled},
		{"killed", hello, EndKilled},
		{"reset", hello + reset, EndReset},
		{"power down", hello + off, EndPowerDown},
		{"watchdog", hello + bite + reset, EndWatchdog},
		{"cut off", hello + reset[:40], EndKilled},
		{"by a signal", hello + strings.Replace(off, "guest-shutdown", "host-signal", 1), EndKilled},
	} {
		q := &qmp{ending: EndKilled}
		q.follow(strings.NewReader(tt.sent))
		if got := q.how(); got != tt.want {
			t.Errorf("%s: ending = %q; want %q", tt.name, got, tt.want)
		}
	}
}

// TestQMP plays QEMU: it gets what switches events on, and ends.
func TestQMP(t *testing.T) {
	q, err := newQMP()
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(q.theirs).ReadString('\n')
	if err != nil || !strings.Contains(line, "qmp_capabilities") {
		t.Errorf("QEMU is told %q, %v", line, err)
	}
	if _, err := io.WriteString(q.theirs, `{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}`); err != nil {
		t.Fatal(err)
	}
	if err := q.theirs.Close(); err != nil {
		t.Fatal(err)
	}
	<-q.ended
	if got := q.how(); got != EndReset {
		t.Errorf("ending = %q; want %q", got, EndReset)
	}
}
