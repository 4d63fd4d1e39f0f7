package enclosure_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/nvm"
	"baton/sim"
	"baton/test/rig"
)

// config is a configuration of some pages.
func config(version uint32, pages int) plan.Configuration {
	return plan.Configuration{Version: version, Packed: bytes.Repeat([]byte{byte(version)}, 51*pages-10)}
}

// mounted is the store as a new agent finds it.
func mounted(t *testing.T, r *rig.Rig, sameBoot bool) *enclosure.Memory {
	t.Helper()
	m := enclosure.Mount(t.Context(), r.Config.Store, enclosure.Options{SameBoot: sameBoot})
	if err := m.Problem(); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestKeep(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		if _, found, err := mounted(t, r, true).Configuration(); found || err != nil {
			t.Errorf("a store without one: %v, %v", found, err)
		}
		for i, tt := range []struct{ pages, writes int }{{1, 2}, {12, 13}, {40, 41}} {
			c := config(uint32(i+1), tt.pages)
			before := r.W.PageWrites("store")
			if err := r.E.Keep(r.Ctx(), c); err != nil {
				t.Fatal(err)
			}
			if n := r.W.PageWrites("store") - before; n != uint64(tt.writes) {
				t.Errorf("%d pages and the mark took %d page writes; want %d", tt.pages, n, tt.writes)
			}
			got, found, err := mounted(t, r, true).Configuration()
			if err != nil || !found || got.Version != c.Version || !bytes.Equal(got.Packed, c.Packed) {
				t.Errorf("kept version %d of %d bytes, found %v, %v", got.Version, len(got.Packed), found, err)
			}
		}
		// What is too large is said, and changes nothing.
		err := r.E.Keep(r.Ctx(), config(9, 200))
		if rig.Code(err) != enclosure.CodeStore || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("200 pages: %v", err)
		}
		if got, _, err := mounted(t, r, true).Configuration(); got.Version != 3 || err != nil {
			t.Errorf("afterwards version %d, %v", got.Version, err)
		}
		serving(t, r, "gpu0", "gpu1")
		r.Check()
	})
}

// TestOpenWithMemory: a store that was mounted before the slots were known is
// read once, and the enclosure is the same.
func TestOpenWithMemory(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		want := r.Gen("gpu0")
		r.Stop()
		timed := func(f func()) time.Duration {
			began := time.Now()
			f()
			return time.Since(began)
		}
		alone := timed(func() { r.Start(enclosure.Options{SameBoot: true}) })
		r.Stop()
		var m *enclosure.Memory
		var apart time.Duration
		quiet(t, r, func() {
			apart = timed(func() { m = enclosure.Mount(t.Context(), r.Config.Store, enclosure.Options{SameBoot: true}) })
			apart += timed(func() { r.Start(enclosure.Options{SameBoot: true, Memory: m}) })
		})
		if apart > alone+time.Millisecond || alone < 700*time.Millisecond {
			t.Errorf("mounted before, a start takes %v; in one %v", apart, alone)
		}
		if got := r.Gen("gpu0"); got != want {
			t.Errorf("generation %s; want %s", got, want)
		}
		serving(t, r, "gpu0", "gpu1")
	})
}

// TestSharedGate: a store on an engine's chip, mounted before the slot is
// known, leaves the engine its time all the same.
func TestSharedGate(t *testing.T) {
	world(t, rig.Options{Shared: true}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		load := r.Profile.LoadTime
		for _, before := range []bool{false, true} {
			r.Stop()
			opt := enclosure.Options{}
			sc := r.Config.Store
			sc.LoadTime = load
			if before {
				opt.Memory = enclosure.Mount(t.Context(), sc, opt)
			}
			r.Start(opt)
			var at []time.Time
			chip := r.W.PageWrites("gpu0")
			done := background(func() {
				if err := r.E.Keep(r.Ctx(), config(1, 6)); err != nil {
					t.Error(err)
				}
			})
			for range 2000 {
				if n := r.W.PageWrites("gpu0"); n != chip {
					chip = n
					at = append(at, time.Now())
				}
				time.Sleep(100 * time.Microsecond)
			}
			done()
			if len(at) < 7 {
				t.Fatalf("mounted before: %v: saw %d page writes", before, len(at))
			}
			for i := 1; i < len(at); i++ {
				if d := at[i].Sub(at[i-1]); d < load-200*time.Microsecond {
					t.Errorf("mounted before: %v: %v between two page writes; an engine's load takes %v", before, d, load)
				}
			}
		}
		r.Check()
	})
}

