package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindAndTell(t *testing.T) {
	proc := t.TempDir()
	for pid, files := range map[string][2]string{
		"1":  {"init\n", "VmRSS:\t 1 kB\n"},
		"70": {"batond\n", "Name:\tbatond\nVmHWM:\t   11700 kB\nVmRSS:\t   11672 kB\nRssAnon:\t    5592 kB\nRssFile:\t       8 kB\nRssShmem:\t    6072 kB\n"},
		"71": {"batond2\n", ""},
	} {
		dir := filepath.Join(proc, pid)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"comm", "status"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(files[i]), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	dir, err := find(proc, "batond")
	if err != nil || filepath.Base(dir) != "70" {
		t.Fatalf("find(batond) = %s, %v; want process 70", dir, err)
	}
	var out strings.Builder
	const want = "moves 250 VmRSS 11672 VmHWM 11700 RssAnon 5592 RssShmem 6072\n"
	if err := tell(&out, dir, 250); err != nil || out.String() != want {
		t.Errorf("tell = %q, %v; want %q", &out, err, want)
	}
	if err := tell(&out, filepath.Join(proc, "1"), 0); err == nil {
		t.Error("tell of a process without all of the values: no error")
	}
	if dir, err := find(proc, "gosh"); err == nil {
		t.Errorf("find(gosh) = %s; want an error", dir)
	}
}
