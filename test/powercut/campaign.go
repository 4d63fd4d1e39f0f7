// Package powercut cuts the enclosure's power in the middle of everything that
// the agent does, on every medium that its store can be on, and looks from the
// model's side at what a new agent makes of what is left. docs/powercut.md says
// what is cut and what counts.
package powercut

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"baton/ee"
	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/nvm"
	"baton/sim"
	"baton/test/rig"
)

// tear is what a cut leaves of what is being written.
type tear struct {
	kind     sim.TearKind
	unstable int
}

func (t tear) String() string {
	s := t.kind.String()
	if t.unstable > 0 {
		s += fmt.Sprintf("+%d", t.unstable)
	}
	return s
}

// tears are all kinds, stable and with unstable bytes. Where nothing is being
// written there is one cut, the first.
var tears = func() (all []tear) {
	for _, n := range []int{0, 1, 3} {
		for k := range sim.TearKind(sim.TearKinds) {
			all = append(all, tear{k, n})
		}
	}
	return all
}()

// point is an instant in a run, with all that there was then.
type point struct {
	world   *sim.Snapshot
	memory  *memory // nil: the store is in the world
	writing bool
	acked   bool // the client had its answer
}

// path says which cut, and which cut of its recovery, and so on. Each step is
// position*32 + tear, from 1; 0 = none.
type path [3]uint32

// loadCut is the tear of a cut while the engines load and the agent starts.
const loadCut = 31

func step(position, tear int) uint32 { return uint32(position)<<5 + uint32(tear) + 1 }

// String is what -position takes.
func (p path) String() string {
	var s []string
	for _, v := range p {
		if v > 0 {
			v--
			name := "load"
			if v&31 != loadCut {
				name = tears[v&31].String()
			}
			s = append(s, fmt.Sprintf("%d.%s", v>>5, name))
		}
	}
	return strings.Join(s, "/")
}

// job is one operation on one medium.
type job struct {
	op     op
	medium medium

	mu     sync.Mutex // held by the worker that has it
	base   *rig.Rig   // to fork from
	points []point
	before map[string]uint32 // generations

	run   map[path]struct{}   // what was really cut
	state map[uint64]struct{} // worlds that were recovered
	next  int                 // single whose recovery is cut next
	order []path              // singles that left a world of their own

	torn, unstable, double int
	broken                 []string // violations, each with what reproduces it
	recovered              int
	accepted               int // violations that are known
	cases                  int // singles there are
}

func (j *job) name() string { return j.op.name + " on " + j.medium.name }

// watcher is the test for a rig whose failures are violations.
type watcher struct {
	testing.TB
	mu    sync.Mutex
	fails []string
}

type stopped struct{}

func (w *watcher) Errorf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fails = append(w.fails, fmt.Sprintf(format, args...))
}
func (w *watcher) Error(args ...any) { w.Errorf("%s", fmt.Sprint(args...)) }
func (w *watcher) Fatalf(format string, args ...any) {
	w.Errorf(format, args...)
	panic(stopped{})
}
func (w *watcher) Fatal(args ...any) { w.Fatalf("%s", fmt.Sprint(args...)) }
func (w *watcher) Failed() bool      { w.mu.Lock(); defer w.mu.Unlock(); return len(w.fails) > 0 }
func (w *watcher) Helper()           {}

// world is a rig and the store's medium beside it.
type world struct {
	*rig.Rig
	m    *memory
	done func()
}

// place puts the store on the medium, where it is not a chip of the world.
func (j *job) place(c *enclosure.Config, m *memory) (done func()) {
	if m == nil {
		return func() {}
	}
	var drv nvm.Medium
	drv, done = j.medium.drive(m)
	c.Store = enclosure.StoreConfig{Medium: drv, Name: j.medium.name, FormatBlank: true}
	return done
}

func (w *world) connect() {
	if w.m != nil {
		w.m.clock, w.m.on = w.W.Now, w.W.Powered
	}
}

