package nvm_test

import (
	"bytes"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"baton/nvm"
)

// FuzzMount mounts anything. It must end without a panic, in a store that
// works, or in an error; a store that was mounted stays the same.
//
// The first byte chooses the shape. Where the page that follows has its CRC
// wrong it is made right, for the seeds of the fuzzer's stores, or nothing that
// the fuzzer makes up would ever be looked at.
func FuzzMount(f *testing.F) {
	fuzzShapes := []nvm.Geometry{geometry(12*64, 64, 0), geometry(6*4*64, 64, 4*64)}
	for i, g := range fuzzShapes {
		m := newMemory(g, 1)
		s, err := nvm.Format(bg, m, 0, nvm.Options{})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append([]byte{byte(i)}, m.Image()...))
		s.Put(bg, nvm.Urgent, rec("k", "v"), rec("l", "w"))
		s.Put(bg, nvm.Urgent, rec("long", string(bytes.Repeat([]byte("x"), 60))))
		s.Put(bg, nvm.Urgent, del("k"))
		f.Add(append([]byte{byte(i)}, m.Image()...))
	}
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		g := fuzzShapes[int(data[0])%len(fuzzShapes)]
		m := newMemory(g, 1)
		img := m.Image()
		copy(img, data[1:])
		seal(img)
		m.Load(img)
		checkAnything(t, m)
	})
}

// checkAnything mounts a medium that holds anything at all.
func checkAnything(t *testing.T, m memory) {
	t.Helper()
	m, same := clone(m, 1), clone(m, 1)
	s, rep, err := nvm.Mount(bg, m, nvm.Options{})
	if m.Ops() != 0 {
		t.Fatalf("mounting wrote %d pages", m.Ops())
	}
	_, _, errSuspect := nvm.Mount(bg, same, suspect)
	if (err == nil) != (errSuspect == nil) && !errors.Is(errSuspect, nvm.ErrFull) {
		t.Fatalf("Mount = %v; suspect %v", err, errSuspect)
	}
	if err != nil {
		if !errors.Is(err, nvm.ErrUnformatted) && !errors.Is(err, nvm.ErrVersion) && !errors.Is(err, nvm.ErrSize) {
			t.Fatalf("Mount = %v (%+v)", err, rep)
		}
		return
	}
	if same.Ops() > 500 {
		t.Fatalf("recovery took %d writes", same.Ops())
	}
	want := contents(s)
	again, _ := mustMount(t, m, nvm.Options{})
	if diff := cmp.Diff(want, contents(again)); diff != "" {
		t.Fatalf("mounted again:\n%s", diff)
	}
	err = s.Put(bg, nvm.Urgent, rec("new", "value"))
	if errors.Is(err, nvm.ErrFull) || errors.Is(err, nvm.ErrWorn) {
		return
	}
	if err != nil {
		t.Fatalf("Put: %v", err)
	}
	want["new"] = "value"
	if diff := cmp.Diff(want, contents(s)); diff != "" {
		t.Fatalf("after Put:\n%s", diff)
	}
	again, _ = mustMount(t, m, nvm.Options{})
	if v, ok := again.Get("new"); !ok || string(v) != "value" {
		t.Fatalf("after Put, mounted again: new = %q, %v", v, ok)
	}
	for range 20 {
		if err := s.Tend(bg); err != nil && !errors.Is(err, nvm.ErrFull) && !errors.Is(err, nvm.ErrWorn) {
			t.Fatalf("Tend: %v", err)
		}
	}
}

// TestMountMangled mounts stores whose pages were moved, copied and changed,
// with the CRCs right: what no accident makes, but an enemy or a bug may.
func TestMountMangled(t *testing.T) {
	r := rand.New(rand.NewPCG(cutSeed(), 3))
	for n := range 6_000 / thin {
		g := shapes[n%len(shapes)].g
		if g.Page > 64 {
			g = shapes[0].g // seal knows pages of 64
		}
		m := newMemory(g, uint64(n))
		s, err := nvm.Format(bg, m, 0, suspect)
		if err != nil {
			t.Fatal(err)
		}
		ops := workload(12)
		if _, err := run(s, newModel(), ops[:r.IntN(len(ops))]); err != nil {
			t.Fatal(err)
		}
		img := m.Image()
		page := func() []byte { p := r.IntN(len(img) / 64); return img[p*64 : (p+1)*64] }
		for range 1 + r.IntN(8) {
			switch p := page(); r.IntN(7) {
			case 0:
				copy(p, page())
			case 1:
				p[r.IntN(64)] = byte(r.Uint32())
			case 2: // sequence, part, parts or link
				p[1+r.IntN(8)] = byte(r.IntN(24))
			case 3:
				q := page()
				for i := range p {
					p[i], q[i] = q[i], p[i]
				}
			case 4:
				copy(p, bytes.Repeat([]byte{byte(-r.IntN(2))}, 64))
			case 5:
				p[0] = []byte{0x2d, 0x4b, 0xb2, 0xd4, 0x8e}[r.IntN(5)]
			case 6:
				p[4] = 0xff // a sequence number near its end
			}
		}
		if n%4 != 0 {
			seal(img)
		}
		m.Load(img)
		checkAnything(t, m)
		if t.Failed() {
			t.Fatalf("image %d", n)
		}
	}
}

// seal makes the CRCs of an image's pages right: of those that look like a
// format record with the constant seed, of the others with the seed of
// incarnation 0.
func seal(img []byte) {
	table := crc32.MakeTable(crc32.Castagnoli)
	const version = 0x42617431
	data := crc32.Update(version, table, make([]byte, 4))
	for ; len(img) >= 64; img = img[64:] {
		seed := data
		switch img[0] {
		case 0xff:
			continue
		case 0xb2, 0xd4, 0x8e:
			seed = version
		}
		sum := crc32.Update(seed, table, img[:60])
		img[60], img[61], img[62], img[63] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
	}
}
