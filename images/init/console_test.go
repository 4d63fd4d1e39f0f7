package main

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a terminal, and the end that a person sits at (pts(4)).
func terminal(t *testing.T) (person, tty *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatalf("a terminal is needed; mount -t devpts devpts /dev/pts: %v", err)
	}
	t.Cleanup(func() { _ = person.Close() })
	fd := int(person.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	return person, tty
}

// TestSane: a session finds a terminal that reads lines, whatever the one
// before has left, and that no key stops or kills at.
func TestSane(t *testing.T) {
	person, tty := terminal(t)
	fd := int(tty.Fd())
	raw, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	speed := raw.Cflag
	raw.Iflag, raw.Oflag, raw.Lflag, raw.Cc = unix.IXON, 0, 0, [len(raw.Cc)]uint8{unix.VQUIT: 'x'}
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, raw); err != nil {
		t.Fatal(err)
	}
	if err := sane(fd); err != nil {
		t.Fatal(err)
	}
	// Ctrl-S and Ctrl-\ are keys as others, the erase key erases.
	if _, err := person.WriteString("hem\x7fl\x13\x1clo\r"); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	go func() {
		p := make([]byte, 64)
		n, _ := tty.Read(p)
		got <- string(p[:n])
	}()
	select {
	case line := <-got:
		if want := "hel\x13\x1clo\n"; line != want {
			t.Errorf("a line reads %q; want %q", line, want)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("a line does not come")
	}
	now, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	if now.Cc[unix.VQUIT] != 0 || now.Cc[unix.VINTR] != 3 || now.Lflag&unix.ISIG == 0 {
		t.Errorf("keys that interrupt and kill: %d, %d; want 3 and none", now.Cc[unix.VINTR], now.Cc[unix.VQUIT])
	}
	if now.Cflag != speed {
		t.Errorf("speed and format %#x; want %#x as before", now.Cflag, speed)
	}
}

// TestFailure: the console is a shell after three failures, of which what a
// person can bring about without a password is none.
func TestFailure(t *testing.T) {
	for _, tt := range []struct {
		status syscall.WaitStatus
		want   bool
	}{
		{0, false},
		{1 << 8, true},
		{2 << 8, true},
		{syscall.WaitStatus(syscall.SIGINT), false},
		{syscall.WaitStatus(syscall.SIGKILL), true},
		{syscall.WaitStatus(syscall.SIGSEGV) | 0x80, true},
	} {
		if got := isFailure(tt.status); got != tt.want {
			t.Errorf("isFailure(%#x) = %v; want %v", int(tt.status), got, tt.want)
		}
	}
}
