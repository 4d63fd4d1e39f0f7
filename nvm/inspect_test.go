package nvm_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"baton/nvm"
	"baton/nvm/nvmtest"
)

// used is a medium that a workload has run on.
func used(t testing.TB, g nvm.Geometry, n int) (memory, map[string]string) {
	t.Helper()
	m := newMemory(g, 1)
	s := mustFormat(t, m, suspect)
	if _, err := run(s, newModel(), workload(n)); err != nil {
		t.Fatal(err)
	}
	s, _ = mustMount(t, m, nvm.Options{})
	return m, contents(s)
}

func liveOf(in *nvm.Inspection) map[string]string {
	got := map[string]string{}
	for _, l := range in.Live {
		got[l.Key] = string(l.Value)
	}
	return got
}

// TestInspect: what Inspect tells is what Mount finds, and nothing is written.
func TestInspect(t *testing.T) {
	for _, sh := range shapes {
		inBubble(t, sh.name, func(t *testing.T) {
			m, want := used(t, sh.g, 14)
			ops := m.Ops()
			in, err := nvm.Inspect(bg, m)
			if err != nil || in.Err != nil {
				t.Fatal(err, in.Err)
			}
			if m.Ops() != ops {
				t.Errorf("Inspect wrote %d pages", m.Ops()-ops)
			}
			s, rep := mustMount(t, m, nvm.Options{})
			if diff := cmp.Diff(rep, in.Report); diff != "" {
				t.Errorf("report (-Mount +Inspect):\n%s", diff)
			}
			if diff := cmp.Diff(want, liveOf(in)); diff != "" {
				t.Errorf("records (-Mount +Inspect):\n%s", diff)
			}
			for k, v := range want {
				if got, ok := in.Get(k); !ok || string(got) != v {
					t.Errorf("Get(%q) = %q, %v; want %q", k, got, ok, v)
				}
			}
			if _, ok := in.Get("nothing"); ok {
				t.Error("Get finds what is not there")
			}
			count := map[nvm.PageState]int{}
			for _, p := range in.Detail {
				count[p.State]++
			}
			if count[nvm.PageData] != s.Stats().Live || count[nvm.PageFormat] < 2 || count[nvm.PageDamaged]+count[nvm.PageIncomplete] != 0 {
				t.Errorf("pages %v; the store says %d live", count, s.Stats().Live)
			}
			if n := len(in.Batches); n == 0 || in.Batches[n-1].Sequence != in.Sequence {
				t.Errorf("%d batches, the last %+v; newest is %d", n, in.Batches[n-1], in.Sequence)
			}
			// The store tells the same of itself, while it is used.
			mustPut(t, s, rec("k", "now"))
			self, err := s.Inspect(bg)
			if v, ok := self.Get("k"); err != nil || !ok || string(v) != "now" {
				t.Errorf("Store.Inspect: k = %q, %v, %v", v, ok, err)
			}
			img, err := s.Image(bg)
			if err != nil || !bytes.Equal(img, m.Image()[:len(img)]) {
				t.Errorf("Store.Image differs from the medium, %v", err)
			}
		})
	}
}

// TestInspectWhileWriting has a store written while it is read: what is told was
// there at one instant.
func TestInspectWhileWriting(t *testing.T) {
	m := newMemory(shapes[0].g, 1)
	s := mustFormat(t, m, suspect)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				// Of two pages, so that what was read at two instants does not fit.
				if err := s.Put(bg, nvm.Urgent, rec("a", fmt.Sprintf("%060d", i)), rec("b", fmt.Sprintf("%060d", i))); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	for range 5 {
		in, err := s.Inspect(bg)
		if err != nil || in.Err != nil || len(in.Damaged) > 0 || in.Incomplete > 0 {
			t.Fatalf("Inspect = %v, %+v", err, in)
		}
		a, okA := in.Get("a")
		b, okB := in.Get("b")
		if okA != okB || string(a) != string(b) {
			t.Errorf("a = %q, b = %q: of two batches", a, b)
		}
	}
	close(stop)
	<-done
}

