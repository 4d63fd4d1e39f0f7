package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"baton/enclosure"
	"baton/mgmt"
	"baton/nvm"
	"baton/test/rig"
)

// own starts an agent in a mount namespace of its own, after a script has been
// run there; "$0" is dir.
func own(t *testing.T, script, dir string) []string {
	t.Helper()
	wrap := append([]string{"unshare"}, user("--map-root-user")...)
	wrap = append(wrap, "--mount", "sh", "-ec")
	if out, err := exec.Command(wrap[0], append(wrap[1:], `mount -t tmpfs none "$0"`, dir)...).CombinedOutput(); err != nil {
		t.Fatalf("this test mounts file systems in a namespace of its own: be root, or allow user namespaces: %v: %s", err, out)
	}
	return append(wrap, script+"\nexec \"$@\"", dir)
}

// user gives the flags that somebody needs who is not root.
func user(flags ...string) []string {
	if os.Geteuid() == 0 {
		return nil
	}
	return flags
}

// inside runs a command in the namespace of the agent.
func (s *stage) inside(t *testing.T, command ...string) {
	t.Helper()
	args := append([]string{"-t", fmt.Sprint(s.batond.cmd.Process.Pid), "--mount"}, user("--user", "--preserve-credentials")...)
	if out, err := exec.Command("nsenter", append(args, command...)...).CombinedOutput(); err != nil {
		t.Fatalf("%q in the agent's namespace: %v: %s", command, err, out)
	}
}

// refuses waits for an agent that serves and says why its store can not be
// used; nothing is asked of it that it does, and the hardware stays as it is.
func (s *stage) refuses(t *testing.T, want string) {
	t.Helper()
	ctx, v := t.Context(), s.vms[0]
	before, err := s.hw.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
	var e mgmt.Enclosure
	if err := s.await(ctx, "the agent to serve", s.batond, func() (err error) { e, err = s.agent.Enclosure(ctx); return err }); err != nil {
		t.Fatal(err)
	}
	if said := e.Store.Problem + strings.Join(e.Warnings, "\n"); e.Store.OK || !strings.Contains(said, want) || !strings.Contains(said, s.o.store["file"].(string)) {
		t.Errorf("status says %+v, %q; want %q and the file's name", e.Store, e.Warnings, want)
	}
	for what, f := range map[string]func() error{
		"unfence": func() error { return s.agent.Unfence(ctx, v.hosts[0], 0) },
		"fence":   func() error { _, err := s.agent.Fence(ctx, v.hosts[0]); return err },
		"attach":  func() error { return s.attach(ctx, v, v.hosts[0]) },
		"move": func() error {
			_, err := s.agent.Move(ctx, mgmt.MoveRequest{ID: s.id(), VM: v.name, To: v.hosts[1], Preserve: true})
			return err
		},
	} {
		if p, ok := errors.AsType[*mgmt.Problem](f()); !ok || p.Code != "store-unusable" && p.Code != "host-fenced" {
			t.Errorf("%s: %v; want a refusal", what, p)
		}
	}
	now, err := s.hw.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if n := writes(now) - writes(before); n != 0 {
		t.Errorf("%d pages and bytes of registers were written", n)
	}
}

// A disk that is full when the store is made: the agent says so, serves, and
// makes the store by itself when there is room.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir, o := setting(t)
	mnt := filepath.Join(dir, "mnt")
	if err := os.Mkdir(mnt, 0o700); err != nil {
		t.Fatal(err)
	}
	o.store = map[string]any{"file": filepath.Join(mnt, "store"), "format_blank": true}
	o.wrap = own(t, `mount -t tmpfs -o size=64k none "$0"; head -c 48k /dev/zero > "$0/filler"`, mnt)
	s, err := newWorld(t.Context(), filepath.Join(dir, "w"), o, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.refuses(t, "no space left on device")
	s.inside(t, "rm", filepath.Join(mnt, "filler"))
	s.works(t)
	s.inside(t, "sh", "-ec", `test "$(ls "$0")" = store`, mnt) // nothing else is left
}