// prepare runs the operation once, to its end, and keeps every instant at which a
// cut makes a difference.
func (j *job) prepare(t testing.TB) {
	var w world
	if j.medium.new != nil {
		w.m = j.medium.new()
	}
	w.done = func() {}
	o := rig.Options{Slots: j.op.slots, Buses: j.op.buses, Shared: j.medium.shared, Policy: j.op.policy, Bare: true}
	v := &watcher{TB: t}
	defer func() {
		for _, f := range v.fails {
			j.broken = append(j.broken, fmt.Sprintf("-run %s -medium %s, not cut: %s", j.op.name, j.medium.name, f))
		}
	}()
	w.Rig = rig.New(t, o)
	w.connect()
	w.done = j.place(&w.Config, w.m)
	defer func() { w.done() }()
	if !j.op.bare {
		w.Start(enclosure.Options{})
		for _, h := range w.Config.Hosts {
			w.Unfence(h.Name)
		}
		w.Fence(rig.C) // which no cut may end
	}
	if j.op.setup != nil {
		if err := j.op.setup(w.Rig); err != nil {
			t.Fatalf("%s: %v", j.name(), err)
		}
	}
	j.before = map[string]uint32{}
	if !j.op.bare {
		for i := range j.op.slots {
			j.before[rig.Slot(i)] = w.Gen(rig.Slot(i)).Counter
		}
	}
	var err error
	w.T = v
	j.points = j.record(&w, false, func() { err = j.op.do(w.Rig) })
	w.T = t
	if err != nil {
		t.Fatalf("%s: %v", j.name(), err)
	}
	end := j.take(&w)
	end.acked = true
	j.points = append(j.points, end)
	w.Stop()
	w.Check()
	j.base = w.Rig
	j.run, j.state = map[path]struct{}{}, map[uint64]struct{}{}
}

func (j *job) take(w *world) point {
	p := point{world: w.W.Snapshot()}
	if w.m != nil {
		p.memory = w.m.copied()
	}
	p.writing = p.world.Writing() || w.m.writing()
	return p
}

// record keeps every instant of f at which a cut makes a difference.
func (j *job) record(w *world, acked bool, f func()) []point {
	var mu sync.Mutex // buses pass positions at the same time
	var points []point
	at := func() {
		p := j.take(w)
		p.acked = acked
		mu.Lock()
		defer mu.Unlock()
		points = append(points, p)
		j.together(w)
	}
	w.W.OnPosition(func(sim.Position) { at() })
	if w.m != nil {
		w.m.hook = at
	}
	defer func() {
		w.W.OnPosition(nil)
		if w.m != nil {
			w.m.hook = nil
		}
	}()
	f()
	return points
}

// together: no link of a set is enabled while another slot's page is of another
// group.
func (j *job) together(w *world) {
	if j.op.loose || j.op.slots == 1 {
		return
	}
	linked := uint16(0)
	for i := range j.op.slots {
		if st := w.W.Slot(rig.Slot(i)).State(); st.Control&ee.CtlLink != 0 {
			linked = st.Block.Group
		}
	}
	for i := range j.op.slots {
		b, err := ee.DecodeBlock(w.W.Chip(rig.Slot(i)).Peek(0, ee.BlockSize))
		if linked != 0 && (err != nil || b.Group != linked) {
			w.T.Errorf("a link of the set is on with group %d, and %s has group %d, %v", linked, rig.Slot(i), b.Group, err)
			return
		}
	}
}

// fork goes on from p, without an agent.
func (j *job) fork(p point, t testing.TB) *world {
	w := &world{Rig: j.base.Fork(p.world), done: func() {}}
	w.T = t
	if p.memory != nil {
		w.m = p.memory.copied()
	}
	w.connect()
	w.done = j.place(&w.Config, w.m)
	return w
}

