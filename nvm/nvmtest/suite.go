package nvmtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"

	"baton/nvm"
)

// Subject is an erased medium that the suite may do with as it likes.
type Subject struct {
	Medium nvm.Medium
	// Reopen is the medium as a restarted agent opens it; nil = as it is.
	Reopen func() nvm.Medium
	// Power cuts it; nil = nobody can.
	Power Power
}

// Power is what cuts the power of a Subject.
type Power interface {
	// Arm orders a cut inside the n-th write from now on, from 0, and another
	// way of tearing for another seed.
	Arm(n int, seed uint64)
	Off() bool
	PowerOn()
	// Count is how many places for a cut there were so far.
	Count() int
}

// Media is a kind of medium for TestStore.
type Media struct {
	// Open makes one, anew each time; what must be closed it leaves to
	// t.Cleanup.
	Open func(t *testing.T, seed uint64) Subject
	// Virtual says that its waits are for a clock, and not for a chip: the
	// suite runs them in a bubble of testing/synctest.
	Virtual bool
	// Rounds is how often the workload goes around; 0 = 40. A round writes
	// about six pages.
	Rounds int
	// Cuts is how many cuts of power there are at most, spread over all
	// writes; 0 = 60.
	Cuts int
}

// TestStore is what every medium must stand of what a store does on it.
func TestStore(t *testing.T, m Media) {
	if m.Rounds == 0 {
		m.Rounds = 40
	}
	if m.Cuts == 0 {
		m.Cuts = 60
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T, Media)
	}{
		{"use", testUse},
		{"kill", testKill},
		{"damage", testDamage},
		{"formats lost", testFormatsLost},
		{"power cut", testPowerCut},
	} {
		t.Run(part.name, func(t *testing.T) {
			if m.Virtual {
				synctest.Test(t, func(t *testing.T) { part.run(t, m) })
				return
			}
			part.run(t, m)
		})
	}
}

const incarnation = 0xba70

// work is a store and what it must hold.
type work struct {
	s       *nvm.Store
	have    map[string]string
	maybe   map[string]string // as have, with the batch that failed; nil = none did
	records int
}

func begin(t *testing.T, m nvm.Medium) *work {
	t.Helper()
	s, err := nvm.Format(bg(), m, incarnation, nvm.Options{ReservePages: -1})
	if err != nil {
		t.Fatalf("Format: %v", err)
	}
	return &work{s: s, have: map[string]string{}}
}

func (w *work) put(recs ...nvm.Record) error {
	next := maps.Clone(w.have)
	for _, r := range recs {
		if r.Value == nil {
			delete(next, r.Key)
		} else {
			next[r.Key] = string(r.Value)
		}
	}
	w.records++
	if err := w.s.Put(bg(), nvm.Urgent, recs...); err != nil {
		w.maybe = next
		return fmt.Errorf("batch %d: %w", w.records, err)
	}
	w.have = next
	return nil
}

// round writes small records, a batch, one of several pages, and a deletion.
func (w *work) round(i int) error {
	rec := func(key string, value any) nvm.Record {
		return nvm.Record{Key: key, Value: fmt.Append(nil, value)}
	}
	large := nvm.Record{Key: "large", Value: bytes.Repeat([]byte{byte('a' + i%26)}, 150)}
	for _, recs := range [][]nvm.Record{
		{rec(fmt.Sprintf("slot/%d", i%3), i)},
		{rec("one", i), rec("two", -i), {Key: "gone"}},
		{large},
		{rec("gone", i)},
	} {
		if err := w.put(recs...); err != nil {
			return err
		}
	}
	return w.s.Tend(bg())
}

func (w *work) rounds(n int) error {
	for i := range n {
		if err := w.round(i); err != nil {
			return err
		}
	}
	return nil
}

