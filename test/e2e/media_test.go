//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"baton/images/rootfs"
)

// TestMediaSPI runs, on a board whose SPI controller can do it, what is written
// for 25xx over the kernel's spidev, and the suite of all media there.
func TestMediaSPI(t *testing.T) {
	b := newBoard(t, "sabrelite")
	storeOverlay(t, b, map[string]any{"file": "/tmp/store", "format_blank": true})
	b.boot()
	b.onboard("TestSPI|TestPage")
	b.vm.Kill()
	chip, err := os.ReadFile(b.machine.Flash("spi"))
	if err != nil {
		t.Fatal(err)
	}
	for i, off := range []int{1 << 20, 1<<20 + 256, len(chip) - 256} {
		if want := fmt.Sprintf("page %d by spidev", i); !bytes.HasPrefix(chip[off:], []byte(want)) {
			t.Errorf("the chip has % x at %#x; want %q", chip[off:off+16], off, want)
		}
	}
}

// TestMediaMTD has batond's store in a partition of the flash, and cuts the
// power in the middle of moves. The suite of all media runs on another partition
// and on an EEPROM behind the kernel's I2C.
func TestMediaMTD(t *testing.T) {
	rng := random(t)
	b := newBoard(t, "ast2600-evb")
	storeOverlay(t, b, map[string]any{"mtd": "store", "format_blank": true, "config": true})
	b.boot()
	b.generation = b.slot().Generation
	for host := range groups {
		b.must("baton unfence " + host + " --yes")
	}
	b.onboard("TestMTD|TestEEPROM")

	start := time.Now()
	b.must("baton move " + theVM + " --to server1")
	b.moveTime = time.Since(start)
	b.arrived("server1")
	b.must("baton nvm check")
	for range 2 {
		b.cutFlash(rng)
		if t.Failed() {
			return
		}
	}
	t.Logf("boots: %v; power cuts that found the block: %v", b.boots, b.found)
}

// cutFlash moves the slot, and cuts the power when the store has changed, or a
// moment later.
func (b *board) cutFlash(rng *rand.Rand) {
	b.t.Helper()
	from := b.slot().Host
	to := "server1"
	if from == to {
		to = "server2"
	}
	before := b.storePartition()
	if err := b.vm.Console.Send("baton move " + theVM + " --to " + to); err != nil {
		b.t.Fatal(err)
	}
	for deadline := time.Now().Add(10*b.moveTime + 10*time.Second); bytes.Equal(before, b.storePartition()); {
		if time.Now().After(deadline) {
			b.t.Fatal("the move wrote nothing to the store")
		}
		time.Sleep(time.Millisecond)
	}
	instant := time.Duration(rng.Int64N(int64(b.moveTime)))
	time.Sleep(instant)
	b.vm.Kill()
	b.t.Logf("%s -> %s, power cut %v after the intent", from, to, instant)

	b.boot()
	s := b.slot()
	b.found[s.Host]++
	if s.Host != from && s.Host != to {
		b.t.Errorf("after the power cut %s is with %q; want %s or %s", theSlot, s.Host, from, to)
	}
	b.arrived(s.Host)
	b.must("baton nvm check")
}

// storePartition is the store's partition, read from outside.
func (b *board) storePartition() []byte {
	b.t.Helper()
	p, chip, ok := b.machine.Board.Partition("store")
	if !ok {
		b.t.Fatal("the board has no partition \"store\"")
	}
	f, err := os.Open(b.machine.Flash(chip.Name))
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, p.Size)
	if _, err := f.ReadAt(data, int64(p.Offset)); err != nil {
		b.t.Fatal(err)
	}
	return data
}

// onboard runs tests of the package onboard on the board.
func (b *board) onboard(tests string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 4*time.Minute)
	defer cancel()
	output, status, err := b.vm.Console.Run(ctx, "/bbin/onboard.test -test.v -test.run '^("+tests+")$'")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Logf("on the board:\n%s", output)
	if status != 0 || !strings.Contains(output, "PASS") || strings.Contains(output, "no tests to run") {
		b.t.Fatalf("%s on the board: status %d", tests, status)
	}
}

// storeOverlay gives the board another store, and the tests to be run on it.
func storeOverlay(t *testing.T, b *board, store map[string]any) {
	t.Helper()
	text, err := b.machine.Board.ReadFile("batond.json")
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	config["store"] = store
	if text, err = json.MarshalIndent(config, "", "\t"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	seed, program := filepath.Join(dir, "batond.json"), filepath.Join(dir, "onboard.test")
	if err := os.WriteFile(seed, text, 0o644); err != nil {
		t.Fatal(err)
	}
	hardware := b.machine.Board
	build := exec.CommandContext(b.ctx, "go", "test", "-c", "-tags", "onboard", "-ldflags", "-s -w", "-o", program, "./onboard")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+hardware.GOARCH, "GOARM="+hardware.GOARM)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the tests for the board: %v\n%s", err, out)
	}
	archive := filepath.Join(dir, "overlay.cpio")
	if err := rootfs.WriteOverlay(archive, map[string]string{"etc/baton/batond.json": seed, "bbin/onboard.test": program}); err != nil {
		t.Fatal(err)
	}
	b.machine.Overlay = []string{archive}
}
