package main

import (
	"os"
	"strings"
	"testing"

	"baton/mgmt/config"
)

// TestConsoleShell: a shell runs in the console's place, at its terminal, and
// the console goes on when it ends.
func TestConsoleShell(t *testing.T) {
	if _, err := os.Stat(shells[0]); err != nil {
		t.Fatalf("this test wants a shell (apt-get install dash): %v", err)
	}
	for _, term := range []string{"vt100", "dumb"} {
		s := sit(t, term, &config.ConsoleFile{})
		s.sees("baton> ")
		s.types("shell\n")
		s.types("echo $((6 * 7)); exit 3\n")
		s.sees("42\n")
		s.sees("baton> ")
		s.types("version\n")
		s.sees("agent")
		s.sees("baton> ")
		s.types("exit\n")
		s.ends(exitDone)
	}
}

// TestConsoleNoShell: where there is none it is said.
func TestConsoleNoShell(t *testing.T) {
	was := shells
	t.Cleanup(func() { shells = was })
	shells = []string{t.TempDir() + "/sh"}
	s := sit(t, "dumb", &config.ConsoleFile{})
	s.sees("baton> ")
	s.types("shell\n")
	s.sees("there is no shell here")
	s.sees("baton> ")
	s.types("exit\n")
	s.ends(exitDone)
	if strings.Contains(s.shown(), "\x1b") {
		t.Error(s.shown())
	}
}