// check compares, and takes over what was found where both are right.
func (w *work) check(t *testing.T, what string) {
	t.Helper()
	got := map[string]string{}
	for k, v := range w.s.All("") {
		got[k] = string(v)
	}
	switch {
	case maps.Equal(got, w.have):
	case w.maybe != nil && maps.Equal(got, w.maybe):
		w.have = w.maybe
	default:
		t.Fatalf("%s: the store holds %q; want %q, or all of the batch that failed: %q", what, got, w.have, w.maybe)
	}
	w.maybe = nil
}

// mount is what a new agent does.
func (w *work) mount(t *testing.T, sub Subject, suspect bool) nvm.Report {
	t.Helper()
	s, rep, err := nvm.Mount(bg(), sub.reopen(), nvm.Options{Suspect: suspect, ReservePages: -1})
	if err != nil {
		t.Fatalf("Mount(suspect %v): %v", suspect, err)
	}
	w.s = s
	return rep
}

func (s Subject) reopen() nvm.Medium {
	if s.Reopen == nil {
		return s.Medium
	}
	return s.Reopen()
}

func testUse(t *testing.T, m Media) {
	sub := m.Open(t, 1)
	_, rep, err := nvm.Mount(bg(), sub.Medium, nvm.Options{})
	if !errors.Is(err, nvm.ErrUnformatted) || rep.State != nvm.Blank {
		t.Fatalf("Mount of a blank medium: %v, state %v; want ErrUnformatted, blank", err, rep.State)
	}
	w := begin(t, sub.Medium)
	if err := w.rounds(m.Rounds); err != nil {
		t.Fatal(err)
	}
	w.check(t, "after use")
	st := w.s.Stats()
	t.Logf("%d pages, %d written, %d erases", st.Pages, st.PageWrites, st.Erases)
	if st.Retries != 0 || st.Bad != 0 {
		t.Errorf("Stats = %+v; want no retries and no bad pages", st)
	}

	in, err := nvm.Inspect(bg(), sub.reopen())
	if err != nil || in.Err != nil || len(in.Live) != len(w.have) || in.Incarnation != incarnation {
		t.Fatalf("Inspect = %v, %v, %d records; want %d", err, in.Err, len(in.Live), len(w.have))
	}
	for k, want := range w.have {
		if got, ok := in.Get(k); !ok || string(got) != want {
			t.Errorf("Inspect: %q = %q, %v; want %q", k, got, ok, want)
		}
	}

	for _, suspect := range []bool{false, true, false} {
		rep := w.mount(t, sub, suspect)
		w.check(t, "mounted")
		if len(rep.Damaged) != 0 || rep.Incarnation != incarnation {
			t.Errorf("Mount = %+v; want no damage", rep)
		}
	}
	if err := w.put(nvm.Record{Key: "last", Value: []byte("1")}); err != nil {
		t.Error(err)
	}
	w.check(t, "after another mount")
}

// killed is a medium whose agent is killed before a write: the chip keeps its
// power.
type killed struct {
	nvm.Medium
	left int
}

var errKilled = errors.New("killed")

func (k *killed) Program(ctx context.Context, p []byte, off int64) error {
	if k.left--; k.left < 0 {
		return errKilled
	}
	return k.Medium.Program(ctx, p, off)
}

// killedEraser is killed before an erase, too.
type killedEraser struct {
	killed
	e nvm.Eraser
}

func (k *killedEraser) Erase(ctx context.Context, off int64) error {
	if k.left--; k.left < 0 {
		return errKilled
	}
	return k.e.Erase(ctx, off)
}

