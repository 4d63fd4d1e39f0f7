package nvm_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"baton/nvm"
	"baton/nvm/nvmtest"
)

// TestEveryReading goes through what TestPowerCut takes samples of: a write is
// cut short so that its page reads as before or as meant, then the recovery is
// cut short in each of its writes, twice, and at each mount the torn pages read
// as each of the things they may be.
func TestEveryReading(t *testing.T) {
	one := []nvm.Record{rec("k", "new"), rec("l", "new")}
	three := []nvm.Record{rec("k", "new"), rec("big", strings.Repeat("b", 130))}
	cuts := 2
	if cutSeed() != 0 {
		cuts = 3
	}
	if thin > 1 {
		cuts = 1
	}
	for _, sh := range shapes {
		if sh.g.Page != 64 {
			continue
		}
		for _, tt := range []struct {
			name string
			recs []nvm.Record
			bad  bool // the page that is to be written does not work
			edge bool // the page before is the last of the ring, or of a block
		}{
			{"one page", one, false, false},
			{"three pages", three, false, false},
			{"one page, another is bad", one, true, false},
			{"one page, at the edge", one, false, true},
			{"three pages, at the edge", three, false, true},
		} {
			t.Run(sh.name+"/"+tt.name, func(t *testing.T) {
				base := newMemory(sh.g, 1)
				s := mustFormat(t, base, suspect)
				for i := range 21 { // more than once around the ring
					mustPut(t, s, rec(fmt.Sprint("x", i%4), fmt.Sprint(i)))
				}
				mustPut(t, s, rec("k", "old"), rec("gone", "x"))
				mustPut(t, s, del("gone"))
				last := func() bool { // does the next page follow upon the last?
					c := clone(base, 1)
					s, _ := mustMount(t, c, nvm.Options{ReservePages: -1})
					mustPut(t, s, rec("x0", "probe"))
					p := slices.Index(c.Writes(), 1)
					return p == 4 || sh.g.Erase > 0 && p%8 == 1
				}
				for i := 0; tt.edge && !last(); i++ {
					mustPut(t, s, rec(fmt.Sprint("x", i%4), fmt.Sprint("edge", i)))
				}
				before := contents(s)
				after := maps.Clone(before)
				for _, r := range tt.recs {
					after[r.Key] = string(r.Value)
				}
				put := func(m memory) error {
					s, _ := mustMount(t, m, nvm.Options{ReservePages: -1})
					return s.Put(bg, nvm.Urgent, tt.recs...)
				}
				clean := clone(base, 1)
				if err := put(clean); err != nil {
					t.Fatal(err)
				}
				if tt.bad {
					base.Stick(slices.Index(clean.Writes(), 1), true)
					clean = clone(base, 1)
					if err := put(clean); err != nil {
						t.Fatal(err)
					}
				}
				e := &every{t: t, before: before, after: after, tear: flicker}
				for n := range clean.Ops() {
					m := clone(base, 1)
					m.Cut(n, e.tear)
					put(m)
					m.PowerOn()
					e.explore(m, cuts, fmt.Sprintf("write %d", n))
				}
				t.Logf("%d writes, %d mounts", clean.Ops(), e.mounts)
			})
		}
	}
}

// flicker leaves a page that reads as before or as meant.
var flicker = nvmtest.Tears[slices.IndexFunc(nvmtest.Tears, func(n nvmtest.NamedTear) bool {
	return n.Name == "flickers old new"
})].Tear

type every struct {
	t             *testing.T
	before, after map[string]string
	tear          nvmtest.Tear
	mounts        int
	leaves        int
}

// readings yields a choice for each torn page, for every combination of what
// they may read as.
func readings(m memory, f func(pick func(page, n int) int, name string)) {
	alts := m.Readings()
	pages := slices.Sorted(maps.Keys(alts))
	choice := map[int]int{}
	var next func(i int)
	next = func(i int) {
		if i == len(pages) {
			c := maps.Clone(choice)
			f(func(page, _ int) int { return c[page] }, fmt.Sprint(c))
			return
		}
		for a := range alts[pages[i]] {
			choice[pages[i]] = a
			next(i + 1)
		}
	}
	next(0)
}

// explore mounts m with every reading, and if cuts > 0 also with a cut in each
// write of the recovery.
func (e *every) explore(m memory, cuts int, path string) {
	readings(m, func(pick func(page, n int) int, name string) {
		if e.t.Failed() {
			return
		}
		path := path + ", reads " + name
		done := clone(m, 1)
		done.SetPick(pick)
		s, _, err := nvm.Mount(bg, done, suspect)
		e.mounts++
		if err != nil {
			e.t.Errorf("%s: %v", path, err)
			return
		}
		e.settled(done, contents(s), path)
		if cuts == 0 {
			return
		}
		for k := range done.Ops() {
			cut := clone(m, 1)
			cut.SetPick(pick)
			cut.Cut(k, e.tear)
			nvm.Mount(bg, cut, suspect)
			e.mounts++
			cut.PowerOn()
			e.explore(cut, cuts-1, fmt.Sprintf("%s, cut at %d", path, k))
		}
	})
}

// settled checks a medium that was mounted and showed got: it must be one of
// the two, and whatever torn pages are left may not change it.
func (e *every) settled(m memory, got map[string]string, path string) {
	if !maps.Equal(got, e.before) && !maps.Equal(got, e.after) {
		e.t.Errorf("%s: is %v", path, got)
		return
	}
	if len(m.Readings()) == 0 {
		if e.leaves++; e.leaves%16 != 0 {
			return
		}
	}
	check := func(m memory, want map[string]string, path string) {
		readings(m, func(pick func(page, n int) int, name string) {
			for _, opt := range []nvm.Options{{}, suspect} {
				c := clone(m, 1)
				c.SetPick(pick)
				s, _, err := nvm.Mount(bg, c, opt)
				e.mounts++
				if err != nil {
					e.t.Errorf("%s, later reads %s: %v", path, name, err)
				} else if now := contents(s); !maps.Equal(now, want) {
					e.t.Errorf("%s, later reads %s (suspect=%v): was %v, is %v", path, name, opt.Suspect, want, now)
				}
			}
		})
	}
	check(m, got, path)
	// A batch as large as the torn one, and the ring around once more.
	s, _, err := nvm.Mount(bg, m, nvm.Options{ReservePages: -1})
	if err != nil {
		e.t.Errorf("%s: %v", path, err)
		return
	}
	want := maps.Clone(got)
	put := func(r nvm.Record) {
		if err := s.Put(bg, nvm.Urgent, r); err != nil {
			e.t.Errorf("%s: Put: %v", path, err)
		}
		want[r.Key] = string(r.Value)
	}
	put(nvm.Record{Key: "big", Value: bytes.Repeat([]byte("c"), 130)})
	check(m, want, path+", and a large Put")
	for i := range 14 {
		put(rec("x0", fmt.Sprint("later", i)))
		if m.Geometry().Erase > 0 {
			s.Tend(bg)
		}
	}
	check(m, want, path+", and 14 Puts")
}
