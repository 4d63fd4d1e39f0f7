package enclosure

import (
	"context"
	"log/slog"
	"time"
)

// eventRing is how many events are kept for those who look later.
const eventRing = 1024

// emit records an event, and keeps it in the audit where its kind is one that
// is kept there (audited). set are the slots that it is about, beside ev.Slot.
// It never waits for anybody.
func (e *Enclosure) emit(ev Event, set ...*slot) { e.emitCounted(ev, 0, set) }

// emitCounted is emit for an event that stands for count equal ones; 0 = one.
func (e *Enclosure) emitCounted(ev Event, count uint32, set []*slot) {
	e.keep(e.tell(ev), audited[ev.Kind], count, set)
}

// tell records an event that has changed nothing, whatever its kind. It returns
// the event with its number and times.
func (e *Enclosure) tell(ev Event) Event {
	e.mu.Lock()
	ev.Seq = e.lastEvent + 1
	e.lastEvent = ev.Seq
	ev.Uptime = time.Since(e.started)
	ev.Wall = e.wall()
	if len(e.events) == eventRing {
		e.events = e.events[1:]
	}
	e.events = append(e.events, ev)
	close(e.changed)
	e.changed = make(chan struct{})
	e.mu.Unlock()
	attrs := []slog.Attr{slog.String("kind", ev.Kind), slog.Duration("uptime", ev.Uptime.Round(time.Millisecond))}
	for _, a := range [][2]string{{"slot", ev.Slot}, {"host", ev.Host}, {"vm", ev.VM}, {"move", ev.Move}, {"code", ev.Code}, {"by", ev.By}} {
		if a[1] != "" {
			attrs = append(attrs, slog.String(a[0], a[1]))
		}
	}
	e.log.LogAttrs(context.Background(), slog.LevelInfo, ev.Text, attrs...)
	return ev
}

// Events returns the events after sequence number after, oldest first; gap
// tells that some of them are no longer kept.
func (e *Enclosure) Events(after uint64) (events []Event, gap bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.events) == 0 || after >= e.lastEvent {
		return nil, false
	}
	first := e.events[0].Seq
	if after < first {
		return append(events, e.events...), after+1 < first
	}
	return append(events, e.events[after-first+1:]...), false
}

// Changed returns a channel that is closed at the next event.
func (e *Enclosure) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}
