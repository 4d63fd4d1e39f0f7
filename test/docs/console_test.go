package docs

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write the transcript of the console into docs/console.md")

// TestConsole drives 'baton console' at a terminal, as a person would, against
// the agent and the simulator. What the terminal shows is the transcript in
// docs/console.md.
func TestConsole(t *testing.T) {
	w := newWorld(t, inUse)
	s := openSeat(t, w)
	cmd := exec.Command(filepath.Join(w.bin, "baton"), "console", "--run-dir", w.path("run"))
	cmd.Dir = w.path("home")
	cmd.Env = []string{"BATON_SOCKET=" + w.path("run/baton.sock"), "TZ=UTC", "TERM=vt100", "BATON_ROOT=" + w.path("home")}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.terminal, s.terminal, s.terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(cmd, syscall.SIGKILL) })
	const (
		prompt = "baton> "
		enter  = "\r"
		ctrlC  = "\x03"
	)
	s.expect(prompt)
	for _, step := range []struct{ keys, expect string }{
		{enter, prompt},
		{"mo\t", "baton> move"},
		{" tr\t", "move train"},
		{"1 --t\t", "--to "},
		{"\t", "--to server"},
		{"\t", "server1  server2  server3\n" + prompt + "move train1 --to server"},
		{"2" + enter, prompt},
		{"mvoe train1" + enter, prompt},
		{"move train1 --to server9" + enter, prompt},
		{"slot reset gpu2" + enter, "[y/N] "},
		{"y" + enter, prompt},
		{"watch -n 2" + enter, "device reset..."},
		{ctrlC, prompt},
		{"check" + enter, prompt},
		{"console password" + enter, "New password: "},
		{"over the hills" + enter, "Once more: "},
		{"over the hills" + enter, prompt},
		{"lock" + enter, "Password: "},
		{"open sesame" + enter, "That is not the password.\nPassword: "},
		{"over the hills" + enter, prompt},
		{"report -o report.txt" + enter, prompt},
		{"report --verify report.txt" + enter, prompt},
	} {
		s.send(step.keys)
		s.expect(step.expect)
	}
	s.send("exit" + enter)
	if err := s.ended(cmd); err != nil {
		t.Errorf("the console ended with %v", err)
	}
	s.close()
	shown := w.back.Replace(s.text())

	report, err := os.ReadFile(w.path("home/report.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"pbkdf2-sha256$", "over the hills", "open sesame"} {
		if strings.Contains(shown, secret) || strings.Contains(string(report), secret) {
			t.Errorf("%q is shown", secret)
		}
	}
	for line := range strings.Lines(shown) {
		if len(strings.TrimSuffix(line, "\n")) > 80 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	page := filepath.Join(root, "docs", "console.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin = "```text\nBaton console."
	before, rest, found := strings.Cut(string(text), begin)
	was, after, closed := strings.Cut(rest, "\n```\n")
	if !found || !closed {
		t.Fatalf("%s has no block that begins with %q", page, begin)
	}
	was = strings.TrimPrefix(begin, "```text\n") + was
	if *update {
		if err := os.WriteFile(page, []byte(before+"```text\n"+strings.TrimRight(shown, "\n")+"\n```\n"+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := words(amounts.ReplaceAllString(was, "N $2"))
	if ok, far := matches(want, words(amounts.ReplaceAllString(shown, "N $2"))); !ok {
		t.Errorf("docs/console.md shows something else (go test ./test/docs -run TestConsole -update); at %q; it is\n%s", strings.Join(want[max(0, far-5):min(len(want), far+6)], " "), shown)
	}
}

// amounts depend on what the run before has left in logs and store.
var amounts = regexp.MustCompile(`\b(\d+) (bytes|lines|records|free|pages free|page writes|of 512 pages)\b`)

// seat is a terminal of 24 lines and 80 columns, and who sits at it.
type seat struct {
	t                *testing.T
	person, terminal *os.File
	done             chan struct{}

	mu     sync.Mutex
	screen screen
	from   int // of what expect looks at, in lines

}

func openSeat(t *testing.T, w *world) *seat {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("no terminals here (mount devpts): %v", err)
	}
	s := &seat{t: t, person: os.NewFile(uintptr(fd), "/dev/ptmx"), done: make(chan struct{})}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if s.terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(s.terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		buf := make([]byte, 4096)
		for {
			n, err := s.person.Read(buf)
			if err != nil {
				return // the terminal was closed
			}
			s.mu.Lock()
			s.screen.write(buf[:n])
			s.mu.Unlock()
		}
	}()
	t.Cleanup(s.close)
	return s
}

func (s *seat) close() {
	_ = s.terminal.Close() // it may be closed already
	_ = s.person.Close()
	<-s.done
}

func (s *seat) send(keys string) {
	s.t.Helper()
	s.mu.Lock()
	s.from = len(s.screen.lines)
	s.mu.Unlock()
	if _, err := s.person.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// expect waits until the terminal shows text, and nothing behind it but where
// the text is said to be in the middle; a prompt has to be a new one.
func (s *seat) expect(text string) {
	s.t.Helper()
	text, middle := strings.CutSuffix(text, "...")
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		shown, since, bad := s.screen.text(), len(s.screen.lines)-s.from, s.screen.bad
		s.mu.Unlock()
		if bad != "" {
			s.t.Fatalf("the terminal was sent %q, which not every one knows", bad)
		}
		if strings.HasSuffix(shown, text) && (since > 0 || text != "baton> ") || middle && strings.Contains(shown, text) {
			return
		}
		if time.Since(begin) > patience {
			s.t.Fatalf("waited %v for %q; the terminal shows\n%s", patience, text, shown)
		}
	}
}

func (s *seat) ended(cmd *exec.Cmd) error {
	end := make(chan error, 1)
	go func() { end <- cmd.Wait() }()
	select {
	case err := <-end:
		time.Sleep(50 * time.Millisecond) // what was written last has to come through
		return err
	case <-time.After(patience):
		return fmt.Errorf("nothing within %v", patience)
	}
}

func (s *seat) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.text()
}

// screen is as much of a VT100 as a line editor needs.
type screen struct {
	lines  [][]byte // that have scrolled by, and the one of the cursor
	col    int
	escape []byte // that has begun
	bad    string // that it does not know
}

func (s *screen) write(p []byte) {
	if s.lines == nil {
		s.lines = [][]byte{nil}
	}
	for _, c := range p {
		switch {
		case len(s.escape) > 0:
			s.escape = append(s.escape, c)
			if c >= '@' && c != '[' {
				s.control(string(s.escape))
				s.escape = nil
			}
		case c == 0x1b:
			s.escape = []byte{c}
		case c == '\r':
			s.col = 0
		case c == '\n':
			s.lines = append(s.lines, nil)
			s.col = 0
		case c == '\b':
			s.col = max(0, s.col-1)
		case c >= ' ' && c <= '~':
			line := &s.lines[len(s.lines)-1]
			for len(*line) <= s.col {
				*line = append(*line, ' ')
			}
			(*line)[s.col] = c
			s.col++
		case c == 7: // a bell
		default:
			s.bad = string(rune(c))
		}
	}
}

// control is CUF, CUB and EL of ECMA-48.
func (s *screen) control(seq string) {
	n := 1
	_, _ = fmt.Sscanf(seq, "\x1b[%d", &n) // without a number it is 1
	line := &s.lines[len(s.lines)-1]
	switch seq[len(seq)-1] {
	case 'C':
		s.col += n
	case 'D':
		s.col = max(0, s.col-n)
	case 'K':
		*line = (*line)[:min(len(*line), s.col)]
	default:
		s.bad = seq
	}
}

func (s *screen) text() string {
	var out []string
	for _, l := range s.lines {
		out = append(out, strings.TrimRight(string(l), " "))
	}
	text := strings.Join(out, "\n")
	if i := len(s.lines) - 1; i >= 0 && s.col > len(out[i]) {
		text += strings.Repeat(" ", s.col-len(out[i])) // where the cursor stands
	}
	return text
}

func TestScreen(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"ab\r\ncd", "ab\ncd"},
		{"abc\b\bX", "aXc"},
		{"abc\rX\x1b[K", "X"},
		{"abc\x1b[2DX\x1b[C", "aXc"},
		{"a  \r\n", "a\n"},
	} {
		var s screen
		s.write([]byte(tt.in))
		if got := s.text(); got != tt.want || s.bad != "" {
			t.Errorf("%q shows %q, %q; want %q", tt.in, got, s.bad, tt.want)
		}
	}
	var s screen
	if s.write([]byte("\x1b[31mred")); s.bad != "\x1b[31m" {
		t.Errorf("a colour passed: %q", s.bad)
	}
}