// TestFrozen: where nobody knows how the enclosure should be nothing is
// changed, links above all; a configuration can be kept.
func TestFrozen(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		arrived := r.Nonce(rig.VM1)
		gen := r.Gen("gpu0")
		r.Stop()
		r.Config.Hosts, r.Config.VMs = nil, nil // as a seed's
		why := &enclosure.Error{Code: enclosure.CodeBadConfig, What: "the configuration in the store can not be used", State: "every change is refused", Next: "baton config apply"}
		quiet(t, r, func() {
			m := mounted(t, r, true)
			m.Freeze(why)
			r.Start(enclosure.Options{SameBoot: true, Memory: m})
			r.Run()
			time.Sleep(10 * time.Second)
			st := r.E.Status(r.Ctx())
			if st.Store.OK || !strings.Contains(st.Store.Problem, why.What) || len(st.Slots) != 2 {
				t.Errorf("status: store %+v, %d slots", st.Store, len(st.Slots))
			}
			if s := st.Slots[0]; s.Generation != gen || s.Link != "up" || s.Group != rig.GroupA {
				t.Errorf("gpu0 = generation %s, link %s, group %d", s.Generation, s.Link, s.Group)
			}
			for name, err := range everyChange(r, arrived) {
				if code := rig.Code(err); code != enclosure.CodeBadConfig && code != enclosure.CodeUnknownVM && code != enclosure.CodeUnknownHost {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
		for _, n := range []string{"gpu0", "gpu1"} {
			if !r.W.Server(rig.A).Reach(n) {
				t.Errorf("%s lost its link", n)
			}
		}
		// A configuration without the host that has them would cut them.
		err := r.E.Reconfigure(r.Ctx(), enclosure.Reconfiguration{By: "test", Admin: true})
		wantCode(t, err, enclosure.CodeInUse)
		hosts := []enclosure.HostConfig{{Name: rig.A, Group: rig.GroupA, MAC: ee.MAC(r.W.Spec().Servers[0].MAC)}}
		vms := []enclosure.VMConfig{{Name: rig.VM1, UUID: rig.UUID(200), Hosts: []string{rig.A}, Slots: []string{"gpu0", "gpu1"}, Policy: plan.Always}}
		kept := false
		err = r.E.Reconfigure(r.Ctx(), enclosure.Reconfiguration{Hosts: hosts, VMs: vms, By: "test", Admin: true, Keep: func(c context.Context) error {
			kept = true
			return r.E.Keep(c, config(8, 3))
		}})
		if err != nil || !kept {
			t.Fatalf("kept %v, %v", kept, err)
		}
		if got, found, err := mounted(t, r, true).Configuration(); err != nil || !found || got.Version != 8 {
			t.Errorf("version %d, %v, %v", got.Version, found, err)
		}
		// The next start takes it.
		r.Config.Hosts, r.Config.VMs = hosts, vms
		quietBesideAudit(t, r, r.Restart)
		if s := r.SlotStatus("gpu0"); s.Host != rig.A || s.Problem != "" || s.Generation != gen {
			t.Errorf("afterwards gpu0 = %+v", s)
		}
		r.Check()
	})
}

// TestPowerCutWhileKeeping cuts the power all along the writes of a
// configuration: afterwards there is the old one or the new one, and nothing
// else has changed.
func TestPowerCutWhileKeeping(t *testing.T) {
	cuts, seen := 0, map[uint32]int{}
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, rig.Options{Slots: 2})
		running(t, r)
		was := config(1, 5)
		if err := r.E.Keep(r.Ctx(), was); err != nil {
			t.Fatal(err)
		}
		gen := r.Gen("gpu0")
		var mu sync.Mutex
		var at []*sim.Snapshot
		r.W.OnPosition(func(sim.Position) {
			s := r.W.Snapshot()
			mu.Lock()
			defer mu.Unlock()
			at = append(at, s)
		})
		now := config(2, 7)
		writes := r.W.PageWrites("store")
		if err := r.E.Keep(r.Ctx(), now); err != nil {
			t.Fatal(err)
		}
		writes = r.W.PageWrites("store") - writes
		r.W.OnPosition(nil)
		r.Stop()
		stride := 1 + len(at)/(300/(1+raceFactor))
		for i := 0; i < len(at); i += stride {
			for tear := range sim.TearKind(sim.TearKinds) {
				f := r.Fork(at[i])
				f.W.SetTear(sim.Tear{Kind: tear, Seed: uint64(i), Unstable: i % 4})
				f.W.PowerCut()
				time.Sleep(time.Second)
				f.W.PowerOn()
				time.Sleep(50 * time.Millisecond)
				m := enclosure.Mount(t.Context(), f.Config.Store, enclosure.Options{})
				got, found, err := m.Configuration()
				if err != nil || !found {
					t.Fatalf("position %d of %d, tear %d: %v, %v", i, len(at), tear, found, err)
				}
				want := map[uint32]plan.Configuration{1: was, 2: now}[got.Version]
				if !bytes.Equal(got.Packed, want.Packed) {
					t.Fatalf("position %d of %d, tear %d: version %d with %d bytes of neither", i, len(at), tear, got.Version, len(got.Packed))
				}
				seen[got.Version]++
				f.Start(enclosure.Options{Memory: m})
				time.Sleep(5 * time.Millisecond)
				for _, n := range []string{"gpu0", "gpu1"} {
					f.WantHost(n, rig.A)
					if f.Gen(n) != gen {
						t.Errorf("%s: generation %s; want %s", n, f.Gen(n), gen)
					}
				}
				// And it can be replaced.
				if err := f.E.Keep(f.Ctx(), config(got.Version+1, 4)); err != nil {
					t.Errorf("position %d: afterwards: %v", i, err)
				}
				f.Check()
				f.Stop()
				cuts++
				if t.Failed() {
					t.Fatalf("position %d of %d, tear %d", i, len(at), tear)
				}
			}
		}
		if writes != 8 {
			t.Errorf("%d page writes; want 7 and the mark", writes)
		}
	})
	if seen[1] == 0 || seen[2] == 0 {
		t.Errorf("outcomes %v: one never came", seen)
	}
	t.Logf("%d cuts, outcomes %v", cuts, seen)
}

