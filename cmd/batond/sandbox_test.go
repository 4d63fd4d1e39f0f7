package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inSandbox makes the test binary take the restrictions of the systemd unit
// upon itself and then become batond. Its value lists the system calls that
// are left.
const inSandbox = "BATON_TEST_SANDBOX"

// enterSandbox does what systemd does before it starts the service: system
// calls and address families are filtered, capabilities dropped, memory that
// was writable never gets executable.
func enterSandbox(calls string) error {
	runtime.LockOSThread()
	if os.Geteuid() == 0 {
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			if c != unix.CAP_NET_ADMIN {
				_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) // EINVAL where the kernel does not know it
			}
		}
	}
	// An older kernel does not have this; systemd filters mprotect there.
	if err := unix.Prctl(unix.PR_SET_MDWE, unix.PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("PR_SET_MDWE: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_NO_NEW_PRIVS: %w", err)
	}
	const load, equal, end = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	const nr, arg0 = 0, 16 // offsets in struct seccomp_data
	program := []unix.SockFilter{
		{Code: load, K: nr},
		{Code: equal, K: unix.SYS_SOCKET, Jf: 5}, // RestrictAddressFamilies=
		{Code: load, K: arg0},
		{Code: equal, K: unix.AF_UNIX, Jt: 2},
		{Code: equal, K: unix.AF_NETLINK, Jt: 1},
		{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		{Code: load, K: nr},
	}
	for s := range strings.FieldsSeq(calls) {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return err
		}
		program = append(program, unix.SockFilter{Code: equal, K: uint32(n), Jf: 1}, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW})
	}
	program = append(program, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog))); e != 0 {
		return fmt.Errorf("seccomp: %w", e)
	}
	if err := os.Unsetenv(inSandbox); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// unitCalls are the numbers of the system calls that the unit leaves.
func unitCalls(t *testing.T) string {
	t.Helper()
	unit, err := os.ReadFile("../../images/systemd/batond.service")
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^SystemCallFilter=(~?)(.*)$`).FindAllStringSubmatch(string(unit), -1) {
		for set := range strings.FieldsSeq(m[2]) {
			for _, call := range expand(t, set) {
				left[call] = m[1] == ""
			}
		}
	}
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+runtime.GOARCH+".go"))
	if err != nil {
		t.Fatal(err)
	}
	var numbers []string
	for _, m := range regexp.MustCompile(`(?m)^\s*SYS_(\w+)\s+= (\d+)`).FindAllSubmatch(table, -1) {
		if left[strings.ToLower(string(m[1]))] {
			numbers = append(numbers, string(m[2]))
		}
	}
	if len(numbers) < 100 || left["mount"] || !left["read"] {
		t.Fatalf("the unit leaves %d system calls, read: %v, mount: %v; that can not be right", len(numbers), left["read"], left["mount"])
	}
	return strings.Join(numbers, " ")
}

// expand lists the calls of one of systemd's sets.
func expand(t *testing.T, set string) (calls []string) {
	t.Helper()
	if !strings.HasPrefix(set, "@") {
		return []string{set}
	}
	out, err := exec.Command(systemd(t, "systemd-analyze"), "--no-pager", "syscall-filter", set).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(out), "\n") {
		if name := strings.TrimSpace(line); strings.HasPrefix(line, " ") && !strings.HasPrefix(name, "#") {
			calls = append(calls, expand(t, name)...)
		}
	}
	return calls
}

// TestSandbox: the agent starts, moves and starts again with no more than the
// unit leaves it.
func TestSandbox(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t)
	b.serveBus()
	calls := inSandbox + "=" + unitCalls(t)
	p := b.start(calls)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !bytes.Contains(status, []byte(want)) {
			t.Errorf("the agent's status has no %q", want)
		}
	}
	b.unfence()
	for i, to := range []string{"server1", "server2"} {
		if m, err := b.move(1+i, to); err != nil || m.State != "done" {
			t.Errorf("move to %s: %+v, %v", to, m, err)
		}
	}
	// It replaces its configuration's file and starts again in place.
	b.config["enclosure"] = "renamed"
	b.applyConfig()
	if text, err := os.ReadFile(b.path("batond.json")); err != nil || !bytes.Contains(text, []byte("renamed")) {
		t.Errorf("the configuration's file has not changed: %v", err)
	}
	p.end()
	p = b.start(calls)
	if got := b.reached(); got != "gpu0:server2 gpu1:server2" {
		t.Errorf("after the restart: reached %q", got)
	}
	if e := b.enclosure(); !e.Store.OK || len(e.Warnings) > 0 {
		t.Errorf("after the restart: store %+v, warnings %q", e.Store, e.Warnings)
	}
	p.end()
}
