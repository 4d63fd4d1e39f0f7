package server

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/server/servertest"
)

// TestLooks: who asks while a look is made, or fresh, gets that one; what
// changed ends it.
func TestLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l looks
		n := 0
		ask := func(seq uint64) string {
			return string(l.get(t.Context(), seq, func() []byte {
				n++
				text := fmt.Sprint(n)
				time.Sleep(10 * time.Millisecond)
				return []byte(text)
			}))
		}
		if l.fresh(1) != nil {
			t.Error("fresh before the first look")
		}
		var group sync.WaitGroup
		for range 10 {
			group.Go(func() {
				if got := ask(1); got != "1" {
					t.Errorf("at the same time: look %s; want 1", got)
				}
			})
		}
		synctest.Wait()
		if l.fresh(1) != nil {
			t.Error("fresh while it is made")
		}
		group.Wait()
		want := func(when string, seq uint64, want string) {
			t.Helper()
			if got := ask(seq); got != want {
				t.Errorf("%s: look %s; want %s", when, got, want)
			}
		}
		want("at once", 1, "1")
		if got := string(l.fresh(1)); got != "1" {
			t.Errorf("fresh: %q", got)
		}
		time.Sleep(lookAge - 10*time.Millisecond)
		want("50 ms after it began", 1, "1")
		time.Sleep(time.Nanosecond)
		if l.fresh(1) != nil {
			t.Error("fresh when it is old")
		}
		want("later", 1, "2")
		want("after an event", 2, "3")
		if l.fresh(1) != nil {
			t.Error("fresh for another sequence number")
		}
		l.changes.Add(1)
		want("after a change", 2, "4")

		// A change in the middle of a look: it serves who asked before only.
		group.Go(func() { want("before the change", 3, "5") })
		synctest.Wait()
		l.changes.Add(1)
		want("after it", 3, "6")
		group.Wait()
		want("and then", 3, "6")
	})
}

// TestLookFails: a look that came to nothing is made by the next who asks, and
// who waits for one does so no longer than its context.
func TestLookFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l looks
		var group sync.WaitGroup
		group.Go(func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			l.get(t.Context(), 1, func() []byte { time.Sleep(time.Second); panic("bug") })
		})
		synctest.Wait()
		group.Go(func() {
			if got := l.get(t.Context(), 1, func() []byte { return []byte("2") }); string(got) != "2" {
				t.Errorf("after a look that failed: %q", got)
			}
		})
		group.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if got := l.get(ctx, 1, func() []byte { return []byte("3") }); got != nil {
				t.Errorf("past its context: %q", got)
			}
		})
		group.Wait()
	})
}

// counted counts how often its enclosure is looked at.
type counted struct {
	*servertest.Fake
	looks atomic.Int32
}

func (c *counted) Status(ctx context.Context) enclosure.Status {
	c.looks.Add(1)
	return c.Fake.Status(ctx)
}

// TestOneLook: all of the enclosure is looked at once for those who ask in a
// short time, parts of it for each.
func TestOneLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &counted{Fake: servertest.New()}
		s := New(b, Options{Keeper: servertest.NewKeeper()})
		s.ops = t.Context()
		for _, tt := range []struct {
			path string
			want int32
		}{{"/v1/enclosure", 1}, {"/v1/slots", 5}} {
			b.looks.Store(0)
			for range 5 {
				r := httptest.NewRequest("GET", tt.path, nil)
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), peerKey{}, Peer{Known: true})))
				if w.Code != http.StatusOK {
					t.Fatalf("%s: %d", tt.path, w.Code)
				}
			}
			if n := b.looks.Load(); n != tt.want {
				t.Errorf("%s: %d looks for five that asked; want %d", tt.path, n, tt.want)
			}
		}
	})
}

// TestSeeOwnChange: whoever changed something sees it in the next answer, also
// where no event told of it.
func TestSeeOwnChange(t *testing.T) {
	b := servertest.New()
	socket, c := start(t, b)
	ctx := t.Context()
	for i, change := range []func() error{
		func() error { return c.Locate(ctx, "gpu0", true) },
		func() error { _, err := c.Fence(ctx, "server1"); return err },
		func() error { // no event
			text := servertest.ConfigText
			_, err := c.ApplyConfig(ctx, mgmt.ConfigRequest{Text: text[:len(text)-2] + `, "network": {"interface": "eth0", "address": "192.0.2.10/24"}}`})
			return err
		},
	} {
		if _, err := c.Enclosure(ctx); err != nil {
			t.Fatal(err)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		look, err := c.Enclosure(ctx)
		if err != nil {
			t.Fatal(err)
		}
		seen := []bool{look.Slots[0].Locate, look.Slots[0].Held, len(look.Warnings) == 1}[i]
		if !seen {
			t.Errorf("change %d is not in the answer that came after: %+v", i, look)
		}
	}
	// An event of the enclosure's own.
	b.Edit(func(s *enclosure.Status) { s.Slots[1].Link = "down" })
	b.Note(enclosure.Event{Kind: "fault", Slot: "gpu1", Text: "link lost"})
	if look, err := c.Enclosure(ctx); err != nil || look.Slots[1].Link != "down" {
		t.Errorf("after an event: %+v, %v", look, err)
	}
	// The bytes are whole, with their length told.
	resp, _ := raw(t, socket, request("GET", "/v1/enclosure", "", ""))
	if resp.ContentLength <= 0 || resp.Header.Get("Content-Type") != mgmt.MediaTypeJSON || resp.StatusCode != http.StatusOK {
		t.Errorf("answer %+v", resp)
	}
}
