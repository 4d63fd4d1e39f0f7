package qemu

import (
	"encoding/json"
	"io"
	"os"
	"sync"
	"syscall"
)

// Ending says how a machine ended.
type Ending string

// How a machine ends. With -no-reboot a reset ends QEMU.
const (
	EndReset Ending = "reset" // the board restarted itself
	// The watchdog restarted the board. Where the kernel has no other means to
	// restart it, as on Aspeed and i.MX, "reboot" ends like this too.
	EndWatchdog  Ending = "watchdog"
	EndPowerDown Ending = "power down" // the board switched itself off
	EndPanic     Ending = "panic"      // the guest told QEMU of a panic
	EndKilled    Ending = "killed"     // QEMU ended without a word: Kill, or a crash
)

// qmp is the connection to QEMU's monitor, on which it tells why it ends
// (QEMU, docs/interop/qmp-spec.txt; events SHUTDOWN and WATCHDOG).
type qmp struct {
	theirs *os.File // QEMU's end, to be closed when QEMU has it
	ended  chan struct{}

	mu     sync.Mutex
	ending Ending
}

// newQMP follows what QEMU tells, until QEMU has ended and theirs is closed.
func newQMP() (*qmp, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "qmp")
	q := &qmp{theirs: os.NewFile(uintptr(fds[1]), "qmp"), ended: make(chan struct{}), ending: EndKilled}
	// QEMU sends events once this has been said. It waits in the socket.
	if _, err := io.WriteString(ours, `{"execute":"qmp_capabilities"}`+"\n"); err != nil {
		ours.Close()
		q.theirs.Close()
		return nil, err
	}
	go func() {
		defer close(q.ended)
		defer ours.Close()
		q.follow(ours)
	}()
	return q, nil
}

// follow reads events until there are no more.
func (q *qmp) follow(r io.Reader) {
	bitten := false
	for d := json.NewDecoder(r); ; {
		var e struct {
			Event string `json:"event"`
			Data  struct {
				Action string `json:"action"`
				Reason string `json:"reason"`
			} `json:"data"`
		}
		if d.Decode(&e) != nil {
			return
		}
		switch e.Event {
		case "WATCHDOG":
			bitten = true
		case "SHUTDOWN":
			q.end(e.Data.Reason, bitten)
		}
	}
}

func (q *qmp) end(reason string, bitten bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case reason == "guest-reset" && bitten:
		q.ending = EndWatchdog
	case reason == "guest-reset":
		q.ending = EndReset
	case reason == "guest-shutdown":
		q.ending = EndPowerDown
	case reason == "guest-panic":
		q.ending = EndPanic
	}
}

func (q *qmp) how() Ending {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ending
}