// A file system that is read-only: the links of before stay, and when it can be
// written all goes on.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	dir, o := setting(t)
	mnt := filepath.Join(dir, "mnt")
	if err := os.Mkdir(mnt, 0o700); err != nil {
		t.Fatal(err)
	}
	o.store = map[string]any{"file": filepath.Join(mnt, "store"), "format_blank": true}
	s, err := newStage(t.Context(), filepath.Join(dir, "w"), o, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.batond.kill()
	image, err := os.ReadFile(filepath.Join(mnt, "store"))
	if err != nil {
		t.Fatal(err)
	}
	s.o.wrap = own(t, `mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"`, mnt)
	s.refuses(t, "read-only file system")
	for _, v := range s.vms {
		if owner, err := s.together(t.Context(), v); err != nil || owner != v.at {
			t.Errorf("%s is with %q, %v; want %s", v.name, owner, err, v.at)
		}
	}
	if now, err := os.ReadFile(filepath.Join(mnt, "store")); err != nil || string(now) != string(image) {
		t.Errorf("the store has changed, %v", err)
	}
	s.inside(t, "mount", "-o", "remount,bind,rw", mnt)
	s.works(t)
}

// works waits until the agent has its store again, and uses it.
func (s *stage) works(t *testing.T) {
	t.Helper()
	ctx, v := t.Context(), s.vms[0]
	if err := s.settled(ctx); err != nil {
		t.Fatal(err)
	}
	for _, h := range v.hosts {
		if err := s.unfence(ctx, h); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.attach(ctx, v, v.hosts[1]); err != nil {
		t.Fatal(err)
	}
	if owner, err := s.together(ctx, v); err != nil || owner != v.hosts[1] {
		t.Errorf("%s is with %q, %v; want %s", v.name, owner, err, v.hosts[1])
	}
}

// fullFile is the file of a store whose disk is full, or read-only, from time
// to time: where blocks are made at each write, so does one that was there.
type fullFile struct {
	nvm.Medium
	fails atomic.Pointer[syscall.Errno]
}

func (f *fullFile) Program(ctx context.Context, p []byte, off int64) error {
	if e := f.fails.Load(); e != nil {
		return &fs.PathError{Op: "write", Path: "/var/lib/baton/store", Err: *e}
	}
	return f.Medium.Program(ctx, p, off)
}

// A disk that becomes full under an agent that runs: what it can not record it
// does not do, it says why, and goes on when there is room.
func TestDiskFills(t *testing.T) {
	for _, why := range []syscall.Errno{syscall.ENOSPC, syscall.EROFS, syscall.EIO} {
		t.Run(why.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file, err := nvm.OpenFile(filepath.Join(t.TempDir(), "store"), nvm.Geometry{Size: 32 << 10, Page: 64, Erased: 0xFF}, true)
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				disk := &fullFile{Medium: file}
				r := rig.New(t, rig.Options{Slots: 2, Config: func(c *enclosure.Config) {
					c.Store = enclosure.StoreConfig{Medium: disk, Name: "/var/lib/baton/store", FormatBlank: true}
				}})
				r.Run()
				defer r.Stop()
				r.StartVM(rig.VM1, rig.A)
				time.Sleep(5 * time.Second) // the audit is written
				written := func() (n uint64) {
					for _, name := range []string{"gpu0", "gpu1"} {
						n += r.W.PageWrites(name) + r.W.Slot(name).RegisterWrites()
					}
					return n
				}
				before := written()
				disk.fails.Store(&why)
				requests := map[string]func() error{
					"move": func() error { _, err := r.E.Move(r.Ctx(), r.Request(rig.VM1, rig.B)); return err },
					"release": func() error {
						return r.E.Release(r.Ctx(), enclosure.ReleaseRequest{VM: rig.VM1, Mode: enclosure.ReleaseHold})
					},
					"fence": func() error { _, err := r.E.Fence(r.Ctx(), rig.A, "test"); return err },
				}
				for what, ask := range requests {
					err := ask()
					if err == nil || !strings.Contains(err.Error(), why.Error()) || !strings.Contains(err.Error(), "/var/lib/baton/store") {
						t.Errorf("%s: %v; want %q and the file's name", what, err, why)
					}
				}
				if n := written() - before; n != 0 {
					t.Errorf("%d pages and bytes of registers were written, without a record", n)
				}
				r.WantHost("gpu0", rig.A)
				time.Sleep(time.Minute)
				if st := r.E.Status(r.Ctx()); len(st.Slots) != 2 {
					t.Errorf("status: %+v", st)
				} else {
					t.Logf("status of the store: %+v, warnings %q", st.Store, st.Warnings)
				}
				r.WantHost("gpu0", rig.A)

				disk.fails.Store(nil)
				r.Move(rig.VM1, rig.B)
				r.WantHost("gpu0", rig.B)
				r.Check()
			})
		})
	}
}
