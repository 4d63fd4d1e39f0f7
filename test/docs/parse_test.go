package docs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// later are verbs that design pages name and that a later step builds. One that
// exists must leave this list.
var later = []string{"migrate", "host check", "host reconcile"}

// others are programs that pages may tell people to use, beside ours.
var others = []string{"apt-get", "cat", "cp", "curl", "git", "install", "journalctl", "ls", "mkdir", "mkimage", "openssl", "systemctl", "systemd-analyze"}

// checkText checks the commands of a block that is not run.
func checkText(b block) (errs []error) {
	for i, line := range b.lines {
		text, prompt := strings.CutPrefix(strings.TrimSpace(line), "$ ")
		first, _, _ := strings.Cut(text, " ")
		ours := slices.Contains([]string{"baton", "batond", "batonsim"}, first)
		switch {
		case b.kind == "sh", prompt:
		case b.kind == kindIndented && (ours || first == "make" || first == "go") && !strings.HasPrefix(line, " "):
		case b.kind == kindInline && ours && text != first:
		case b.kind == kindInline && first == "make" && text != first:
		case b.kind == "" && ours && text != first:
		default:
			continue
		}
		check := checkLine
		if b.kind == kindInline {
			check = checkSynopsis
		}
		for _, err := range check(text) {
			errs = append(errs, fmt.Errorf("%d: %s: %w", b.line+i, text, err))
		}
	}
	return errs
}

var shellBreak = regexp.MustCompile(`\s*(&&|\|\||;|\|)\s*`)

// checkLine checks a line of shell.
func checkLine(line string) (errs []error) {
	if i := strings.Index(" "+line, " #"); i >= 0 {
		line = line[:i]
	}
	for _, part := range shellBreak.Split(line, -1) {
		if f := strings.Fields(part); len(f) > 0 {
			if err := checkCommand(f); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errs
}

// checkCommand checks one simple command.
func checkCommand(f []string) error {
	for i, w := range f {
		if strings.HasPrefix(w, ">") || strings.HasPrefix(w, "<") {
			f = f[:i]
			break
		}
	}
	for len(f) > 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(f[0]) {
		f = f[1:] // for its environment
	}
	if len(f) == 0 {
		return nil
	}
	switch f[0] {
	case "baton":
		return batonParses(f[1:])
	case "batond", "batonsim":
		return flagsExist(f[0], f[1:])
	case "make":
		return targetsExist(f[1:])
	case "go":
		return checkGo(f[1:])
	}
	if !slices.Contains(others, f[0]) {
		return fmt.Errorf("the test does not know the program %q", f[0])
	}
	return nil
}

// checkSynopsis checks a command as on a manual page.
func checkSynopsis(text string) (errs []error) {
	for _, v := range variants(text) {
		if err := checkCommand(strings.Fields(v)); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

var (
	optional    = regexp.MustCompile(`\[[^\[\]]*\]`)
	alternative = regexp.MustCompile(`\S*[^\s|]\|[^\s|]\S*`)
)

// variants are the commands that a synopsis stands for: with and without what
// is in brackets, and with each of its alternatives.
func variants(text string) (out []string) {
	text = strings.NewReplacer("…", "", " ...", "", "...", "").Replace(text)
	if m := optional.FindStringIndex(text); m != nil {
		return append(variants(text[:m[0]]+text[m[1]:]), variants(text[:m[0]]+text[m[0]+1:m[1]-1]+text[m[1]:])...)
	}
	if left, right, ok := strings.Cut(text, " | "); ok {
		// "slot power gpu0 --on | --off": flags after what stands before flags
		head, _, _ := strings.Cut(left, " --")
		if !strings.HasPrefix(right, "-") {
			head = left[:strings.LastIndex(left, " ")]
		}
		return append(variants(left), variants(head+" "+right)...)
	}
	if m := alternative.FindStringIndex(text); m != nil {
		for a := range strings.SplitSeq(text[m[0]:m[1]], "|") {
			out = append(out, variants(text[:m[0]]+a+text[m[1]:])...)
		}
		return out
	}
	return []string{text}
}

// stands is what a word in capitals stands for.
var stands = map[string]string{
	"UUID": "0b5f6a52-3a55-4b0e-9d8a-1f2e3d4c5b6a", "MOVE": "0b5f6a52-3a55-4b0e-9d8a-1f2e3d4c5b6a", "SEEN": "9f3c2a10-17/3/0x5eed0001/0x00c0ffee",
	"VERB": "move", "COMMAND": "move", "GENERATION": "17", "N": "1", "ID": "0b5f6a52-3a55-4b0e-9d8a-1f2e3d4c5b6a", "NONCE": "0b5f6a52-3a55-4b0e-9d8a-1f2e3d4c5b6a",
}

var capitals = regexp.MustCompile(`\b[A-Z][A-Z0-9]*\b`)

var parsed sync.Map // command line -> error

// batonParses has the tool itself judge a command line, without an agent: with
// exit code 2 it makes no sense.
func batonParses(args []string) error {
	line := strings.Join(args, " ")
	for _, v := range later {
		if line == v || strings.HasPrefix(line, v+" ") {
			return nil
		}
	}
	if err, ok := parsed.Load(line); ok {
		err, _ := err.(error)
		return err
	}
	full := make([]string, len(args))
	for i, a := range args {
		a = strings.Trim(a, `"'`)
		full[i] = capitals.ReplaceAllStringFunc(a, func(w string) string {
			if s, ok := stands[w]; ok {
				return s
			}
			return strings.ToLower(w)
		})
	}
	out, err := tryBaton(full)
	switch {
	case err == nil:
	case strings.Contains(out, "say --yes"):
		err = nil // it makes sense, and asks
	case strings.Contains(out, "flag needs an argument"):
		_, err = tryBaton(append(full, "1")) // a command that is named without its last word
	case len(args) <= 2 && line == strings.ToLower(line) && !strings.Contains(line, "-"):
		// A verb alone names it.
		if _, e := tryBaton(append([]string{"help"}, full...)); e == nil {
			err = nil
		}
	}
	parsed.Store(line, err)
	return err
}

func tryBaton(args []string) (string, error) {
	bin, err := programs()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "baton-docs")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "baton"), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "BATON_SOCKET="+filepath.Join(dir, "none"))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil: // one that waits for an agent was understood
	case errors.As(err, &exit) && exit.ExitCode() == 2:
		return string(out), fmt.Errorf("baton does not understand %q:\n%s", args, out)
	case err != nil && !errors.As(err, &exit):
		return "", err
	}
	return string(out), nil
}

