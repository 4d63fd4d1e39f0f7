package nvm_test

import (
	"fmt"
	"testing"

	"baton/nvm"
)

// fullStore is a 24C256's worth of records: every page holds one.
func fullStore(tb testing.TB) (memory, *nvm.Store) {
	m := newMemory(geometry(32<<10, 64, 0), 1)
	s := mustFormat(tb, m, nvm.Options{})
	for i := range 700 {
		mustPut(tb, s, rec(fmt.Sprintf("m%04d", i), "a move's intent, about as long as they are"))
		s.Forget(fmt.Sprintf("m%04d", i-64))
	}
	return m, s
}

func BenchmarkMount(b *testing.B) {
	full, _ := fullStore(b)
	empty := newMemory(geometry(32<<10, 64, 0), 1)
	mustFormat(b, empty, nvm.Options{})
	for _, bm := range []struct {
		name string
		m    memory
		opt  nvm.Options
	}{
		{"empty", empty, nvm.Options{}},
		{"full", full, nvm.Options{}},
		{"full suspect", full, nvm.Options{Suspect: true}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := nvm.Mount(bg, bm.m, bm.opt); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPut(b *testing.B) {
	_, s := fullStore(b)
	var keys [100]string
	for i := range keys {
		keys[i] = fmt.Sprintf("k%04d", i)
	}
	value := make([]byte, 44)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if err := s.Put(bg, nvm.Urgent, nvm.Record{Key: keys[i%100], Value: value}); err != nil {
			b.Fatal(err)
		}
		s.Forget(keys[(i+50)%100])
		i++
	}
}
