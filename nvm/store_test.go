package nvm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"baton/nvm"
	"baton/nvm/nvmtest"
)

// forEachMedium runs a test on a medium of every kind.
func forEachMedium(t *testing.T, f func(t *testing.T, m nvm.Medium)) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) { f(t, newMemory(sh.g, 1)) })
	}
	t.Run("file", func(t *testing.T) {
		m, err := nvm.OpenFile(filepath.Join(t.TempDir(), "nvm"), geometry(20*64, 64, 0), true)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		f(t, m)
	})
	t.Run("section", func(t *testing.T) {
		m, err := nvm.Section(newMemory(geometry(32<<10, 64, 0), 1), 64, 20*64)
		if err != nil {
			t.Fatal(err)
		}
		f(t, m)
	})
	t.Run("section of a nor", func(t *testing.T) {
		m, err := nvm.Section(newMemory(geometry(20*512, 64, 512), 1), 2*512, 9*512)
		if err != nil {
			t.Fatal(err)
		}
		f(t, m)
	})
}

func TestStore(t *testing.T) {
	forEachMedium(t, func(t *testing.T, m nvm.Medium) {
		s := mustFormat(t, m, nvm.Options{})
		if got := s.Incarnation(); got != 0xba70 {
			t.Errorf("Incarnation = %#x", got)
		}
		want := newModel()
		ops := workload(40)
		for i := 0; i < len(ops); i += 20 {
			if _, err := run(s, want, ops[i:min(i+20, len(ops))]); err != nil {
				t.Fatalf("from op %d: %v", i, err)
			}
			if diff := cmp.Diff(want.live, contents(s)); diff != "" {
				t.Fatalf("after op %d (-want +got):\n%s", i, diff)
			}
			for _, opt := range []nvm.Options{{}, {Suspect: true}} {
				var rep nvm.Report
				s, rep = mustMount(t, m, opt)
				if why := want.differs(contents(s)); why != "" {
					t.Fatalf("mounted (%+v) after op %d: %s", opt, i, why)
				}
				if rep.State != nvm.Formatted || rep.Incarnation != 0xba70 || len(rep.Damaged) > 0 || rep.Incomplete > 0 {
					t.Fatalf("report after op %d: %+v", i, rep)
				}
				forgetOld(s, want)
			}
		}
	})
}

func TestGetAndAll(t *testing.T) {
	s := mustFormat(t, newMemory(shapes[0].g, 1), nvm.Options{})
	mustPut(t, s, rec("b/2", "two"), rec("a", "x"), rec("b/1", "one"))
	mustPut(t, s, nvm.Record{Key: "empty", Value: []byte{}})
	var got []string
	for k, v := range s.All("b/") {
		got = append(got, k+"="+string(v))
		v[0] = '!' // a copy
	}
	if want := []string{"b/1=one", "b/2=two"}; !slices.Equal(got, want) {
		t.Errorf("All(b/) = %v; want %v", got, want)
	}
	for range s.All("") {
		break
	}
	if v, ok := s.Get("b/1"); !ok || string(v) != "one" {
		t.Errorf("Get(b/1) = %q, %v", v, ok)
	}
	if v, ok := s.Get("empty"); !ok || v == nil || len(v) != 0 {
		t.Errorf("Get(empty) = %v, %v; want an empty value", v, ok)
	}
	if v, ok := s.Get("none"); ok {
		t.Errorf("Get(none) = %q", v)
	}
	mustPut(t, s, del("b/1"))
	if v, ok := s.Get("b/1"); ok {
		t.Errorf("Get of a deleted key = %q", v)
	}
}

func TestPutRefuses(t *testing.T) {
	m := newMemory(shapes[0].g, 1)
	s := mustFormat(t, m, nvm.Options{})
	ops := m.Ops()
	for _, tt := range []struct {
		name string
		recs []nvm.Record
		want error
	}{
		{"nothing", nil, nvm.ErrRecord},
		{"no key", []nvm.Record{rec("", "x")}, nvm.ErrRecord},
		{"long key", []nvm.Record{rec(strings.Repeat("k", 256), "x")}, nvm.ErrRecord},
		{"a key twice", []nvm.Record{rec("k", "x"), rec("l", "y"), del("k")}, nvm.ErrRecord},
		{"65536 bytes", []nvm.Record{{Key: "k", Value: make([]byte, 65536)}}, nvm.ErrTooLarge},
		{"too many pages", []nvm.Record{{Key: "k", Value: make([]byte, 4*51)}}, nvm.ErrTooLarge},
	} {
		if err := s.Put(bg, nvm.Urgent, tt.recs...); !errors.Is(err, tt.want) {
			t.Errorf("%s: Put = %v; want %v", tt.name, err, tt.want)
		}
	}
	if m.Ops() != ops {
		t.Errorf("%d writes for refused records", m.Ops()-ops)
	}
}

