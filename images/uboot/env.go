// Package uboot reads and writes the environment of the bootloader U-Boot as
// it lies in flash, in two copies.
//
// A copy is a CRC-32, a flag and the variables (U-Boot,
// include/env_internal.h, env_t with CONFIG_ENV_REDUNDANT; before 2024
// CONFIG_SYS_REDUNDAND_ENVIRONMENT). In SPI flash the flag is Active when the
// copy is written, and becomes Obsolete when the other copy is (env/sf.c).
//
// The CRC does not cover the flag: an erase that was cut short can bring an
// obsolete copy back. Who writes should spoil a copy before it erases it.
package uboot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
)

// Env are the variables. Values are as they lie in flash: U-Boot puts a
// backslash before a backslash.
type Env map[string]string

// Flags of a copy.
const (
	Obsolete = 0
	Active   = 1
)

// HeaderSize is how many bytes of a copy are not variables.
const HeaderSize = 5

// FlagOffset is where the flag is in a copy.
const FlagOffset = 4

// Errors that errors.Is finds in what this package returns.
var (
	// ErrCRC is returned for a copy that is not whole.
	ErrCRC = errors.New("CRC does not match")
	// ErrFull is returned for variables that a copy has no room for.
	ErrFull = errors.New("environment is full")
	// ErrName is returned for what can not be a variable.
	ErrName = errors.New("not a variable")
)

// Decode reads a copy, of which all bytes count. The error is ErrCRC. What is
// no variable is left out, and of two with one name the last counts, as U-Boot
// has it.
func Decode(p []byte) (e Env, flag byte, err error) {
	if len(p) <= HeaderSize {
		return nil, 0, fmt.Errorf("%d bytes: %w", len(p), ErrCRC)
	}
	want, got := binary.LittleEndian.Uint32(p), crc32.ChecksumIEEE(p[HeaderSize:])
	if want != got {
		return nil, 0, fmt.Errorf("0x%08x, of what is there 0x%08x: %w", want, got, ErrCRC)
	}
	e = Env{}
	for rest := p[HeaderSize:]; len(rest) > 0 && rest[0] != 0; {
		entry := rest
		if n := bytes.IndexByte(rest, 0); n >= 0 {
			entry, rest = rest[:n], rest[n+1:]
		} else {
			rest = nil
		}
		if name, value, ok := strings.Cut(string(entry), "="); ok && name != "" {
			e[name] = value
		}
	}
	return e, p[FlagOffset], nil
}

// Encode makes a copy of size bytes. The error is ErrFull or ErrName.
func Encode(e Env, flag byte, size int) ([]byte, error) {
	var vars []byte
	for _, name := range slices.Sorted(maps.Keys(e)) {
		value := e[name]
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return nil, fmt.Errorf("%q=%q: %w", name, value, ErrName)
		}
		vars = append(vars, name...)
		vars = append(vars, '=')
		vars = append(vars, value...)
		vars = append(vars, 0)
	}
	// One more zero ends the list.
	if room := size - HeaderSize; len(vars)+1 > room {
		return nil, fmt.Errorf("variables take %d bytes, a copy has room for %d: %w", len(vars)+1, room, ErrFull)
	}
	p := bytes.Repeat([]byte{0xff}, size) // so that what is erased stays so
	copy(p[HeaderSize:], append(vars, 0))
	binary.LittleEndian.PutUint32(p, crc32.ChecksumIEEE(p[HeaderSize:]))
	p[FlagOffset] = flag
	return p, nil
}

// Choose says which of two copies counts, 0 or 1, or -1 where neither is good
// (U-Boot, env/common.c, env_check_redund). ok and flags are those of the
// copies.
func Choose(ok [2]bool, flags [2]byte) int {
	switch {
	case !ok[0] && !ok[1]:
		return -1
	case !ok[1]:
		return 0
	case !ok[0]:
		return 1
	// Flags that count writes come round; in SPI flash they do not count, but
	// the rule is one.
	case flags[0] == 255 && flags[1] == 0:
		return 1
	case flags[1] == 255 && flags[0] == 0:
		return 0
	case flags[1] > flags[0]:
		return 1
	}
	return 0
}
