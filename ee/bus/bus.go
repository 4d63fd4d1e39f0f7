package bus

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"periph.io/x/conn/v3/i2c"
	"periph.io/x/host/v3/sysfs"
)

// ErrSimulated is returned by Open for a bus of the simulator where the
// configuration does not say that the enclosure is simulated.
var ErrSimulated = errors.New("a bus of the simulator, and the configuration does not say simulated = true")

// Open opens the bus called name: /dev/i2c-N, or unix:PATH and tcp:HOST:PORT
// where simulated is true. A bus of the simulator is dialled at the first
// transfer. Hand the result to Own: its Tx may block.
func Open(name string, simulated bool) (i2c.BusCloser, error) {
	fail := func(err error) (i2c.BusCloser, error) {
		return nil, &Error{Op: "open", Bus: name, Err: err}
	}
	network, addr, remote := splitRemote(name)
	switch {
	case remote && !simulated:
		return fail(final(ErrSimulated))
	case network == "tcp":
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
			return fail(final(fmt.Errorf("want tcp:HOST:PORT")))
		}
		return NewRemote(network, addr), nil
	case network == "unix":
		if addr == "" {
			return fail(final(fmt.Errorf("want unix:PATH")))
		}
		return NewRemote(network, addr), nil
	}
	n, err := busNumber(name)
	if err != nil {
		return fail(final(err))
	}
	// Only this one adapter: host.Init registers every pin of the board, and
	// costs 0.2 s on an AST2600 (docs: bmc-board).
	b, err := sysfs.NewI2C(n)
	if err != nil {
		return fail(class(err))
	}
	return b, nil
}

func splitRemote(name string) (network, addr string, ok bool) {
	network, addr, ok = strings.Cut(name, ":")
	if ok && (network == "unix" || network == "tcp") {
		return network, addr, true
	}
	return "", "", false
}

// busNumber reads N of /dev/i2c-N, in the one way the kernel writes it.
func busNumber(name string) (int, error) {
	digits, ok := strings.CutPrefix(name, "/dev/i2c-")
	n, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil || strconv.FormatUint(n, 10) != digits {
		return 0, fmt.Errorf("want /dev/i2c-N, unix:PATH or tcp:HOST:PORT")
	}
	return int(n), nil
}
