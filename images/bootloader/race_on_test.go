//go:build race

package bootloader

// thin is how many times fewer cases the exhaustive tests take.
const thin = 6
