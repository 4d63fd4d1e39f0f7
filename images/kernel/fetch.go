// Package kernel takes a kernel, its device tree and its modules out of a
// Debian package.
package kernel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Package is a kernel package, unpacked.
type Package struct {
	Name    string `json:"package"` // linux-image-6.1.0-50-armmp
	Version string `json:"version"` // 6.1.176-1, as Debian counts
	Release string `json:"release"` // 6.1.0-50-armmp, as uname -r says
	Dir     string `json:"-"`       // where its files are
}

// Fetch gets the kernel package that name is or depends on, for an
// architecture as Debian calls it, into the folder cache.
//
// It asks the mirrors that apt is configured for on this machine, and changes
// nothing of apt's own state: no root and no foreign architecture is needed.
// What is in the cache is used without asking anyone, unless update is set.
// Two processes may share a cache.
func Fetch(ctx context.Context, cache, arch, name string, update bool) (*Package, error) {
	cache, err := filepath.Abs(cache)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lock(filepath.Join(cache, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()

	record := filepath.Join(cache, name+"_"+arch+".json")
	if !update {
		if p, err := recall(record, cache, arch); err == nil {
			return p, nil
		}
	}
	p, err := fetch(ctx, cache, arch, name)
	if err != nil {
		return nil, fmt.Errorf("kernel package %s of %s: %w", name, arch, err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return p, os.WriteFile(record, append(text, '\n'), 0o644)
}

// recall finds what an earlier Fetch has left.
func recall(record, cache, arch string) (*Package, error) {
	text, err := os.ReadFile(record)
	if err != nil {
		return nil, err
	}
	p := &Package{}
	if err := json.Unmarshal(text, p); err != nil {
		return nil, err
	}
	p.Dir = p.folder(cache, arch)
	_, err = os.Stat(p.Dir)
	return p, err
}

func (p *Package) folder(cache, arch string) string {
	return filepath.Join(cache, p.Name+"_"+p.Version+"_"+arch)
}

func fetch(ctx context.Context, cache, arch, name string) (*Package, error) {
	a, err := newApt(cache, arch)
	if err != nil {
		return nil, err
	}
	// One of several mirrors may be half way through an update of its own,
	// which need not concern us: what counts is whether the package is found.
	_, updateErr := a.run(ctx, "apt-get", "update", "-q")
	p, err := a.resolve(ctx, name)
	if err != nil {
		return nil, errors.Join(err, updateErr)
	}
	p.Dir = p.folder(cache, arch)
	if _, err := os.Stat(p.Dir); err == nil {
		return p, nil
	}
	work, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(work) }()
	a.dir = work
	if _, err := a.run(ctx, "apt-get", "download", "-q", p.Name+"="+p.Version); err != nil {
		return nil, err
	}
	debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(debs) != 1 {
		return nil, fmt.Errorf("apt-get download left %d packages, want 1", len(debs))
	}
	files := filepath.Join(work, "files")
	if _, err := run(ctx, work, "dpkg-deb", "-x", debs[0], files); err != nil {
		return nil, err
	}
	// The name appears when everything is there, not before.
	return p, os.Rename(files, p.Dir)
}

// apt runs apt's tools on a state of our own.
type apt struct {
	dir     string
	options []string
}

func newApt(cache, arch string) (*apt, error) {
	state := filepath.Join(cache, "apt-"+arch)
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(state, d), 0o755); err != nil {
			return nil, err
		}
	}
	status := filepath.Join(state, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	a := &apt{dir: cache}
	for _, o := range []string{
		"APT::Architecture=" + arch,
		"APT::Architectures=" + arch,
		"Dir::State=" + filepath.Join(state, "state"),
		"Dir::State::status=" + status,
		"Dir::Cache=" + filepath.Join(state, "cache"),
		// As root, apt would drop to a user that may not enter our folder.
		"APT::Sandbox::User=root",
		"Acquire::Languages=none",
		"Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		"Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false",
	} {
		a.options = append(a.options, "-o", o)
	}
	return a, nil
}

func (a *apt) run(ctx context.Context, tool string, args ...string) (string, error) {
	return run(ctx, a.dir, tool, append(a.options, args...)...)
}

// resolve follows a package without files of its own (linux-image-armmp) to
// the one that has them.
func (a *apt) resolve(ctx context.Context, name string) (*Package, error) {
	for range 4 {
		fields, err := a.show(ctx, name)
		if err != nil {
			return nil, err
		}
		next := ""
		for d := range strings.SplitSeq(fields["Depends"], ",") {
			if d, _, _ := strings.Cut(strings.TrimSpace(d), " "); strings.HasPrefix(d, "linux-image-") {
				next = d
			}
		}
		if next == "" {
			return &Package{
				Name:    fields["Package"],
				Version: fields["Version"],
				Release: strings.TrimPrefix(fields["Package"], "linux-image-"),
			}, nil
		}
		name = next
	}
	return nil, fmt.Errorf("%s depends on one kernel package after another", name)
}

func (a *apt) show(ctx context.Context, name string) (map[string]string, error) {
	out, err := a.run(ctx, "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return nil, fmt.Errorf("apt's sources on this machine do not have %s: %w", name, err)
	}
	fields := map[string]string{}
	for line := range strings.SplitSeq(out, "\n") {
		if line == "" {
			break
		}
		if k, v, ok := strings.Cut(line, ": "); ok && !strings.HasPrefix(line, " ") {
			fields[k] = v
		}
	}
	if fields["Package"] == "" || fields["Version"] == "" {
		return nil, fmt.Errorf("apt-cache show %s: no package and version in the answer", name)
	}
	return fields, nil
}

// run runs a tool and returns what it prints. The error holds the end of what
// the tool complained about.
func run(ctx context.Context, dir, tool string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(ctx, tool, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "LC_ALL=C")
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		complaint := strings.TrimSpace(stderr.String())
		if len(complaint) > 500 {
			complaint = "…" + complaint[len(complaint)-500:]
		}
		return "", fmt.Errorf("%s: %w\n%s", tool, err, complaint)
	}
	return stdout.String(), nil
}

// lock waits until no other process holds the file.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { f.Close() }, nil
}
