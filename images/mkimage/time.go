package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"baton/images/kernel"
)

// buildTime is the time before which the board's clock cannot be right. It is
// the same for each build of the same source: SOURCE_DATE_EPOCH where that is
// set, else the later of the last commit's time and the kernel's.
func buildTime(ctx context.Context, p *kernel.Package) (time.Time, error) {
	if s := os.Getenv("SOURCE_DATE_EPOCH"); s != "" {
		sec, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH=%q is not a count of seconds", s)
		}
		return time.Unix(sec, 0), nil
	}
	info, err := os.Stat(filepath.Join(p.Dir, "boot", "vmlinuz-"+p.Release))
	if err != nil {
		return time.Time{}, err
	}
	floor := info.ModTime()
	// A source tree without git, or without a commit, has no time of its own.
	out, err := exec.CommandContext(ctx, "git", "log", "-1", "--format=%ct").Output()
	if err == nil {
		sec, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
		if err != nil {
			return time.Time{}, fmt.Errorf("git log: %w", err)
		}
		if commit := time.Unix(sec, 0); commit.After(floor) {
			floor = commit
		}
	}
	return floor, nil
}
