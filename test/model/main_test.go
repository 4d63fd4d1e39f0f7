package main

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestModel searches the smallest configuration and sees that a mutant of each
// model is noticed: that the models parse and their claims can fail. 'make
// model' does the rest.
func TestModel(t *testing.T) {
	if err := tools(); err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	s := spin{dir: dir, build: t.TempDir()}
	for _, tc := range []struct {
		check check
		want  string
	}{
		{check{"one move", "move.pml", []string{"KILLS=1"}, false, true}, ""},
		{named(t, "M_SLOT_BY_SLOT").check(), "together"},
		{named(t, "M_FLAG_AFTER_LINK").check(), "shownBeforeLink"},
	} {
		r, err := s.check(context.Background(), tc.check)
		if err != nil || r.violated != tc.want {
			t.Errorf("%s: violated %q, %v; want %q", tc.check.name, r.violated, err, tc.want)
		}
		if tc.want == "" && r.states < 500 {
			t.Errorf("%s: %d states; the model has lost steps", tc.check.name, r.states)
		}
	}
}

func named(t *testing.T, name string) mutant {
	i := slices.IndexFunc(mutants, func(m mutant) bool { return m.name == name })
	if i < 0 {
		t.Fatalf("there is no mutant %s", name)
	}
	return mutants[i]
}

// TestParse holds the reading of what a verifier prints: a search that was cut
// short must not pass for one that found nothing.
func TestParse(t *testing.T) {
	const figures = "State-vector 68 byte, depth reached 355, errors: %\n   289799 states, stored\n"
	for _, tc := range []struct {
		name, out string
		want      result
		fails     bool
	}{
		{"nothing found", strings.Replace(figures, "%", "0", 1), result{289799, ""}, false},
		{"an assertion", "pan:1: assertion violated together (at depth 9)\n" + strings.Replace(figures, "%", "1", 1), result{289799, "together"}, false},
		{"a process that stands", "pan:1: invalid end state (at depth 9)\n" + strings.Replace(figures, "%", "1", 1), result{289799, deadlock}, false},
		{"no progress", "pan:1: acceptance cycle (at depth 9)\n" + strings.Replace(figures, "%", "1", 1), result{289799, progress}, false},
		{"an error of another kind", strings.Replace(figures, "%", "1", 1), result{}, true},
		{"too deep", "error: max search depth too small\n" + strings.Replace(figures, "%", "0", 1), result{}, true},
		{"out of memory", "pan: reached -DMEMLIM bound\n" + strings.Replace(figures, "%", "0", 1), result{}, true},
		{"no figures", "Killed\n", result{}, true},
	} {
		got, err := parse([]byte(tc.out))
		if got != tc.want || (err != nil) != tc.fails {
			t.Errorf("%s: parse() = %+v, %v; want %+v, error %v", tc.name, got, err, tc.want, tc.fails)
		}
	}
}

var (
	stepRow  = regexp.MustCompile("(?m)^\\| (\\w+\\.pml) `(\\w+)` \\| ([^|]*) \\| (.*) \\|$")
	codeCell = regexp.MustCompile("^`(\\w+)` (\\S+\\.go)$")
)

// TestPage holds docs/protocol.md against models, tables and code.
func TestPage(t *testing.T) {
	const root = "../.."
	page := read(t, root+"/docs/protocol.md")
	tables := read(t, root+"/docs/state-tables.md")
	rows := stepRow.FindAllStringSubmatch(page, -1)
	if len(rows) < 40 {
		t.Errorf("docs/protocol.md ties %d steps", len(rows))
	}
	for _, problem := range problems(rows, tables, func(pml string) string { return read(t, pml) }, func(file string) []string { return functions(t, filepath.Join(root, file)) }) {
		t.Error(problem)
	}
	for _, m := range mutants {
		if !strings.Contains(page, "| `"+m.name+"` | `"+m.property+"` |") {
			t.Errorf("docs/protocol.md does not have mutant %s with %s", m.name, m.property)
		}
		if !strings.Contains(read(t, m.model), m.name) {
			t.Errorf("%s does not know mutant %s", m.model, m.name)
		}
	}
	for _, tr := range traces {
		if !strings.Contains(page, "| "+tr.name+" | `"+tr.model+"` |") {
			t.Errorf("docs/protocol.md does not have trace %s", tr.name)
		}
		if !strings.Contains(read(t, tr.model), "REACH("+tr.name+")") {
			t.Errorf("%s has no place for trace %s", tr.model, tr.name)
		}
	}
	for _, row := range regexp.MustCompile(`(?m)^\| (T\d+) \|`).FindAllStringSubmatch(read(t, root+"/docs/traces.md"), -1) {
		if !strings.Contains(page, "| "+row[1]+" |") {
			t.Errorf("docs/protocol.md says nothing of trace %s", row[1])
		}
	}
}

// TestPageNotices sees that problems finds what has gone.
func TestPageNotices(t *testing.T) {
	const tables = "| none, spent | proof of life | same |\n"
	pml := func(string) string { return "Alive:\n\tskip" }
	code := func(string) []string { return []string{"alive"} }
	for row, want := range map[string]int{
		"| flag.pml `Alive` | flag: proof of life | `alive` enclosure/flag.go |":  0,
		"| flag.pml `Alive` | - | - |":                                            0,
		"| flag.pml `Dead` | flag: proof of life | `alive` enclosure/flag.go |":   1,
		"| flag.pml `Alive` | flag: proof of death | `alive` enclosure/flag.go |": 1,
		"| flag.pml `Alive` | flag: proof of life | `dead` enclosure/flag.go |":   1,
		"| flag.pml `Alive` | flag: proof of life | somewhere |":                  1,
	} {
		if got := problems(stepRow.FindAllStringSubmatch(row, -1), tables, pml, code); len(got) != want {
			t.Errorf("problems(%s) = %q; want %d", row, got, want)
		}
	}
}

// problems says which labels, rows and functions of the page's rows do not
// exist.
func problems(rows [][]string, tables string, pml func(string) string, code func(string) []string) []string {
	var out []string
	for _, r := range rows {
		model, label, row, where := r[1], r[2], r[3], r[4]
		if !regexp.MustCompile(`(?m)^` + label + `:`).MatchString(pml(model)) {
			out = append(out, model+" has no label "+label)
		}
		if _, name, named := strings.Cut(row, ": "); named && !regexp.MustCompile(`(?m)^\|.*\b`+regexp.QuoteMeta(name)).MatchString(tables) {
			out = append(out, "docs/state-tables.md has no row "+name)
		} else if !named && row != "-" {
			out = append(out, label+": what table is "+row)
		}
		if where == "-" {
			continue
		}
		m := codeCell.FindStringSubmatch(where)
		if m == nil {
			out = append(out, label+": no function and file: "+where)
		} else if !slices.Contains(code(m[2]), m[1]) {
			out = append(out, m[2]+" has no function "+m[1])
		}
	}
	return out
}

func functions(t *testing.T, file string) []string {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			names = append(names, fn.Name.Name)
		}
	}
	return names
}

func read(t *testing.T, file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
