package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/mgmt"
	"baton/mgmt/config"
	"baton/nvm"
)

// serveHere runs the bench's agent in this process until the test ends.
func (b *bench) serveHere() *agent {
	b.t.Helper()
	text, err := json.MarshalIndent(b.config, "", " ")
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(b.path("batond.json"), text, 0o600); err != nil {
		b.t.Fatal(err)
	}
	s, err := readSeed(b.path("batond.json"))
	if err != nil {
		b.t.Fatal(err)
	}
	a := newAgent(s, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.serve(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("the agent ended with %v", err)
		}
		a.close()
	})
	b.until("the agent to answer", func() bool { _, err := b.agent.Enclosure(b.t.Context()); return err == nil })
	return a
}

// TestRestartInPlace: a configuration that needs a start of the agent gets one.
// It touches no link, register or page, and no client sees more of it than a
// wait.
func TestRestartInPlace(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t)
	b.serveBus()
	b.config["store"].(map[string]any)["config"] = true
	a := b.serveHere()
	b.unfence()
	if m, err := b.move(1, "server1"); err != nil || m.State != "done" {
		t.Fatalf("%+v, %v", m, err)
	}
	k := a.current(t.Context()).keeper
	text := strings.Replace(k.Config().Text, `"enclosure": "bench"`, `"enclosure": "bench2"`, 1)

	var asked, failed atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			c := mgmt.Dial(b.path("sock"))
			defer c.Close()
			for {
				select {
				case <-stop:
					return
				default:
				}
				asked.Add(1)
				if _, err := c.Slots(t.Context()); err != nil {
					failed.Add(1)
					t.Logf("a client: %v", err)
				}
			}
		})
	}
	// What happened so far is in the audit before anything is counted.
	was, since := uint64(0), time.Now()
	b.until("the audit to be written", func() bool {
		if n := b.w.PageWrites("store"); n != was {
			was, since = n, time.Now()
		}
		return time.Since(since) > 2*time.Second
	})
	pages, blocks, regs := b.w.PageWrites("store"), b.w.PageWrites("gpu0")+b.w.PageWrites("gpu1"), b.w.Slot("gpu0").RegisterWrites()
	engine := b.w.Slot("gpu0").Registers()
	applied, err := k.Apply(t.Context(), mgmt.ConfigRequest{Text: text, Restart: true}, "test")
	if err != nil || !applied.Restarting {
		t.Fatalf("%+v, %v", applied, err)
	}
	b.until("the next run", func() bool { return b.enclosure().Name == "bench2" })
	close(stop)
	clients.Wait()
	if asked.Load() < 10 || failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), asked.Load())
	}
	// The configuration is in the store; beside it there may be records of what
	// happened, which a run writes at its end. The engines' chips are left alone.
	want := uint64((len(config.Pack([]byte(text)))+10+50)/51 + 1) // and the mark
	if n := b.w.PageWrites("store") - pages; n < want || n > want+16 {
		t.Errorf("%d page writes to the store; want %d, all of the configuration", n, want)
	}
	if n := b.w.PageWrites("gpu0") + b.w.PageWrites("gpu1") - blocks; n != 0 {
		t.Errorf("%d page writes to the engines' chips", n)
	}
	if n := b.w.Slot("gpu0").RegisterWrites() - regs; n != 0 {
		t.Errorf("%d bytes written to registers", n)
	}
	// Control, counters of resets and link changes, the peer: all of it.
	if now := b.w.Slot("gpu0").Registers(); now != engine || b.reached() != "gpu0:server1 gpu1:server1" {
		t.Errorf("engine % x\nbefore % x\nreached %s", now, engine, b.reached())
	}
	next := a.current(t.Context()).keeper
	if c := next.Config(); c.Version != 1 || c.Text != text || next == k {
		t.Errorf("version %d of the next run", c.Version)
	}
	if m, err := b.move(2, "server2"); err != nil || m.State != "done" {
		t.Errorf("move: %+v, %v", m, err)
	}
	// And once more, for no reason.
	a.current(t.Context()).keeper.Restart("the test wants it")
	b.until("the run after that", func() bool {
		s := a.current(t.Context())
		return s.keeper != next && b.enclosure().Name == "bench2"
	})
}

