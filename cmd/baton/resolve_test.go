package main

import (
	"bytes"
	"strings"
	"testing"

	"baton/mgmt"
)

// A slot that was dropped from a set that is still blocked is not suggested to
// be dropped again, and not said to go on; nor, once the rest is where it was,
// to be there.
func TestResolveAfterDrop(t *testing.T) {
	e := mgmt.Enclosure{Slots: []mgmt.Slot{
		{Name: "gpu0", VM: "train1", Held: true, Problem: "the engine does not answer"}, // dropped
		{Name: "gpu1", VM: "train1", Blocked: "x", Problem: "x"},
		{Name: "nic0", VM: "train1", Blocked: "x"},
	}}
	m := mgmt.Move{ID: "id", VM: "train1", Slots: []string{"gpu0", "gpu1", "nic0"}, From: "server1", To: "server2", State: "blocked"}
	var out bytes.Buffer
	tool := &tool{stdout: &out}
	if err := tool.showBlocked(e, []mgmt.Move{m}); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Contains(text, "--drop gpu0") || !strings.Contains(text, "--drop gpu1") {
		t.Errorf("%s", text)
	}
	if got := strings.Join(blockedOf(e, m), " "); got != "gpu1 nic0" {
		t.Errorf("the set is %q", got)
	}
}
