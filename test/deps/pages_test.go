package deps

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	named  = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md`)
	linked = regexp.MustCompile(`\]\(([^)#:]+\.md)\)`)
)

// TestPagesExist fails where code or a page names a page of docs/ that is not
// there.
func TestPagesExist(t *testing.T) {
	root := "../.."
	out, err := exec.Command("git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.go", "*.md", "*.json", "*.txtar", "Makefile").Output()
	if err != nil {
		t.Fatal(err)
	}
	exists := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	for file := range strings.FieldsSeq(string(out)) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue // deleted, not yet committed
		}
		for _, page := range named.FindAllString(string(text), -1) {
			if !exists(filepath.Join(root, page)) {
				t.Errorf("%s names %s, which does not exist", file, page)
			}
		}
		if filepath.Ext(file) != ".md" {
			continue
		}
		for _, m := range linked.FindAllStringSubmatch(string(text), -1) {
			if !exists(filepath.Join(root, filepath.Dir(file), m[1])) {
				t.Errorf("%s links to %s, which does not exist", file, m[1])
			}
		}
	}
}