// TestOneWrite is what the critical path of a move rests on.
func TestOneWrite(t *testing.T) {
	m := newMemory(geometry(32<<10, 64, 0), 1)
	s := mustFormat(t, m, nvm.Options{})
	for i := range 40 { // what stays for ever
		mustPut(t, s, rec(fmt.Sprintf("s%d", i), "the last generation of a slot"))
	}
	value := strings.Repeat("v", 44)
	for i := range 20_000 {
		before := m.Ops()
		mustPut(t, s, rec(fmt.Sprintf("%05d", i), value))
		if n := m.Ops() - before; n != 1 {
			t.Fatalf("Put %d: %d page writes", i, n)
		}
		s.Forget(fmt.Sprintf("%05d", i-64))
	}
	if got := s.Stats().PageWrites; got != uint64(m.Ops()) {
		t.Errorf("Stats().PageWrites = %d; medium says %d", got, m.Ops())
	}
	// After a restart, also: what was forgotten is there again.
	s, _ = mustMount(t, m, nvm.Options{})
	var all []string
	for k := range s.All("") {
		all = append(all, k)
	}
	if len(all) < 450 {
		t.Fatalf("%d keys after a remount; forgotten ones should be back", len(all))
	}
	for _, k := range all {
		if k < "19936" {
			s.Forget(k)
		}
	}
	before := m.Ops()
	for i := range 1000 {
		mustPut(t, s, rec(fmt.Sprintf("%05d", 20_000+i), value))
		s.Forget(fmt.Sprintf("%05d", 20_000+i-64))
	}
	if n := m.Ops() - before; n != 1000 {
		t.Errorf("1000 Puts after a remount: %d page writes", n)
	}
}

func TestWear(t *testing.T) {
	m := newMemory(geometry(32<<10, 64, 0), 1)
	s := mustFormat(t, m, nvm.Options{})
	for i := range 80 {
		mustPut(t, s, rec(fmt.Sprintf("s%d", i), "static"))
	}
	for i := range 40_000 {
		mustPut(t, s, rec(fmt.Sprintf("%05d", i), "moving"))
		s.Forget(fmt.Sprintf("%05d", i-64))
		if i%2 == 0 {
			if err := s.Tend(bg); err != nil {
				t.Fatal(err)
			}
		}
	}
	w := m.Writes()[4:] // the first four have a fixed place and are not for records
	mean := float64(sum(w)) / float64(len(w))
	ratio := float64(slices.Max(w)) / mean
	t.Logf("%d writes for 40080 records, mean %.1f, hottest/mean %.3f, coldest %d", sum(w), mean, ratio, slices.Min(w))
	if ratio > 1.10 {
		t.Errorf("hottest/mean = %.3f; want at most 1.10", ratio)
	}
	if got, want := s.Stats().Hottest, uint64(slices.Max(w)); got < want || got > want+want/10+1 {
		t.Errorf("Stats().Hottest = %d; really %d", got, want)
	}
}

// TestErasable is the same for a medium with erase blocks: no Put waits for an
// erase, and all blocks wear alike.
func TestErasable(t *testing.T) {
	m := nvmtest.NewNOR(geometry(32*2048, 128, 2048), 1)
	s := mustFormat(t, m, nvm.Options{})
	for i := range 60 {
		mustPut(t, s, rec(fmt.Sprintf("s%d", i), "static"))
	}
	formats := sum(m.Erases())
	for i := range 20_000 {
		erases, writes := sum(m.Erases()), sum(m.Writes())
		mustPut(t, s, rec(fmt.Sprintf("%05d", i), "moving"))
		if e, w := sum(m.Erases())-erases, sum(m.Writes())-writes; e != 0 || w != 1 {
			t.Fatalf("Put %d: %d erases, %d writes", i, e, w)
		}
		s.Forget(fmt.Sprintf("%05d", i-64))
		for range 2 {
			if err := s.Tend(bg); err != nil {
				t.Fatal(err)
			}
		}
	}
	e := m.Erases()
	ratio := float64(slices.Max(e)) * float64(len(e)) / float64(sum(e))
	t.Logf("%d erases, hottest/mean %.3f, %d writes", sum(e)-formats, ratio, sum(m.Writes()))
	if ratio > 1.10 {
		t.Errorf("hottest/mean = %.3f; want at most 1.10", ratio)
	}
	if got := s.Stats().Hottest; got != uint64(slices.Max(e)) {
		t.Errorf("Stats().Hottest = %d; really %d", got, slices.Max(e))
	}
	for i := range 60 {
		if v, ok := s.Get(fmt.Sprintf("s%d", i)); !ok || string(v) != "static" {
			t.Errorf("s%d = %q, %v", i, v, ok)
		}
	}
}

