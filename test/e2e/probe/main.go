// Probe does on a board what its commands can not, for tests.
//
//	probe flood SOCKET DURATION   hold as many connections as one gets, and ask slowly
//	probe zombies                 print how many processes have ended and were not reaped
//	probe stop PID                SIGSTOP
//	probe orphan                  leave a child that ends in a second
//	probe stubborn                stay, whoever asks to end
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	switch {
	case len(args) == 3 && args[0] == "flood":
		d, err := time.ParseDuration(args[2])
		if err != nil {
			return err
		}
		flood(args[1], d, stdout)
		return nil
	case len(args) == 1 && args[0] == "zombies":
		return zombies(stdout)
	case len(args) == 2 && args[0] == "stop":
		pid, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return syscall.Kill(pid, syscall.SIGSTOP)
	case len(args) == 1 && args[0] == "orphan":
		return child("sleep", os.Stderr)
	case len(args) == 1 && args[0] == "stubborn":
		return child("stay", os.Stderr)
	case len(args) == 1 && args[0] == "sleep":
		time.Sleep(time.Second)
		return nil
	case len(args) == 1 && args[0] == "stay":
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
		select {}
	}
	return fmt.Errorf("what is %q?", args)
}

// child starts this program anew and does not wait for it.
func child(what string, stderr *os.File) error {
	_, err := syscall.ForkExec("/proc/self/exe", []string{os.Args[0], what}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, stderr.Fd(), stderr.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	return err
}

// flood has 500 clients connect again and again, who begin a request and send a
// byte of it now and then.
func flood(socket string, d time.Duration, stdout io.Writer) {
	end := time.Now().Add(d)
	var tries, connected, refused atomic.Int64
	var clients sync.WaitGroup
	for range 500 {
		clients.Go(func() {
			for time.Now().Before(end) {
				tries.Add(1)
				c, err := net.DialTimeout("unix", socket, time.Second)
				if err != nil {
					refused.Add(1)
					time.Sleep(100 * time.Millisecond)
					continue
				}
				connected.Add(1)
				slowly(c, end)
				_ = c.Close()
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	clients.Wait()
	fmt.Fprintf(stdout, "%d tries, %d connected, %d not\n", tries.Load(), connected.Load(), refused.Load())
}

func slowly(c net.Conn, end time.Time) {
	if _, err := io.WriteString(c, "POST /v1/moves HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n{"); err != nil {
		return
	}
	for time.Now().Before(end) {
		_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		if n, err := c.Read(make([]byte, 1000)); n > 0 || errors.Is(err, io.EOF) {
			return
		}
		if _, err := c.Write([]byte(" ")); err != nil {
			return
		}
	}
}

func zombies(stdout io.Writer) error {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	n := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended meanwhile
		}
		// The state is behind the name, which may have anything in it.
		if i := bytes.LastIndexByte(text, ')'); i >= 0 && bytes.HasPrefix(text[i:], []byte(") Z")) {
			n++
		}
	}
	fmt.Fprintln(stdout, n)
	return nil
}
