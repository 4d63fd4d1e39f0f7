package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Address is a 7-bit I2C address, written "0x57".
type Address uint16

// UnmarshalText reads an address that a device may have: 0x08..0x77 (UM10204
// section 3.1.12 reserves the others).
func (a *Address) UnmarshalText(p []byte) error {
	n, err := strconv.ParseUint(string(p), 0, 16)
	if err != nil {
		return fmt.Errorf("%q is not an I2C address, want the form 0x57", p)
	}
	if n < 0x08 || n > 0x77 {
		return fmt.Errorf("0x%02x is outside 0x08..0x77", n)
	}
	*a = Address(n)
	return nil
}

func (a Address) String() string { return fmt.Sprintf("0x%02x", uint16(a)) }

// MAC is an Ethernet address, written "8c:df:9d:00:02:01".
type MAC [6]byte

// UnmarshalText reads the address of one station.
func (m *MAC) UnmarshalText(p []byte) error {
	parts := strings.Split(string(p), ":")
	bad := fmt.Errorf("%q is not a MAC address, want the form 8c:df:9d:00:02:01", p)
	if len(parts) != len(m) {
		return bad
	}
	var out MAC
	for i, s := range parts {
		n, err := strconv.ParseUint(s, 16, 8)
		if err != nil || len(s) != 2 {
			return bad
		}
		out[i] = byte(n)
	}
	if out == (MAC{}) || out[0]&1 != 0 {
		return fmt.Errorf("%q is not the address of one station", p)
	}
	*m = out
	return nil
}

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// UUID is the identity of a VM, as libvirt has it.
type UUID [16]byte

// UnmarshalText reads the 36-character form.
func (u *UUID) UnmarshalText(p []byte) error {
	s := string(p)
	bad := fmt.Errorf("%q is not a UUID, want the form 6ba7b810-9dad-41d1-80b4-00c04fd430c8", s)
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return bad
	}
	b, err := hex.DecodeString(s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:])
	if err != nil {
		return bad
	}
	if UUID(b) == (UUID{}) {
		return errors.New("the zero UUID names nothing")
	}
	*u = UUID(b)
	return nil
}

func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// Serial is a PCIe Device Serial Number, written in hex, "0x48b02d0300a1b2c3".
type Serial uint64

// UnmarshalText reads a number with its 0x.
func (s *Serial) UnmarshalText(p []byte) error {
	digits, ok := strings.CutPrefix(string(p), "0x")
	n, err := strconv.ParseUint(digits, 16, 64)
	if !ok || err != nil {
		return fmt.Errorf("%q is not a device serial number, want the form 0x48b02d0300a1b2c3", p)
	}
	*s = Serial(n)
	return nil
}

// Reload is how an engine without LinkControl is made to load its config
// block: by a GPIO line, or not at all ("none"), so that what was written is
// in force from the engine's next power-up.
type Reload struct {
	GPIO   Line     `json:"gpio" strict:"required"`
	Active Level    `json:"active"` // level that asks for the reload; "low" if left out
	Pulse  Duration `json:"pulse"`  // how long; 1ms if left out
	None   bool     `json:"-"`
}

// UnmarshalText reads the one word there is.
func (r *Reload) UnmarshalText(p []byte) error {
	if string(p) != "none" {
		return fmt.Errorf(`%q is neither "none" nor an object as {"gpio": "/dev/gpiochip0:17"}`, p)
	}
	*r = Reload{None: true}
	return nil
}

// Line is a line of a GPIO controller, written "/dev/gpiochip0:17".
type Line struct {
	Chip   string // path
	Number uint32
}

// UnmarshalText reads path and number.
func (l *Line) UnmarshalText(p []byte) error {
	s := string(p)
	i := strings.LastIndexByte(s, ':')
	if i < 1 || s[0] != '/' {
		return fmt.Errorf("%q is not a GPIO line, want the form /dev/gpiochip0:17", s)
	}
	n, err := strconv.ParseUint(s[i+1:], 10, 16)
	if err != nil {
		return fmt.Errorf("%q is not a GPIO line, want the form /dev/gpiochip0:17", s)
	}
	*l = Line{s[:i], uint32(n)}
	return nil
}

// Level is "high" or "low".
type Level bool

// UnmarshalText reads the word.
func (l *Level) UnmarshalText(p []byte) error {
	switch string(p) {
	case "high":
		*l = true
	case "low":
		*l = false
	default:
		return fmt.Errorf(`%q is neither "high" nor "low"`, p)
	}
	return nil
}

// Duration is a time with its unit, "10ms".
type Duration time.Duration

// UnmarshalText reads a pulse's length.
func (d *Duration) UnmarshalText(p []byte) error {
	t, err := time.ParseDuration(string(p))
	if err != nil || t <= 0 || t > time.Second {
		return fmt.Errorf("%q is not a duration above 0 and up to 1s", p)
	}
	*d = Duration(t)
	return nil
}
