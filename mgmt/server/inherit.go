package server

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// Inherit listens on a Unix socket that somebody else bound and listens on,
// such as systemd for a socket unit. Peers are known and connections bounded as
// with Listen. f stays open and is the caller's; closing the listener neither
// ends the socket nor takes its file away, so that one listener can follow
// another and clients wait in between.
//
// It fails where f is no Unix stream socket that listens.
func Inherit(f *os.File) (net.Listener, error) {
	if err := listens(f); err != nil {
		return nil, fmt.Errorf("inherited socket %s: %w", f.Name(), err)
	}
	l, err := net.FileListener(f) // on a copy of f
	if err != nil {
		return nil, fmt.Errorf("inherited socket %s: %w", f.Name(), err)
	}
	u := l.(*net.UnixListener) // by its domain
	u.SetUnlinkOnClose(false)
	return &listener{UnixListener: u, open: map[uint32]int{}}, nil
}

// listens tells what is wrong with a socket that should be one to accept Unix
// connections from.
func listens(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	option := func(name int) (v int) {
		if e := raw.Control(func(fd uintptr) { v, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, name) }); e != nil {
			err = e
		}
		return v
	}
	domain := option(syscall.SO_DOMAIN)
	if err != nil {
		return err // no socket at all
	}
	switch {
	case domain != syscall.AF_UNIX:
		return fmt.Errorf("its address family is %d; want a Unix socket (ListenStream=/run/baton/baton.sock)", domain)
	case option(syscall.SO_TYPE) != syscall.SOCK_STREAM:
		return fmt.Errorf("it is no stream socket (ListenStream=)")
	case option(syscall.SO_ACCEPTCONN) == 0:
		return fmt.Errorf("it does not listen: it is a connection, not a socket to accept some from (Accept=no)")
	}
	return err
}
