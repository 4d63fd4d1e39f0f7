package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"

	"baton/mgmt/server/servertest"
)

// sensible are arguments with which each command gets as far as asking the
// agent.
var sensible = map[string][]string{
	"status": nil, "watch": {"--for", "1s"}, "log": nil, "moves": nil, "verdict": {"gpu0"},
	"move": {"train1", "--to", "server2"}, "fence": {"server1"}, "unfence": {"server3", "--yes"},
	"host drain": {"server1", "--to", "server2", "--yes"}, "attach": {"train2", "--to", "server1"}, "release": {"train1"},
	"slot locate": {"gpu0"}, "slot adopt": {"gpu0", "--yes"}, "slot power": {"gpu2", "on"}, "slot reset": {"gpu0", "--yes"},
	"arm": {"gpu0"}, "disarm": {"gpu0", "--id", "0b5f6a52-3a55-4b0e-9d8a-1f2e3d4c5b6a"},
	"ack":         {"gpu0", "--nonce", "0b5f6a52-3a55-4b0e-9d8a-1f2e3d4c5b6a", "--seen", "9f3c2a10-17/4/0x1c2d3e4f/0x89ab12cd"},
	"alive":       {"gpu0", "--seen", "9f3c2a10-17/4/0x1c2d3e4f/0x89ab12cd"},
	"config show": nil, "config set": {"vms[train1].policy", "never"}, "config apply": {"testdata/config.json"},
	"config confirm": nil, "config revert": nil, "backup": nil, "restore": {"testdata/backup.json", "--yes"},
	"check": nil, "report": nil, "console password": {"--clear", "--yes"},
	"move resolve": nil, "nvm check": nil, "nvm repair": {"--yes"}, "nvm dump": {"store"},
}

// alone are the commands that need no agent.
var alone = map[string]bool{"help": true, "version": true, "config check": true, "image status": true, "image install": true, "image rollback": true}

// talks are the commands that read commands: they have no answer of their own,
// and tests of their own.
var talks = map[string]bool{"console": true}

// TestEveryCommand: help, no arguments, and an agent that is not there end
// every command as they should: with the right exit code, and with --json in
// one document on stdout and nothing on stderr.
func TestEveryCommand(t *testing.T) {
	t.Setenv("BATON_SOCKET", "/nowhere/baton.sock")
	t.Setenv("BATON_ROOT", t.TempDir())
	do := func(args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		err := run(t.Context(), args, strings.NewReader(""), &out, &errs)
		return exitCode(err), out.String(), errs.String()
	}
	for _, c := range commands {
		words := strings.Fields(c.name)
		with := func(args ...string) []string { return append(words[:len(words):len(words)], args...) }

		code, help, stderr := do(with("--help")...)
		if code != exitDone || stderr != "" || !strings.HasPrefix(help, "usage: baton "+c.name) {
			t.Errorf("%s --help: exit code %d\n%s%s", c.name, code, help, stderr)
		}
		if code, again, _ := do(append([]string{"help"}, words...)...); code != exitDone || again != help {
			t.Errorf("help %s: exit code %d, not as --help:\n%s", c.name, code, again)
		}

		if talks[c.name] {
			continue
		}
		// Without arguments: usage where some are needed, else nobody answers.
		want := exitUnreachable
		if c.nargs[0] > 0 || c.name == "config set" || c.name == "nvm dump" {
			want = exitUsage
		} else if alone[c.name] {
			want = exitDone
			if strings.HasPrefix(c.name, "image ") {
				want = exitFailed // there are no banks here
			}
		}
		code, _, stderr = do(words...)
		if code != want || want != exitDone && !strings.HasPrefix(stderr, "baton: ") {
			t.Errorf("%s: exit code %d; want %d\n%s", c.name, code, want, stderr)
		}
		code, stdout, stderr := do(with("--json")...)
		if code != want || stderr != "" {
			t.Errorf("%s --json: exit code %d; want %d\n%s", c.name, code, want, stderr)
		}
		oneDocument(t, c.name+" --json", stdout)

		if alone[c.name] {
			continue
		}
		args, ok := sensible[c.name]
		if !ok {
			t.Errorf("%s has no sensible arguments in this test", c.name)
		}
		code, stdout, stderr = do(with(append([]string{"--json"}, args...)...)...)
		if code != exitUnreachable || stderr != "" || !strings.Contains(stdout, `"unreachable"`) {
			t.Errorf("%s --json without an agent: exit code %d\n%s%s", c.name, code, stdout, stderr)
		}
		oneDocument(t, c.name+" without an agent", stdout)
		if code, _, stderr := do(with(args...)...); code != exitUnreachable || !strings.Contains(stderr, "is batond running") && !strings.Contains(stderr, "--id") {
			t.Errorf("%s without an agent: exit code %d\n%s", c.name, code, stderr)
		}
	}
}

