//go:build !race

package busfaults

const (
	raceFactor = 1
	bitStep    = 1
)
