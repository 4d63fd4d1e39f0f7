package vlan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Repair is what was found, and put back or made.
type Repair struct {
	Port string
	Text string
}

// Times of Repair.
const (
	repairPause = 10 * time.Second // after the first repair of a port; it doubles
	repairMost  = time.Minute      // but for this
	repairQuiet = 10 * time.Minute // without a repair, and the port counts as left in peace
)

// war is a port that is put back again and again: something else manages it.
type war struct {
	port    string
	repairs int
	failed  int       // times that it could not be put back, since it last could
	why     error     // it could not; nil = it could
	told    int       // of them, in events
	next    time.Time // not before
	last    time.Time
}

// String is for warnings.
func (w *war) String() string {
	return fmt.Sprintf("%s was changed by something else %d times and put back each time; it is looked after every %v at most: find out what else manages it", w.port, w.repairs, w.pause())
}

func (w *war) pause() time.Duration {
	return min(repairPause<<min(max(w.repairs+w.failed, 1)-1, 8), repairMost)
}

// fought notes a repair and returns its event's text; "" where the event is
// left out, since there were many: those with 1, 2, 4, 8 repairs are told.
func (w *war) fought(now time.Time, text string) string {
	w.repairs, w.failed, w.why = w.repairs+1, 0, nil
	w.last, w.next = now, now.Add(w.pause())
	if w.repairs&(w.repairs-1) != 0 {
		return ""
	}
	if n := w.repairs - w.told; n > 1 {
		text += fmt.Sprintf("; %d times since the last event, %d in all: something else manages it", n, w.repairs)
	}
	w.told = w.repairs
	return text
}

// lost notes that it could not be put back, which its error tells.
func (w *war) lost(now time.Time, why error) {
	w.failed, w.why = w.failed+1, why
	w.last, w.next = now, now.Add(w.pause())
}

// Repair compares all ports with what was last set, and puts back what differs;
// ports that nobody has set yet are left as they are, and the uplink's VLANs
// that they may need. Before that it does what Make does. It is to be called
// every few seconds. A port that must be put back again and again is looked after
// less often, up to once a minute, and not every time is told. The error is all that could not be done: of a port that
// is not looked after at the moment, what was wrong the last time.
func (s *Switch) Repair(ctx context.Context) ([]Repair, error) {
	if err := s.take(ctx); err != nil {
		return nil, err
	}
	defer s.give()
	now, err := s.picture(ctx)
	if err == nil && s.c.Make {
		now, err = s.complete(ctx, now)
	}
	now, err = s.judge(now, err)
	done := s.told()
	if err != nil {
		return done, err
	}
	at := time.Now()
	about := scope{all: true, not: map[string]bool{}}
	if !s.want.settled() {
		// It may be what a slot uses that is not known yet.
		about.stay = s.want.uplink.name
	}
	for port, w := range s.wars {
		if at.Before(w.next) {
			about.not[port] = true
		} else if at.Sub(w.last) > repairQuiet {
			delete(s.wars, port)
		}
	}
	all, _ := plan(s.want, now)
	changes := about.changes(all, s.want.uplink.name)
	_, failed, err := s.bring(ctx, now, about)
	var wrong several // in one list, so that the same reads the same
	if !errors.As(err, &wrong) {
		wrong = several{err}
	}
	for port := range about.not {
		if slices.ContainsFunc(all, func(c change) bool { return c.port == port }) {
			wrong = append(wrong, s.wars[port].why)
		}
	}
	err = join(wrong...)
	if len(changes) == 0 {
		return done, err
	}
	for i, c := range changes {
		if slices.ContainsFunc(changes[:i], func(o change) bool { return o.port == c.port }) {
			continue
		}
		w := s.wars[c.port]
		if w == nil {
			w = &war{port: "port " + c.port}
			s.wars[c.port] = w
		}
		if failed[c.port] != nil {
			w.lost(at, failed[c.port])
		} else if text := w.fought(at, s.repaired(c.port, now, changes)); text != "" {
			done = append(done, Repair{c.port, text})
		}
	}
	return done, err
}

// repaired says what a port was and what was done.
func (s *Switch) repaired(port string, was seen, changes []change) string {
	text := []string{fmt.Sprintf("port %s was a member of %s", port, list(was.port(port).members))}
	for _, c := range changes {
		switch {
		case c.port != port:
		case c.join:
			text = append(text, "made to join "+list(c.members))
		default:
			text = append(text, "made to leave "+list(c.members))
		}
	}
	return strings.Join(text, "; ")
}
