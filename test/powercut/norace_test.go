//go:build !race

package powercut

const raceFactor = 0