func TestFull(t *testing.T) {
	forEachMedium(t, func(t *testing.T, m nvm.Medium) {
		s := mustFormat(t, m, nvm.Options{ReservePages: 3})
		big := bytes.Repeat([]byte{'x'}, m.Geometry().Page/2)
		var err error
		n := 0
		for ; n < 1000 && err == nil; n++ {
			err = s.Put(bg, nvm.Normal, nvm.Record{Key: fmt.Sprint("k", n), Value: big})
			if errors.Is(err, nvm.ErrFull) { // perhaps it only must be tidied
				for range 40 {
					if err := s.Tend(bg); err != nil {
						t.Fatal(err)
					}
				}
				err = s.Put(bg, nvm.Normal, nvm.Record{Key: fmt.Sprint("k", n), Value: big})
			}
		}
		if !errors.Is(err, nvm.ErrFull) {
			t.Fatalf("%d records: %v; want ErrFull", n, err)
		}
		for i := range 3 {
			if err := s.Put(bg, nvm.Urgent, rec(fmt.Sprint("u", i), "x")); err != nil {
				t.Fatalf("Urgent %d of 3 when full: %v", i, err)
			}
		}
		if err := s.Put(bg, nvm.Urgent, rec("u3", "x")); !errors.Is(err, nvm.ErrFull) {
			t.Errorf("Urgent when the reserve is used up: %v; want ErrFull", err)
		}
		for i := range n - 1 {
			if v, ok := s.Get(fmt.Sprint("k", i)); !ok || !bytes.Equal(v, big) {
				t.Errorf("k%d is lost", i)
			}
		}
		// Forgetting makes room, at once or after tidying up.
		for i := range n {
			s.Forget(fmt.Sprint("k", i))
		}
		for range 100 {
			if err := s.Tend(bg); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Put(bg, nvm.Normal, rec("again", "x")); err != nil {
			t.Errorf("after forgetting: %v", err)
		}
	})
}

// TestDeleteOutlivesOlder has older records of a key on the medium when it is
// deleted, and then has every other page written again and again.
func TestDeleteOutlivesOlder(t *testing.T) {
	forEachMedium(t, func(t *testing.T, m nvm.Medium) {
		s := mustFormat(t, m, nvm.Options{ReservePages: -1})
		mustPut(t, s, rec("k", "v1"), rec("keep", "with v1"))
		mustPut(t, s, rec("k", "v2"))
		mustPut(t, s, rec("f", "v1"), rec("keep too", "with v1"))
		mustPut(t, s, rec("f", "v2"))
		mustPut(t, s, del("k"))
		s.Forget("f")
		for i := range 200 {
			mustPut(t, s, rec("n", fmt.Sprint(i)))
			if m.Geometry().Erase > 0 { // elsewhere it would hide what is tested
				if err := s.Tend(bg); err != nil {
					t.Fatal(err)
				}
			}
			if i%10 != 0 {
				continue
			}
			again, _ := mustMount(t, m, nvm.Options{})
			if v, ok := again.Get("k"); ok {
				t.Fatalf("%d writes later: deleted k is %q", i, v)
			}
			if v, ok := again.Get("f"); ok && string(v) != "v2" {
				t.Fatalf("%d writes later: forgotten f is %q, not its last value", i, v)
			}
			if v, _ := again.Get("keep"); string(v) != "with v1" {
				t.Fatalf("%d writes later: keep is %q", i, v)
			}
		}
	})
}

// TestMountWritesNothing mounts, under power, what agents that were killed have
// left, and what is no store at all.
func TestMountWritesNothing(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			ops := workload(10)
			for n := range 60 {
				m := newMemory(sh.g, uint64(n))
				s := mustFormat(t, m, suspect)
				m.Cut(n, nvmtest.Tears[n%8].Tear) // the stable ones
				want := newModel()
				done, err := run(s, want, ops)
				m.PowerOn()
				before := m.Ops()
				var first map[string]string
				for range 3 {
					s, _ = mustMount(t, m, nvm.Options{})
					got := contents(s)
					if first == nil {
						first = got
					}
					if diff := cmp.Diff(first, got); diff != "" {
						t.Fatalf("write %d: mounts differ:\n%s", n, diff)
					}
				}
				if m.Ops() != before {
					t.Fatalf("write %d: mounting wrote %d pages", n, m.Ops()-before)
				}
				after := want.clone()
				if err != nil {
					after.apply(ops[done])
				}
				if want.differs(first) != "" && after.differs(first) != "" {
					t.Fatalf("write %d: neither before nor after: %s", n, want.differs(first))
				}
			}
		})
	}
}

