//go:build e2e

package e2e

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestConsole is a person at the board's serial line: init's console, its lock
// across sessions, a check of the real buses and a report that comes through.
func TestConsole(t *testing.T) {
	b := newBoard(t, "ast2600-evb")
	b.boot()
	b.must("echo off the record | baton console password")
	typed := func(line, want string) []string {
		t.Helper()
		ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
		defer cancel()
		if err := b.vm.Console.Send(line); err != nil {
			t.Fatal(err)
		}
		found, err := b.vm.Console.Expect(ctx, regexp.MustCompile(want))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return found
	}
	typed("exit", `baton> `)
	typed("lock", `Password: `)
	typed("off the record", `baton> `)
	if check := typed("check", `(?s)ok .*?(\d+) ok, \d+ warn, (\d+) fail\..*?baton> `); check[2] != "0" {
		t.Errorf("a board that is well:\n%s", check[0])
	} else {
		for _, want := range []string{"bus engines: /dev/i2c-", "engine ", "chip ", "watchdog hardware: /dev/watchdog", "init agent: healthy"} {
			if !strings.Contains(check[0], want) {
				t.Errorf("the check has no %q:\n%s", want, check[0])
			}
		}
	}
	report := typed("report", `(?s)(----- BEGIN BATON REPORT.*?----- END BATON REPORT [^\n]*\n).*?baton> `)
	if strings.Contains(report[1], "pbkdf2") || !strings.Contains(report[1], "== check") {
		t.Errorf("the report:\n%s", report[1])
	}
	// The next session is locked, and so is one that was ended while it was.
	typed("exit", `Password: `)
	typed("status", `not the password\.\s+Password: `)
	typed("off the record", `baton> `)
	typed("lock", `Password: `)
	typed("off the record", `baton> `)
	typed("console password --clear --yes", `taken away(?s:.*)baton> `)
	typed("shell", `\$ `)
	log := b.must("baton log console")
	for _, want := range []string{"a wrong password was typed", "the console was unlocked"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %q:\n%s", want, log)
		}
	}
	if dump := b.must("cat /run/baton/console.json"); strings.Contains(dump, "pbkdf2") {
		t.Errorf("the password was taken away: %s", dump)
	}
}
