//go:build e2e || bench

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"baton/images/boards"
	"baton/images/qemu"
	"baton/images/rootfs"
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

// options are what a test wants of its board beside the image.
type options struct {
	// programs are built for the board and are /test/NAME there.
	programs []program
	// files of this machine, by their path on the board.
	files map[string]string
	args  []string // added to QEMU's
	words []string // added to the kernel's command line
}

// program is a Go package of ours: a command, or the tests of a package.
type program struct {
	name  string
	pkg   string // import path
	tests bool
	tags  string
}

// newBoard prepares a board with new EEPROMs and flash. What it leaves in
// build/e2e/TEST, the console's text and the content of the chips, is for
// whoever looks into a failure.
func newBoard(t *testing.T, name string) *board {
	t.Helper()
	return newBoardWith(t, name, options{})
}

func newBoardWith(t *testing.T, name string, o options) *board {
	t.Helper()
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	hardware, err := boards.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(build, "e2e", filepath.FromSlash(t.Name()))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	b := &board{
		t: t,
		machine: &qemu.Machine{
			Board:  hardware,
			Image:  filepath.Join(build, "images", name),
			State:  dir,
			Args:   o.args,
			Append: o.words,
		},
		found: map[string]int{},
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if len(o.programs)+len(o.files) > 0 {
		b.machine.Overlay = []string{overlay(t, hardware, filepath.Join(dir, "overlay.cpio"), o)}
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

// overlay builds the programs and writes them, and the files, to an archive
// that the image is followed by.
func overlay(t *testing.T, hardware *boards.Board, archive string, o options) string {
	t.Helper()
	files := map[string]string{}
	maps.Copy(files, o.files)
	dir := t.TempDir()
	for _, p := range o.programs {
		out := filepath.Join(dir, p.name)
		args := []string{"build"}
		if p.tests {
			args = []string{"test", "-c"}
		}
		args = append(args, "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-tags", p.tags, "-o", out, p.pkg)
		c := exec.CommandContext(t.Context(), "go", args...)
		c.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+hardware.GOARCH, "GOARM="+hardware.GOARM, "CGO_ENABLED=0")
		if text, err := c.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, text)
		}
		if _, err := os.Stat(out); err != nil {
			t.Fatalf("%s has no tests for %s: %v", p.pkg, hardware.GOARCH, err)
		}
		files[path.Join("test", p.name)] = out
	}
	if err := rootfs.WriteOverlay(archive, files); err != nil {
		t.Fatal(err)
	}
	return archive
}

// boot starts the board and waits until batond answers.
func (b *board) boot() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, bootMax)
	defer cancel()
	start := time.Now()
	b.power(ctx)
	b.shell(ctx)
	for {
		output, status, err := b.vm.Console.Run(ctx, "baton status --json")
		if err != nil {
			b.t.Fatal(err)
		}
		if status == 0 {
			break
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			log, _, _ := b.vm.Console.Run(b.ctx, "cat /var/log/batond.log")
			b.t.Fatalf("batond does not answer: %s\nits log:\n%s", output, log)
		}
	}
	b.boots = append(b.boots, time.Since(start).Round(100*time.Millisecond))
}

// power switches the board on.
func (b *board) power(ctx context.Context) {
	b.t.Helper()
	fmt.Fprintf(b.console, "\n=== boot %d\n", len(b.boots)+1)
	vm, err := b.machine.Start(ctx, b.console)
	if err != nil {
		b.t.Fatal(err)
	}
	b.vm = vm
}

// prompt is that of baton's console, or of the shell where init starts one.
var prompt = regexp.MustCompile(`Try: (?:(?s:.*?)\n)?(baton> |\$ )`)

// shell waits for the console of a board that boots, and leaves it for a shell.
func (b *board) shell(ctx context.Context) {
	b.t.Helper()
	found, err := b.vm.Console.Expect(ctx, prompt)
	if err != nil {
		b.t.Fatalf("boot: %v", err)
	}
	if found[1] == "baton> " {
		if err := b.vm.Console.Send("shell"); err != nil {
			b.t.Fatal(err)
		}
		// What is typed before the shell is there could be lost on the way.
		if _, err := b.vm.Console.Expect(ctx, regexp.MustCompile(`\$ `)); err != nil {
			b.t.Fatalf("shell: %v", err)
		}
	}
}

// goTest runs a program that is a package's tests, and fails where they do. It
// returns what they print.
func (b *board) goTest(name string, within time.Duration, args ...string) string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, within+30*time.Second)
	defer cancel()
	command := strings.Join(append([]string{"/test/" + name, "-test.v", "-test.timeout=" + within.String()}, args...), " ")
	output, status, err := b.vm.Console.Run(ctx, command)
	if err != nil {
		b.t.Fatal(err)
	}
	if status != 0 || !strings.Contains(output, "--- PASS") {
		b.t.Fatalf("%s: status %d:\n%s", command, status, output)
	}
	return output
}

// wait waits until the board has ended QEMU, and says how it has.
func (b *board) wait(within time.Duration) qemu.Ending {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	if err := b.vm.Wait(ctx); err != nil {
		b.t.Fatalf("the board has not ended within %v: %v", within, err)
	}
	return b.vm.Ending()
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
