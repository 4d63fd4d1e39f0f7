package bank

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"baton/images/uboot"
)

func TestRead(t *testing.T) {
	for _, tt := range []struct {
		env  uboot.Env
		want Vars
	}{
		{uboot.Env{}, Vars{Bank: "a"}},
		{uboot.Env{VarBank: "b", VarTrial: "1", VarCount: "2", VarLimit: "3", VarOutcome: "x"}, Vars{Bank: "b", Trial: true, Count: 2, Limit: 3, Outcome: "x"}},
		{uboot.Env{VarBank: "c", VarTrial: "yes", VarCount: "-1", VarLimit: "1x"}, Vars{Bank: "a"}},
		{uboot.Env{VarCount: "99999999999999999999"}, Vars{Bank: "a"}},
	} {
		if d := cmp.Diff(tt.want, Read(tt.env)); d != "" {
			t.Errorf("Read(%v): -want +got\n%s", tt.env, d)
		}
	}
}

func vars() *rapid.Generator[Vars] {
	return rapid.Custom(func(t *rapid.T) Vars {
		return Vars{
			Bank: rapid.SampledFrom(Names).Draw(t, "bank"), Trial: rapid.Bool().Draw(t, "trial"),
			Count: rapid.IntRange(0, 4).Draw(t, "count"), Limit: rapid.IntRange(0, 3).Draw(t, "limit"),
			Outcome: rapid.SampledFrom([]string{"", "bank b was tried"}).Draw(t, "outcome"),
		}
	})
}

func TestReadWhatIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := vars().Draw(t, "vars")
		e := uboot.Env{"ethaddr": "1"}
		v.write(e)
		if d := cmp.Diff(v, Read(e)); d != "" || e["ethaddr"] != "1" {
			t.Fatalf("-written +read\n%s\n%v", d, e)
		}
	})
}

func TestStateOf(t *testing.T) {
	for _, tt := range []struct {
		v       Vars
		running string
		trial   bool
		want    State
	}{
		{Vars{Bank: "a"}, "", false, Direct},
		{Vars{Bank: "a"}, "a", false, Steady},
		{Vars{Bank: "b", Count: 7}, "b", false, Steady},
		{Vars{Bank: "a", Trial: true, Limit: 1}, "a", false, Pending},
		{Vars{Bank: "a", Trial: true, Count: 1, Limit: 1}, "b", true, Trying},
		{Vars{Bank: "a", Trial: true, Count: 9}, "b", true, Trying}, // no limit
		{Vars{Bank: "a", Trial: true, Count: 1, Limit: 1}, "a", false, Failed},
		{Vars{Bank: "a", Trial: true, Count: 2, Limit: 1}, "a", false, Failed},
		{Vars{Bank: "a", Trial: true, Count: 2, Limit: 1}, "b", false, Displaced},
		{Vars{Bank: "a", Trial: true, Count: 2, Limit: 1}, "b", true, GivenUp},
		{Vars{Bank: "b", Limit: 1}, "b", true, Steady}, // it was confirmed since
		{Vars{Bank: "a"}, "b", false, Displaced},
	} {
		if got := stateOf(tt.v, tt.running, tt.trial); got != tt.want {
			t.Errorf("stateOf(%+v, %q, %v) = %s; want %s", tt.v, tt.running, tt.trial, got, tt.want)
		}
	}
}

func TestPlan(t *testing.T) {
	a, b, trialB := Attempt{Bank: "a"}, Attempt{Bank: "b"}, Attempt{"b", true}
	for _, tt := range []struct {
		v    Vars
		want [2]Attempt
		save bool
	}{
		{Vars{Bank: "a", Limit: 1}, [2]Attempt{a, b}, false},
		{Vars{Bank: "b", Count: 3, Limit: 1}, [2]Attempt{b, a}, false},
		{Vars{Bank: "a", Trial: true, Limit: 1}, [2]Attempt{trialB, a}, true},
		{Vars{Bank: "a", Trial: true, Count: 1, Limit: 1}, [2]Attempt{a, b}, true},
		{Vars{Bank: "a", Trial: true, Count: 5}, [2]Attempt{trialB, a}, true},
	} {
		try, save, after := tt.v.Plan()
		if try != tt.want || save != tt.save || (after.Count != tt.v.Count) != save {
			t.Errorf("Plan of %+v = %v, %v, %+v; want %v, %v", tt.v, try, save, after, tt.want, tt.save)
		}
	}
}

// TestTable: what each action of the table makes the bootloader do next, from
// any state that the variables can be in.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	check := func(v Vars, running string, trial bool, e event) {
		s := stateOf(v, running, trial)
		a := table[s][e]
		seen[fmt.Sprint(s, e)] = true
		if a == refuse || a == nothing {
			return
		}
		after := a.do(v, running, "why")
		first, _, counted := after.Plan()
		this, other := Attempt{Bank: running}, Attempt{Bank: Other(running)}
		switch a {
		case tryOther:
			other.Trial = true
			if first[0] != other || first[1] != this || counted.Count != 1 || after.Limit != bootLimit {
				t.Fatalf("%s: after %+v the bootloader boots %v", a, after, first)
			}
			// and once only
			if again, _, _ := counted.Plan(); again[0] != this {
				t.Fatalf("%s: the second start boots %v", a, again)
			}
		case commit, endTrial:
			if first[0] != this || after.Trial {
				t.Fatalf("%s: after %+v the bootloader boots %v", a, after, first)
			}
		case giveUp:
			if first[0] != other {
				t.Fatalf("%s: after %+v the bootloader boots %v", a, after, first)
			}
			if again := stateOf(after, running, true); again != GivenUp {
				t.Fatalf("%s: after %+v the state is %s", a, after, again)
			}
		}
		if e == clear && first[0].Bank != running {
			t.Fatalf("clear: after %+v the bootloader boots %v, which is about to be erased", after, first)
		}
	}
	for _, name := range Names {
		for _, trial := range []bool{false, true} {
			for count := range 5 {
				for limit := range 4 {
					for _, running := range Names {
						for e := range events {
							for _, started := range []bool{false, true} {
								check(Vars{Bank: name, Trial: trial, Count: count, Limit: limit}, running, started, e)
							}
						}
					}
				}
			}
		}
	}
	if want := 6 * int(events); len(seen) != want {
		t.Errorf("%d of %d pairs of state and event were seen", len(seen), want)
	}
}

func TestClean(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, tt := range [][2]string{
		{"it hangs", "it hangs"},
		{"a\nb\x00c\x7f", "a b c"},
		{`$(reboot); "x" 'y' \ ${z}`, `.(reboot). .x. .y. . ..z.`},
		{"größer", "gr  er"},
		{long, long[:160]},
	} {
		if got := clean(tt[0]); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(tt[1]), " ") {
			t.Errorf("clean(%q) = %q; want %q", tt[0], got, tt[1])
		}
	}
}

// TestPage: docs/update.md has the table.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/update.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| state |")
	for e := range events {
		fmt.Fprintf(&want, " %s |", e)
	}
	want.WriteString("\n|---|" + strings.Repeat("---|", int(events)) + "\n")
	for s := Direct; s <= Displaced; s++ {
		fmt.Fprintf(&want, "| %s |", s)
		for e := range events {
			fmt.Fprintf(&want, " %s |", table[s][e])
		}
		want.WriteString("\n")
	}
	if !strings.Contains(string(page), want.String()) {
		t.Errorf("docs/update.md has not\n%s", want.String())
	}
}
