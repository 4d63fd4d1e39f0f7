//go:build race

package enclosure_test

const raceFactor = 2
