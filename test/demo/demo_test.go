package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"baton/sim/control"
)

func TestSayFits80Columns(t *testing.T) {
	var out bytes.Buffer
	d := &demo{out: &out, began: time.Now().Add(-1234567 * time.Millisecond)}
	d.say("%s", strings.Repeat("a sentence with words of some length, ", 10)+strings.Repeat("x", 90))
	words := strings.Fields(out.String())
	for line := range strings.Lines(out.String()) {
		if n := len(strings.TrimRight(line, "\n")); n > 80 && !strings.Contains(line, "xxx") {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if got, want := len(words), 2+70+1; got != want {
		t.Errorf("%d words in the output; want %d, none lost", got, want)
	}
}

// The model is what the job's is: SHA-256 over the model before and the step.
func TestModel(t *testing.T) {
	for n, want := range map[int]string{0: "00000000", 2: "166337d2"} {
		if got := model(n); got != want {
			t.Errorf("model(%d) = %s; want %s", n, got, want)
		}
	}
}

// A proc whose output is given.
func saying(lines ...string) *proc {
	p := &proc{name: "server2", lines: lines, ended: make(chan struct{})}
	close(p.ended)
	return p
}

func TestReadResumed(t *testing.T) {
	p := saying(
		"server2: gpu0: memory preserved: no - the device lost power",
		"server2: train1: started on gpu0, final verdict: memory preserved: no",
		"server2: train1: device memory is all zero: it was reset",
		"server2: train1: goes on from step 200 in the checkpoint",
		"server2: train1: step 201 model 0011aabb",
	)
	got, err := readResumed(p)
	want := resumed{step: 200, source: "the checkpoint", preserved: "no", reason: "the device lost power", memory: "device memory is all zero: it was reset"}
	if err != nil || got != want {
		t.Errorf("readResumed = %+v, %v; want %+v", got, err, want)
	}
	if n, m := p.lastStep(); n != 201 || m != "0011aabb" {
		t.Errorf("lastStep = %d, %s; want 201, 0011aabb", n, m)
	}
	if r, err := readResumed(saying("server2: train1: begins at step 0")); err == nil {
		t.Errorf("a job that begins: %+v; want an error", r)
	}
}

func TestGenerations(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
		ok   bool
	}{
		{"9f3c2a10-17", "9f3c2a10-18", 1, true},
		{"9f3c2a10-17", "9f3c2a10-17", 0, true},
		{"9f3c2a10-17", "9f3c2a11-18", 0, false},
		{"", "9f3c2a10-18", 0, false},
		{"9f3c2a10-x", "9f3c2a10-18", 0, false},
	} {
		got, err := generations(control.SlotState{Generation: tc.a}, control.SlotState{Generation: tc.b})
		if got != tc.want || (err == nil) != tc.ok {
			t.Errorf("generations(%q, %q) = %d, %v; want %d, ok %v", tc.a, tc.b, got, err, tc.want, tc.ok)
		}
	}
}

func TestProc(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	p, err := startProc(dir, "x", "/bin/sh", "-c", "echo one; echo two >&2; exec sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	if line, err := p.await(ctx, "tw"); line != "two" || err != nil {
		t.Errorf("await = %q, %v; want two", line, err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := p.await(short, "three"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("await what does not come = %v", err)
	}
	p.kill()
	if _, err := p.await(ctx, "three"); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("await after its end = %v; want how it ended", err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "x.log")); err != nil || string(text) != "one\ntwo\n" {
		t.Errorf("log has %q, %v", text, err)
	}

	p, err = startProc(dir, "y", "/bin/sh", "-c", "exit 3")
	if err != nil {
		t.Fatal(err)
	}
	<-p.ended
	if err := p.end(); err == nil || !strings.Contains(err.Error(), "status 3") {
		t.Errorf("end of what failed = %v; want its status", err)
	}
	// A line that is too long to be kept does not block the process.
	p, err = startProc(dir, "z", "/bin/sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x; echo; echo done")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.kill()
		t.Error("a process that writes a long line hangs")
	}
}

// Whatever fails ends in the one line and an error.
func TestFailureIsSaid(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var out bytes.Buffer
	err := run(t.Context(), []string{"-bin", t.TempDir()}, nil, &out, io.Discard)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; err == nil || !strings.HasPrefix(last, "demo: FAILED ") || !strings.Contains(last, "no such file") {
		t.Errorf("without programs: %v, last line %q", err, last)
	}
}
