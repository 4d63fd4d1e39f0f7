package docs

import (
	"strings"
	"testing"
)

// TestMatches: what counts as shown.
func TestMatches(t *testing.T) {
	for _, tt := range []struct {
		want, got string
		ok        bool
	}{
		{"a b", "a\n   b", true},
		{"a b", "a b c", false},
		{"a ... c", "a c", true},
		{"a ... c", "a b b c", true},
		{"a ... c", "a b", false},
		{"a... ...c", "abc abc", true},
		{"a...d...", "abcde", true},
		{"a...d", "abc", false},
		{"done in 23 ms.", "done in 7.1 ms.", true},
		{"up 3d02h", "up 41s", true},
		{"up 3d02h", "down 41s", false},
		{"generation 9f3c2a10-17", "generation 00000001-17", true},
		{"generation 9f3c2a10-17", "generation 9f3c2a10-18", false},
		{"move 0b5f6a52-3a55-4b0e-9d8a-1f2e3d4c5b6a", "move 57ac50de-4636-4ce7-828c-0743ddbaf264", true},
		{"gpu2: on", "baton: power cycle of gpu2: 1.0s so far\ngpu2: on", true},
	} {
		if ok, _ := matches(words(tt.want), words(tt.got)); ok != tt.ok {
			t.Errorf("page %q, printed %q: %v", tt.want, tt.got, ok)
		}
	}
}

// TestStrict: what a page gets wrong is found.
func TestStrict(t *testing.T) {
	for _, tt := range []struct{ page, want string }{
		{"```bash\nls\n```", `a block of kind "bash"`},
		{"```console exit=x\n$ ls\n```", `what is "exit=x"`},
		{"```sh exit=1\nls\n```", `what is "exit=1"`},
		{"```console\n$ ls", "a block without an end"},
		{"```console\nls\n```", "output before the first command"},
		{"```console\n```", "without a command"},
		{"<!-- hidden -->", "no directive of the test"},
		{"```sh\nmake everything\n```", `no target "everything"`},
		{"```sh\nfrobnicate\n```", `does not know the program "frobnicate"`},
		{"```sh\ngo run ./test/nothing\n```", "no such file"},
		{"```sh\nbatond -colour red\n```", "batond has no flag -colour"},
		{"```sh\nbatonsim server -colour red\n```", "batonsim has no flag -colour"},
		{"```\n$ baton frobnicate\n```", "baton does not understand"},
		{"```text\n$ baton status | grep x && baton frobnicate\n```", "baton does not understand"},
		{"see\n\n    baton move train1\n", "baton does not understand"},
		{"use `baton move VM --to HOST\n[--colour red]` for it", "baton does not understand"},
		{"use `baton release VM --mode keep|hold --colour`", "baton does not understand"},
		{"use `make everything`", `no target "everything"`},
		{"```json\n{\n```", "unexpected EOF"},
		{"```ini\nUser=x\n```", "no setting in a section"},
		{"`baton`, `baton move VM --to HOST [--wait 10s]`, `baton verdict`, `baton release VM [--mode keep|hold|free]`, `baton ack SLOT --nonce UUID --seen SEEN`", ""},
		{"```sh\nmake demo && go test ./test/docs   # all\nFUZZTIME=3s make fuzz\nbatond -check -config FILE > out\n```", ""},
	} {
		blocks, errs := parsePage(tt.page)
		for _, b := range blocks {
			switch b.kind {
			case "console":
				_, err := b.commands()
				errs = append(errs, err)
			case "json":
				errs = append(errs, checkJSON(strings.Join(b.lines, "\n")))
			case "ini":
				errs = append(errs, checkINI(b.lines))
			default:
				errs = append(errs, checkText(b)...)
			}
		}
		var found strings.Builder
		for _, err := range errs {
			if err != nil {
				found.WriteString(err.Error() + "\n")
			}
		}
		if tt.want == "" && found.String() != "" || !strings.Contains(found.String(), tt.want) {
			t.Errorf("%s\nfound %q; want %q", tt.page, found.String(), tt.want)
		}
	}
}
