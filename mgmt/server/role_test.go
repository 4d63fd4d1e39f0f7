package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"baton/mgmt"
	"baton/mgmt/server/servertest"
)

// forAdmins are paths of which a GET tells what not everybody is to know, or
// keeps buses and slots busy: looking costs nobody else anything.
var forAdmins = map[string]bool{"/v1/nvm/dump": true, "/v1/backup": true, "/v1/nvm/check": true, "/v1/slots/{slot}/adopt": true}

// TestRoles: every route with every caller; who is not let in changes nothing,
// and is recorded.
func TestRoles(t *testing.T) {
	peers := map[string]Peer{
		"root":    {Known: true, UID: 0},
		"agent":   {Known: true, UID: 990},
		"other":   {Known: true, UID: 1000},
		"unknown": {}, // no credentials: also what a listener of another kind would give
	}
	for _, rt := range routes {
		for name, peer := range peers {
			f := servertest.New()
			s := New(f, Options{AdminUID: 990, Keeper: servertest.NewKeeper()})
			s.ops, s.streams = t.Context(), t.Context()
			r := httptest.NewRequest(rt.method, strings.NewReplacer("{slot}", "gpu0", "{host}", "server1", "{id}", id1).Replace(rt.path), nil)
			r = r.WithContext(context.WithValue(r.Context(), peerKey{}, peer))
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			var p mgmt.Problem
			_ = json.Unmarshal(w.Body.Bytes(), &p) // an answer that is no problem has no code
			denied := w.Code == http.StatusForbidden && p.Code == mgmt.CodePermission
			want := name == "unknown" || name == "other" && (rt.method != "GET" || forAdmins[rt.path])
			if denied != want {
				t.Errorf("%s %s by %s: denied %v, want %v (%d %s)", rt.method, rt.path, name, denied, want, w.Code, p.Detail)
			}
			records, _ := f.Audit()
			last := records[len(records)-1]
			if told := last.Kind == "refused" && last.Code == mgmt.CodePermission && last.By == peer.String(); told != denied {
				t.Errorf("%s %s by %s: denied %v; recorded %v: %+v", rt.method, rt.path, name, denied, told, last)
			}
			if calls := f.Calls(); denied && len(calls) > 0 {
				t.Errorf("%s %s by %s: denied, and yet %q", rt.method, rt.path, name, calls)
			}
		}
	}
}

// TestDenyByDefault: a route that names no roles lets nobody in.
func TestDenyByDefault(t *testing.T) {
	s := New(servertest.New(), Options{Keeper: servertest.NewKeeper()})
	s.ops, s.streams = t.Context(), t.Context()
	r := httptest.NewRequest("GET", "/v1/slots", nil)
	r = r.WithContext(context.WithValue(r.Context(), peerKey{}, Peer{Known: true}))
	w := httptest.NewRecorder()
	s.dispatch(route{method: "GET", path: "/v1/slots", serve: (*Server).slots}, w, r)
	if w.Code != http.StatusForbidden {
		t.Errorf("root on a route without roles: %d", w.Code)
	}
}

const asNobody = "BATON_TEST_AS_NOBODY"

// TestPeerCredentials asks as another user, in a process of its own: the
// kernel says who connects.
func TestPeerCredentials(t *testing.T) {
	if socket := os.Getenv(asNobody); socket != "" {
		c := mgmt.Dial(socket)
		defer c.Close()
		if _, err := c.Enclosure(t.Context()); err != nil {
			t.Errorf("look: %v", err)
		}
		_, err := c.Fence(t.Context(), "server1")
		if err == nil || !strings.HasPrefix(err.Error(), "uid 65534 is viewer, and POST /v1/hosts/server1/fence is for admin") {
			t.Errorf("fence: %v", err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	f := servertest.New()
	socket, _ := start(t, f)
	// The test binary and the socket where nobody can reach them.
	dir, err := os.MkdirTemp("", "baton")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin := filepath.Join(dir, "test")
	if err := copyFile(bin, os.Args[0]); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o755, bin: 0o755, socket: 0o666, filepath.Dir(socket): 0o755, filepath.Dir(filepath.Dir(socket)): 0o755} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(bin, "-test.run=^TestPeerCredentials$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{asNobody + "=" + socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestPeerCredentials") {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
	if calls := f.Calls(); len(calls) > 0 {
		t.Errorf("operations got through: %q", calls)
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
