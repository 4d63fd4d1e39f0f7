// Package onboard is run on boards, as root, by test/e2e: its tests, built with
// -tags onboard, are put into the board's root file system. They write to
// chips, all over.
package onboard
