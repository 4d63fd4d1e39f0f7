// Moves runs on a board: it moves a VM to and fro over the agent's socket, all
// from this one process, and says what memory the agent has in RAM.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"baton/mgmt"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "moves:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("moves", flag.ContinueOnError)
	socket := f.String("socket", "/run/baton/baton.sock", "of the agent")
	vm := f.String("vm", "train1", "the VM that is moved")
	moves := f.Int("moves", 1000, "how many")
	every := f.Int("every", 250, "how many moves there are between two looks at the memory")
	patience := f.Duration("patience", 10*time.Minute, "for all of it")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *patience)
	defer cancel()
	c := mgmt.Dial(*socket)
	defer c.Close()
	agent, err := find("/proc", "batond")
	if err != nil {
		return err
	}
	if err := tell(stdout, agent, 0); err != nil {
		return err
	}
	hosts, err := c.Hosts(ctx)
	if err != nil {
		return err
	}
	if len(hosts) < 2 {
		return fmt.Errorf("the agent has %d hosts, and a VM moves between two", len(hosts))
	}
	for _, h := range hosts[:2] {
		if !h.Fenced {
			continue
		}
		if err := c.Unfence(ctx, h.Name, h.Epoch); err != nil {
			return fmt.Errorf("unfence %s: %w", h.Name, err)
		}
	}
	start := time.Now()
	for i := range *moves {
		to := hosts[i%2].Name
		m, err := c.Move(ctx, mgmt.MoveRequest{ID: fmt.Sprintf("5b9d3c1e-7a64-4f0e-9f0a-%012x", i+1), VM: *vm, To: to})
		if err != nil {
			return fmt.Errorf("move %d to %s: %w", i+1, to, err)
		}
		if m.State != "done" {
			return fmt.Errorf("move %d to %s is %s: %s", i+1, to, m.State, m.Reason)
		}
		if (i+1)%*every == 0 {
			if err := tell(stdout, agent, i+1); err != nil {
				return err
			}
		}
	}
	_, err = fmt.Fprintf(stdout, "took %d ms\n", time.Since(start).Milliseconds())
	return err
}

// find returns the folder in proc of the process called name.
func find(proc, name string) (string, error) {
	files, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "comm"))
	if err != nil {
		return "", err
	}
	for _, f := range files {
		// A process may have ended since.
		if comm, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(comm)) == name {
			return filepath.Dir(f), nil
		}
	}
	return "", errors.New("there is no process called " + name)
}

// tell prints what the process has in RAM, in KiB: in all, the most it had, of
// its own and of files that are mapped, after so many moves.
func tell(stdout io.Writer, process string, moves int) error {
	text, err := os.ReadFile(filepath.Join(process, "status"))
	if err != nil {
		return err
	}
	keys := []string{"VmRSS", "VmHWM", "RssAnon", "RssShmem"}
	words := []string{fmt.Sprintf("moves %d", moves)}
	for _, key := range keys {
		found := false
		for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
			if name, value, ok := strings.Cut(s.Text(), ":"); ok && name == key {
				words = append(words, key, strings.TrimSuffix(strings.TrimSpace(value), " kB"))
				found = true
			}
		}
		if !found {
			return fmt.Errorf("%s/status has no %s", process, key)
		}
	}
	_, err = fmt.Fprintln(stdout, strings.Join(words, " "))
	return err
}
