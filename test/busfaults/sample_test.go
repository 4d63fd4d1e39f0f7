package busfaults

import "flag"

var full = flag.Bool("full", false, "every byte and every bit, where else a sample is taken")

// every is the step of a sample: of n cases, with the race detector of raced.
func every(n, withRace int) int {
	switch {
	case *full:
		return 1
	case raced:
		return withRace
	}
	return n
}
