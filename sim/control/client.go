package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"baton/pcie"
)

// Client speaks to the control socket of a simulator. It is safe for
// concurrent use. What its methods do is what those of package sim with the
// same names do; errors.Is finds sim.ErrServerOff, ErrServerHung,
// ErrNotReached, ErrNoVM, ErrPowerOff and ErrSwitch in their errors.
type Client struct {
	path string
	http http.Client
}

// Dial returns a client of the control socket at path. It connects when it is
// first used.
func Dial(path string) *Client {
	return &Client{path, http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}},
	}}
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// State reads the world.
func (c *Client) State(ctx context.Context) (s State, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/state", nil, &s)
	return s, err
}

// Record reads what the model remembers.
func (c *Client) Record(ctx context.Context) (r Record, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/record", nil, &r)
	return r, err
}

// PowerCut takes the enclosure's power, or plans it.
func (c *Client) PowerCut(ctx context.Context, p PowerCut) error {
	return c.post(ctx, "/v1/power/cut", p)
}

// PowerOn gives it back.
func (c *Client) PowerOn(ctx context.Context) error { return c.post(ctx, "/v1/power/on", struct{}{}) }

// Server does something to a server: hang, resume, panic-reboot, power-loss,
// power-on, link-loss, link-restore.
func (c *Client) Server(ctx context.Context, server, what string) error {
	return c.post(ctx, path("servers", server), do{Do: what})
}

// StartVM starts a VM with the devices of slots.
func (c *Client) StartVM(ctx context.Context, server, vm string, o StartVM) error {
	return c.post(ctx, path("servers", server, "vms", vm, "start"), o)
}

// VM does something to a running VM: stop, kill (its QEMU), reboot (its guest).
func (c *Client) VM(ctx context.Context, server, vm, what string) error {
	return c.post(ctx, path("servers", server, "vms", vm), do{Do: what})
}

// Reset sends a reset from server to the slot's device.
func (c *Client) Reset(ctx context.Context, server, slot string) error {
	return c.post(ctx, path("servers", server, "slots", slot), do{Do: "reset"})
}

// ReadMem reads n bytes of device memory as server.
func (c *Client) ReadMem(ctx context.Context, server, slot string, off int64, n int) ([]byte, error) {
	var m memory
	if err := c.call(ctx, http.MethodPost, path("servers", server, "slots", slot, "read"), memory{Offset: off, Length: n}, &m); err != nil {
		return nil, err
	}
	if len(m.Data) != n {
		return nil, fmt.Errorf("simulator: %d bytes of device memory, asked for %d", len(m.Data), n)
	}
	return m.Data, nil
}

// WriteMem writes device memory as server.
func (c *Client) WriteMem(ctx context.Context, server, slot string, off int64, p []byte) error {
	return c.post(ctx, path("servers", server, "slots", slot, "write"), memory{Offset: off, Data: p})
}

// DVSEC reads what the slot's port shows to server in config space, once.
func (c *Client) DVSEC(ctx context.Context, server, slot string) (pcie.DVSEC, error) {
	var m memory
	if err := c.call(ctx, http.MethodGet, path("servers", server, "slots", slot, "dvsec"), nil, &m); err != nil {
		return pcie.DVSEC{}, err
	}
	return pcie.DecodeDVSEC(m.Data)
}

// RestartEngine makes the slot's engine restart by itself.
func (c *Client) RestartEngine(ctx context.Context, slot string) error {
	return c.slot(ctx, slot, "restart")
}

// KillEngine makes it never answer again, until ReviveEngine.
func (c *Client) KillEngine(ctx context.Context, slot string) error { return c.slot(ctx, slot, "kill") }

// ReviveEngine puts a dead engine back.
func (c *Client) ReviveEngine(ctx context.Context, slot string) error {
	return c.slot(ctx, slot, "revive")
}

// Reseat takes the slot's device out and puts it back: it loses its power.
func (c *Client) Reseat(ctx context.Context, slot string) error { return c.slot(ctx, slot, "reseat") }

func (c *Client) slot(ctx context.Context, slot, what string) error {
	return c.post(ctx, path("slots", slot), do{Do: what})
}

// FlipBit inverts one bit of a chip.
func (c *Client) FlipBit(ctx context.Context, chip string, off int64, bit uint) error {
	return c.post(ctx, path("chips", chip), do{Do: "flip-bit", Offset: off, Bit: bit})
}

// SetDead takes a chip off its bus or puts it back.
func (c *Client) SetDead(ctx context.Context, chip string, dead bool) error {
	return c.post(ctx, path("chips", chip), do{Do: "dead", On: dead})
}

// SetWriteCycle sets how long a chip's write cycles take.
func (c *Client) SetWriteCycle(ctx context.Context, chip string, t time.Duration) error {
	return c.post(ctx, path("chips", chip), do{Do: "write-cycle", Time: Duration(t)})
}

// ReadChip reads n bytes of a chip without a transfer.
func (c *Client) ReadChip(ctx context.Context, chip string, off int64, n int) ([]byte, error) {
	var m memory
	err := c.call(ctx, http.MethodPost, path("chips", chip, "read"), memory{Offset: off, Length: n}, &m)
	return m.Data, err
}

// WriteChip changes a chip without a write cycle.
func (c *Client) WriteChip(ctx context.Context, chip string, off int64, p []byte) error {
	return c.post(ctx, path("chips", chip, "write"), memory{Offset: off, Data: p})
}

// Inject adds a fault to a bus.
func (c *Client) Inject(ctx context.Context, bus string, f Fault) error {
	return c.post(ctx, path("buses", bus, "faults"), f)
}

// ClearFaults takes all faults of a bus away.
func (c *Client) ClearFaults(ctx context.Context, bus string) error {
	return c.post(ctx, path("buses", bus, "clear"), struct{}{})
}

// Join makes a switch port a member of a VLAN.
func (c *Client) Join(ctx context.Context, port string, vlan uint16) error {
	return c.post(ctx, path("switch", port), do{Do: "join", VLAN: vlan})
}

// Leave ends a switch port's membership of a VLAN.
func (c *Client) Leave(ctx context.Context, port string, vlan uint16) error {
	return c.post(ctx, path("switch", port), do{Do: "leave", VLAN: vlan})
}

// Membership lists the VLANs of a switch port.
func (c *Client) Membership(ctx context.Context, port string) ([]uint16, error) {
	var v vlans
	err := c.call(ctx, http.MethodGet, path("switch", port), nil, &v)
	return v.VLANs, err
}

func path(parts ...string) string {
	var p strings.Builder
	p.WriteString("/v1")
	for _, s := range parts {
		p.WriteString("/" + url.PathEscape(s))
	}
	return p.String()
}

func (c *Client) post(ctx context.Context, path string, in any) error {
	return c.call(ctx, http.MethodPost, path, in, &struct{}{})
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var send io.Reader
	if in != nil {
		p, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("simulator: %w", err)
		}
		send = bytes.NewReader(p)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://simulator"+path, send)
	if err != nil {
		return fmt.Errorf("simulator: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("simulator at %s: %w", c.path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refusal(resp)
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("simulator: %s %s: %w", method, path, err)
	}
	return nil
}

func refusal(resp *http.Response) error {
	var f failure
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&f); err != nil || f.Error == "" {
		return fmt.Errorf("simulator: %s", resp.Status)
	}
	return &refusedError{f.Error, codes[f.Code]}
}

// refusedError has the text of the other end and the error it was there.
type refusedError struct {
	text string
	is   error // nil = none that has a code
}

func (e *refusedError) Error() string { return e.text }
func (e *refusedError) Unwrap() error { return e.is }
