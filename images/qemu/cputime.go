package qemu

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// userHZ is the unit of processor times in /proc: a hundredth of a second on
// every architecture Linux has (proc(5), /proc/pid/stat; getconf CLK_TCK).
const userHZ = 100

// CPUTime is what all processors have spent on the machine until now, in steps
// of 10 ms. On a busy machine it tells more than the time that has passed.
func (v *VM) CPUTime() (time.Duration, error) {
	name := fmt.Sprintf("/proc/%d/stat", v.process.Pid)
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	ticks, err := parseStat(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return time.Duration(ticks) * time.Second / userHZ, nil
}

// parseStat returns the sum of utime and stime, the 14th and 15th field.
func parseStat(text []byte) (ticks uint64, err error) {
	// The second field is the command's name in parentheses, and may hold any.
	end := bytes.LastIndexByte(text, ')')
	fields := bytes.Fields(text[end+1:])
	if end < 0 || len(fields) < 13 {
		return 0, fmt.Errorf("%q is not what the kernel writes there", text)
	}
	for _, f := range fields[11:13] {
		n, err := strconv.ParseUint(string(f), 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return ticks, nil
}