func TestUnformatted(t *testing.T) {
	for _, sh := range shapes {
		size := int(sh.g.Size)
		random := newMemory(sh.g, 1)
		img := make([]byte, size)
		for i := range img {
			img[i] = byte(i*i>>3 ^ i)
		}
		random.Load(img)
		for _, tt := range []struct {
			name string
			img  []byte
			want nvm.State
		}{
			{"all ones", bytes.Repeat([]byte{0xff}, size), nvm.Blank},
			{"all zero", make([]byte, size), nvm.Foreign},
			{"random", img, nvm.Foreign},
			{"text", bytes.Repeat([]byte("BatonNVM"), size/8), nvm.Foreign},
		} {
			t.Run(sh.name+"/"+tt.name, func(t *testing.T) {
				for _, opt := range []nvm.Options{{}, suspect} {
					m := newMemory(sh.g, 1)
					m.Load(tt.img)
					_, rep, err := nvm.Mount(bg, m, opt)
					if !errors.Is(err, nvm.ErrUnformatted) || rep.State != tt.want {
						t.Errorf("Mount = %v, %s; want ErrUnformatted, %s", err, rep.State, tt.want)
					}
					if m.Ops() != 0 {
						t.Errorf("Mount wrote %d pages of what is not its own", m.Ops())
					}
					s := mustFormat(t, m, nvm.Options{})
					mustPut(t, s, rec("k", "v"))
					s, rep = mustMount(t, m, opt)
					if diff := cmp.Diff(map[string]string{"k": "v"}, contents(s)); diff != "" || len(rep.Damaged) > 0 {
						t.Errorf("after Format: %s, damaged %v", diff, rep.Damaged)
					}
				}
			})
		}
	}
}

// TestFormatCut cuts the power in every write of Format, of a blank medium and
// of one that holds a store.
func TestFormatCut(t *testing.T) {
	for _, sh := range shapes {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/over a store=%v", sh.name, old), func(t *testing.T) {
				start := newMemory(sh.g, 1)
				if old {
					s := mustFormat(t, start, nvm.Options{})
					for i := range 30 {
						mustPut(t, s, rec(fmt.Sprint("old", i%5), fmt.Sprint(i)))
						s.Tend(bg)
					}
				}
				clean := clone(start, 1)
				if _, err := nvm.Format(bg, clean, 99, nvm.Options{}); err != nil {
					t.Fatal(err)
				}
				writes := clean.Ops()
				halves := 0
				for n := range writes {
					for ti, tear := range nvmtest.Tears {
						if (n+ti)%thin != 0 {
							continue
						}
						m := clone(start, uint64(n*100+ti))
						m.Cut(n, tear.Tear)
						nvm.Format(bg, m, 99, nvm.Options{})
						m.PowerOn()
						name := fmt.Sprintf("write %d of %d torn %q", n, writes, tear.Name)
						var state nvm.State
						var was map[string]string
						for i := range 4 { // it need not say the same each time, until it is mounted
							s, rep, err := nvm.Mount(bg, m, suspect)
							state = rep.State
							switch {
							case err == nil && s.Incarnation() == 99:
								if got := contents(s); len(got) != 0 {
									t.Fatalf("%s: a new store has %v", name, got)
								}
								mustPut(t, s, rec(fmt.Sprint("new", i), ""))
								s.Forget(fmt.Sprint("new", i))
								mustPut(t, s, del(fmt.Sprint("new", i)))
							case err == nil && old:
								if got := contents(s); was == nil {
									was = got
								} else if diff := cmp.Diff(was, got); diff != "" {
									t.Fatalf("%s: the old store changes:\n%s", name, diff)
								}
								if len(rep.Damaged) == 0 {
									for k := range 5 {
										if v, ok := s.Get(fmt.Sprint("old", k)); !ok || string(v) != fmt.Sprint(25+k) {
											t.Fatalf("%s: the old store has %q for old%d", name, v, k)
										}
									}
								}
							case errors.Is(err, nvm.ErrUnformatted):
								if was != nil {
									t.Fatalf("%s: a store that was mounted is gone: %v", name, err)
								}
								if state == nvm.HalfFormatted {
									halves++
								}
							default:
								t.Fatalf("%s: Mount = %v", name, err)
							}
						}
						s, err := nvm.Format(bg, m, 100, nvm.Options{})
						if err != nil {
							t.Fatalf("%s: Format again: %v", name, err)
						}
						mustPut(t, s, rec("k", "v"))
						for range 3 {
							s, rep := mustMount(t, m, suspect)
							if diff := cmp.Diff(map[string]string{"k": "v"}, contents(s)); diff != "" || len(rep.Damaged) > 0 {
								t.Fatalf("%s: formatted again: %s damaged %v", name, diff, rep.Damaged)
							}
						}
					}
				}
				if halves == 0 {
					t.Error("no cut was recognised as a half format")
				}
				t.Logf("%d writes, seen half formatted %d times", writes, halves)
			})
		}
	}
}

