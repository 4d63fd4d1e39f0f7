//go:build figures

package figures

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPowerCutRate runs the campaign on one medium for a few seconds, setup
// included.
func TestPowerCutRate(t *testing.T) {
	dir := t.TempDir()
	result := filepath.Join(dir, "result")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "../powercut", "-run", "^TestCampaign$",
		"-powercut.for", "15s", "-powercut.medium", "24xx")
	cmd.Env = append(os.Environ(), "BATON_POWERCUT_FIGURES="+result)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(result)
	if err != nil {
		t.Fatal(err)
	}
	var cuts, violations int
	var seconds float64
	if _, err := fmt.Sscan(string(text), &cuts, &violations, &seconds); err != nil {
		t.Fatal(err)
	}
	figure("powercut_cuts_per_s", float64(cuts)/seconds, fmt.Sprintf("cuts/s, all operations on 24xx, two workers (%d in %.0f s)", cuts, seconds))
	figure("powercut_violations", violations, "of those")
}
