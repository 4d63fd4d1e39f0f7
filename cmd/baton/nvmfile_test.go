package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure/plan"
	"baton/mgmt/config"
	"baton/nvm"
	"baton/nvm/image"

	"github.com/rogpeppe/go-internal/testscript"
)

const (
	chipSize    = 32768 // 24c256
	incarnation = 0x9f3c2a10
)

var vmUUID = ee.UUID{0x6b, 0xa7, 0xb8, 0x10, 15: 0xc8}

// wholeStore is the image of a store that knows of slots gpu0, with a VM on
// group 101, and gpu1, free. It begins at off.
func wholeStore(off int64) ([]byte, error) {
	put := func(key string, value []byte) nvm.Record { return nvm.Record{Key: key, Value: value} }
	given := plan.Assignment{Kind: plan.KindMove, Preserve: true, To: 101, Slots: plan.SlotSet(0).With(0), VM: vmUUID, ID: ee.UUID{1}, Gen: 17}
	free := plan.Assignment{Kind: plan.KindAdopt, To: ee.GroupFree, Slots: plan.SlotSet(0).With(1), Gen: 3}
	ev := plan.Evidence{Flag: plan.Spent, Gen: 17, Base: plan.Values{Resets: 4, Epoch: 5, Ident: 6}, Acked: true}
	hosts := map[string]plan.Host{"server1": {Epoch: 1, Serial: 1}, "server2": {Fenced: true, Epoch: 3, Serial: 2}}
	start := plan.Start{Nonce: ee.UUID{2}, Gen: 17, Serial: 1, Slots: plan.SlotSet(0).With(0)}
	adopted := plan.Adopted{Found: plan.Identity{MAC: ee.MAC{0x8c, 0xdf, 0x9d, 0, 1, 0x42}, Serial: 0x48b02d0300a1b2c3}}
	recs := [][]nvm.Record{
		{put(plan.SlotKey(plan.PrefixName, 0), []byte("gpu0"))}, {put(plan.SlotKey(plan.PrefixName, 1), []byte("gpu1"))},
		{put(free.Key(), free.Encode())}, {put(given.Key(), given.Encode())}, {put(plan.SlotKey(plan.PrefixEvidence, 0), ev.Encode())},
		{put(start.Key(), start.Encode())}, {put(plan.SlotKey(plan.PrefixAdopted, 1), adopted.Encode())},
		{put(plan.PrefixHost+"server1", hosts["server1"].Encode())}, {put(plan.PrefixHost+"server2", hosts["server2"].Encode())},
		{put(plan.KeyRoll, plan.RollOf(hosts).Encode())}, {put(plan.KeyFloor, plan.Floor{Incarnation: incarnation, Counter: 9}.Encode())},
		{put(plan.KeyConfiguration, plan.Configuration{Version: 7, Packed: config.Pack([]byte("{}"))}.Encode())},
		{put(plan.PrefixAudit+"\x00", plan.Audit{Seq: 3, Run: 1, Uptime: time.Minute, Kind: "fence", Text: "server2: fenced", By: "uid 0"}.Encode())},
	}
	im, err := image.New("new", bytes.Repeat([]byte{0xff}, chipSize), image.Options{Offset: off})
	if err == nil {
		err = im.Repair(context.Background(), nvm.Repair{Format: true, Incarnation: incarnation, Batches: recs})
	}
	if err != nil {
		return nil, err
	}
	return im.Bytes(), nil
}

// block is the image of gpu0's chip.
func block() []byte {
	b := ee.Block{Group: 101, From: ee.GroupFree, Generation: ee.Generation{Incarnation: incarnation, Counter: 17}, VM: vmUUID, Move: ee.UUID{1}}
	return append(b.Encode(), bytes.Repeat([]byte{0xff}, chipSize-ee.BlockSize)...)
}

// pageOf is where the store's first page with text is.
func pageOf(img []byte, text string) int { return bytes.Index(img, []byte(text)) &^ 63 }

// mkimage KIND FILE: writes what a programmer reads from a chip.
func mkimage(ts *testscript.TestScript, _ bool, args []string) {
	img, err := wholeStore(0)
	ts.Check(err)
	// What is not torn the same in every run can not be compared.
	noise := rand.New(rand.NewPCG(1, 2))
	tear := func(at, n int) {
		for i := at; i < at+n; i++ {
			img[i] = byte(noise.Uint32())
		}
	}
	switch args[0] {
	case "whole":
	case "torn": // the page of gpu0's assignment
		tear(pageOf(img, string(vmUUID[:])), 64)
	case "headless": // no format record
		tear(0, 128)
	case "blank":
		img = bytes.Repeat([]byte{0xff}, chipSize)
	case "foreign":
		tear(0, chipSize)
	case "block":
		img = block()
	case "badblock":
		img = block()
		img[20] ^= 1 // its CRC
	case "both": // an engine's chip with the store behind the block
		img, err = wholeStore(4096)
		ts.Check(err)
		copy(img, block()[:ee.BlockSize])
	case "odd":
		img = img[:1000]
	default:
		ts.Fatalf("mkimage: what is %q?", args[0])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), img, 0o600))
}

// TestRepairAnything: whatever an image holds, a repair ends, says what it did,
// and leaves nothing more to repair; the image itself is not touched.
func TestRepairAnything(t *testing.T) {
	whole, err := wholeStore(0)
	if err != nil {
		t.Fatal(err)
	}
	repaired := 0
	for seed := range uint64(60) {
		noise := rand.New(rand.NewPCG(seed, 0))
		img := slices.Clone(whole)
		for range 1 + noise.IntN(6) {
			at := noise.IntN(16) * 64 // where its records are
			for i := range noise.IntN(65) {
				img[at+i] = byte(noise.Uint32())
			}
		}
		dir := t.TempDir()
		in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
		if err := os.WriteFile(in, img, 0o600); err != nil {
			t.Fatal(err)
		}
		do := func(args ...string) (int, string) {
			var b bytes.Buffer
			err := run(t.Context(), args, strings.NewReader(""), &b, &b)
			return exitCode(err), b.String()
		}
		found, text := do("nvm", "check", "--file", in)
		if found > exitFailed {
			t.Fatalf("seed %d: check: exit code %d\n%s", seed, found, text)
		}
		code, text := do("nvm", "repair", "--file", in, "-o", out, "--format")
		if code > exitFailed {
			t.Fatalf("seed %d: repair: exit code %d\n%s", seed, code, text)
		}
		if same, err := os.ReadFile(in); err != nil || !bytes.Equal(same, img) {
			t.Fatalf("seed %d: the image was touched: %v", seed, err)
		}
		if _, err := os.Stat(out); err != nil {
			if found != exitDone {
				t.Errorf("seed %d: damage, and no repair\n%s", seed, text)
			}
			continue
		}
		repaired++
		if code, text := do("nvm", "repair", "--file", out, "-o", out+"2"); code != exitDone || !strings.Contains(text, "nothing that a repair") {
			t.Errorf("seed %d: what was repaired: exit code %d\n%s", seed, code, text)
		}
	}
	t.Logf("%d of 60 images were repaired", repaired)
	if repaired < 30 {
		t.Errorf("%d of 60 images were repaired: too few had damage", repaired)
	}
}
