// Package wear measures how evenly moves wear the pages of the store's chip:
// make wear moves a slot a million times. The whole agent does each of them, on
// the simulator, with its poller and its tending of the store under way; nothing
// is extrapolated.
package wear