func TestInspectNoStore(t *testing.T) {
	blank := newMemory(shapes[0].g, 1)
	foreign := newMemory(shapes[0].g, 1)
	foreign.Load(bytes.Repeat([]byte("data"), int(shapes[0].g.Size)/4))
	old, _ := used(t, geometry(30*64, 64, 0), 5)
	small, err := nvm.Section(old, 0, 20*64)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		m     nvm.Medium
		state nvm.State
		err   error
	}{
		{"blank", blank, nvm.Blank, nvm.ErrUnformatted},
		{"foreign", foreign, nvm.Foreign, nvm.ErrUnformatted},
		{"for another medium", small, nvm.Formatted, nvm.ErrSize},
	} {
		in, err := nvm.Inspect(bg, tt.m)
		if err != nil || in.State != tt.state || !errors.Is(in.Err, tt.err) || len(in.Live) > 0 {
			t.Errorf("%s: Inspect = %+v, %v; want %s, %v", tt.name, in, err, tt.state, tt.err)
		}
		if found, err := nvm.FindLost(bg, tt.m); err != nil || tt.err == nvm.ErrUnformatted && found != nil {
			t.Errorf("%s: FindLost = %+v, %v; want nothing", tt.name, found, err)
		}
	}
	if in, err := nvm.Inspect(bg, newMemory(geometry(4*64, 64, 0), 1)); in != nil || !errors.Is(err, nvm.ErrSize) {
		t.Errorf("too small: %+v, %v; want ErrSize", in, err)
	}
}

// loseFormat damages all format records.
func loseFormat(m memory, g nvm.Geometry) {
	img := m.Image()
	logical := max(64, g.Page)
	if g.Erase > 0 {
		for b := 0; b < len(img); b += g.Erase {
			if img[b] == 0x8e {
				img[b+3] ^= 0x10
			}
		}
	} else {
		img[3] ^= 0x10
		img[logical+30] ^= 0x01
	}
	m.Load(img)
}

// TestSalvage has a store back that lost its format records, with the power cut
// at every write: it is begun anew and comes to the same.
func TestSalvage(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			m, want := used(t, sh.g, 10)
			whole := clone(m, 1)
			if _, _, err := nvm.Salvage(bg, whole, 0xba70, suspect); !errors.Is(err, nvm.ErrStore) {
				t.Errorf("Salvage of a store = %v; want ErrStore", err)
			}
			loseFormat(m, sh.g)
			if _, rep, err := nvm.Mount(bg, m, nvm.Options{}); !errors.Is(err, nvm.ErrUnformatted) || rep.State != nvm.Foreign {
				t.Fatalf("Mount = %v, %s", err, rep.State)
			}
			before := m.Image()
			if _, _, err := nvm.Salvage(bg, m, 4711, suspect); !errors.Is(err, nvm.ErrUnformatted) || !bytes.Equal(before, m.Image()) {
				t.Errorf("Salvage of another incarnation = %v; want ErrUnformatted, nothing written", err)
			}
			for _, known := range [][]uint32{nil, {7, 0xba70}} {
				if in, err := nvm.FindLost(bg, m, known...); err != nil || in == nil || in.Incarnation != 0xba70 {
					t.Errorf("FindLost(%v) = %+v, %v", known, in, err)
				} else if diff := cmp.Diff(want, liveOf(in)); diff != "" {
					t.Errorf("FindLost(%v), records:\n%s", known, diff)
				}
			}
			salvage := func(m memory) error {
				for range 50 { // a record that is torn reads differently each time
					if _, _, err := nvm.Mount(bg, m, suspect); err == nil {
						return nil
					}
					if _, _, err := nvm.Salvage(bg, m, 0xba70, suspect); err == nil || !errors.Is(err, nvm.ErrStore) && !errors.Is(err, nvm.ErrUnformatted) {
						return err
					}
				}
				return errors.New("no end")
			}
			clean := clone(m, 1)
			if err := salvage(clean); err != nil {
				t.Fatal(err)
			}
			cuts := 0
			for n := range clean.Ops() {
				for ti, tear := range nvmtest.Tears {
					if (n+ti)%thin != 0 {
						continue
					}
					d := clone(m, uint64(n*100+ti))
					d.Cut(n, tear.Tear)
					salvage(d)
					d.PowerOn()
					cuts++
					if err := salvage(d); err != nil {
						t.Fatalf("write %d torn %q: %v", n, tear.Name, err)
					}
					for range 2 {
						s, _ := mustMount(t, d, suspect)
						if diff := cmp.Diff(want, contents(s)); diff != "" {
							t.Fatalf("write %d torn %q:\n%s", n, tear.Name, diff)
						}
					}
				}
			}
			t.Logf("%d writes, %d cuts", clean.Ops(), cuts)
		})
	}
}

// TestFindLostByChance: bytes that are no store's are not taken for one.
func TestFindLostByChance(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	m := newMemory(shapes[0].g, 1)
	for range 300 {
		img := m.Image()
		for i := range img {
			if img[i] = byte(r.Uint32()); i%64 == 0 {
				img[i] = 0x2d
			}
			if i%64 == 5 {
				img[i] = 0
			}
		}
		m.Load(img)
		if in, err := nvm.FindLost(bg, m, 1, 2, 3); in != nil || err != nil {
			t.Fatalf("FindLost = %+v, %v", in, err)
		}
	}
}

