package main

import (
	"encoding/json"
	"os"
	"path/filepath"

	"baton/mgmt/config"
)

// tellConsole leaves, in the run directory, how the serial console is locked:
// 'baton console' has to know that also while no agent answers. Where nothing is
// locked it says so: no file means that no agent has got that far since power-up.
func tellConsole(c *config.Config) error {
	encoded, after := c.Locked()
	text, err := json.Marshal(config.ConsoleFile{Password: encoded, LockAfterMS: after.Milliseconds()})
	if err != nil {
		return err
	}
	file := filepath.Join(c.RunDir, config.ConsoleFileName)
	tmp := file + ".new"
	if err := os.WriteFile(tmp, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}

// consoleTold says that an agent has done that since power-up.
func consoleTold(runDir string) bool {
	_, err := os.Lstat(filepath.Join(runDir, config.ConsoleFileName))
	return err == nil
}
