package docs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := programs(); err == nil {
		_ = os.RemoveAll(dir)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// pages lists all that are tested.
func pages(t *testing.T) []string {
	t.Helper()
	out := []string{"README.md"}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			path, err = filepath.Rel(root, path)
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 10 {
		t.Fatalf("pages: %q", out)
	}
	return out
}

// TestPages: see the package's documentation. With -v it prints what each
// command of a console block prints.
func TestPages(t *testing.T) {
	for _, page := range pages(t) {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			t.Parallel()
			blocks, errs := readPage(filepath.Join(root, page))
			for _, err := range errs {
				t.Errorf("%s:%v", page, err)
			}
			var w *world
			for _, b := range blocks {
				at := fmt.Sprintf("%s:%d", page, b.line)
				switch b.kind {
				case kindDirective:
					if k := kind(b.lines[0]); k == inUse || k == blank || k == empty {
						w = newWorld(t, k)
						continue
					}
					if w == nil {
						w = newWorld(t, inUse)
					}
					if err := w.direct(b.lines[0]); err != nil {
						t.Fatalf("%s: %s: %v", at, b.lines[0], err)
					}
				case "console":
					if w == nil {
						w = newWorld(t, inUse)
					}
					console(t, w, page, b)
				case "json":
					if err := checkJSON(strings.Join(b.lines, "\n")); err != nil {
						t.Errorf("%s: %v", at, err)
					}
				case "ini":
					if err := checkINI(b.lines); err != nil {
						t.Errorf("%s: %v", at, err)
					}
				default:
					for _, err := range checkText(b) {
						t.Errorf("%s: %v", page, err)
					}
				}
			}
		})
	}
}

// console runs the commands of a block and compares what they print.
func console(t *testing.T, w *world, page string, b block) {
	t.Helper()
	commands, err := b.commands()
	if err != nil {
		t.Errorf("%s:%v", page, err)
		return
	}
	for i, c := range commands {
		last := i == len(commands)-1
		out, code, err := w.sh.run(w.paths.Replace(c.text), last && b.stop)
		at := fmt.Sprintf("%s:%d: %s", page, c.line, c.text)
		if err != nil {
			t.Fatalf("%s: %v\n%s", at, err, out)
		}
		out = w.back.Replace(out)
		if testing.Verbose() { // to write the page from
			t.Logf("%s:%d: exit code %d\n$ %s\n%s", page, c.line, code, c.text, out)
		}
		want := 0
		if last {
			want = b.exit
		}
		if code == 127 && strings.Contains(c.text, "curl") {
			t.Fatalf("%s: curl is missing: apt-get install --no-install-recommends curl", at)
		}
		if code != want {
			t.Errorf("%s\nended with exit code %d; want %d. It printed\n%s", at, code, want, out)
			continue
		}
		shown := words(strings.Join(c.want, "\n"))
		if len(shown) == 0 {
			continue
		}
		if ok, far := matches(shown, words(out)); !ok {
			t.Errorf("%s\nprinted\n%s\nthe page shows\n%s\nof which this does not fit: %q", at, out, strings.Join(c.want, "\n"), strings.Join(shown[far:min(far+8, len(shown))], " "))
		}
	}
}

func checkJSON(text string) error {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	for {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func checkINI(lines []string) error {
	section := false
	for _, line := range lines {
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			section = true
		case !section || !strings.Contains(line, "="):
			return fmt.Errorf("%q is no setting in a section", line)
		}
	}
	return nil
}