// TestLostConfiguration: a page of the configuration that goes bad is no
// reason to begin with the seed, or with the version before.
func TestLostConfiguration(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		for v := range uint32(3) {
			if err := r.E.Keep(r.Ctx(), config(v+1, 3)); err != nil {
				t.Fatal(err)
			}
		}
		r.Stop()
		image := r.W.Chip("store").Image()
		needle := bytes.Repeat([]byte{3}, 30)
		hit := false
		for at := 0; at < len(image); at += 64 {
			if bytes.Contains(image[at:at+64], needle) {
				r.W.Chip("store").Poke(int64(at+20), []byte{0xEE})
				hit = true
				break
			}
		}
		if !hit {
			t.Fatal("version 3 is not on the chip")
		}
		r.Start(enclosure.Options{SameBoot: true})
		c, found, err := mounted(t, r, true).Configuration()
		if err == nil || found || c.Version != 3 || !strings.Contains(fmt.Sprint(err), "version 3 was lost") {
			t.Errorf("version %d, found %v, %v", c.Version, found, err)
		}
	})
}

// The hosts of a frozen agent are a seed's: one of them may have a group under
// the MAC of a card that is long gone. Who asks for status must not cut by it.
func TestFrozenStatusCutsNobody(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Stop()
		old := ee.MAC{2, 0, 0, 0, 0, 99}
		r.Config.Hosts = []enclosure.HostConfig{{Name: "seed", Group: rig.GroupA, MAC: old}}
		r.Config.VMs = nil
		quiet(t, r, func() {
			m := mounted(t, r, true)
			m.Freeze(&enclosure.Error{Code: enclosure.CodeBadConfig, What: "the configuration in the store can not be used"})
			r.Start(enclosure.Options{SameBoot: true, Memory: m})
			r.Run()
			for range 5 {
				time.Sleep(3 * time.Second)
				r.E.Status(r.Ctx())
			}
		})
		for _, n := range []string{"gpu0", "gpu1"} {
			if !r.W.Server(rig.A).Reach(n) {
				t.Errorf("%s lost its link", n)
			}
		}
	})
}