// cut takes the power at p, and looks at what the next agent makes of it. With
// deep it returns the instants of the recovery. A world that is the same, to the
// bit, as one that was recovered is counted and not recovered again.
func (j *job) cut(tb testing.TB, p point, at path, last uint32, deep bool) (points []point) {
	v := &watcher{TB: tb}
	w := j.fork(p, v)
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(stopped); !ok {
				v.Errorf("panic: %v", r)
			}
		}
		w.Stop()
		w.done()
		for _, f := range v.fails {
			if j.known(w, at) {
				j.accepted++
				break
			}
			j.broken = append(j.broken, fmt.Sprintf("-run %s -medium %s -position %s: %s", j.op.name, j.medium.name, at, f))
		}
		j.count(at)
	}()
	for b := range j.op.buses {
		w.W.Bus(fmt.Sprintf("bus%d", b)).ClearFaults()
	}
	kind := (last - 1) & 31
	if kind == loadCut {
		j.cutLoading(w)
	} else {
		t := sim.Tear{Kind: tears[kind].kind, Unstable: tears[kind].unstable, Seed: uint64(last)}
		w.W.SetTear(t)
		w.W.PowerCut()
		if w.m != nil {
			w.m.powerCut(t, w.W.Now())
		}
	}
	w.W.ClearRecord() // the clean run has been looked at
	var h maphash.Hash
	h.SetSeed(seed)
	w.W.Fingerprint(&h)
	w.m.fingerprint(&h)
	maphash.WriteComparable(&h, p.acked)
	sum := h.Sum64()
	if _, known := j.state[sum]; known && !deep {
		return nil
	}
	j.state[sum] = struct{}{}
	j.recovered++
	pages := j.blocks(w)
	up := func() { w.PowerUp() }
	if deep {
		points = j.record(w, p.acked, up)
	} else {
		up()
	}
	j.check(w, p.acked, pages)
	if j.recovered%64 == 0 {
		j.quiet(w)
	}
	return points
}

// known is the one fault that the campaign has found and that is not mended. On
// NOR a recovery voids the page that it has written anew. Cut in that, the page
// is taken for one whose records are lost (nvm.Report.Lost), since it stands
// before the newest batch. Where a config block is torn by the cut before, nobody
// is believed to have the slot, and it comes back free instead of held.
func (j *job) known(w *world, at path) bool {
	if j.medium.name != "nor" || at[1] == 0 || w.E == nil {
		return false
	}
	events, _ := w.E.Events(0)
	return slices.ContainsFunc(events, func(e enclosure.Event) bool {
		return e.Kind == "recovery" && strings.Contains(e.Text, "the store lost records, and the config block is no good")
	})
}

var seed = maphash.MakeSeed()

// cutLoading takes the power twice: as the path says with the page half written,
// and while the engines load, which is when the agent starts and both are
// masters of the chips.
func (j *job) cutLoading(w *world) {
	t := sim.Tear{Kind: sim.TearHalf}
	w.W.SetTear(t)
	w.W.PowerCut()
	if w.m != nil {
		w.m.powerCut(t, w.W.Now())
	}
	var gone time.Time // the world is locked while it tells
	w.W.OnCut(func() { gone = time.Now() })
	time.Sleep(time.Second)
	w.W.Slot("gpu0").CutDuringLoad()
	w.W.SetTear(t)
	w.W.PowerOn()
	w.Start(enclosure.Options{})
	time.Sleep(time.Second)
	w.Stop()
	if w.W.Powered() {
		w.T.Fatalf("power did not go while the engine loads")
	}
	if w.m != nil {
		w.m.powerCut(t, w.W.Now()-time.Since(gone))
	}
}

// count notes a cut that was looked at.
func (j *job) count(at path) {
	if _, twice := j.run[at]; twice {
		return
	}
	j.run[at] = struct{}{}
	torn, unstable := false, false
	for i, v := range at {
		if v == 0 {
			break
		}
		k := (v - 1) & 31
		torn = torn || k != loadCut && k > 0
		unstable = unstable || k != loadCut && tears[k].unstable > 0
		if i == 1 {
			j.double++
		}
	}
	if torn {
		j.torn++
	}
	if unstable {
		j.unstable++
	}
}

