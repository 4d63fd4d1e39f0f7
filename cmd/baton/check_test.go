package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/server/servertest"
)

var farAway = time.Now().Add(time.Hour)

// board is a file system as a board has it.
func board(t *testing.T, files map[string]string) local {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(root+name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return local{root, configFile}
}

func have(t *testing.T, lines []mgmt.CheckLine, level, text string) {
	t.Helper()
	for _, l := range lines {
		if l.Level == level && strings.Contains(l.Area+" "+l.Subject+": "+l.Text, text) {
			if level != mgmt.CheckOK && l.Next == "" {
				t.Errorf("it does not say what to do: %+v", l)
			}
			return
		}
	}
	t.Errorf("no line %s with %q in %+v", level, text, lines)
}

// TestAbsent: without an agent it is said why there is none, as far as that can
// be seen.
func TestAbsent(t *testing.T) {
	seed, err := os.ReadFile("testdata/config.json")
	if err != nil {
		t.Fatal(err)
	}
	good := strings.Replace(string(seed), "{", `{"run_dir": "/run/b",`, 1)
	log := "time=1970 level=INFO msg=ready\nlevel=ERROR msg=\"bus can not be opened\" bus=i2c-5\nbatond: run directory: no space\n"
	l := board(t, map[string]string{configFile: good, agentLog: log, "/run/b/batond.lock": ""})
	lines := l.absent(l.root + "/run/b/baton.sock")
	have(t, lines, mgmt.CheckFail, "no agent listens")
	have(t, lines, mgmt.CheckFail, "no batond runs; one has since power-up")
	have(t, lines, mgmt.CheckOK, configFile+" is valid: enclosure rack7-io2")
	have(t, lines, mgmt.CheckFail, "/dev/i2c-5 is not there")
	have(t, lines, mgmt.CheckWarn, "bus can not be opened")
	have(t, lines, mgmt.CheckWarn, "batond: run directory: no space")

	f, err := os.Open(l.root + "/run/b/batond.lock")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	have(t, l.absent("/nowhere"), mgmt.CheckWarn, "a batond runs, and does not answer")

	l = board(t, map[string]string{configFile: `{"enclosure": 5}`})
	lines = l.absent("/nowhere")
	have(t, lines, mgmt.CheckFail, "config file: /etc/baton/batond.json: line 1: enclosure: is a number")
	have(t, lines, mgmt.CheckFail, "no batond has run since power-up")
	have(t, board(t, nil).absent("/nowhere"), mgmt.CheckFail, "no such file")
	// Without a configuration the run directory is taken for the socket's.
	l = board(t, map[string]string{"/run/c/batond.lock": ""})
	have(t, l.absent(l.root+"/run/c/baton.sock"), mgmt.CheckFail, "one has since power-up")
}

// TestStuckAgent: one that takes connections and answers nothing keeps nobody
// from what can be seen without it.
func TestStuckAgent(t *testing.T) {
	was := helloLimit
	t.Cleanup(func() { helloLimit = was })
	helloLimit = 100 * time.Millisecond
	dir, err := os.MkdirTemp("", "b") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("BATON_ROOT", t.TempDir())
	for _, verb := range []string{"check", "report"} {
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := run(ctx, []string{verb, "--socket", socket}, strings.NewReader(""), &out, &out)
		if exitCode(err) != exitUnreachable || ctx.Err() != nil || !strings.Contains(out.String(), "nobody") {
			t.Errorf("%s: %v, %v\n%s", verb, err, ctx.Err(), out.String())
		}
		cancel()
	}
}

func TestInitState(t *testing.T) {
	const well = `{"agent":{"pid":7,"restarts":0,"health":"ok","since_s":125},"watchdog":{"device":"/dev/watchdog0","identity":"aspeed","timeout_s":30,"fed":true},"image":{"bank":"a"},"new_key":1}`
	for _, tt := range []struct{ from, to, level, text string }{
		{"", "", mgmt.CheckOK, "init agent: healthy for 2m05s"},
		{"", "", mgmt.CheckOK, "watchdog hardware: /dev/watchdog0 aspeed, fed, bites after 30s"},
		{"", "", mgmt.CheckOK, "image bank a: runs"},
		{`"ok"`, `"stuck poller for 40 s"`, mgmt.CheckFail, "stuck poller"},
		{`"ok"`, `"ok, its store is not usable"`, mgmt.CheckWarn, "ok, its store is not usable, for 2m05s"},
		{`"ok"`, `"starting"`, mgmt.CheckWarn, "starting for 2m05s"},
		{`"ok"`, `"ended"`, mgmt.CheckFail, "ended"},
		{`"bank":"a"`, `"bank":"b","outcome":"bank b was tried and confirmed"`, mgmt.CheckOK, "bank b: runs"},
		{`"restarts":0`, `"restarts":3`, mgmt.CheckWarn, "after 3 restarts"},
		{`"fed":true`, `"fed":false`, mgmt.CheckFail, "is not fed"},
		{`"fed":true`, `"fed":true,"bitten":true`, mgmt.CheckWarn, "has restarted this controller"},
		{`"/dev/watchdog0"`, `""`, mgmt.CheckWarn, "there is none"},
		{`"bank":"a"`, `"bank":"b","trial":true`, mgmt.CheckWarn, "on trial"},
		{`"bank":"a"`, `"bank":"a","outcome":"rolled back: no health within 90 s"`, mgmt.CheckWarn, "rolled back"},
		{`"new_key"`, `"clock":{"set_from_floor":true},"k"`, mgmt.CheckWarn, "the clock began at the image's build"},
		{`"new_key":1`, `"modules_failed":["i2c-aspeed"]`, mgmt.CheckFail, "not loaded: i2c-aspeed"},
		{well, "{", mgmt.CheckWarn, "can not be read"},
	} {
		text := strings.Replace(well, tt.from, tt.to, 1)
		if tt.from != "" && text == well {
			t.Fatalf("%q is not in the text", tt.from)
		}
		have(t, board(t, map[string]string{initState: text}).init(), tt.level, tt.text)
	}
	if lines := board(t, nil).init(); len(lines) != 0 {
		t.Errorf("without a board's init: %+v", lines)
	}
}

// TestCheckOrder: what is wrong stands last, and decides the exit code.
func TestCheckOrder(t *testing.T) {
	f := servertest.New()
	f.Checks = []enclosure.CheckLine{
		{Area: "engine", Subject: "gpu0", Level: enclosure.CheckFail, Text: "gpu0: dead", Next: "seat it"},
		{Area: "bus", Subject: "i2c-5", Level: enclosure.CheckOK, Text: "fine"},
		{Area: "host", Subject: "server3", Level: enclosure.CheckWarn, Text: "fenced", Next: "baton unfence server3"},
	}
	socket, stop, err := serve(agent{f, servertest.NewKeeper()})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	t.Setenv("BATON_ROOT", t.TempDir())
	var out bytes.Buffer
	err = run(t.Context(), []string{"check", "--socket", socket}, strings.NewReader(""), &out, &out)
	const want = `ok    bus i2c-5: fine
warn  host server3: fenced
      next: baton unfence server3
FAIL  engine gpu0: dead
      next: seat it
1 ok, 1 warn, 1 fail.
Next: baton report  # all of it, to paste into a ticket
`
	if out.String() != want || exitCode(err) != exitFailed {
		t.Errorf("exit code %d\n%s\nwant\n%s", exitCode(err), out.String(), want)
	}
	f.Set(func(s *servertest.Settings) { s.Checks = s.Checks[1:] })
	if err := run(t.Context(), []string{"check", "--socket", socket}, strings.NewReader(""), &out, &out); err != nil {
		t.Errorf("a warning is no failure: %v", err)
	}
	err = run(t.Context(), []string{"check", "--socket", "/nowhere/s"}, strings.NewReader(""), &out, &out)
	if exitCode(err) != exitUnreachable || !errors.As(err, new(*mgmt.UnreachableError)) {
		t.Errorf("without an agent: %v", err)
	}
}

// Secrets that are planted, each in a form of its own.
const (
	plantedHash = "pbkdf2-sha256$4096$c2FsdHNhbHRzYWx0$PLANTEDPLANTEDPLANTEDPLANTEDPLANTEDPLANTEDA"
	plantedPEM  = "-----BEGIN PRIVATE KEY-----\nPLANTEDKEYPLANTED\n-----END PRIVATE KEY-----"
)

func TestScrub(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"nothing secret: password policy, key \"cluster-n3\"", ""},
		{"hash " + plantedHash + " end", "hash (hidden) end"},
		{`"x": "pbkdf2-sha256\u00244096\u0024PLANTED"`, `"x": "(hidden)"`},
		{"before\n" + plantedPEM + "\nafter", "before\n(hidden)\nafter"},
		{`{"password": "PLANTED", "a": 1}`, `{"password": "(hidden)", "a": 1}`},
		{`{"password":"PLA\"NTED"}`, `{"password":"(hidden)"}`},
		{`{\"password\": \"PLANTED\", \"a\": 1}`, `{\"password\": \"(hidden)\", \"a\": 1}`},
		{`{"Private_Key": "PLANTED"}`, `{"Private_Key": "(hidden)"}`},
		{`msg=x secret=PLANTED b=1`, `msg=x secret=(hidden) b=1`},
		{`{"password": ""}`, ""},
		{`"console": {"lock_after": "10m"}`, ""},
	} {
		want := tt.want
		if want == "" {
			want = tt.text
		}
		if got := strings.TrimSuffix(scrub(tt.text), "\n"); got != want {
			t.Errorf("scrub(%q) = %q; want %q", tt.text, got, want)
		}
	}
}

