//go:build bench

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"
	"time"
)

// portsLimit is what 64 ports may take, as a multiple of what iproute2 takes.
const portsLimit = 1.0

// TestPorts compares how long package vlan and iproute2's bridge take for the
// VLANs of 64 ports and an uplink. Ours reads back what it did as well.
func TestPorts(t *testing.T) {
	const ports, rounds = 64, 25
	files := map[string]string{}
	for _, tool := range []string{"ip", "bridge"} {
		maps.Copy(files, dynamic(t, tool))
	}
	b := newBoardWith(t, "amd64-q35", options{
		programs: []program{{name: "ports", pkg: "baton/test/benchboard/ports"}},
		files:    files,
	})
	b.boot()
	// The modules come after the console.
	for deadline := time.Now().Add(time.Minute); !strings.Contains(b.must("cat /proc/modules"), "veth "); time.Sleep(time.Second) {
		if time.Now().After(deadline) {
			t.Fatal("the module veth is not there a minute after the boot")
		}
	}
	ctx, cancel := context.WithTimeout(b.ctx, 6*time.Minute)
	defer cancel()
	output, status, err := b.vm.Console.Run(ctx, fmt.Sprintf("/test/ports -ports %d -rounds %d", ports, rounds))
	if err != nil {
		t.Fatal(err)
	}
	if status != 0 {
		t.Fatalf("ports: status %d:\n%s", status, output)
	}
	var ours, theirs, nothing, ratios []float64
	var looks, changes, retries, commands int
	for line := range strings.Lines(output) {
		var n, all int
		var o, th, no float64
		if _, err := fmt.Sscanf(line, "round %d ours %f us theirs %f us nothing %f us looks %d changes %d retries %d", &n, &o, &th, &no, &looks, &changes, &retries); err == nil {
			ours, theirs, nothing, ratios = append(ours, o/1000), append(theirs, th/1000), append(nothing, no/1000), append(ratios, o/th)
		}
		_, _ = fmt.Sscanf(line, "%d ports, %d commands, the same state after each of %d", &n, &commands, &all)
	}
	if len(ours) != rounds || commands == 0 {
		t.Fatalf("ports printed:\n%s", output)
	}
	got := median(ours) / median(theirs)
	figure("vlan_program_64_ports_over_bridge_batch", got, "ratio of medians, %s over %s; %d rounds, of one each %.2f", spread(ours, "ms"), spread(theirs, "ms"), rounds, median(ratios))
	figure("vlan_program_64_ports_over_bridge_batch_net", median(ours)/(median(theirs)-median(nothing)), "ratio, without the start of the program bridge, %s", spread(nothing, "ms"))
	figure("vlan_messages", changes, "messages that change something, for 64 ports, and %d looks; bridge -batch has %d commands", looks, commands)
	if got > portsLimit {
		t.Errorf("64 ports: %.3f of what bridge -batch takes (%s over %s); want at most %.1f", got, spread(ours, "ms"), spread(theirs, "ms"), portsLimit)
	}
}

// dynamic finds a program of this machine with the libraries it loads, and puts
// the program itself at /test/NAME.
func dynamic(t *testing.T, name string) map[string]string {
	t.Helper()
	file, err := exec.LookPath(name)
	if err != nil {
		if file, err = exec.LookPath(path.Join("/sbin", name)); err != nil {
			t.Fatalf("%v; on Debian: apt-get install --no-install-recommends iproute2", err)
		}
	}
	output, err := exec.CommandContext(t.Context(), "ldd", file).Output()
	if err != nil {
		t.Fatalf("ldd %s: %v", file, err)
	}
	files := map[string]string{"/test/" + name: file}
	for _, lib := range regexp.MustCompile(`(?m)(/\S+) \(0x`).FindAllStringSubmatch(string(output), -1) {
		files[lib[1]] = lib[1]
	}
	if len(files) < 2 {
		t.Fatalf("ldd %s names no library:\n%s", file, output)
	}
	return files
}
