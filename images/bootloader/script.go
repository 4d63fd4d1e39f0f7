package bootloader

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"baton/images/bank"
	"baton/images/uboot"
)

// Span is where a bank lies in the flash, in bytes.
type Span struct{ Offset, Size int64 }

// Script are the variables that make U-Boot boot banks: its built-in ones, or
// those of its first saved environment. args are the kernel's arguments, load
// is an address in memory with room for a bank.
//
// U-Boot counts a start before it runs bootcmd where upgrade_available is set,
// and runs altbootcmd in its place where there were more than bootlimit
// (CONFIG_BOOTCOUNT_LIMIT, CONFIG_BOOTCOUNT_ENV). bootm comes back where an
// image is not whole, or not signed by the key in U-Boot's device tree.
func Script(args string, load uint64, banks map[string]Span) uboot.Env {
	read := func(name string) string {
		return fmt.Sprintf("sf probe; sf read %#x %#x %#x", load, banks[name].Offset, banks[name].Size)
	}
	return uboot.Env{
		"bootcmd":      `run baton_save; if test "${upgrade_available}" = 1; then run baton_try; else run altbootcmd; fi; echo no bank can be booted`,
		"altbootcmd":   `run baton_save; run baton_keep; run baton_boot; run baton_other; run baton_boot`,
		"baton_try":    `run baton_other; setenv baton_trial baton.trial=1; run baton_boot; run baton_keep; run baton_boot`,
		"baton_save":   `if env info -d -q; then saveenv; fi`,
		"baton_keep":   `setenv baton_trial; if test "${baton_bank}" = b; then setenv baton_now b; else setenv baton_now a; fi`,
		"baton_other":  `setenv baton_trial; if test "${baton_bank}" = b; then setenv baton_now a; else setenv baton_now b; fi`,
		"baton_boot":   fmt.Sprintf(`setenv bootargs %s baton.bank=${baton_now} ${baton_trial}; run baton_read_${baton_now}; bootm %#x#conf-1`, args, load),
		"baton_read_a": read("a"),
		"baton_read_b": read("b"),

		bank.VarBank:  "a",
		bank.VarTrial: "0",
		bank.VarCount: "0",
		bank.VarLimit: "1",
	}
}

// Text are variables as mkenvimage(1) and U-Boot's env import -t take them.
func Text(e uboot.Env) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(e)) {
		fmt.Fprintf(&b, "%s=%s\n", name, e[name])
	}
	return b.String()
}
