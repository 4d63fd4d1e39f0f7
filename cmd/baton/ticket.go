package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"baton/mgmt"
	"baton/mgmt/config"
)

var reportCommand = command{
	name: "report", args: "[--full] [-o FILE] [--verify FILE]", short: "all of it as one text for a ticket, without secrets",
	about: `State, checks, configuration, events, moves, metrics and the ends of the logs, with
a mark and a checksum at the end, so that a paste that was cut short is seen:
--verify FILE tells, of a text with a report in it. Up to 64 KiB, which takes six
seconds at 115200 baud; --full leaves nothing out. Passwords and keys are left
out; names, MACs and serial numbers are not. Without an agent it has what can be
seen from here, and exit code 4.`,
	run: func(t *tool, fs *flag.FlagSet) func(context.Context, []string) error {
		full := fs.Bool("full", false, "leave nothing out, however long it gets")
		out := fs.String("o", "", "write it to `FILE`")
		verify := fs.String("verify", "", "only tell whether the report in `FILE` is whole")
		file := fs.String("config", configFile, "configuration `file` of the agent, for where none answers")
		return func(ctx context.Context, _ []string) error {
			if *verify != "" {
				return t.verifyReport(*verify)
			}
			r, err := t.collect(ctx, newLocal(*file), *full)
			if err != nil && !errors.As(err, new(*mgmt.UnreachableError)) {
				return err
			}
			switch {
			case t.json && *out == "":
				if e := t.printJSON(r); e != nil {
					return e
				}
			case *out != "":
				text := r.text()
				if e := writeFile(*out, []byte(text)); e != nil {
					return e
				}
				if e := t.written(*out, len(text), fmt.Sprintf("%s, no secrets", count(len(r.Sections), "section")), ""); e != nil {
					return e
				}
			default:
				if _, e := io.WriteString(t.stdout, r.text()); e != nil {
					return e
				}
			}
			if err != nil && t.json {
				return &outcome{exitUnreachable}
			}
			return err
		}
	},
}

// ticket is a report.
type ticket struct {
	Enclosure string    `json:"enclosure,omitempty"`
	Agent     string    `json:"agent"` // reached, unreachable
	Error     string    `json:"error,omitempty"`
	Baton     string    `json:"baton"`
	Time      time.Time `json:"time"` // may be wrong: see the status
	Sections  []section `json:"sections"`
}

// section of a report.
type section struct {
	Title string `json:"title"`
	Text  string `json:"text"`
	Cut   bool   `json:"cut"` // something was left out of it
}

// Bounds of a report, in bytes.
const (
	reportLimit  = 64 << 10
	sectionLimit = 8 << 10
	configLimit  = 16 << 10
	logTail      = 6 << 10
	fullTail     = 1 << 20
)

// collect asks for everything, one after the other: what one part can not tell
// does not keep the others from being told.
func (t *tool) collect(ctx context.Context, l local, full bool) (ticket, error) {
	r := ticket{Agent: "reached", Baton: mgmt.Version, Time: time.Now().UTC(), Sections: []section{}}
	left := reportLimit
	add := func(title, text string, most int, end bool) {
		text = strings.TrimRight(scrub(string(printable([]byte(text)))), "\n") + "\n"
		if full {
			most, left = len(text), len(text)+1
		}
		most = min(most, left)
		s := section{Title: title, Text: text}
		if len(text) > most {
			s.Text, s.Cut = shorten(text, most, end), true
		}
		left -= len(s.Text)
		r.Sections = append(r.Sections, s)
	}
	var first error
	stop := t.live.begin("collecting a report")
	if t.json {
		stop()
		stop = func() {}
	}
	defer stop()

	var e mgmt.Enclosure
	err := t.hello(ctx)
	if err == nil {
		e, err = t.agent.Enclosure(ctx)
	}
	if errors.As(err, new(*mgmt.UnreachableError)) {
		first = err
		r.Agent, r.Error = "unreachable", err.Error()
	}
	r.Enclosure = e.Name
	version := e.Agent
	if version == "" {
		version = "not reached"
	}
	add("versions", fmt.Sprintf("baton %s, agent %s\n%s", mgmt.Version, version, l.machine()), sectionLimit, false)
	if first == nil {
		add("status", t.capture(ctx, "status"), sectionLimit, false)
	}
	add("check", t.capture(ctx, "check", "--config", l.config), sectionLimit, true)
	if first == nil {
		add("moves", t.capture(ctx, "moves"), sectionLimit, false)
		add("nvm", t.capture(ctx, "nvm", "check"), sectionLimit, false)
		entries := "60"
		if full {
			entries = "0"
		}
		add("log", t.capture(ctx, "log", "-n", entries), 2*sectionLimit, true)
		add("configuration", t.ownConfig(ctx), configLimit, false)
		add("metrics", t.ownMetrics(ctx), sectionLimit, false)
	} else if data, err := os.ReadFile(l.path(l.config)); err == nil {
		add("configuration "+l.config, masked(data), configLimit, false)
	}
	tail := int64(logTail)
	if full {
		tail = fullTail
	}
	for _, name := range []string{initState, agentLog, agentLog + ".1", initLog, initLog + ".1"} {
		if text, cut, err := tailOf(l.path(name), tail); err == nil {
			add("end of "+name, text, int(tail), true)
			r.Sections[len(r.Sections)-1].Cut = r.Sections[len(r.Sections)-1].Cut || cut
		}
	}
	if text, err := kernelWarnings(l); err == nil && text != "" {
		add("kernel warnings", text, logTail, true)
	}
	// What there may be most of comes last: it is what is left out.
	for _, s := range e.Slots {
		add("slot "+s.Name, t.capture(ctx, "status", s.Name), sectionLimit, false)
	}
	return r, first
}

