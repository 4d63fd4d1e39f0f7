package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"baton/ee"
	"baton/ee/bus"
	"baton/sim/control"
)

// lockedBuffer is written by a program under test and read by its test.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// await waits until cond holds.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited 10 s for: %s", what)
		}
	}
}

// start runs the program until stop, which waits for its end.
func start(t *testing.T, args ...string) (out *lockedBuffer, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out = &lockedBuffer{}
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, args, nil, out, out) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = stop() })
	return out, stop
}

func ready(t *testing.T, args ...string) (stop func() error) {
	t.Helper()
	out, stop := start(t, args...)
	await(t, "ready", func() bool { return strings.Contains(out.String(), "batonsim: ready\n") })
	return stop
}

// What was written to an EEPROM is there after a restart; all else has lost
// its power.
func TestRestartKeepsChips(t *testing.T) {
	ctx := t.Context()
	dir, state := t.TempDir(), t.TempDir()
	b, err := bus.Open("unix:"+filepath.Join(dir, "bus0.sock"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	c := control.Dial(filepath.Join(dir, "control.sock"))
	defer c.Close()

	stop := ready(t, "-dir", dir, "-state", state)
	block := ee.Block{Group: 101, From: ee.GroupFree, Generation: ee.Generation{Incarnation: 1, Counter: 2}}.Encode()
	if err := b.Tx(0x50, append([]byte{0, 0}, block...), nil); err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(filepath.Join(state, "gpu0.bin"))
	if err != nil || !bytes.Equal(image[:ee.BlockSize], block) {
		t.Errorf("after a write the file has % x..., %v; want the block: a kill would lose it", image[:8], err)
	}
	if err := c.FlipBit(ctx, "store", 5, 0); err != nil {
		t.Fatal(err)
	}
	before, err := c.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Errorf("first run = %v", err)
	}
	if err := b.Tx(0x50, []byte{0, 0}, nil); !errors.Is(err, bus.ErrIO) {
		t.Errorf("transfer without a simulator = %v", err)
	}

	stop = ready(t, "-dir", dir, "-state", state)
	got := make([]byte, ee.BlockSize)
	if err := b.Tx(0x50, []byte{0, 0}, got); err != nil || !bytes.Equal(got, block) {
		t.Errorf("after a restart the chip has % x..., %v; want the block", got[:8], err)
	}
	if p, err := c.ReadChip(ctx, "store", 5, 1); err != nil || p[0] != 0xFE {
		t.Errorf("after a restart the store has 0x%x, %v; want the flipped bit", p, err)
	}
	await(t, "the engine to load", func() bool {
		s, err := c.State(ctx)
		slot, _ := s.Slot("gpu0")
		return err == nil && slot.Group == 101
	})
	after, err := c.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if e1, e2 := before.Slots[0].Epoch, after.Slots[0].Epoch; after.Slots[0].Latch.N&ee.LatchPowerLost == 0 || e1.N == 0 || e2.N == 0 {
		t.Errorf("epochs 0x%x and 0x%x, latches 0x%x; want power lost", e1.N, e2.N, after.Slots[0].Latch.N)
	}
	if err := stop(); err != nil {
		t.Errorf("second run = %v", err)
	}
}

// The config block that a world gives a slot is its first one only.
func TestBlockOfTheWorldIsTheFirst(t *testing.T) {
	ctx := t.Context()
	spec := control.ExampleWorld()
	spec.Slots[0].Block = &ee.Block{Group: 101, From: ee.GroupFree}
	dir, state := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "world.json")
	if err := os.WriteFile(file, control.FormatWorld(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	c := control.Dial(filepath.Join(dir, "control.sock"))
	defer c.Close()
	for i, want := range []uint16{101, 102} {
		stop := ready(t, "-world", file, "-dir", dir, "-state", state)
		await(t, "the engine to load", func() bool {
			s, err := c.State(ctx)
			slot, _ := s.Slot("gpu0")
			return err == nil && slot.Status.N&ee.StatLoaded != 0
		})
		s, err := c.State(ctx)
		if err != nil || s.Slots[0].Group != want {
			t.Errorf("start %d: group %d, %v; want %d", i+1, s.Slots[0].Group, err, want)
		}
		if err := c.WriteChip(ctx, "gpu0", 0, ee.Block{Group: 102, From: 101}.Encode()); err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// A torn page is kept as it was torn, though nobody wrote it so.
func TestPowerCutIsSaved(t *testing.T) {
	ctx := t.Context()
	dir, state := t.TempDir(), t.TempDir()
	stop := ready(t, "-dir", dir, "-state", state)
	b, err := bus.Open("unix:"+filepath.Join(dir, "bus0.sock"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	c := control.Dial(filepath.Join(dir, "control.sock"))
	defer c.Close()
	if err := c.PowerCut(ctx, control.PowerCut{Position: 65, Tear: "zeros"}); err != nil { // inside the write cycle
		t.Fatal(err)
	}
	if err := b.Tx(0x57, append([]byte{0, 0}, bytes.Repeat([]byte{0xA5}, 64)...), nil); err != nil {
		t.Fatal(err)
	}
	await(t, "power to go", func() bool { s, err := c.State(ctx); return err == nil && !s.Powered })
	await(t, "the torn page to be saved", func() bool {
		p, err := os.ReadFile(filepath.Join(state, "store.bin"))
		return err == nil && bytes.Equal(p[:64], make([]byte, 64)) && p[64] == 0xFF
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// What goes wrong on a bus of the model is of the class at the other end of a
// socket that the agent acts on.
func TestFaultClasses(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	stop := ready(t, "-dir", dir)
	remote, err := bus.Open("unix:"+filepath.Join(dir, "bus0.sock"), true)
	if err != nil {
		t.Fatal(err)
	}
	b := bus.Own(remote, 0)
	c := control.Dial(filepath.Join(dir, "control.sock"))
	defer c.Close()
	read := func() error { return b.Tx(0x57, []byte{0, 0}, make([]byte, 4)) }
	write := func() error { return b.Tx(0x57, []byte{0, 0, 1}, nil) }
	for _, tc := range []struct {
		kind string
		tx   func() error
		want error
	}{
		{"nack-address", read, bus.ErrNACK},
		{"nack-data", write, bus.ErrIO}, // EIO says no more
		{"arbitration-lost", read, bus.ErrArbitration},
		{"stuck-sda", read, bus.ErrStuck},
		{"wedged", read, bus.ErrStuck},
		{"stretch", read, bus.ErrStuck},
	} {
		if err := c.Inject(ctx, "bus0", control.Fault{Kind: tc.kind, Count: 1, Hold: control.Duration(150 * time.Millisecond), Byte: 2}); err != nil {
			t.Fatal(err)
		}
		err := tc.tx()
		var e *bus.Error
		if !errors.Is(err, tc.want) || !errors.As(err, &e) || !e.Temporary() {
			t.Errorf("%s: %v; want a temporary %v", tc.kind, err, tc.want)
		}
		if err := read(); err != nil {
			t.Errorf("after %s: %v", tc.kind, err)
		}
	}
	if err := c.Inject(ctx, "bus0", control.Fault{Kind: "wedged", Count: 1, Hold: control.Duration(1500 * time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	if err := read(); !errors.Is(err, bus.ErrWedged) {
		t.Errorf("a transfer of 1.5 s: %v; want %v", err, bus.ErrWedged)
	}
	await(t, "the bus to come back", func() bool { return read() == nil })
	if err := c.PowerCut(ctx, control.PowerCut{}); err != nil {
		t.Fatal(err)
	}
	if err := read(); !errors.Is(err, bus.ErrIO) || !strings.Contains(err.Error(), "no power") {
		t.Errorf("without power: %v", err)
	}
	if err := errors.Join(b.Close(), remote.Close(), stop()); err != nil {
		t.Error(err)
	}
}

func TestSockets(t *testing.T) {
	dir := t.TempDir()
	stop := ready(t, "-dir", dir)
	_, second := start(t, "-dir", dir)
	if err := second(); err == nil || !strings.Contains(err.Error(), "another simulator") {
		t.Errorf("a second simulator in the same directory = %v; want refused", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}

	// What a killed one leaves: a socket nobody listens to.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "bus0.sock")})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	stop = ready(t, "-dir", dir)
	if err := stop(); err != nil {
		t.Error(err)
	}

	path := filepath.Join(dir, "control.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stop = start(t, "-dir", dir)
	if err := stop(); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file in the socket's place = %v; want refused", err)
	}
	if p, err := os.ReadFile(path); err != nil || string(p) != "precious" {
		t.Errorf("the file has %q, %v", p, err)
	}
}

func TestExampleIsAWorld(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-example"}, nil, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "world.json")
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	stop := ready(t, "-world", file, "-dir", dir)
	for _, name := range []string{"bus0.sock", "control.sock"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestRunRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte(`{"colour":"red"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	if err := os.WriteFile(filepath.Join(state, "store.bin"), make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args  []string
		want  string
		usage bool
	}{
		{nil, "-dir is missing", true},
		{[]string{"-colour", "red"}, "-colour", true},
		{[]string{"-dir", dir, "now"}, `"now"`, true},
		{[]string{"-dir", dir, "-world", "/no/such/file"}, "no such file", false},
		{[]string{"-dir", dir, "-world", bad}, "colour", false},
		{[]string{"-dir", dir, "-state", state}, "100 bytes, a 24c256 has 32768", false},
		{[]string{"-dir", "/no/such/dir"}, "no such file", false},
		{[]string{"server"}, "-name is missing", true},
		{[]string{"server", "-name", "x", "-control", "y", "-agent", "z"}, "-job is missing", true},
		{[]string{"server", "-name", "x", "-control", "y", "-agent", "z", "-job", bad}, "colour", false},
		{[]string{"server", "-name", "x", "-control", "y", "-agent", "z", "-job", "/no/such/file"}, "no such file", false},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			err := run(t.Context(), tc.args, nil, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("run = %v; want something with %q", err, tc.want)
			}
			var u *usageError
			if errors.As(err, &u) != tc.usage {
				t.Errorf("run = %v; usage error: %v, want %v", err, !tc.usage, tc.usage)
			}
		})
	}
	var help bytes.Buffer
	if err := run(t.Context(), []string{"-h"}, nil, io.Discard, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "usage: batonsim") {
		t.Errorf("-h = %v, printed %q", err, help.String())
	}
}