// testKill kills the agent between any two writes.
func testKill(t *testing.T, m Media) {
	sub := m.Open(t, 2)
	w := begin(t, sub.Medium)
	kills := 0
	for n := 1; n < 24; n++ {
		var medium nvm.Medium
		if e, ok := sub.reopen().(nvm.Eraser); ok {
			medium = &killedEraser{killed{e, n}, e}
		} else {
			medium = &killed{sub.reopen(), n}
		}
		s, _, err := nvm.Mount(bg(), medium, nvm.Options{Suspect: n%2 == 0, ReservePages: -1})
		if err == nil {
			w.s = s
			w.check(t, "mounted by the one to be killed")
			err = w.rounds(n)
		}
		if err == nil {
			t.Fatalf("%d writes: not killed", n)
		}
		kills++
		w.mount(t, sub, n%3 == 0)
		w.check(t, fmt.Sprintf("killed after %d writes", n))
	}
	t.Logf("%d kills", kills)
}

// testDamage spoils a page of data: what else is there stays, and the next
// housekeeping or Clean makes the page good.
func testDamage(t *testing.T, m Media) {
	sub := m.Open(t, 3)
	w := begin(t, sub.Medium)
	if err := w.rounds(4); err != nil {
		t.Fatal(err)
	}
	w.check(t, "before")
	in, err := nvm.Inspect(bg(), sub.reopen())
	if err != nil {
		t.Fatal(err)
	}
	page := -1
	for _, l := range in.Live {
		for _, b := range in.Batches {
			if l.Key == "slot/1" && b.Sequence == l.Sequence {
				page = b.Pages[0]
			}
		}
	}
	if page < 0 {
		t.Fatal("slot/1 is on no page")
	}
	spoil(t, sub.Medium, page, in.PageSize)
	rep := w.mount(t, sub, false)
	if len(rep.Damaged) != 1 || rep.Damaged[0] != page {
		t.Errorf("Mount finds damage in %v; want [%d]", rep.Damaged, page)
	}
	older := maps.Clone(w.have)
	delete(older, "slot/1")
	for k, want := range older {
		if got, ok := w.s.Get(k); !ok || string(got) != want {
			t.Errorf("%q = %q, %v; want %q", k, got, ok, want)
		}
	}
	if err := w.s.Clean(bg()); err != nil {
		t.Errorf("Clean = %v", err)
	}
	if err := w.put(nvm.Record{Key: "slot/1", Value: []byte("again")}); err != nil {
		t.Error(err)
	}
	if rep := w.mount(t, sub, true); len(rep.Damaged) != 0 {
		t.Errorf("after Clean Mount finds damage in %v", rep.Damaged)
	}
	w.check(t, "after Clean")
}

// spoil programs half of a page's bits, which any medium can.
func spoil(t *testing.T, m nvm.Medium, page, size int) {
	t.Helper()
	p := make([]byte, m.Geometry().Page)
	for at := 0; at < size; at += len(p) {
		if err := m.ReadAt(bg(), p, int64(page*size+at)); err != nil {
			t.Fatal(err)
		}
		for i := range p {
			p[i] &= 0x5a
		}
		if err := m.Program(bg(), p, int64(page*size+at)); err != nil {
			t.Fatal(err)
		}
		if err := m.Settle(bg()); err != nil {
			t.Fatal(err)
		}
	}
}

