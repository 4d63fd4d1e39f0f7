//go:build race

package busfaults

const (
	raceFactor = 7
	bitStep    = 61
)
