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
	socket string
	http   http.Client
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
	return &Client{socket: socket, http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
		MaxIdleConns:    2,
		IdleConnTimeout: 30 * time.Second,
	}}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// All methods below block until the answer is there or ctx ends. Their errors
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
	if answer == nil {
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
