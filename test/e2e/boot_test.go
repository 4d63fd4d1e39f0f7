//go:build e2e

package e2e

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"baton/images/qemu"
	"baton/mgmt"
)

// TestBoot boots the boards that are only QEMU's, with nothing a start could
// want to lean on: a clock in 1970 and no random numbers from outside. Both
// start at the same time where there are two processors for them.
func TestBoot(t *testing.T) {
	for _, tt := range []struct {
		board string
		args  []string
	}{
		{"amd64-q35", []string{"-cpu", "max,-rdrand,-rdseed"}},
		{"arm64-virt", []string{"-machine", "dtb-randomness=off"}},
	} {
		t.Run(tt.board, func(t *testing.T) {
			t.Parallel()
			b := newBoardWith(t, tt.board, options{args: append(tt.args, "-rtc", "base=1970-01-01T00:00:00")})
			b.boot()
			t.Logf("boot: %v", b.boots)

			e := b.enclosure()
			if e.Name != tt.board || e.Agent != mgmt.Version {
				t.Errorf("enclosure %q, agent %q; want %s, %s", e.Name, e.Agent, tt.board, mgmt.Version)
			}
			if output := b.must("baton status"); !strings.Contains(output, tt.board) || strings.Contains(output, "\x1b") {
				t.Errorf("baton status, with the enclosure's name and without escapes:\n%q", output)
			}
			var v any
			if output := b.must("baton --json"); json.Unmarshal([]byte(output), &v) != nil {
				t.Errorf("baton --json:\n%s", output)
			}
			floor, err := strconv.ParseInt(strings.TrimSpace(b.must("cat /etc/clock-floor")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			now := strings.TrimSpace(b.must("date"))
			at, err := time.Parse(time.UnixDate, now)
			if err != nil {
				t.Fatal(err)
			}
			if early := time.Unix(floor, 0).Sub(at); early > time.Second || early < -time.Hour {
				t.Errorf("the clock is at %s; want shortly after its floor, %s", now, time.Unix(floor, 0).UTC())
			}

			if err := b.vm.Console.Send("poweroff"); err != nil {
				t.Fatal(err)
			}
			if end := b.wait(time.Minute); end != qemu.EndPowerDown {
				t.Errorf("poweroff ended QEMU by %s; want %s", end, qemu.EndPowerDown)
			}
		})
	}
}
