package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"baton/mgmt"
)

// A start of the agent takes about a second; on the board a few.
const (
	restartLimit = time.Minute
	restartPoll  = 200 * time.Millisecond
)

// mark is when a run of the agent began, at the latest.
type mark struct{ began time.Time }

// mark notes the present run of the agent.
func (t *tool) mark(ctx context.Context) mark {
	_, latest, err := t.thisRun(ctx)
	if err != nil {
		return mark{} // any answer later on is of a run after it
	}
	return mark{latest}
}

// thisRun tells between which times the run that answers began.
func (t *tool) thisRun(ctx context.Context) (earliest, latest time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	asked := time.Now()
	e, err := t.agent.Enclosure(ctx)
	up := time.Duration(e.UptimeMS) * time.Millisecond
	return asked.Add(-up), time.Now().Add(-up + time.Millisecond), err
}

// restarted waits until a run after m answers.
func (t *tool) restarted(ctx context.Context, m mark) error {
	ctx, cancel := context.WithTimeout(ctx, restartLimit)
	defer cancel()
	return t.wait(ctx, "the agent starts again", func(ctx context.Context) error {
		for {
			earliest, _, err := t.thisRun(ctx)
			if err == nil && earliest.After(m.began) {
				return nil
			}
			if err != nil && !errors.As(err, new(*mgmt.UnreachableError)) {
				return err
			}
			select {
			case <-time.After(restartPoll):
			case <-ctx.Done():
				return &mgmt.UnreachableError{Socket: t.socket, Err: fmt.Errorf("what was asked for was done, but the agent has not started again within %v: look at its log", restartLimit)}
			}
		}
	})
}
