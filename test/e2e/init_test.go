//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"baton/images/rootfs"
)

// initState is what PID 1 says of the board (images/init/state.go).
type initState struct {
	Agent struct {
		PID      int    `json:"pid"`
		Restarts int    `json:"restarts"`
		Health   string `json:"health"`
	} `json:"agent"`
	Watchdog *struct {
		Identity string `json:"identity"`
		TimeoutS int    `json:"timeout_s"`
		Fed      bool   `json:"fed"`
	} `json:"watchdog"`
	Clock struct {
		SetFromFloor bool `json:"set_from_floor"`
	} `json:"clock"`
	ModulesFailed []string `json:"modules_failed"`
	ModulesLoaded bool     `json:"modules_loaded"`
}

// biteTime is the watchdog's in these tests; in a board's life it is a minute.
const biteTime = 15 * time.Second

// TestInit boots twice: what PID 1 does for the agent and by the watchdog, and
// the network that is there before the socket.
func TestInit(t *testing.T) {
	b := newBoard(t, "ast2600-evb")
	b.machine.Append = append(b.machine.Append, "baton.watchdog="+biteTime.String())
	b.machine.Overlay = append(b.machine.Overlay, b.probe())
	b.boot()
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"State", b.stateIsTold},
		{"Reaps", b.reaps},
		{"FloodedSocket", b.flooded},
		{"KilledAgent", b.agentKilled},
		{"BrokenConfiguration", b.agentEndsAgainAndAgain},
		{"StoppedAgent", b.agentStopped},
		{"NetworkBeforeSocket", b.networkFirst},
		{"PowerOff", b.staysOff},
	} {
		t.Run(step.name, func(t *testing.T) {
			b.t = t
			step.do()
		})
		b.t = t
		if t.Failed() {
			return
		}
	}
}

// probe builds the tests' own program for the board, as an overlay.
func (b *board) probe() string {
	b.t.Helper()
	dir := b.t.TempDir()
	file := filepath.Join(dir, "probe")
	hw := b.machine.Board
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, "./probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+hw.GOARCH, "GOARM="+hw.GOARM)
	if out, err := build.CombinedOutput(); err != nil {
		b.t.Fatalf("probe: %v\n%s", err, out)
	}
	overlay := filepath.Join(dir, "probe.cpio")
	if err := rootfs.WriteOverlay(overlay, map[string]string{"bin/probe": file}); err != nil {
		b.t.Fatal(err)
	}
	return overlay
}

func (b *board) initState() initState {
	b.t.Helper()
	var s initState
	text := b.look("cat /run/init/state.json")
	if i := strings.Index(text, "{"); i >= 0 {
		text, _, _ = strings.Cut(text[i:], "\n")
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		b.t.Fatalf("state.json: %v:\n%s", err, text)
	}
	if s.Watchdog == nil {
		b.t.Fatalf("no watchdog:\n%s\n%s", text, b.look("cat /var/log/init.log"))
	}
	return s
}

// look runs a command that changes nothing. What PID 1 says on the console may
// come between its output and the marks around it, so it is tried again.
func (b *board) look(command string) string {
	b.t.Helper()
	for range 5 {
		ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
		output, status, err := b.vm.Console.Run(ctx, command)
		cancel()
		if err == nil && status == 0 {
			return output
		}
	}
	return b.must(command)
}

// untilState waits until PID 1 tells what is looked for.
func (b *board) untilState(what string, most time.Duration, is func(initState) bool) initState {
	b.t.Helper()
	for end := time.Now().Add(most); ; time.Sleep(500 * time.Millisecond) {
		s := b.initState()
		if is(s) {
			return s
		}
		if time.Now().After(end) {
			b.t.Fatalf("waited %v for %s; last: %+v\n%s", most, what, s, b.look("cat /var/log/init.log"))
		}
	}
}

func isWell(s initState) bool { return s.Agent.Health == "ok" && s.Watchdog.Fed && s.ModulesLoaded }

func (b *board) stateIsTold() {
	s := b.untilState("a well agent", time.Minute, isWell)
	if !strings.Contains(s.Watchdog.Identity, "aspeed") || s.Watchdog.TimeoutS != int(biteTime/time.Second) {
		b.t.Errorf("watchdog: %+v", *s.Watchdog)
	}
	// The board has no battery: its clock says 1970 at each start.
	if !s.Clock.SetFromFloor || len(s.ModulesFailed) > 0 || s.Agent.PID == 0 || s.Agent.Restarts != 0 {
		b.t.Errorf("state: %+v", s)
	}
	b.t.Logf("PID 1 has said:\n%s", b.look("cat /var/log/init.log"))
}

// reaps: orphans are PID 1's, and leave nothing.
func (b *board) reaps() {
	for range 5 {
		b.must("probe orphan")
	}
	b.must("sleep 2")
	if got := strings.TrimSpace(b.must("probe zombies")); got != "0" {
		b.t.Errorf("%s processes have ended and were not reaped", got)
	}
}

// flooded: hundreds of slow clients, for longer than the watchdog waits.
func (b *board) flooded() {
	before := b.initState()
	b.t.Logf("flood: %s", b.must(fmt.Sprintf("probe flood /run/baton/baton.sock %v", biteTime+10*time.Second)))
	if s := b.initState(); !isWell(s) || s.Agent.PID != before.Agent.PID {
		b.t.Errorf("after the flood: %+v; before: %+v", s, before)
	}
	// On a machine that emulates far too slowly an answer may come late.
	b.t.Logf("PID 1 has said:\n%s", b.look("cat /var/log/init.log"))
}

