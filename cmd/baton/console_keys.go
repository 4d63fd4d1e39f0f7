package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// keyboard is where a console's lines come from. Bytes are taken one at a time:
// what is typed ahead stays in the kernel for whoever reads next, be it a shell.
type keyboard struct {
	file *os.File  // nil = no file: r is read, and waits can not be ended
	r    io.Reader // of lines
	w    io.Writer
	tty  bool
	edit bool // the terminal moves its cursor (TERM)

	history history
	last    byte // that was read

	mu      sync.Mutex
	touched time.Time // when the last key was
}

// Size of a terminal that does not tell (a serial line).
const (
	defaultWidth  = 80
	defaultHeight = 24
)

func newKeyboard(r io.Reader, w io.Writer) *keyboard {
	k := &keyboard{r: r, w: w, touched: time.Now()}
	if f, ok := r.(*os.File); ok {
		k.file = f
		k.tty = term.IsTerminal(int(f.Fd()))
	}
	switch kind, _, _ := strings.Cut(os.Getenv("TERM"), "-"); kind {
	case "", "dumb", "unknown":
	default:
		k.edit = k.tty
	}
	return k
}

// touch says that somebody is there.
func (k *keyboard) touch() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.touched = time.Now()
}

// idle is how long ago the last key was.
func (k *keyboard) idle() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Since(k.touched)
}

// alive tells that the terminal has not been hung up.
func (k *keyboard) alive() bool { return k.tty && term.IsTerminal(int(k.file.Fd())) }

// keep notes how the terminal is set; the function that it returns sets it so
// again.
func (k *keyboard) keep() (restore func()) {
	if !k.tty {
		return func() {}
	}
	was, err := term.GetState(int(k.file.Fd()))
	if err != nil {
		return func() {}
	}
	return func() { _ = term.Restore(int(k.file.Fd()), was) } // a terminal that is gone
}

// blind has the terminal show nothing that is typed, also between two lines that
// are read; the function that it returns has it shown again.
func (k *keyboard) blind() (restore func()) {
	restore = k.keep()
	if k.tty {
		_ = k.hush() // where it can not be, secret says so
	}
	return restore
}

// hush has the terminal show of what is typed the end of a line alone.
func (k *keyboard) hush() error {
	fd := int(k.file.Fd())
	io, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	io.Lflag &^= unix.ECHO
	io.Lflag |= unix.ECHONL
	return unix.IoctlSetTermios(fd, unix.TCSETS, io)
}

// wait is one wait for keys, that the end of ctx and idle time end.
type wait struct {
	k    *keyboard
	ctx  context.Context
	idle time.Duration // 0 = for ever
	wake *os.File      // readable when ctx has ended; nil = no file to wait for
}

func (k *keyboard) begin(ctx context.Context, idle time.Duration) (*wait, func(), error) {
	w := &wait{k: k, ctx: ctx, idle: idle}
	if k.file == nil {
		return w, func() {}, nil
	}
	r, wake, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	w.wake = r
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_, _ = wake.Write([]byte{0}) // an empty pipe takes it
		close(woken)
	})
	return w, func() {
		if !stop() {
			<-woken
		}
		_ = r.Close() // both were for this wait
		_ = wake.Close()
	}, nil
}

// Read gives one byte.
func (w *wait) Read(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	if w.k.file == nil {
		n, err := w.k.r.Read(p[:1])
		return n, err
	}
	for {
		fds := []unix.PollFd{{Fd: int32(w.k.file.Fd()), Events: unix.POLLIN}, {Fd: int32(w.wake.Fd()), Events: unix.POLLIN}}
		ms := -1
		if w.idle > 0 {
			left := w.idle - w.k.idle()
			if left <= 0 {
				return 0, errIdle
			}
			ms = int(left.Milliseconds()) + 1
		}
		_, err := unix.Poll(fds, ms)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case fds[1].Revents != 0:
			return 0, w.ctx.Err()
		case fds[0].Revents == 0:
			continue // the time is over, or nearly
		}
		n, err := unix.Read(int(w.k.file.Fd()), p[:1])
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return 0, io.EOF // a terminal that was hung up
		case n == 0:
			return 0, io.EOF
		}
		w.k.touch()
		was := w.k.last
		w.k.last = p[0]
		if p[0] == '\n' && was == '\r' {
			continue // some terminals end a line with both
		}
		return 1, nil
	}
}

// errOf is why a read ended, as seen by whoever waits for a line.
func (w *wait) errOf(parent context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case parent.Err() != nil:
		return parent.Err()
	case w.ctx.Err() != nil:
		return errInterrupt
	}
	return err
}

