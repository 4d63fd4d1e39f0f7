package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestKeepLog(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		keepLog(name, r)
	}()
	line := strings.Repeat("x", 999) + "\n"
	const lines = 3 * logMax / 1000
	for range lines {
		fmt.Fprint(w, line)
	}
	fmt.Fprint(w, "the last line\n")
	_ = w.Close()
	<-done

	now, err := os.ReadFile(name)
	if err != nil || !strings.HasSuffix(string(now), "the last line\n") {
		t.Errorf("log ends in %q, %v", now[max(0, len(now)-20):], err)
	}
	old, err := os.ReadFile(name + ".1")
	if err != nil {
		t.Fatal(err)
	}
	if len(now) > logMax+4096 || len(old) > logMax+4096 || len(old) < logMax {
		t.Errorf("sizes %d and %d; want at most about %d, and the old log full", len(now), len(old), logMax)
	}
}

func TestKeepLogReadsOn(t *testing.T) {
	r, w := io.Pipe()
	go keepLog(filepath.Join(t.TempDir(), "no", "such", "folder"), r)
	for range 10 {
		if _, err := io.WriteString(w, "nobody can keep this\n"); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Close()
}

func TestDaemon(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "agent")
	// It fails twice, then runs until it is asked to end.
	text := `#!/bin/sh
cd ` + dir + `
echo start >>starts
[ $(wc -l <starts) -ge 3 ] || exit 7
trap 'echo asked; exit 0' TERM
echo running
while :; do sleep 0.05; done
`
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	kids := newChildren()
	go kids.reap()
	d := &daemon{
		kids: kids,
		path: script,
		log:  filepath.Join(dir, "log"),
		stop: make(chan struct{}),
		done: make(chan struct{}),
	}
	start := time.Now()
	go d.supervise()
	waitFor := func(want string) {
		t.Helper()
		for range 500 {
			text, err := os.ReadFile(d.log)
			if err == nil && strings.Contains(string(text), want) {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Fatalf("%q did not come into the log", want)
	}
	waitFor("running")
	if ran, least := time.Since(start), 3*restartFirst; ran < least {
		t.Errorf("third start after %v; want at least %v of waiting", ran, least)
	}
	d.end(5 * time.Second)
	select {
	case <-d.done:
	default:
		t.Error("still running after end")
	}
	waitFor("asked")
}

func TestDaemonAbsent(t *testing.T) {
	d := &daemon{
		kids: newChildren(),
		path: filepath.Join(t.TempDir(), "absent"),
		log:  filepath.Join(t.TempDir(), "log"),
		stop: make(chan struct{}),
		done: make(chan struct{}),
	}
	if how := d.once(); !strings.Contains(how, "cannot start") {
		t.Errorf("once = %q", how)
	}
}
