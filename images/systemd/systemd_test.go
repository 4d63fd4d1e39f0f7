// Package systemd tests the units that batond runs under where there is
// systemd.
package systemd

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"baton/mgmt"
)

var units = []string{"batond.service", "batond.socket"}

// exposure is how much the sandbox may leave open, in tenths on the scale of
// 'systemd-analyze security': 0 to 100. An own user and no network would take
// most of the rest.
const exposure = 18

func analyze(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Fatal("systemd-analyze is missing: apt-get install --no-install-recommends systemd")
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "SYSTEMD_PAGER=cat", "SYSTEMD_LOG_LEVEL=warning", "LC_ALL=C")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

func version(t *testing.T) int {
	t.Helper()
	out, err := analyze(t, "--version")
	m := regexp.MustCompile(`^systemd (\d+)`).FindStringSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// install copies the units into a directory, with a program that exists.
func install(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "batond")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, u := range units {
		text, err := os.ReadFile(u)
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.Replace(text, []byte("ExecStart=/usr/bin/batond "), []byte("ExecStart="+program+" "), 1)
		if err := os.WriteFile(filepath.Join(dir, u), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestVerify: systemd has nothing to complain about but what an old one does
// not know yet.
func TestVerify(t *testing.T) {
	dir := install(t)
	out, err := analyze(t, "verify", filepath.Join(dir, units[0]), filepath.Join(dir, units[1]))
	later := []string{"RestartSteps", "RestartMaxDelaySec"} // since 254
	for line := range strings.SplitSeq(out, "\n") {
		known := line == ""
		for _, key := range later {
			known = known || version(t) < 254 && strings.Contains(line, fmt.Sprintf("Unknown key name '%s'", key)) ||
				version(t) < 254 && strings.Contains(line, fmt.Sprintf("Unknown key '%s'", key))
		}
		if !known {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
	if err != nil && version(t) >= 254 {
		t.Errorf("systemd-analyze verify: %v", err)
	}
}

// TestVerifyComplains: a unit with a typing error does not pass.
func TestVerifyComplains(t *testing.T) {
	dir := install(t)
	path := filepath.Join(dir, units[0])
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(text, []byte("NoNewPrivileges"), []byte("NoNewPrivilege"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _ := analyze(t, "verify", path); !strings.Contains(out, "NoNewPrivilege'") {
		t.Errorf("systemd-analyze verify says nothing of an unknown key:\n%s", out)
	}
}

// TestSecurity: the sandbox does not get wider unnoticed.
func TestSecurity(t *testing.T) {
	path := filepath.Join(install(t), units[0])
	out, err := analyze(t, "security", "--offline=yes", "--no-pager", "--threshold="+strconv.Itoa(exposure), path)
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := analyze(t, "security", "--offline=yes", "--no-pager", "--threshold=5", path); err == nil {
		t.Errorf("a threshold that it can not keep does not fail, so one that it can shows nothing:\n%s", out)
	}
}

// TestPaths: units, agent and tool mean the same socket and directories.
func TestPaths(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	service, socket, page := read("batond.service"), read("batond.socket"), read("../../docs/systemd.md")
	if want := "\nListenStream=" + mgmt.DefaultSocket + "\n"; !strings.Contains(socket, want) {
		t.Errorf("batond.socket has no %q", want)
	}
	// The directory of the socket is that of the agent, and outlives it.
	for _, want := range []string{"\nRuntimeDirectory=" + filepath.Base(filepath.Dir(mgmt.DefaultSocket)) + "\n", "\nRuntimeDirectoryPreserve=yes\n"} {
		if !strings.Contains(service, want) {
			t.Errorf("batond.service has no %q", want)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^([A-Z]\w+)=`).FindAllStringSubmatch(service[strings.Index(service, "[Service]"):], -1) {
		if !strings.Contains(page, m[1]) && !strings.HasPrefix(m[1], "Protect") && !strings.HasPrefix(m[1], "Restrict") && m[1] != "WantedBy" {
			t.Errorf("docs/systemd.md does not name %s", m[1])
		}
	}
}
