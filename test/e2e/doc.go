// Package e2e tests what only whole machines show: the board's image under
// QEMU, with Debian's kernel and its I2C driver.
//
// Its tests have the build tag e2e, and need what `make image` builds.
package e2e