// blocks are the generations that the engines' pages have.
func (j *job) blocks(w *world) map[string]uint32 {
	m := map[string]uint32{}
	for i := range j.op.slots {
		if b, err := ee.DecodeBlock(w.W.Chip(rig.Slot(i)).Peek(0, ee.BlockSize)); err == nil {
			m[rig.Slot(i)] = b.Generation.Counter
		}
	}
	return m
}

// check looks at the agent that came up, and from the model's side at what it
// has done.
func (j *job) check(w *world, acked bool, pages map[string]uint32) {
	st := w.E.Status(w.Ctx())
	if !st.Store.OK {
		w.T.Fatalf("store: %s", st.Store.Problem)
	}
	if !j.op.bare && !w.Host(rig.C).Fenced {
		w.T.Errorf("the fence of %s is lost", rig.C)
	}
	look := j.op.look
	if look == nil {
		look = where
	}
	got, want := look(w.Rig), j.op.want
	if acked {
		want = want[len(want)-1:]
	}
	ok := false
	for _, s := range want {
		ok = ok || s == got
	}
	if !ok {
		w.T.Errorf("found %q; want one of %q (acknowledged %v)", got, want, acked)
	}
	fenced := map[string]bool{}
	for _, h := range st.Hosts {
		fenced[h.Name] = h.Fenced
	}
	servers := w.W.Spec().Servers
	first := ""
	for i, s := range w.E.Status(w.Ctx()).Slots {
		if i == 0 {
			first = s.Host
		}
		if !j.op.loose {
			if s.Problem != "" || s.Blocked != "" {
				w.T.Errorf("%s: problem %q, blocked %q", s.Name, s.Problem, s.Blocked)
			}
			if s.Host == "" && !s.Held {
				w.T.Errorf("%s is free; want held for its VM", s.Name)
			}
			if s.Host != first {
				w.T.Errorf("%s is with %q, the first of the set with %q", s.Name, s.Host, first)
			}
		}
		if c := s.Generation.Counter; s.Problem == "" && (c < j.before[s.Name] || c < pages[s.Name]) {
			w.T.Errorf("%s: generation %d went back from %d, page %d", s.Name, c, j.before[s.Name], pages[s.Name])
		}
		group := uint16(ee.GroupFree)
		for _, h := range servers {
			if h.Name == s.Host {
				group = h.Group
			}
			reach := w.W.Server(h.Name).Reach(s.Name)
			switch {
			case reach != (h.Name == s.Host):
				w.T.Errorf("%s reaches %s: %v; the agent says it is with %q", h.Name, s.Name, reach, s.Host)
			case reach && fenced[h.Name]:
				w.T.Errorf("%s is fenced and reaches %s", h.Name, s.Name)
			}
		}
		if b, err := ee.DecodeBlock(w.W.Chip(s.Name).Peek(0, ee.BlockSize)); s.Problem == "" && (err != nil || b.Group != group || b.Generation != s.Generation || b.Flags&ee.FlagTarget != 0) {
			w.T.Errorf("%s: its page has group %d, generation %s, flags %#x, %v; want group %d, generation %s, no target", s.Name, b.Group, b.Generation, b.Flags, err, group, s.Generation)
		}
		if v := w.Verdict(s.Name); v.Preserved == plan.Yes {
			w.T.Errorf("%s: verdict yes after a power cut", s.Name)
		}
	}
	w.Check()
}

// quiet: another agent finds nothing to do.
func (j *job) quiet(w *world) {
	count := func() (n uint64) {
		for _, c := range w.W.Spec().Chips {
			n += w.W.PageWrites(c.Name)
		}
		for i := range j.op.slots {
			n += w.W.Slot(rig.Slot(i)).RegisterWrites()
		}
		if w.m != nil {
			n += w.m.count
		}
		return n
	}
	before := count()
	w.Restart()
	if n := count() - before; n > 0 {
		w.T.Errorf("the next agent wrote %d times; want nothing to do", n)
	}
	w.Check()
}
