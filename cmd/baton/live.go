package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// live tells that something goes on: on a terminal as one line that is
// rewritten and goes away, else, and on a serial console, as a plain line now
// and then.
type live struct {
	w       io.Writer
	rewrite bool

	mu    sync.Mutex
	shown bool // a line that has to go
}

func newLive(stderr io.Writer) *live {
	f, ok := stderr.(*os.File)
	return &live{w: stderr, rewrite: ok && term.IsTerminal(int(f.Fd())) && !serial(f)}
}

// around has fn write, with the line out of the way.
func (l *live) around(fn func() (int, error)) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.erase()
	return fn()
}

// erase is called under mu.
func (l *live) erase() {
	if l.shown {
		fmt.Fprintf(l.w, "\r%*s\r", width-1, "")
		l.shown = false
	}
}

func (l *live) show(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.rewrite {
		fmt.Fprintln(l.w, wrap("baton: "+line, 2))
		return
	}
	fmt.Fprintf(l.w, "\r%-*s", width-1, line[:min(len(line), width-1)])
	l.shown = true
}

// serial: what is sent there is kept in logs and read at 115200 Bd.
func serial(f *os.File) bool {
	switch kind, _, _ := strings.Cut(os.Getenv("TERM"), "-"); kind {
	case "", "dumb", "vt100", "vt102", "vt220":
		return true
	}
	dev, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return false
	}
	for _, p := range []string{"/dev/ttyS", "/dev/ttyAMA", "/dev/ttyUSB", "/dev/ttyACM", "/dev/console", "/dev/hvc"} {
		if strings.HasPrefix(dev, p) {
			return true
		}
	}
	return false
}

// When a wait is worth a word.
const (
	liveFirst = time.Second
	liveAgain = 10 * time.Second // between plain lines
)

// asking is what a question to an agent does that is slow to answer.
const asking = "waiting for the agent's answer"

// wait runs fn, and says what it does and how long it has taken once that is
// more than a second. With JSON it keeps still.
func (t *tool) wait(ctx context.Context, what string, fn func(ctx context.Context) error) error {
	if t.json {
		return fn(ctx)
	}
	stop := t.live.begin(what)
	defer stop()
	return fn(ctx)
}

// begin shows what, until the function it returns is called.
func (l *live) begin(what string) (stop func()) {
	what = string(printable([]byte(what)))
	again := liveAgain
	if l.rewrite {
		again = liveFirst
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		began := time.Now()
		next := time.NewTimer(liveFirst)
		defer next.Stop()
		for {
			select {
			case <-done:
				_, _ = l.around(func() (int, error) { return 0, nil })
				return
			case <-next.C:
			}
			l.show(fmt.Sprintf("%s: %s so far", what, age(time.Since(began).Milliseconds())))
			next.Reset(again)
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}