// TestBitFlip inverts every bit of a small store (fewer of the others).
func TestBitFlip(t *testing.T) {
	small := geometry(10*64, 64, 0)
	for _, sh := range append(slices.Clone(shapes), struct {
		name string
		g    nvm.Geometry
	}{"small eeprom", small}) {
		t.Run(sh.name, func(t *testing.T) {
			m := newMemory(sh.g, 1)
			s := mustFormat(t, m, nvm.Options{})
			ops := []op{
				{put: []nvm.Record{rec("g", "1"), rec("h", "2")}},
				{put: []nvm.Record{rec("k", "1")}},
				{put: []nvm.Record{rec("k", "2")}},
				{put: []nvm.Record{rec("g", "3"), rec("d", "4")}},
				{put: []nvm.Record{del("d")}},
			}
			if sh.g != small {
				ops = workload(7)
			}
			want := newModel()
			if _, err := run(s, want, ops); err != nil {
				t.Fatal(err)
			}
			older := map[string]map[string]bool{} // every value a key ever had
			seen := newModel()
			for _, o := range ops {
				seen.apply(o)
				for k, v := range seen.live {
					if older[k] == nil {
						older[k] = map[string]bool{}
					}
					older[k][v] = true
				}
			}
			step := 7 * thin
			switch {
			case sh.g == small:
				step = thin
			case sh.g.Size > 8192:
				step = 61 * thin
			}
			lost, flips := 0, 0
			img := m.Image()
			for bit := 0; bit < len(img)*8; bit += step {
				for _, opt := range []nvm.Options{{}, suspect} {
					flips++
					c := newMemory(sh.g, uint64(bit))
					c.Load(img)
					c.Flip(bit)
					name := fmt.Sprintf("bit %d of byte %#x, suspect=%v", bit%8, bit/8, opt.Suspect)
					s, rep, err := nvm.Mount(bg, c, opt)
					if err != nil {
						t.Fatalf("%s: Mount: %v", name, err)
					}
					got := contents(s)
					if page := bit / 8 / max(64, sh.g.Page); !slices.Equal(rep.Damaged, []int{page}) {
						t.Fatalf("%s: reported %v, not page %d", name, rep.Damaged, page)
					}
					missing := 0
					for k, v := range want.live {
						if got[k] != v {
							missing++
						}
					}
					if missing > 0 {
						lost++
					}
					if missing > 2 { // no batch of these has more records
						t.Fatalf("%s: %d records lost", name, missing)
					}
					for k, v := range got {
						if !older[k][v] {
							t.Fatalf("%s: %q is %q, which it never was", name, k, v)
						}
					}
					for range 3 {
						if err := s.Tend(bg); err != nil {
							t.Fatalf("%s: Tend: %v", name, err)
						}
					}
					if err := s.Put(bg, nvm.Urgent, rec("after", "x")); err != nil {
						t.Fatalf("%s: Put: %v", name, err)
					}
					s, rep = mustMount(t, c, nvm.Options{})
					if sh.g.Erase == 0 && len(rep.Damaged) > 0 { // a block's record is repaired when its turn comes
						t.Fatalf("%s: not repaired: %v", name, rep.Damaged)
					}
					got["after"] = "x"
					if diff := cmp.Diff(got, contents(s)); diff != "" && sh.g.Erase == 0 {
						t.Fatalf("%s: changed by housekeeping:\n%s", name, diff)
					}
				}
			}
			t.Logf("%d flips, %d lost a record", flips, lost)
		})
	}
}

// TestScrub damages a page under a running store.
func TestScrub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(shapes[0].g, 1)
		s := mustFormat(t, m, nvm.Options{})
		mustPut(t, s, rec("a", "1"))
		mustPut(t, s, rec("b", "2"))
		m.Flip(5*64*8 + 100) // a's page
		for range 20 {
			time.Sleep(time.Second)
			if err := s.Tend(bg); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.Stats().Repaired; n != 1 {
			t.Errorf("Repaired = %d; want 1", n)
		}
		s, _ = mustMount(t, m, suspect)
		if diff := cmp.Diff(map[string]string{"a": "1", "b": "2"}, contents(s)); diff != "" {
			t.Errorf("after the repair (-want +got):\n%s", diff)
		}
	})
}

func TestBadPages(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			m := newMemory(sh.g, 1)
			s := mustFormat(t, m, nvm.Options{ReservePages: -1})
			per := max(64, sh.g.Page) / sh.g.Page
			for _, p := range []int{6, 7, 11} {
				for i := range per {
					m.Stick(p*per+i, true)
				}
			}
			want := newModel()
			if _, err := run(s, want, workload(20)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.live, contents(s)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			st := s.Stats()
			if st.Retries == 0 || sh.g.Erase == 0 && !slices.Equal(st.BadPages, []int{6, 7, 11}) {
				t.Errorf("Stats = %+v; want pages 6, 7 and 11 bad", st)
			}
			s, _ = mustMount(t, m, suspect)
			if why := want.differs(contents(s)); why != "" {
				t.Errorf("remounted: %s", why)
			}
		})
	}
}

