//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"baton/images/boards"
	"baton/images/kernel"
	"baton/images/qemu"
	"baton/images/rootfs"
)

// vlanTests must each have run in the VM, and passed: one that is missing there
// is not passed over.
var vlanTests = []string{"TestFrames", "TestJudge", "TestAccessUplink", "TestDrift", "TestAbsent", "TestMake", "TestMany", "TestDisturbed"}

// TestVLAN runs the tests of test/vlanvm in a VM: Debian's kernel filters
// VLANs, which that of the machine that builds may not. The test program is the
// VM's first process, and there is nothing else in it but the kernel's modules.
func TestVLAN(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	board, err := boards.Load("amd64-q35")
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := kernel.Fetch(ctx, filepath.Join(build, "kernels"), board.Kernel.Arch, board.Kernel.Package, false)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(build, "e2e", "vlan")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m := &qemu.Machine{
		Board: board, State: dir,
		Kernel: filepath.Join(pkg.Dir, "boot", "vmlinuz-"+pkg.Release),
		Initrd: vlanInitrd(ctx, t, pkg, dir),
		Append: []string{"rdinit=/test/vlanvm", "--", "-test.v", "-test.timeout=6m"},
	}
	if err := m.Prepare(); err != nil {
		t.Fatal(err)
	}
	console, err := os.Create(filepath.Join(dir, "console.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	vm, err := m.Start(ctx, console)
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Kill()
	found, err := vm.Console.Expect(ctx, regexp.MustCompile(`(?s)^(.*)vlanvm ended with (\d+)`))
	if err != nil {
		t.Fatalf("%v\nall of it: %s", err, console.Name())
	}
	output := strings.ReplaceAll(found[1], "\r", "")
	for line := range strings.Lines(output) {
		if regexp.MustCompile(`^(===|---|PASS|FAIL|panic|prepare|\s+\S+_test\.go:)`).MatchString(line) {
			t.Log(strings.TrimRight(line, "\n"))
		}
	}
	if found[2] != "0" {
		t.Errorf("the tests in the VM failed: %s", console.Name())
	}
	for _, name := range vlanTests {
		if !regexp.MustCompile(`(?m)^--- PASS: ` + name + ` `).MatchString(output) {
			t.Errorf("%s has not passed in the VM: %s", name, console.Name())
		}
	}
	for _, line := range regexp.MustCompile(`(?m)^=== RUN +(\w+)$`).FindAllStringSubmatch(output, -1) {
		if !slices.Contains(vlanTests, line[1]) {
			t.Errorf("%s ran in the VM and is not in the list here", line[1])
		}
	}
}

// vlanInitrd makes the VM's file system: test program and modules.
func vlanInitrd(ctx context.Context, t *testing.T, pkg *kernel.Package, dir string) string {
	t.Helper()
	program := filepath.Join(dir, "vlanvm")
	c := exec.CommandContext(ctx, "go", "test", "-c", "-tags", "vm", "-ldflags", "-s -w", "-o", program, "baton/test/vlanvm")
	c.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("building the test program: %v\n%s", err, out)
	}
	modules, err := pkg.Modules(ctx, []string{"bridge", "veth", "8021q"})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"/test/vlanvm": program}
	for i, m := range modules {
		file := filepath.Join(dir, m.Name+".ko")
		if err := os.WriteFile(file, m.Data, 0o644); err != nil {
			t.Fatal(err)
		}
		files[fmt.Sprintf("/test/modules/%02d-%s.ko", i, m.Name)] = file
	}
	name := filepath.Join(dir, "initramfs.cpio")
	if err := rootfs.WriteOverlay(name, files); err != nil {
		t.Fatal(err)
	}
	return name
}