var helpTexts sync.Map

// flagsExist holds the flags of batond or batonsim against its -h.
func flagsExist(program string, args []string) error {
	if program == "batonsim" && len(args) > 0 && args[0] == "server" {
		args = append([]string{"server", "-h"}, args[1:]...)
	}
	bin, err := programs()
	if err != nil {
		return err
	}
	ask := []string{"-h"}
	if len(args) > 1 && args[1] == "-h" {
		ask = args[:2]
	}
	key := program + strings.Join(ask, " ")
	help, ok := helpTexts.Load(key)
	if !ok {
		out, err := exec.Command(filepath.Join(bin, program), ask...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s -h: %w\n%s", program, err, out)
		}
		help = string(out)
		helpTexts.Store(key, help)
	}
	for _, a := range args {
		if name := strings.TrimLeft(a, "-"); name != a && name != "h" {
			name, _, _ = strings.Cut(name, "=")
			if !regexp.MustCompile(`(?m)^  -` + regexp.QuoteMeta(name) + `( |$)`).MatchString(help.(string)) {
				return fmt.Errorf("%s has no flag -%s", program, name)
			}
		}
	}
	return nil
}

var makeTargets = sync.OnceValue(func() map[string]bool {
	out := map[string]bool{}
	for _, file := range []string{"Makefile", "images/image.mk"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			panic(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`).FindAllStringSubmatch(string(text), -1) {
			out[m[1]] = true
		}
	}
	return out
})

func targetsExist(args []string) error {
	for _, a := range args {
		if !strings.Contains(a, "=") && !strings.HasPrefix(a, "-") && !makeTargets()[a] {
			return fmt.Errorf("make has no target %q", a)
		}
	}
	return nil
}

// checkGo: folders that are named exist, and so do packages of ours.
func checkGo(args []string) error {
	if len(args) == 0 || !slices.Contains([]string{"build", "doc", "run", "test", "tool", "vet", "generate", "install"}, args[0]) {
		return fmt.Errorf("go %q", args)
	}
	for _, a := range args[1:] {
		a = strings.TrimSuffix(strings.TrimSuffix(a, "..."), "/")
		a, ours := strings.CutPrefix(a, "baton/")
		if ours || strings.HasPrefix(a, "./") {
			if _, err := os.Stat(filepath.Join(root, a)); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestLater: what exists is not listed as what comes later.
func TestLater(t *testing.T) {
	for _, v := range later {
		if _, err := tryBaton(append(strings.Fields(v), "-h")); err == nil {
			t.Errorf("baton %s exists; take it out of the list", v)
		}
	}
}

var suggestion = regexp.MustCompile(`'(baton [^'"\n]+)'`)

// TestSuggestions: what programs tell people to type parses too. A verb of
// formatting stands for a word.
func TestSuggestions(t *testing.T) {
	out, err := exec.Command("git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for file := range strings.FieldsSeq(string(out)) {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "test/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue // deleted, not yet committed
		}
		for _, m := range suggestion.FindAllSubmatchIndex(text, -1) {
			line := string(text[m[2]:m[3]])
			if line == "baton %s" { // whichever
				continue
			}
			n++
			for _, err := range checkSynopsis(strings.NewReplacer("%s", "NAME", "%q", "NAME", "%d", "N", "%v", "NAME").Replace(line)) {
				t.Errorf("%s:%d: '%s': %v", file, strings.Count(string(text[:m[2]]), "\n")+1, line, err)
			}
		}
	}
	if n < 5 {
		t.Errorf("%d suggestions found; that can not be right", n)
	}
}