func FuzzScrub(f *testing.F) {
	f.Add("a " + plantedHash + " b")
	f.Add(plantedPEM)
	f.Add(`{"password": "x\"y", "secret": 5, invite=`)
	f.Fuzz(func(t *testing.T, text string) {
		once := scrub(text)
		if strings.Contains(once, "pbkdf2-sha256$") {
			t.Errorf("%q", once)
		}
		if len(once) > 10*len(text)+100 {
			t.Errorf("%d bytes became %d", len(text), len(once))
		}
	})
}

// TestReportHasNoSecrets plants secrets wherever a report looks.
func TestReportHasNoSecrets(t *testing.T) {
	f, k := servertest.New(), servertest.NewKeeper()
	conf := strings.Replace(servertest.ConfigText, "{", `{ "console": {"password": "`+strings.ReplaceAll(plantedHash, "$", `\u0024`)+`"},`, 1)
	if _, err := k.Apply(t.Context(), mgmt.ConfigRequest{Text: conf}, ""); err != nil {
		t.Fatal(err)
	}
	f.Note(enclosure.Event{Kind: "config", Text: "somebody wrote password=PLANTED into a text"})
	f.Record(enclosure.AuditRecord{Kind: "config", Text: "hash " + plantedHash})
	l := board(t, map[string]string{
		agentLog: "level=ERROR msg=\"" + plantedHash + "\"\n" + plantedPEM + "\n", initLog: `{"secret": "PLANTED"}` + "\n", agentLog + ".1": "an old line\n",
		configFile: conf, initState: `{"agent":{"health":"ok"}}`, "/proc/version": "Linux 6.1\n", "/proc/cmdline": "psk=PLANTED quiet\n",
	})
	socket, stop, err := serve(agent{f, k})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	t.Setenv("BATON_ROOT", l.root)
	for _, args := range [][]string{{"report"}, {"report", "--full"}, {"report", "--json"}, {"report", "--socket", "/nowhere/s"}, {"check", "--socket", "/nowhere/s"}} {
		var out, errs bytes.Buffer
		if args[len(args)-1] != "/nowhere/s" {
			args = append(args, "--socket", socket)
		}
		err := run(t.Context(), args, strings.NewReader(""), &out, &errs)
		want := exitDone
		if strings.Contains(fmt.Sprint(args), "/nowhere") {
			want = exitUnreachable
		}
		if exitCode(err) != want {
			t.Errorf("%q: exit code %d\n%s", args, exitCode(err), errs.String())
		}
		if i := strings.Index(out.String(), "PLANTED"); i >= 0 {
			t.Errorf("%q has a secret:\n%s", args, out.String()[max(0, i-200):min(out.Len(), i+40)])
		}
		if args[0] != "report" {
			continue
		}
		for _, must := range []string{"Linux 6.1", "an old line", "config", "train1"} {
			if !strings.Contains(out.String(), must) {
				t.Errorf("%q does not have %q:\n%s", args, must, out.String())
			}
		}
		if !strings.Contains(strings.Join(args, " "), "--json") {
			if v := verify("> pasted\r\n" + strings.ReplaceAll(out.String(), "\n", "  \r\n\r\n") + "-- \n"); !v.OK {
				t.Errorf("%q: it does not verify: %+v", args, v)
			}
		}
	}
}