// TestSocketMoves: in a file the socket can be changed as well.
func TestSocketMoves(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.serveBus()
	a := b.serveHere()
	k := a.current(t.Context()).keeper
	text := strings.Replace(k.Config().Text, b.path("sock"), b.path("other"), 1)
	if applied, err := k.Apply(t.Context(), mgmt.ConfigRequest{Text: text, Restart: true}, "test"); err != nil || !applied.Restarting {
		t.Fatalf("%+v, %v", applied, err)
	}
	other := mgmt.Dial(b.path("other"))
	defer other.Close()
	b.until("the other socket", func() bool { _, err := other.Enclosure(t.Context()); return err == nil })
	if _, err := os.Stat(b.path("sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of before is left: %v", err)
	}
	// A file that is broken by hand does not end an agent that runs.
	if err := os.WriteFile(b.path("batond.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	was := a.current(t.Context()).keeper
	was.Restart("the test wants it")
	b.until("the next run", func() bool {
		s := a.current(t.Context())
		_, err := other.Enclosure(t.Context())
		return s.keeper != was && err == nil
	})
	if c := a.current(t.Context()).keeper.Config(); c.Text != text {
		t.Errorf("it goes on with\n%s", c.Text)
	}
}

// TestSocketFails: an agent whose new socket can not be made goes on answering
// on the one of before, so that it can be told another.
func TestSocketFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.serveBus()
	a := b.serveHere()
	for _, edit := range [][2]string{{b.path("sock"), b.path("none/sock")}, {b.path("none/sock"), b.path("sock")}} {
		was := a.current(t.Context()).keeper
		text := strings.Replace(was.Config().Text, edit[0], edit[1], 1)
		if applied, err := was.Apply(t.Context(), mgmt.ConfigRequest{Text: text, Restart: true}, "test"); err != nil || !applied.Restarting {
			t.Fatalf("%+v, %v", applied, err)
		}
		b.until("the next run", func() bool {
			_, err := b.agent.Enclosure(t.Context())
			return err == nil && a.current(t.Context()).keeper != was
		})
		warned := slices.ContainsFunc(b.enclosure().Warnings, func(w string) bool { return strings.Contains(w, "none/sock") })
		if warned != strings.Contains(edit[1], "none") {
			t.Errorf("warnings %q", b.enclosure().Warnings)
		}
	}
}

// TestRunDirFails: a run_dir with which no agent could start is refused, and
// the file stays as it was.
func TestRunDirFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.serveBus()
	a := b.serveHere()
	k := a.current(t.Context()).keeper
	was := k.Config()
	var c map[string]any
	if err := json.Unmarshal([]byte(was.Text), &c); err != nil {
		t.Fatal(err)
	}
	c["run_dir"] = b.path("sock") + "/run" // below something that is no directory
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = k.Apply(t.Context(), mgmt.ConfigRequest{Text: string(text), Restart: true}, "test")
	if e, ok := errors.AsType[*enclosure.Error](err); !ok || e.Code != enclosure.CodeBadConfig || !strings.Contains(e.Error(), "run_dir") {
		t.Fatalf("%v; want a refusal of run_dir", err)
	}
	if now := k.Config(); now.Version != was.Version || now.Text != was.Text {
		t.Errorf("kept all the same: %+v", now)
	}
}

