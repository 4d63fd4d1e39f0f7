package main

import (
	"context"
	"strings"
	"sync"
	"time"
)

// wellness is how the agent is, as PID 1 sees it.
type wellness int

const (
	ended     wellness = iota // it is not running, and is started again after a pause
	young                     // it runs, has not answered yet, and was started less than youngTime ago
	starting                  // it answers that it starts
	well                      // it answers that all is well
	storeless                 // it answers that all is well but its store, which can not be used
	stuck                     // it answers that one of its loops hangs
	silent                    // it runs and does not answer
)

// youngTime is how long a new process may take to its first answer.
const youngTime = 30 * time.Second

// answers is the table of what follows for the watchdog.
//
// An agent that has ended is no reason to restart the board: PID 1 starts it
// again by itself, a restart of the board does the same with a worse chance,
// and takes the console from whoever is mending the configuration. Nor is a
// store, which a restart does not mend. An agent that hangs is: nobody knows
// what it holds, in the kernel perhaps, so the board starts anew as a whole.
var answers = [...]struct {
	name string
	feed bool
}{
	ended:     {"not running", true},
	young:     {"starting", true},
	starting:  {"starting", true},
	well:      {"ok", true},
	storeless: {"ok, its store is not usable", true},
	stuck:     {"stuck", false},
	silent:    {"does not answer", false},
}

func (w wellness) String() string { return answers[w].name }

// judge makes a wellness of what is known of a process: whether it runs, whether
// it has answered before, how long it has run, and what it answered, "" =
// nothing.
func judge(running, before bool, ran time.Duration, answer string) wellness {
	word, rest, _ := strings.Cut(answer, " ")
	switch {
	case !running:
		return ended
	case word == "ok" && rest == "":
		return well
	case word == "ok":
		return storeless
	case word == "starting":
		return starting
	case word == "stuck":
		return stuck
	case answer == "" && !before && ran < youngTime:
		return young
	}
	return silent
}

// health is how the agent is, and since when.
type health struct {
	is    wellness
	text  string // as it said
	pid   int
	since time.Time // another process counts anew
}

// dog is a watchdog that is armed.
type dog interface {
	feed() error
	timeout() time.Duration
}

// guard asks the agent how it is, feeds the watchdog by that, and lets others
// know.
type guard struct {
	look   func() process
	report *report
	say    func(format string, args ...any)

	mu     sync.Mutex
	dog    dog // nil = none
	latest health

	pid      int  // of the process that answered last
	ready    int  // of the process that was said to be ready
	misses   int  // questions in a row after which the watchdog was not fed
	told     bool // it was said that it is not
	failed   bool // the watchdog did not take its food
	fed      time.Time
	reported time.Time
}

// await waits until the agent serves, or waits itself for what is loaded late;
// or until ctx ends.
func (g *guard) await(ctx context.Context) {
	tick := time.NewTicker(youngEvery)
	defer tick.Stop()
	for !g.health().apart() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// apart tells that the agent gains nothing from having the processors for itself.
func (h health) apart() bool {
	switch h.is {
	case ended, young:
		return false
	case starting:
		return strings.HasPrefix(h.text, "starting "+waitsFor)
	}
	return true
}

// waitsFor begins what the agent says while it waits for a device.
const waitsFor = "waits for "

// guardEvery is how often the agent is asked, or more often where the watchdog
// wants it.
const guardEvery = 5 * time.Second

// every is a third of the watchdog's time at most.
func (g *guard) every() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dog == nil {
		return guardEvery
	}
	return min(guardEvery, g.dog.timeout()/3)
}

// arm has the guard feed d from now on.
func (g *guard) arm(d dog) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dog = d
}

// health is the last judgement.
func (g *guard) health() health {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.latest
}

// run guards until ctx ends. What it waits for an answer counts into its turn.
func (g *guard) run(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		begin, every := time.Now(), g.every()
		g.once(every / 2)
		pause := every
		switch h := g.health(); {
		case h.is == young || h.is == starting:
			// Who waits for it to be ready need not wait longer.
			pause = min(every, youngEvery)
		case h.is == silent:
			pause = every / 2 // which has passed where it was waited for an answer
		}
		t.Reset(max(0, pause-time.Since(begin)))
	}
}

const (
	youngEvery = 200 * time.Millisecond
	youngAsked = 500 * time.Millisecond // longest wait for the first answer
)

// once asks once, and waits no longer than patience.
func (g *guard) once(patience time.Duration) {
	p := g.look()
	answer := ""
	if p.line != nil {
		if p.pid == g.pid {
			answer, _ = p.line.ask(patience) // of one that has just ended nothing comes
		} else {
			answer, _ = p.line.ask(min(patience, youngAsked))
		}
		if answer != "" {
			g.pid = p.pid
		}
		if q := g.look(); q.pid != p.pid { // it ended meanwhile
			p, answer = q, ""
		}
	}
	is := judge(p.pid != 0, p.pid == g.pid, time.Since(p.started), answer)
	g.mu.Lock()
	was := g.latest
	if was.is != is || was.pid != p.pid || was.since.IsZero() {
		g.latest.since = time.Now()
	}
	g.latest.is, g.latest.text, g.latest.pid = is, answer, p.pid
	now, d := g.latest, g.dog
	g.mu.Unlock()
	g.act(d, now)
	if (is == well || is == storeless) && p.pid != g.ready {
		g.ready = p.pid
		g.say("the agent is ready, and %s", is)
	}
	if was.is == is && was.text == answer && was.pid == p.pid && time.Since(g.reported) < guardEvery {
		return
	}
	g.reported = time.Now()
	g.report.update(func(s *state) {
		s.Agent = agentState{PID: p.pid, Restarts: p.restarts, Health: is.String(), Text: answer, SinceS: seconds(time.Since(now.since))}
		if s.Watchdog != nil {
			s.Watchdog.Fed = d != nil && g.misses == 0 && !g.failed
		}
	})
}

// act feeds the watchdog, or does not, and says when that changes. One answer
// that does not come in time is not spoken of: a machine may be that busy.
func (g *guard) act(d dog, now health) {
	feed := answers[now.is].feed
	g.misses++
	if feed {
		g.misses = 0
	}
	if d != nil && feed {
		err := d.feed()
		if err != nil && !g.failed {
			g.say("watchdog: it does not take its food, and restarts the board in %v at most: %v", d.timeout(), err)
		}
		g.failed = err != nil
		g.fed = time.Now()
	}
	told := g.misses >= 2 || g.misses == 1 && now.is != silent
	if told == g.told {
		return
	}
	g.told = told
	what := "the agent is " + now.is.String()
	switch now.is {
	case stuck:
		what = "the agent is " + now.text
	case silent:
		what = "the agent " + now.is.String()
	}
	switch {
	case feed:
		g.say("%s: the watchdog is fed again", what)
	case d == nil:
		g.say("%s; there is no watchdog to restart the board: 'reboot' does", what)
	default:
		g.say("%s: the watchdog is not fed, and restarts the board in %v unless it comes back", what, (d.timeout() - time.Since(g.fed)).Round(time.Second))
	}
}
