package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"baton/enclosure"
	"baton/mgmt"
)

// events answers with what is kept, or, where the client accepts a stream,
// goes on with what happens. There is no queue per client: the enclosure's
// ring is the queue, and a client that falls behind it is told of the gap.
// What is on its way to a client is a batch, so that one that does not read
// holds on to little.
func (s *Server) events(c *call) (any, error) {
	after, other, err := s.startOf(c.http)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(c.http.Header.Get("Accept"), mgmt.MediaTypeStream) {
		evs, gap := s.backend.Events(after)
		return mgmt.Events{Gap: gap || other, Events: each(evs, s.wireEvent)}, nil
	}
	select {
	case s.watch <- struct{}{}:
		defer func() { <-s.watch }()
	default:
		return nil, problem(mgmt.CodeOverloaded, "%d clients are watching, and that is the most", maxWatchers)
	}
	s.stream(c, after, other)
	return streamed{}, nil
}

// startOf reads where the client wants to go on: "RUN.SEQ" as in an event's
// id, or SEQ of this run. other tells that it had seen events of another run.
func (s *Server) startOf(r *http.Request) (after uint64, other bool, err error) {
	id := r.Header.Get("Last-Event-ID")
	if q := r.URL.Query().Get("after"); q != "" {
		id = q
	}
	if id == "" {
		return 0, false, nil
	}
	run, seq, ok := strings.Cut(id, ".")
	if !ok {
		run, seq = fmt.Sprintf("%08x", s.run), id
	}
	n, err1 := strconv.ParseUint(run, 16, 32)
	after, err2 := strconv.ParseUint(seq, 10, 64)
	if err1 != nil || err2 != nil {
		return 0, false, problem(codeBad, "%q is not an event's id, want RUN.NUMBER or NUMBER", clip(id))
	}
	if uint32(n) != s.run || after > s.backend.Seq() {
		return 0, true, nil // a number that this run has not come to is another's
	}
	return after, false, nil
}

// A batch is what is encoded and sent at once.
const (
	batchEvents = 16
	batchBytes  = 4 << 10
)

// atOnce is closed.
var atOnce = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (s *Server) stream(c *call, after uint64, gap bool) {
	rc := http.NewResponseController(c.w)
	c.w.Header().Set("Content-Type", mgmt.MediaTypeStream)
	c.w.Header().Set("Cache-Control", "no-store")
	// send writes and flushes within writeTimeout; false ends the stream.
	send := func(p []byte) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := c.w.Write(p); err != nil {
			return false
		}
		return rc.Flush() == nil
	}
	if !send([]byte(": baton events\n\n")) {
		return
	}
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for {
		changed := s.backend.Changed() // before the look, so that nothing falls between
		evs, lost := s.backend.Events(after)
		more := len(evs) > batchEvents
		if more {
			evs = slices.Clone(evs[:batchEvents]) // the rest is not held while this is sent
		}
		var out bytes.Buffer
		if gap || lost {
			writeEvent(&out, mgmt.Event{Time: time.Now(), Kind: mgmt.KindGap, Text: "events before this are lost"})
		}
		gap = false
		for _, e := range evs {
			writeEvent(&out, s.wireEvent(e))
			after = e.Seq
			if out.Len() > batchBytes {
				if !send(out.Bytes()) {
					return
				}
				out.Reset()
			}
		}
		if out.Len() > 0 && !send(out.Bytes()) {
			return
		}
		if more {
			changed = atOnce
		}
		select {
		case <-changed:
		case <-alive.C:
			if !send([]byte(":\n\n")) {
				return
			}
		case <-c.http.Context().Done():
			return
		case <-s.streams.Done():
			return
		}
	}
}

func writeEvent(out *bytes.Buffer, e mgmt.Event) {
	p, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("encode event: %v", err)) // it always encodes
	}
	if e.ID != "" {
		fmt.Fprintf(out, "id: %s\n", e.ID)
	}
	fmt.Fprintf(out, "event: %s\ndata: %s\n\n", e.Kind, p)
}

func (s *Server) wireEvent(e enclosure.Event) mgmt.Event {
	return mgmt.Event{
		ID:       fmt.Sprintf("%08x.%d", s.run, e.Seq),
		UptimeMS: e.Uptime.Milliseconds(),
		Time:     e.Wall,
		Kind:     e.Kind,
		Slot:     e.Slot,
		Host:     e.Host,
		VM:       e.VM,
		Move:     e.Move,
		Code:     e.Code,
		Text:     e.Text,
		By:       e.By,
	}
}
