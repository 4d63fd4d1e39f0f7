// Package bank keeps two images of a controller in flash, bank a and bank b,
// and has a new one tried once before it replaces the old one.
//
// What is booted is decided by the bootloader, from variables in its
// environment that it shares with this package (machine.go). At any instant,
// power cuts included, they point at a bank that holds a whole image.
package bank

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"baton/images/uboot"
	"baton/nvm"
)

// Flash is the part of a controller's flash that images are booted from. Its
// partitions are open only while a method runs, each for one process: a method
// returns nvm.ErrInUse where another is at it.
type Flash struct {
	open    func(partition string) (Part, error)
	running string // "" = none
	trial   bool   // what the bootloader said
}

// Part is an open partition.
type Part interface {
	nvm.Eraser
	Close() error
}

// ErrNone is returned by Open where the flash has no banks.
var ErrNone = errors.New("this controller has no banks of images")

// RefusedError is returned where the state does not let something happen.
// Nothing was changed.
type RefusedError struct {
	State State
	Why   string
	Next  string
}

func (e *RefusedError) Error() string { return e.Why }

// New is a Flash of partitions that open opens: u-boot-env, bank-a and bank-b.
// cmdline is the kernel's command line, on which the bootloader says
// baton.bank=a or b, and baton.trial=1.
func New(cmdline string, open func(partition string) (Part, error)) *Flash {
	f := &Flash{open: open}
	for word := range strings.FieldsSeq(cmdline) {
		switch word {
		case "baton.bank=a":
			f.running = "a"
		case "baton.bank=b":
			f.running = "b"
		case "baton.trial=1":
			f.trial = true
		}
	}
	return f
}

// Boot is which image runs and whether it is on trial.
type Boot struct {
	State State
	// Bank runs, "a" or "b"; "" = the kernel was not booted from a bank.
	Bank string
	// Confirmed is the bank that is booted where none is on trial; "" = not
	// known, the environment is lost.
	Confirmed string
	// Trial: Bank is on trial; it has to be confirmed before the next start.
	Trial bool
	// RolledBack: the other bank was on trial, and Bank is that of before.
	RolledBack bool
	// Count is how often the bank on trial has been started.
	Count int
	// Outcome is how the last trial ended, in words; "" = not known.
	Outcome string
}

// Boot reads which image runs. An environment that is lost is no error here:
// State says so.
func (f *Flash) Boot(ctx context.Context) (Boot, error) {
	b := Boot{Bank: f.running}
	if f.running == "" {
		return b, nil
	}
	err := f.withEnv(func(m nvm.Eraser) error {
		vars, err := LoadEnv(ctx, m)
		if errors.Is(err, ErrLost) {
			b.State, b.Trial = Lost, f.trial
			return nil
		}
		if err == nil {
			b = f.boot(Read(vars))
		}
		return err
	})
	return b, err
}

func (f *Flash) boot(v Vars) Boot {
	s := stateOf(v, f.running, f.trial)
	b := Boot{
		State: s, Bank: f.running, Confirmed: v.Bank, Count: v.Count, Outcome: v.Outcome,
		Trial:      s == Trying,
		RolledBack: s == Failed,
	}
	if b.RolledBack {
		b.Outcome = ended(v)
	}
	return b
}

// Confirm makes the image that runs the one that is booted from now on. Where
// it is already, or no image is on trial, nothing is written.
func (f *Flash) Confirm(ctx context.Context) error {
	return f.happens(ctx, healthy, fmt.Sprintf("bank %s was tried and confirmed", f.running))
}

// Reject notes why the image on trial is given up. The caller restarts the
// board then, and the bootloader boots the other bank.
func (f *Flash) Reject(ctx context.Context, why string) error {
	return f.happens(ctx, unhealthy, fmt.Sprintf("bank %s was tried and given up: %s", f.running, why))
}

// Settle is called once at a start. After a trial that failed it ends it, and
// where the bank that was confirmed could not be booted it keeps the one that
// runs; the outcome says which, and is "" otherwise. It also repairs what a
// power cut has left of the environment, so that Boot is to be called after it.
func (f *Flash) Settle(ctx context.Context) (outcome string, err error) {
	b, err := f.Boot(ctx)
	if err != nil {
		return "", err
	}
	switch b.State {
	case Failed:
		outcome = b.Outcome
	case Displaced:
		outcome = fmt.Sprintf("the bootloader could not boot bank %s, so bank %s runs and is kept", Other(b.Bank), b.Bank)
	}
	return outcome, f.happens(ctx, started, outcome)
}

// happens has an event change the environment, as table says; only in one of
// the states in, where there are any.
func (f *Flash) happens(ctx context.Context, e event, outcome string, in ...State) error {
	if f.running == "" {
		if table[Direct][e] == nothing {
			return nil
		}
		return refusal(Direct, e)
	}
	return f.withEnv(func(m nvm.Eraser) error {
		// After a power cut a copy that points at the bank may still come to
		// count. Before that bank is erased none may be left.
		force := e == clear
		err := copies{m}.update(ctx, force, func(vars uboot.Env) error {
			if s := stateOf(Read(vars), f.running, f.trial); len(in) > 0 && !slices.Contains(in, s) {
				return &RefusedError{s, "it has changed meanwhile, and is " + s.String() + " now", "baton image status"}
			}
			return f.change(vars, e, outcome)
		})
		if errors.Is(err, ErrLost) {
			return refusal(Lost, e)
		}
		return err
	})
}

// change is what an event makes of an environment.
func (f *Flash) change(vars uboot.Env, e event, outcome string) error {
	v := Read(vars)
	s := stateOf(v, f.running, f.trial)
	a := table[s][e]
	switch a {
	case refuse:
		return refusal(s, e)
	case nothing:
		return nil
	case tryOther:
		// Without these nothing would ever boot the bank of before.
		for _, name := range []string{"bootcmd", "altbootcmd"} {
			if vars[name] == "" {
				return &RefusedError{
					s, "the bootloader's environment has no " + name + ": it would not roll back",
					"set the bootloader up (docs/update.md), then try again",
				}
			}
		}
		outcome = ""
	}
	a.do(v, f.running, clean(outcome)).write(vars)
	return nil
}

func refusal(s State, e event) error {
	r := &RefusedError{State: s, Next: "baton image status"}
	switch s {
	case Direct:
		r.Why = "the kernel was not booted from a bank (no baton.bank= on its command line)"
		r.Next = "start the controller through its bootloader (docs/update.md)"
	case Lost:
		r.Why = ErrLost.Error()
		r.Next = "at the U-Boot prompt: env default -a; saveenv (docs/update.md)"
	case Trying:
		r.Why = "the image that runs is on trial and not confirmed yet"
		r.Next = "wait until 'baton image status' says confirmed, or give it up: baton image rollback"
	case GivenUp:
		r.Why = "the image that runs was given up, and the next start boots the other bank"
		r.Next = "reboot"
	default:
		r.Why = "no image is on trial"
	}
	return r
}

func (f *Flash) withEnv(do func(nvm.Eraser) error) error { return f.with("u-boot-env", do) }

func (f *Flash) with(partition string, do func(nvm.Eraser) error) error {
	p, err := f.open(partition)
	if err != nil {
		return err
	}
	err = do(p)
	if cerr := p.Close(); err == nil && cerr != nil {
		err = cerr
	}
	return err
}
