// Init is PID 1 of a board: it prepares the system, keeps batond and something to
// talk to on the console running, feeds the watchdog while batond is alive
// (guard.go), sees a new image through its trial (trial.go), and takes the system
// down again.
//
// It is deliberately small. What it finds in the root file system is put there
// by images/mkimage: /etc/board, /etc/clock-floor, /etc/modules and
// /etc/modules.late, /lib/modules. Nothing that is absent or fails keeps batond from being started.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	agent       = "/bbin/batond"
	agentConfig = "/etc/baton/batond.json"
	agentLog    = "/var/log/batond.log"
	initLog     = "/var/log/init.log"
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

	said = &keeper{name: initLog}
	mounts()
	say("up")
	cmdline, _ := os.ReadFile("/proc/cmdline")
	bound, err := trialTime(string(cmdline))
	if err != nil {
		say("image: %v", err)
	}
	trialBound = bound
	b := &board{kids: newChildren(), report: newReport(stateFile, uptime)}
	b.report.hold()
	b.guard = &guard{look: b.agent, report: b.report, say: say}
	raised := raiseClock("/etc/clock-floor")
	b.report.update(func(s *state) { s.Clock.SetFromFloor = raised })

	// Servers find their devices only when the agent has looked. So it goes
	// first: it waits for the devices of modules by itself, and all that it can
	// do without waits until it has begun.
	go b.kids.reap()
	b.start()
	ctx, endGuarding := context.WithCancel(context.Background())
	var guarding sync.WaitGroup
	guarding.Go(func() { b.guard.run(ctx) })
	b.armWatchdog(false)
	loopbackUp()
	nameHost()
	t := &trial{open: openBanks, health: b.guard.health, uptime: uptime, report: b.report, say: say, restart: func() {
		select {
		case down <- restart:
		default: // it is going down already
		}
	}}
	early, alone := make(chan struct{}), make(chan struct{})
	guarding.Go(func() {
		defer close(alone)
		first, end := context.WithTimeout(ctx, firstTime)
		defer end()
		select {
		case <-early: // what the agent waited for before is there
		case <-first.Done():
		}
		b.guard.await(first)
		b.report.release()
		go console(b.kids)
	})
	guarding.Go(func() {
		b.loadModules("/etc/modules")
		close(early)
		<-alone
		b.loadModules("/etc/modules.late")
		b.report.update(func(s *state) { s.ModulesLoaded = true })
		b.armWatchdog(true)
		t.run(ctx) // the flash's modules are loaded by now
	})

	how := <-down
	say("going down")
	endGuarding() // what it has fed last lasts until the end, or bites
	guarded := make(chan struct{})
	go func() { guarding.Wait(); close(guarded) }()
	select {
	case <-guarded:
	case <-time.After(endTime): // a module whose driver hangs, perhaps
		say("something hangs, and is not waited for")
	}
	b.takeDown(how)
}

// board is what PID 1 looks after.
type board struct {
	kids   *children
	daemon atomic.Pointer[daemon] // nil = not started yet
	report *report
	guard  *guard
	dog    *watchdog // nil = none
}

// start starts the agent.
func (b *board) start() {
	d := &daemon{
		kids: b.kids,
		path: agent,
		args: []string{"-config", agentConfig},
		log:  agentLog,
		stop: make(chan struct{}),
		done: make(chan struct{}),
	}
	b.daemon.Store(d)
	go d.supervise()
}

// agent is the agent's present process.
func (b *board) agent() process {
	if d := b.daemon.Load(); d != nil {
		return d.look()
	}
	return process{}
}

func (b *board) loadModules(list string) {
	loadModules(list, "/lib/modules", loadModule, func(what string) {
		say("module %s", what)
		b.report.update(func(s *state) { s.ModulesFailed = append(s.ModulesFailed, what) })
	})
}

// armWatchdog arms the watchdog, if there is one: at once where its driver is
// built in, and a last time when all modules are loaded.
func (b *board) armWatchdog(last bool) {
	if b.dog != nil {
		return
	}
	cmdline, _ := os.ReadFile("/proc/cmdline")
	asked, off, err := askedTime(string(cmdline))
	if off {
		if last {
			say("watchdog: left alone, by %soff on the kernel's command line", watchdogWord)
		}
		return
	}
	if err != nil && !last {
		say("watchdog: %v; it is asked for %v", err, asked)
	}
	w, err := openWatchdog(watchdogDevice, asked)
	switch {
	case errors.Is(err, fs.ErrNotExist) && last:
		say("watchdog: this board has none (%s): an agent that hangs is not restarted by itself", watchdogDevice)
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		say("watchdog: %s: %v", watchdogDevice, err)
	}
	if w == nil {
		return
	}
	b.dog = w
	b.guard.arm(w)
	said := ""
	if w.bitten {
		said = "; it was what restarted the board"
	}
	say("watchdog: %s, %v%s", w.identity, w.time, said)
	b.report.update(func(s *state) {
		s.Watchdog = &watchdogState{Device: watchdogDevice, Identity: w.identity, TimeoutS: seconds(w.time), Fed: err == nil, BootStatus: w.status, Bitten: w.bitten}
	})
}

// takeDown ends batond, then everything else, then the system. It does not
// return. The watchdog runs on, so that an end which hangs is bitten; it is
// stopped only where the board is to stay off.
func (b *board) takeDown(how os.Signal) {
	feed := func() {
		if b.dog != nil {
			_ = b.dog.feed() // what was to be said about that has been said
		}
	}
	feed()
	if d := b.daemon.Load(); d != nil {
		d.end(endTime)
	}
	feed()
	_ = syscall.Kill(-1, syscall.SIGTERM) // everyone but us
	time.Sleep(killAfter)
	_ = syscall.Kill(-1, syscall.SIGKILL)
	syscall.Sync()
	command := syscall.LINUX_REBOOT_CMD_RESTART
	if how == powerOff {
		command = syscall.LINUX_REBOOT_CMD_POWER_OFF
		if b.dog != nil {
			if err := b.dog.disarm(); err != nil {
				say("watchdog: it may start the board again in %v: %v", b.dog.time, err)
			}
		}
	}
	if err := syscall.Reboot(command); err != nil {
		say("reboot: %v", err)
	}
	// Where the power is not switched the kernel has halted by now. Should it
	// have refused, the board still waits here for its power to be cut.
	select {}
}

// firstTime is how long the agent may have the processors for itself at most.
const firstTime = 4 * time.Second

const (
	endTime   = 5 * time.Second        // of the agent's own end
	killAfter = 200 * time.Millisecond // of everybody else's
)

// uptime is the time since the kernel started.
func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // no kernel of this century
	}
	return time.Duration(t.Nano())
}

// said keeps what PID 1 says, beside the console; nil = nothing does.
var said *keeper

// say writes one line to the console and to the log, with the time since the
// kernel started.
func say(format string, args ...any) {
	line := fmt.Sprintf("init: [%.2f] %s\n", uptime().Seconds(), fmt.Sprintf(format, args...))
	_, _ = os.Stderr.WriteString(line) // a console that is gone keeps nothing from being done
	if said != nil {
		said.keep([]byte(line))
	}
}
