// Package bus opens I2C buses by name, gives each one owner, and says what
// went wrong on them in a few classes of error.
//
// Names: /dev/i2c-5 is the kernel's bus 5. unix:PATH and tcp:HOST:PORT reach
// a bus of the simulator; they are refused unless the configuration says that
// the enclosure is simulated.
//
// # Protocol of a remote bus, version 1
//
// A client sends requests over a stream and gets one response to each, in
// order. All integers are big-endian. Nothing is negotiated: whoever meets
// another version byte, an unknown operation or a length above 8192 closes
// the connection. A request whose response did not arrive may or may not have
// been carried out, as on a real bus whose adapter failed; it is not sent
// again.
//
// Request, 8 bytes and what is written:
//
//	0  1  version, 1
//	1  1  operation: 1 transfer, 2 set speed
//	2  2  address of the chip (0 for set speed)
//	4  2  W, bytes to write, 0..8192
//	6  2  R, bytes to read, 0..8192
//	8  W  the bytes; for set speed 8 bytes, the frequency in microhertz
//
// W and R both above 0 is one combined transfer with a repeated START.
//
// Response, 4 bytes and what was read:
//
//	0  1  version, 1
//	1  1  class: 0 done; 1 no acknowledge; 2 arbitration lost; 3 stuck;
//	      4 wedged; 5 I/O error; 6 I/O error that a retry can not help
//	2  2  L, length of what follows
//	4  L  class 0: the R bytes that were read; else a text of up to 1024 bytes
//
// The rule for changes: these bytes are frozen in testdata/v1; another layout
// is another version byte.
package bus