func (b *board) agentKilled() {
	pid := b.initState().Agent.PID
	b.must(fmt.Sprintf("kill -9 %d; sleep 1", pid)) // PID 1 says so on the console
	s := b.untilState("another agent", time.Minute, func(s initState) bool { return isWell(s) && s.Agent.PID != pid })
	if s.Agent.Restarts != 1 {
		b.t.Errorf("%d restarts; want 1", s.Agent.Restarts)
	}
}

// agentEndsAgainAndAgain: the watchdog does not take the console from whoever
// mends the configuration.
func (b *board) agentEndsAgainAndAgain() {
	const config = "/etc/baton/batond.json"
	b.must("cat " + config + " > /tmp/kept")
	b.must("echo broken > " + config)
	before := b.initState().Agent
	b.must(fmt.Sprintf("kill -9 %d; sleep 1", before.PID))
	for end := time.Now().Add(biteTime + 5*time.Second); time.Now().Before(end); time.Sleep(3 * time.Second) {
		if s := b.initState(); !s.Watchdog.Fed || s.Agent.Health == "ok" && s.Agent.PID != before.PID {
			b.t.Fatalf("with a broken configuration: %+v", s)
		}
	}
	s := b.initState()
	if s.Agent.Restarts < before.Restarts+3 {
		b.t.Errorf("%d restarts in %v; want some", s.Agent.Restarts-before.Restarts, biteTime+5*time.Second)
	}
	b.look("cat /tmp/kept > " + config)
	b.untilState("an agent with its configuration", time.Minute, isWell)
}

// agentStopped: what hangs is bitten.
func (b *board) agentStopped() {
	s := b.initState()
	if _, status := b.run("probe stop " + strconv.Itoa(s.Agent.PID)); status != 0 {
		b.t.Fatal("the agent was not stopped")
	}
	stopped := time.Now()
	ctx, cancel := context.WithTimeout(b.ctx, biteTime+30*time.Second)
	defer cancel()
	if _, err := b.vm.Console.Expect(ctx, regexp.MustCompile(`does not answer: the watchdog is not fed, and restarts the board in \d+s`)); err != nil {
		b.t.Errorf("PID 1 does not say that it lets the watchdog bite: %v", err)
	}
	err := b.vm.Wait(ctx)
	took := time.Since(stopped).Round(100 * time.Millisecond)
	if err != nil {
		b.t.Fatalf("the watchdog has not bitten in %v: %v", took, err)
	}
	b.t.Logf("bitten %v after the agent was stopped", took)
	// It was fed a third of its time before, at most.
	if took < biteTime/2 || took > biteTime+10*time.Second {
		b.t.Errorf("bitten after %v; want about %v", took, biteTime)
	}
}

// networkFirst: with a network in the configuration the socket answers in it.
func (b *board) networkFirst() {
	seed, err := b.machine.Board.ReadFile("batond.json")
	if err != nil {
		b.t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(seed, &c); err != nil {
		b.t.Fatal(err)
	}
	c["network"] = map[string]any{"interface": "eth0", "vlan": 42, "address": ownAddress + "/24"}
	text, err := json.Marshal(c)
	if err != nil {
		b.t.Fatal(err)
	}
	dir := b.t.TempDir()
	file, overlay := filepath.Join(dir, "batond.json"), filepath.Join(b.machine.State, "network.cpio")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := rootfs.WriteOverlay(overlay, map[string]string{"etc/baton/batond.json": file}); err != nil {
		b.t.Fatal(err)
	}
	b.machine.Overlay = append(b.machine.Overlay, overlay)
	b.boot() // returns as soon as the socket answers
	if !b.hasAddress() || !strings.Contains(b.addresses(), "eth0.42") {
		b.t.Errorf("the socket answers, and %s is not there:\n%s", ownAddress, b.addresses())
	}
	log := b.must("cat /var/log/batond.log")
	set, ready := logTime(log, "the controller's own network is set"), logTime(log, "msg=ready")
	if set < 0 || ready < 0 || set > ready {
		b.t.Errorf("network set %v after the agent's start, socket open after %v:\n%s", set, ready, log)
	}
	b.t.Logf("network set %v after the agent's start, socket open after %v", set, ready)
	if ready > 15*time.Second {
		b.t.Errorf("the socket has waited until %v after the agent's start", ready)
	}
}

// logTime is the uptime of the first line with text, or -1.
func logTime(log, text string) time.Duration {
	for line := range strings.SplitSeq(log, "\n") {
		if !strings.Contains(line, text) {
			continue
		}
		_, after, _ := strings.Cut(line, " uptime=")
		word, _, _ := strings.Cut(strings.TrimSpace(after), " ")
		if d, err := time.ParseDuration(word); err == nil {
			return d
		}
	}
	return -1
}

// staysOff: a board whose power is not switched halts, although somebody does
// not want to end, and the watchdog does not wake it.
func (b *board) staysOff() {
	b.untilState("a well agent", time.Minute, isWell)
	b.must("probe stubborn")
	if err := b.vm.Console.Send("poweroff"); err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if _, err := b.vm.Console.Expect(ctx, regexp.MustCompile(`System halted|Power down`)); err != nil {
		b.t.Fatalf("the board does not go down: %v", err)
	}
	waking, end := context.WithTimeout(b.ctx, biteTime+5*time.Second)
	defer end()
	if err := b.vm.Wait(waking); err == nil {
		b.t.Errorf("the board was started again after it was powered off")
	}
}