func TestAllPagesBad(t *testing.T) {
	m := newMemory(shapes[0].g, 1)
	s := mustFormat(t, m, nvm.Options{})
	mustPut(t, s, rec("k", "v1"))
	for p := 5; p < 20; p++ {
		m.Stick(p, true)
	}
	err := s.Put(bg, nvm.Urgent, rec("k", "v2"))
	if !errors.Is(err, nvm.ErrReadBack) || errors.Is(err, nvm.ErrUnknown) {
		t.Errorf("Put = %v; want ErrReadBack, and that it is known not to be there", err)
	}
	if v, _ := s.Get("k"); string(v) != "v1" {
		t.Errorf("k = %q; want v1", v)
	}
	s, _ = mustMount(t, m, nvm.Options{})
	if v, _ := s.Get("k"); string(v) != "v1" {
		t.Errorf("remounted, k = %q; want v1", v)
	}
}

// TestFailedBatchIsNotMixed has a batch of three pages fail at the last, and
// then another of as many pages succeed.
func TestFailedBatchIsNotMixed(t *testing.T) {
	for _, sh := range shapes {
		if sh.g.Page != 64 {
			continue
		}
		t.Run(sh.name, func(t *testing.T) {
			m := newMemory(sh.g, 1)
			s := mustFormat(t, m, nvm.Options{ReservePages: -1})
			mustPut(t, s, rec("k", "v1"))
			writes := 0
			hook := func(page int) error {
				if writes++; writes > 2 && page > 3 { // fixed pages work
					return errors.New("no")
				}
				return nil
			}
			setHook(m, hook)
			big := func(c string) nvm.Record { return rec("big", strings.Repeat(c, 130)) }
			if err := s.Put(bg, nvm.Urgent, big("a")); err == nil {
				t.Fatal("Put with no page that works succeeded")
			}
			setHook(m, nil)
			for i, c := range []string{"b", "c"} {
				if err := s.Put(bg, nvm.Urgent, big(c)); err != nil {
					t.Fatalf("Put %d after the failure: %v", i, err)
				}
				for _, st := range []*nvm.Store{s, first(mustMount(t, m, nvm.Options{})), first(mustMount(t, clone(m, 1), suspect))} {
					if v, _ := st.Get("big"); string(v) != strings.Repeat(c, 130) {
						t.Fatalf("big = %q; want all %s", v, c)
					}
				}
			}
		})
	}
}

func setHook(m memory, hook func(page int) error) {
	switch m := m.(type) {
	case *nvmtest.Chip:
		m.ProgramHook = hook
	case *nvmtest.NOR:
		m.ProgramHook = hook
	}
}

// TestForgetWhileMoved forgets a key while housekeeping is writing it anew.
func TestForgetWhileMoved(t *testing.T) {
	m := newMemory(shapes[0].g, 1)
	s := mustFormat(t, m, nvm.Options{ReservePages: -1})
	mustPut(t, s, rec("k", "v"))
	moved := false
	for i := 0; i < 100 && !moved; i++ {
		mustPut(t, s, rec("n", fmt.Sprint(i)))
		setHook(m, func(int) error { s.Forget("k"); moved = true; return nil })
		if err := s.Tend(bg); err != nil {
			t.Fatal(err)
		}
		setHook(m, nil)
	}
	if !moved {
		t.Fatal("k was never moved")
	}
	if v, ok := s.Get("k"); ok {
		t.Errorf("k = %q, although it was forgotten", v)
	}
}

// TestPowerCutBadPages cuts the power around pages that do not work.
func TestPowerCutBadPages(t *testing.T) {
	for _, sh := range shapes {
		if sh.g.Page < 64 {
			continue // several programs a page make no difference here
		}
		t.Run(sh.name, func(t *testing.T) {
			ops := workload(8)
			bad := []int{7, 9, 12}
			if sh.g.Erase > 0 {
				bad = []int{12, 14} // a block is given up as a whole
			}
			fresh := func(seed uint64) (memory, *nvm.Store) {
				m := newMemory(sh.g, seed)
				s := mustFormat(t, m, suspect)
				for _, p := range bad {
					m.Stick(p, true)
				}
				return m, s
			}
			clean, s := fresh(1)
			start := clean.Ops()
			if _, err := run(s, newModel(), ops); err != nil {
				t.Fatal(err)
			}
			writes := clean.Ops() - start
			for n := range writes {
				for ti := range 4 {
					if (n+ti)%thin != 0 {
						continue
					}
					tear := nvmtest.Tears[(n+ti*3)%len(nvmtest.Tears)]
					seed := cutSeed()*1_000_003 + uint64(n*100+ti)
					m, s := fresh(seed)
					m.Cut(n, tear.Tear)
					want := newModel()
					done, err := run(s, want, ops)
					var pending *op
					if err != nil {
						pending = &ops[done]
					}
					checkCut(t, fmt.Sprintf("write %d torn %q", n, tear.Name), m, want, pending, seed, n+ti)
					if t.Failed() {
						return
					}
				}
			}
		})
	}
}

