package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"baton/enclosure"
	"baton/sim"
	"baton/test/rig"
)

// wallTime lists where the agent's code looks at wall time, by file and
// function. All of it is shown to people or kept for them: nothing that the
// agent does depends on it. Deadlines, leases and ages are by the monotonic
// reading that a time.Time has as long as it is only added to and compared.
var wallTime = map[string]string{
	"cmd/batond/backup.go Backup":      "the date of a backup",
	"cmd/batond/check.go checkClock":   "whether the clock was set, a line of 'baton check'",
	"cmd/batond/door.go Close":         "a deadline that is always past",
	"enclosure/plan/audit.go":          "the date of an audit record",
	"mgmt/server/handlers.go clockSet": "whether dates that are shown are sense",
}

// agentCode is what batond is made of.
var agentCode = []string{"./nvm/...", "./pcie/...", "./vlan/...", "./mgmt/...", "./ee/...", "./enclosure/...", "./cmd/batond"}

// monotonic are the methods that keep to the monotonic reading where both
// times have it.
var monotonic = []string{"Add", "Sub", "Before", "After", "Compare", "IsZero"}

// makers are the functions that make times without a monotonic reading.
var makers = []string{"Unix", "UnixMilli", "UnixMicro", "Parse", "ParseInLocation", "Date"}

// wallUses finds where code looks at wall time: "function: expression".
func wallUses(info *types.Info, file *ast.File) (uses []string) {
	isTime := func(e ast.Expr) bool {
		t := info.TypeOf(e)
		if t == nil {
			return false
		}
		n, ok := types.Unalias(t).(*types.Named)
		return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == "time" && n.Obj().Name() == "Time"
	}
	for _, d := range file.Decls {
		name := "-"
		if f, ok := d.(*ast.FuncDecl); ok {
			name = f.Name.Name
		}
		found := func(e ast.Expr) { uses = append(uses, name+": "+types.ExprString(e)) }
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if (n.Op == token.EQL || n.Op == token.NEQ) && isTime(n.X) {
					found(n)
				}
			case *ast.SelectorExpr:
				switch obj := info.Uses[n.Sel].(type) {
				case *types.Func:
					sig := obj.Signature()
					switch {
					case sig.Recv() != nil && obj.Pkg() != nil && obj.Pkg().Path() == "time" && isTime(n.X) && !slices.Contains(monotonic, obj.Name()):
						found(n)
					case sig.Recv() == nil && obj.Pkg().Path() == "time" && slices.Contains(makers, obj.Name()):
						found(n)
					case obj.Name() == "ModTime": // a file's
						found(n)
					}
				}
			case *ast.CallExpr:
				// A time that was decoded, or is for people, in a comparison.
				s, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || !slices.Contains([]string{"Sub", "Before", "After", "Compare", "Since", "Until"}, s.Sel.Name) {
					break
				}
				for _, e := range append([]ast.Expr{s.X}, n.Args...) {
					if f, ok := e.(*ast.SelectorExpr); ok && isTime(f) && (f.Sel.Name == "Wall" || f.Sel.Name == "Time") {
						found(n)
					}
				}
			}
			return true
		})
	}
	return uses
}

// Nothing that the agent decides depends on wall time.
func TestWallTime(t *testing.T) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(string(root))
	list := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Standard,DepOnly"}, agentCode...)...)
	list.Dir, list.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	type pkg struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
		DepOnly                 bool
	}
	exports := map[string]string{}
	var ours []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly && !strings.HasSuffix(p.ImportPath, "test") {
			ours = append(ours, p)
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	used := map[string]bool{}
	looked := 0
	for _, p := range ours {
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
		if _, err := (&types.Config{Importer: imports}).Check(p.ImportPath, fset, files, info); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			looked++
			name, err := filepath.Rel(dir, fset.File(f.Pos()).Name())
			if err != nil {
				t.Fatal(err)
			}
			for _, use := range wallUses(info, f) {
				function, _, _ := strings.Cut(use, ":")
				switch {
				case wallTime[name+" "+function] != "":
					used[name+" "+function] = true
				case wallTime[name] != "":
					used[name] = true
				default:
					t.Errorf("%s %s: looks at wall time, which jumps; use times that were taken with time.Now, or say here why it decides nothing", name, use)
				}
			}
		}
	}
	if looked < 100 {
		t.Errorf("%d files were looked at", looked)
	}
	for name := range wallTime {
		if !used[name] {
			t.Errorf("%s: is listed and looks at no wall time", name)
		}
	}
}