// testFormatsLost spoils every format record, and salvages the store.
func testFormatsLost(t *testing.T, m Media) {
	sub := m.Open(t, 4)
	w := begin(t, sub.Medium)
	if err := w.rounds(3); err != nil {
		t.Fatal(err)
	}
	w.check(t, "before")
	in, err := nvm.Inspect(bg(), sub.reopen())
	if err != nil {
		t.Fatal(err)
	}
	records := 0
	for p, d := range in.Detail {
		if d.State == nvm.PageFormat {
			spoil(t, sub.Medium, p, in.PageSize)
			records++
		}
	}
	if records == 0 {
		t.Fatal("no format record found")
	}
	if _, rep, err := nvm.Mount(bg(), sub.reopen(), nvm.Options{}); !errors.Is(err, nvm.ErrUnformatted) || rep.State != nvm.Foreign {
		t.Fatalf("Mount = %v, state %v; want ErrUnformatted, foreign", err, rep.State)
	}
	lost, err := nvm.FindLost(bg(), sub.reopen())
	if err != nil || lost == nil || lost.Incarnation != incarnation {
		t.Fatalf("FindLost = %+v, %v; want the incarnation %#x", lost, err, incarnation)
	}
	s, _, err := nvm.Salvage(bg(), sub.reopen(), lost.Incarnation, nvm.Options{ReservePages: -1})
	if err != nil {
		t.Fatalf("Salvage = %v", err)
	}
	w.s = s
	w.check(t, "salvaged")
	w.mount(t, sub, false)
	w.check(t, "mounted after that")
	for range 40 { // blocks without a record are erased, one a step
		if err := w.s.Tend(bg()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.rounds(m.Rounds / 4); err != nil {
		t.Fatal(err)
	}
	w.mount(t, sub, true)
	w.check(t, "used after that")
}

// testPowerCut cuts the power in writes all over a workload, also in that of a
// recovery, and in Format.
func testPowerCut(t *testing.T, m Media) {
	clean := m.Open(t, 5)
	if clean.Power == nil {
		t.Log("nobody can cut its power here: 'kill' is what was shown")
		return
	}
	w := begin(t, clean.Medium)
	format := clean.Power.Count()
	if err := w.rounds(m.Rounds / 4); err != nil {
		t.Fatal(err)
	}
	places := clean.Power.Count()
	step := max(1, places/m.Cuts)
	cuts, again := 0, 0
	for n := 0; n < places; n += step {
		seed := uint64(n)*7 + 11
		sub := m.Open(t, seed)
		what := fmt.Sprintf("cut %d of %d", n, places)
		sub.Power.Arm(n, seed)
		w := &work{have: map[string]string{}}
		s, err := nvm.Format(bg(), sub.Medium, incarnation, nvm.Options{ReservePages: -1})
		if err == nil {
			w.s = s
			err = w.rounds(m.Rounds / 4)
		}
		if !sub.Power.Off() {
			t.Fatalf("%s: no cut, error %v", what, err)
		}
		cuts++
		sub.Power.PowerOn()
		if w.s == nil {
			testCutFormat(t, what, sub)
			continue
		}
		// Another one in the recovery.
		sub.Power.Arm(n%5, seed+1)
		if _, _, err := nvm.Mount(bg(), sub.reopen(), nvm.Options{Suspect: true, ReservePages: -1}); err != nil && !sub.Power.Off() {
			t.Fatalf("%s: recovery: %v", what, err)
		} else if sub.Power.Off() {
			again++ // whatever it returned: nothing of it counts
		}
		sub.Power.PowerOn()
		for _, suspect := range []bool{true, false, true} {
			w.mount(t, sub, suspect)
			w.check(t, what)
		}
		if err := w.round(100); err != nil {
			t.Fatalf("%s: then %v", what, err)
		}
		w.mount(t, sub, false)
		w.check(t, what+", used, mounted")
	}
	t.Logf("%d places, %d of them in Format; %d cuts, %d of them with another in the recovery", places, format, cuts, again)
}

// testCutFormat has a format that was cut short done again. That it reads as
// neither blank nor half formatted must not be: nobody would format it then.
func testCutFormat(t *testing.T, what string, sub Subject) {
	t.Helper()
	_, rep, err := nvm.Mount(bg(), sub.reopen(), nvm.Options{Suspect: true})
	if err == nil {
		return
	}
	if !errors.Is(err, nvm.ErrUnformatted) || rep.State != nvm.Blank && rep.State != nvm.HalfFormatted {
		t.Fatalf("%s in Format: Mount = %v, state %v; want blank or half formatted", what, err, rep.State)
	}
	w := begin(t, sub.reopen())
	if err := w.round(1); err != nil {
		t.Fatalf("%s in Format, done again: %v", what, err)
	}
	w.mount(t, sub, true)
	w.check(t, what+" in Format, done again")
}
