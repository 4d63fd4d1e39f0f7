package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
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

// TestPageExamples: the examples of docs/api.md are those of docs/openapi.json,
// which are sent.
func TestPageExamples(t *testing.T) {
	const page = "../../docs/api.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)<!-- example (\\S+) -->\n```\n(.*?)```\n")
	shown := 0
	want := block.ReplaceAllStringFunc(string(text), func(old string) string {
		shown++
		id := block.FindStringSubmatch(old)[1]
		return fmt.Sprintf("<!-- example %s -->\n```\n%s```\n", id, findExample(t, id).text(t))
	})
	if shown < 10 {
		t.Errorf("%d examples", shown)
	}
	if want != string(text) {
		if *update {
			if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("%s has other examples: go test ./mgmt/server -run TestPageExamples -update", page)
	}
}

// text is how a page shows an example.
func (e example) text(t *testing.T) string {
	t.Helper()
	method, _, _ := strings.Cut(e.route, " ")
	s := method + " " + e.path + "\n"
	if e.accept != "" {
		s += "Accept: " + e.accept + "\n"
	}
	if e.body != "" {
		s += layout(t, []byte(e.body), "") + "\n"
	}
	status, _, answer := e.run(t)
	s += fmt.Sprintf("\n%d %s\n", status, http.StatusText(status))
	switch answer := answer.(type) {
	case string:
		s += strings.TrimRight(answer, "\n") + "\n"
	case json.RawMessage:
		if len(answer) > 0 {
			s += layout(t, answer, "") + "\n"
		}
	}
	return s
}
