package kernel

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeTools puts stand-ins for apt's tools first in PATH. They note their
// calls, without options, in the file that is returned.
func fakeTools(t *testing.T, update string) (calls string) {
	t.Helper()
	dir := t.TempDir()
	calls = filepath.Join(dir, "calls")
	common := "#!/bin/sh\nwhile [ \"$1\" = -o ]; do shift 2; done\necho \"$(basename $0) $*\" >>" + calls + "\n"
	for name, script := range map[string]string{
		"apt-get": `case $1 in
update) ` + update + `;;
download) touch "$3.deb";;
esac`,
		"apt-cache": `case $3 in
linux-image-armmp) echo "Package: linux-image-armmp
Version: 6.1.9-1
Depends: linux-image-6.1.0-9-armmp (= 6.1.9-1), other (>= 2)
Description: meta
 Package: not this
";;
linux-image-6.1.0-9-armmp) echo "Package: linux-image-6.1.0-9-armmp
Version: 6.1.9-1
Depends: kmod, linux-base (>= 4.3~)";;
*) echo "E: No packages found" >&2; exit 100;;
esac`,
		"dpkg-deb": `mkdir -p "$3/boot"; echo kernel >"$3/boot/vmlinuz-6.1.0-9-armmp"`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(common+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return calls
}

func TestFetch(t *testing.T) {
	calls := fakeTools(t, "exit 0")
	cache := t.TempDir()
	ctx := context.Background()
	p, err := Fetch(ctx, cache, "armhf", "linux-image-armmp", false)
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "linux-image-6.1.0-9-armmp" || p.Version != "6.1.9-1" || p.Release != "6.1.0-9-armmp" {
		t.Errorf("Fetch = %+v; want the package behind the meta package", p)
	}
	if z, err := p.Kernel(); err != nil || string(z) != "kernel\n" {
		t.Errorf("ZImage = %q, %v", z, err)
	}
	left, err := filepath.Glob(filepath.Join(cache, "unpack-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	before, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Fetch(ctx, cache, "armhf", "linux-image-armmp", false)
	if err != nil || *again != *p {
		t.Errorf("second Fetch = %+v, %v; want %+v", again, err, p)
	}
	after, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Errorf("second Fetch asked apt again:\n%s", strings.TrimPrefix(string(after), string(before)))
	}
}

func TestFetchOneMirrorOfMany(t *testing.T) {
	fakeTools(t, "echo 'E: mirror sync in progress' >&2; exit 100")
	if _, err := Fetch(context.Background(), t.TempDir(), "armhf", "linux-image-armmp", false); err != nil {
		t.Errorf("a mirror that fails beside others that have the package: %v", err)
	}
}

func TestFetchAbsent(t *testing.T) {
	fakeTools(t, "echo 'E: no network' >&2; exit 100")
	cache := t.TempDir()
	_, err := Fetch(context.Background(), cache, "armhf", "linux-image-vax", false)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"linux-image-vax", "apt's sources", "no network"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q; want %q in it", err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(cache, "linux-image-vax_armhf.json")); err == nil {
		t.Error("the failure was remembered as a success")
	}
}
