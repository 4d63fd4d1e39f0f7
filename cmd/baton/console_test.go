package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"baton/mgmt"

	"github.com/google/go-cmp/cmp"
)

func TestSplit(t *testing.T) {
	for _, tt := range []struct {
		line string
		want []string
		err  error
	}{
		{"", nil, nil},
		{"  move  train1 --to server2 ", []string{"move", "train1", "--to", "server2"}, nil},
		{`config set "hosts[s 9]" '{"group": 109}'`, []string{"config", "set", "hosts[s 9]", `{"group": 109}`}, nil},
		{`a\ b "c\"d" '' ""`, []string{"a b", `c"d`, "", ""}, nil},
		{"unfence server3 --epoch 2  # once it is safe", []string{"unfence", "server3", "--epoch", "2"}, nil},
		{"a#b", []string{"a#b"}, nil},
		{"# nothing", nil, nil},
		{`say 'x`, nil, errQuote},
		{`say x\`, nil, errQuote},
		{"status | grep gpu0", nil, errPipe},
		{"status > file", nil, errPipe},
		{"status; reboot", []string{"status;", "reboot"}, nil},
	} {
		got, err := split(tt.line)
		if diff := cmp.Diff(tt.want, got); diff != "" || !errors.Is(err, tt.err) {
			t.Errorf("split(%q): %v, want %v (-want +got):\n%s", tt.line, err, tt.err, diff)
		}
	}
}

func FuzzSplit(f *testing.F) {
	for _, s := range []string{"a 'b c' \"d\\\"\" # e", `\`, "'", "a | b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		words, err := split(line)
		if err != nil {
			return
		}
		// What comes out, quoted, comes out again.
		var quoted []string
		for _, w := range words {
			quoted = append(quoted, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		}
		again, err := split(strings.Join(quoted, " "))
		if err != nil || !slices.Equal(words, again) {
			t.Errorf("%q: %q, and again %q, %v", line, words, again, err)
		}
	})
}

func TestComplete(t *testing.T) {
	ask := func() known {
		return known{slots: []string{"gpu0", "gpu1", "nic0"}, hosts: []string{"server1", "server2"}, vms: []string{"train1"}}
	}
	for _, tt := range []struct{ line, want, shown string }{
		{"mo", "move", ""},
		{"st", "status ", ""},
		{"move", "move", "move moves"},
		{"move ", "move ", "resolve train1"},
		{"move t", "move train1 ", ""},
		{"move train1 --t", "move train1 --to ", ""},
		{"move train1 --to ", "move train1 --to server", ""},
		{"move train1 --to server", "move train1 --to server", "server1 server2"},
		{"move train1 --slots gpu0,", "move train1 --slots gpu0,", "gpu0,gpu1 gpu0,nic0"},
		{"move train1 --slots gpu0,n", "move train1 --slots gpu0,nic0 ", ""},
		{"move train1 --slots=", "move train1 --slots=", ""},
		{"move train1 x", "move train1 x", ""},
		{"move resolve --drop n", "move resolve --drop nic0 ", ""},
		{"slot ", "slot ", "adopt locate power reset"},
		{"slot po", "slot power ", ""},
		{"slot power gpu1 c", "slot power gpu1 cycle ", ""},
		{"baton fence server1", "baton fence server1 ", ""},
		{"nvm dump s", "nvm dump store ", ""},
		{"help nvm ch", "help nvm check ", ""},
		{"watch --kind fe", "watch --kind fence ", ""},
		{"log tr", "log train1 ", ""},
		{"console p", "console password ", ""},
		{"she", "shell ", ""},
		{"nonsense x", "nonsense x", ""},
		{"status gpu0 ", "status gpu0 ", ""},
	} {
		c := &session{names: &names{}}
		c.names.last, c.names.at = ask(), farAway
		shown := ""
		got, pos, ok := c.complete(tt.line, len(tt.line), func(s string) { shown = strings.Join(strings.Fields(s), " ") })
		if got != tt.want || pos != len(got) || !ok || shown != tt.shown {
			t.Errorf("Tab after %q: %q, shows %q; want %q, %q", tt.line, got, shown, tt.want, tt.shown)
		}
	}
}

// TestCompleteKnows: every argument of every command is of a kind that can be
// completed, or one that a person makes up.
func TestCompleteKnows(t *testing.T) {
	made := []string{"FILE", "KEY", "VALUE", "ID", "MOVE", "VALUE]..."}
	for _, c := range commands {
		for n := range min(c.nargs[1], 2) {
			kind := argument(c, n)
			if kind == "" || slices.Contains(made, kind) {
				continue
			}
			if len(ofKind(kind, "", func() known { return known{[]string{"s"}, []string{"h"}, []string{"v"}} })) == 0 {
				t.Errorf("%s: nothing is known of its argument %q", c.name, kind)
			}
		}
	}
}

func TestHistory(t *testing.T) {
	var h history
	for _, l := range []string{"status", "status", " ", "config set console.password pbkdf2-sha256$4096$c2FsdHNhbHRzYWx0$AAAA", "move train1"} {
		h.Add(l)
	}
	if diff := cmp.Diff([]string{"status", "move train1"}, h.lines); diff != "" || h.Len() != 2 || h.At(0) != "move train1" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	h.Add("config set console.password hunter2")
	if h.Len() > 0 && strings.Contains(h.At(0), "hunter2") {
		t.Errorf("a password is kept: %q", h.At(0))
	}
	for range 3 * historyMost {
		h.Add("a")
		h.Add("b")
	}
	if h.Len() != historyMost {
		t.Errorf("%d lines are kept; want %d", h.Len(), historyMost)
	}
}

// TestEventKinds: what watch takes for a kind is what the agent sends.
func TestEventKinds(t *testing.T) {
	literal := regexp.MustCompile(`Event\{\s*Kind: *"([a-z-]+)"`)
	found := map[string]bool{}
	for _, dir := range []string{"../../enclosure", "../../mgmt/server", "../batond"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range literal.FindAllStringSubmatch(string(text), -1) {
				found[m[1]] = true
			}
		}
	}
	for k := range found {
		if !slices.Contains(mgmt.EventKinds, k) {
			t.Errorf("mgmt.EventKinds has no %q", k)
		}
	}
	for _, k := range mgmt.EventKinds {
		if !found[k] {
			t.Errorf("nobody sends an event of kind %q", k)
		}
	}
}
