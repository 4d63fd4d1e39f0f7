package nvm_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"baton/nvm"
	"baton/nvm/nvmtest"
)

// TestStateMachine drives a store and a map side by side through puts,
// deletions, forgetting, housekeeping, restarts and power cuts.
func TestStateMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sh := shapes[rapid.IntRange(0, len(shapes)-1).Draw(t, "shape")]
		m := newMemory(sh.g, rapid.Uint64().Draw(t, "seed"))
		s, err := nvm.Format(bg, m, 7, suspect)
		if err != nil {
			t.Fatal(err)
		}
		want := newModel()
		pending := (*op)(nil)

		settle := func() { // after a mount: what was pending is one or the other
			if pending != nil {
				after := want.clone()
				after.apply(*pending)
				if want.differs(contents(s)) != "" {
					want = after
				}
				pending = nil
			}
			for k := range want.forgotten {
				s.Forget(k) // else everything that ever was fills the small medium
			}
		}
		remount := func(opt nvm.Options) {
			m.PowerOn()
			var err error
			if s, _, err = nvm.Mount(bg, m, opt); err != nil {
				t.Fatalf("Mount: %v", err)
			}
			settle()
		}
		cut := func() bool { // power has gone: come back, perhaps cut short again
			if !m.Off() {
				return false
			}
			for range rapid.IntRange(0, 2).Draw(t, "cuts in recovery") {
				m.PowerOn()
				m.Cut(rapid.IntRange(0, 8).Draw(t, "at"), nvmtest.Tears[rapid.IntRange(0, len(nvmtest.Tears)-1).Draw(t, "tear")].Tear)
				nvm.Mount(bg, m, suspect)
			}
			remount(suspect)
			return true
		}
		key := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("k", rapid.IntRange(0, 5).Draw(t, "key")) })
		value := rapid.Custom(func(t *rapid.T) []byte {
			return []byte(strings.Repeat(string(rune('a'+rapid.IntRange(0, 25).Draw(t, "letter"))), rapid.IntRange(0, 45).Draw(t, "length")))
		})

		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				recs := []nvm.Record{}
				for _, k := range rapid.SliceOfNDistinct(key, 1, 3, rapid.ID).Draw(t, "keys") {
					r := nvm.Record{Key: k}
					if rapid.IntRange(0, 3).Draw(t, "delete") > 0 {
						r.Value = value.Draw(t, "value")
					}
					recs = append(recs, r)
				}
				o := op{put: recs}
				err := s.Put(bg, nvm.Urgent, recs...)
				if err != nil && m.Off() {
					pending = &o
					cut()
					return
				}
				for range 30 { // a medium with erase blocks may have to be tidied first
					if err == nil {
						break
					}
					if err := s.Tend(bg); err != nil && !m.Off() {
						t.Fatal(err)
					}
					if cut() {
						return
					}
					err = s.Put(bg, nvm.Urgent, recs...)
					if err != nil && m.Off() {
						pending = &o
						cut()
						return
					}
				}
				if err != nil {
					t.Fatalf("Put: %v", err)
				}
				want.apply(o)
				cut()
			},
			"forget": func(t *rapid.T) {
				k := key.Draw(t, "key")
				s.Forget(k)
				want.apply(op{forget: k})
			},
			"tend": func(t *rapid.T) {
				if err := s.Tend(bg); err != nil && !m.Off() {
					t.Fatal(err)
				}
				cut()
			},
			"restart": func(*rapid.T) { remount(nvm.Options{ReservePages: -1}) },
			"lose power": func(t *rapid.T) {
				remount(suspect)
			},
			"order a cut": func(t *rapid.T) {
				m.Cut(rapid.IntRange(0, 6).Draw(t, "at"), nvmtest.Tears[rapid.IntRange(0, len(nvmtest.Tears)-1).Draw(t, "tear")].Tear)
			},
			"": func(t *rapid.T) {
				if why := want.differs(contents(s)); why != "" {
					t.Fatal(why)
				}
			},
		})
	})
}
