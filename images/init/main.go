// Init is PID 1 of a board: it prepares the system, keeps batond and a shell on
// the console running, and takes the system down again.
//
// It is deliberately small. What it finds in the root file system is put there
// by images/mkimage: /etc/board, /etc/clock-floor, /etc/modules and
// /etc/modules.late, /lib/modules. Nothing that is absent or fails keeps batond from being started.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const (
	agent       = "/bbin/batond"
	agentConfig = "/etc/baton/batond.json"
	agentLog    = "/var/log/batond.log"
	shell       = "/bbin/gosh"
)

// Signals that take the system down, sent by the commands reboot and poweroff.
const (
	restart  = syscall.SIGTERM
	powerOff = syscall.SIGUSR2
)

// environment is that of all children.
var environment = []string{
	"PATH=/bbin:/bin",
	"HOME=/root",
	"TERM=vt100", // what a serial console can be relied on to be
}

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: only the kernel starts it; see reboot and poweroff")
		os.Exit(2)
	}
	// A signal nobody handles would end this process, and with it the kernel;
	// one that is only ignored would be ignored by all children as well. So
	// all are caught, by a channel that is never read.
	signal.Notify(make(chan os.Signal, 1))
	down := make(chan os.Signal, 1)
	signal.Notify(down, restart, powerOff)

	mounts()
	say("up")
	raiseClock("/etc/clock-floor")
	loadModules("/etc/modules")
	loopbackUp()
	nameHost()

	kids := newChildren()
	go kids.reap()
	d := &daemon{
		kids: kids,
		path: agent,
		args: []string{"-config", agentConfig},
		log:  agentLog,
		stop: make(chan struct{}),
		done: make(chan struct{}),
	}
	go d.supervise()
	go console(kids)
	loadModules("/etc/modules.late")

	switch <-down {
	case restart:
		takeDown(d, syscall.LINUX_REBOOT_CMD_RESTART)
	case powerOff:
		takeDown(d, syscall.LINUX_REBOOT_CMD_POWER_OFF)
	}
}

// say writes one line to the console, with the time since the kernel started.
func say(format string, args ...any) {
	uptime, _ := os.ReadFile("/proc/uptime")
	up, _, _ := strings.Cut(string(uptime), " ")
	fmt.Fprintf(os.Stderr, "init: [%s] %s\n", up, fmt.Sprintf(format, args...))
}

// takeDown ends batond, then everything else, then the system. It does not
// return.
func takeDown(d *daemon, how int) {
	say("going down")
	d.end(5 * time.Second)
	_ = syscall.Kill(-1, syscall.SIGTERM) // everyone but us
	time.Sleep(200 * time.Millisecond)
	_ = syscall.Kill(-1, syscall.SIGKILL)
	syscall.Sync()
	if err := syscall.Reboot(how); err != nil {
		say("reboot: %v", err)
	}
	// Where the power is not switched the kernel has halted by now. Should it
	// have refused, the board still waits here for its power to be cut.
	select {}
}