// TestStoreInDoubt: where nobody knows whether a record was written the agent
// starts again in place, and systemd hears nothing of it.
func TestStoreInDoubt(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t)
	b.serveBus()
	conn := b.systemd()
	p := b.start("NOTIFY_SOCKET=" + b.path("notify"))
	b.unfence()
	if m, err := b.move(1, "server1"); err != nil || m.State != "done" {
		t.Fatalf("%+v, %v", m, err)
	}
	doubted := false
	// The store's chip stops answering in the middle of a write, sooner or later.
	for i := 0; i < 40 && !doubted; i++ {
		done := make(chan error, 1)
		go func() { done <- b.agent.Unfence(t.Context(), "server2", b.enclosure().Hosts[1].Epoch) }()
		time.Sleep(time.Duration(i%8) * 2 * time.Millisecond)
		b.w.Chip("store").SetDead(true)
		<-done // it may have been through
		b.w.Chip("store").SetDead(false)
		log, err := os.ReadFile(b.path("log"))
		if err != nil {
			t.Fatal(err)
		}
		doubted = strings.Contains(string(log), "starts again in place") || !b.enclosure().Store.OK
	}
	if !doubted {
		t.Fatal("the store was never in doubt")
	}
	b.until("a store that is known again", func() bool { return b.enclosure().Store.OK })
	b.unfence()
	if m, err := b.move(2, "server2"); err != nil || m.State != "done" {
		t.Errorf("move: %+v, %v", m, err)
	}
	if p.cmd.ProcessState != nil {
		t.Error("the process has ended")
	}
	p.end()
	var said []string
	buf := make([]byte, 100)
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	for {
		n, err := conn.Read(buf)
		if err != nil {
			break
		}
		state, _, _ := strings.Cut(string(buf[:n]), "STATUS=") // words for people
		if state = strings.TrimSuffix(state, "\n"); state != "" {
			said = append(said, state)
		}
	}
	if !slices.Equal(said, []string{"READY=1", "STOPPING=1"}) {
		t.Errorf("systemd heard %q", said)
	}
	if v := b.w.Violations(); len(v) > 0 {
		t.Errorf("violations: %q", fmt.Sprint(v))
	}
}

// A frozen run looks at no config block: one that a power cut has torn is still to
// be rewritten by the run that comes after it.
func TestFrozenRunLeavesTheBootAsItWas(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t)
	store, err := nvm.Format(t.Context(), nvm.NewEEPROM(b.w.Bus("bus0"), 0x57, nvm.Parts["24c256"]), 1, nvm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	junk := plan.Configuration{Version: 5, Packed: []byte("no deflate")}
	if err := store.Put(t.Context(), nvm.Normal, nvm.Record{Key: plan.KeyConfiguration, Value: junk.Encode()}); err != nil {
		t.Fatal(err)
	}
	b.serveBus()
	b.config["store"].(map[string]any)["config"] = true
	a := b.serveHere()
	if k := a.current(t.Context()).keeper; k.frozen == nil {
		t.Fatal("it is not frozen")
	}
	if a.mounted != "" {
		t.Error("the next run takes every page for whole")
	}
}

// TestRestartWaitsForNobody: an agent that serves does not keep its clients for
// devices that are not there, which may never come.
func TestRestartWaitsForNobody(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t)
	b.serveBus()
	a := b.serveHere()
	b.config["store"] = map[string]any{"mtd": "no such partition"}
	b.config["network"] = map[string]any{"interface": "absent0", "address": "192.0.2.7/24"}
	text, err := json.Marshal(b.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.path("batond.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	a.current(t.Context()).keeper.Restart("test")
	var e mgmt.Enclosure
	b.until("the next run", func() bool { e = b.enclosure(); return !e.Store.OK })
	if d := time.Since(begin); d >= storeWait {
		t.Errorf("clients have waited %v", d)
	}
	if !strings.Contains(e.Store.Problem, "no such partition") || !strings.Contains(strings.Join(e.Warnings, "\n"), "absent0") {
		t.Errorf("store %+v, warnings %q; want both named", e.Store, e.Warnings)
	}
}
