package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// stateFile is where others read how PID 1 sees the board ('baton check').
const stateFile = "/run/init/state.json"

// state is the content of stateFile. Names are kept: other programs read it.
type state struct {
	// UptimeS is the time since the kernel's start at which this was written.
	UptimeS  int            `json:"uptime_s"`
	Agent    agentState     `json:"agent"`
	Watchdog *watchdogState `json:"watchdog,omitempty"` // absent = there is none
	Clock    clockState     `json:"clock"`
	Image    *imageState    `json:"image,omitempty"` // absent = not booted from a bank
	// ModulesFailed are names with the reason. Modules are all loaded once
	// ModulesLoaded is true.
	ModulesFailed []string `json:"modules_failed"`
	ModulesLoaded bool     `json:"modules_loaded"`
}

type agentState struct {
	PID      int    `json:"pid"` // 0 = it is not running
	Restarts int    `json:"restarts"`
	Health   string `json:"health"`         // a wellness
	Text     string `json:"text,omitempty"` // as the agent answered
	SinceS   int    `json:"since_s"`        // for how long it has been so
}

type watchdogState struct {
	Device     string `json:"device"`
	Identity   string `json:"identity"`
	TimeoutS   int    `json:"timeout_s"`
	Fed        bool   `json:"fed"`
	BootStatus int    `json:"bootstatus"` // WDIOC_GETBOOTSTATUS
	Bitten     bool   `json:"bitten"`     // it was what restarted the board; some drivers can not tell
}

type clockState struct {
	SetFromFloor bool `json:"set_from_floor"` // it was earlier than the image
}

type imageState struct {
	Bank    string `json:"bank"` // a or b
	Trial   bool   `json:"trial"`
	Outcome string `json:"outcome,omitempty"` // of a trial that ended with this start, or in it
}

// report keeps a file up to date.
type report struct {
	file   string
	uptime func() time.Duration

	mu     sync.Mutex
	held   bool // nobody reads it yet
	now    state
	failed bool // it could not be written, which was said
}

func newReport(file string, uptime func() time.Duration) *report {
	return &report{file: file, uptime: uptime, now: state{ModulesFailed: []string{}}}
}

// update changes the state and writes it, whole or not at all.
func (r *report) update(change func(*state)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.now)
	if r.held {
		return
	}
	r.now.UptimeS = seconds(r.uptime())
	err := r.write()
	if err != nil && !r.failed {
		say("state: %v", err)
	}
	r.failed = err != nil
}

// hold keeps the file from being written until release: who reads it comes
// later, and writing it takes time from the agent's start.
func (r *report) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = true
}

func (r *report) release() {
	r.mu.Lock()
	r.held = false
	r.mu.Unlock()
	r.update(func(*state) {})
}

func (r *report) write() error {
	text, err := json.Marshal(r.now)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(r.file+".new", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(r.file+".new", r.file)
}

func seconds(d time.Duration) int { return int(d / time.Second) }
