package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	neturl "net/url"
	"os"
	"strings"
	"time"

	"baton/images/bank"
)

// Bounds of a download. The whole of it may take fetchMax; a server that sends
// nothing for fetchStall is given up.
const (
	fetchMax   = 30 * time.Minute
	fetchStall = 30 * time.Second
)

// fetchImage reads an image into memory, at most room bytes and one more.
func (t *tool) fetchImage(ctx context.Context, from string, room int64) ([]byte, error) {
	switch scheme, _, isURL := strings.Cut(from, "://"); {
	case from == "-" && t.person != nil:
		return nil, &usageError{"-: stdin is the keyboard of this console; name a file or an http:// URL"}
	case from == "-":
		return t.readStdin(ctx, room)
	case isURL && scheme == "http":
		var image []byte
		err := t.wait(ctx, "fetching "+shown(from), func(ctx context.Context) (err error) {
			image, err = download(ctx, from, room)
			return err
		})
		return image, err
	case isURL:
		return nil, &usageError{shown(from) + ": only http:// is known; the signature in the image is what is trusted, not the way it takes"}
	}
	f, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readImage(from, f, room)
}

// readStdin can be interrupted, which a read itself can not be: it is left
// behind then, and ends with this process.
func (t *tool) readStdin(ctx context.Context, room int64) ([]byte, error) {
	type result struct {
		image []byte
		err   error
	}
	read := make(chan result, 1)
	go func() {
		image, err := readImage("stdin", t.stdin, room)
		read <- result{image, err}
	}()
	select {
	case r := <-read:
		return r.image, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("stdin: %w", ctx.Err())
	}
}

func readImage(name string, r io.Reader, room int64) ([]byte, error) {
	image, err := io.ReadAll(io.LimitReader(r, room+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case int64(len(image)) > room:
		return nil, fmt.Errorf("%s: %w: a bank has room for %d bytes, and it has more", name, bank.ErrTooLarge, room)
	}
	return image, nil
}

func download(ctx context.Context, url string, room int64) ([]byte, error) {
	name := shown(url)
	ctx, cancel := context.WithTimeoutCause(ctx, fetchMax, fmt.Errorf("%s: took longer than %v", name, fetchMax))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	stalled := time.AfterFunc(fetchStall, func() { stop(fmt.Errorf("%s: nothing came for %v", name, fetchStall)) })
	defer stalled.Stop()

	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: fetchStall}).DialContext, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: the server says %s", name, resp.Status)
	}
	if resp.ContentLength > room {
		return nil, fmt.Errorf("%s: %w: it has %d bytes, a bank has room for %d", name, bank.ErrTooLarge, resp.ContentLength, room)
	}
	image, err := readImage(name, alive{resp.Body, stalled}, room)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("%w: the connection ended before the image did", err)
	}
	return image, causeOf(ctx, err)
}

// shown is where an image comes from, for people: a password in it is theirs.
func shown(from string) string {
	if u, err := neturl.Parse(from); err == nil {
		return u.Redacted()
	}
	return from
}

// causeOf says why a context ended, where that is why something failed.
func causeOf(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// alive puts the end of patience off whenever something comes.
type alive struct {
	r     io.Reader
	timer *time.Timer
}

func (a alive) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if n > 0 {
		a.timer.Reset(fetchStall)
	}
	return n, err
}
