//go:build !race

package bootloader

// thin is how many times fewer cases the exhaustive tests take: the race
// detector, under which it is more, is after something else.
const thin = 1
