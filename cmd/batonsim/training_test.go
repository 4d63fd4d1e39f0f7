package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// after returns run's state after n steps.
func after(run uint64, n int) training {
	t := training{Run: run}
	for range n {
		t = t.next()
	}
	return t
}

// memory returns device memory to which these states were written, in order.
func memory(states ...training) []byte {
	mem := make([]byte, memorySize)
	for _, s := range states {
		copy(mem[s.place():], s.record())
	}
	return mem
}

func TestRecordFrozen(t *testing.T) {
	const want = "42544a42010000001032547698badcfe0200000000000000" +
		"166337d234a1d4821dc870005449dd9991b19394878ddd4a1e634e851d68d363" + "00000000663f8598"
	got := after(0xfedcba9876543210, 2).record()
	if p, err := parseRecord(got); err != nil || p != after(0xfedcba9876543210, 2) {
		t.Errorf("parse(record) = %+v, %v", p, err)
	}
	if h := hex.EncodeToString(got); h != want {
		t.Errorf("record = %s; want %s", h, want)
	}
}

func TestNewest(t *testing.T) {
	torn := func(mem []byte, s training) []byte {
		copy(mem[s.place():], s.record()[:recordSize/2])
		return mem
	}
	for _, tc := range []struct {
		name string
		mem  []byte
		want uint64
		err  error
	}{
		{"one step", memory(after(7, 1)), 1, nil},
		{"two steps", memory(after(7, 1), after(7, 2)), 2, nil},
		{"overwritten", memory(after(7, 1), after(7, 2), after(7, 3)), 3, nil},
		{"died within step 4", torn(memory(after(7, 2), after(7, 3)), after(7, 4)), 3, nil},
		{"died within step 3", torn(memory(after(7, 1), after(7, 2)), after(7, 3)), 2, nil},
		{"beside another job's", memory(after(8, 100), after(7, 3)), 3, nil},
		{"another job's beside", memory(after(7, 4), after(8, 101)), 4, nil},
		{"reset", make([]byte, memorySize), 0, errMemoryZero},
		{"ones", bytes.Repeat([]byte{0xFF}, memorySize), 0, errMemoryForeign},
		{"another job", memory(after(8, 3), after(8, 4)), 0, errMemoryOther},
		{"both torn", torn(torn(make([]byte, memorySize), after(7, 1)), after(7, 2)), 0, errMemoryForeign},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := newest(tc.mem, 7)
			if !errors.Is(err, tc.err) || got.Step != tc.want && tc.err == nil {
				t.Errorf("newest = step %d, %v; want %d, %v", got.Step, err, tc.want, tc.err)
			}
			if tc.err == nil && got != after(7, int(tc.want)) {
				t.Errorf("newest = %+v; want what %d steps give", got, tc.want)
			}
		})
	}
}

// Any one bit of a record that changes makes it none.
func TestRecordBitFlips(t *testing.T) {
	good := after(7, 5).record()
	for bit := range recordSize * 8 {
		p := bytes.Clone(good)
		p[bit/8] ^= 1 << (bit % 8)
		if s, err := parseRecord(p); err == nil {
			t.Errorf("bit %d of byte %d flipped: taken for %+v", bit%8, bit/8, s)
		}
	}
}

func TestCheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "train1.ckpt")
	if _, found, err := loadCheckpoint(path); found || err != nil {
		t.Errorf("no file: found %v, %v", found, err)
	}
	for _, n := range []int{0, 50, 100} {
		if err := saveCheckpoint(path, after(7, n)); err != nil {
			t.Fatal(err)
		}
		got, found, err := loadCheckpoint(path)
		if got != after(7, n) || !found || err != nil {
			t.Errorf("after %d steps: %+v, %v, %v", n, got, found, err)
		}
	}
	for _, text := range []string{"", "{", `{"run":1,"step":2,"model":"AAAA"}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := loadCheckpoint(path); err == nil {
			t.Errorf("checkpoint %q: no error", text)
		}
	}
}