// TestClean damages pages of a store that is in use and of one that is mounted
// anew: afterwards nothing is damaged. What was known in RAM is not lost.
func TestClean(t *testing.T) {
	for _, sh := range shapes {
		inBubble(t, sh.name, func(t *testing.T) {
			logical := max(64, sh.g.Page)
			pages := int(sh.g.Size) / logical
			r := rand.New(rand.NewPCG(5, 5))
			for n := range 200 / thin {
				m := newMemory(sh.g, uint64(n))
				s := mustFormat(t, m, suspect)
				if _, err := run(s, newModel(), workload(3+n%12)); err != nil {
					t.Fatal(err)
				}
				want := contents(s)
				img := m.Image()
				var spoiled []int
				for range 1 + r.IntN(3) {
					p := r.IntN(pages)
					if n%4 == 0 {
						p = []int{0, 1, 2, 3, pages - 1}[r.IntN(5)]
					}
					spoiled = append(spoiled, p)
					for i := range 4 {
						img[p*logical+i*9] &= byte(r.Uint32()) // also what NOR can do by itself
					}
				}
				m.Load(img)
				live := n%2 == 0
				if !live {
					var err error
					if s, _, err = nvm.Mount(bg, m, suspect2(n)); err != nil {
						if sh.g.Erase == 0 && slices.Contains(spoiled, 0) && slices.Contains(spoiled, 1) {
							continue
						}
						t.Fatalf("%d: mount: %v", n, err)
					}
					want = contents(s)
				}
				err := s.Clean(bg)
				if errors.Is(err, nvm.ErrUnformatted) || errors.Is(err, nvm.ErrFull) {
					continue // all format records are gone; or no room, and said so
				}
				if err != nil {
					t.Fatalf("%d, pages %v: Clean: %v", n, spoiled, err)
				}
				for _, opt := range []nvm.Options{{}, suspect} {
					again, rep := mustMount(t, clone(m, 1), opt)
					if len(rep.Damaged) > 0 || rep.Incomplete > 0 {
						t.Fatalf("%d, pages %v: still damaged: %+v", n, spoiled, rep)
					}
					got := contents(again)
					for k, v := range want {
						if got[k] != v {
							t.Fatalf("%d, pages %v, live %v: %q = %q; want %q", n, spoiled, live, k, got[k], v)
						}
					}
				}
				for range 20 {
					if err := s.Tend(bg); err != nil && !errors.Is(err, nvm.ErrFull) {
						t.Fatalf("%d: tend: %v", n, err)
					}
				}
				if err := s.Put(bg, nvm.Urgent, rec("afterwards", "v")); err != nil && !errors.Is(err, nvm.ErrFull) {
					t.Fatalf("%d: put: %v", n, err)
				}
			}
		})
	}
}

// inBubble is t.Run in a bubble: the pauses of those who read for a long time
// take no time.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// suspect2 mounts one way or the other.
func suspect2(n int) nvm.Options { return nvm.Options{Suspect: n%4 == 1, ReservePages: -1} }

// TestMend does a whole repair with the power cut at every write, decided anew
// after each.
func TestMend(t *testing.T) {
	for _, sh := range shapes {
		inBubble(t, sh.name, func(t *testing.T) {
			start, _ := used(t, sh.g, 8)
			img := start.Image()
			logical := max(64, sh.g.Page)
			img[9*logical+20] &= 0x11
			img[9*logical+30] &= 0x12
			start.Load(img)
			todo := nvm.Repair{Batches: [][]nvm.Record{{rec("x", "1"), rec("y", "2")}, {del("h")}}, Clean: true}
			if todo.None() || !(nvm.Repair{}).None() {
				t.Error("None is wrong")
			}
			mend := func(m memory) error {
				_, _, err := nvm.Mend(bg, m, todo, suspect)
				return err
			}
			clean := clone(start, 1)
			if err := mend(clean); err != nil {
				t.Fatal(err)
			}
			for n := range clean.Ops() {
				for ti, tear := range nvmtest.Tears {
					if (n+ti)%(2*thin) != 0 {
						continue
					}
					m := clone(start, uint64(n*100+ti))
					m.Cut(n, tear.Tear)
					mend(m)
					m.PowerOn()
					if err := mend(m); err != nil {
						t.Fatalf("write %d torn %q: %v", n, tear.Name, err)
					}
					s, rep := mustMount(t, m, suspect)
					_, there := s.Get("h")
					if x, _ := s.Get("x"); string(x) != "1" || there {
						t.Fatalf("write %d torn %q: x = %q, h %v, %+v", n, tear.Name, x, there, rep)
					}
				}
			}
			t.Logf("%d writes", clean.Ops())
		})
	}
}

