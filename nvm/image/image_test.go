package image_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"baton/nvm"
	"baton/nvm/image"
	"baton/nvm/nvmtest"
)

var bg = context.Background()

const inc = 0xba70

// chip is the content of a 24c256 with a store that begins at off.
func chip(t *testing.T, off int64) []byte {
	t.Helper()
	m := nvmtest.NewChip(nvm.Geometry{Size: 32768, Page: 64, Erased: 0xff, WriteMax: 5 * time.Millisecond}, 1)
	sec, err := nvm.Section(m, off, 32768-off-64) // not to the end of the chip
	if err != nil {
		t.Fatal(err)
	}
	s, err := nvm.Format(bg, sec, inc, nvm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"a", "b", "c"} {
		if err := s.Put(bg, nvm.Urgent, nvm.Record{Key: k, Value: []byte("value of " + k)}); err != nil {
			t.Fatal(err)
		}
	}
	img := m.Image()
	if off > 0 {
		copy(img, "EEIO block")
	}
	return img
}

func file(t *testing.T, img []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "chip.bin")
	if err := os.WriteFile(path, img, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFindsStore(t *testing.T) {
	for _, off := range []int64{0, 64, 4096} {
		for _, lost := range []int64{-1, 0, 1} { // of the two format records
			img := chip(t, off)
			if lost >= 0 {
				copy(img[off+lost*64:], "overwritten by somebody")
			}
			im, err := image.Open(file(t, img), image.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if im.Part() != "24c256" {
				t.Errorf("part %q", im.Part())
			}
			in, err := im.Store(bg)
			if err != nil || in.Err != nil {
				t.Fatalf("store at %d, record %d lost: %v, %v", off, lost, err, in.Err)
			}
			if v, ok := in.Get("b"); !ok || string(v) != "value of b" {
				t.Errorf("b = %q, %v", v, ok)
			}
			if at, size := im.StoreAt(); at != off || size != 32768-off-64 {
				t.Errorf("found at %d, %d bytes; want %d", at, size, off)
			}
			if off > 0 && string(im.Block(0, 10)) != "EEIO block" {
				t.Errorf("Block = %q", im.Block(0, 10))
			}
		}
	}
}

// A store that lost both records is found where it is said to be, repaired and
// saved under another name; the file that was opened stays as it is.
func TestRepair(t *testing.T) {
	img := chip(t, 4096)
	copy(img[4096:], bytes.Repeat([]byte("x"), 128))
	path := file(t, img)
	im, err := image.Open(path, image.Options{Offset: 4096, Size: 32768 - 4096 - 64})
	if err != nil {
		t.Fatal(err)
	}
	in, err := im.Store(bg)
	if err != nil || !errors.Is(in.Err, nvm.ErrUnformatted) || in.State != nvm.Foreign {
		t.Fatalf("Store = %+v, %v", in, err)
	}
	lost := im.Salvageable(bg)
	if lost == nil || lost.Incarnation != inc {
		t.Fatalf("Salvageable = %+v", lost)
	}
	if err := im.Repair(bg, nvm.Repair{Salvage: true, Incarnation: 1}); !errors.Is(err, nvm.ErrUnformatted) || !bytes.Equal(im.Bytes(), img) {
		t.Errorf("Repair as another store: %v; want ErrUnformatted and nothing changed", err)
	}
	r := nvm.Repair{Salvage: true, Incarnation: inc, Clean: true, Batches: [][]nvm.Record{{{Key: "d", Value: []byte("new")}}}}
	if err := im.Repair(bg, r); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(filepath.Dir(path), "repaired.bin")
	if err := im.Save(out, false); err != nil {
		t.Fatal(err)
	}
	if err := im.Save(out, false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Save over a file = %v; want ErrExist", err)
	}
	if err := im.Save(out, true); err != nil {
		t.Errorf("Save with replace: %v", err)
	}
	if now, _ := os.ReadFile(path); !bytes.Equal(now, img) {
		t.Error("the file that was opened has changed")
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(left) != 2 {
		t.Errorf("files left: %v", left)
	}
	again, err := image.Open(out, image.Options{}) // the records say where it is
	if err != nil {
		t.Fatal(err)
	}
	in, err = again.Store(bg)
	if err != nil || in.Err != nil || len(in.Damaged) > 0 {
		t.Fatalf("repaired: %v, %+v", err, in)
	}
	for k, want := range map[string]string{"a": "value of a", "d": "new"} {
		if v, _ := in.Get(k); string(v) != want {
			t.Errorf("%s = %q; want %q", k, v, want)
		}
	}
	if !bytes.Equal(again.Bytes()[:4096], img[:4096]) {
		t.Error("what is before the store has changed")
	}
}

func TestOpenRefuses(t *testing.T) {
	if _, err := image.Open(filepath.Join(t.TempDir(), "nothing"), image.Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for _, tt := range []struct {
		name string
		size int
		opt  image.Options
		ok   bool
	}{
		{"of another part", 32768, image.Options{Part: "24c64"}, false},
		{"of an unknown part", 32768, image.Options{Part: "27c010"}, false},
		{"half a page", 1000, image.Options{}, false},
		{"empty", 0, image.Options{}, false},
		{"store behind the end", 32768, image.Options{Offset: 32768}, false},
		{"store within a page", 32768, image.Options{Offset: 32}, false},
		{"a store's file", 100 * 64, image.Options{}, true},
		{"a store's file, its pages given", 100 * 128, image.Options{Page: 128}, true},
		{"an engine's chip", 32768, image.Options{Offset: -1}, true},
	} {
		im, err := image.New(tt.name, make([]byte, tt.size), tt.opt)
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.opt.Offset < 0 && tt.ok {
			if _, err := im.Store(bg); !errors.Is(err, image.ErrNoStore) {
				t.Errorf("%s: Store = %v; want ErrNoStore", tt.name, err)
			}
			if err := im.Repair(bg, nvm.Repair{Clean: true}); !errors.Is(err, image.ErrNoStore) {
				t.Errorf("%s: Repair = %v; want ErrNoStore", tt.name, err)
			}
			if im.Salvageable(bg) != nil || im.Block(32768-10, 64) != nil || im.Block(-1, 1) != nil || len(im.Block(32704, 64)) != 64 {
				t.Errorf("%s: something found where nothing is", tt.name)
			}
		}
	}
}

// Small chips: pages of the part are smaller than the store's.
func TestSmallParts(t *testing.T) {
	for _, name := range []string{"24c16", "24c32", "24c512"} {
		p := nvm.Parts[name]
		m := nvmtest.NewChip(nvm.Geometry{Size: p.Size, Page: p.Page, Erased: 0xff, WriteMax: p.WriteMax}, 1)
		if _, err := nvm.Format(bg, m, inc, nvm.Options{}); err != nil {
			t.Fatal(err)
		}
		im, err := image.New(name, m.Image(), image.Options{})
		if err != nil {
			t.Fatal(err)
		}
		in, err := im.Store(bg)
		if err != nil || in.Err != nil || im.Part() != name {
			t.Errorf("%s: %v, %+v, part %q", name, err, in, im.Part())
		}
	}
}

// A flash is known by its format records, however large it is.
func TestFlash(t *testing.T) {
	g := nvm.Geometry{Size: 32 * 4096, Page: 256, Erase: 4096, Erased: 0xff, WriteMax: time.Millisecond, EraseMax: time.Second}
	m := nvmtest.NewNOR(g, 1)
	s, err := nvm.Format(bg, m, inc, nvm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(bg, nvm.Urgent, nvm.Record{Key: "k", Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	flash := m.Image()
	flash[7] &^= flash[7] // the first block's record is lost, and the next one is found
	for _, tt := range []struct {
		name    string
		content []byte
		opt     image.Options
	}{
		{"the partition", flash, image.Options{}},
		{"a store at its start", append(slices.Clone(flash), bytes.Repeat([]byte{0xff}, 3*4096)...), image.Options{}},
		{"the whole flash", append(bytes.Repeat([]byte{0xff}, 2*4096), flash...), image.Options{Offset: 2 * 4096}},
	} {
		im, err := image.New(tt.name, tt.content, tt.opt)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		in, err := im.Store(bg)
		if err != nil || in.Err != nil || im.Geometry().Erase != 4096 {
			t.Errorf("%s: %v, %+v", tt.name, err, in)
			continue
		}
		if v, _ := in.Get("k"); string(v) != "v" {
			t.Errorf("%s: k = %q", tt.name, v)
		}
		if err := im.Repair(bg, nvm.Repair{Clean: true, Batches: [][]nvm.Record{{{Key: "k", Value: []byte("w")}}}}); err != nil {
			t.Errorf("%s: Repair = %v", tt.name, err)
		}
		if in, err := im.Store(bg); err != nil || in.Err != nil {
			t.Errorf("%s: repaired: %v", tt.name, err)
		} else if v, _ := in.Get("k"); string(v) != "w" {
			t.Errorf("%s: repaired, k = %q", tt.name, v)
		}
	}
}

// An SPI part is named: its size tells a 24xx.
func TestSPIPart(t *testing.T) {
	p := nvm.Parts25["25lc1024"]
	m := nvmtest.NewChip(nvm.Geometry{Size: p.Size, Page: p.Page, Erased: 0xff}, 1)
	if _, err := nvm.Format(bg, m, inc, nvm.Options{}); err != nil {
		t.Fatal(err)
	}
	im, err := image.New("chip", m.Image(), image.Options{Part: p.Name})
	if err != nil {
		t.Fatal(err)
	}
	if in, err := im.Store(bg); err != nil || in.Err != nil || im.Part() != p.Name {
		t.Errorf("%v, %+v, part %q", err, in, im.Part())
	}
}

// FuzzImage opens, inspects and repairs anything.
func FuzzImage(f *testing.F) {
	f.Add([]byte("EEIO"), int64(0))
	f.Fuzz(func(t *testing.T, content []byte, off int64) {
		img := bytes.Repeat([]byte{0xff}, 4096)
		copy(img, content)
		im, err := image.New("fuzz", img, image.Options{Offset: off})
		if err != nil {
			return
		}
		in, err := im.Store(bg)
		if err != nil {
			return
		}
		if in.Err != nil {
			im.Salvageable(bg, 1, 2)
			return
		}
		if err := im.Repair(bg, nvm.Repair{Clean: true}); err != nil && !errors.Is(err, nvm.ErrFull) && !errors.Is(err, nvm.ErrWorn) {
			t.Errorf("Repair: %v", err)
		}
	})
}

// TestSaveInPlace: who could open the file that is replaced still can, and a
// link to it still leads to it.
func TestSaveInPlace(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "store"), filepath.Join(dir, "link")
	if err := os.WriteFile(path, bytes.Repeat([]byte{0xff}, 32<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o664); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(path, 12, 34); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("store", link); err != nil {
		t.Fatal(err)
	}
	im, err := image.Open(link, image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := im.Repair(bg, nvm.Repair{Format: true, Incarnation: 5}); err != nil {
		t.Fatal(err)
	}
	if err := im.Save(link, true); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", st.Mode(), err)
	}
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	a, b := before.Sys().(*syscall.Stat_t), after.Sys().(*syscall.Stat_t)
	if after.Mode() != before.Mode() || a.Uid != b.Uid || a.Gid != b.Gid {
		t.Errorf("mode %v, owner %d:%d; want %v, %d:%d", after.Mode(), b.Uid, b.Gid, before.Mode(), a.Uid, a.Gid)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, im.Bytes()) {
		t.Errorf("the content is not what was saved, %v", err)
	}
}
