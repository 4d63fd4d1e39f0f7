package nvm_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"baton/nvm"
)

func TestFile(t *testing.T) {
	g := geometry(4096, 64, 0)
	path := filepath.Join(t.TempDir(), "nvm.bin")
	if _, err := nvm.OpenFile(path, g, false); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("OpenFile of nothing = %v; want ErrNotExist", err)
	}
	f, err := nvm.OpenFile(path, g, true)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Geometry(); got != g {
		t.Errorf("Geometry = %+v", got)
	}
	p := make([]byte, 4096)
	if err := f.ReadAt(bg, p, 0); err != nil || !bytes.Equal(p, bytes.Repeat([]byte{0xff}, 4096)) {
		t.Errorf("a new file reads % x..., %v", p[:4], err)
	}
	if err := f.Program(bg, []byte("page"), 60); err != nil {
		t.Error(err)
	}
	if err := f.Settle(bg); err != nil {
		t.Error(err)
	}
	onDisk, err := os.ReadFile(path)
	if err != nil || string(onDisk[60:64]) != "page" {
		t.Errorf("on disk: %q, %v", onDisk[60:64], err)
	}
	ended, cancel := context.WithCancel(bg)
	cancel()
	for _, tt := range []struct {
		name string
		err  error
		want error
	}{
		{"write across a page", f.Program(bg, make([]byte, 2), 63), nvm.ErrPage},
		{"write beyond the end", f.Program(bg, make([]byte, 1), 4096), nvm.ErrRange},
		{"read beyond the end", f.ReadAt(bg, make([]byte, 2), 4095), nvm.ErrRange},
		{"read before the start", f.ReadAt(bg, make([]byte, 2), -1), nvm.ErrRange},
		{"write, ended", f.Program(ended, make([]byte, 1), 0), context.Canceled},
		{"read, ended", f.ReadAt(ended, make([]byte, 1), 0), context.Canceled},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: %v; want %v", tt.name, tt.err, tt.want)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.ReadAt(bg, p[:1], 0); err == nil {
		t.Error("a closed file reads")
	}

	// With create, a file that is there is taken as it is.
	f, err = nvm.OpenFile(path, g, true)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.ReadAt(bg, p[:4], 60); err != nil || string(p[:4]) != "page" {
		t.Errorf("opened again: %q, %v", p[:4], err)
	}

	g.Size = 8192
	_, err = nvm.OpenFile(path, g, true)
	if !errors.Is(err, nvm.ErrSize) || !strings.Contains(err.Error(), "4096") || !strings.Contains(err.Error(), "8192") {
		t.Errorf("OpenFile with another size = %v; want ErrSize, found and wanted", err)
	}
	g.Erase = 512
	if _, err := nvm.OpenFile(path, g, true); !errors.Is(err, nvm.ErrSize) {
		t.Errorf("OpenFile with erase blocks = %v; want ErrSize", err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 1 {
		t.Errorf("files left: %v", left)
	}
}

func TestSection(t *testing.T) {
	m := newMemory(geometry(4096, 64, 0), 1)
	s, err := nvm.Section(m, 128, 256)
	if err != nil {
		t.Fatal(err)
	}
	if g := s.Geometry(); g.Size != 256 || g.Page != 64 {
		t.Errorf("Geometry = %+v", g)
	}
	if _, ok := s.(nvm.Eraser); ok {
		t.Error("the section can erase, and the chip cannot")
	}
	if err := s.Program(bg, []byte{1, 2}, 64); err != nil {
		t.Fatal(err)
	}
	if got := m.Image()[192:194]; !bytes.Equal(got, []byte{1, 2}) {
		t.Errorf("at 192: % x", got)
	}
	p := make([]byte, 2)
	if err := s.ReadAt(bg, p, 64); err != nil || !bytes.Equal(p, []byte{1, 2}) {
		t.Errorf("ReadAt = % x, %v", p, err)
	}
	for _, err := range []error{
		s.Program(bg, p, 256), s.Program(bg, p, -64), s.ReadAt(bg, p, 255), s.ReadAt(bg, p, -1),
	} {
		if !errors.Is(err, nvm.ErrRange) {
			t.Errorf("outside the section: %v; want ErrRange", err)
		}
	}

	nor := newMemory(geometry(4096, 64, 512), 1)
	for _, tt := range []struct {
		name      string
		m         nvm.Medium
		off, size int64
		want      error
	}{
		{"within a page", m, 32, 64, nvm.ErrPage},
		{"half a page", m, 64, 32, nvm.ErrPage},
		{"within a block", nor, 64, 512, nvm.ErrPage},
		{"half a block", nor, 512, 64, nvm.ErrPage},
		{"too long", m, 64, 4096, nvm.ErrRange},
		{"nothing", m, 64, 0, nvm.ErrRange},
		{"before the start", m, -64, 64, nvm.ErrRange},
		{"overflowing", m, 64, 1<<63 - 1, nvm.ErrRange},
	} {
		if _, err := nvm.Section(tt.m, tt.off, tt.size); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v; want %v", tt.name, err, tt.want)
		}
	}
	s, err = nvm.Section(nor, 512, 1024)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.(nvm.Eraser).Erase(bg, 512); err != nil || nor.Erases()[2] != 1 {
		t.Errorf("Erase: %v, %v", err, nor.Erases())
	}
	if err := s.(nvm.Eraser).Erase(bg, 1024); !errors.Is(err, nvm.ErrRange) {
		t.Errorf("Erase outside: %v", err)
	}
}
