package qemu

import (
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