// FuzzInspect inspects, salvages and mends anything.
func FuzzInspect(f *testing.F) {
	fuzzShapes := []nvm.Geometry{geometry(12*64, 64, 0), geometry(6*4*64, 64, 4*64)}
	for i, g := range fuzzShapes {
		m := newMemory(g, 1)
		s, err := nvm.Format(bg, m, 0, nvm.Options{})
		if err != nil {
			f.Fatal(err)
		}
		s.Put(bg, nvm.Urgent, rec("k", "v"))
		f.Add(append([]byte{byte(i)}, m.Image()...))
		loseFormat(m, g)
		f.Add(append([]byte{byte(i)}, m.Image()...))
	}
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
		mendAnything(t, m)
	})
}

// TestMendMangled is FuzzInspect with stores whose pages were moved, copied and
// changed, their checksums made right.
func TestMendMangled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(cutSeed(), 8))
		mended := 0
		for n := range 4000 / thin {
			g := []nvm.Geometry{geometry(12*64, 64, 0), shapes[0].g, shapes[3].g}[n%3]
			m := newMemory(g, uint64(n))
			s, err := nvm.Format(bg, m, 0, suspect)
			if err != nil {
				t.Fatal(err)
			}
			ops := workload(6)
			run(s, newModel(), ops[:r.IntN(len(ops))]) // until it is full
			img := m.Image()
			page := func() []byte { p := r.IntN(len(img) / 64); return img[p*64 : (p+1)*64] }
			for range 1 + r.IntN(6) {
				switch p := page(); r.IntN(5) {
				case 0:
					copy(p, page())
				case 1:
					p[r.IntN(64)] = byte(r.Uint32())
				case 2:
					p[1+r.IntN(8)] = byte(r.IntN(24))
				case 3:
					clear(p)
				case 4:
					p[0] = []byte{0x2d, 0x4b, 0xb2, 0xd4, 0x8e}[r.IntN(5)]
				}
			}
			if n%4 != 0 {
				seal(img)
			}
			m.Load(img)
			if mendAnything(t, m) {
				mended++
			}
			if t.Failed() {
				t.Fatalf("image %d", n)
			}
		}
		t.Logf("%d mended", mended)
		if mended < 500/thin {
			t.Errorf("only %d were mended", mended)
		}
	})
}

// mendAnything inspects, salvages and mends a medium that holds anything at all.
func mendAnything(t *testing.T, m memory) bool {
	t.Helper()
	m = clone(m, 1)
	in, err := nvm.Inspect(bg, m)
	if err != nil {
		t.Fatalf("Inspect: %v", err)
	}
	if m.Ops() != 0 {
		t.Fatal("Inspect wrote")
	}
	r := nvm.Repair{Clean: true, Batches: [][]nvm.Record{{rec("n", "v")}}}
	if in.Err != nil {
		found, err := nvm.FindLost(bg, m, 0)
		if err != nil {
			t.Fatalf("FindLost: %v", err)
		}
		if found == nil || in.State != nvm.Foreign {
			return false
		}
		r.Salvage, r.Incarnation = true, found.Incarnation
	}
	_, _, err = nvm.Mend(bg, m, r, nvm.Options{ReservePages: -1})
	if errors.Is(err, nvm.ErrFull) || errors.Is(err, nvm.ErrWorn) || errors.Is(err, nvm.ErrTooLarge) {
		return false
	}
	if err != nil {
		t.Fatalf("Mend(%+v): %v", r, err)
	}
	again, err := nvm.Inspect(bg, m)
	if err != nil || again.Err != nil || len(again.Damaged) > 0 || again.Incomplete > 0 {
		t.Fatalf("after Mend: %v, %+v", err, again.Report)
	}
	if v, ok := again.Get("n"); !ok || string(v) != "v" {
		t.Fatalf("after Mend: n = %q, %v", v, ok)
	}
	if m.Geometry().Erase == 0 {
		places := nvm.Locate(append(make([]byte, 128), m.Image()...), nvm.Geometry{Page: 64})
		if len(places) != 1 || places[0].Offset != 128 {
			t.Fatalf("Locate = %+v; want it behind 128 bytes", places)
		}
	}
	return true
}
