//go:build figures

package figures

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPowerCutRate cuts one operation on all media for a few seconds, setup
// included.
func TestPowerCutRate(t *testing.T) {
	dir := t.TempDir()
	result := filepath.Join(dir, "result")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "../powercut", "-run", "^TestCampaign$",
		"-powercut.for", "15s", "-powercut.run", "unfence")
	cmd.Env = append(os.Environ(), "BATON_POWERCUT_FIGURES="+result)
	out, _ := cmd.CombinedOutput() // it fails where there are violations: they are a figure
	text, err := os.ReadFile(result)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var cuts, violations int
	var seconds float64
	if _, err := fmt.Sscan(string(text), &cuts, &violations, &seconds); err != nil {
		t.Fatal(err)
	}
	figure("powercut_cuts_per_s", float64(cuts)/seconds, fmt.Sprintf("cuts/s, unfence on all media, two workers (%d in %.0f s)", cuts, seconds))
	figure("powercut_violations", violations, "of those")
}
