package nvm

import "io/fs"

// MTDDevice is what a test plays the kernel's MTD with.
type MTDDevice = mtdDevice

// NewMTD is OpenMTD over a device that a test plays.
func NewMTD(name string, dev MTDDevice, kind uint8, flags uint32, size int64, erase, write int) (*MTD, error) {
	return newMTD(name, dev, mtdInfo{kind, flags, size, erase, write})
}

// FindMTDIn is FindMTD with another root directory.
func FindMTDIn(root fs.FS, name string) (string, error) { return findMTD(root, name) }