// completion is that of x/term: line and cursor -> line and cursor.
type completion func(line string, pos int, show func(string)) (string, int, bool)

// line reads a command.
func (k *keyboard) line(ctx context.Context, prompt string, idle time.Duration, complete completion) (string, error) {
	if k.edit {
		return k.edited(ctx, prompt, idle, func(t *term.Terminal) (string, error) {
			t.History = &k.history
			t.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) {
				if key != '\t' {
					return "", 0, false
				}
				return complete(line, pos, func(text string) { fmt.Fprint(t, text) })
			}
			line, err := t.ReadLine()
			if errors.Is(err, term.ErrPasteIndicator) {
				err = nil
			}
			return line, err
		})
	}
	return k.cooked(ctx, prompt, idle)
}

// secret reads a line that is not shown, and not kept.
func (k *keyboard) secret(ctx context.Context, prompt string, idle time.Duration) (string, error) {
	switch {
	case k.edit:
		return k.edited(ctx, prompt, idle, func(t *term.Terminal) (string, error) { return t.ReadPassword(prompt) })
	case k.tty:
		defer k.keep()()
		if err := k.hush(); err != nil {
			return "", err // it would be shown
		}
	}
	return k.cooked(ctx, prompt, idle)
}

// answer reads what a person answers while a command runs.
func (k *keyboard) answer(ctx context.Context, question string, idle time.Duration) (string, error) {
	return k.cooked(ctx, question, idle)
}

// edited reads a line of a terminal in raw mode. Ctrl-C is a key there.
func (k *keyboard) edited(ctx context.Context, prompt string, idle time.Duration, read func(*term.Terminal) (string, error)) (string, error) {
	w, end, err := k.begin(ctx, idle)
	if err != nil {
		return "", err
	}
	defer end()
	fd := int(k.file.Fd())
	was, err := term.MakeRaw(fd)
	if err != nil {
		return "", io.EOF // the terminal is gone
	}
	defer func() { _ = term.Restore(fd, was) }() // where it is gone, nobody is there
	t := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{w, k.w}, prompt)
	width, height, err := term.GetSize(fd)
	if err != nil || width <= 0 || height <= 0 {
		width, height = defaultWidth, defaultHeight
	}
	if err := t.SetSize(width, height); err != nil {
		return "", err
	}
	k.last = 0
	line, err := read(t)
	const ctrlC = 3
	if err != nil {
		_, _ = io.WriteString(k.w, "\r\n")
		if errors.Is(err, io.EOF) && k.last == ctrlC {
			return "", errInterrupt
		}
		return "", w.errOf(ctx, err)
	}
	return line, nil
}

// longestLine bounds what is read without an end.
const longestLine = 4096

// cooked reads a line as the kernel, or a pipe, gives it.
func (k *keyboard) cooked(ctx context.Context, prompt string, idle time.Duration) (string, error) {
	inner, stop := notifyInterrupt(ctx)
	defer stop()
	w, end, err := k.begin(inner, idle)
	if err != nil {
		return "", err
	}
	defer end()
	if _, err := io.WriteString(k.w, prompt); err != nil {
		return "", err
	}
	var line []byte
	var b [1]byte
	for {
		if n, err := w.Read(b[:]); err != nil {
			if err = w.errOf(ctx, err); errors.Is(err, io.EOF) && len(line) > 0 {
				return string(line), nil // the last line of a script
			}
			_, _ = io.WriteString(k.w, "\n")
			return "", err
		} else if n == 0 {
			continue
		}
		switch {
		case b[0] == '\n' || b[0] == '\r':
			return string(line), nil
		case len(line) < longestLine:
			line = append(line, b[0])
		}
	}
}

// history is what the arrow keys bring back, in RAM alone.
type history struct{ lines []string } // the newest last

// historyMost is how many lines are kept.
const historyMost = 100

// Add is that of term.History. What is the same as before is not kept again,
// and what might hold a password not at all.
func (h *history) Add(line string) {
	line = strings.TrimSpace(line)
	if line == "" || len(h.lines) > 0 && h.lines[len(h.lines)-1] == line || scrub(line) != line || strings.Contains(line, "console.password") {
		return
	}
	h.lines = append(h.lines, line)
	h.lines = h.lines[max(0, len(h.lines)-historyMost):]
}

// Len is that of term.History.
func (h *history) Len() int { return len(h.lines) }

// At is that of term.History: 0 is the newest.
func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }
