//go:build race

package nvm_test

// thin is how many times fewer cases the exhaustive tests take.
const thin = 6
