package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"baton/mgmt/password"
)

// Console is how the serial console is locked.
type Console struct {
	Password  string `json:"password"`   // as package password encodes it; "" = none, and nothing is locked
	LockAfter Idle   `json:"lock_after"` // without a key; 10m if left out
}

// DefaultLockAfter is the time without a key after which a console locks.
const DefaultLockAfter = 10 * time.Minute

// Idle is a time without a key, "10m".
type Idle time.Duration

// Bounds of Idle: shorter locks out who reads, longer is no lock.
const (
	minIdle = 10 * time.Second
	maxIdle = 24 * time.Hour
)

// UnmarshalText reads a duration with its unit.
func (d *Idle) UnmarshalText(p []byte) error {
	t, err := time.ParseDuration(string(p))
	if err != nil || t < minIdle || t > maxIdle {
		return fmt.Errorf("%q is not a duration of %v to %v", clip(string(p)), minIdle, maxIdle)
	}
	*d = Idle(t)
	return nil
}

func (d Idle) String() string { return time.Duration(d).String() }

// Locked tells password and time of a console; "" where nothing is locked.
func (c *Config) Locked() (encoded string, after time.Duration) {
	if c.Console == nil {
		return "", DefaultLockAfter
	}
	return c.Console.Password, time.Duration(c.Console.LockAfter)
}

func (v *checker) console() {
	c := v.c.Console
	if c == nil || c.Password == "" {
		return
	}
	if _, err := password.Parse(c.Password); err != nil {
		v.bad("console.password", "%v", err) // it is not quoted
	}
}

// consoleChange says what differs, and nothing of the password itself.
func consoleChange(was, now *Console) string {
	var a, b Console
	if was != nil {
		a = *was
	}
	if now != nil {
		b = *now
	}
	switch {
	case a.Password == b.Password:
	case a.Password == "":
		return "console: a password is set"
	case b.Password == "":
		return "console: the password is taken away"
	default:
		return "console: another password"
	}
	if a.LockAfter != b.LockAfter {
		return fmt.Sprintf("console: lock_after %s -> %s", idleWord(a.LockAfter), idleWord(b.LockAfter))
	}
	return "console: how it is written"
}

func idleWord(d Idle) string {
	if d == 0 {
		return "none given"
	}
	return d.String()
}

// Hidden stands in a text that is shown for what is not to be read.
const Hidden = "(hidden)"

// Masked is text without what only an admin may see: the console's password.
// All else stays as it is, to the byte. A text in which that can not be found
// for certain is no text: the error says so.
func Masked(text []byte) ([]byte, error) {
	at, err := findMember(text, "console")
	if err != nil {
		return nil, err
	}
	if !at.found {
		return bytes.Clone(text), nil
	}
	value := text[at.value.from:at.value.to]
	in, err := findMember(value, "password")
	if err != nil {
		return nil, err
	}
	if !in.found || string(value[in.value.from:in.value.to]) == `""` {
		return bytes.Clone(text), nil
	}
	hidden, err := json.Marshal(Hidden)
	if err != nil {
		return nil, err
	}
	return splice(text, span{at.value.from + in.value.from, at.value.from + in.value.to}, hidden), nil
}

// ConsoleFileName is the file in the run directory that the agent leaves for
// 'baton console', readable by its owner only.
const ConsoleFileName = "console.json"

// ConsoleFile is what is in it.
type ConsoleFile struct {
	Password    string `json:"password"` // encoded; "" = nothing is locked
	LockAfterMS int64  `json:"lock_after_ms"`
}