// What a frozen agent does not know slots of, it keeps all the same.
func TestFrozenKeepsRecords(t *testing.T) {
	world(t, rig.Options{Slots: 2}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		for range 50 {
			r.Move(rig.VM1, rig.B)
			r.Move(rig.VM1, rig.A)
		}
		r.WantVerdict("gpu0", plan.Yes)
		r.Stop()
		real := r.Config
		seed := real.Slots[0]
		seed.Name = "seed"
		r.Config.Hosts, r.Config.VMs, r.Config.Slots = nil, nil, []enclosure.SlotConfig{seed}
		m := mounted(t, r, true)
		m.Freeze(&enclosure.Error{Code: enclosure.CodeBadConfig, What: "the configuration in the store can not be used"})
		r.Start(enclosure.Options{SameBoot: true, Memory: m})
		for v := range 40 {
			if err := r.E.Keep(r.Ctx(), config(uint32(v+1), 20)); err != nil {
				t.Fatal(err)
			}
		}
		r.Stop()
		r.Config = real
		quiet(t, r, func() {
			r.Start(enclosure.Options{SameBoot: true})
			time.Sleep(5 * time.Millisecond)
		})
		for _, n := range []string{"gpu0", "gpu1"} {
			r.WantHost(n, rig.A)
			r.WantVerdict(n, plan.Yes)
		}
	})
}

func TestFreezeNeedsAStore(t *testing.T) {
	m := enclosure.Mount(t.Context(), enclosure.StoreConfig{Name: "x", Problem: errors.New("no bus")}, enclosure.Options{})
	m.Freeze(&enclosure.Error{Code: enclosure.CodeBadConfig, What: "frozen"})
	if err := m.Problem(); rig.Code(err) != enclosure.CodeStore {
		t.Errorf("problem %v", err)
	}
	if _, found, err := m.Configuration(); found || err != nil {
		t.Errorf("configuration %v, %v", found, err)
	}
}

// flickers reads as erased once.
type flickers struct {
	nvm.Medium
	read bool
}

// ReadAt is that of nvm.Medium.
func (m *flickers) ReadAt(ctx context.Context, p []byte, off int64) error {
	if !m.read {
		m.read = true
		for i := range p {
			p[i] = 0xff
		}
		return nil
	}
	return m.Medium.ReadAt(ctx, p, off)
}

// TestBlankIsReadTwice: a store is not given up for one reading.
func TestBlankIsReadTwice(t *testing.T) {
	world(t, rig.Options{}, func(t *testing.T, r *rig.Rig) {
		running(t, r)
		r.Stop()
		cfg := r.Config.Store
		cfg.FormatBlank = true
		cfg.Medium = &flickers{Medium: cfg.Medium}
		pages := r.W.PageWrites("store")
		if m := enclosure.Mount(context.Background(), cfg, enclosure.Options{SameBoot: true}); m.Problem() != nil {
			t.Errorf("%v", m.Problem())
		}
		if n := r.W.PageWrites("store") - pages; n != 0 {
			t.Errorf("%d page writes to a store that read as blank once", n)
		}
		r.Start(enclosure.Options{SameBoot: true})
		if s := r.SlotStatus("gpu0"); s.Host != rig.A || s.VM != rig.VM1 {
			t.Errorf("afterwards %+v", s)
		}
	})
}
