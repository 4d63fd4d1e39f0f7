// Package busfaults tests what becomes of a slot, of its set and of everybody
// else when a bus or a part on it fails: the one table of faults, by target and
// operation, is in table_test.go.
package busfaults
