package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMain runs in the module's root, as the command does.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// decodes is what a function is called that makes something of others' bytes.
var decodes = regexp.MustCompile(`(?m)^func ((?:Decode|Parse|Unmarshal|decode|parse)[A-Z]\w*|Decode|Parse|Unmarshal|decode|parse)[\[(]`)

// elsewhere are functions of such names that read nothing that can be torn or
// hostile.
var elsewhere = map[string]string{
	"cmd/batonsim parse":        "its own command line",
	"cmd/batonsim parseRecord":  "device memory of the simulator's own training",
	"images/qemu parseStat":     "the kernel's own file",
	"images/fit ParseKey":       "a key that the operator gives, by crypto/x509",
	"enclosure/plan decodeRead": "calls DecodeBlock",
	"vlan parseAddress":         "calls parseInfo and parseAttrs",
}

// undecoded lists the functions of src, in dir, that decode and are not in the
// table.
func undecoded(dir string, src []byte, table []decoder) (missing []string) {
	for _, m := range decodes.FindAllSubmatch(src, -1) {
		name := string(m[1])
		if elsewhere[dir+" "+name] == "" && !slices.ContainsFunc(table, func(d decoder) bool { return d.dir == dir && d.name == name }) {
			missing = append(missing, dir+" "+name)
		}
	}
	return missing
}

// sources calls f for each Go file of the module that is not a test.
func sources(t *testing.T, f func(dir string, src []byte)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(path, "test/") || strings.HasPrefix(path, "build/") || strings.Contains(path, "test/") {
			return err
		}
		src, err := os.ReadFile(path)
		if err == nil {
			f(filepath.Dir(path), src)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestEveryDecoderIsFuzzed: each function that decodes is in the table, and the
// table names functions and targets that there are.
func TestEveryDecoderIsFuzzed(t *testing.T) {
	found := map[string]bool{}
	sources(t, func(dir string, src []byte) {
		for _, m := range undecoded(dir, src, decoders) {
			t.Errorf("%s decodes and has no fuzz target in test/fuzzall/table.go", m)
		}
		for _, m := range decodes.FindAllSubmatch(src, -1) {
			found[dir+" "+string(m[1])] = true
		}
	})
	all, err := targets()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range decoders {
		if !found[d.dir+" "+d.name] {
			t.Errorf("the table has %s %s, the code has not", d.dir, d.name)
		}
		if !slices.Contains(all, d.target) {
			t.Errorf("%s %s: there is no target %s", d.dir, d.name, d.target)
		}
	}
	for name := range elsewhere {
		if !found[name] {
			t.Errorf("%s is excused and not there", name)
		}
	}
}

// TestDecoderWithoutTargetIsSeen shows that the test above notices one.
func TestDecoderWithoutTargetIsSeen(t *testing.T) {
	src := []byte("package x\n\nfunc DecodeNothing(p []byte) error { return nil }\n")
	if got := undecoded("x", src, decoders); len(got) != 1 {
		t.Errorf("undecoded = %q; want DecodeNothing", got)
	}
}

// TestCorpora: each target has a corpus that is committed.
func TestCorpora(t *testing.T) {
	all, err := targets()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 28 {
		t.Errorf("%d targets; there were 28", len(all))
	}
	for _, target := range all {
		seeds, _ := filepath.Glob(filepath.Join(filepath.Dir(target), "testdata/fuzz", filepath.Base(target), "*"))
		if len(seeds) == 0 {
			t.Errorf("%s has no corpus in testdata/fuzz", target)
		}
	}
}
