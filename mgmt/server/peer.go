package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"baton/mgmt"
)

// Peer is the process at the other end of a connection, as the kernel knows it
// from when it connected.
type Peer struct {
	Known    bool // false: nobody, and may do nothing
	UID, PID uint32
}

func (p Peer) String() string {
	if !p.Known {
		return "unknown"
	}
	return fmt.Sprintf("uid %d", p.UID)
}

// role of a peer: root and the agent's own user are admin. Who else gets
// through the socket's permissions may look.
func (s *Server) role(p Peer) Roles {
	switch {
	case !p.Known:
		return 0
	case p.UID == 0 || p.UID == s.opt.AdminUID:
		return Admin
	}
	return Viewer
}

type peerKey struct{}

// withPeer hands the peer of a connection to its requests.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if pc, ok := c.(interface{ Peer() Peer }); ok {
		return context.WithValue(ctx, peerKey{}, pc.Peer())
	}
	return ctx
}

// Listen listens on a Unix socket at path with permission 0660. A socket that
// a dead agent left is replaced; one where somebody answers is not.
func Listen(path string) (net.Listener, error) {
	if fi, err := os.Lstat(path); err == nil {
		if fi.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("listen on %s: there is a file that is no socket", path)
		}
		c, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("listen on %s: another agent answers there", path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("listen on %s: is another agent there? %w", path, err)
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("listen: %w", err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	return &listener{UnixListener: l, open: map[uint32]int{}}, nil
}

// listener asks the kernel who connects, and bounds how many connections one
// user has, so that nobody shuts root out.
type listener struct {
	*net.UnixListener
	mu   sync.Mutex
	open map[uint32]int
}

// maxConns is per user; root gets four times as many.
const maxConns = 32

// Accept returns a *peerConn.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		peer, err := peerOf(c)
		if err != nil {
			_ = c.Close() // it went away already
			continue
		}
		if !l.take(peer.UID) {
			refuse(c)
			continue
		}
		return &peerConn{UnixConn: c, peer: peer, release: sync.OnceFunc(func() { l.give(peer.UID) })}, nil
	}
}

func (l *listener) take(uid uint32) bool {
	limit := maxConns
	if uid == 0 {
		limit *= 4
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[uid] >= limit {
		return false
	}
	l.open[uid]++
	return true
}

func (l *listener) give(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[uid]--; l.open[uid] == 0 {
		delete(l.open, uid)
	}
}

// refuse says why, if the client listens, and does not wait for it.
func refuse(c net.Conn) {
	const body = `{"type":"docs/errors.md#` + mgmt.CodeOverloaded + `","title":"too many at once","status":503,` +
		`"detail":"you have too many connections open","code":"` + mgmt.CodeOverloaded + `","retry":true,"state":"nothing was changed"}`
	_ = c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)) // it fits the socket's buffer
	fmt.Fprintf(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", mgmt.MediaProblem, len(body), body)
	_ = c.Close()
}

type peerConn struct {
	*net.UnixConn
	peer    Peer
	release func()
}

// Peer is who connected.
func (c *peerConn) Peer() Peer { return c.peer }

// Close gives the connection's place back.
func (c *peerConn) Close() error {
	c.release()
	return c.UnixConn.Close()
}

func peerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return Peer{}, err
	}
	if credErr != nil {
		return Peer{}, credErr
	}
	return Peer{Known: true, UID: cred.Uid, PID: uint32(cred.Pid)}, nil
}
