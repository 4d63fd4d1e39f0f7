package main

import (
	"io"
	"os"
)

// logMax is the size, in bytes, at which a log becomes NAME.1 and starts
// again. The root file system is RAM: two of these are all a log may take.
const logMax = 256 << 10

// keepLog appends what it reads to the file name. It keeps reading where it
// cannot write, so that a full file system does not stop the writer.
func keepLog(name string, r io.ReadCloser) {
	defer r.Close()
	var f *os.File
	var size int64
	defer func() {
		if f != nil {
			f.Close()
		}
	}()
	p := make([]byte, 4096)
	for {
		n, err := r.Read(p)
		if n > 0 {
			if f == nil {
				f, size = openLog(name)
			}
			if f != nil {
				m, werr := f.Write(p[:n])
				if size += int64(m); size >= logMax || werr != nil {
					f.Close()
					f = nil
				}
			}
		}
		if err != nil {
			return
		}
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
