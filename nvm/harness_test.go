package nvm_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"baton/nvm"
	"baton/nvm/nvmtest"
)

// memory is what the tests need of a test medium.
type memory interface {
	nvm.Medium
	Cut(n int, tear nvmtest.Tear)
	PowerOn()
	Off() bool
	Ops() int
	Writes() []int
	Erases() []int
	Flip(bit int)
	Stick(page int, stuck bool)
	Readings() map[int]int
	SetPick(func(page, n int) int)
	Image() []byte
	Load(img []byte)
}

func geometry(size int64, page, erase int) nvm.Geometry {
	g := nvm.Geometry{Size: size, Page: page, Erase: erase, Erased: 0xff, WriteMax: 5 * time.Millisecond}
	if erase > 0 {
		g.EraseMax = 400 * time.Millisecond
	}
	return g
}

func newMemory(g nvm.Geometry, seed uint64) memory {
	if g.Erase > 0 {
		return nvmtest.NewNOR(g, seed)
	}
	return nvmtest.NewChip(g, seed)
}

func clone(m memory, seed uint64) memory {
	switch m := m.(type) {
	case *nvmtest.NOR:
		return m.Clone(seed)
	case *nvmtest.Chip:
		return m.Clone(seed)
	}
	panic("unknown memory")
}

// The shapes of media that the suites run on. The small ones fill up and wrap
// around within a few dozen writes.
var shapes = []struct {
	name string
	g    nvm.Geometry
}{
	{"eeprom", geometry(20*64, 64, 0)},
	{"eeprom with pages of 16", geometry(20*64, 16, 0)},
	{"eeprom with pages of 128", geometry(20*128, 128, 0)},
	{"nor", geometry(9*8*64, 64, 8*64)},
	{"nor with pages of 256", geometry(8*2048, 256, 2048)},
}

var bg = context.Background()

func mustFormat(t testing.TB, m nvm.Medium, opt nvm.Options) *nvm.Store {
	t.Helper()
	s, err := nvm.Format(bg, m, 0xba70, opt)
	if err != nil {
		t.Fatalf("Format: %v", err)
	}
	return s
}

func mustMount(t testing.TB, m nvm.Medium, opt nvm.Options) (*nvm.Store, nvm.Report) {
	t.Helper()
	s, rep, err := nvm.Mount(bg, m, opt)
	if err != nil {
		t.Fatalf("Mount: %v (report %+v)", err, rep)
	}
	return s, rep
}

func mustPut(t testing.TB, s *nvm.Store, recs ...nvm.Record) {
	t.Helper()
	if err := s.Put(bg, nvm.Urgent, recs...); err != nil {
		t.Fatalf("Put(%v): %v", recs, err)
	}
}

func rec(key, value string) nvm.Record { return nvm.Record{Key: key, Value: []byte(value)} }

func del(key string) nvm.Record { return nvm.Record{Key: key} }

func contents(s *nvm.Store) map[string]string {
	got := map[string]string{}
	for k, v := range s.All("") {
		got[k] = string(v)
	}
	return got
}

// op is a step of a workload.
type op struct {
	put    []nvm.Record
	forget string
	tend   bool
}

// model is what a store must hold.
type model struct {
	live      map[string]string
	forgotten map[string]string // may be there, and then with this value
}

func newModel() *model { return &model{map[string]string{}, map[string]string{}} }

func (m *model) clone() *model { return &model{maps.Clone(m.live), maps.Clone(m.forgotten)} }

func (m *model) apply(o op) {
	for _, r := range o.put {
		delete(m.forgotten, r.Key)
		if r.Value == nil {
			delete(m.live, r.Key)
		} else {
			m.live[r.Key] = string(r.Value)
		}
	}
	if v, ok := m.live[o.forget]; ok && o.forget != "" {
		delete(m.live, o.forget)
		m.forgotten[o.forget] = v
	}
}

// differs says how a store's content is not what the model holds, or "".
func (m *model) differs(got map[string]string) string {
	for k, v := range m.live {
		if g, ok := got[k]; !ok || g != v {
			return fmt.Sprintf("%q is %q (%v), not %q", k, g, ok, v)
		}
	}
	for k, g := range got {
		if _, ok := m.live[k]; ok {
			continue
		}
		if v, ok := m.forgotten[k]; !ok || v != g {
			return fmt.Sprintf("%q is there as %q; forgotten: %v %q", k, g, ok, v)
		}
	}
	return ""
}

// run does ops until one fails, and returns how many were done.
func run(s *nvm.Store, m *model, ops []op) (done int, err error) {
	for i, o := range ops {
		switch {
		case o.tend:
			err = s.Tend(bg)
		case o.forget != "":
			s.Forget(o.forget)
		default:
			err = s.Put(bg, nvm.Urgent, o.put...)
		}
		if err != nil {
			return i, fmt.Errorf("op %d: %w", i, err)
		}
		m.apply(o)
	}
	return len(ops), nil
}

// workload is a mix of everything that fits into the small shapes.
func workload(n int) []op {
	var ops []op
	for i := range n {
		ops = append(ops, op{put: []nvm.Record{rec(fmt.Sprintf("m/%d", i), fmt.Sprintf("move %d", i))}})
		if i >= 3 {
			ops = append(ops, op{forget: fmt.Sprintf("m/%d", i-3)})
		}
		switch i % 6 {
		case 0:
			ops = append(ops, op{put: []nvm.Record{rec("g", fmt.Sprint(i)), rec("h", fmt.Sprint(-i))}})
		case 2:
			ops = append(ops, op{put: []nvm.Record{rec("big", string(bytes.Repeat([]byte{byte('a' + i%26)}, 70))), rec("h", fmt.Sprint(i))}})
		case 3:
			ops = append(ops, op{put: []nvm.Record{rec("d", fmt.Sprint(i))}})
		case 4:
			ops = append(ops, op{put: []nvm.Record{del("d"), rec("g", fmt.Sprint(i))}})
		case 5:
			ops = append(ops, op{put: []nvm.Record{del("big")}})
		}
		ops = append(ops, op{tend: true})
	}
	return ops
}

// forgetOld does what users of Forget must do after a mount.
func forgetOld(s *nvm.Store, m *model) {
	for k := range m.forgotten {
		s.Forget(k)
	}
}

func sum(n []int) int {
	t := 0
	for _, v := range n {
		t += v
	}
	return t
}