// What the list is made by finds each way to look at wall time.
func TestWallUses(t *testing.T) {
	const src = `package p
import "time"
type event struct{ Wall time.Time }
func a(t time.Time) bool { return time.Now().Add(time.Second).Before(t) || time.Since(t) > 1 || t.IsZero() || time.Now().Sub(t).Round(0) > 0 }
func b(t time.Time) int64 { return t.Unix() }
func c(t time.Time) time.Time { return t.Round(0) }
func d(t time.Time) bool { return t == time.Now() }
func e(x event) bool { return time.Now().After(x.Wall) }
func f() time.Time { return time.Unix(5, 0) }
func g(x event) bool { return time.Since(x.Wall) > 1 }
`
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "time").Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	if _, err := (&types.Config{Importer: imports}).Check("p", fset, []*ast.File{f}, info); err != nil {
		t.Fatal(err)
	}
	var in []string
	for _, use := range wallUses(info, f) {
		in = append(in, use[:1])
	}
	if got, want := strings.Join(in, ""), "bcdefg"; got != want {
		t.Errorf("found in %q; want %q", got, want)
	}
}

// jumping is a clock on a wall that jumps by 50 years, there and back, each
// time somebody looks.
type jumping struct{ n int }

func (j *jumping) now() time.Time {
	j.n++
	return time.Now().AddDate(100*(j.n%2)-50, 0, 0)
}

// Moves, leases, waits and watches take the same course whatever the clock on
// the wall does.
func TestClockJumps(t *testing.T) {
	jumps := &jumping{}
	steady, jumped := course(t, time.Now, 0), course(t, jumps.now, 0)
	if jumps.n < 20 {
		t.Errorf("the clock was looked at %d times", jumps.n)
	}
	if steady != jumped {
		t.Errorf("with a clock that jumps:\n%s\nwith one that does not:\n%s", jumped, steady)
	}
	// It would be seen where something took longer.
	if course(t, time.Now, time.Second) == steady {
		t.Error("a lease that ends a second later makes no difference")
	}
}

// course runs an agent by a clock on the wall, and tells all that happened, and
// when. The lease is that much longer than usual.
func course(t *testing.T, wall func() time.Time, longer time.Duration) (said string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, rig.Options{Slots: 2})
		r.Stop()
		r.Start(enclosure.Options{SameBoot: true, Wall: wall})
		r.Run()
		defer r.Stop()
		var b strings.Builder
		note := func(format string, args ...any) {
			fmt.Fprintf(&b, "%v "+format+"\n", append([]any{r.W.Now()}, args...)...)
		}
		r.StartVM(rig.VM1, rig.A)
		// A lease: a VM that is seen to run on ends it, once it is over.
		seen := r.Verdict("gpu0").Now
		a, err := r.E.Arm(r.Ctx(), enclosure.ArmRequest{Slot: "gpu0", ID: rig.UUID(100), Gen: r.Gen("gpu0"), Seen: &seen, Lease: 30*time.Second + longer, By: "test"})
		note("armed: %v, %v", a, err)
		for r.Alive(rig.VM1, rig.A, "gpu0") != nil && r.W.Now() < time.Hour {
			time.Sleep(100 * time.Millisecond)
		}
		note("flag %s", r.SlotStatus("gpu0").Flag)
		// A move that waits for a server which is away, and one that does not.
		r.W.Server(rig.B).PowerLoss()
		m, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B))
		note("move: %s %s, %v", m.State, m.Reason, err)
		r.W.Server(rig.B).PowerOn()
		time.Sleep(10 * time.Second)
		r.W.Bus("bus0").Inject(sim.Fault{Kind: sim.NACKAddr, Addr: 0x60, For: 20 * time.Second})
		m, err = r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.C))
		note("move: %s %s, %v", m.State, m.Reason, err)
		time.Sleep(time.Minute)
		r.Fence(rig.A)
		for _, s := range []string{"gpu0", "gpu1"} {
			v := r.Verdict(s)
			note("%s: %s %s %s", s, r.SlotStatus(s).Host, v.Preserved, v.Reason)
		}
		// The same refusal over and over is told of once a minute.
		for range 200 {
			_, err = r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.A))
			time.Sleep(time.Second)
		}
		note("refused: %v", err)
		events, _ := r.E.Events(0)
		for _, e := range events {
			fmt.Fprintf(&b, "%v %s %s: %s\n", e.Uptime, e.Kind, e.Slot, e.Text)
		}
		r.Check()
		said = b.String()
	})
	return said
}
