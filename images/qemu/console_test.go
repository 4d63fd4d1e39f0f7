package qemu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// board returns a console and the board's end of its line.
func board() (c *Console, in *bufio.Reader, out *io.PipeWriter, log *strings.Builder) {
	ir, iw := io.Pipe()
	or, ow := io.Pipe()
	log = &strings.Builder{}
	return newConsole(iw, or, log), bufio.NewReader(ir), ow, log
}

func TestExpect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, out, log := board()
		go func() {
			for _, s := range []string{"boot", "ing\r\nlog", "in: ", "more"} {
				time.Sleep(time.Second)
				fmt.Fprint(out, s)
			}
			_ = out.Close()
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		found, err := c.Expect(ctx, regexp.MustCompile(`(log)in: `))
		if err != nil || found[1] != "log" {
			t.Fatalf("Expect = %q, %v", found, err)
		}
		if found, err := c.Expect(ctx, regexp.MustCompile(`^m(o)r(x?)e`)); err != nil || found[1] != "o" || found[2] != "" {
			t.Fatalf("Expect behind the last match = %q, %v", found, err)
		}
		_, err = c.Expect(ctx, regexp.MustCompile(`never`))
		if !errors.Is(err, ErrEnded) {
			t.Errorf("Expect at the end: %v; want ErrEnded", err)
		}
		if log.String() != "booting\r\nlogin: more" {
			t.Errorf("log = %q", log)
		}
	})
}

func TestExpectTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, out, _ := board()
		defer func() { _ = out.Close() }()
		fmt.Fprint(out, "kernel panic\r\n")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		_, err := c.Expect(ctx, regexp.MustCompile(`login`))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "kernel panic") {
			t.Errorf("error %v; want a time-out and what came last", err)
		}
		if d := time.Since(start); d != time.Minute {
			t.Errorf("waited %v", d)
		}
	})
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, in, out, _ := board()
		defer func() { _ = out.Close() }()
		go func() {
			line, err := in.ReadString('\r')
			if err != nil {
				return
			}
			// The terminal's echo first, then a prompt that comes late.
			fmt.Fprintf(out, "%s\n$ <1\r\n", strings.TrimSuffix(line, "\r"))
			fmt.Fprintf(out, "{\r\n \"a\": 1\r\n}\r\n>1 3\r\n$ ")
		}()
		got, status, err := c.Run(t.Context(), "baton status --json")
		if err != nil {
			t.Fatal(err)
		}
		if want := "{\n \"a\": 1\n}\n"; got != want || status != 3 {
			t.Errorf("Run = %q, %d; want %q, 3", got, status, want)
		}
	})
}
