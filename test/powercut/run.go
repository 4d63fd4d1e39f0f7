package powercut

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slice is how much of a campaign is run.
type slice struct {
	singles int           // cuts of each operation on each medium; 0 = all there are
	doubles int           // cuts of recoveries, of each
	until   time.Duration // go on cutting recoveries for so long; 0 = do not
	workers int
}

// campaign is all jobs.
type campaign struct {
	jobs    []*job
	took    time.Duration
	mu      sync.Mutex
	first   bool // end with the first violation
	found   bool
	clean   int // jobs below have been given to a worker
	turn    int
	started time.Time
}

func newCampaign(op, med string) *campaign {
	c := &campaign{}
	for _, o := range ops {
		for _, m := range media {
			if (op == "" || op == o.name) && (med == "" || med == m.name) && !(m.shared && o.name == "adopt-blank") {
				c.jobs = append(c.jobs, &job{op: o, medium: m})
			}
		}
	}
	return c
}

// execute runs the campaign. Each worker is in a bubble of its own.
func (c *campaign) execute(t *testing.T, s slice) {
	c.started = time.Now()
	t.Run("workers", func(t *testing.T) {
		for i := range max(1, s.workers) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				c.each(t, func() *job {
					c.mu.Lock()
					defer c.mu.Unlock()
					if c.clean == len(c.jobs) || c.first && c.found {
						return nil
					}
					c.clean++
					return c.jobs[c.clean-1]
				}, func(t *testing.T, j *job) {
					// A worker that finds none left may look at this one already.
					j.mu.Lock()
					defer j.mu.Unlock()
					j.prepare(t)
					j.singles(t, s.singles)
					j.doubles(t, s.doubles)
				})
				c.each(t, func() *job {
					c.mu.Lock()
					defer c.mu.Unlock()
					if time.Since(c.started) >= s.until || c.first && c.found {
						return nil
					}
					c.turn++
					return c.jobs[c.turn%len(c.jobs)]
				}, func(t *testing.T, j *job) { j.lock(func() { j.doubles(t, -1) }) })
			})
		}
	})
	c.took = time.Since(c.started)
}

// each gives do, in a bubble, what get returns.
func (c *campaign) each(t *testing.T, get func() *job, do func(*testing.T, *job)) {
	for j := get(); j != nil; j = get() {
		synctest.Test(t, func(t *testing.T) { do(t, j) })
		c.mu.Lock()
		c.found = c.found || len(j.broken) > 0
		c.mu.Unlock()
	}
}

// lock keeps workers off each other's jobs: one that is taken is left out.
func (j *job) lock(f func()) {
	if j.mu.TryLock() {
		defer j.mu.Unlock()
		f()
	}
}

// kinds are the tears that make a difference at p.
func (p point) kinds() []int {
	if !p.writing {
		return []int{0}
	}
	all := make([]int, len(tears))
	for i := range all {
		all[i] = i
	}
	return all
}

// singles cuts the operation: at all positions, or at so many cases.
func (j *job) singles(t testing.TB, most int) {
	var all []uint32
	for i, p := range j.points {
		for _, k := range p.kinds() {
			all = append(all, step(i, k))
		}
		if p.writing {
			all = append(all, step(i, loadCut))
		}
	}
	j.cases = len(all)
	some := spread(all, most)
	end := len(j.points) - 1 // what was acknowledged is cut in all ways
	for _, v := range all {
		if most > 0 && int(v-1)>>5 == end && !slices.Contains(some, v) {
			some = append(some, v)
		}
	}
	for _, v := range some {
		p, at := j.points[(v-1)>>5], path{v}
		known := len(j.state)
		j.cut(t, p, at, v, false)
		if len(j.state) > known {
			j.order = append(j.order, at)
		}
	}
	// Recoveries are cut in an order that goes all over the operation.
	r := uint64(len(j.order))
	for i := range j.order {
		k := i + int(next(&r)%uint64(len(j.order)-i))
		j.order[i], j.order[k] = j.order[k], j.order[i]
	}
}

