package mgmt

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Client asks an agent over its Unix socket. It is safe for concurrent use.
type Client struct {
	socket   string
	http     http.Client
	patience time.Duration // with who only looks; agents answer within half of it
}

// UnreachableError is returned when no answer came: nobody listens, the
// connection broke, the context ended. What was asked may have been done.
type UnreachableError struct {
	Socket string
	Err    error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no answer from the agent at %s: %v", e.Socket, e.Err)
}

// Unwrap gives the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Dial returns a client for the agent at socket. It connects when it is asked
// something.
func Dial(socket string) *Client {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	return &Client{socket: socket, patience: time.Minute, http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
		MaxIdleConns:    2,
		IdleConnTimeout: 30 * time.Second,
	}}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// All methods below block until the answer is there or ctx ends; those that only
// look, for a minute at most. Their errors
// are *Problem, where the agent refused or failed, or *UnreachableError.

// Enclosure reads all there is to see.
func (c *Client) Enclosure(ctx context.Context) (Enclosure, error) {
	return get[Enclosure](ctx, c, "/v1/enclosure")
}

// Slots reads all slots.
func (c *Client) Slots(ctx context.Context) ([]Slot, error) {
	v, err := get[Slots](ctx, c, "/v1/slots")
	return v.Slots, err
}

// Slot reads one slot.
func (c *Client) Slot(ctx context.Context, slot string) (Slot, error) {
	return get[Slot](ctx, c, "/v1/slots/"+url.PathEscape(slot))
}

// Verdict has the engine read, and judges whether memory was preserved.
func (c *Client) Verdict(ctx context.Context, slot string) (Verdict, error) {
	return get[Verdict](ctx, c, "/v1/slots/"+url.PathEscape(slot)+"/verdict")
}

// Hosts reads all hosts.
func (c *Client) Hosts(ctx context.Context) ([]Host, error) {
	v, err := get[Hosts](ctx, c, "/v1/hosts")
	return v.Hosts, err
}

// Host reads one host.
func (c *Client) Host(ctx context.Context, host string) (Host, error) {
	return get[Host](ctx, c, "/v1/hosts/"+url.PathEscape(host))
}

// Moves reads the moves that are remembered.
func (c *Client) Moves(ctx context.Context) ([]Move, error) {
	v, err := get[Moves](ctx, c, "/v1/moves")
	return v.Moves, err
}

// MoveByID reads one move.
func (c *Client) MoveByID(ctx context.Context, id string) (Move, error) {
	return get[Move](ctx, c, "/v1/moves/"+url.PathEscape(id))
}

// Move asks for a move and waits for its end. A move that could not be done
// and was undone, held or blocked is no error: State says so. If ctx ends
// first, the move goes on.
func (c *Client) Move(ctx context.Context, r MoveRequest) (Move, error) {
	return post[Move](ctx, c, "/v1/moves", r)
}

// Attach asks for slots for a VM on its host.
func (c *Client) Attach(ctx context.Context, slot string, r AttachRequest) (Attached, error) {
	return post[Attached](ctx, c, slotPath(slot, "attach"), r)
}

// Arm prepares a slot for a move.
func (c *Client) Arm(ctx context.Context, slot string, r ArmRequest) (Arming, error) {
	return post[Arming](ctx, c, slotPath(slot, "arm"), r)
}

// Disarm takes an arming back.
func (c *Client) Disarm(ctx context.Context, slot string, r DisarmRequest) error {
	return c.do(ctx, http.MethodPost, slotPath(slot, "disarm"), r, nil)
}

// Ack says that the VM runs and that the verdict was acted on.
func (c *Client) Ack(ctx context.Context, slot string, r AckRequest) error {
	return c.do(ctx, http.MethodPost, slotPath(slot, "ack"), r, nil)
}

// Alive posts a proof of life.
func (c *Client) Alive(ctx context.Context, slot string, r AliveRequest) error {
	return c.do(ctx, http.MethodPost, slotPath(slot, "alive"), r, nil)
}

// Release ends a VM's use of slots.
func (c *Client) Release(ctx context.Context, slot string, r ReleaseRequest) error {
	return c.do(ctx, http.MethodPost, slotPath(slot, "release"), r, nil)
}

