package bus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	protocolVersion = 1

	// maxTransfer is the longest message of the kernel's i2c-dev
	// (drivers/i2c/i2c-dev.c), so also of a simulated bus.
	maxTransfer = 8192
	maxText     = 1024

	requestHeader  = 8
	responseHeader = 4
)

const (
	opTransfer = 1
	opSetSpeed = 2
)

// request is one frame from client to server.
type request struct {
	op   byte
	addr uint16
	w    []byte
	r    int // bytes to read
}

// response is one frame from server to client. data is what was read, or the
// text of an error.
type response struct {
	class byte
	data  []byte
}

// errProtocol is returned for a frame that breaks a rule of the protocol; the
// connection is of no more use.
var errProtocol = errors.New("not protocol version 1 of a remote bus")

func (q request) append(p []byte) []byte {
	p = append(p, protocolVersion, q.op)
	p = binary.BigEndian.AppendUint16(p, q.addr)
	p = binary.BigEndian.AppendUint16(p, uint16(len(q.w)))
	p = binary.BigEndian.AppendUint16(p, uint16(q.r))
	return append(p, q.w...)
}

// readRequest reads one request. io.EOF means that the stream ended between
// two frames.
func readRequest(from io.Reader) (request, error) {
	var h [requestHeader]byte
	if _, err := io.ReadFull(from, h[:]); err != nil {
		return request{}, err
	}
	q := request{op: h[1], addr: binary.BigEndian.Uint16(h[2:]), r: int(binary.BigEndian.Uint16(h[6:]))}
	w := int(binary.BigEndian.Uint16(h[4:]))
	switch {
	case h[0] != protocolVersion:
		return request{}, fmt.Errorf("%w: version byte %d", errProtocol, h[0])
	case w > maxTransfer || q.r > maxTransfer:
		return request{}, fmt.Errorf("%w: %d bytes to write, %d to read, at most %d", errProtocol, w, q.r, maxTransfer)
	case q.op == opTransfer:
	case q.op == opSetSpeed && w == 8 && q.r == 0 && q.addr == 0:
	default:
		return request{}, fmt.Errorf("%w: operation %d with address 0x%02x, %d bytes to write, %d to read", errProtocol, q.op, q.addr, w, q.r)
	}
	q.w = make([]byte, w)
	return q, unexpected(readFull(from, q.w))
}

func (a response) append(p []byte) []byte {
	p = append(p, protocolVersion, a.class)
	p = binary.BigEndian.AppendUint16(p, uint16(len(a.data)))
	return append(p, a.data...)
}

// readResponse reads the response to a request that asked for r bytes.
func readResponse(from io.Reader, r int) (response, error) {
	var h [responseHeader]byte
	if err := readFull(from, h[:]); err != nil {
		return response{}, unexpected(err)
	}
	a := response{class: h[1]}
	n := int(binary.BigEndian.Uint16(h[2:]))
	switch {
	case h[0] != protocolVersion:
		return response{}, fmt.Errorf("%w: version byte %d", errProtocol, h[0])
	case int(a.class) >= len(classes):
		return response{}, fmt.Errorf("%w: class %d", errProtocol, a.class)
	case a.class == classDone && n != r:
		return response{}, fmt.Errorf("%w: %d bytes read, asked for %d", errProtocol, n, r)
	case a.class != classDone && n > maxText:
		return response{}, fmt.Errorf("%w: text of %d bytes, at most %d", errProtocol, n, maxText)
	}
	a.data = make([]byte, n)
	return a, unexpected(readFull(from, a.data))
}

func readFull(from io.Reader, p []byte) error {
	_, err := io.ReadFull(from, p)
	return err
}

// unexpected is for the middle of a conversation, where an end is an error.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// classes are the classes of error in the order of their byte; the last is an
// ErrIO that a retry can not help.
var classes = []error{nil, ErrNACK, ErrArbitration, ErrStuck, ErrWedged, ErrIO, ErrIO}

const (
	classDone  = 0
	classFinal = 6
)

// encodeError gives the response for what a bus returned.
func encodeError(err error) response {
	err = class(err)
	text := err.Error()
	a := response{class: classFinal, data: []byte(text[:min(len(text), maxText)])}
	if !temporary(err) && !errors.Is(err, ErrWedged) {
		return a
	}
	for i := range classes[:classFinal] {
		if i != classDone && errors.Is(err, classes[i]) {
			a.class = byte(i)
			break
		}
	}
	return a
}

// remoteError is an error of the bus at the other end: the text it had there,
// which names its class already, in the class it had there.
type remoteError struct {
	class error
	text  string
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.class }

// err is the inverse of encodeError; nil for a transfer that was done.
func (a response) err() error {
	if a.class == classDone {
		return nil
	}
	err := error(&remoteError{classes[a.class], string(a.data)})
	if a.class == classFinal {
		err = final(err)
	}
	return err
}
