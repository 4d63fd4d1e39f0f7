package mgmt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// answering serves h on a socket.
func answering(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	c := Dial(socket)
	t.Cleanup(c.Close)
	return c
}

// TestAnswers: what is not an agent's answer is never taken for one.
func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name        string
		h           http.HandlerFunc
		problem     string // its code, or
		unreachable string // part of its text
	}{
		{"problem", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(409)
			fmt.Fprint(w, `{"status":409,"code":"busy","detail":"later","slot":"gpu0","retry":true,"new_key":1}`)
		}, "busy", ""},
		{"another server", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not here", 404) }, "unknown", ""},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, "", "answer: invalid character"},
		{"cut off", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"name":"g`) }, "", "answer: unexpected EOF"},
		{"endless", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"name":"`)
			for range MaxAnswer/1024 + 1 {
				if _, err := fmt.Fprint(w, strings.Repeat("x", 1024)); err != nil {
					return
				}
			}
		}, "", "answer: unexpected EOF"},
		{"breaks", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "", "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := answering(t, tt.h).Slot(t.Context(), "gpu0")
			var p *Problem
			var u *UnreachableError
			switch {
			case tt.problem != "" && (!errors.As(err, &p) || p.Code != tt.problem):
				t.Errorf("error %v; want a problem %s", err, tt.problem)
			case tt.unreachable != "" && (!errors.As(err, &u) || !strings.Contains(err.Error(), tt.unreachable)):
				t.Errorf("error %v; want unreachable, %q", err, tt.unreachable)
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	c := Dial(filepath.Join(t.TempDir(), "s"))
	defer c.Close()
	_, err := c.Enclosure(t.Context())
	var u *UnreachableError
	if !errors.As(err, &u) || !errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "http://") {
		t.Errorf("nobody there: %v", err)
	}
	if err := c.Watch(t.Context(), "", func(Event) error { return nil }); !errors.As(err, &u) {
		t.Errorf("Watch: %v", err)
	}
}

// An agent that takes connections and is stuck does not keep who only looks.
func TestStuck(t *testing.T) {
	end := make(chan struct{})
	c := answering(t, func(http.ResponseWriter, *http.Request) { <-end })
	defer close(end)
	c.patience = 50 * time.Millisecond
	for name, ask := range map[string]func(context.Context) error{
		"enclosure": func(ctx context.Context) error { _, err := c.Enclosure(ctx); return err },
		"metrics":   func(ctx context.Context) error { _, err := c.Metrics(ctx); return err },
		"check":     func(ctx context.Context) error { _, err := c.Check(ctx); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := ask(ctx); !errors.As(err, new(*UnreachableError)) || ctx.Err() != nil {
			t.Errorf("%s: stuck: %v, %v", name, err, ctx.Err())
		}
		cancel()
	}
}

func TestProblemText(t *testing.T) {
	for _, tt := range []struct {
		p    Problem
		want string
	}{
		{Problem{Title: "busy", Detail: "later", Slot: "gpu0"}, "gpu0: later"},
		{Problem{Title: "busy"}, "busy"},
	} {
		if got := tt.p.Error(); got != tt.want {
			t.Errorf("%+v: %q; want %q", tt.p, got, tt.want)
		}
	}
}

// TestPathsAreEscaped: a name is one segment of the path, whatever is in it.
func TestPathsAreEscaped(t *testing.T) {
	var got []string
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.URL.EscapedPath())
		fmt.Fprint(w, "{}")
	})
	for _, name := range []string{"gpu0", "../hosts", "a/b?c#d"} {
		if _, err := c.Verdict(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"/v1/slots/gpu0/verdict", "/v1/slots/..%2Fhosts/verdict", "/v1/slots/a%2Fb%3Fc%23d/verdict"}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("path %q; want %q", got[i], want[i])
		}
	}
}

func FuzzSeen(f *testing.F) {
	f.Add("9f3c2a10-17/5/0x1c2d3e4f/0x89ab12cd")
	f.Add("9f3c2a10-17/4294967296/0x0/0x0")
	f.Add("-///")
	f.Fuzz(func(t *testing.T, word string) {
		s, err := ParseSeen(word)
		if err != nil {
			return
		}
		again, err := ParseSeen(s.String())
		if err != nil || again != s {
			t.Errorf("%q: %+v, then %+v, %v", word, s, again, err)
		}
	})
}
