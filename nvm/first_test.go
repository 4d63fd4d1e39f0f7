package nvm_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"baton/nvm"
	"baton/nvm/nvmtest"
)

// start does what an agent does that may format what is blank: what was blank,
// or half formatted, gets a store, anything else is left alone.
func start(m memory, incarnation uint32) (*nvm.Store, nvm.Report, error) {
	s, rep, err := nvm.Mount(bg, m, suspect)
	if errors.Is(err, nvm.ErrUnformatted) && (rep.State == nvm.Blank || rep.State == nvm.HalfFormatted) {
		s, err = nvm.Format(bg, m, incarnation, suspect)
	}
	return s, rep, err
}

// byteTears tear a page behind each of its bytes: the first n new, the others
// old, and the same with the next byte as anything.
func byteTears(page int) []nvmtest.NamedTear {
	var out []nvmtest.NamedTear
	for n := range page + 1 {
		out = append(out, nvmtest.NamedTear{Name: fmt.Sprintf("%d bytes new", n), Tear: func(_ *rand.Rand, old, new []byte) nvmtest.Torn {
			return nvmtest.Torn{Alts: [][]byte{append(slices.Clone(new[:n]), old[n:]...)}}
		}})
		if n < page {
			out = append(out, nvmtest.NamedTear{Name: fmt.Sprintf("%d bytes new, one flickers", n), Tear: func(r *rand.Rand, old, new []byte) nvmtest.Torn {
				a := append(slices.Clone(new[:n]), old[n:]...)
				b := slices.Clone(a)
				b[n] = byte(r.Uint32())
				return nvmtest.Torn{Alts: [][]byte{a, b}}
			}})
		}
	}
	return out
}

// TestFirstStart cuts the power at every byte of a first start, and then again
// in every write of the next one, and of the one after it: it always comes to a
// store, never to a medium that is refused.
func TestFirstStart(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			clean := newMemory(sh.g, 1)
			if _, _, err := start(clean, 1); err != nil {
				t.Fatal(err)
			}
			writes := clean.Ops()
			tears := append(slices.Clone(nvmtest.Tears), byteTears(sh.g.Page)...)
			cuts, again, halves := 0, 0, 0
			for n := range writes {
				for ti, tear := range tears {
					if every := thin * max(1, sh.g.Page/64); (n+ti)%every != 0 && (thin > 1 || ti >= len(nvmtest.Tears)) {
						continue
					}
					seed := cutSeed()*1_000_003 + uint64(n*1000+ti)
					m := newMemory(sh.g, seed)
					m.Cut(n, tear.Tear)
					start(m, 1)
					m.PowerOn()
					cuts++
					name := fmt.Sprintf("write %d of %d torn %q", n, writes, tear.Name)
					probe := clone(m, seed)
					if _, rep, _ := start(probe, 2); rep.State == nvm.HalfFormatted {
						halves++
					}
					for k := -1; k < probe.Ops(); k++ {
						// Where a page was torn matters to the next start, not to
						// each of its writes.
						if k > 0 && ti >= len(nvmtest.Tears) && (k+ti)%13 != 0 || k > 12 && (k+n+ti)%4 != 0 {
							continue
						}
						d := clone(m, seed+uint64(k)+1)
						if k >= 0 {
							again++
							d.Cut(k, nvmtest.Tears[(ti+k)%len(nvmtest.Tears)].Tear)
							start(d, 2)
							d.PowerOn()
							if k%3 == 0 { // and a third time
								again++
								d.Cut((k+ti)%(probe.Ops()+1), nvmtest.Tears[(ti*5+k)%len(nvmtest.Tears)].Tear)
								start(d, 3)
								d.PowerOn()
							}
						}
						wantFormatted(t, fmt.Sprintf("%s, then write %d", name, k), d)
						if t.Failed() {
							return
						}
					}
				}
			}
			t.Logf("%d writes, %d cuts, %d cuts of the starts after them, %d half formatted", writes, cuts, again, halves)
			if halves == 0 {
				t.Error("no cut left a half formatted medium")
			}
		})
	}
}

// wantFormatted starts on m and checks that it is a store that works and stays.
func wantFormatted(t *testing.T, name string, m memory) {
	t.Helper()
	s, rep, err := start(m, 9)
	if err != nil {
		t.Errorf("%s: start: %v (%s)", name, err, rep.State)
		return
	}
	inc := s.Incarnation()
	if err := s.Put(bg, nvm.Urgent, rec("k", "v")); err != nil {
		t.Errorf("%s: put: %v", name, err)
		return
	}
	for i := range 3 {
		s, rep, err := nvm.Mount(bg, m, suspect)
		if err != nil || s.Incarnation() != inc {
			t.Errorf("%s: mount %d: %v (%s)", name, i, err, rep.State)
			return
		}
		if v, ok := s.Get("k"); !ok || string(v) != "v" {
			t.Errorf("%s: mount %d: k = %q, %v", name, i, v, ok)
			return
		}
	}
}

