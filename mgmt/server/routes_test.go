package server

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestPage: docs/api.md has the routes, and who may use them.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, rt := range routes {
		role := "admin"
		if rt.roles&Viewer != 0 {
			role = "viewer"
		}
		want = append(want, rt.method+" "+rt.path+" "+role)
	}
	for _, m := range regexp.MustCompile(`(?m)^\| ((?:GET|POST) \S+) \| (\w+) \|`).FindAllStringSubmatch(string(page), -1) {
		got = append(got, m[1]+" "+m[2])
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("routes %q\npage %q", want, got)
	}
}
