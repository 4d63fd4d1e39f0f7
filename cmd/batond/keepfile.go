package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// replaceFile puts text into a file as a whole: whoever reads it, and whatever
// happens, there is the old text or the new one. Mode and owner stay. What was
// in the file is in FILE.previous afterwards.
func replaceFile(file string, text []byte) error {
	file, err := filepath.EvalSymlinks(file)
	if err != nil {
		return err
	}
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	dir := filepath.Dir(file)
	tmp, err := os.CreateTemp(dir, filepath.Base(file)+".new")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // there is none after the rename
	_, err = tmp.Write(text)
	if err == nil {
		err = tmp.Chmod(st.Mode().Perm())
	}
	// Only where it differs: in the sandbox of the systemd unit there is no chown.
	if own, ok := st.Sys().(*syscall.Stat_t); ok && err == nil && (own.Uid != uint32(os.Geteuid()) || own.Gid != uint32(os.Getegid())) {
		err = tmp.Chown(int(own.Uid), int(own.Gid))
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := linkTo(file+".previous", file); err != nil {
		return fmt.Errorf("keeping what was there: %w", err)
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return err
	}
	return syncDir(dir)
}

// linkTo makes name another name of file, in place of what it named before.
func linkTo(name, file string) error {
	tmp := name + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(file, tmp); err != nil {
		return err
	}
	defer os.Remove(tmp) // is left by a rename to another name of the same file
	return os.Rename(tmp, name)
}

// syncDir makes a rename in dir survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
