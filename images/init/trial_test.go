package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"baton/images/bank"
	"baton/nvm"
)

func TestJudgeTrial(t *testing.T) {
	for _, tt := range []struct {
		is             wellness
		lasted, uptime time.Duration
		want           verdict
	}{
		{starting, time.Minute, time.Minute, wait},
		{well, trialCalm - 1, time.Minute, wait},
		{well, trialCalm, time.Minute, keep},
		{well, trialCalm, trialBound, keep},
		{well, trialCalm - 1, trialBound, giveUp},
		{storeless, time.Hour, trialBound - 1, wait},
		{storeless, time.Hour, trialBound, giveUp},
		{ended, 0, trialBound, giveUp},
		{stuck, 0, time.Minute, wait}, // the watchdog is not fed
	} {
		if got := judgeTrial(tt.is, tt.lasted, tt.uptime); got != tt.want {
			t.Errorf("judgeTrial(%v, %v, %v) = %v; want %v", tt.is, tt.lasted, tt.uptime, got, tt.want)
		}
	}
}

// fakeBanks is flash with an image on trial, or none.
type fakeBanks struct {
	boot            bank.Boot
	outcome         string
	confirm, reject error
	did             []string
	settled         bool
	unread          int // times that Boot fails
}

func (b *fakeBanks) Settle(context.Context) (string, error) {
	b.settled = true
	return b.outcome, nil
}

func (b *fakeBanks) Boot(context.Context) (bank.Boot, error) {
	if !b.settled {
		return bank.Boot{}, errors.New("settle first")
	}
	if b.unread--; b.unread >= 0 {
		return bank.Boot{}, nvm.ErrInUse
	}
	return b.boot, nil
}

func (b *fakeBanks) Confirm(context.Context) error {
	b.did = append(b.did, "confirm")
	return b.confirm
}

func (b *fakeBanks) Reject(_ context.Context, why string) error {
	b.did = append(b.did, "reject: "+why)
	return b.reject
}

// TestTrial: what becomes of an image by how its agent is.
func TestTrial(t *testing.T) {
	onTrial := bank.Boot{State: bank.Trying, Bank: "b", Confirmed: "a", Trial: true, Count: 1}
	for _, tt := range []struct {
		name  string
		banks *fakeBanks
		open  error
		is    func(since time.Duration) wellness // by the time since the start
		did   string
		after time.Duration // of what was done
		said  string
		state *imageState
	}{
		{"no banks", nil, fmt.Errorf("%w: no mtd", bank.ErrNone), nil, "", 0, "this controller has no banks", nil},
		{"flash can not be read", nil, errors.New("I/O error"), nil, "", 0, "not known", nil},
		{"not from a bank", &fakeBanks{}, nil, nil, "", 0, "not booted from a bank", nil},
		{"no trial", &fakeBanks{boot: bank.Boot{State: bank.Steady, Bank: "a"}}, nil, nil, "", 0, "", &imageState{Bank: "a"}},
		{"rolled back", &fakeBanks{boot: bank.Boot{State: bank.Steady, Bank: "a"}, outcome: "bank b was given up"}, nil, nil, "", 0, "bank b was given up", &imageState{Bank: "a", Outcome: "bank b was given up"}},
		{"lost", &fakeBanks{boot: bank.Boot{State: bank.Lost, Bank: "a", Trial: true}}, nil, nil, "", 0, "variables are lost", &imageState{Bank: "a", Trial: true}},
		{"well", &fakeBanks{boot: onTrial}, nil, func(s time.Duration) wellness {
			if s < 4*time.Second {
				return starting
			}
			return well
		}, "confirm", 14 * time.Second, "is well, and kept", &imageState{Bank: "b", Outcome: "bank b was tried and confirmed"}},
		{"well at last", &fakeBanks{boot: onTrial}, nil, func(s time.Duration) wellness {
			switch {
			case s < 100*time.Second:
				return ended
			case s < 105*time.Second:
				return well
			case s < 106*time.Second:
				return ended
			}
			return well
		}, "confirm", 116 * time.Second, "is well, and kept", &imageState{Bank: "b", Outcome: "bank b was tried and confirmed"}},
		{"ends again and again", &fakeBanks{boot: onTrial}, nil, func(s time.Duration) wellness {
			if int(s/time.Second)%12 < 9 {
				return well
			}
			return ended
		}, "reject: the agent was not well for 10s in 3m0s; last: ok", trialBound, "is given up", &imageState{Bank: "b", Trial: true}},
		{"no store", &fakeBanks{boot: onTrial}, nil, func(time.Duration) wellness { return storeless },
			"reject: the agent was not well for 10s in 3m0s; last it said: so it is", trialBound, "is given up", &imageState{Bank: "b", Trial: true}},
		{"flash is in use", &fakeBanks{boot: onTrial, unread: 5}, nil, func(time.Duration) wellness { return well },
			"confirm", 5*trialEvery + trialCalm, "is tried again", &imageState{Bank: "b", Outcome: "bank b was tried and confirmed"}},
		{"flash stays in use", &fakeBanks{boot: onTrial, unread: 1000}, nil, nil,
			"", trialBound, "not known", nil},
		{"given up by hand", &fakeBanks{boot: onTrial, confirm: &bank.RefusedError{State: bank.GivenUp, Why: "the next start boots the other bank"}}, nil,
			func(time.Duration) wellness { return well }, "confirm", 10 * time.Second, "not kept: the next start boots", &imageState{Bank: "b", Outcome: "bank b was given up by hand"}},
		{"flash does not take it", &fakeBanks{boot: onTrial, confirm: errors.New("I/O error"), reject: errors.New("I/O error")}, nil,
			func(time.Duration) wellness { return well }, "reject: it could not be kept: I/O error", trialBound, "could not be noted", &imageState{Bank: "b", Trial: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var said []string
				restarts := 0
				since, was := start, wellness(-1)
				tr := &trial{
					open: func() (banks, error) { return tt.banks, tt.open },
					health: func() health {
						now := tt.is(time.Since(start))
						if now != was {
							since, was = time.Now(), now
						}
						return health{is: now, text: "so it is", since: since}
					},
					uptime:  func() time.Duration { return time.Since(start) },
					report:  newReport(filepath.Join(t.TempDir(), "state.json"), func() time.Duration { return 0 }),
					say:     func(f string, a ...any) { said = append(said, fmt.Sprintf(f, a...)) },
					restart: func() { restarts++ },
				}
				tr.run(t.Context())
				var did []string
				if tt.banks != nil {
					did = tt.banks.did
				}
				last := ""
				if len(did) > 0 {
					last = did[len(did)-1]
				}
				if last != tt.did || time.Since(start) != tt.after {
					t.Errorf("it did %q at last, after %v; want %q, after %v", last, time.Since(start), tt.did, tt.after)
				}
				if (restarts == 1) != strings.HasPrefix(tt.did, "reject") {
					t.Errorf("%d restarts", restarts)
				}
				if all := strings.Join(said, "\n"); !strings.Contains(all, tt.said) || tt.said == "" && all != "" {
					t.Errorf("said\n%s\nwant %q in it", all, tt.said)
				}
				got := tr.report.now.Image
				if (got == nil) != (tt.state == nil) || got != nil && *got != *tt.state {
					t.Errorf("state %+v; want %+v", got, tt.state)
				}
			})
		})
	}
}
