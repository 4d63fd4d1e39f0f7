// Package bootloader plays U-Boot for a board that QEMU emulates: it reads the
// environment from the board's flash, counts starts, chooses a bank, checks
// what is in it, and boots that.
//
// It is as simple as U-Boot is, where packages of ours that run on the board
// are more careful: what these leave must be good enough for it.
package bootloader
