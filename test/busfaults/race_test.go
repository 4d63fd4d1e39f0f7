//go:build race

package busfaults

// The race detector makes each case some five times as slow.
const raced = true
