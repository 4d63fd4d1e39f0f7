package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// ErrEnded is found in the error when the console ends before what was
// expected has come: QEMU has ended.
var ErrEnded = errors.New("console ended")

// Console is a serial console, read and written as a person would. One
// goroutine uses it at a time.
type Console struct {
	w     io.Writer
	ended chan struct{} // closed when nothing will come any more

	mu   sync.Mutex
	text []byte        // what has come and was not yet expected
	more chan struct{} // closed and renewed when more text has come

	commands int
}

// newConsole takes over r and closes it at its end.
func newConsole(w io.Writer, r io.ReadCloser, log io.Writer) *Console {
	c := &Console{w: w, ended: make(chan struct{}), more: make(chan struct{})}
	go c.read(r, log)
	return c
}

func (c *Console) read(r io.ReadCloser, log io.Writer) {
	defer close(c.ended)
	defer r.Close()
	p := make([]byte, 4096)
	for {
		n, err := r.Read(p)
		if n > 0 {
			_, _ = log.Write(p[:n]) // a full disk is no reason to stop reading
			c.mu.Lock()
			c.text = append(c.text, p[:n]...)
			close(c.more)
			c.more = make(chan struct{})
			c.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// Expect waits until what has come since the last Expect matches, forgets it
// up to the end of the match, and returns the match and its submatches. Where
// ctx or the console ends first, the error holds the last lines that came.
func (c *Console) Expect(ctx context.Context, want *regexp.Regexp) ([]string, error) {
	for {
		// Looked at before the text is: what comes before the end is seen.
		ended := false
		select {
		case <-c.ended:
			ended = true
		default:
		}
		c.mu.Lock()
		text, more := c.text, c.more
		c.mu.Unlock()
		if at := want.FindSubmatchIndex(text); at != nil {
			var found []string
			for i := 0; i < len(at); i += 2 {
				if at[i] < 0 {
					found = append(found, "")
					continue
				}
				found = append(found, string(text[at[i]:at[i+1]]))
			}
			c.mu.Lock()
			c.text = c.text[at[1]:]
			c.mu.Unlock()
			return found, nil
		}
		if ended {
			return nil, fmt.Errorf("%w; waited for %q, last came:\n%s", ErrEnded, want, tail(text))
		}
		select {
		case <-more:
		case <-c.ended:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w; waited for %q, last came:\n%s", ctx.Err(), want, tail(text))
		}
	}
}

// tail is the end of a text, for errors.
func tail(text []byte) string {
	const most = 2000
	s := string(text)
	if len(s) > most {
		s = "…" + s[len(s)-most:]
	}
	return strings.ReplaceAll(s, "\r", "")
}

// Send types a line.
func (c *Console) Send(line string) error {
	_, err := io.WriteString(c.w, line+"\r")
	return err
}

// Run types a command at the shell's prompt and returns what it prints and the
// status it ends with.
func (c *Console) Run(ctx context.Context, command string) (output string, status int, err error) {
	c.commands++
	n := c.commands
	// What is typed comes back as well, before the output or in the middle of
	// the prompt. The quotes make it differ from the marks that are printed.
	if err := c.Send(fmt.Sprintf(`echo "<"%d; %s; echo ">"%d $?`, n, command, n)); err != nil {
		return "", 0, err
	}
	found, err := c.Expect(ctx, regexp.MustCompile(fmt.Sprintf(`<%d\r?\n((?s:.*?))>%d (\d+)\r?\n`, n, n)))
	if err != nil {
		return "", 0, fmt.Errorf("%s: %w", command, err)
	}
	status, err = strconv.Atoi(found[2])
	return strings.ReplaceAll(found[1], "\r\n", "\n"), status, err
}