func oneDocument(t *testing.T, what, text string) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	var v any
	if err := d.Decode(&v); err != nil {
		t.Errorf("%s: not JSON: %v\n%s", what, err, text)
		return
	}
	if err := d.Decode(&v); err != io.EOF {
		t.Errorf("%s: more than one document:\n%s", what, text)
	}
}

// TestEveryAnswer: with an agent, every command does what it is for, and its
// JSON is one document.
func TestEveryAnswer(t *testing.T) {
	t.Setenv("BATON_ROOT", t.TempDir())
	for _, c := range commands {
		if alone[c.name] || talks[c.name] {
			continue
		}
		for _, js := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, js), func(t *testing.T) {
				f := servertest.New()
				socket, stop, err := serve(agent{f, servertest.NewKeeper()})
				if err != nil {
					t.Fatal(err)
				}
				defer stop()
				args := append(strings.Fields(c.name), "--socket", socket)
				if js {
					args = append(args, "--json")
				}
				var out, errs bytes.Buffer
				err = run(t.Context(), append(args, sensible[c.name]...), strings.NewReader(""), &out, &errs)
				want := exitDone
				if c.name == "config confirm" || c.name == "config revert" {
					want = exitFailed // nothing is on trial
				}
				if exitCode(err) != want {
					t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
				}
				if js && c.name != "watch" {
					oneDocument(t, c.name, out.String())
				}
				if !js && out.Len()+errs.Len() == 0 {
					t.Error("it says nothing")
				}
			})
		}
	}
}

// TestFlagsHaveWords: every flag of every command says what it is for, and
// what destroys something can be confirmed beforehand.
func TestFlagsHaveWords(t *testing.T) {
	for _, c := range commands {
		fs := flag.NewFlagSet(c.name, flag.ContinueOnError)
		c.run(&tool{}, fs)
		fs.VisitAll(func(f *flag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s has no text", c.name, f.Name)
			}
		})
	}
	for _, name := range []string{
		"move", "unfence", "host drain", "release", "slot adopt", "slot power", "slot reset",
		"config set", "config apply", "restore", "move resolve", "nvm repair",
	} {
		c, _ := lookup(name)
		fs := flag.NewFlagSet(name, flag.ContinueOnError)
		c.run(&tool{}, fs)
		if fs.Lookup("yes") == nil {
			t.Errorf("%s has no --yes", name)
		}
	}
}

func TestNearest(t *testing.T) {
	for typed, want := range map[string]string{
		"mvoe": "move", "adopt": "slot adopt", "slot adpot": "slot adopt", "repair": "nvm repair", "cofnig set": "config set",
		"drain": "host drain", "unfnece": "unfence", "stat": "status", "confirm": "config confirm", "move rsolve": "move resolve",
	} {
		if got := nearest(typed); got != fmt.Sprintf("; did you mean 'baton %s'?", want) {
			t.Errorf("nearest(%s) = %q; want %s", typed, got, want)
		}
	}
	if got := nearest("xyzzy"); got != "" {
		t.Errorf("nearest(xyzzy) = %q", got)
	}
}