// spread picks n of all, evenly, the last one always; 0 = all of them.
func spread[T any](all []T, n int) []T {
	if n <= 0 || n >= len(all) {
		return all
	}
	out := make([]T, n)
	for i := range out {
		out[i] = all[(i+1)*len(all)/n-1]
	}
	return out
}

// doubles cuts the recovery from the next single; at so many cases, or, below 0,
// at all. Of every fiftieth the recovery is cut, too, at a few.
func (j *job) doubles(t testing.TB, most int) {
	if most == 0 || j.next >= len(j.order) {
		return
	}
	at := j.order[j.next]
	j.next++
	v := at[0]
	points := j.cut(t, j.points[(v-1)>>5], at, v, true)
	j.deeper(t, points, at, 1, most)
}

func (j *job) deeper(t testing.TB, points []point, at path, depth, most int) {
	var all []uint32
	for i, p := range points {
		for _, k := range p.kinds() {
			all = append(all, step(i, k))
		}
	}
	for n, v := range spread(all, most) {
		at := at
		at[depth] = v
		third := depth == 1 && n%50 == 25
		below := j.cut(t, points[(v-1)>>5], at, v, third)
		if third {
			j.deeper(t, below, at, 2, 20)
		}
	}
}

// totals are those of the last line.
type totals struct {
	cuts, torn, unstable, double, states, known int
	broken                                      []string
}

func (c *campaign) totals() (n totals) {
	for _, j := range c.jobs {
		n.cuts += len(j.run)
		n.torn += j.torn
		n.unstable += j.unstable
		n.double += j.double
		n.states += len(j.state)
		n.known += j.accepted
		n.broken = append(n.broken, j.broken...)
	}
	return n
}

// print writes what was cut of each operation on each medium, violations, and
// the line that ends a campaign.
func (c *campaign) print(out io.Writer) {
	fmt.Fprintf(out, "%-17s %-12s %9s %9s %9s %9s %9s %9s\n", "operation", "medium", "positions", "cuts", "torn", "unstable", "double", "recovered")
	for _, j := range c.jobs {
		fmt.Fprintf(out, "%-17s %-12s %9d %9d %9d %9d %9d %9d\n", j.op.name, j.medium.name, len(j.points), len(j.run), j.torn, j.unstable, j.double, len(j.state))
	}
	n := c.totals()
	for _, b := range n.broken[:min(len(n.broken), 20)] {
		fmt.Fprintln(out, "violation: "+b)
	}
	fmt.Fprintf(out, "%d different states were recovered from; every other cut left one of them, bit by bit\n", n.states)
	fmt.Fprintf(out, "%d cuts met the known fault of NOR (docs/powercut.md), and count as violations\n", n.known)
	fmt.Fprintf(out, "powercut: cuts=%d torn=%d unstable=%d double=%d violations=%d seconds=%.0f\n", n.cuts, n.torn, n.unstable, n.double, len(n.broken)+n.known, c.took.Seconds())
}

// reproduce cuts once more as a path says, in the words of path.String.
func (c *campaign) reproduce(t *testing.T, at path) {
	j := c.jobs[0]
	synctest.Test(t, func(t *testing.T) {
		j.prepare(t)
		points := j.points
		for d := range at {
			if at[d] == 0 {
				return
			}
			i := int(at[d]-1) >> 5
			if i >= len(points) {
				t.Fatalf("%s has %d positions, not %d", j.name(), len(points), i)
			}
			var sofar path
			copy(sofar[:], at[:d+1])
			points = j.cut(t, points[i], sofar, at[d], true)
		}
	})
	c.took = 0
}

// parsePath reads what path.String has written.
func parsePath(s string) (at path, err error) {
	for d, part := range strings.Split(s, "/") {
		var i int
		var name string
		if _, err := fmt.Sscanf(part, "%d.%s", &i, &name); err != nil || d >= len(at) {
			return at, fmt.Errorf("position %q: want N.TEAR, at most three of them with / between", s)
		}
		k := slices.IndexFunc(tears, func(t tear) bool { return t.String() == name })
		if name == "load" {
			k = loadCut
		}
		if k < 0 {
			return at, fmt.Errorf("no tear %q: %v, or load", name, tears)
		}
		at[d] = step(i, k)
	}
	return at, nil
}