// TestFormatAgain cuts a format over an older store at every write. What was
// given up by ordering it is given up: what the next start finds is the old
// store, all of it, or one that it completes. On a medium with erase blocks there
// is a moment at which it reads as foreign, and is left for a person.
func TestFormatAgain(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			old := newMemory(sh.g, 1)
			s := mustFormat(t, old, suspect)
			want := newModel()
			if _, err := run(s, want, workload(10)); err != nil {
				t.Fatal(err)
			}
			clean := clone(old, 1)
			if _, err := nvm.Format(bg, clean, 2, suspect); err != nil {
				t.Fatal(err)
			}
			writes := clean.Ops()
			seen := map[nvm.State]int{}
			for n := range writes {
				for ti, tear := range nvmtest.Tears {
					if (n+ti)%thin != 0 {
						continue
					}
					seed := cutSeed()*1_000_003 + uint64(n*100+ti)
					m := clone(old, seed)
					m.Cut(n, tear.Tear)
					nvm.Format(bg, m, 2, suspect)
					m.PowerOn()
					name := fmt.Sprintf("write %d of %d torn %q", n, writes, tear.Name)
					s, rep, err := start(clone(m, seed), 3)
					seen[rep.State]++
					switch {
					case err != nil && rep.State == nvm.Foreign && sh.g.Erase > 0:
						continue
					case err != nil:
						t.Fatalf("%s: start: %v (%s)", name, err, rep.State)
					case s.Incarnation() == 0xba70:
						if why := want.differs(contents(s)); why != "" {
							t.Fatalf("%s: the old store: %s", name, why)
						}
					case len(contents(s)) != 0:
						t.Fatalf("%s: a new store has %v", name, contents(s))
					}
					if rep.State != nvm.HalfFormatted {
						continue
					}
					// Completing it can be cut short too, again and again.
					for k := range 4 {
						d := clone(m, seed+uint64(k))
						for i := range 3 {
							d.Cut((n*7+ti*3+k*11+i*5)%(writes+1), nvmtest.Tears[(ti+k+i)%len(nvmtest.Tears)].Tear)
							start(d, 4+uint32(i))
							d.PowerOn()
						}
						s, rep, err := start(d, 8)
						if err != nil {
							if sh.g.Erase > 0 && rep.State == nvm.Foreign && len(foreignTwice(m, seed)) > 0 {
								continue
							}
							t.Fatalf("%s: completed: %v (%s)", name, err, rep.State)
						}
						if got := contents(s); s.Incarnation() != 0xba70 && len(got) != 0 {
							t.Fatalf("%s: completed, and it has %v", name, got)
						}
					}
				}
			}
			t.Logf("%d writes: %v", writes, seen)
			if seen[nvm.HalfFormatted] == 0 || seen[nvm.Formatted] == 0 {
				t.Errorf("states %v: not all came", seen)
			}
		})
	}
}

// foreignTwice are the readings of m that are foreign: the page torn by the
// first cut reads differently each time.
func foreignTwice(m memory, seed uint64) (out []int) {
	for i := range 12 {
		if in, err := nvm.Inspect(bg, clone(m, seed+uint64(i))); err == nil && in.Err != nil && in.State == nvm.Foreign {
			out = append(out, i)
		}
	}
	return out
}

// TestForeignStays: what is not blank is not formatted by itself, although it
// looks almost as what a first format may leave.
func TestForeignStays(t *testing.T) {
	for _, sh := range shapes {
		logical := max(64, sh.g.Page)
		mark := []int{2 * logical, 2 * logical}
		if sh.g.Erase > 0 {
			mark = []int{sh.g.Erase, 2 * sh.g.Erase}
		}
		for off := 0; off < int(sh.g.Size); off += logical / 2 {
			m := newMemory(sh.g, 1)
			img := m.Image()
			img[off] = 0x42
			m.Load(img)
			_, rep, err := start(m, 1)
			inMark := off >= mark[0] && off < mark[0]+mark[1]
			if inMark != (rep.State == nvm.HalfFormatted) || !inMark && (rep.State != nvm.Foreign || !errors.Is(err, nvm.ErrUnformatted)) {
				t.Errorf("%s: one byte at %#x: %s, %v", sh.name, off, rep.State, err)
			}
			if !inMark && !bytes.Equal(m.Image(), img) {
				t.Errorf("%s: one byte at %#x: written", sh.name, off)
			}
		}
	}
}