func TestGate(t *testing.T) {
	for _, sh := range shapes {
		m := newMemory(sh.g, 1)
		gates := 0
		opt := nvm.Options{Suspect: true, Gate: func(context.Context) error { gates++; return nil }}
		s := mustFormat(t, m, opt)
		if _, err := run(s, newModel(), workload(30)); err != nil {
			t.Fatalf("%s: %v", sh.name, err)
		}
		mustMount(t, m, opt)
		if gates != m.Ops() {
			t.Errorf("%s: %d gates for %d writes and erases", sh.name, gates, m.Ops())
		}
		closed := errors.New("closed")
		opt.Gate = func(context.Context) error { return closed }
		before := m.Ops()
		s, _ = mustMount(t, m, nvm.Options{Gate: opt.Gate})
		err := s.Put(bg, nvm.Urgent, rec("k", "v"))
		if !errors.Is(err, closed) || errors.Is(err, nvm.ErrUnknown) || m.Ops() != before {
			t.Errorf("%s: Put behind a closed gate = %v, %d writes", sh.name, err, m.Ops()-before)
		}
		if _, _, err := nvm.Mount(bg, m, opt); !errors.Is(err, closed) {
			t.Errorf("%s: Mount behind a closed gate = %v", sh.name, err)
		}
	}
}

// slow is a medium whose write cycles take their time, as an EEPROM's do.
type slow struct {
	nvm.Medium
	until time.Time
}

func (s *slow) Program(ctx context.Context, p []byte, off int64) error {
	if err := s.Settle(ctx); err != nil {
		return err
	}
	s.until = time.Now().Add(5 * time.Millisecond)
	return s.Medium.Program(ctx, p, off)
}

func (s *slow) Settle(ctx context.Context) error {
	select {
	case <-time.After(time.Until(s.until)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slow) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := s.Settle(ctx); err != nil {
		return err
	}
	return s.Medium.ReadAt(ctx, p, off)
}

func TestUrgentOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustFormat(t, &slow{Medium: newMemory(shapes[0].g, 1)}, nvm.Options{})
		var mu sync.Mutex
		var order []string
		var wg sync.WaitGroup
		put := func(class nvm.Class, key string) {
			wg.Go(func() {
				if err := s.Put(bg, class, rec(key, "")); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, key)
				mu.Unlock()
			})
			synctest.Wait()
		}
		for i := range 4 {
			put(nvm.Normal, fmt.Sprint("normal", i))
		}
		put(nvm.Urgent, "urgent0")
		put(nvm.Urgent, "urgent1")
		wg.Wait()
		want := []string{"normal0", "urgent0", "urgent1", "normal1", "normal2", "normal3"}
		if diff := cmp.Diff(want, order); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestBeginOverlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustFormat(t, &slow{Medium: newMemory(shapes[0].g, 1)}, nvm.Options{})
		start := time.Now()
		p, err := s.Begin(bg, nvm.Urgent, rec("k", "v"))
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("Begin took %v; want none of the write cycle", d)
		}
		if _, ok := s.Get("k"); ok {
			t.Error("k is seen before Finish")
		}
		if err := p.Finish(bg); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != 5*time.Millisecond {
			t.Errorf("Begin and Finish took %v; want one write cycle", d)
		}
		if err := p.Finish(bg); err != nil {
			t.Errorf("second Finish = %v", err)
		}
		mustPut(t, s, rec("l", "v")) // not locked twice, nor left locked
	})
}

func TestContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(shapes[0].g, 1)
		s := mustFormat(t, &slow{Medium: m}, nvm.Options{})
		short := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}

		p, err := s.Begin(bg, nvm.Normal, rec("k", "v"))
		if err != nil {
			t.Fatal(err)
		}
		// In the queue.
		if err := s.Put(short(), nvm.Urgent, rec("q", "v")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Put in the queue = %v; want DeadlineExceeded", err)
		}
		// In Finish: the write cycle is under way.
		err = p.Finish(short())
		if !errors.Is(err, context.DeadlineExceeded) {
			// 1 ms in the queue, 1 ms here: the cycle takes 5.
			t.Errorf("Finish = %v; want DeadlineExceeded", err)
		}
		if !errors.Is(err, nvm.ErrUnknown) {
			t.Errorf("Finish = %v; want ErrUnknown", err)
		}
		if _, ok := s.Get("k"); ok {
			t.Error("k is seen although Finish failed")
		}
		// The store is unlocked, and the next write finds out about k.
		if err := s.Put(bg, nvm.Normal, rec("l", "w")); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"k": "v", "l": "w"}
		if diff := cmp.Diff(want, contents(s)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		s, _ = mustMount(t, m, suspect)
		if diff := cmp.Diff(want, contents(s)); diff != "" {
			t.Errorf("remounted (-want +got):\n%s", diff)
		}
		// Ended before: nothing is written.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		before := m.Ops()
		if err := s.Put(ctx, nvm.Normal, rec("n", "v")); !errors.Is(err, context.Canceled) || m.Ops() != before {
			t.Errorf("Put with an ended context = %v, %d writes", err, m.Ops()-before)
		}
	})
}

