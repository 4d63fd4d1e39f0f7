package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
)

// training is a job's state after Step steps. Every step's model depends on
// all that came before, so a job that went on from a wrong state ends with
// another model than one that never stopped.
type training struct {
	Run   uint64 // random, of this job: what another one left in the memory is not taken for ours
	Step  uint64
	Model [sha256.Size]byte
}

// next does one step.
func (t training) next() training {
	t.Step++
	t.Model = sha256.Sum256(binary.LittleEndian.AppendUint64(t.Model[:], t.Step))
	return t
}

// The record of a training in device memory, little-endian:
//
//	 0  4  magic "BTJB"
//	 4  4  layout version, 1
//	 8  8  run
//	16  8  step
//	24 32  model
//	56  4  zero
//	60  4  CRC-32C over the 60 bytes before
//
// There are two, one behind the other: odd steps are written to the second,
// so that a death within a write leaves the step before.
const (
	recordMagic   = "BTJB"
	recordVersion = 1
	recordSize    = 64
	memorySize    = 2 * recordSize
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// place is where in device memory the record of t belongs.
func (t training) place() int64 { return int64(t.Step%2) * recordSize }

func (t training) record() []byte {
	le := binary.LittleEndian
	p := make([]byte, 0, recordSize)
	p = append(p, recordMagic...)
	p = le.AppendUint32(p, recordVersion)
	p = le.AppendUint64(p, t.Run)
	p = le.AppendUint64(p, t.Step)
	p = append(p, t.Model[:]...)
	p = le.AppendUint32(p, 0)
	return le.AppendUint32(p, crc32.Checksum(p, castagnoli))
}

// Why there is nothing to go on from in device memory.
var (
	errMemoryZero    = errors.New("device memory is all zero: it was reset")
	errMemoryForeign = errors.New("device memory has no record of a training")
	errMemoryOther   = errors.New("device memory has the record of another job")
)

func parseRecord(p []byte) (training, error) {
	le := binary.LittleEndian
	if string(p[:4]) != recordMagic || le.Uint32(p[4:]) != recordVersion || le.Uint32(p[60:]) != crc32.Checksum(p[:60], castagnoli) {
		return training{}, errMemoryForeign
	}
	return training{Run: le.Uint64(p[8:]), Step: le.Uint64(p[16:]), Model: [sha256.Size]byte(p[24:56])}, nil
}

// newest finds the newest state of run in the first memorySize bytes of device
// memory.
func newest(mem []byte, run uint64) (training, error) {
	err := errMemoryForeign
	if zero(mem) {
		err = errMemoryZero
	}
	var best training
	for off := 0; off < memorySize; off += recordSize {
		t, e := parseRecord(mem[off : off+recordSize])
		switch {
		case e != nil:
		case t.Run != run:
			if best.Run != run {
				err = errMemoryOther
			}
		case best.Run != run || t.Step > best.Step:
			best, err = t, nil
		}
	}
	return best, err
}

func zero(p []byte) bool {
	for _, c := range p {
		if c != 0 {
			return false
		}
	}
	return true
}

// saveCheckpoint replaces the file at path as a whole, or not at all.
func saveCheckpoint(path string, t training) error {
	p, err := json.Marshal(checkpointFile{t.Run, t.Step, t.Model[:]})
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(p, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

type checkpointFile struct {
	Run   uint64 `json:"run"`
	Step  uint64 `json:"step"`
	Model []byte `json:"model"`
}

// loadCheckpoint reads the file at path; found is false where there is none.
func loadCheckpoint(path string) (t training, found bool, err error) {
	p, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return training{}, false, nil
	}
	if err != nil {
		return training{}, false, err
	}
	var c checkpointFile
	if err := json.Unmarshal(p, &c); err != nil {
		return training{}, false, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	if len(c.Model) != sha256.Size {
		return training{}, false, fmt.Errorf("checkpoint %s: model has %d bytes, want %d", path, len(c.Model), sha256.Size)
	}
	return training{c.Run, c.Step, [sha256.Size]byte(c.Model)}, true, nil
}