// Fence cuts a host from all its slots.
func (c *Client) Fence(ctx context.Context, host string) (Fenced, error) {
	return post[Fenced](ctx, c, "/v1/hosts/"+url.PathEscape(host)+"/fence", nil)
}

// Unfence lifts the fence with this epoch.
func (c *Client) Unfence(ctx context.Context, host string, epoch uint32) error {
	return c.do(ctx, http.MethodPost, "/v1/hosts/"+url.PathEscape(host)+"/unfence", UnfenceRequest{Epoch: epoch}, nil)
}

// Drain moves or releases all slots of a host and waits for its end, which
// may be minutes. A set that failed is no error: Done and Sets say so. If ctx
// ends first, the drain goes on.
func (c *Client) Drain(ctx context.Context, host string, r DrainRequest) (Drained, error) {
	return post[Drained](ctx, c, "/v1/hosts/"+url.PathEscape(host)+"/drain", r)
}

// AdoptionOf looks who is in a slot, and what adopting them would do.
func (c *Client) AdoptionOf(ctx context.Context, slot string) (Adoption, error) {
	return get[Adoption](ctx, c, slotPath(slot, "adopt"))
}

// Adopt takes the parts that token stands for as the slot's.
func (c *Client) Adopt(ctx context.Context, slot, token string) (Adoption, error) {
	return post[Adoption](ctx, c, slotPath(slot, "adopt"), AdoptRequest{Token: token})
}

// Locate switches a slot's locate LED.
func (c *Client) Locate(ctx context.Context, slot string, on bool) error {
	return c.do(ctx, http.MethodPost, slotPath(slot, "locate"), LocateRequest{On: on}, nil)
}

// Power switches the power of the device in a slot that is cut.
func (c *Client) Power(ctx context.Context, slot string, r PowerRequest) error {
	return c.do(ctx, http.MethodPost, slotPath(slot, "power"), r, nil)
}

// Reset has the engine reset the device. What is in its memory is lost.
func (c *Client) Reset(ctx context.Context, slot string, r ResetRequest) error {
	return c.do(ctx, http.MethodPost, slotPath(slot, "reset"), r, nil)
}

// Resolve lets the blocked set of a move go on without some of its slots.
func (c *Client) Resolve(ctx context.Context, move string, r ResolveRequest) (Move, error) {
	return post[Move](ctx, c, "/v1/moves/"+url.PathEscape(move)+"/resolve", r)
}

// ForceFree makes the records of a slot say free, whatever the hardware does.
// typed is the slot's name as a person typed it.
func (c *Client) ForceFree(ctx context.Context, slot, typed string) error {
	return c.Release(ctx, slot, ReleaseRequest{Mode: "force-free", Typed: typed})
}

// Config reads the configuration that is in force.
func (c *Client) Config(ctx context.Context) (Config, error) {
	return get[Config](ctx, c, "/v1/config")
}

// ApplyConfig replaces the configuration. What is wrong with it is in the
// Problem's Errors.
func (c *Client) ApplyConfig(ctx context.Context, r ConfigRequest) (ConfigApplied, error) {
	return post[ConfigApplied](ctx, c, "/v1/config", r)
}

// ConfirmConfig keeps the network that is on trial.
func (c *Client) ConfirmConfig(ctx context.Context) (Config, error) {
	return post[Config](ctx, c, "/v1/config/confirm", nil)
}

// RevertConfig puts the configuration before the trial back at once.
func (c *Client) RevertConfig(ctx context.Context) (Config, error) {
	return post[Config](ctx, c, "/v1/config/revert", nil)
}

// Backup reads what is needed to set up a new controller.
func (c *Client) Backup(ctx context.Context) (Backup, error) {
	return get[Backup](ctx, c, "/v1/backup")
}

// Restore takes a backup over.
func (c *Client) Restore(ctx context.Context, r RestoreRequest) (Restored, error) {
	return post[Restored](ctx, c, "/v1/backup", r)
}

// CheckNVM looks for what is wrong with the store and the config blocks.
func (c *Client) CheckNVM(ctx context.Context) (NVMReport, error) {
	return get[NVMReport](ctx, c, "/v1/nvm/check")
}