// TestRealStoreIsNeverHalfFormatted damages the format records of stores that
// were in use in every way, also by what a format that was cut short may have
// left there. It never reads as half formatted: that would cost the store.
func TestRealStoreIsNeverHalfFormatted(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			logical := max(64, sh.g.Page)
			// A record that says "forming" of the store's own incarnation.
			half := newMemory(sh.g, 1)
			half.Cut(3*logical/min(logical, sh.g.Page), nvmtest.Tears[0].Tear)
			nvm.Format(bg, half, 0xba70, suspect)
			half.PowerOn()
			places := []int{0, logical, 2 * logical, 3 * logical}
			forming := half.Image()[:logical]
			if sh.g.Erase > 0 {
				places = nil
				for b := 0; b < int(sh.g.Size); b += sh.g.Erase {
					places = append(places, b)
				}
				forming = half.Image()[sh.g.Erase:][:logical]
			}
			if forming[0] == 0xff {
				t.Fatal("no record that says forming")
			}
			for _, puts := range []int{1, 40} {
				m := newMemory(sh.g, 1)
				s := mustFormat(t, m, suspect)
				for i := range puts {
					mustPut(t, s, rec("k", fmt.Sprint(i)))
					if err := s.Tend(bg); err != nil {
						t.Fatal(err)
					}
				}
				whole := m.Image()
				lost, n := 0, 1
				for range places {
					n *= 3
				}
				r := rand.New(rand.NewPCG(1, 1))
				for c := range min(n, 2000) {
					if n > 2000 {
						c = r.IntN(n)
					}
					img := slices.Clone(whole)
					for i, way := 0, c; i < len(places); i, way = i+1, way/3 {
						switch at := img[places[i]:][:logical]; way % 3 {
						case 1:
							at[r.IntN(33)] ^= byte(1 + r.IntN(255))
						case 2:
							copy(at, forming)
						}
					}
					m.Load(img)
					in, err := nvm.Inspect(bg, m)
					if err != nil {
						t.Fatal(err)
					}
					if in.State == nvm.HalfFormatted || in.State == nvm.Blank {
						t.Fatalf("%d puts, damage %d: %s", puts, c, in.State)
					}
					if in.State != nvm.Foreign {
						continue
					}
					lost++
					// And it can be had back, records and all.
					found, err := nvm.FindLost(bg, m)
					if err != nil || found == nil || found.Incarnation != 0xba70 {
						if puts > 1 {
							t.Fatalf("%d puts, damage %d: FindLost = %+v, %v", puts, c, found, err)
						}
						continue
					}
					s, _, err := nvm.Salvage(bg, m, found.Incarnation, suspect)
					if err != nil {
						t.Fatalf("%d puts, damage %d: Salvage: %v", puts, c, err)
					}
					if v, ok := s.Get("k"); !ok || string(v) != fmt.Sprint(puts-1) {
						t.Fatalf("%d puts, damage %d: salvaged k = %q, %v", puts, c, v, ok)
					}
				}
				if lost == 0 {
					t.Error("no damage lost all format records")
				}
			}
		})
	}
}

// TestFormatUnused: a store that was made and never used can be made anew, and
// a cut in that leaves one that can be used.
func TestFormatUnused(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			m := newMemory(sh.g, 1)
			mustFormat(t, m, suspect)
			clean := clone(m, 1)
			if _, err := nvm.Format(bg, clean, 2, suspect); err != nil {
				t.Fatal(err)
			}
			wantFormatted(t, "made anew", clean)
			writes := clone(m, 1)
			before := writes.Ops()
			if _, err := nvm.Format(bg, writes, 2, suspect); err != nil {
				t.Fatal(err)
			}
			for n := range writes.Ops() - before {
				for ti, tear := range nvmtest.Tears {
					if (n+ti)%thin != 0 {
						continue
					}
					d := clone(m, uint64(n*100+ti))
					d.Cut(n, tear.Tear)
					nvm.Format(bg, d, 2, suspect)
					d.PowerOn()
					wantFormatted(t, fmt.Sprintf("write %d torn %q", n, tear.Name), d)
				}
			}
		})
	}
}

// TestFirstStartsCutEarly has a first format cut late, and starts after it each
// right after they have said that they format: another start still can.
func TestFirstStartsCutEarly(t *testing.T) {
	done := nvmtest.Tears[slices.IndexFunc(nvmtest.Tears, func(n nvmtest.NamedTear) bool { return n.Name == "new" })].Tear
	for _, sh := range shapes {
		clean := newMemory(sh.g, 1)
		mustFormat(t, clean, suspect)
		for n := range clean.Ops() {
			for early := range 2 * 64 / min(64, sh.g.Page) {
				m := newMemory(sh.g, 1)
				m.Cut(n, done)
				start(m, 1)
				m.PowerOn()
				for i := range uint32(4) {
					m.Cut(early, done)
					start(m, 2+i)
					m.PowerOn()
				}
				wantFormatted(t, fmt.Sprintf("%s: write %d, then four times %d", sh.name, n, early), m)
			}
		}
	}
}