func TestVerify(t *testing.T) {
	r := ticket{Enclosure: "rack7-io2", Sections: []section{{Title: "status", Text: "one\ntwo\n"}, {Title: "log", Text: "three\n", Cut: true}}}
	text := r.text()
	for _, tt := range []struct{ text, want string }{
		{text, "whole: 5 lines"},
		{strings.Replace(text, "two", "tow", 1), "a line of it was changed"},
		{strings.Replace(text, "two\n", "", 1), "it has 4 lines, and had 5"},
		{text[:len(text)-60], "cut short after"},
		{strings.TrimSuffix(text, "-----\n")[:strings.Index(text, "sum")], "its last line is cut short"},
		{"hello", "there is no report in it"},
	} {
		if v := verify(tt.text); !strings.HasPrefix(v.Text, tt.want) || v.OK != strings.HasPrefix(tt.want, "whole") {
			t.Errorf("verify = %+v; want %s\n%s", v, tt.want, tt.text)
		}
	}
}

// TestReportIsBounded: of many slots and long logs there is an end.
func TestReportIsBounded(t *testing.T) {
	f := servertest.New()
	f.Edit(func(s *enclosure.Status) {
		for i := range 60 {
			more := s.Slots[0]
			more.Name = fmt.Sprintf("gpu1%02d", i)
			more.Problem = strings.Repeat("it does not work ", 40)
			s.Slots = append(s.Slots, more)
		}
	})
	l := board(t, map[string]string{agentLog: strings.Repeat("level=INFO msg=something\n", 100_000), agentLog + ".1": strings.Repeat("y\n", 1e6)})
	socket, stop, err := serve(agent{f, servertest.NewKeeper()})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	t.Setenv("BATON_ROOT", l.root)
	var out bytes.Buffer
	if err := run(t.Context(), []string{"report", "--socket", socket}, strings.NewReader(""), &out, &out); err != nil {
		t.Fatal(err)
	}
	if out.Len() > reportLimit+8<<10 || out.Len() < reportLimit/2 || !strings.Contains(out.String(), "shortened") || !verify(out.String()).OK {
		t.Errorf("%d bytes; want up to %d; verify: %+v", out.Len(), reportLimit, verify(out.String()))
	}
}

func TestKernelLine(t *testing.T) {
	for _, tt := range []struct{ record, want string }{
		{"3,120,5140900,-;i2c i2c-5: timeout\n SUBSYSTEM=i2c\n", "    5.140900 i2c i2c-5: timeout\n"},
		{"28,7,1,-;warn", "    0.000001 warn\n"},
		{"6,120,5140900,-;an info", ""},
		{"nonsense", ""},
		{";", ""},
	} {
		if got, ok := kernelLine(tt.record); got != tt.want || ok != (tt.want != "") {
			t.Errorf("kernelLine(%q) = %q, %v", tt.record, got, ok)
		}
	}
}
