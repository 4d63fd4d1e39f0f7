package bootloader

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"baton/images/bank"
	"baton/images/uboot"
)

var testBanks = map[string]Span{"a": {0x200000, 0xf00000}, "b": {0x1100000, 0xf00000}}

func testScript() uboot.Env { return Script("console=ttyS4", 0x83000000, testBanks) }

// TestScript runs U-Boot's script on every state of the variables, with banks
// that can be booted or not, and compares what it boots with bank.Vars.Plan.
func TestScript(t *testing.T) {
	cases := 0
	for _, name := range []string{"a", "b", "", "c"} {
		for _, trial := range []string{"1", "0", ""} {
			for _, count := range []string{"0", "1", "2", "7", "", "x"} {
				for _, limit := range []string{"1", "3", "0", ""} {
					for _, whole := range []string{"ab", "a", "b", ""} {
						e := testScript()
						for k, v := range map[string]string{bank.VarBank: name, bank.VarTrial: trial, bank.VarCount: count, bank.VarLimit: limit} {
							if e[k] = v; v == "" {
								delete(e, k)
							}
						}
						cases++
						what := fmt.Sprintf("bank %q trial %q count %q limit %q whole %q", name, trial, count, limit, whole)

						var want []string
						try, saved, after := bank.Read(e).Plan()
						for _, a := range try {
							args := "console=ttyS4 " + strings.Join(Choice{Attempt: a}.Words(), " ")
							want = append(want, fmt.Sprintf("%#x %s", testBanks[a.Bank].Offset, args))
							if strings.Contains(whole, a.Bank) {
								break
							}
						}
						m := machine{env: maps.Clone(e), whole: whole}
						m.start(t)
						if d := cmp.Diff(want, m.booted); d != "" {
							t.Fatalf("%s: -plan +script\n%s", what, d)
						}
						if m.saves > 0 != saved {
							t.Errorf("%s: the count saved %d times; want %v", what, m.saves, saved)
						}
						if saved && m.env[bank.VarCount] != fmt.Sprint(after.Count) {
							t.Errorf("%s: count %s; want %d", what, m.env[bank.VarCount], after.Count)
						}
					}
				}
			}
		}
	}
	t.Logf("%d states", cases)
}

// TestScriptSavesDefaults: an environment that was lost is not for ever.
func TestScriptSavesDefaults(t *testing.T) {
	m := machine{env: testScript(), whole: "b", isDefault: true}
	m.start(t)
	if m.saves != 1 || len(m.booted) != 2 {
		t.Errorf("saved %d times, booted %q; want 1 and both banks", m.saves, m.booted)
	}
}

// machine is U-Boot as far as the script needs it.
type machine struct {
	env       uboot.Env
	whole     string // banks that bootm does not come back from
	isDefault bool
	read      string // offset that was read last
	booted    []string
	saves     int
}

var errBooted = errors.New("booted")

// start is bootdelay_process of U-Boot's common/autoboot.c, with the count of
// drivers/bootcount/bootcount_env.c.
func (m *machine) start(t *testing.T) {
	t.Helper()
	trial, count, limit := number(m.env[bank.VarTrial]), 0, number(m.env[bank.VarLimit])
	if trial != 0 {
		count = number(m.env[bank.VarCount])
	}
	count++
	if trial != 0 {
		m.env[bank.VarCount] = fmt.Sprint(count)
		m.saves++
	}
	cmd := "bootcmd"
	if trial != 0 && limit != 0 && count > limit {
		cmd = "altbootcmd"
	}
	if err := m.run(m.env[cmd]); err != nil && !errors.Is(err, errBooted) {
		t.Fatal(err)
	}
}

func number(s string) (n int) {
	fmt.Sscanf(s, "%d", &n)
	return n
}

var variable = regexp.MustCompile(`\$\{(\w+)\}`)

// run runs a line of the shell. As in hush, if is a list of commands too.
func (m *machine) run(line string) error {
	list := strings.Split(line, ";")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	for len(list) > 0 {
		word, rest, _ := strings.Cut(list[0], " ")
		if word != "if" {
			if err := m.command(list[0]); err != nil && !errors.Is(err, errFalse) {
				return err
			}
			list = list[1:]
			continue
		}
		end := slices.Index(list, "fi")
		if end < 0 {
			return fmt.Errorf("no fi in %q", line)
		}
		body := slices.Clone(list[1:end])
		list = list[end+1:]
		yes := m.command(rest)
		if yes != nil && !errors.Is(yes, errFalse) {
			return yes
		}
		var then, other []string
		for i, c := range body {
			if first, more, _ := strings.Cut(c, " "); first == "then" && i == 0 {
				then = append(then, more)
			} else if first == "else" {
				other = append([]string{more}, body[i+1:]...)
				break
			} else {
				then = append(then, c)
			}
		}
		if yes != nil {
			then = other
		}
		if err := m.run(strings.Join(then, ";")); err != nil {
			return err
		}
	}
	return nil
}

var errFalse = errors.New("false")

func (m *machine) command(c string) error {
	c = variable.ReplaceAllStringFunc(c, func(v string) string { return m.env[v[2:len(v)-1]] })
	words := strings.Fields(c)
	if len(words) == 0 {
		return nil
	}
	args := words[1:]
	switch words[0] {
	case "run":
		for _, name := range args {
			if m.env[name] == "" {
				return fmt.Errorf("%s is not defined", name)
			}
			if err := m.run(m.env[name]); err != nil {
				return err
			}
		}
	case "setenv":
		if len(args) == 1 {
			delete(m.env, args[0])
			return nil
		}
		m.env[args[0]] = strings.Join(args[1:], " ")
	case "test":
		if len(args) != 3 || args[1] != "=" {
			return fmt.Errorf("test %q", args)
		}
		if strings.Trim(args[0], `"`) != args[2] {
			return errFalse
		}
	case "env":
		if !m.isDefault {
			return errFalse
		}
	case "saveenv":
		m.saves++
		m.isDefault = false
	case "sf":
		if args[0] == "read" {
			m.read = args[2]
		}
	case "bootm":
		m.booted = append(m.booted, m.read+" "+m.env["bootargs"])
		for name, span := range testBanks {
			if fmt.Sprintf("%#x", span.Offset) == m.read && strings.Contains(m.whole, name) {
				return errBooted
			}
		}
	case "echo":
	default:
		return fmt.Errorf("unknown command %q", c)
	}
	return nil
}
