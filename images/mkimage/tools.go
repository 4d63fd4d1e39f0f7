package main

import (
	"fmt"
	"os/exec"
	"strings"
)

// tools are the programs that are run, and the Debian packages they are in.
var tools = []struct{ command, debian string }{
	{"apt-get", "apt"},
	{"dpkg-deb", "dpkg"},
	{"dtc", "device-tree-compiler"},
	{"fdtput", "device-tree-compiler"},
	{"git", "git"},
	{"mkimage", "u-boot-tools"},
	{"xz", "xz-utils"},
}

// checkTools reports all that are missing with the command that installs them.
func checkTools() error {
	var missing, packages []string
	for _, t := range tools {
		if _, err := exec.LookPath(t.command); err != nil {
			missing = append(missing, t.command)
			packages = append(packages, t.debian)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("not found: %s; on Debian: apt-get install %s",
		strings.Join(missing, ", "), strings.Join(packages, " "))
}
