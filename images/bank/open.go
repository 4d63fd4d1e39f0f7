package bank

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"baton/nvm"
)

// Open finds the partitions on this controller, by their names, and the bank
// that was booted. Where there are none the error is ErrNone.
func Open() (*Flash, error) {
	for _, name := range []string{"u-boot-env", "bank-a", "bank-b"} {
		if _, err := nvm.FindMTD(name); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: %w", ErrNone, err)
		} else if err != nil {
			return nil, err
		}
	}
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return nil, err
	}
	return New(string(cmdline), func(partition string) (Part, error) {
		path, err := nvm.FindMTD(partition)
		if err != nil {
			return nil, err
		}
		m, err := nvm.OpenMTD(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", partition, err)
		}
		return m, nil
	}), nil
}
