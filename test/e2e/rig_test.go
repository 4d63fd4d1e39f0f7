//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"baton/images/boards"
	"baton/images/qemu"
	"baton/mgmt"
)

// bootMax is generous: a boot takes 8 s on an idle machine.
const bootMax = 3 * time.Minute

// board is a board under test.
type board struct {
	t       *testing.T
	ctx     context.Context
	machine *qemu.Machine
	console *os.File
	vm      *qemu.VM

	generation string        // the last one seen
	moveTime   time.Duration // of an undisturbed move, from command to prompt
	boots      []time.Duration
	found      map[string]int // by power cuts
}

// newBoard prepares a board with new EEPROMs. What it leaves in
// build/e2e/BOARD, the console's text and the EEPROMs, is for whoever looks
// into a failure.
func newBoard(t *testing.T, name string) *board {
	t.Helper()
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	hardware, err := boards.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(build, "e2e", name)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	b := &board{
		t: t,
		machine: &qemu.Machine{
			Board: hardware,
			Image: filepath.Join(build, "images", name),
			State: dir,
		},
		found: map[string]int{},
	}
	if err := b.machine.Prepare(); err != nil {
		t.Fatal(err)
	}
	if b.console, err = os.Create(filepath.Join(dir, "console.log")); err != nil {
		t.Fatal(err)
	}
	t.Logf("console: %s", b.console.Name())

	ctx := context.Background()
	cancel := func() {}
	if end, ok := t.Deadline(); ok {
		// Time to say what was waited for.
		ctx, cancel = context.WithDeadline(ctx, end.Add(-10*time.Second))
	}
	b.ctx = ctx
	t.Cleanup(func() {
		cancel()
		if b.vm != nil {
			b.vm.Kill()
		}
		b.console.Close()
	})
	return b
}

// boot starts the board and waits until batond answers.
func (b *board) boot() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, bootMax)
	defer cancel()
	start := time.Now()
	fmt.Fprintf(b.console, "\n=== boot %d\n", len(b.boots)+1)
	vm, err := b.machine.Start(ctx, b.console)
	if err != nil {
		b.t.Fatal(err)
	}
	b.vm = vm
	if _, err := vm.Console.Expect(ctx, regexp.MustCompile(`Try: baton status`)); err != nil {
		b.t.Fatalf("boot: %v", err)
	}
	for {
		output, status, err := vm.Console.Run(ctx, "baton status --json")
		if err != nil {
			b.t.Fatal(err)
		}
		if status == 0 {
			break
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			log, _, _ := vm.Console.Run(b.ctx, "cat /var/log/batond.log")
			b.t.Fatalf("batond does not answer: %s\nits log:\n%s", output, log)
		}
	}
	b.boots = append(b.boots, time.Since(start).Round(100*time.Millisecond))
}

// run runs a command at the board's console.
func (b *board) run(command string) (output string, status int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	output, status, err := b.vm.Console.Run(ctx, command)
	if err != nil {
		b.t.Fatal(err)
	}
	return output, status
}

// must runs a command that has to succeed.
func (b *board) must(command string) string {
	b.t.Helper()
	output, status := b.run(command)
	if status != 0 {
		log, _ := b.run("cat /var/log/batond.log")
		b.t.Fatalf("%s: status %d:\n%s\nbatond's log:\n%s", command, status, output, log)
	}
	return output
}

// enclosure is what batond says of all.
func (b *board) enclosure() mgmt.Enclosure {
	b.t.Helper()
	output := b.must("baton status --json")
	var e mgmt.Enclosure
	if err := json.Unmarshal([]byte(output), &e); err != nil {
		b.t.Fatalf("baton status --json: %v:\n%s", err, output)
	}
	return e
}

// content is what an EEPROM holds, read from outside the board.
func (b *board) content(eeprom string) []byte {
	b.t.Helper()
	data, err := os.ReadFile(b.machine.EEPROM(eeprom))
	if err != nil {
		b.t.Fatal(err)
	}
	return data
}
