package nvm

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mtdFile is a partition's character device. Its writes are done when they
// return: there is no cache above the driver, and so no O_SYNC and no fsync
// (mtdchar_write in drivers/mtd/mtdchar.c).
type mtdFile struct{ *os.File }

func openMTD(path string) (mtdDevice, mtdInfo, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case errors.Is(err, syscall.EACCES) && os.Geteuid() == 0, errors.Is(err, syscall.EROFS):
		// mtdchar_open, of a partition without MTD_WRITEABLE
		return nil, mtdInfo{}, fmt.Errorf("%w: the kernel says so of the partition (read-only in the device tree?): %w", ErrReadOnly, err)
	case err != nil:
		return nil, mtdInfo{}, err
	}
	info, err := describe(f)
	if err == nil {
		err = lock(f)
	}
	if err != nil {
		f.Close()
		return nil, mtdInfo{}, err
	}
	return mtdFile{f}, info, nil
}

func describe(f *os.File) (mtdInfo, error) {
	var i unix.MtdInfo
	if err := ioctl(f, unix.MEMGETINFO, unsafe.Pointer(&i)); err != nil {
		return mtdInfo{}, fmt.Errorf("%w: MEMGETINFO: %w; want the character device, /dev/mtdN", ErrKind, err)
	}
	return mtdInfo{kind: i.Type, flags: i.Flags, size: int64(i.Size), erase: int(i.Erasesize), write: int(i.Writesize)}, nil
}

// lock keeps other processes that ask out for as long as f is open. An agent
// that is just ending is waited for.
func lock(f *os.File) error {
	const wait, every = time.Second, 20 * time.Millisecond
	for end := time.Now().Add(wait); ; time.Sleep(every) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINTR):
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return fmt.Errorf("lock: %w", err)
		case !time.Now().Before(end):
			return ErrInUse
		}
	}
}

func (f mtdFile) Erase(off, n int64) error {
	e := unix.EraseInfo{Start: uint32(off), Length: uint32(n)}
	return ioctl(f.File, unix.MEMERASE, unsafe.Pointer(&e))
}

func (f mtdFile) Unlock(n int64) error {
	e := unix.EraseInfo{Length: uint32(n)}
	locked, err := ioctlValue(f.File, unix.MEMISLOCKED, unsafe.Pointer(&e))
	if err != nil || locked == 0 {
		return nil // a chip without locks, or one that can not tell
	}
	if err := ioctl(f.File, unix.MEMUNLOCK, unsafe.Pointer(&e)); err != nil {
		return fmt.Errorf("MEMUNLOCK: %w", err)
	}
	return nil
}

func ioctl(f *os.File, req uintptr, arg unsafe.Pointer) error {
	_, err := ioctlValue(f, req, arg)
	return err
}

func ioctlValue(f *os.File, req uintptr, arg unsafe.Pointer) (uintptr, error) {
	for {
		v, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), req, uintptr(arg))
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return v, nil
	}
}
