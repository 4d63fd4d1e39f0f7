package nvm_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"

	"baton/nvm"
	"baton/nvm/nvmtest"
)

// cutSeed varies what the power cuts leave. With NVM_CUT_SEED=1, 2, ... in the
// environment each write is also torn in every way, not in every fifth, and
// recoveries are cut short once more.
func cutSeed() uint64 {
	n, _ := strconv.ParseUint(os.Getenv("NVM_CUT_SEED"), 10, 32)
	return n
}

var suspect = nvm.Options{Suspect: true, ReservePages: -1}

// TestPowerCut cuts the power in every write of a workload, tears the page in
// every way, and again in every write of the recovery.
func TestPowerCut(t *testing.T) {
	for _, sh := range shapes {
		t.Run(sh.name, func(t *testing.T) {
			ops := workload(14)
			clean := newMemory(sh.g, 1)
			s := mustFormat(t, clean, suspect)
			start := clean.Ops()
			if _, err := run(s, newModel(), ops); err != nil {
				t.Fatal(err)
			}
			writes := clean.Ops() - start
			cuts, mounts := 0, 0
			for n := range writes {
				for ti, tear := range nvmtest.Tears {
					if cutSeed() == 0 && (n+ti)%(5*thin) != 0 {
						continue
					}
					cuts++
					seed := cutSeed()*1_000_003 + uint64(n*100+ti)
					m := newMemory(sh.g, seed)
					s := mustFormat(t, m, suspect)
					m.Cut(n, tear.Tear)
					want := newModel()
					done, err := run(s, want, ops)
					if err == nil && !m.Off() {
						t.Fatalf("write %d: no cut", n)
					}
					var pending *op
					if err != nil {
						pending = &ops[done]
					}
					name := fmt.Sprintf("write %d torn %q", n, tear.Name)
					mounts += checkCut(t, name, m, want, pending, seed, int(seed%1000))
					if t.Failed() {
						return
					}
				}
			}
			t.Logf("%s: %d writes, %d cuts, %d mounts", sh.name, writes, cuts, mounts)
		})
	}
}

// checkCut mounts what a power cut has left, with more cuts in the recovery,
// and checks that what was acknowledged is there, what was not is all there or
// not at all, and that it stays so. It returns the number of mounts.
func checkCut(t *testing.T, name string, m memory, want *model, pending *op, seed uint64, vary int) (mounts int) {
	t.Helper()
	m.PowerOn()
	probe := clone(m, seed)
	if _, _, err := nvm.Mount(bg, probe, suspect); err != nil {
		t.Errorf("%s: mount: %v", name, err)
		return
	}
	writes := probe.Ops()
	check := func(name string, m memory) {
		t.Helper()
		s, _, err := nvm.Mount(bg, m, suspect)
		mounts++
		if err != nil {
			t.Errorf("%s: mount: %v", name, err)
			return
		}
		got := contents(s)
		settled := want
		if why := want.differs(got); why != "" {
			if pending == nil {
				t.Errorf("%s: %s", name, why)
				return
			}
			settled = want.clone()
			settled.apply(*pending)
			if whyNew := settled.differs(got); whyNew != "" {
				t.Errorf("%s: neither before (%s) nor after (%s)", name, why, whyNew)
				return
			}
		}
		// It must stay: with and without another loss of power, and with writes
		// in between that wrap around the medium.
		for i := range 4 {
			opt := suspect
			opt.Suspect = i%2 == 0
			s, _, err = nvm.Mount(bg, m, opt)
			mounts++
			if err != nil {
				t.Errorf("%s: mount %d more: %v", name, i+1, err)
				return
			}
			if why := settled.differs(contents(s)); why != "" {
				t.Errorf("%s: %d mounts later: %s", name, i+1, why)
				return
			}
		}
		forgetOld(s, settled)
		for range 20 { // each recovery uses up pages of a medium with erase blocks
			if err := s.Tend(bg); err != nil {
				t.Errorf("%s: tend: %v", name, err)
				return
			}
		}
		now := settled.clone()
		for i := range 30 {
			o := op{put: []nvm.Record{rec(fmt.Sprintf("n/%d", i%3), fmt.Sprint(i))}}
			if err := s.Put(bg, nvm.Urgent, o.put...); err != nil {
				t.Errorf("%s: put %d afterwards: %v", name, i, err)
				return
			}
			now.apply(o)
			if err := s.Tend(bg); err != nil {
				t.Errorf("%s: tend %d afterwards: %v", name, i, err)
				return
			}
			if i%10 != 9 {
				continue
			}
			again, _, err := nvm.Mount(bg, clone(m, seed+uint64(i)), suspect)
			mounts++
			if err != nil {
				t.Errorf("%s: mount after %d puts: %v", name, i+1, err)
				return
			}
			if why := now.differs(contents(again)); why != "" {
				t.Errorf("%s: after %d puts: %s", name, i+1, why)
				return
			}
		}
	}
	check(name, clone(m, seed))
	// Where a page takes several writes, cuts in most of them are alike.
	per := max(64, m.Geometry().Page) / m.Geometry().Page
	for k := vary % per; k < writes; k += per {
		again := clone(m, seed+uint64(k)+7)
		tear := nvmtest.Tears[(vary+k*5)%len(nvmtest.Tears)]
		again.Cut(k, tear.Tear)
		_, _, err := nvm.Mount(bg, again, suspect)
		mounts++
		if err == nil && again.Off() {
			err = errors.New("mounted without power")
		}
		if !again.Off() {
			continue // read differently, and had less to write
		}
		_ = err
		again.PowerOn()
		deeper := clone(again, seed+uint64(k))
		check(fmt.Sprintf("%s, recovery's write %d torn %q", name, k, tear.Name), again)
		tear2 := nvmtest.Tears[(vary+k*3+1)%len(nvmtest.Tears)]
		deeper.Cut((vary+k)%(writes+1), tear2.Tear)
		nvm.Mount(bg, deeper, suspect)
		mounts++
		deeper.PowerOn()
		check(fmt.Sprintf("%s, recovery's write %d torn %q, then %q", name, k, tear.Name, tear2.Name), deeper)
		if t.Failed() {
			return
		}
	}
	return
}
