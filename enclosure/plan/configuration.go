package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Keys of the agent's configuration in the store.
const (
	KeyConfiguration = "c"
	// KeyConfigMark is on a page of its own, written after the configuration:
	// by it one notices that the configuration was lost, or an older one came
	// back.
	KeyConfigMark = "C"
)

// Configuration is the record of the agent's configuration: its packed text,
// or the sum of the file that has it.
type Configuration struct {
	Version uint32            // raised by every change
	Packed  []byte            // the text, packed by mgmt/config; nil = it is in a file
	Sum     [sha256.Size]byte // SHA-256 of that file as it was written
}

// Forms of the record. The numbers are in the store: never reuse one.
const (
	configPacked = 1
	configInFile = 2

	configHead = 1 + 4
)

// Encode returns c's value in the store.
func (c Configuration) Encode() []byte {
	form, rest := byte(configPacked), c.Packed
	if c.Packed == nil {
		form, rest = configInFile, c.Sum[:]
	}
	p := make([]byte, 0, configHead+len(rest))
	p = binary.LittleEndian.AppendUint32(append(p, form), c.Version)
	return append(p, rest...)
}

// DecodeConfiguration is the inverse of Encode.
func DecodeConfiguration(p []byte) (Configuration, error) {
	if len(p) < configHead {
		return Configuration{}, fmt.Errorf("%w: configuration of %d bytes", ErrRecord, len(p))
	}
	c := Configuration{Version: binary.LittleEndian.Uint32(p[1:])}
	rest := p[configHead:]
	switch {
	case p[0] == configPacked && len(rest) > 0:
		c.Packed = append([]byte(nil), rest...)
	case p[0] == configInFile && len(rest) == len(c.Sum):
		copy(c.Sum[:], rest)
	default:
		return Configuration{Version: c.Version}, fmt.Errorf("%w: configuration of form %d, %d bytes", ErrRecord, p[0], len(p))
	}
	return c, nil
}

// EncodeConfigMark returns the value of KeyConfigMark for the version that was
// written before it.
func EncodeConfigMark(version uint32) []byte {
	return binary.LittleEndian.AppendUint32(nil, version)
}

// FindConfiguration reads the configuration and its mark as the store has them,
// nil = not there. found is false where none was ever written. An error says
// that there was one and that it is not this: it was lost, it is an older one,
// or it is of a form that this version does not know. Version then is the
// highest that is known of.
func FindConfiguration(value, mark []byte) (c Configuration, found bool, err error) {
	var marked uint32
	if mark != nil {
		if len(mark) != 4 {
			return c, false, fmt.Errorf("%w: mark of a configuration of %d bytes", ErrRecord, len(mark))
		}
		marked = binary.LittleEndian.Uint32(mark)
	}
	if value == nil {
		if mark != nil {
			return Configuration{Version: marked}, false, fmt.Errorf("version %d was lost: its record is not in the store any more", marked)
		}
		return c, false, nil
	}
	c, err = DecodeConfiguration(value)
	switch {
	case err == nil && c.Version < marked:
		err = fmt.Errorf("version %d was lost: the store has an older one, %d", marked, c.Version)
		c.Packed = nil
	case err == nil:
		return c, true, nil
	}
	c.Version = max(c.Version, marked)
	return c, false, err
}
