// Package spidev opens SPI chip selects of the kernel's spidev, in mode 0, for
// nvm.SPI25.
package spidev

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"periph.io/x/conn/v3/physic"
	"periph.io/x/conn/v3/spi"
	"periph.io/x/host/v3/sysfs"
)

// ErrMemOnly is returned when the controller does spi-mem only, and so none of
// spidev's transfers: Aspeed's do, and others that are made for NOR flash.
var ErrMemOnly = errors.New("this SPI controller serves NOR flash alone (spi-mem), and no spidev: use the flash through its MTD partition, {\"mtd\": ...}")

// Port is one chip select, /dev/spidevB.C. It is opened when it first can be:
// drivers may load after the agent. It is for one goroutine, but for Close.
type Port struct {
	path  string
	speed physic.Frequency
	open  func(bus, sel int) (spi.PortCloser, error)

	mu    sync.Mutex
	port  spi.PortCloser // nil = not open yet
	conn  spi.Conn
	err   error // why
	tried time.Time
}

// openEvery is how often opening is tried again.
const openEvery = time.Second

// New names the chip select at path, with the speed of its clock. It opens
// nothing; a path of another form is an error at every transfer.
func New(path string, speed physic.Frequency) *Port {
	return &Port{path: path, speed: speed, open: func(bus, sel int) (spi.PortCloser, error) {
		// Only this one: host.Init registers every pin of the board.
		return sysfs.NewSPI(bus, sel)
	}}
}

// String is the path.
func (p *Port) String() string { return p.path }

// Tx is that of nvm.SPIConn. It returns ErrMemOnly or what the system says.
func (p *Port) Tx(w, r []byte) error {
	conn, err := p.connect()
	if err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	if err := conn.Tx(w, r); err != nil {
		return fmt.Errorf("%s: %w", p.path, classify(err))
	}
	return nil
}

// Close closes what was opened.
func (p *Port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.port == nil {
		return nil
	}
	port := p.port
	p.port, p.conn, p.err, p.tried = nil, nil, errors.New("closed"), time.Now()
	return port.Close()
}

func (p *Port) connect() (spi.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		return p.conn, nil
	}
	if p.err != nil && time.Since(p.tried) < openEvery {
		return nil, p.err
	}
	p.tried = time.Now()
	p.err = p.opened()
	return p.conn, p.err
}

func (p *Port) opened() error {
	bus, sel, err := numbers(p.path)
	if err != nil {
		return err
	}
	port, err := p.open(bus, sel)
	if err != nil {
		return err
	}
	conn, err := port.Connect(p.speed, spi.Mode0, 8)
	if err != nil {
		return errors.Join(classify(err), port.Close())
	}
	p.port, p.conn = port, conn
	return nil
}

func numbers(path string) (bus, sel int, err error) {
	rest, ok := strings.CutPrefix(path, "/dev/spidev")
	b, c, ok2 := strings.Cut(rest, ".")
	bus, err = strconv.Atoi(b)
	sel, err2 := strconv.Atoi(c)
	if !ok || !ok2 || err != nil || err2 != nil || bus < 0 || sel < 0 {
		return 0, 0, fmt.Errorf("%q: want /dev/spidevB.C", path)
	}
	return bus, sel, nil
}

// classify knows ENOTSUPP (524 of include/linux/errno.h, no errno of user
// space's), which the kernel gives where a controller has no transfers; periph
// tells errors in words only (v3.8.5, sysfs/spi.go).
func classify(err error) error {
	if strings.HasSuffix(err.Error(), "errno 524") {
		return fmt.Errorf("%w: %w", ErrMemOnly, err)
	}
	return err
}
