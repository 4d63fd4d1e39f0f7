package station

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// TestMain runs the tests as root of a user namespace where they are not run as
// root: the kernel's part needs network namespaces. Where the kernel makes no
// user namespace either, those tests say so.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 {
		os.Exit(m.Run())
	}
	child := exec.Command("/proc/self/exe", os.Args[1:]...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	err := child.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &ended):
		os.Exit(ended.ExitCode())
	}
	os.Exit(m.Run())
}
