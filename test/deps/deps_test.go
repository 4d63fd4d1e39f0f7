// Package deps guards what gets into the binaries that are flashed, and that
// rooms import only what docs/design.md lets them.
package deps

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// imports lists all packages that pkg is built from, for the board.
func imports(t *testing.T, pkg string, flags ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append(append([]string{"list", "-deps"}, flags...), pkg)...)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm", "GOARM=7", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pkg, err)
	}
	return strings.Fields(string(out))
}

// hits tells whether pkg is p or lies below it.
func hits(pkg, p string) bool { return pkg == p || strings.HasPrefix(pkg, p+"/") }

// TestBatondIsSmall keeps out of batond what it does not need and a flash of a
// few MiB can not afford (docs/decisions/0003-small-batond.md has sizes).
func TestBatondIsSmall(t *testing.T) {
	banned := []string{
		"text/template", "html/template", "regexp", "testing", "go/ast", "go/parser", "net/rpc", "database/sql", "encoding/gob", "encoding/xml", "expvar", "net/http/pprof",
		"plugin", "os/user",
		"google.golang.org", "github.com/prometheus", "github.com/godbus", "github.com/spf13", "gopkg.in/yaml.v3", "gopkg.in/yaml.v2",
		"periph.io/x/host/v3/bcm283x", "periph.io/x/host/v3/allwinner", "periph.io/x/host/v3/am335x", "periph.io/x/host/v3/ftdi",
		"github.com/u-root/u-root", "github.com/u-root/mkuimage", "github.com/u-root/gobusybox",
		"baton/sim", "baton/host", "baton/test", "baton/images",
	}
	for _, pkg := range imports(t, "baton/cmd/batond") {
		for _, b := range banned {
			if hits(pkg, b) {
				t.Errorf("batond imports %s", pkg)
			}
		}
	}
}

func TestBoardsBatonIsSmall(t *testing.T) {
	for _, pkg := range imports(t, "baton/cmd/baton", "-tags", "board") {
		for _, b := range []string{"baton/host", "baton/sim", "text/template", "html/template", "regexp"} {
			if hits(pkg, b) {
				t.Errorf("the board's baton imports %s", pkg)
			}
		}
	}
}

// rooms are the rooms of docs/design.md and what of ours each may import,
// itself apart.
var rooms = []struct {
	room string
	may  []string
}{
	{"baton/nvm", nil},
	{"baton/pcie", nil},
	{"baton/vlan", nil},
	{"baton/mgmt/server", []string{"baton/mgmt", "baton/enclosure", "baton/ee", "baton/nvm", "baton/pcie", "baton/vlan"}},
	{"baton/mgmt", nil},
	{"baton/ee", []string{"baton/nvm", "baton/pcie"}},
	{"baton/enclosure", []string{"baton/nvm", "baton/ee", "baton/vlan", "baton/pcie"}},
	{"baton/host", []string{"baton/mgmt", "baton/pcie"}},
	{"baton/sim", []string{"baton/ee", "baton/pcie", "baton/nvm"}},
	{"baton/cmd/baton", []string{"baton/mgmt", "baton/enclosure/plan", "baton/enclosure/bug", "baton/host", "baton/pcie", "baton/ee", "baton/nvm", "baton/images/bank", "baton/images/fit"}},
	{"baton/cmd/batond", []string{"baton/mgmt", "baton/enclosure", "baton/ee", "baton/nvm", "baton/pcie", "baton/vlan"}},
}

// TestRooms fails where a package imports, directly or not, a room that its own
// may not.
func TestRooms(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "baton/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n") {
		f := strings.Fields(line)
		i := slices.IndexFunc(rooms, func(r struct {
			room string
			may  []string
		}) bool {
			return hits(f[0], r.room)
		})
		if i < 0 || strings.HasSuffix(f[0], "test") {
			continue
		}
		for _, imp := range f[1:] {
			if !strings.HasPrefix(imp, "baton/") || hits(imp, rooms[i].room) {
				continue
			}
			if !slices.ContainsFunc(rooms[i].may, func(m string) bool { return hits(imp, m) }) {
				t.Errorf("%s imports %s", f[0], imp)
			}
		}
	}
}
