package main

import (
	"testing"
	"time"
)

func TestTrialTime(t *testing.T) {
	for _, tt := range []struct {
		cmdline string
		want    time.Duration
		ok      bool
	}{
		{"console=ttyS4 baton.bank=a", trialLongest, true},
		{"baton.trial=1 baton.trial_within=45s quiet", 45 * time.Second, true},
		{"baton.trial_within=3m", 3 * time.Minute, true},
		{"baton.trial_within=4m", trialLongest, false},
		{"baton.trial_within=1s", trialLongest, false},
		{"baton.trial_within=", trialLongest, false},
	} {
		if got, err := trialTime(tt.cmdline); got != tt.want || (err == nil) != tt.ok {
			t.Errorf("trialTime(%q) = %v, %v; want %v", tt.cmdline, got, err, tt.want)
		}
	}
}
