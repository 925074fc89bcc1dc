package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
)

// maxAnswer is the maximum size of a response, in bytes: the differences of a node whose 100,000 flows all differ are some 50 MB.
const maxAnswer = 256 << 20

// Client sends requests to the agent of this node, or to a controller, which serves Diff only.
type Client struct {
	// Socket is the path of the agent's admin socket; DefaultSocket when empty.
	Socket string
	// Controller is the controller's health address, host:port. Empty: the agent is asked.
	Controller string
}

// server is where a program answers.
type server struct{ network, address string }

func (c *Client) server() server {
	switch {
	case c.Controller != "":
		return server{"tcp", c.Controller}
	case c.Socket != "":
		return server{"unix", c.Socket}
	}
	return server{"unix", DefaultSocket}
}

// State returns the state of the agent.
func (c *Client) State(ctx context.Context) (State, error) {
	var state State
	err := c.do(ctx, http.MethodGet, "/v1/state", nil, &state)
	return state, err
}

// Diff lets the agent read back what is programmed, and returns the differences.
func (c *Client) Diff(ctx context.Context) (Diff, error) {
	var diff Diff
	err := c.do(ctx, http.MethodGet, DiffPath, nil, &diff)
	return diff, err
}

// Owners returns the owners of the flows of a bridge.
func (c *Client) Owners(ctx context.Context, q OwnersQuery) (Owners, error) {
	var owners Owners
	err := c.do(ctx, http.MethodGet, "/v1/owners?"+url.Values{"policy": {q.Policy}, "bridge": {q.Bridge}}.Encode(), nil, &owners)
	return owners, err
}

// LogLevel returns the agent's log level.
func (c *Client) LogLevel(ctx context.Context) (string, error) {
	var words levelWords
	err := c.do(ctx, http.MethodGet, "/v1/log-level", nil, &words)
	return words.Level, err
}

// SetLogLevel changes the agent's log level, and returns the new one.
func (c *Client) SetLogLevel(ctx context.Context, level string) (string, error) {
	var words levelWords
	err := c.do(ctx, http.MethodPut, "/v1/log-level", levelWords{level}, &words)
	return words.Level, err
}

// do sends a request and decodes the response. Only ctx bounds its duration.
func (c *Client) do(ctx context.Context, method, path string, body, into any) error {
	at := c.server()
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return fmt.Errorf("writing the request: %w", err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://weft"+path, bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("writing the request: %w", err)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, at.network, at.address)
	}}
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return at.explain(err)
	}
	defer answer.Body.Close() //nolint:errcheck // it has been read, or the error is returned already
	content, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return at.explain(err)
	case len(content) > maxAnswer:
		return fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	case answer.StatusCode != http.StatusOK:
		return refused(at.address, answer.StatusCode, content)
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("the program on %s is not an agent of this release: compare the versions with weft version: %w", at.address, err)
	}
	return nil
}

func refused(socket string, status int, content []byte) error {
	var said failure
	if err := json.Unmarshal(content, &said); err != nil || said.Error == "" {
		return fmt.Errorf("the program on %s is not an agent of this release (HTTP status %d): compare the versions with weft version", socket, status)
	}
	return errors.New(said.Error)
}

// explain adds to the error what to do about a program that does not answer.
func (s server) explain(err error) error {
	socket := s.address
	switch {
	case s.network != "unix":
		return fmt.Errorf("no controller answers at %s: run this in its pod: kubectl -n weft exec POD -- /weft diff --controller: %w", s.address, err)
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no agent runs here (socket %s): run this on the node, or in its agent's pod: kubectl -n weft exec ds/weft-agent -- ...: %w", socket, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("only root may use the agent's socket %s: run this as root: %w", socket, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the agent did not answer in time (socket %s): read its log and its pod's events: %w", socket, err)
	}
	return fmt.Errorf("request to the agent (socket %s): %w", socket, err)
}
