package server

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"baton/mgmt"
	"baton/mgmt/server/servertest"
)

// TestInherit: on a socket of somebody else's, peers have their roles and
// connections their bound, as on one of its own.
func TestInherit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	own, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	f, err := own.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	l, err := Inherit(f)
	if err != nil {
		t.Fatal(err)
	}
	s := New(servertest.New(), Options{AdminUID: uint32(os.Geteuid()), Keeper: servertest.NewKeeper()})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	c := mgmt.Dial(path)
	if _, err := c.Fence(ctx, "server1"); err != nil {
		t.Errorf("as admin: %v", err)
	}
	c.Close()

	limit := maxConns
	if os.Geteuid() == 0 {
		limit *= 4
	}
	for i := range limit + 2 { // the client's connection may still count
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if i < limit+1 {
			continue
		}
		if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("one connection too many: %v, %v", resp, err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the socket's file is not the server's to take away: %v", err)
	}
	if conn, err := net.Dial("unix", path); err != nil {
		t.Errorf("the socket ended with the listener: %v", err)
	} else {
		_ = conn.Close()
	}
}
