package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// width of a serial console.
const width = 80

// ascii passes printable ASCII and newlines on: what an agent sends is not to
// move the cursor of who reads it.
type ascii struct {
	w    io.Writer
	live *live
}

func (a ascii) Write(p []byte) (int, error) {
	return a.live.around(func() (int, error) {
		if _, err := a.w.Write(printable(p)); err != nil {
			return 0, err
		}
		return len(p), nil
	})
}

// printable has '?' for all but printable ASCII and newlines.
func printable(p []byte) []byte {
	out := make([]byte, len(p))
	for i, c := range p {
		if c != '\n' && (c < ' ' || c > '~') {
			c = '?'
		}
		out[i] = c
	}
	return out
}

// wrap breaks s at spaces so that it fits; lines after the first are indented.
// Runs of spaces inside a line stay.
func wrap(s string, indent int) string {
	var out strings.Builder
	for i, line := range strings.Split(s, "\n") {
		if i > 0 {
			out.WriteByte('\n')
			line = strings.Repeat(" ", indent) + line
		}
		for len(line) > width {
			cut := strings.LastIndexByte(line[:width+1], ' ')
			if strings.TrimSpace(line[:max(cut, 0)]) == "" {
				break // one long word
			}
			out.WriteString(strings.TrimRight(line[:cut], " "))
			out.WriteByte('\n')
			line = strings.Repeat(" ", indent) + strings.TrimLeft(line[cut:], " ")
		}
		out.WriteString(line)
	}
	return out.String()
}

// column of a table.
type column struct {
	head  string
	right bool // aligned
	least int  // it may be cut to this many characters where the table is too wide; 0 = never
}

// shortest is how far a column is cut that should not be.
const shortest = 8

// table lays rows out under their heads, two spaces between columns. The first
// column that may be is cut to fit; where that is not enough, others are too.
func table(cols []column, rows [][]string) string {
	w := make([]int, len(cols))
	total := -2
	for i, c := range cols {
		w[i] = len(c.head)
		for _, r := range rows {
			w[i] = max(w[i], len(r[i]))
		}
		total += w[i] + 2
	}
	for i, c := range cols {
		if c.least > 0 && total > width {
			cut := min(total-width, max(0, w[i]-c.least))
			w[i] -= cut
			total -= cut
		}
	}
	// Names may be long: the widest go first, the first column never.
	for total > width && len(w) > 1 {
		i := 1
		for j := range w[1:] {
			if w[j+1] > w[i] {
				i = j + 1
			}
		}
		if w[i] <= shortest {
			break
		}
		w[i]--
		total--
	}
	var out strings.Builder
	line := func(cells func(i int) string) {
		var l strings.Builder
		for i, c := range cols {
			s := cells(i)
			if len(s) > w[i] {
				s = s[:w[i]-1] + "~"
			}
			if c.right {
				fmt.Fprintf(&l, "%*s  ", w[i], s)
			} else {
				fmt.Fprintf(&l, "%-*s  ", w[i], s)
			}
		}
		out.WriteString(strings.TrimRight(l.String(), " "))
		out.WriteByte('\n')
	}
	line(func(i int) string { return cols[i].head })
	for _, r := range rows {
		line(func(i int) string { return r[i] })
	}
	return out.String()
}

// age is a duration in two units: 3d02h, 5m07s, 2.5s.
func age(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d >= 24*time.Hour:
		return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}

// counter is the short form of a generation: "17" of "9f3c2a10-17".
func counter(generation string) string {
	_, n, ok := strings.Cut(generation, "-")
	if !ok {
		return "unknown"
	}
	return n
}

// count is "1 slot", "3 slots".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if stem, ok := strings.CutSuffix(what, "ry"); ok {
		return fmt.Sprintf("%d %sries", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
