package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"

	"baton/mgmt/server"

	"github.com/coreos/go-systemd/v22/activation"
)

// passed are the sockets that whoever started the agent opened for it. They
// stay open as long as the process lives: an agent that starts anew within it
// answers on the same socket.
var passed = sync.OnceValue(func() []*os.File { return activation.Files(true) })

// listen listens on the socket that was passed to the agent (systemd's socket
// activation), and on a socket of its own at path where none was.
func listen(path string, log *slog.Logger) (net.Listener, error) {
	return listenOn(passed(), path, log)
}

func listenOn(sockets []*os.File, path string, log *slog.Logger) (net.Listener, error) {
	switch len(sockets) {
	case 0:
		return server.Listen(path)
	case 1:
	default:
		var names []string
		for _, f := range sockets {
			names = append(names, f.Name())
		}
		return nil, fmt.Errorf("%d sockets were passed to the agent (%s), which answers on one: leave one ListenStream= in batond.socket", len(sockets), strings.Join(names, ", "))
	}
	l, err := server.Inherit(sockets[0])
	if err != nil {
		return nil, err
	}
	if at := l.Addr().String(); at != path {
		log.Warn("the socket that was passed is used, not the configured one", "passed", at, "configured", path)
	}
	return l, nil
}
