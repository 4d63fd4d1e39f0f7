package server

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// constants finds the strings of the constants in a package's files whose
// name begins with Code.
func constants(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, %d files", dir, err, len(files))
	}
	var codes []string
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 || !strings.HasPrefix(v.Names[0].Name, "Code") {
				return true
			}
			if lit, ok := v.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				s, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				codes = append(codes, s)
			}
			return true
		})
	}
	return codes
}

// TestEveryCode: the codes of enclosure and mgmt, the table and the page are
// the same, and the page has each one's status.
func TestEveryCode(t *testing.T) {
	codes := append(constants(t, "../../enclosure"), constants(t, "..")...)
	slices.Sort(codes)
	if len(codes) < 30 {
		t.Fatalf("found only %d codes: %q", len(codes), codes)
	}
	if table := slices.Sorted(maps.Keys(meanings)); !slices.Equal(codes, table) {
		t.Errorf("codes %q\ntable %q", codes, table)
	}
	page, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^### (\S+)\n(\d+)`).FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, m[1])
		if want := fmt.Sprint(meanings[m[1]].status); m[2] != want {
			t.Errorf("docs/errors.md: %s has status %s; want %s", m[1], m[2], want)
		}
	}
	slices.Sort(documented)
	if !slices.Equal(codes, documented) {
		t.Errorf("codes %q\ndocs/errors.md %q", codes, documented)
	}
}
