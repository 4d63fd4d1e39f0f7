package nvm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Record is a key and its value. A nil Value deletes the key; an empty one
// that is not nil is a value.
type Record struct {
	Key   string // 1..255 bytes
	Value []byte // up to 65535 bytes, and see ErrTooLarge
}

// A batch's records stand one after the other: key length (1 byte, not 0),
// value length (1 byte), key, value. Value length 0xfe says the key is deleted,
// 0xff that the length follows as two bytes, little endian. A key length of 0,
// or the end of the last page, ends the batch; what follows is zero.
const (
	valueDeleted = 0xfe
	valueLong    = 0xff
)

var errRecords = errors.New("records do not parse")

func checkRecords(recs []Record) error {
	if len(recs) == 0 {
		return fmt.Errorf("%w: no record", ErrRecord)
	}
	for i, r := range recs {
		if len(r.Key) == 0 || len(r.Key) > 255 {
			return fmt.Errorf("%w: key of %d bytes, not 1..255", ErrRecord, len(r.Key))
		}
		if len(r.Value) > 0xffff {
			return fmt.Errorf("%w: %q has a value of %d bytes", ErrTooLarge, r.Key, len(r.Value))
		}
		for _, q := range recs[:i] {
			if q.Key == r.Key {
				return fmt.Errorf("%w: %q twice in one batch", ErrRecord, r.Key)
			}
		}
	}
	return nil
}

func appendRecord(dst []byte, r Record) []byte {
	dst = append(dst, byte(len(r.Key)))
	switch n := len(r.Value); {
	case r.Value == nil:
		dst = append(dst, valueDeleted)
	case n < valueDeleted:
		dst = append(dst, byte(n))
	default:
		dst = binary.LittleEndian.AppendUint16(append(dst, valueLong), uint16(n))
	}
	return append(append(dst, r.Key...), r.Value...)
}

// recordSpan is where in a batch's bytes a record's key and value stand.
type recordSpan struct {
	key, value, end int
	deleted         bool
}

// nextRecord reads the record at off. more is false at the end of the batch.
// Only what appendRecord writes is accepted, so that every batch has one form.
func nextRecord(b []byte, off int) (r recordSpan, more bool, err error) {
	if off == len(b) || b[off] == 0 {
		if !allZero(b[off:]) {
			return r, false, errRecords
		}
		return r, false, nil
	}
	keyLen := int(b[off])
	if off+2 > len(b) {
		return r, false, errRecords
	}
	n := int(b[off+1])
	r.key = off + 2
	switch n {
	case valueDeleted:
		r.deleted, n = true, 0
	case valueLong:
		if off+4 > len(b) {
			return r, false, errRecords
		}
		n = int(binary.LittleEndian.Uint16(b[off+2:]))
		r.key = off + 4
		if n < valueDeleted {
			return r, false, errRecords
		}
	}
	r.value = r.key + keyLen
	r.end = r.value + n
	if r.end > len(b) {
		return r, false, errRecords
	}
	return r, true, nil
}
