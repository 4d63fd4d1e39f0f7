// Package vlanvm has tests that need a kernel whose bridge filters VLANs, and a
// machine of their own. Its test program is the first process of a VM:
// test/e2e builds it (build tag vm), boots Debian's kernel with it, and reads
// its lines from the console.
package vlanvm
