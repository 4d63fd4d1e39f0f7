package powercut

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var (
	long     = flag.Duration("powercut.for", 0, "run the whole campaign, and go on cutting recoveries for so long")
	atLeast  = flag.Int("powercut.min", 0, "fail where there were fewer cuts")
	onlyOp   = flag.String("powercut.run", "", "this operation alone")
	onlyMed  = flag.String("powercut.medium", "", "this medium alone")
	position = flag.String("powercut.position", "", "this cut alone, as a violation names it")
	first    = flag.Bool("powercut.first", false, "end with the first violation; the floor of the coverage is not asked for")
	update   = flag.Bool("powercut.update", false, "write the floor of the coverage anew")
	workers  = flag.Int("powercut.workers", 2, "how many cut at the same time")
)

// last is printed when all else has been said.
var last strings.Builder

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // snapshots are many, small, and stay
	code := m.Run()
	fmt.Print(last.String())
	os.Exit(code)
}

// quick is what a test run can afford.
var quick = slice{singles: 24, doubles: 12, workers: 2}

// TestCampaign is a slice of the campaign, or with flags all of it.
func TestCampaign(t *testing.T) {
	c := newCampaign(*onlyOp, *onlyMed)
	c.first = *first
	s := quick
	s.workers = *workers
	if raceFactor > 0 {
		s.singles, s.doubles = 6, 3
	}
	switch {
	case len(c.jobs) == 0:
		t.Fatalf("no operation %q on a medium %q", *onlyOp, *onlyMed)
	case *position != "":
		at, err := parsePath(*position)
		if err != nil {
			t.Fatal(err)
		}
		c.reproduce(t, at)
	case *long > 0:
		c.execute(t, slice{until: *long, workers: *workers})
	default:
		c.execute(t, s)
	}
	n := c.totals()
	if *long > 0 || *position != "" || len(n.broken) > 0 {
		c.print(&last)
	}
	for _, b := range n.broken[:min(5, len(n.broken))] {
		t.Error(b)
	}
	if *long > 0 && n.known > 0 {
		t.Errorf("%d violations that are known", n.known)
	}
	if n.cuts < *atLeast {
		t.Errorf("%d cuts; want at least %d", n.cuts, *atLeast)
	}
	if *long == 0 && *position == "" && *onlyOp == "" && *onlyMed == "" && !*first && raceFactor == 0 {
		checkCoverage(t, c)
	}
	if path := os.Getenv("BATON_POWERCUT_FIGURES"); path != "" {
		text := fmt.Sprintf("%d %d %f", n.cuts, len(n.broken)+n.known, c.took.Seconds())
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d cuts, %d states, %d met the known fault of NOR, %v", n.cuts, n.states, n.known, c.took.Round(time.Millisecond))
}

// coverage is a line for each operation and medium: positions of its clean run,
// cuts and tears that these make, and what the slice has cut.
func coverage(c *campaign) map[string][3]int {
	m := map[string][3]int{}
	for _, j := range c.jobs {
		m[j.op.name+" "+j.medium.name] = [3]int{len(j.points), j.cases, len(j.run)}
	}
	return m
}

var floor = filepath.Join("testdata", "coverage.txt")

// checkCoverage fails where less is cut than was: an operation or a medium is
// gone, positions are no longer told of, or the slice was made smaller. What is
// meant to be less is written with -powercut.update.
func checkCoverage(t *testing.T, c *campaign) {
	t.Helper()
	got := coverage(c)
	if *update {
		var b strings.Builder
		for _, j := range c.jobs {
			n := got[j.op.name+" "+j.medium.name]
			fmt.Fprintf(&b, "%s %s %d %d %d\n", j.op.name, j.medium.name, n[0], n[1], n[2])
		}
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(floor, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(floor)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shrunk(string(text), got) {
		t.Error(s)
	}
}

// shrunk says what is less than the floor.
func shrunk(floor string, got map[string][3]int) (less []string) {
	for line := range strings.Lines(floor) {
		var op, med string
		var want [3]int
		if _, err := fmt.Sscan(line, &op, &med, &want[0], &want[1], &want[2]); err != nil {
			return []string{fmt.Sprintf("%q: %v", line, err)}
		}
		n, ok := got[op+" "+med]
		for i, what := range []string{"positions", "cases", "cuts"} {
			if n[i] < want[i] {
				less = append(less, fmt.Sprintf("%s on %s (run: %v): %d %s; there were %d", op, med, ok, n[i], what, want[i]))
			}
		}
	}
	return less
}

func TestShrunk(t *testing.T) {
	const floor = "fence nor 100 300 24\nmove nor 7 9 5\n"
	full := map[string][3]int{"fence nor": {100, 300, 24}, "move nor": {8, 9, 5}}
	if less := shrunk(floor, full); len(less) != 0 {
		t.Errorf("nothing is less: %v", less)
	}
	for name, got := range map[string]map[string][3]int{
		"operation gone":  {"move nor": {7, 9, 5}},
		"fewer positions": {"fence nor": {99, 300, 24}, "move nor": {7, 9, 5}},
		"fewer tears":     {"fence nor": {100, 299, 24}, "move nor": {7, 9, 5}},
		"smaller slice":   {"fence nor": {100, 300, 23}, "move nor": {7, 9, 5}},
	} {
		if less := shrunk(floor, got); len(less) == 0 {
			t.Errorf("%s: not noticed", name)
		}
	}
}

func TestPath(t *testing.T) {
	for _, want := range []string{"0.old", "12.per-byte+3/400.zeros", "1.load", "7.half/8.new+1/9.random"} {
		at, err := parsePath(want)
		if err != nil || at.String() != want {
			t.Errorf("parsePath(%q) = %s, %v", want, at, err)
		}
	}
	for _, bad := range []string{"", "x", "1", "1.torn", "1.old/2.old/3.old/4.old"} {
		if at, err := parsePath(bad); err == nil {
			t.Errorf("parsePath(%q) = %s; want an error", bad, at)
		}
	}
}
