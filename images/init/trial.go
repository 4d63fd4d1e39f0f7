package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"baton/images/bank"
)

// An image on trial is kept once its agent, store included, was well for
// trialCalm in a row. One that has not come to that trialBound after the
// kernel's start is given up.
const (
	trialCalm  = 10 * time.Second
	trialEvery = time.Second
	bankTime   = 30 * time.Second // for one change of the flash: 2 MB are read before
)

// verdict is what to do with an image on trial.
type verdict int

const (
	wait verdict = iota
	keep
	giveUp
)

// judgeTrial decides by how the agent is, for how long it has been so, and the
// time since the kernel's start.
func judgeTrial(is wellness, lasted, uptime time.Duration) verdict {
	switch {
	case is == well && lasted >= trialCalm:
		return keep
	case uptime >= trialBound:
		return giveUp
	}
	return wait
}

// banks is the flash that images are booted from, of which *bank.Flash is the
// real one.
type banks interface {
	Boot(ctx context.Context) (bank.Boot, error)
	Confirm(ctx context.Context) error
	Reject(ctx context.Context, why string) error
	Settle(ctx context.Context) (outcome string, err error)
}

// trial sees an image through its first start.
type trial struct {
	open    func() (banks, error)
	health  func() health
	uptime  func() time.Duration
	report  *report
	say     func(format string, args ...any)
	restart func() // the board; it does not wait
}

// run settles what the last trial has left and, where the image that runs is
// on trial, waits until it is kept or given up.
func (t *trial) run(ctx context.Context) {
	flash, err := t.open()
	switch {
	case errors.Is(err, bank.ErrNone):
		t.say("image: %v: it is replaced from outside", err)
		return
	case err != nil:
		t.say("image: %v; whether it is on trial is not known", err)
		return
	}
	outcome, unsettled := bounded(ctx, flash.Settle)
	boot, err := bounded(ctx, flash.Boot)
	// Whoever looks at the images at the console has the flash for a moment; a
	// trial must not stay open for that, and be rolled back at some later start.
	for said := false; err != nil; said = true {
		switch {
		case t.uptime() >= trialBound:
			t.say("image: the bootloader's variables can not be read; whether this image is on trial is not known: %v", err)
			return
		case !said:
			t.say("image: the bootloader's variables can not be read, which is tried again: %v", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(trialEvery):
		}
		if unsettled != nil {
			outcome, unsettled = bounded(ctx, flash.Settle)
		}
		boot, err = bounded(ctx, flash.Boot)
	}
	if unsettled != nil {
		t.say("image: what the last trial left could not be settled, and is at the next start: %v", unsettled)
	}
	if boot.Bank == "" {
		t.say("image: not booted from a bank")
		return
	}
	if outcome != "" {
		t.say("image: %s", outcome)
	}
	t.tell(boot.Bank, boot.Trial, outcome)
	switch {
	case boot.State == bank.Lost:
		t.say("image: the bootloader's variables are lost, so nothing is tried, kept or given up; see 'baton image status'")
		return
	case !boot.Trial:
		return
	}
	t.say("image: bank %s is on trial, and kept once the agent has been well for %v, else given up %v after the start", boot.Bank, trialCalm, trialBound)
	t.see(ctx, flash, boot.Bank)
}

// see waits for the end of a trial.
func (t *trial) see(ctx context.Context, flash banks, name string) {
	tick := time.NewTicker(trialEvery)
	defer tick.Stop()
	var failed error // to keep it
	for {
		h := t.health()
		v := judgeTrial(h.is, time.Since(h.since), t.uptime())
		if v == keep {
			_, err := bounded(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, flash.Confirm(ctx) })
			if err == nil {
				t.say("image: bank %s is well, and kept", name)
				t.tell(name, false, "bank "+name+" was tried and confirmed")
				return
			}
			if refused, ok := errors.AsType[*bank.RefusedError](err); ok && refused.State == bank.GivenUp {
				t.say("image: bank %s is well, and not kept: %v", name, err)
				t.tell(name, false, "bank "+name+" was given up by hand")
				return
			}
			if failed == nil {
				t.say("image: bank %s is well, and could not be kept; it is tried again: %v", name, err)
			}
			failed = err
			if t.uptime() >= trialBound {
				v = giveUp
			}
		}
		if v == giveUp {
			why := fmt.Sprintf("the agent was not well for %v in %v; last: %s", trialCalm, trialBound, h.is)
			if h.is != well && h.text != "" {
				why = fmt.Sprintf("the agent was not well for %v in %v; last it said: %s", trialCalm, trialBound, h.text)
			}
			if failed != nil && h.is == well {
				why = fmt.Sprintf("it could not be kept: %v", failed)
			}
			t.say("image: bank %s is given up, and the board restarts with the one before: %s", name, why)
			_, err := bounded(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, flash.Reject(ctx, why) })
			if err != nil {
				t.say("image: that could not be noted; the bootloader has counted this start, and boots the one before all the same: %v", err)
			}
			t.restart()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (t *trial) tell(name string, on bool, outcome string) {
	t.report.update(func(s *state) { s.Image = &imageState{Bank: name, Trial: on, Outcome: outcome} })
}

func bounded[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, bankTime)
	defer cancel()
	return f(ctx)
}

// openBanks waits for nothing: drivers of flash are loaded before the agent is
// started.
func openBanks() (banks, error) {
	f, err := bank.Open()
	if err != nil {
		return nil, err
	}
	return f, nil
}
