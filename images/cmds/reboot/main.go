// Reboot asks PID 1 to stop batond and to restart the board.
package main

import (
	"fmt"
	"os"
	"syscall"
)

func main() {
	if err := syscall.Kill(1, syscall.SIGTERM); err != nil {
		fmt.Fprintln(os.Stderr, "reboot:", err)
		os.Exit(1)
	}
}
