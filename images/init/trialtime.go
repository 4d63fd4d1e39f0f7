package main

import (
	"fmt"
	"strings"
	"time"
)

// trialWord on the kernel's command line shortens the time in which an image on
// trial has to be well, as baton.trial_within=45s does.
const trialWord = "baton.trial_within="

// trialBound is the time after the kernel's start at which an image that has
// not come to trialCalm is given up. It is set once, before anyone looks.
var trialBound = trialLongest

const (
	trialLongest  = 3 * time.Minute
	trialShortest = 20 * time.Second
)

// trialTime is the bound that a kernel's command line asks for. With an error
// it is the longest.
func trialTime(cmdline string) (time.Duration, error) {
	for word := range strings.FieldsSeq(cmdline) {
		value, ok := strings.CutPrefix(word, trialWord)
		if !ok {
			continue
		}
		d, err := time.ParseDuration(value)
		if err != nil || d < trialShortest || d > trialLongest {
			return trialLongest, fmt.Errorf("%s%s: want %v to %v, as in %s45s", trialWord, value, trialShortest, trialLongest, trialWord)
		}
		return d, nil
	}
	return trialLongest, nil
}
