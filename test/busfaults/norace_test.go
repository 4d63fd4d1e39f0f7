//go:build !race

package busfaults

const raced = false
