package main

import (
	"io"
	"os"
	"sync"
)

// logMax is the size, in bytes, at which a log becomes NAME.1 and starts
// again. The root file system is RAM: two of these are all a log may take.
const logMax = 256 << 10

// keepLog appends what it reads to the file name. It keeps reading where it
// cannot write, so that a full file system does not stop the writer.
func keepLog(name string, r io.ReadCloser) {
	defer r.Close()
	k := &keeper{name: name}
	defer k.close()
	p := make([]byte, 4096)
	for {
		n, err := r.Read(p)
		if n > 0 {
			k.keep(p[:n])
		}
		if err != nil {
			return
		}
	}
}

// keeper is the writing end of a log.
type keeper struct {
	name string

	mu   sync.Mutex
	f    *os.File // nil = not open
	size int64
}

// keep appends to the log, if that is possible.
func (k *keeper) keep(p []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.f == nil {
		k.f, k.size = openLog(k.name)
	}
	if k.f == nil {
		return
	}
	n, err := k.f.Write(p)
	if k.size += int64(n); k.size >= logMax || err != nil {
		k.f.Close()
		k.f = nil
	}
}

func (k *keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.f != nil {
		k.f.Close()
		k.f = nil
	}
}

// openLog opens a log for appending, or nil where that is not possible.
func openLog(name string) (*os.File, int64) {
	if info, err := os.Stat(name); err == nil && info.Size() >= logMax {
		if os.Rename(name, name+".1") != nil {
			_ = os.Remove(name)
		}
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, 0
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0
	}
	return f, info.Size()
}
