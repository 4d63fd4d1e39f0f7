package rootfs

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/u-root/gobusybox/src/pkg/bb"
	"github.com/u-root/gobusybox/src/pkg/bb/findpkg"
	"github.com/u-root/gobusybox/src/pkg/golang"
	"github.com/u-root/uio/ulog"
)

// Busybox says what goes into one binary of many commands.
type Busybox struct {
	GOARCH, GOARM string
	Tags          []string
	// Commands are import paths of the main module and of what it requires.
	// The last element of each is the command's name.
	Commands []string
}

// Build writes the binary to out. Its working directory must be inside the
// main module. The same source and tool chain give the same bytes, wherever
// they lie.
func (b Busybox) Build(ctx context.Context, out string) error {
	// gobusybox puts all the sources into a GOPATH and each command into a
	// package of its own there. The folder's name does not reach the binary.
	gopath, err := os.MkdirTemp("", "baton-busybox-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(gopath) }()

	env := golang.Default(
		golang.WithGOOS("linux"),
		golang.WithGOARCH(b.GOARCH),
		golang.WithBuildTag(b.Tags...),
		golang.DisableCGO(),
	)
	var log bytes.Buffer
	err = bb.BuildBusybox(logger{&log}, &bb.Opts{
		Env:          env,
		LookupEnv:    &findpkg.Env{},
		GenSrcDir:    gopath,
		CommandPaths: b.Commands,
		GenerateOnly: true,
	})
	if err != nil {
		return fmt.Errorf("busybox sources: %w\n%s", err, log.Bytes())
	}
	if err := b.addUndotted(ctx, gopath); err != nil {
		return fmt.Errorf("busybox sources: %w", err)
	}
	main := filepath.Join(gopath, "src", "bb.u-root.com", "bb")
	if err := writeGodebug(main); err != nil {
		return err
	}
	return b.compile(ctx, gopath, main, out)
}

// logger keeps what gobusybox says for the error.
type logger struct{ w io.Writer }

func (l logger) Printf(format string, v ...any) { fmt.Fprintf(l.w, format+"\n", v...) }
func (l logger) Print(v ...any)                 { fmt.Fprintln(l.w, v...) }

var _ ulog.Logger = logger{}

// addUndotted copies the packages of ours that the commands import. gobusybox
// takes an import path without a dot in its first element for the standard
// library's, and leaves it out; our module is called just "baton".
func (b Busybox) addUndotted(ctx context.Context, gopath string) error {
	args := []string{"list", "-deps", "-json=ImportPath,Name,Dir,Standard,GoFiles,SFiles,EmbedFiles", "-tags", strings.Join(b.Tags, ",")}
	c := exec.CommandContext(ctx, "go", append(args, b.Commands...)...)
	c.Env = b.goEnv(os.Environ())
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	for d := json.NewDecoder(&stdout); ; {
		var p struct {
			ImportPath, Name, Dir       string
			Standard                    bool
			GoFiles, SFiles, EmbedFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("go list: %w", err)
		}
		first, _, _ := strings.Cut(p.ImportPath, "/")
		if p.Standard || p.Name == "main" || strings.Contains(first, ".") {
			continue
		}
		to := filepath.Join(gopath, "src", filepath.FromSlash(p.ImportPath))
		for _, list := range [][]string{p.GoFiles, p.SFiles, p.EmbedFiles} {
			for _, f := range list {
				if err := copyFile(filepath.Join(to, f), filepath.Join(p.Dir, f)); err != nil {
					return err
				}
			}
		}
	}
}

// writeGodebug asks for the behaviour of the Go release we build with. A
// GOPATH has no go.mod to say so, and the go command then assumes Go 1.20:
// among other things net/http would not know patterns like "GET /v1/slots"
// (all requests get 404), and channels of timers would hold stale values.
func writeGodebug(main string) error {
	release := runtime.Version() // go1.26.8; with experiments, go1.26.8 X:…
	release, _, _ = strings.Cut(release, " ")
	if parts := strings.SplitN(release, ".", 3); len(parts) > 2 {
		release = parts[0] + "." + parts[1]
	}
	text := "//go:debug default=" + release + "\n\npackage main\n"
	return os.WriteFile(filepath.Join(main, "godebug.go"), []byte(text), 0o644)
}

func (b Busybox) compile(ctx context.Context, gopath, main, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, "go", "build", "-o", out,
		"-trimpath", "-buildvcs=false", "-tags", strings.Join(b.Tags, ","),
		"-gcflags=all=-l", // without inlining the code is a good deal smaller
		"-ldflags=-s -w -buildid=",
		".")
	c.Dir = main
	c.Env = append(b.goEnv(os.Environ()), "GO111MODULE=off", "GOPATH="+gopath, "GOFLAGS=", "GOWORK=off")
	if text, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go build of the busybox: %w\n%s", err, text)
	}
	return checkGodebug(out)
}

// checkGodebug makes sure that writeGodebug had its effect.
func checkGodebug(binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	for _, s := range info.Settings {
		if s.Key == "DefaultGODEBUG" {
			return fmt.Errorf("busybox: it would behave as built by an older Go: %s", s.Value)
		}
	}
	return nil
}

func (b Busybox) goEnv(env []string) []string {
	return append(env, "GOOS=linux", "GOARCH="+b.GOARCH, "GOARM="+b.GOARM, "CGO_ENABLED=0")
}

// Names are the names of the commands.
func (b Busybox) Names() []string {
	var names []string
	for _, c := range b.Commands {
		names = append(names, path.Base(c))
	}
	return names
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}