// RepairNVM does what the report that r.Token stands for says.
func (c *Client) RepairNVM(ctx context.Context, r RepairRequest) (NVMReport, error) {
	return post[NVMReport](ctx, c, "/v1/nvm/repair", r)
}

// DumpNVM reads the medium of the store, or of a slot; of is "store" or a
// slot's name.
func (c *Client) DumpNVM(ctx context.Context, of string) (NVMDump, error) {
	return get[NVMDump](ctx, c, "/v1/nvm/dump?of="+url.QueryEscape(of))
}

// Check has everything looked at that can be without changing it. It may take
// half a minute where a bus does not answer.
func (c *Client) Check(ctx context.Context) (Check, error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	return post[Check](ctx, c, "/v1/check", nil)
}

// NoteConsole tells what happened at the serial console.
func (c *Client) NoteConsole(ctx context.Context, what string) error {
	return c.do(ctx, http.MethodPost, "/v1/console", ConsoleNote{What: what}, nil)
}

// Audit reads the records that the store keeps.
func (c *Client) Audit(ctx context.Context) (Audit, error) {
	return get[Audit](ctx, c, "/v1/audit")
}

// Metrics reads the metrics, in Prometheus text format.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	var text []byte
	err := c.do(ctx, http.MethodGet, "/v1/metrics", nil, &text)
	return string(text), err
}

// Events reads the events after the one with ID after; "" = all that are kept.
func (c *Client) Events(ctx context.Context, after string) (Events, error) {
	path := "/v1/events"
	if after != "" {
		path += "?after=" + url.QueryEscape(after)
	}
	return get[Events](ctx, c, path)
}

// Watch calls fn for each event after the one with ID after, until ctx ends,
// fn returns an error or the stream breaks: then call it again with the last
// ID that was seen.
func (c *Client) Watch(ctx context.Context, after string, fn func(Event) error) error {
	req, err := c.request(ctx, http.MethodGet, "/v1/events", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", MediaTypeStream)
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return &UnreachableError{c.socket, cause(err)}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return problem(resp)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4<<10), MaxBody)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue // id is in data as well; comments keep the stream alive
		}
		var e Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return &UnreachableError{c.socket, fmt.Errorf("event: %w", err)}
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	err = lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return &UnreachableError{c.socket, err}
}

func slotPath(slot, verb string) string { return "/v1/slots/" + url.PathEscape(slot) + "/" + verb }

func get[T any](ctx context.Context, c *Client, path string) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	var v T
	err := c.do(ctx, http.MethodGet, path, nil, &v)
	return v, err
}

func post[T any](ctx context.Context, c *Client, path string, body any) (T, error) {
	var v T
	err := c.do(ctx, http.MethodPost, path, body, &v)
	return v, err
}

func (c *Client) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var r io.Reader
	if body != nil {
		p, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		r = bytes.NewReader(p)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://baton"+path, r)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", MediaTypeJSON)
	}
	return req, nil
}

func (c *Client) do(ctx context.Context, method, path string, body, answer any) error {
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return &UnreachableError{c.socket, cause(err)}
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return problem(resp)
	}
	switch answer := answer.(type) {
	case nil:
		return nil
	case *[]byte: // an answer that is no JSON
		*answer, err = io.ReadAll(io.LimitReader(resp.Body, MaxAnswer))
		if err != nil {
			return &UnreachableError{c.socket, fmt.Errorf("answer: %w", err)}
		}
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, MaxAnswer)).Decode(answer); err != nil {
		return &UnreachableError{c.socket, fmt.Errorf("answer: %w", err)}
	}
	return nil
}

// problem reads the answer of a request that was not granted. What is not a
// problem document did not come from an agent.
func problem(resp *http.Response) error {
	var p Problem
	if err := json.NewDecoder(io.LimitReader(resp.Body, MaxBody)).Decode(&p); err != nil || p.Code == "" {
		return &Problem{Title: "unknown answer", Status: resp.StatusCode, Code: "unknown", Detail: "answer " + resp.Status + " without a problem document: is this a baton agent?"}
	}
	return &p
}

// cause drops the URL, which says nothing of a socket.
func cause(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
