package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/server/servertest"

	"github.com/google/go-cmp/cmp"
)

// texts watches until n events have come.
func texts(t *testing.T, c *mgmt.Client, after string, n int) (got []string, last string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	enough := errors.New("enough")
	err := c.Watch(ctx, after, func(e mgmt.Event) error {
		if e.ID != "" {
			last = e.ID
		}
		if got = append(got, e.Kind+": "+e.Text); len(got) == n {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatalf("Watch: %v after %q", err, got)
	}
	return got, last
}

func TestEvents(t *testing.T) {
	f := servertest.New()
	_, c := start(t, f)
	f.Note(enclosure.Event{Kind: "arm", Slot: "gpu0", VM: "train1", Text: "one", By: "uid 0"})

	// Without a stream: what is there.
	evs, err := c.Events(t.Context(), "")
	if err != nil || evs.Gap || len(evs.Events) != 2 {
		t.Fatalf("Events = %+v, %v", evs, err)
	}
	one := evs.Events[1]
	if one.Kind != "arm" || one.Slot != "gpu0" || one.VM != "train1" || one.By != "uid 0" || !strings.HasSuffix(one.ID, ".2") {
		t.Errorf("event %+v", one)
	}
	// After a number of this run, and after an ID.
	for _, after := range []string{"1", evs.Events[0].ID} {
		some, err := c.Events(t.Context(), after)
		if diff := cmp.Diff(mgmt.Events{Events: []mgmt.Event{one}}, some); err != nil || diff != "" {
			t.Errorf("after %s: %v\n%s", after, err, diff)
		}
	}

	// A stream: what is there, then what comes, and on from the last one seen.
	go func() {
		time.Sleep(20 * time.Millisecond)
		f.Note(enclosure.Event{Kind: "fence", Text: "two\nlines"})
	}()
	got, last := texts(t, c, "", 3)
	if want := []string{"recovery: 4 slots read back; nothing had to be done", "arm: one", "fence: two\nlines"}; !slices.Equal(got, want) {
		t.Errorf("stream %q; want %q", got, want)
	}
	f.Note(enclosure.Event{Kind: "unfence", Text: "three"})
	if got, _ = texts(t, c, last, 1); !slices.Equal(got, []string{"unfence: three"}) {
		t.Errorf("resumed: %q", got)
	}

	// Behind the ring, or of another run of the agent: the gap is told.
	for i := range servertest.Ring {
		f.Note(enclosure.Event{Kind: "step", Text: fmt.Sprint(i)})
	}
	for _, after := range []string{last, "deadbeef.70"} {
		got, _ := texts(t, c, after, 2)
		if want := []string{"gap: events before this are lost", "step: 0"}; !slices.Equal(got, want) {
			t.Errorf("after %s: %q; want %q", after, got, want)
		}
		if evs, err := c.Events(t.Context(), after); err != nil || !evs.Gap || len(evs.Events) != servertest.Ring {
			t.Errorf("after %s: gap %v, %d events, %v", after, evs.Gap, len(evs.Events), err)
		}
	}
}

// TestGapAfterRestart: a watcher that goes on after the agent was started again
// is told that it may have missed something, and then of all that the new run
// has.
func TestGapAfterRestart(t *testing.T) {
	f := servertest.New()
	f.Note(enclosure.Event{Kind: "arm", Text: "one"})
	_, c := start(t, f)
	_, last := texts(t, c, "", 2)

	_, c = start(t, servertest.New())
	got, _ := texts(t, c, last, 2)
	if want := []string{"gap: events before this are lost", "recovery: 4 slots read back; nothing had to be done"}; !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
	// So is one that quotes a bare number of the run before.
	got, _ = texts(t, c, "2", 2)
	if got[0] != "gap: events before this are lost" {
		t.Errorf("after 2, where there is only 1: %q", got)
	}
	if evs, err := c.Events(t.Context(), "1"); err != nil || evs.Gap || len(evs.Events) != 0 {
		t.Errorf("after the newest: %+v, %v", evs, err)
	}
}

// TestBehind: a watcher that is more than a batch behind gets all, in order.
func TestBehind(t *testing.T) {
	f := servertest.New()
	_, c := start(t, f)
	var want []string
	for i := range servertest.Ring {
		text := fmt.Sprintf("%d %s", i, strings.Repeat("x", 100*(i%3)))
		f.Note(enclosure.Event{Kind: "step", Text: text})
		want = append(want, "step: "+text)
	}
	if got, _ := texts(t, c, "1", len(want)); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestWatchers: their number is bounded, and places come back.
func TestWatchers(t *testing.T) {
	_, c := start(t, servertest.New())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun, ended := make(chan struct{}, maxWatchers), make(chan error, maxWatchers)
	for range maxWatchers {
		go func() {
			ended <- c.Watch(ctx, "", func(mgmt.Event) error { begun <- struct{}{}; return nil })
		}()
	}
	for range maxWatchers {
		<-begun
	}
	err := c.Watch(ctx, "", func(mgmt.Event) error { return nil })
	var p *mgmt.Problem
	if !errors.As(err, &p) || p.Code != "overloaded" || !p.Retry {
		t.Errorf("one too many: %v", err)
	}
	cancel()
	for range maxWatchers {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a watcher ended with %v", err)
		}
	}
	stop := errors.New("stop")
	for range 100 {
		if err = c.Watch(t.Context(), "", func(mgmt.Event) error { return stop }); errors.Is(err, stop) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("places did not come back: %v", err)
}
