// Ports runs on a board: it has a bridge of many ports programmed by package
// vlan and by iproute2's bridge in turns, from the same state to the same state,
// and says how long each took.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"baton/vlan"
)

const (
	bridgeName = "br0"
	uplinkName = "uplink0"
	firstGroup = 101
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ports:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("ports", flag.ContinueOnError)
	n := f.Int("ports", 64, "how many ports")
	rounds := f.Int("rounds", 15, "how often each way")
	tools := f.String("tools", "/test", "`folder` of ip and bridge")
	patience := f.Duration("patience", 5*time.Minute, "for all of it")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *patience)
	defer cancel()
	dir, err := os.MkdirTemp("", "ports-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b := &bench{ctx: ctx, dir: dir, ip: filepath.Join(*tools, "ip"), bridge: filepath.Join(*tools, "bridge")}
	if err := b.prepare(*n); err != nil {
		return err
	}
	for i := range *rounds {
		// Whoever goes first in one round goes second in the next.
		ways := []func() error{b.ours, b.theirs}
		if i%2 == 1 {
			ways[0], ways[1] = ways[1], ways[0]
		}
		for _, way := range ways {
			if err := way(); err != nil {
				return fmt.Errorf("round %d: %w", i+1, err)
			}
		}
		took, err := b.batch(b.nothing)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(stdout, "round %d ours %d us theirs %d us nothing %d us looks %d changes %d retries %d\n", i+1,
			b.tookOurs.Microseconds(), b.tookTheirs.Microseconds(), took.Microseconds(), b.stats.Looks, b.stats.Changes, b.stats.Retries); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(stdout, "%d ports, %d commands, the same state after each of %d\n", *n, b.commands, 2**rounds)
	return err
}

// bench is the bridge, and what has been measured on it last.
type bench struct {
	ctx        context.Context
	dir        string
	ip, bridge string // programs

	ports    []string
	groups   map[string]uint16
	commands int // in program

	program, reset, nothing string // files for bridge -batch
	before, after           string // what bridge shows

	tookOurs, tookTheirs time.Duration
	stats                vlan.Stats
}

// prepare makes the bridge, and reads what it is to look like before and after.
func (b *bench) prepare(n int) error {
	b.groups = map[string]uint16{}
	for i := range n {
		p := fmt.Sprintf("p%d", i)
		b.ports = append(b.ports, p)
		b.groups[p] = uint16(firstGroup + i)
	}
	links := []string{fmt.Sprintf("link add %s type bridge vlan_filtering 1", bridgeName)}
	names := append([]string{uplinkName}, b.ports...)
	for i := 0; i < len(names); i += 2 {
		other := "spare"
		if i+1 < len(names) {
			other = names[i+1]
		}
		links = append(links, fmt.Sprintf("link add %s type veth peer name %s", names[i], other))
	}
	for _, p := range names {
		links = append(links, fmt.Sprintf("link set dev %s master %s", p, bridgeName))
	}
	file, err := b.write("links", links...)
	if err != nil {
		return err
	}
	if _, err := b.do(b.ip, "-batch", file); err != nil {
		return err
	}

	program := []string{fmt.Sprintf("vlan add dev %s vid %d-%d", uplinkName, firstGroup, firstGroup+n-1)}
	reset := []string{fmt.Sprintf("vlan del dev %s vid 2-4094", uplinkName)}
	for _, p := range b.ports {
		program = append(program, "vlan del dev "+p+" vid 1", fmt.Sprintf("vlan add dev %s vid %d", p, b.groups[p]))
		reset = append(reset, "vlan del dev "+p+" vid 2-4094", "vlan add dev "+p+" vid 1 pvid untagged")
	}
	b.commands = len(program)
	var errs [3]error
	b.program, errs[0] = b.write("program", program...)
	b.reset, errs[1] = b.write("reset", reset...)
	b.nothing, errs[2] = b.write("nothing")
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if b.before, err = b.do(b.bridge, "vlan", "show"); err != nil {
		return err
	}
	if _, err := b.batch(b.program); err != nil {
		return err
	}
	if b.after, err = b.do(b.bridge, "vlan", "show"); err != nil {
		return err
	}
	if b.after == b.before {
		return errors.New("bridge -batch has changed nothing")
	}
	return nil
}

func (b *bench) write(name string, lines ...string) (string, error) {
	file := filepath.Join(b.dir, name)
	return file, os.WriteFile(file, []byte(strings.Join(append(lines, ""), "\n")), 0o600)
}

// do runs a program and returns what it prints.
func (b *bench) do(name string, args ...string) (string, error) {
	c := exec.CommandContext(b.ctx, name, args...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

func (b *bench) batch(file string) (time.Duration, error) {
	start := time.Now()
	_, err := b.do(b.bridge, "-batch", file)
	return time.Since(start), err
}

// from brings the bridge to what it was at first.
func (b *bench) from() error {
	if _, err := b.batch(b.reset); err != nil {
		return err
	}
	return b.is(b.before, "before")
}

func (b *bench) is(want, when string) error {
	got, err := b.do(b.bridge, "vlan", "show")
	if err == nil && got != want {
		err = fmt.Errorf("%s, the bridge shows:\n%s\nwant:\n%s", when, got, want)
	}
	return err
}

// theirs takes the time of the whole program: that is how it is used.
func (b *bench) theirs() (err error) {
	if err := b.from(); err != nil {
		return err
	}
	if b.tookTheirs, err = b.batch(b.program); err != nil {
		return err
	}
	return b.is(b.after, "after bridge -batch")
}

// ours begins with no socket open, and ends when all was read back.
func (b *bench) ours() error {
	if err := b.from(); err != nil {
		return err
	}
	c := vlan.Config{Bridge: bridgeName, Uplink: vlan.Port{Name: uplinkName}}
	for _, p := range b.ports {
		c.Ports = append(c.Ports, vlan.Port{Name: p})
		c.Groups = append(c.Groups, b.groups[p])
	}
	start := time.Now()
	s := vlan.New(c)
	err := s.SetAll(b.ctx, b.groups)
	b.tookOurs = time.Since(start)
	b.stats = s.Stats()
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	return b.is(b.after, "after SetAll")
}
