package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// phase is how far an operation had come when the agent was killed, by what
// the model saw.
type phase string

const (
	beforeIntent phase = "before intent"    // the store has nothing of it
	toCommit     phase = "intent to commit" // in the store; not all config blocks are written
	links        phase = "links"            // all are written; not all links are as they shall be
	afterwards   phase = "after"            // all is done, the client may not know
)

var phases = []phase{beforeIntent, toCommit, links, afterwards}

// progress is what a phase is told by.
type progress struct {
	intent  bool // the store was written since the request
	blocks  int  // config blocks that were written since
	of      int  // slots that the operation is about; 0 = it writes the store alone
	links   bool // it ends with links, which are not all there
	replied bool // the client has its answer
}

func (p progress) phase() phase {
	switch {
	case p.replied:
		return afterwards
	case !p.intent && p.blocks == 0:
		return beforeIntent
	case p.blocks < p.of:
		return toCommit
	case p.links:
		return links
	}
	return afterwards
}

// kill is one run.
type kill struct {
	scene  string // "planned move of 8 slots"
	op     string // that the kill struck
	slots  int
	how    string // the instant
	after  time.Duration
	phase  phase
	mishap string        // that happened while there was no agent
	back   time.Duration // from the start of the next agent until all was as it shall be
	wrong  []string
}

func (k kill) String() string {
	s := fmt.Sprintf("%s, killed in %s %s (%v), %s", k.scene, k.op, k.how, k.after.Round(100*time.Microsecond), k.phase)
	if k.mishap != "" {
		s += ", then " + k.mishap
	}
	return s
}

// result is what came of all runs. It is safe for concurrent use.
type result struct {
	mu    sync.Mutex
	runs  int
	hits  map[string]map[phase]int // by operation
	back  []time.Duration
	wrong []string

	stalled int // runs that show nothing
}

func newResult() *result { return &result{hits: map[string]map[phase]int{}} }

func (r *result) add(k kill) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs++
	r.wrong = append(r.wrong, k.wrong...)
	if k.phase == "" {
		return // it did not come to the kill
	}
	if r.hits[k.op] == nil {
		r.hits[k.op] = map[phase]int{}
	}
	r.hits[k.op][k.phase]++
	if k.back > 0 {
		r.back = append(r.back, k.back)
	}
}

func (r *result) bad() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.wrong)
}

// void counts a run that shows nothing, and is done again.
func (r *result) void() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stalled++
	return r.stalled
}

// has tells in which phases an operation can be killed.
func has(op string, p phase) bool {
	switch op {
	case "move", "attach":
		return true
	case "fence", "release": // they end with no link
		return p != links
	case "arm", "ack": // what is recorded is done, but for registers
		return p == beforeIntent || p == afterwards
	}
	return false
}

// ops are those that are killed.
var ops = []string{"move", "attach", "arm", "ack", "fence", "release"}

// missed lists phases that no kill has hit.
func (r *result) missed() (names []string) {
	for _, op := range ops {
		for _, p := range phases {
			if has(op, p) && r.hits[op][p] == 0 {
				names = append(names, op+", "+string(p))
			}
		}
	}
	return names
}

// table is where the kills have struck.
func (r *result) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s", "killed in")
	for _, p := range phases {
		fmt.Fprintf(&b, "%18s", p)
	}
	b.WriteByte('\n')
	for _, op := range ops {
		if r.hits[op] == nil {
			continue
		}
		fmt.Fprintf(&b, "%-10s", op)
		for _, p := range phases {
			n := fmt.Sprint(r.hits[op][p])
			if !has(op, p) && n == "0" {
				n = "-"
			}
			fmt.Fprintf(&b, "%18s", n)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// recovery is how long agents took until all was as it shall be.
func (r *result) recovery() string {
	if len(r.back) == 0 {
		return "nothing"
	}
	slices.Sort(r.back)
	at := func(q int) time.Duration { return r.back[(len(r.back)-1)*q/100].Round(time.Millisecond) }
	return fmt.Sprintf("%v (median), %v (p99), %v (most)", at(50), at(99), at(100))
}
