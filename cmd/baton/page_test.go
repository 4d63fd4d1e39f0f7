package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPage: docs/cli.md has every verb, as help shows it.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, c := range commands {
		want = append(want, strings.TrimSpace(c.name+" "+c.args))
	}
	for _, m := range regexp.MustCompile(`(?m)^### (.*)$`).FindAllStringSubmatch(string(page), -1) {
		got = append(got, m[1])
	}
	if !slices.Equal(want, got) {
		t.Errorf("commands %q\npage %q", want, got)
	}
}