// shorten leaves the beginning of text, or its end, in whole lines.
func shorten(text string, most int, end bool) string {
	most = max(0, most)
	if end {
		text = text[len(text)-most:]
		_, text, _ = strings.Cut(text, "\n")
		return text
	}
	return text[:strings.LastIndexByte(text[:most], '\n')+1]
}

// capture is what a command of this tool prints.
func (t *tool) capture(ctx context.Context, args ...string) string {
	var out bytes.Buffer
	sub := newTool(strings.NewReader(""), &out, &out)
	sub.socket = t.socket
	_ = sub.do(ctx, args) // it has said so
	return out.String()
}

func (t *tool) ownConfig(ctx context.Context) string {
	c, err := t.agent.Config(ctx)
	if err != nil {
		return "can not be read: " + err.Error()
	}
	return configWord(c) + "\n" + masked([]byte(c.Text))
}

// masked is a configuration without its password, or not at all where that can
// not be found for certain.
func masked(text []byte) string {
	m, err := config.Masked(text)
	if err != nil {
		return fmt.Sprintf("left out: %v, so it is not known what of it is secret", err)
	}
	return string(m)
}

// ownMetrics are those that are not zero.
func (t *tool) ownMetrics(ctx context.Context) string {
	text, err := t.agent.Metrics(ctx)
	if err != nil {
		return "can not be read: " + err.Error()
	}
	var out strings.Builder
	for l := range strings.Lines(text) {
		if f := strings.Fields(l); len(f) > 1 && !strings.HasPrefix(l, "#") && f[len(f)-1] != "0" {
			out.WriteString(l)
		}
	}
	return out.String()
}

// machine is the kernel, and since when it runs.
func (l local) machine() string {
	var parts []string
	for _, name := range []string{"/proc/version", "/proc/uptime", "/proc/loadavg", "/proc/cmdline"} {
		if data, err := os.ReadFile(l.path(name)); err == nil {
			parts = append(parts, strings.TrimPrefix(name, "/proc/")+": "+strings.TrimSpace(string(data)))
		}
	}
	return strings.Join(parts, "\n")
}

// text is what is pasted: lines of ours have up to 80 columns.
func (r ticket) text() string {
	body := r.body()
	var out strings.Builder
	name := r.Enclosure
	if name == "" {
		name = "unknown"
	}
	fmt.Fprintf(&out, "%s %s %s -----\n", reportBegin, name, r.Time.Format("2006-01-02T15:04:05Z"))
	out.WriteString(body)
	lines, sum := sumOf(body)
	fmt.Fprintf(&out, "%s %d lines, sum %s -----\n", reportEnd, lines, sum)
	return out.String()
}

func (r ticket) body() string {
	var out strings.Builder
	if r.Error != "" {
		fmt.Fprintln(&out, wrap("no agent: "+r.Error, 2))
	}
	for _, s := range r.Sections {
		cut := ""
		if s.Cut {
			cut = " (shortened: baton report --full)"
		}
		fmt.Fprintf(&out, "== %s%s\n%s", s.Title, cut, s.Text)
	}
	return out.String()
}

// Marks of a report.
const (
	reportBegin = "----- BEGIN BATON REPORT"
	reportEnd   = "----- END BATON REPORT"
)

// sumOf counts the lines of a body, and sums them (CRC-32C), without what
// terminals and tickets change: white space at the ends of lines, empty lines.
func sumOf(body string) (lines int, sum string) {
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	for l := range strings.Lines(body) {
		if l = strings.TrimRight(l, " \t\r\n"); l != "" {
			lines++
			_, _ = io.WriteString(h, l+"\n") // a hash takes it all
		}
	}
	return lines, fmt.Sprintf("%08x", h.Sum32())
}

// verified answers report --verify.
type verified struct {
	OK    bool   `json:"ok"`
	Lines int    `json:"lines"`
	Text  string `json:"text"`
}

func (t *tool) verifyReport(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	v := verify(string(data))
	if t.json {
		err = t.printJSON(v)
	} else {
		t.say("%s: %s", file, v.Text)
	}
	if err == nil && !v.OK {
		err = &outcome{exitFailed}
	}
	return err
}

// verify tells whether the report in text came through whole.
func verify(text string) verified {
	_, rest, found := strings.Cut(text, reportBegin)
	if !found {
		return verified{Text: "there is no report in it"}
	}
	_, rest, _ = strings.Cut(rest, "\n")
	body, end, found := strings.Cut(rest, reportEnd)
	lines, sum := sumOf(body)
	if !found {
		return verified{Lines: lines, Text: fmt.Sprintf("cut short after %d lines: its last line is missing", lines)}
	}
	f := strings.Fields(end)
	if len(f) < 4 {
		return verified{Lines: lines, Text: "its last line is cut short"}
	}
	want, err := strconv.Atoi(f[0])
	switch {
	case err != nil || f[2] != "sum":
		return verified{Lines: lines, Text: "its last line was changed"}
	case want != lines:
		return verified{Lines: lines, Text: fmt.Sprintf("it has %d lines, and had %d", lines, want)}
	case f[3] != sum:
		return verified{Lines: lines, Text: "a line of it was changed"}
	}
	return verified{OK: true, Lines: lines, Text: fmt.Sprintf("whole: %d lines", lines)}
}

func sortedNames(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
