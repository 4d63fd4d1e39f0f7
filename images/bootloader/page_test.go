package bootloader

import (
	"os"
	"strings"
	"testing"

	"baton/images/boards"
)

// TestPage: docs/update.md has the script of the ast2600-evb as the tests here
// and the emulated board use it.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/update.md")
	if err != nil {
		t.Fatal(err)
	}
	b, err := boards.Load("ast2600-evb")
	if err != nil {
		t.Fatal(err)
	}
	script, err := ScriptOf(b)
	if err != nil {
		t.Fatal(err)
	}
	if want := "```text\n" + Text(script) + "```\n"; !strings.Contains(string(page), want) {
		t.Errorf("docs/update.md has not\n%s", want)
	}
}