// TestUnknownThenLost has a page that was handed over and never read back turn
// out not to be there.
func TestUnknownThenLost(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			m := newMemory(sh.g, 1)
			s := mustFormat(t, m, nvm.Options{ReservePages: -1})
			mustPut(t, s, rec("k", "v1"))
			for i := range 8 {
				img := m.Image()
				value := strings.Repeat("x", 1+i*10) // one page, or two
				p, err := s.Begin(bg, nvm.Urgent, nvm.Record{Key: "k", Value: []byte(value)})
				if err != nil {
					t.Fatal(err)
				}
				now := m.Image()
				ctx, cancel := context.WithCancel(bg)
				cancel()
				if err := p.Finish(ctx); !errors.Is(err, nvm.ErrUnknown) {
					t.Fatalf("Finish = %v; want ErrUnknown", err)
				}
				if i%2 == 0 { // the last page's write never happened
					last := 0
					for b := range now {
						if now[b] != img[b] {
							last = b
						}
					}
					page := max(64, sh.g.Page)
					copy(now[last/page*page:], img[last/page*page:(last/page+1)*page])
					m.Load(now)
				}
				mustPut(t, s, rec("n", fmt.Sprint(i)))
				want := "v1"
				if i%2 != 0 {
					want = value
				} else if i > 0 {
					want = strings.Repeat("x", 1+(i-1)*10)
				}
				for _, st := range []*nvm.Store{s, first(mustMount(t, clone(m, 1), suspect))} {
					if v, _ := st.Get("k"); string(v) != want {
						t.Fatalf("%d: k = %q; want %q", i, v, want)
					}
				}
			}
		})
	}
}

func first[T, U any](t T, _ U) T { return t }

func TestConcurrent(t *testing.T) {
	m := newMemory(geometry(32<<10, 64, 0), 1)
	s := mustFormat(t, m, nvm.Options{})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 300 {
				key := fmt.Sprintf("%d/%d", g, i)
				if err := s.Put(bg, nvm.Class(g%2), rec(key, key)); err != nil {
					t.Error(err)
					return
				}
				if v, ok := s.Get(key); !ok || string(v) != key {
					t.Errorf("Get(%s) = %q, %v", key, v, ok)
				}
				s.Forget(fmt.Sprintf("%d/%d", g, i-10))
				if i%5 == 0 {
					if err := s.Tend(bg); err != nil {
						t.Error(err)
					}
					s.Stats()
					for range s.All(fmt.Sprint(g)) {
					}
				}
			}
		})
	}
	wg.Wait()
	if n := len(contents(s)); n != 40 {
		t.Errorf("%d keys; want 40", n)
	}
	if st := s.Stats(); st.Live != 40 || st.Sequence < 1200 {
		t.Errorf("Stats = %+v", st)
	}
}

// TestGeometry refuses media that cannot hold a store.
func TestGeometry(t *testing.T) {
	for _, g := range []nvm.Geometry{
		{},
		{Size: 256, Page: 8, Erased: 0xff},
		{Size: 4096, Page: 24, Erased: 0xff},
		{Size: 4096, Page: 0, Erased: 0xff},
		{Size: 4096, Page: 64, Erased: 0x2d},
		{Size: 1 << 20, Page: 65536, Erased: 0xff},
		{Size: 4096, Page: 64, Erase: 512, Erased: 0xff}, // and cannot erase
	} {
		m := fixed{g}
		if _, _, err := nvm.Mount(bg, m, nvm.Options{}); !errors.Is(err, nvm.ErrSize) {
			t.Errorf("Mount(%+v) = %v; want ErrSize", g, err)
		}
		if _, err := nvm.Format(bg, m, 1, nvm.Options{}); !errors.Is(err, nvm.ErrSize) {
			t.Errorf("Format(%+v) = %v; want ErrSize", g, err)
		}
	}
	// A store of another size than the medium's is told from no store.
	m := newMemory(geometry(64*64, 64, 0), 1)
	mustFormat(t, m, nvm.Options{})
	half, err := nvm.Section(m, 0, 32*64)
	if err != nil {
		t.Fatal(err)
	}
	if _, rep, err := nvm.Mount(bg, half, nvm.Options{}); !errors.Is(err, nvm.ErrSize) || rep.State != nvm.Formatted {
		t.Errorf("Mount of half a store = %v, %s", err, rep.State)
	}
}

type fixed struct{ g nvm.Geometry }

func (f fixed) Geometry() nvm.Geometry                     { return f.g }
func (fixed) ReadAt(context.Context, []byte, int64) error  { return nil }
func (fixed) Program(context.Context, []byte, int64) error { return nil }
func (fixed) Settle(context.Context) error                 { return nil }
