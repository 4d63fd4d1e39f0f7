// Poweroff asks PID 1 to stop batond and to power down the board, or to halt
// it where its power is not switched.
package main

import (
	"fmt"
	"os"
	"syscall"
)

func main() {
	if err := syscall.Kill(1, syscall.SIGUSR2); err != nil {
		fmt.Fprintln(os.Stderr, "poweroff:", err)
		os.Exit(1)
	}
}
